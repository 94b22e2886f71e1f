//! Firewalls, by iptables in a network namespace of each test's own: UDP
//! dropped, rejected, with and without ICMP, refused to the sender, too large
//! for the way; UDP and TCP dropped; nothing but a proxy; and back again.
//!
//! It needs root, iproute2 and iptables (its nf_tables variant is enough), and
//! fails with words where one is missing. The `nft` command is not asked for.
//! Only the thread of a test, and what it starts, is in the namespace: it goes
//! with them, and no rule is ever set outside of it.

use std::ops::RangeInclusive;
use std::process::Command;
use std::time::Duration;

use levers9_tests::live::tail;
use levers9_tests::{Backend, Counting, Live, Output, Worker, World, wait};
use levers9_transport::CarrierKind;
use levers9_wire::v1::{self, Role, call_answer, call_open};
use levers9_wire::{ClusterId, RequestId};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use tokio::time::Instant;

use crate::connect::{FROM, Proxy};
use crate::peer::{Peer, hello, runtime};
use crate::support::{LONG, SOON, last_number};

/// What is blocked no longer is used again within this: a pause between two
/// attempts, and one attempt.
const BACK: Duration = Duration::from_secs(35);
/// A carrier is suspected after 25 s without a ping, and then there is another.
const MOVED: Duration = Duration::from_secs(35);

/// The network of one test.
struct Walls;

impl Walls {
    fn run(program: &str, args: &str) -> String {
        let did = Command::new(program).args(args.split_whitespace()).output();
        let did = did.unwrap_or_else(|error| panic!("{program} is needed: {error}"));
        let errors = String::from_utf8_lossy(&did.stderr);
        assert!(did.status.success(), "{program} {args}: {errors}");
        String::from_utf8_lossy(&did.stdout).into_owned()
    }

    fn raise(&self, rules: &[String]) {
        for rule in rules {
            Self::run("iptables", &format!("-w -A {rule}"));
        }
    }

    fn lower(&self) {
        Self::run("iptables", "-w -F");
    }

    /// How many TCP connections were begun in this network.
    fn connects(&self) -> u64 {
        // Of the thread: the process itself is elsewhere.
        let counters = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
        let mut lines = counters.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
        let of = names.split(' ').position(|name| name == "ActiveOpens").expect("a counter");
        values.split(' ').nth(of).and_then(|value| value.parse().ok()).expect("a number")
    }

    /// How many packets the rules of a chain have taken, the first rule first.
    fn taken(&self, chain: &str) -> Vec<u64> {
        let list = Self::run("iptables", &format!("-w -nvxL {chain}"));
        let packets = |line: &str| line.split_whitespace().next()?.parse().ok();
        list.lines().skip(2).filter_map(packets).collect()
    }
}

/// Runs a test in a network that nobody else is in.
fn walled(test: fn(&Walls)) {
    let alone = std::thread::spawn(move || {
        assert!(nix::unistd::geteuid().is_root(), "a network namespace with rules of its own needs root");
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
        Walls::run("ip", "link set lo up");
        // Segments are counted and dropped one by one, as on a wire.
        Walls::run("ip", "link set lo gso_max_segs 1");
        test(&Walls);
    });
    if let Err(panic) = alone.join() {
        std::panic::resume_unwind(panic);
    }
}

fn drop_both(protocol: &str, port: u16) -> Vec<String> {
    ["dport", "sport"].map(|end| format!("INPUT -p {protocol} --{end} {port} -j DROP")).to_vec()
}

fn reject(port: u16) -> Vec<String> {
    ["dport", "sport"].map(|end| format!("INPUT -p udp --{end} {port} -j REJECT")).to_vec()
}

fn lose_icmp() -> String {
    "INPUT -p icmp -j DROP".to_owned()
}

fn wait_carrier(world: &World, log: &dyn Fn() -> String, carrier: &str, within: Duration) -> Value {
    wait::until(&format!("the worker rides on {carrier}"), within, || {
        let list = world.cli(&["worker", "list", "--format", "json"]).ok().json();
        match &list[0] {
            row if row["carrier"] == carrier && row["state"] == "ready" => Ok(row.clone()),
            row => Err(format!("{row:#}\n{}", tail(&log(), 1500))),
        }
    })
}

