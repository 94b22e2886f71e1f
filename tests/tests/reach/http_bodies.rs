//! How bodies are framed on their way in and out, and what has none.

use std::time::Duration;

use levers9_tests::http::{Wire, sha256};
use levers9_tests::http2::Http2;
use tokio::time::Instant;

use crate::support::{ask, in_time, noise, site};

/// An answer that needs nothing but what has been sent comes within this.
const AT_ONCE: Duration = Duration::from_secs(1);
const FIVE_MEGABYTES: usize = 5 << 20;

/// B32: these end at the blank line, and the connection goes on.
#[test]
fn head_204_and_304_wait_for_no_body() {
    let site = site();
    let mut wire = site.connect();
    for method in ["GET", "HEAD"] {
        for code in [200, 204, 304] {
            for framing in ["length", "chunked", "none"] {
                let begun = Instant::now();
                let path = format!("/status?code={code}&framing={framing}");
                let what = format!("{method} {path}");
                let answer = ask(&mut wire, method, &site.head(method, &path, "")).with(code);
                in_time(begun, AT_ONCE, &what);
                let has_body = method == "GET" && code == 200;
                let length = if framing == "length" { 1234 } else { 3 };
                assert_eq!(answer.body.len(), if has_body { length } else { 0 }, "{what}");
                if framing == "length" && code == 200 {
                    assert_eq!(answer.head.text("content-length"), "1234", "{what}");
                }
                // A length of nothing would be a lie about what GET gives.
                assert_ne!((answer.head.text("content-length").as_str(), code), ("0", 304), "{what}");
            }
        }
    }
    assert_eq!(ask(&mut wire, "GET", &site.head("GET", "/after", "")).with(200).text(), "ok /after");
}

/// B32 over HTTP/2.
#[test]
fn head_204_and_304_wait_for_no_body_over_http_2() {
    let site = site();
    let client = Http2::connect(site.at);
    for method in ["GET", "HEAD"] {
        for code in ["200", "204", "304"] {
            for framing in ["length", "chunked", "none"] {
                let begun = Instant::now();
                let path = format!("/status?code={code}&framing={framing}");
                let request = site.request2(method, &path).body(()).expect("a request");
                let answer = client.begin(request, true).answer();
                in_time(begun, AT_ONCE, &format!("{method} {path}"));
                assert!(answer.cut.is_none(), "{method} {path}: {:?}", answer.cut);
                assert_eq!(answer.status.to_string(), code, "{method} {path}");
                if framing == "length" && code == "200" {
                    assert_eq!(answer.field("content-length"), "1234", "{method} {path}");
                }
            }
        }
    }
}

/// B30: what has no body gets no framing of one, and a length of zero stays.
#[test]
fn a_request_without_a_body_keeps_its_framing() {
    let site = site();
    let seen = |method: &str, lines: &str| {
        let echo = site.ask(method, "/echo-head", lines, b"").with(200).text().to_ascii_lowercase();
        assert!(!echo.contains("transfer-encoding"), "{method} {lines:?}: {echo}");
        echo
    };
    for method in ["POST", "PUT"] {
        let echo = seen(method, "Content-Length: 0\r\n");
        assert_eq!(echo.matches("content-length: 0\r\n").count(), 1, "{method}: {echo}");
        let echo = seen(method, "");
        let lengths = echo.matches("content-length").count();
        assert_eq!(lengths, echo.matches("content-length: 0\r\n").count(), "{method}: {echo}");
    }
    for method in ["GET", "HEAD", "DELETE", "OPTIONS"] {
        if method != "HEAD" {
            assert!(!seen(method, "").contains("content-length"), "{method}");
        }
    }
    // The same from HTTP/2, where the end of a request is said apart.
    let client = Http2::connect(site.at);
    for (method, length) in [("GET", None), ("POST", Some("0")), ("POST", None)] {
        let mut request = site.request2(method, "/echo-head");
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        let echo = client.begin(request.body(()).expect("a request"), true).answer();
        let echo = echo.text().to_ascii_lowercase();
        assert!(!echo.contains("transfer-encoding"), "HTTP/2 {method} {length:?}: {echo}");
        if length.is_some() {
            assert!(echo.contains("content-length: 0\r\n"), "HTTP/2 {method}: {echo}");
        }
    }
}

/// Sends a head, then a body in chunks of a size, and reads the answer.
fn upload(wire: &mut Wire, method: &str, head: &[u8], body: &[u8], chunk: usize) -> String {
    wire.send(head).expect("the head is sent");
    for piece in body.chunks(chunk) {
        wire.send_chunk(piece).expect("a chunk is sent");
    }
    wire.send_chunk(b"").expect("the end is sent");
    wire.answer(method).expect("an answer").with(200).text()
}

