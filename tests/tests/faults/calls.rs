//! A request whose answer is lost is sent again with its id, and has one
//! effect: also when both come at once, over two carriers, to two
//! controlplanes, before and after a restart.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use futures_util::future::join_all;
use levers9_tests::world::Setup;
use levers9_tests::{Backend, Live, Person, World, wait};
use levers9_transport::CarrierKind;
use levers9_wire::RequestId;
use levers9_wire::v1::{self, call_answer, call_open};
use serde_json::Value;

use crate::peer::{Peer, hello, runtime};
use crate::support::{LONG, SOON};

/// Each that makes something, in a form that is refused the second time if it
/// were another request.
fn requests() -> Vec<(&'static str, call_open::Request)> {
    use call_open::Request as R;
    let settings = v1::ClusterSettings {
        name: "cluster-once".to_owned(),
        gpu_type: "L40S".to_owned(),
        worker_image: "registry.example.org/levers9/worker:1".to_owned(),
        ..v1::ClusterSettings::default()
    };
    vec![
        ("a token", R::TokenCreate(v1::TokenCreateRequest::default())),
        ("an enrolment", R::WorkerEnroll(v1::WorkerEnrollRequest::default())),
        ("a workspace", R::WorkspaceCreate(v1::WorkspaceCreateRequest { name: "once".to_owned() })),
        ("a cluster", R::ClusterJoin(v1::ClusterJoinRequest { settings: Some(settings) })),
        (
            "a newer token of the cluster",
            R::ClusterRotateToken(v1::ClusterRotateTokenRequest { cluster: "cluster-once".to_owned() }),
        ),
        (
            "a task",
            R::Submit(v1::SubmitRequest {
                name: "once".to_owned(),
                command: vec!["true".to_owned()],
                ..v1::SubmitRequest::default()
            }),
        ),
        (
            "a leave",
            R::ClusterLeave(v1::ClusterLeaveRequest {
                cluster: "cluster-once".to_owned(),
                ..v1::ClusterLeaveRequest::default()
            }),
        ),
    ]
}

/// How many there are of what requests make: tokens with those of enrolments,
/// workspaces, clusters, tasks.
fn made(world: &World) -> [usize; 4] {
    let count = |what: &[&str]| {
        let list = world.cli(&[what, &["list", "--format", "json"]].concat()).ok().json();
        list.as_array().map_or(0, Vec::len)
    };
    [count(&["token"]), count(&["workspace"]), count(&["cluster"]), count(&["task"])]
}

/// Sends each from everybody at once, twice, under one id; they all get one
/// answer, and there is one more of each thing.
fn once_each(world: &World, addresses: &[String], restart: impl Fn()) {
    let runtime = runtime();
    let token = world.new_token("admin").1;
    for (what, request) in requests() {
        let id = RequestId::generate().to_wire();
        let before = made(world);
        let ask = || {
            runtime.block_on(async {
                let kinds = [CarrierKind::Quic, CarrierKind::Tcp];
                let dial = addresses.iter().flat_map(|address| kinds.map(|kind| (address.as_str(), kind)));
                let greet = |(address, kind)| Peer::greet(address, kind, hello(v1::Role::Cli, &token));
                let peers: Vec<Peer> = join_all(dial.map(greet))
                    .await
                    .into_iter()
                    .map(|peer| peer.expect("a welcome"))
                    .collect();
                let calls = peers.iter().flat_map(|peer| [peer, peer]);
                join_all(calls.map(|peer| peer.call(&id, request.clone()))).await
            })
        };
        let answers = ask();
        let first = &answers[0];
        assert!(!matches!(first, call_answer::Answer::Failure(_)), "{what}: {first:?}");
        // No answer is shown: it holds a token.
        assert!(answers.iter().all(|answer| answer == first), "{what}: all get one answer");
        restart();
        assert!(ask().iter().all(|answer| answer == first), "{what}: and get it again");
        let mut expected = match what {
            "a token" => vec![1, 0, 0, 0],
            "an enrolment" => vec![1, 0, 0, 0],
            // With its first token.
            "a workspace" => vec![1, 1, 0, 0],
            // With its agent's.
            "a cluster" => vec![1, 0, 1, 0],
            "a newer token of the cluster" => vec![1, 0, 0, 0],
            "a task" => vec![0, 0, 0, 1],
            _ => vec![-2, 0, -1, 0],
        };
        // Which clusters another one attached or detached a list here does not tell.
        let tells = addresses.len() == 1;
        expected[2] *= isize::from(tells);
        wait::until(&format!("one effect of {what}"), SOON, || {
            let after = made(world);
            let more =
                after.iter().zip(before).map(|(after, before)| after.cast_signed() - before.cast_signed());
            let mut more: Vec<isize> = more.collect();
            more[2] *= isize::from(tells);
            if more == expected { Ok(()) } else { Err(format!("{more:?}, and not {expected:?}")) }
        });
    }
}