fn begun(world: &World) -> usize {
    world.controlplane.log().matches("a worker connects").count()
}

/// From the start: UDP is given up at once where it is rejected, and after its
/// head start where it is dropped.
fn blocked_from_the_start(walls: &Walls, rules: impl Fn(u16) -> Vec<String>) {
    let world = World::start(Backend::Sqlite);
    walls.raise(&rules(world.controlplane.quic().port()));
    let begins = Instant::now();
    let worker = world.worker("one");
    assert!(begins.elapsed() < Duration::from_secs(5), "online after {:?}", begins.elapsed());
    let row = wait_carrier(&world, &|| worker.log(), "tcp", Duration::from_secs(1));
    assert!(row["carrier_why"].as_str().is_some_and(|why| why.contains("UDP")), "{row:#}");
    let run = Counting::start(&world, &[]);
    walls.lower();
    wait_carrier(&world, &|| worker.log(), "quic", Duration::from_secs(40));
    run.end();
    assert_eq!(begun(&world), 1, "{}", worker.log());
}

#[test]
fn udp_that_is_dropped_from_the_start() {
    walled(|walls| blocked_from_the_start(walls, |port| drop_both("udp", port)));
}

#[test]
fn udp_that_is_rejected_from_the_start() {
    walled(|walls| blocked_from_the_start(walls, reject));
}

/// In the middle: another carrier is there within a time, and the better one
/// comes back; this many sessions of the worker there are until then.
fn blocked_in_the_middle(
    walls: &Walls,
    rules: impl Fn(u16) -> Vec<String>,
    within: Duration,
    sessions: RangeInclusive<usize>,
) {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let run = Counting::start(&world, &[]);
    wait_carrier(&world, &|| worker.log(), "quic", SOON);
    walls.raise(&rules(world.controlplane.quic().port()));
    wait_carrier(&world, &|| worker.log(), "tcp", within);
    walls.lower();
    wait_carrier(&world, &|| worker.log(), "quic", Duration::from_secs(40));
    run.wait_more(20);
    run.end();
    let begun = begun(&world);
    assert!(sessions.contains(&begun), "{begun}: {}", worker.log());
}

pub(crate) fn udp_that_is_dropped_in_the_middle() {
    walled(|walls| blocked_in_the_middle(walls, |port| drop_both("udp", port), MOVED, 1..=1));
}

pub(crate) fn udp_that_is_rejected_in_the_middle() {
    walled(|walls| blocked_in_the_middle(walls, reject, MOVED, 1..=1));
}

pub(crate) fn udp_that_is_rejected_and_icmp_that_is_lost() {
    walled(|walls| {
        blocked_in_the_middle(walls, |port| [vec![lose_icmp()], reject(port)].concat(), MOVED, 1..=1)
    });
}

/// B7b: the way takes smaller datagrams than it did. What runs goes on over
/// the same connection.
#[test]
fn only_large_datagrams_that_are_dropped() {
    walled(|walls| {
        let world = World::start(Backend::Sqlite);
        let worker = world.worker("one");
        // Enough for the size to have been found out.
        let ran = world.cli(&["run", "--", "seq", "700000"]).ok();
        assert_eq!(ran.stdout.len(), 4_788_895);
        let run = Counting::start(&world, &[]);
        let mut bulk =
            world.cli_spawn(&["run", "--", "sh", "-c", "seq 1300000; sleep 2; seq 1300000; exit 9"]);
        wait::until("its first half", LONG, || match bulk.stdout_len() {
            length if length >= 9_288_896 => Ok(()),
            length => Err(format!("{length} bytes")),
        });
        // Its headers beside the 1,300 bytes.
        walls.raise(&["INPUT -p udp -m length --length 1329:65535 -j DROP".to_owned()]);
        let since = Instant::now();
        assert_eq!(bulk.wait(LONG), 9, "{}", bulk.shown());
        assert!(since.elapsed() < Duration::from_secs(40), "{:?}", since.elapsed());
        assert_eq!(bulk.stdout_len(), 2 * 9_288_896);
        assert!(walls.taken("INPUT")[0] > 0, "there were larger ones");
        // Whoever begins now finds its way as well.
        let ran = world.cli(&["run", "--", "seq", "700000"]).ok();
        assert_eq!(ran.stdout.len(), 4_788_895);
        run.end();
        wait_carrier(&world, &|| worker.log(), "quic", Duration::from_secs(1));
        assert_eq!(begun(&world), 1, "{}", worker.log());
    });
}

