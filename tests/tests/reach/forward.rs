//! TCP through `levers9 port-forward`: ends are ends and breaks are breaks, in
//! each direction for itself (B25, B27).

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use levers9_tests::http::{Wire, sha256};
use levers9_tests::{Live, wait};
use serde_json::Value;
use tokio::time::Instant;

use crate::support::{LEARNT, PATIENCE, Site, in_time, mark, noise, shared, site, text};

/// Forwards the origin's port: the command, and where it listens.
fn forwarded(site: &Site) -> (Live, SocketAddr) {
    let remote = format!(":{}", site.origin.port());
    let live = shared().world.cli_spawn(&["port-forward", &site.task, &remote, "--format", "json"]);
    let at = wait::until("the port is forwarded", PATIENCE, || {
        let line: Value = serde_json::from_str(&live.text()).map_err(|_| live.shown())?;
        text(&line["local"]).parse::<SocketAddr>().map_err(|error| error.to_string())
    });
    (live, at)
}

/// A connection whose first line asks the origin for something. What follows
/// is no HTTP.
fn begun(at: SocketAddr, path: &str) -> Wire {
    let mut wire = Wire::connect(at);
    wire.send(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).expect("it is sent");
    wire
}

/// B25: the target answers only after it has seen the end of its input.
#[test]
fn a_target_that_answers_after_the_end_of_input_is_heard() {
    let (_forward, at) = forwarded(site());
    thread::scope(|scope| {
        for number in 0..10_usize {
            scope.spawn(move || {
                for round in 0..10_usize {
                    let input = noise(1 + (number * 10 + round) * 3_001);
                    let mut wire = begun(at, "/half");
                    wire.send(&input).expect("the input is sent");
                    wire.finish().expect("it ends");
                    let answer = wire.rest().expect("the answer ends in order");
                    let (sum, derived) = answer.split_at_checked(64).expect("a sum");
                    assert_eq!(String::from_utf8_lossy(sum), sha256(&input));
                    assert!(derived.len() == 1 << 20, "{} bytes came", derived.len());
                    assert!(derived.iter().zip(input.iter().cycle()).all(|(a, b)| *a == !*b));
                }
            });
        }
    });
}

/// B25: the mirror of it. The target ends first, and goes on listening.
#[test]
fn a_target_that_ends_first_goes_on_listening() {
    let site = site();
    let (_forward, at) = forwarded(site);
    for length in [0, 1, 300_000] {
        let (id, input) = (mark(), noise(length));
        let mut wire = begun(at, &format!("/first-half?id={id}"));
        assert_eq!(wire.rest().expect("its end"), b"all of it");
        wire.send(&input).expect("the input is sent");
        wire.finish().expect("it ends");
        let event = site.wait_event(&format!("heard {id}"), PATIENCE);
        assert_eq!(event, format!("heard {id} {} {length}", sha256(&input)));
    }
}

/// B27: a break is a break at the other end, within a second.
#[test]
fn a_break_is_never_an_end() {
    let site = site();
    let (_forward, at) = forwarded(site);
    let mut wire = begun(at, "/break/length");
    let begun_at = Instant::now();
    let ended = wire.rest();
    in_time(begun_at, LEARNT, "the client's notice");
    let kind = ended.as_ref().map(Vec::len).map_err(std::io::Error::kind);
    assert_eq!(kind, Err(ErrorKind::ConnectionReset));

    let id = mark();
    let mut wire = Wire::connect(at);
    let head = format!("POST /sink?id={id} HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
    wire.send(&[head.as_bytes(), [1; 100_000].as_slice()].concat()).expect("a part is sent");
    site.wait_event(&format!("sinking {id}"), PATIENCE);
    let begun_at = Instant::now();
    wire.reset();
    let event = site.wait_event(&format!("sink {id}"), PATIENCE);
    in_time(begun_at, LEARNT, "the container's notice");
    assert_eq!(event, format!("sink {id} broken ConnectionReset"));
}

/// What is not exposed to HTTP is reached all the same, as it is: raw bytes,
/// of somebody who may. The command ends when the container does.
#[test]
fn the_command_ends_with_the_container() {
    let own = Site::start(&shared().world, &[]);
    let (mut forward, at) = forwarded(&own);
    let mut wire = begun(at, "/x");
    assert_eq!(wire.answer("GET").expect("an answer").with(200).text(), "ok /x");
    let _stopped = shared().world.cli(&["task", "stop", &own.task]).ok();
    wire.limit(Some(Duration::from_secs(5)));
    assert!(!matches!(wire.rest(), Err(error) if error.kind() == ErrorKind::WouldBlock), "it hangs");
    wait::until("the port is closed, or the command has ended", PATIENCE, || {
        if forward.poll().is_some() {
            return Ok(());
        }
        let mut wire = begun(at, "/x");
        wire.limit(Some(Duration::from_secs(5)));
        match wire.answer("GET") {
            Ok(answer) => Err(format!("an answer: {}", answer.text())),
            Err(_) => Ok(()),
        }
    });
}
