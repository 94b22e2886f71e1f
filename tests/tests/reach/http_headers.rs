//! Headers are bytes: what they hold, how large they may be (B38, B40), and
//! which of them never pass.

use levers9_tests::http::Head;
use levers9_tests::http2::Http2;

use crate::support::{ask, site};

/// B38: values are the same bytes at the other end, repeated ones in order.
#[test]
fn values_of_an_answer_pass_as_bytes() {
    let site = site();
    let answer = site.get("/raw/values").with(200);
    assert_eq!(answer.text(), "ok");
    let head = &answer.head;
    assert_eq!(head.all("x-latin"), [b"caf\xe9".as_slice()]);
    assert_eq!(head.all("x-utf"), ["über".as_bytes()]);
    assert_eq!(head.all("x-empty"), [b"".as_slice()]);
    assert_eq!(head.all("x-long"), ["y".repeat(7 * 1024).as_bytes()]);
    // A container neither sets the dashboard's cookies nor speaks for the controlplane.
    assert_eq!(head.all("set-cookie"), [b"a=1; Path=/".as_slice(), b"b=\xe9", b"a=3"]);
    assert_eq!(head.all("x-levers9-reason"), Vec::<&[u8]>::new());
    let request = site.request2("GET", "/raw/values").body(()).expect("a request");
    let answer = Http2::connect(site.at).begin(request, true).answer();
    assert_eq!(answer.headers["x-latin"].as_bytes(), b"caf\xe9");
    let cookies: Vec<&[u8]> = answer.headers.get_all("set-cookie").iter().map(|c| c.as_bytes()).collect();
    assert_eq!(cookies, [b"a=1; Path=/".as_slice(), b"b=\xe9", b"a=3"]);
}

/// The head of a request as the origin got it.
fn echoed(answer: &levers9_tests::http::Answer) -> Head {
    let mut fields = Vec::new();
    let mut lines = answer.body.split(|b| *b == b'\n');
    let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).trim_end().to_owned();
    for line in lines {
        if let Some(colon) = line.iter().position(|b| *b == b':') {
            let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
            fields.push((name, line[colon + 1..].trim_ascii().to_vec()));
        }
    }
    Head { raw: answer.body.clone(), first, fields }
}

/// B38 on the way in.
#[test]
fn values_of_a_request_pass_as_bytes() {
    let site = site();
    let mut head = site.head("GET", "/echo-head", "");
    head.truncate(head.len() - 2);
    head.extend_from_slice(b"User-Agent: \xff\xfe odd\r\nX-Many: 1\r\nX-Many: \r\nX-Many: caf\xe9\r\n\r\n");
    let answer = ask(&mut site.connect(), "GET", &head).with(200);
    let seen = echoed(&answer);
    assert_eq!(seen.all("user-agent"), [b"\xff\xfe odd".as_slice()]);
    assert_eq!(seen.all("x-many"), [b"1".as_slice(), b"", b"caf\xe9"]);
    assert_eq!(seen.target(), "/echo-head", "the container sees its own path");
}

/// The path and the query pass as they are: nothing is decoded or tidied.
#[test]
fn a_path_passes_as_it_is() {
    let site = site();
    for path in ["/", "/a//b/../c", "/%2e%2e/%2F?x=%20&y=a+b&&=", "/?", "/caf%C3%A9;v=1?q=/box/other/1/"] {
        assert_eq!(site.get(path).with(200).text(), format!("ok {path}"), "{path}");
    }
    assert_eq!(site.get("/?a=http://b/").with(200).text(), "ok /?a=http://b/");
}

/// What was for the controlplane, or would be taken for its word, never passes.
#[test]
fn what_is_not_for_the_container_does_not_pass() {
    let site = site();
    let lines = "X-Levers9-Workspace: forged\r\nx-task-id: forged\r\nX-LEVERS9-REASON: forged\r\n\
                 Cookie: a=1; levers9_session=secret; b=2\r\nCookie: levers9_other=secret\r\n\
                 Connection: keep-alive, X-Drop\r\nX-Drop: 1\r\nKeep-Alive: timeout=5\r\n\
                 Proxy-Authorization: Basic c2VjcmV0\r\nX-Forwarded-For: 1.2.3.4\r\nAuthorization: Basic mine\r\n";
    let answer = site.ask("GET", "/echo-head", lines, b"").with(200);
    let text = answer.text().to_ascii_lowercase();
    for gone in ["levers9-workspace", "x-task-id", "forged", "secret", "x-drop", "keep-alive", "proxy-auth"] {
        assert!(!text.contains(gone), "{gone} passed:\n{text}");
    }
    let seen = echoed(&answer);
    assert_eq!(seen.all("cookie"), [b"a=1; b=2".as_slice()]);
    // A public container takes its own users in.
    assert_eq!(seen.all("authorization"), [b"Basic mine".as_slice()]);
    assert_eq!(seen.text("x-forwarded-for"), "1.2.3.4, 127.0.0.1");
    assert_eq!(seen.text("x-forwarded-prefix"), site.prefix);
    assert_eq!(seen.text("host"), site.at.to_string());
}

