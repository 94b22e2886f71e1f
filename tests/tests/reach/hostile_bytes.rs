//! Requests that could mean one thing to the controlplane and another to a
//! container: the origin never sees two where one was let in, nor one that
//! was hidden in another.

use std::time::Duration;

use levers9_tests::http::Wire;
use levers9_tests::http2::Http2;

use crate::support::{Site, ask, mark, site};

/// After this nothing more comes of a connection.
const QUIET: Duration = Duration::from_millis(700);

/// Everything a connection answers to some bytes, until it ends or is quiet.
fn answers(site: &Site, bytes: &[u8]) -> Vec<u16> {
    let mut wire = site.connect();
    wire.limit(Some(QUIET));
    // It may be closed before all of it is sent.
    let _cut = wire.send(bytes);
    let mut statuses = Vec::new();
    while let Ok(answer) = wire.answer("GET") {
        statuses.push(answer.status());
    }
    statuses
}

/// A request with odd lines. In them, `SMUGGLED` stands for the head of another.
struct Odd {
    what: &'static str,
    lines: &'static str,
    body: &'static str,
}

const fn odd(what: &'static str, lines: &'static str, body: &'static str) -> Odd {
    Odd { what, lines, body }
}

/// What must be refused as a whole.
const REFUSED: &[Odd] = &[
    odd("two lengths", "Content-Length: 0\r\nContent-Length: 60\r\n", "SMUGGLED"),
    odd("two lengths, the other way", "Content-Length: 60\r\nContent-Length: 0\r\n", "SMUGGLED"),
    odd("a list of lengths", "Content-Length: 3, 3\r\n", "abcSMUGGLED"),
    odd("a list of other lengths", "Content-Length: 0, 3\r\n", "SMUGGLED"),
    odd("a length with a sign", "Content-Length: +3\r\n", "abcSMUGGLED"),
    odd("a negative length", "Content-Length: -1\r\n", "SMUGGLED"),
    odd("a length in hex", "Content-Length: 0x3\r\n", "abcSMUGGLED"),
    odd("a length of words", "Content-Length: three\r\n", "SMUGGLED"),
    odd("an empty length", "Content-Length:\r\n", "SMUGGLED"),
    odd("a length beyond all numbers", "Content-Length: 18446744073709551616\r\n", "SMUGGLED"),
    odd("a coding after chunks", "Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\nSMUGGLED"),
    odd("a coding that is almost chunks", "Transfer-Encoding: xchunked\r\n", "0\r\n\r\nSMUGGLED"),
    odd("a coding of nothing", "Transfer-Encoding: identity\r\n", "SMUGGLED"),
    odd("a coding in quotes", "Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\nSMUGGLED"),
    odd("a coding that goes on", "Transfer-Encoding: chunkedx\r\n", "0\r\n\r\nSMUGGLED"),
    odd("a folded coding", "Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\nSMUGGLED"),
    odd("a folded line", "X-A: 1\r\n folded\r\n", "SMUGGLED"),
    odd("a space before the colon", "Transfer-Encoding : chunked\r\n", "0\r\n\r\nSMUGGLED"),
    odd("a space before a length's colon", "Content-Length : 3\r\n", "abcSMUGGLED"),
    odd("a space before a name", " Content-Length: 3\r\n", "abcSMUGGLED"),
    odd("a control character in a name", "Content-\x01Length: 3\r\n", "abcSMUGGLED"),
    odd("a zero in a value", "X-A: a\x00b\r\n", "SMUGGLED"),
    odd("a bare CR in a value", "X-A: a\rContent-Length: 60\r\n", "SMUGGLED"),
    odd("no colon", "X-A\r\n", "SMUGGLED"),
    odd("two hosts", "Host: localhost\r\n", ""),
    odd("two hosts, one of them strange", "Host: evil.example\r\n", ""),
    odd("a size of no number", "Transfer-Encoding: chunked\r\n", "zz\r\nabc\r\n0\r\n\r\nSMUGGLED"),
    odd("a negative size", "Transfer-Encoding: chunked\r\n", "-1\r\nabc\r\n0\r\n\r\nSMUGGLED"),
    odd("a size with 0x", "Transfer-Encoding: chunked\r\n", "0x3\r\nabc\r\n0\r\n\r\nSMUGGLED"),
    odd(
        "a size beyond all numbers",
        "Transfer-Encoding: chunked\r\n",
        "fffffffffffffffff1\r\na\r\n0\r\n\r\nSMUGGLED",
    ),
    odd("no size", "Transfer-Encoding: chunked\r\n", "\r\nabc\r\n0\r\n\r\nSMUGGLED"),
    odd("a chunk that is longer", "Transfer-Encoding: chunked\r\n", "3\r\nabcdef\r\n0\r\n\r\nSMUGGLED"),
    odd("a line end in an extension", "Transfer-Encoding: chunked\r\n", "3;a\nb\r\nabc\r\n0\r\n\r\nSMUGGLED"),
    odd(
        "two codings of chunks",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "0\r\n\r\nSMUGGLED",
    ),
];