/// B29: a body of unknown length arrives as one, unchanged.
#[test]
fn chunked_uploads_arrive_whole() {
    let site = site();
    let body = noise(FIVE_MEGABYTES);
    let expected = format!("{} {FIVE_MEGABYTES} chunked", sha256(&body));
    let mut wire = site.connect();
    for method in ["PUT", "POST", "PATCH", "DELETE"] {
        let head = site.head(method, "/sha", "Transfer-Encoding: chunked\r\n");
        assert_eq!(upload(&mut wire, method, &head, &body, 70_000), expected, "{method}");
    }
    // Chunks of any size: one byte each, and with extensions.
    let small = noise(3000);
    let head = site.head("POST", "/sha", "Transfer-Encoding: chunked\r\n");
    assert_eq!(
        upload(&mut wire, "POST", &head, &small, 1),
        format!("{} 3000 chunked", sha256(&small)),
        "one byte in each chunk"
    );
    let chunks = b"5;name=value;other=\"a b\"\r\nhello\r\n000001\r\n!\r\n0\r\n\r\n";
    assert_eq!(
        ask(&mut wire, "POST", &[&head, chunks.as_slice()].concat()).with(200).text(),
        format!("{} 6 chunked", sha256(b"hello!"))
    );
    // None at all, but said in chunks.
    assert!(upload(&mut wire, "POST", &head, b"", 1).contains(" 0 "));
}

/// B29: a body that begins late is still one.
#[test]
fn a_body_may_begin_late() {
    let site = site();
    let body = noise(100_000);
    for (lines, framing) in
        [("Transfer-Encoding: chunked\r\n", "chunked"), ("Content-Length: 100000\r\n", "length")]
    {
        let mut wire = site.connect();
        wire.send(&site.head("POST", "/sha", lines)).expect("the head is sent");
        // The pause is what this is about.
        std::thread::sleep(Duration::from_millis(500));
        match framing {
            "chunked" => {
                wire.send_chunk(&body).expect("a chunk is sent");
                wire.send_chunk(b"").expect("the end is sent");
            }
            _ => wire.send(&body).expect("the body is sent"),
        }
        let answer = wire.answer("POST").expect("an answer").with(200).text();
        assert_eq!(answer, format!("{} 100000 {framing}", sha256(&body)));
    }
}

/// B29 and B30 with a length, as large as it is said.
#[test]
fn uploads_of_a_known_length_keep_it() {
    let site = site();
    let body = noise(FIVE_MEGABYTES);
    let lines = format!("Content-Length: {FIVE_MEGABYTES}\r\n");
    let answer = site.ask("PUT", "/sha", &lines, &body).with(200).text();
    assert_eq!(answer, format!("{} {FIVE_MEGABYTES} length", sha256(&body)));
}

/// B29 from HTTP/2, where every body's length is unknown unless it is said.
#[test]
fn uploads_over_http_2_arrive_whole() {
    let site = site();
    let client = Http2::connect(site.at);
    let body = noise(FIVE_MEGABYTES);
    for (length, framing) in [(None, "chunked"), (Some(FIVE_MEGABYTES), "length")] {
        let mut request = site.request2("POST", "/sha");
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        let mut upload = client.begin(request.body(()).expect("a request"), false);
        for piece in body.chunks(50_000) {
            upload.send(piece.to_vec(), false);
        }
        upload.send("", true);
        let answer = upload.answer();
        assert_eq!(answer.text(), format!("{} {FIVE_MEGABYTES} {framing}", sha256(&body)));
    }
}

/// Large answers are what was sent, over both versions.
#[test]
fn a_large_download_arrives_whole() {
    const BYTES: usize = 20 << 20;
    let site = site();
    let expected: Vec<u8> = (0..BYTES).map(|at| b"0123456789abcdef"[at % 16]).collect();
    let path = format!("/big?bytes={BYTES}");
    let answer = site.get(&path).with(200);
    assert_eq!(answer.head.text("content-length"), BYTES.to_string());
    assert!(answer.body == expected, "other bytes came over HTTP/1.1");
    let request = site.request2("GET", &path).body(()).expect("a request");
    let answer = Http2::connect(site.at).begin(request, true).answer();
    assert!(answer.cut.is_none() && answer.body == expected, "other bytes came over HTTP/2");
}

/// B33: the container says when the upload may begin.
#[test]
fn an_upload_that_waits_for_100_begins_within_a_second() {
    let site = site();
    let body = noise(2 << 20);
    let lines = format!("Expect: 100-continue\r\nContent-Length: {}\r\n", body.len());
    for how in ["100", "silent"] {
        let mut wire = site.connect();
        wire.send(&site.head("POST", &format!("/expect/{how}"), &lines)).expect("the head is sent");
        let begun = Instant::now();
        let interim = wire.head().expect("an interim answer").expect("one");
        assert_eq!(interim.status(), 100, "{how}: {interim:?}");
        // A container that never asks for it gets it after a second.
        in_time(begun, Duration::from_millis(if how == "100" { 1000 } else { 2000 }), how);
        wire.send(&body).expect("the body is sent");
        let answer = wire.answer("POST").expect("an answer").with(200).text();
        assert_eq!(answer, format!("{} {} length", sha256(&body), body.len()), "{how}");
    }
}

