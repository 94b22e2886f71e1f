//! Whoever goes away, the container learns it within a second (B36, B27).

use levers9_tests::http::Wire;
use levers9_tests::http2::Http2;
use tokio::time::Instant;

use crate::support::{LEARNT, PATIENCE, Site, in_time, mark, site};

/// How an answer stands when its client goes: nothing yet, or how it began.
const STAGES: [&str; 4] = ["none", "chunk", "length", "end"];

fn closed(site: &Site, id: &str, what: &str) {
    let begun = Instant::now();
    site.wait_event(&format!("closed {id}"), PATIENCE);
    in_time(begun, LEARNT, &format!("{what}: the container's notice"));
}

/// Begins a request that hangs, and waits until it does.
fn hanging(site: &Site, method: &str, stage: &str, id: &str) -> Wire {
    let mut wire = site.connect();
    let lines = if method == "POST" { "Content-Length: 3\r\n" } else { "" };
    wire.send(&site.head(method, &format!("/hang?first={stage}&id={id}"), lines)).expect("it is sent");
    if method == "POST" {
        wire.send(b"abc").expect("the body is sent");
    }
    site.wait_event(&format!("hanging {id}"), PATIENCE);
    if stage != "none" {
        let head = wire.head().expect("a head").expect("an answer");
        assert_eq!(head.status(), 200);
        assert!(!wire.some().expect("its first bytes").is_empty());
    }
    wire
}

/// B36 over HTTP/1.1: closed in order and with a reset, before the first byte
/// and after it.
#[test]
fn a_client_that_leaves_is_noticed_by_the_container() {
    let site = site();
    for method in ["GET", "POST"] {
        for stage in STAGES {
            let id = mark();
            drop(hanging(site, method, stage, &id));
            closed(site, &id, &format!("{method}, {stage}, closed"));
            let id = mark();
            hanging(site, method, stage, &id).reset();
            closed(site, &id, &format!("{method}, {stage}, reset"));
        }
    }
}

/// B36 over HTTP/2: one stream ends, its connection goes on; then that goes.
#[test]
fn a_client_that_cancels_over_http_2_is_noticed_by_the_container() {
    let site = site();
    let client = Http2::connect(site.at);
    for stage in STAGES {
        let id = mark();
        let request = site.request2("GET", &format!("/hang?first={stage}&id={id}"));
        let mut exchange = client.begin(request.body(()).expect("a request"), true);
        site.wait_event(&format!("hanging {id}"), PATIENCE);
        if stage != "none" {
            assert_eq!(exchange.head().expect("a head").status.as_u16(), 200);
        }
        exchange.cancel();
        closed(site, &id, &format!("HTTP/2, {stage}"));
    }
    let id = mark();
    let request = site.request2("GET", &format!("/hang?id={id}")).body(()).expect("a request");
    let exchange = client.begin(request, true);
    site.wait_event(&format!("hanging {id}"), PATIENCE);
    drop((exchange, client));
    closed(site, &id, "an HTTP/2 connection that goes");
}

/// An upload that is not finished is never a whole one.
#[test]
fn an_upload_that_is_broken_off_is_never_whole() {
    let site = site();
    for (lines, reset) in [
        ("Content-Length: 1000000\r\n", false),
        ("Content-Length: 1000000\r\n", true),
        ("Transfer-Encoding: chunked\r\n", false),
        ("Transfer-Encoding: chunked\r\n", true),
    ] {
        let id = mark();
        let mut wire = site.connect();
        wire.send(&site.head("POST", &format!("/sink?id={id}"), lines)).expect("the head is sent");
        let chunked = lines.starts_with('T');
        match chunked {
            true => wire.send_chunk(&[1; 100_000]).expect("a chunk is sent"),
            false => wire.send(&[1; 100_000]).expect("a part is sent"),
        }
        site.wait_event(&format!("sinking {id}"), PATIENCE);
        let begun = Instant::now();
        if reset {
            wire.reset()
        } else {
            drop(wire)
        }
        let event = site.wait_event(&format!("sink {id}"), PATIENCE);
        in_time(begun, LEARNT, &format!("{lines:?}, reset {reset}: the container's notice"));
        assert!(event.contains("broken"), "{lines:?}, reset {reset}: {event}");
    }
    // Over HTTP/2 a stream that is reset ends no body either.
    let id = mark();
    let request = site.request2("POST", &format!("/sink?id={id}")).body(()).expect("a request");
    let mut upload = Http2::connect(site.at).begin(request, false);
    upload.send(vec![1; 100_000], false);
    site.wait_event(&format!("sinking {id}"), PATIENCE);
    let begun = Instant::now();
    upload.cancel();
    let event = site.wait_event(&format!("sink {id}"), PATIENCE);
    in_time(begun, LEARNT, "HTTP/2: the container's notice");
    assert!(event.contains("broken"), "HTTP/2: {event}");
}