#[test]
fn what_has_two_meanings_is_refused() {
    let site = site();
    let outcomes = std::thread::scope(|scope| {
        let checks: Vec<_> = REFUSED.chunks(REFUSED.len().div_ceil(6)).collect();
        let checks: Vec<_> = checks
            .into_iter()
            .map(|odds| {
                scope.spawn(move || odds.iter().filter_map(|odd| problem(site, odd)).collect::<Vec<_>>())
            })
            .collect();
        checks.into_iter().flat_map(|check| check.join().expect("a check")).collect::<Vec<_>>()
    });
    assert!(outcomes.is_empty(), "of {}:\n{}", REFUSED.len(), outcomes.join("\n"));
}

/// What is wrong with the outcome of an odd request.
fn problem(site: &Site, odd: &Odd) -> Option<String> {
    let id = mark();
    let hidden = String::from_utf8_lossy(&site.head("GET", &format!("/smuggled?{id}"), "")).into_owned();
    let lines = odd.lines;
    let body = odd.body.replace("SMUGGLED", &hidden);
    let outer = site.head("POST", &format!("/outer?{id}"), lines);
    let statuses = answers(site, &[&outer, body.as_bytes()].concat());
    let seen = site.requests(&id);
    let smuggled = seen.iter().any(|request| request.contains("smuggled"));
    let refused = statuses.len() <= 1 && statuses.iter().all(|status| *status == 400 || *status == 502);
    let good = refused && seen.len() <= 1 && !smuggled;
    (!good).then(|| format!("{}: answered {statuses:?}, and the origin saw {seen:?}", odd.what))
}

/// Whole heads that are none.
#[test]
fn what_is_no_request_is_refused() {
    let site = site();
    let (prefix, at) = (&site.prefix, site.at);
    for (what, line) in [
        ("a third word", format!("GET {prefix}/ID HTTP/1.1 x")),
        ("two spaces", format!("GET  {prefix}/ID HTTP/1.1")),
        ("a version of its own", format!("GET {prefix}/ID HTTP/1.2")),
        ("a version in lower case", format!("GET {prefix}/ID http/1.1")),
        ("no version", format!("GET {prefix}/ID")),
        ("a space in the target", format!("GET {prefix}/ID /x HTTP/1.1")),
        ("a control character in the target", format!("GET {prefix}/ID\x01 HTTP/1.1")),
        ("a method of odd characters", format!("G(T {prefix}/ID HTTP/1.1")),
    ] {
        let id = mark();
        let head = format!("{}\r\nHost: {at}\r\n\r\n", line.replace("ID", &id));
        let statuses = answers(site, head.as_bytes());
        assert!(statuses.is_empty() || statuses == [400], "{what}: {statuses:?}");
        assert_eq!(site.requests(&id), Vec::<String>::new(), "{what}");
    }
    let id = mark();
    let head = format!("CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n");
    assert!(!answers(site, head.as_bytes()).contains(&200), "CONNECT leads nowhere");
    let head = format!("GET {prefix}/{id} HTTP/1.1\r\n\r\n");
    assert!(matches!(answers(site, head.as_bytes())[..], [400 | 421]), "without a Host");
    assert_eq!(site.requests(&id), Vec::<String>::new());
}