#[test]
fn a_request_has_one_effect_also_at_once_and_after_a_restart() {
    let world = World::start(Backend::Sqlite);
    let address = world.controlplane.address();
    once_each(&world, &[address], || {
        world.controlplane.kill9();
        world.controlplane.start();
    });
}

#[test]
fn a_request_has_one_effect_at_two_controlplanes_at_once() {
    let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let setup = Setup { config: "names: [127.0.0.1, 127.0.0.2]\n".to_owned(), ..Setup::default() };
    let world = World::start_with(Backend::Postgres, setup);
    let beside = world.controlplane.beside("beside", other);
    beside.start();
    let address = world.controlplane.address();
    let there = address.replacen("//127.0.0.1:", "//127.0.0.2:", 1);
    assert_ne!(address, there);
    once_each(&world, &[address, there], || {});
}

/// The answer is cut off after what it says has been done, and the
/// controlplane is killed: the command asks again by itself.
fn the_answer_is_lost(args: &[&str], done: impl Fn(&World) -> bool) -> (World, Live) {
    let world = World::start(Backend::Sqlite);
    let relay = world.relay();
    let token = world.new_token("workspace").1;
    let person = Person::new(relay.in_place_of(&world.controlplane.address()), token);
    // A long way: what is done is seen before its answer has come.
    relay.delay(Duration::from_millis(700));
    let mut live = person.cli_spawn(args);
    wait::until("it is done", SOON, || if done(&world) { Ok(()) } else { Err(live.shown()) });
    relay.cut();
    world.controlplane.kill9();
    assert_eq!(live.poll(), None, "it has no answer yet: {}", live.shown());
    world.controlplane.start();
    relay.delay(Duration::ZERO);
    relay.restore();
    assert_eq!(live.wait(LONG), 0, "{}", live.shown());
    (world, live)
}

fn rows(world: &World, what: &str) -> Vec<Value> {
    let list = world.cli(&[what, "list", "--format", "json"]).ok().json();
    list.as_array().cloned().unwrap_or_default()
}

#[test]
fn a_submission_whose_answer_is_lost_is_made_once() {
    let args = ["run", "--detach", "--name", "once", "--", "true"];
    let (world, live) = the_answer_is_lost(&args, |world| !rows(world, "task").is_empty());
    let tasks = rows(&world, "task");
    assert_eq!(tasks.len(), 1, "{tasks:#?}");
    assert_eq!(tasks[0]["id"], live.text().trim());
}

#[test]
fn a_token_whose_answer_is_lost_is_made_once() {
    let args = ["token", "create", "--kind", "workspace_restricted", "--format", "json"];
    let restricted =
        |world: &World| rows(world, "token").into_iter().filter(|row| row["kind"] == "workspace_restricted");
    let (world, live) = the_answer_is_lost(&args, |world| restricted(world).count() > 0);
    let tokens: Vec<Value> = restricted(&world).collect();
    assert_eq!(tokens.len(), 1, "{tokens:#?}");
    let made: Value = serde_json::from_str(&live.text()).expect("JSON");
    assert_eq!(tokens[0]["id"], made["id"], "{tokens:#?}");
    // What it was told is good.
    let holder = Person::of(&world, made["key"].as_str().expect("a key"));
    let _list = holder.cli(&["task", "list"]).ok();
}