/// Memory of a process that is its own, in bytes.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line for it");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

/// B11: what is sent is refused to the sender, and TCP leads nowhere.
pub(crate) fn sending_that_is_refused() {
    walled(|walls| {
        let world = World::start(Backend::Sqlite);
        let worker = world.worker("one");
        let script = "i=0; while [ ! -e enough ]; do i=$((i+1)); echo $i; sleep 0.01; done";
        let run = world.cli_spawn(&["run", "--name", "talks", "--", "sh", "-c", script]);
        run.wait_text("numbers", SOON, |text| last_number(text) > 100);
        let (before, lines) = (memory(worker.pid()), worker.log().lines().count());
        let port = world.controlplane.quic().port();
        let refuse = format!("OUTPUT -p udp --dport {port} -j DROP");
        walls.raise(&[vec![refuse], drop_both("tcp", port)].concat());
        std::thread::sleep(Duration::from_secs(75));
        let (after, said) = (memory(worker.pid()), worker.log().lines().count() - lines);
        walls.lower();
        let back = Instant::now();
        world.wait_worker(&worker, "ready", BACK);
        let seen = last_number(&run.text());
        run.wait_text("numbers again", BACK, |text| last_number(text) > seen);
        assert!(back.elapsed() < BACK, "{:?}", back.elapsed());
        assert!(after < before + (5 << 20), "{before} bytes became {after}");
        assert!(said < 20, "{said} lines: {}", worker.log());
        drop(run);
    });
}

/// B11, where TCP is open. The worker hears pings and what is sent to it again
/// and again all the while. It may see that nothing answers it; at the latest
/// the controlplane gives the session up, after its 45 s.
pub(crate) fn sending_over_udp_that_is_refused() {
    walled(|walls| {
        let refuse = |port| vec![format!("OUTPUT -p udp --dport {port} -j DROP")];
        blocked_in_the_middle(walls, refuse, Duration::from_secs(45 + 10), 1..=2);
    });
}

/// An agent's token and the id of its cluster.
fn cluster(world: &World) -> (ClusterId, String) {
    let settings = v1::ClusterSettings {
        name: "walled".to_owned(),
        gpu_type: "L40S".to_owned(),
        worker_image: "registry.example.org/levers9/worker:1".to_owned(),
        ..v1::ClusterSettings::default()
    };
    let asked = call_open::Request::ClusterJoin(v1::ClusterJoinRequest { settings: Some(settings) });
    let token = world.new_token("workspace").1;
    let answer = runtime().block_on(async {
        let address = world.controlplane.address();
        let peer = Peer::greet(&address, CarrierKind::Tcp, hello(Role::Cli, &token)).await;
        peer.expect("a welcome").call(&RequestId::generate().to_wire(), asked).await
    });
    match answer {
        call_answer::Answer::ClusterJoin(joined) => {
            (ClusterId::from_wire(&joined.cluster).ok().flatten().expect("an id"), joined.token)
        }
        other => panic!("{other:?}"),
    }
}

/// An agent of a cluster, with its token in a file.
fn agent(world: &World, cluster: ClusterId) -> Live {
    let (address, id) = (world.controlplane.address(), cluster.to_string());
    let args = ["--controlplane", &address, "--cluster", &id, "--namespace", "levers9"];
    let mut command = world.home.command("levers9-agent", &args);
    command.args(["--image-repository", "registry.example.org/levers9/worker"]);
    command.arg("--token-file").arg(world.home.path().join("agent-token"));
    // No API server is there: the session does not wait for one.
    command.env("KUBECONFIG", "/nowhere/config");
    Live::spawn(command)
}

/// Enrolled, and not waited for.
fn worker_of(world: &World) -> Worker {
    let worker = world.worker("one");
    worker.kill9();
    worker
}