/// What has one meaning only keeps it: a body is a body, whatever it looks like.
#[test]
fn a_request_in_a_body_stays_a_body() {
    let site = site();
    let id = mark();
    let hidden = site.head("GET", &format!("/smuggled?{id}"), "");
    let length = format!("Content-Length: {}\r\n", hidden.len());
    for method in ["GET", "POST", "DELETE"] {
        let head = site.head(method, &format!("/outer?{id}{method}"), &length);
        assert_eq!(answers(site, &[&head, hidden.as_slice()].concat()), [200], "{method}");
    }
    let head = site.head("GET", &format!("/outer?{id}"), "Transfer-Encoding: Chunked\r\n");
    let size = format!("{:X}\r\n", hidden.len());
    let body = [size.as_bytes(), &hidden, b"\r\n0\r\n\r\n"].concat();
    assert_eq!(answers(site, &[&head, body.as_slice()].concat()), [200], "in a chunk");
    let seen = site.requests(&id);
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert!(seen.iter().all(|request| request.contains("/outer")), "{seen:?}");
    // One that is answered before it has come is still no request.
    let mut wire = site.connect();
    wire.limit(Some(QUIET));
    wire.send(&site.head("POST", "/upgrade/200", &length)).expect("the head is sent");
    let first = wire.answer("POST").expect("an answer before the body");
    assert_eq!(first.text(), "refused 200");
    // The connection may have ended with it.
    let _cut = wire.send(&hidden);
    assert!(wire.answer("GET").is_err(), "the body was answered");
    assert_eq!(
        ask(&mut site.connect(), "GET", &site.head("GET", "/after", "")).with(200).text(),
        "ok /after"
    );
}

/// What has one meaning by the letter of HTTP is passed on with that meaning
/// alone: chunks count before a length, and a length said twice is one.
#[test]
fn what_is_said_twice_is_passed_on_once() {
    let site = site();
    let both = [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    ];
    for lines in both {
        let id = mark();
        let hidden = site.head("GET", &format!("/smuggled?{id}"), "");
        let head = site.head("POST", &format!("/echo-head?{id}"), lines);
        let mut wire = site.connect();
        wire.limit(Some(QUIET));
        wire.send(&[&head, b"0\r\n\r\n".as_slice(), &hidden].concat()).expect("it is sent");
        let answer = wire.answer("POST").expect("an answer");
        let echo = answer.text().to_ascii_lowercase();
        let passed = answer.status() == 200 && !echo.contains("content-length");
        assert!(passed || answer.status() == 400, "{lines:?}: {echo}");
        assert!(wire.answer("GET").is_err(), "{lines:?}: the connection goes on");
        let seen = site.requests(&id);
        assert!(seen.len() <= 1 && !seen.concat().contains("smuggled"), "{lines:?}: {seen:?}");
    }
    let id = mark();
    let head = site.head("POST", &format!("/echo-head?{id}"), "Content-Length: 3\r\nContent-Length: 3\r\n");
    let answer = ask(&mut site.connect(), "POST", &[&head, b"abc".as_slice()].concat());
    let lengths = answer.text().to_ascii_lowercase().matches("content-length: 3\r\n").count();
    assert!(answer.status() == 400 || lengths == 1, "{}", answer.text());
}

/// A length that HTTP/2's own framing gives the lie to.
#[test]
fn a_length_that_is_not_kept_over_http_2_is_an_error() {
    let site = site();
    let client = Http2::connect(site.at);
    for (length, body) in [("3", "abcdef"), ("6", "abc"), ("0", "abc")] {
        let id = mark();
        let request = site.request2("POST", &format!("/sha?id={id}")).header("content-length", length);
        let mut exchange = client.begin(request.body(()).expect("a request"), false);
        exchange.send(body, true);
        let status = exchange.head().map(|head| head.status.as_u16()).unwrap_or(0);
        assert_ne!(status, 200, "{length} for {body:?}");
        let whole: Vec<_> = site.events(&format!("body {id}"));
        assert!(!whole.iter().any(|event| event.contains("whole 6")), "{length} for {body:?}: {whole:?}");
    }
    assert_eq!(site.get("/after").with(200).text(), "ok /after");
}

/// Where a path leads is decided once, before anything is taken off it.
#[test]
fn a_path_leads_nowhere_but_to_its_container() {
    let site = site();
    let other = &crate::support::shared().private;
    let id = mark();
    for path in [
        format!("/../../../box/{}/{}/{id}", other.slug(), other.origin.port()),
        format!("/%2e%2e/%2e%2e/box/{}/{}/{id}", other.slug(), other.origin.port()),
        format!("//box/{}/{}/{id}", other.slug(), other.origin.port()),
        format!("/..;/..;/{id}"),
        format!("/\\..\\{id}"),
    ] {
        let answer = ask(&mut Wire::connect(site.at), "GET", &site.head("GET", &path, ""));
        assert_eq!(answer.with(200).text(), format!("ok {path}"));
    }
    assert_eq!(other.requests(&id), Vec::<String>::new());
}
