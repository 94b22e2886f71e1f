//! UDP that is blocked, from the start or in the middle, and comes back: the
//! session goes over TCP meanwhile, and nothing is lost.

use std::time::Duration;

use levers9_tests::{Backend, Counting, Output, Relay, Worker, World, wait};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(40);

fn behind_both(udp: bool) -> (World, Relay, Worker) {
    let world = World::start(Backend::Sqlite);
    let relay = world.relay_of_both();
    if !udp {
        relay.cut_udp();
    }
    let worker = world.worker_via("one", &relay);
    (world, relay, worker)
}

/// The worker's row once it rides on something.
fn wait_carrier(world: &World, carrier: &str) -> Value {
    wait::until(&format!("the worker rides on {carrier}"), SOON, || {
        let list = world.cli(&["worker", "list", "--format", "json"]).ok().json();
        match &list[0] {
            row if row["carrier"] == carrier && row["state"] == "ready" => Ok(row.clone()),
            row => Err(format!("{row:#}")),
        }
    })
}

#[test]
fn without_udp_everything_goes_over_tcp_and_says_so() {
    let (world, relay, worker) = behind_both(false);
    let row = wait_carrier(&world, "tcp");
    assert!(row["carrier_why"].as_str().is_some_and(|why| why.contains("UDP")), "{row:#}");
    let table = world.cli(&["worker", "list"]).ok().text();
    assert!(table.contains("over tcp: "), "{table}");
    assert!(world.get("/metrics").1.contains("\nlevers9_carriers_tcp 1\n"));
    // 20 MB of output, and its exit code.
    let ran = world.cli(&["run", "--", "sh", "-c", "seq 2600000; exit 9"]).with_code(9);
    assert_eq!(ran.stdout.len(), 19_688_896);
    Counting::start(&world, &[]).end();

    // A command that is behind the same firewall.
    let address = relay.in_place_of(&world.controlplane.address());
    let token = world.cli(&["token", "create", "--format", "json"]).ok().json();
    let behind = |args: &[&str]| {
        let mut command = world.home.command("levers9", args);
        command.env("LEVERS9_ADDRESS", &address);
        command.env("LEVERS9_TOKEN", token["key"].as_str().expect("a token"));
        Output::of(command)
    };
    let ran = behind(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]).with_code(3);
    assert_eq!((ran.text().as_str(), ran.stderr.contains("err")), ("out\n", true));
    let shown = behind(&["session", "show", "--format", "json"]).ok().json();
    assert_eq!(shown[0]["carrier"], "tcp", "{shown:#}");
    assert!(shown[0]["carrier_why"].as_str().is_some_and(|why| why.contains("UDP")), "{shown:#}");
    let report = behind(&["doctor", "--format", "json"]).ok().json();
    let states: Vec<&str> = report["steps"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|step| step["state"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(states, ["ok", "warned", "ok", "ok", "ok", "ok", "ok", "ok"], "{report:#}");
    let straight = world.cli(&["session", "show", "--format", "json"]).ok().json();
    assert_eq!((&straight[0]["carrier"], &straight[0]["carrier_why"]), (&"quic".into(), &"".into()));
    drop(worker);
}

#[test]
fn a_session_that_loses_udp_goes_on_over_tcp_and_comes_back() {
    let (world, relay, _worker) = behind_both(true);
    let run = Counting::start(&world, &[]);
    wait_carrier(&world, "quic");
    relay.cut_udp();
    wait_carrier(&world, "tcp");
    run.wait_more(20);
    relay.restore_udp();
    wait_carrier(&world, "quic");
    let workers = world.cli(&["worker", "list", "--format", "json"]).ok().json();
    assert_eq!(workers.as_array().map(Vec::len), Some(1), "{workers:#}");
    run.end();
}

#[test]
fn a_controlplane_that_is_killed_is_found_again_over_tcp() {
    let (world, _relay, _worker) = behind_both(false);
    wait_carrier(&world, "tcp");
    let run = Counting::start(&world, &[]);
    world.controlplane.kill9();
    world.controlplane.start();
    wait_carrier(&world, "tcp");
    run.end();
}