/// B40: up to the limit they come as they were.
#[test]
fn large_headers_of_an_answer_pass() {
    let site = site();
    let mut wire = site.connect();
    let client = Http2::connect(site.at);
    for path in
        ["total=8000", "total=32000", "total=64000", "total=100000", "lines=300", "lines=900", "one=60000"]
    {
        let path = format!("/headers?{path}");
        let answer = ask(&mut wire, "GET", &site.head("GET", &path, "")).with(200);
        let direct = ask(
            &mut levers9_tests::http::Wire::connect(site.origin),
            "GET",
            format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes(),
        );
        for name in ["x-fill-0", "x-fill-7", "x-fill-99", "x-line", "x-one"] {
            assert_eq!(answer.head.all(name), direct.head.all(name), "{path}: {name}");
        }
        let request = site.request2("GET", &path).body(()).expect("a request");
        let answer = client.begin(request, true).answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"), "HTTP/2 {path}");
    }
}

/// B40: beyond the limit the controlplane says so, and everything goes on.
#[test]
fn headers_of_an_answer_beyond_the_limit_are_named() {
    let site = site();
    let mut wire = site.connect();
    // The limit is 128 KiB; what is read at once may take it to twice that.
    for path in ["/headers?total=300000", "/headers?lines=2000", "/headers?one=300000"] {
        let answer = ask(&mut wire, "GET", &site.head("GET", path, "")).with(502);
        assert_eq!(answer.head.text("x-levers9-reason"), "bad-answer", "{path}");
        assert!(answer.text().contains("header") || answer.text().contains("large"), "{}", answer.text());
        let next = ask(&mut wire, "GET", &site.head("GET", "/next", "")).with(200);
        assert_eq!(next.text(), "ok /next", "after {path}");
    }
}

/// B40 on the way in: large ones pass, too large ones are refused with 431.
#[test]
fn large_headers_of_a_request_pass_up_to_the_limit() {
    let site = site();
    let mut wire = site.connect();
    let fill = |count: usize, length: usize| -> String {
        (0..count).map(|index| format!("X-Fill-{index}: {}\r\n", "f".repeat(length))).collect()
    };
    let cookies: String = (0..60).map(|index| format!("Cookie: c{index}={}\r\n", "v".repeat(1000))).collect();
    let passing = [fill(8, 1000), fill(32, 1000), fill(64, 1000), fill(300, 20), fill(1, 60_000), cookies];
    for lines in &passing {
        let answer = ask(&mut wire, "GET", &site.head("GET", "/echo-head", lines)).with(200);
        let text = answer.text().to_ascii_lowercase();
        let missing = lines.lines().find(|line| !text.contains(&line.to_ascii_lowercase()));
        assert_eq!(missing.map(|line| &line[..line.len().min(40)]), None, "of {} bytes", lines.len());
    }
    for lines in [fill(300, 1000), fill(1, 300_000), fill(1100, 10)] {
        let mut wire = site.connect();
        // It may be refused, and the connection closed, before all of it is sent.
        let _cut = wire.send(&site.head("GET", "/echo-head?over=1", &lines));
        let answer = wire.answer("GET").unwrap_or_else(|error| panic!("{} bytes: {error}", lines.len()));
        assert_eq!(answer.status(), 431, "{} bytes: {}", lines.len(), answer.text());
    }
    assert_eq!(site.requests("over=1"), Vec::<String>::new());
    // Over HTTP/2 the connection goes on.
    let client = Http2::connect(site.at);
    let long = |length: usize| {
        let request = site.request2("GET", "/x").header("x-one", "o".repeat(length));
        client.begin(request.body(()).expect("a request"), true).answer().status
    };
    assert_eq!((long(60_000), long(140_000), long(10)), (200, 431, 200));
}

/// However a name is written, it is the same header.
#[test]
fn names_are_known_whatever_their_case() {
    let site = site();
    let lines = "AUTHORIZATION: Basic x\r\ncOnTeNt-LeNgTh: 3\r\n";
    assert_eq!(site.ask("POST", "/sha", lines, b"abc").with(200).text().split(' ').nth(2), Some("length"));
}