/// B33: an early no stops the upload before it begins.
#[test]
fn an_upload_that_is_refused_sends_no_body() {
    let site = site();
    let id = crate::support::mark();
    let mut wire = site.connect();
    let lines = "Expect: 100-continue\r\nContent-Length: 20971520\r\n";
    let begun = Instant::now();
    let answer = ask(&mut wire, "POST", &site.head("POST", &format!("/expect/413?id={id}"), lines));
    in_time(begun, Duration::from_millis(900), "the refusal");
    assert_eq!((answer.status(), answer.text().as_str()), (413, "too much"));
    assert!(answer.interim.is_empty(), "nobody asked for the body: {:?}", answer.interim);
    assert_eq!(
        site.wait_event(&format!("after-413 {id}"), crate::support::PATIENCE),
        format!("after-413 {id} 0")
    );
}

/// Over HTTP/2 nobody waits: what is sent at once arrives all the same.
#[test]
fn an_upload_over_http_2_may_expect_a_100_too() {
    let site = site();
    let body = noise(100_000);
    for how in ["100", "silent"] {
        let request = site.request2("POST", &format!("/expect/{how}")).header("expect", "100-continue");
        let mut upload = Http2::connect(site.at).begin(request.body(()).expect("a request"), false);
        upload.send(body.clone(), true);
        let answer = upload.answer();
        assert_eq!(
            (answer.status, answer.text()),
            (200, format!("{} 100000 chunked", sha256(&body))),
            "{how}"
        );
    }
}

/// A container that has heard enough answers in the middle of an upload.
#[test]
fn an_early_answer_comes_through_beside_the_upload() {
    let site = site();
    for lines in ["Content-Length: 50000000\r\n", "Transfer-Encoding: chunked\r\n"] {
        let mut wire = site.connect();
        let mut writing = Wire::new(wire.stream().try_clone().expect("a second handle"));
        writing.send(&site.head("POST", "/early", lines)).expect("the head is sent");
        let writer = std::thread::spawn(move || {
            let piece = [0; 50_000];
            // It is cut off once the answer is there.
            while writing.send_chunk(&piece).is_ok() {}
        });
        let begun = Instant::now();
        let answer = wire.answer("POST").expect("an answer");
        in_time(begun, AT_ONCE, "the early answer");
        assert_eq!((answer.status(), answer.text().as_str()), (413, "enough"), "{lines:?}");
        drop(wire.rest());
        writer.join().expect("the writer is cut off");
    }
    let request = site.request2("POST", "/early").body(()).expect("a request");
    let mut upload = Http2::connect(site.at).begin(request, false);
    upload.send(vec![0; 50_000_000], false);
    let answer = upload.answer();
    assert_eq!((answer.status, answer.text().as_str()), (413, "enough"), "HTTP/2");
}

/// B39: what comes after a body passes both ways.
#[test]
fn trailers_pass_both_ways() {
    let site = site();
    let answer = site.ask("GET", "/trailers", "TE: trailers\r\n", b"").with(200);
    let trailers = [("x-sum".to_owned(), b"42".to_vec()), ("x-latin".to_owned(), b"\xe9".to_vec())];
    assert_eq!((answer.text().as_str(), answer.trailers.as_slice()), ("body", trailers.as_slice()));
    let lines = "Transfer-Encoding: chunked\r\nTrailer: X-Mine\r\n";
    let body = b"3\r\nabc\r\n0\r\nX-Mine: here\r\n\r\n";
    let answer = site.ask("POST", "/sha", lines, body).with(200).text();
    assert_eq!(answer, format!("{} 3 chunked x-mine=here", sha256(b"abc")));
    // HTTP/2 has them always.
    let request = site.request2("GET", "/trailers").header("te", "trailers").body(()).expect("a request");
    let answer = Http2::connect(site.at).begin(request, true).answer();
    assert_eq!((answer.text().as_str(), answer.field("x-sum").as_str()), ("body", "42"));
}

/// An interim answer that is none of ours to keep is passed on or dropped, and
/// never taken for the answer.
#[test]
fn early_hints_are_no_answer() {
    let site = site();
    let answer = site.get("/raw/early-hints").with(200);
    assert_eq!(answer.text(), "ok");
    let codes: Vec<u16> = answer.interim.iter().map(levers9_tests::http::Head::status).collect();
    assert!(codes.is_empty() || codes == [103], "{codes:?}");
}

/// A container may still speak HTTP/1.0.
#[test]
fn an_old_container_is_understood() {
    let site = site();
    let mut wire = site.connect();
    let head = site.head("GET", "/raw/http10", "");
    assert_eq!(ask(&mut wire, "GET", &head).with(200).text(), "old");
    assert_eq!(ask(&mut wire, "GET", &site.head("GET", "/x", "")).with(200).text(), "ok /x");
    // And so may a client.
    let mut old = site.connect();
    let head = format!("GET {}/x HTTP/1.0\r\nHost: {}\r\n\r\n", site.prefix, site.at);
    assert_eq!(ask(&mut old, "GET", head.as_bytes()).with(200).text(), "ok /x");
}
