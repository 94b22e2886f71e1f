//! What becomes of a wish to leave HTTP (B35), and what goes through afterwards.

use std::io::ErrorKind;
use std::time::Duration;

use levers9_tests::http::{Wire, sha256};
use tokio::time::Instant;

use crate::support::{LEARNT, PATIENCE, Site, ask, in_time, mark, noise, site};

const WISH: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: echo\r\nSec-WebSocket-Key: a2V5\r\n";
/// A verdict is relayed within this; B35 says 200 ms, this machine may be busy.
const VERDICT: Duration = Duration::from_secs(1);

/// Sends a wish that is granted: the connection after `hello `.
fn upgraded(site: &Site, how: &str, id: &str) -> Wire {
    let mut wire = site.connect();
    let begun = Instant::now();
    wire.send(&site.head("GET", &format!("/upgrade/{how}?id={id}"), WISH)).expect("it is sent");
    let head = loop {
        let head = wire.head().expect("a head").expect("an answer");
        if head.status() != 103 {
            break head;
        }
    };
    in_time(begun, VERDICT, "the verdict");
    assert_eq!(head.status(), 101, "{head:?}");
    assert!(head.says("connection", "upgrade") && head.text("upgrade") == "echo", "{head:?}");
    assert_eq!(head.all("x-latin"), [b"\xe9".as_slice()]);
    assert_eq!(wire.exactly(6).expect("what came with the verdict"), b"hello ");
    wire
}

#[test]
fn a_wish_that_is_granted_leaves_http() {
    let site = site();
    for how in ["101", "103-101"] {
        let id = mark();
        let mut wire = upgraded(site, how, &id);
        let bytes = noise(2 << 20);
        let back = std::thread::scope(|scope| {
            let mut other = Wire::new(wire.stream().try_clone().expect("a second handle"));
            let sent = bytes.as_slice();
            scope.spawn(move || other.send(sent).expect("all is sent"));
            wire.exactly(sent.len()).expect("all comes back")
        });
        assert_eq!(sha256(&back), sha256(&bytes), "{how}");
        // B25: the end of one direction is an end, and the other goes on.
        wire.finish().expect("one direction ends");
        let begun = Instant::now();
        assert_eq!(wire.rest().expect("the other ends in order"), b"bye", "{how}");
        in_time(begun, LEARNT, "the end");
        site.wait_event(&format!("upgrade {id} ended"), PATIENCE);
    }
}

/// Who does not wait for the verdict loses nothing.
#[test]
fn what_is_sent_with_the_wish_arrives() {
    let site = site();
    let mut wire = site.connect();
    let head = site.head("GET", "/upgrade/101", WISH);
    wire.send(&[&head, b"early".as_slice()].concat()).expect("it is sent");
    assert_eq!(wire.head().expect("a head").expect("an answer").status(), 101);
    assert_eq!(wire.exactly(11).expect("what was said early"), b"hello early");
}

/// B35: a refusal is an answer like any other.
#[test]
fn a_wish_that_is_refused_is_answered() {
    let site = site();
    let mut wire = site.connect();
    for code in [401, 426, 200] {
        let begun = Instant::now();
        let head = site.head("GET", &format!("/upgrade/{code}"), WISH);
        let answer = ask(&mut wire, "GET", &head).with(code);
        in_time(begun, VERDICT, "the verdict");
        assert_eq!(answer.text(), format!("refused {code}"));
        let next = ask(&mut wire, "GET", &site.head("GET", "/next", "")).with(200);
        assert_eq!(next.text(), "ok /next", "after {code}");
    }
}

/// The container sees the wish, and no wish where there was none.
#[test]
fn a_wish_passes_only_where_it_is_one() {
    let site = site();
    let seen = |lines: &str| site.ask("GET", "/echo-head", lines, b"").with(200).text().to_ascii_lowercase();
    let echo = seen(WISH);
    assert!(echo.contains("upgrade: echo\r\n") && echo.contains("connection: upgrade\r\n"), "{echo}");
    assert!(echo.contains("sec-websocket-key: a2v5\r\n"), "{echo}");
    assert!(!seen("Upgrade: echo\r\n").contains("upgrade: echo"), "Connection does not name it");
    assert!(!seen("Connection: close\r\nUpgrade: echo\r\n").contains("upgrade: echo"));
}

/// B36: a client that breaks off is no end of its input for the container.
#[test]
fn a_client_that_breaks_an_upgraded_connection_breaks_the_container_s() {
    let site = site();
    let id = mark();
    upgraded(site, "101", &id).reset();
    let begun = Instant::now();
    let event = site.wait_event(&format!("upgrade {id}"), PATIENCE);
    in_time(begun, LEARNT, "the container's notice");
    assert!(event.contains("broken"), "a reset is no end: {event}");
}

/// B27: a container that breaks off is no end for the client.
#[test]
fn a_container_that_breaks_an_upgraded_connection_breaks_the_client_s() {
    let site = site();
    let mut wire = upgraded(site, "reset", &mark());
    wire.send(b"go").expect("it is sent");
    let begun = Instant::now();
    let ended = wire.rest();
    in_time(begun, LEARNT, "the client's notice");
    let kind = ended.as_ref().map_err(std::io::Error::kind);
    assert_eq!(kind.err(), Some(ErrorKind::ConnectionReset), "a reset is no end: {ended:?}");
}

/// One that does not read holds up itself alone.
#[test]
fn a_websocket_that_never_reads_stalls_nobody() {
    let site = site();
    let id = mark();
    let deaf = upgraded(site, "flood", &id);
    let mut stuffed = upgraded(site, "stall", &mark());
    stuffed.limit(Some(Duration::from_millis(500)));
    let piece = vec![7; 1 << 20];
    let full = (0..200).find_map(|_| stuffed.send(&piece).err());
    assert!(full.is_some(), "200 MB went into a container that reads nothing");
    for _ in 0..50 {
        let begun = Instant::now();
        assert_eq!(site.get("/beside").with(200).text(), "ok /beside");
        in_time(begun, LEARNT, "a request beside it");
    }
    // And it is noticed when it leaves.
    deaf.reset();
    site.wait_event(&format!("closed {id}"), PATIENCE);
}
