//! What a container says is there when it has said it, and what it is told
//! reaches it as it is said (B28).

use std::time::Duration;

use levers9_tests::http::{Body, Wire};
use levers9_tests::http2::Http2;
use tokio::time::Instant;

use crate::support::{LEARNT, Site, in_time, mark, site};

/// A line is there this long after it was said, at the latest.
const LINE: Duration = Duration::from_millis(300);
const LINES: usize = 3;

/// Lets the origin say a line, and takes the time until `read` gives it.
fn step(site: &Site, id: &str, index: usize, what: &str, mut read: impl FnMut() -> Vec<u8>) -> Duration {
    let expected = format!("line {index}\n");
    site.direct(&format!("/step?id={id}"));
    let begun = Instant::now();
    let mut line = Vec::new();
    while line.len() < expected.len() {
        let piece = read();
        assert!(!piece.is_empty(), "{what}: the body ended before line {index}");
        line.extend_from_slice(&piece);
    }
    assert_eq!(String::from_utf8_lossy(&line), expected, "{what}");
    begun.elapsed()
}

/// This machine may be busy with other things: all but the slowest count.
fn judge(what: &str, mut delays: Vec<Duration>) {
    delays.sort_unstable();
    delays.pop();
    let worst = delays.last().copied().unwrap_or_default();
    assert!(worst <= LINE, "{what}: a line came after {worst:?}: {delays:?}");
}

fn paths() -> Vec<String> {
    let kinds = ["events", "events-charset", "plain", "lines", "gzip", "none"];
    let kinds = kinds.iter().map(|kind| format!("type={kind}"));
    let framings = ["length", "end"].iter().map(|framing| format!("type=plain&framing={framing}"));
    kinds.chain(framings).map(|how| format!("/stepped?n={LINES}&{how}")).collect()
}

#[test]
fn each_line_comes_when_it_is_said() {
    let site = site();
    for path in paths() {
        for method in ["GET", "POST"] {
            let (id, what) = (mark(), format!("{method} {path}"));
            let mut wire = site.connect();
            let lines = if method == "POST" { "Content-Length: 3\r\n" } else { "" };
            wire.send(&site.head(method, &format!("{path}&id={id}"), lines)).expect("it is sent");
            if method == "POST" {
                wire.send(b"abc").expect("the body is sent");
            }
            let head = wire.head().expect("a head").expect("an answer before its first line");
            let mut body = Body::of_answer(&head, method);
            let mut read = || body.next(&mut wire).expect("the body goes on").unwrap_or_default();
            let delays = (0..LINES).map(|index| step(site, &id, index, &what, &mut read)).collect();
            judge(&what, delays);
            assert!(read().is_empty(), "{what}: it ends");
        }
    }
}

#[test]
fn each_line_comes_when_it_is_said_over_http_2() {
    let site = site();
    let client = Http2::connect(site.at);
    for path in paths() {
        let id = mark();
        let request = site.request2("GET", &format!("{path}&id={id}")).body(()).expect("a request");
        let mut exchange = client.begin(request, true);
        let head = exchange.head().expect("a head before its first line");
        assert_eq!(head.status.as_u16(), 200);
        let mut read = || exchange.data().expect("the body goes on").unwrap_or_default().to_vec();
        let delays = (0..LINES).map(|index| step(site, &id, index, &path, &mut read)).collect();
        judge(&path, delays);
        assert!(read().is_empty(), "{path}: it ends");
    }
}

/// An upload that is being said reaches the container, and its answer comes
/// back while the upload goes on.
#[test]
fn both_directions_go_on_beside_each_other() {
    let site = site();
    let mut wire = site.connect();
    wire.send(&site.head("POST", "/duplex", "Transfer-Encoding: chunked\r\n")).expect("it is sent");
    let head = wire.head().expect("a head").expect("an answer before the body");
    let mut body = Body::of_answer(&head, "POST");
    for index in 0..20 {
        let piece = format!("piece {index}");
        wire.send_chunk(piece.as_bytes()).expect("a chunk is sent");
        let back = body.next(&mut wire).expect("the body goes on").expect("a piece");
        assert_eq!(String::from_utf8_lossy(&back), piece);
    }
    wire.send_chunk(b"").expect("the end is sent");
    assert_eq!(body.next(&mut wire).expect("it ends"), None);

    let client = Http2::connect(site.at);
    let request = site.request2("POST", "/duplex").body(()).expect("a request");
    let mut exchange = client.begin(request, false);
    assert_eq!(exchange.head().expect("a head before the body").status.as_u16(), 200);
    for index in 0..20 {
        let piece = format!("piece {index}");
        exchange.send(piece.clone(), false);
        let back = exchange.data().expect("the body goes on").expect("a piece");
        assert_eq!(String::from_utf8_lossy(&back), piece);
    }
    exchange.send("", true);
    assert!(exchange.data().expect("it ends").is_none());
}

/// Reads an answer that is to break: whether it was cut, and after how much.
fn broken(wire: &mut Wire) -> (bool, usize) {
    let answer = wire.answer("GET").expect("the head came before the break");
    assert_eq!(answer.status(), 200);
    (answer.cut.is_some(), answer.body.len())
}

/// B27: an answer that the container breaks off is never whole.
#[test]
fn an_answer_that_is_broken_off_is_an_error_within_a_second() {
    let site = site();
    for how in ["length", "chunks", "end"] {
        let mut wire = site.connect();
        wire.send(&site.head("GET", &format!("/break/{how}"), "")).expect("it is sent");
        let begun = Instant::now();
        let (cut, bytes) = broken(&mut wire);
        in_time(begun, LEARNT, how);
        assert!(cut, "{how}: an answer of {bytes} bytes that was reset looks whole");

        let request = site.request2("GET", &format!("/break/{how}")).body(()).expect("a request");
        let begun = Instant::now();
        let answer = Http2::connect(site.at).begin(request, true).answer_if_any();
        in_time(begun, LEARNT, how);
        let whole = answer.is_ok_and(|answer| answer.cut.is_none());
        assert!(!whole, "HTTP/2, {how}: an answer that was reset looks whole");
    }
    for how in ["truncated", "truncated-chunks", "bad-chunk"] {
        let mut wire = site.connect();
        wire.send(&site.head("GET", &format!("/raw/{how}"), "")).expect("it is sent");
        assert_eq!(broken(&mut wire), (true, 10), "{how}");
        let request = site.request2("GET", &format!("/raw/{how}")).body(()).expect("a request");
        let answer = Http2::connect(site.at).begin(request, true).answer_if_any();
        let whole = answer.is_ok_and(|answer| answer.cut.is_none());
        assert!(!whole, "HTTP/2, {how}: it looks whole");
    }
    assert_eq!(site.get("/after").with(200).text(), "ok /after");
}

/// B27 for a client that knows no chunks, as balancers speak: there an end of
/// the connection is the end of the answer, so a cut must be no such end.
#[test]
fn an_answer_that_is_broken_off_is_an_error_for_an_old_client() {
    let site = site();
    for how in ["chunks", "end"] {
        let mut wire = site.connect();
        let head = format!("GET {}/break/{how} HTTP/1.0\r\nHost: {}\r\n\r\n", site.prefix, site.at);
        wire.send(head.as_bytes()).expect("it is sent");
        let (cut, bytes) = broken(&mut wire);
        assert!(cut, "{how}: an answer of {bytes} bytes that was reset looks whole");
    }
}
