//! Doors: what a container dials of the controlplane through its worker, with
//! its own token and no other, for as long as it runs.

use std::net::SocketAddr;

use levers9_tests::http::Wire;
use levers9_tests::http2::Http2;
use levers9_tests::{Backend, Output, World, wait};

use crate::support::{ENDED, PATIENCE, ask};

/// A container that runs: its task, where its door is, and its token.
struct Inside {
    task: String,
    door: SocketAddr,
    token: String,
}

fn inside(world: &World) -> Inside {
    let script = "echo $LEVERS9_CONTROLPLANE_HOST:$LEVERS9_CONTROLPLANE_PORT $LEVERS9_TOKEN \
        $LEVERS9_CONTROLPLANE_HTTP_URL $LEVERS9_CONTROLPLANE_TLS; exec sleep 300";
    let task = world.submit(script);
    let said = wait::until("the container says where its door is", PATIENCE, || {
        let log = world.cli(&["logs", &task]).text();
        if log.lines().count() == 1 { Ok(log) } else { Err(log) }
    });
    let words: Vec<&str> = said.split_whitespace().collect();
    let [door, token, url, "false"] = words[..] else { panic!("{said}") };
    assert_eq!(url, format!("http://{door}"), "one port for both");
    Inside { task, door: door.parse().expect("an address"), token: token.to_owned() }
}

fn knock(door: SocketAddr, path: &str, token: Option<&str>) -> u16 {
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let head = format!("GET {path} HTTP/1.1\r\nHost: {door}\r\n{authorization}\r\n");
    ask(&mut Wire::connect(door), "GET", head.as_bytes()).status()
}

/// The answer of gRPC's Authorize: its status, and what it says.
fn authorize(door: SocketAddr, token: &str) -> (String, Vec<u8>) {
    let request = http::Request::post(format!("http://{door}/controlplane.ControlPlaneService/Authorize"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {token}"));
    let mut exchange = Http2::connect(door).begin(request.body(()).expect("a request"), false);
    // An empty message: not compressed, no bytes.
    exchange.send(vec![0; 5], true);
    let answer = exchange.answer();
    (answer.field("grpc-status"), answer.body)
}

#[test]
fn a_container_reaches_both_services_with_its_own_token_and_while_it_runs() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let (one, other) = (inside(&world), inside(&world));
    assert_ne!(one.door, other.door);
    for (token, status) in [
        (None, 401),
        (Some("l9_wsr_nobody"), 401),
        (Some(other.token.as_str()), 401),
        (Some(one.token.as_str()), 200),
    ] {
        assert_eq!(knock(one.door, "/healthz", token), status, "{token:?}");
    }
    // A server that closes after its answer takes nothing of it back.
    for _ in 0..50 {
        let mut wire = Wire::connect(one.door);
        wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it is sent");
        let all = wire.rest().expect("an answer and its end");
        assert!(all.starts_with(b"HTTP/1.1 401"), "{}", String::from_utf8_lossy(&all));
    }
    let (status, body) = authorize(one.door, &one.token);
    // `ok` is the first field, true.
    assert_eq!((status.as_str(), &body[5..7]), ("0", &[8, 1][..]), "{body:?}");
    assert_eq!(authorize(one.door, &other.token).0, "16", "unauthenticated");
    // The token is good for what a restricted one may do, and no more.
    let with = |token: &str, args: &[&str]| {
        let mut command = world.home.command("levers9", args);
        command.env("LEVERS9_ADDRESS", world.controlplane.address()).env("LEVERS9_TOKEN", token);
        Output::of(command)
    };
    let list = with(&one.token, &["task", "list"]).ok();
    assert!(list.text().contains(&one.task), "{}", list.text());
    let refused = with(&one.token, &["exec", &other.task, "--", "true"]).with_code(125);
    assert!(refused.stderr.contains("no such container"), "{}", refused.stderr);
    let refused = with(&one.token, &["token", "create"]).with_code(1);
    assert!(refused.stderr.contains("may not do this"), "{}", refused.stderr);
    // It ends with the container.
    let _stopped = world.cli(&["task", "stop", &one.task]).ok();
    world.wait_status(&one.task, "CANCELLED", PATIENCE);
    wait::until("the door is gone", ENDED, || match std::net::TcpStream::connect(one.door) {
        Ok(_) => Err("it still takes connections".to_owned()),
        Err(_) => Ok(()),
    });
    let refused = with(&one.token, &["task", "list"]);
    assert!(refused.stderr.contains("does not know this token"), "{}: {}", refused.code, refused.stderr);
    assert_eq!(knock(other.door, "/healthz", Some(&other.token)), 200, "the other one's stays");
    for log in [world.controlplane.log(), worker.log()] {
        assert!(!log.contains(&one.token) && !log.contains(&other.token), "a token is in a log");
    }
}

#[test]
fn a_door_outlives_a_restart_of_the_controlplane() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let inside = inside(&world);
    world.controlplane.kill9();
    world.controlplane.start();
    world.wait_worker(&worker, "ready", PATIENCE);
    assert_eq!(knock(inside.door, "/healthz", Some(&inside.token)), 200);
}