/// B12: nothing gets through. Nobody ends, all say what is wrong, and they are
/// back by themselves.
pub(crate) fn everything_that_is_dropped() {
    walled(|walls| {
        let world = World::start(Backend::Sqlite);
        let worker = worker_of(&world);
        let at = world.controlplane.quic();
        let commands: [(&[&str], i32); 3] = [
            (&["task", "list"], 3),
            (&["run", "--", "true"], 125),
            (&["cluster", "join", "joins", "--gpu", "L40S", "--manifest-only"], 3),
        ];
        let (cluster, token) = cluster(&world);
        std::fs::write(world.home.path().join("agent-token"), token).expect("a file");
        walls.raise(&[drop_both("udp", at.port()), drop_both("tcp", at.port())].concat());
        worker.start();
        let mut agent = agent(&world, cluster);
        let began = Instant::now();
        let words = format!("no answer from UDP {at}: it is down, or UDP is blocked on the way");
        let over_tcp = format!("TCP {at}");
        let mut lives: Vec<(Live, i32)> =
            commands.iter().map(|(args, code)| (world.cli_spawn(args), *code)).collect();
        for (live, code) in &mut lives {
            assert_eq!(live.wait(Duration::from_secs(15)), *code, "{}", live.shown());
            let said = live.errors();
            assert!(said.contains(&words) && said.contains(&over_tcp), "{said}");
            assert!(said.contains("hint: levers9 needs outbound UDP or TCP to this port"), "{said}");
        }
        let alone = walls.connects();
        let since = Instant::now();
        wait::stays("both try on", Duration::from_secs(60), || match (worker.poll(), agent.poll()) {
            (None, None) => Ok(()),
            ended => Err(format!("{ended:?}: {}\n{}", worker.log(), agent.errors())),
        });
        for (who, log) in [("the worker", worker.log()), ("the agent", agent.errors())] {
            let told = log.lines().filter(|line| line.contains("no session with the controlplane")).count();
            assert!((1..=3).contains(&told), "{who} says it {told} times: {log}");
            assert!(log.contains(&words) && log.contains(&over_tcp), "{who}: {log}");
        }
        // An attempt that is not answered takes ten seconds, and opens one connection.
        let (attempts, asked) = (since.elapsed().as_secs() / 10 + 1, walls.connects() - alone);
        assert!(
            (2..=2 * attempts).contains(&asked),
            "{asked} connections of two in {attempts} times ten seconds"
        );
        assert!(began.elapsed() > Duration::from_secs(60));
        walls.lower();
        let back = Instant::now();
        world.wait_worker(&worker, "ready", BACK);
        agent.wait_errors("online", BACK.saturating_sub(back.elapsed()));
        let _made = world.cli(&["run", "--", "true"]).ok();
    });
}

/// Only a proxy leads out; then there is more again.
#[test]
fn nothing_but_a_proxy() {
    walled(|walls| {
        let world = World::start(Backend::Sqlite);
        let proxy = Proxy::to(world.controlplane.quic());
        let port = world.controlplane.quic().port();
        let tcp = format!("INPUT -p tcp --dport {port} ! -s {FROM} -j DROP");
        walls.raise(&[drop_both("udp", port), vec![tcp]].concat());
        let token = {
            // The home's own context is behind the walls too.
            let mut command = world.home.command("levers9", &["worker", "enroll", "--format", "json"]);
            command.env("HTTPS_PROXY", proxy.url(""));
            Output::of(command).ok().json()["token"].as_str().expect("a token").to_owned()
        };
        let mut command = world.home.command("levers9-worker", &["--allow-unisolated"]);
        command.args(["--controlplane", &world.controlplane.address()]).env("HTTPS_PROXY", proxy.url(""));
        command.arg("--data").arg(world.home.path().join("worker-data")).env("LEVERS9_WORKER_TOKEN", token);
        let worker = Live::spawn(command);
        worker.wait_errors("online", SOON);
        let through = |args: &[&str]| {
            let mut command = world.home.command("levers9", args);
            command.env("HTTPS_PROXY", proxy.url(""));
            Output::of(command)
        };
        let list = through(&["worker", "list", "--format", "json"]).ok().json();
        assert_eq!((&list[0]["carrier"], &list[0]["state"]), (&"proxy".into(), &"ready".into()), "{list:#}");
        let ran = through(&["run", "--", "sh", "-c", "seq 300000; exit 9"]).with_code(9);
        assert_eq!(ran.stdout.len(), 1_988_895);
        walls.lower();
        wait_carrier(&world, &|| worker.errors(), "quic", Duration::from_secs(40));
    });
}
