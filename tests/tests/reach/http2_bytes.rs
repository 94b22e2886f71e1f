//! HTTP/2 as bytes, for what no library would send; and what must not become
//! of it in HTTP/1.1.

use std::time::Duration;

use levers9_tests::http::Wire;

use crate::support::{Site, mark, site};

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header that no table knows.
pub(crate) fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0], text(name).as_slice(), &text(value)].concat()
}

/// A text with its length before it.
fn text(bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len();
    let mut out = Vec::new();
    if length < 127 {
        out.push(u8::try_from(length).expect("short"));
    } else {
        out.push(127);
        let mut left = length - 127;
        while left > 127 {
            out.push(u8::try_from(left % 128).expect("seven bits") | 0x80);
            left /= 128;
        }
        out.push(u8::try_from(left).expect("seven bits"));
    }
    out.extend_from_slice(bytes);
    out
}

/// A connection after its preface.
pub(crate) fn begun(site: &Site) -> Wire {
    let mut wire = site.connect();
    let hello = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(4, 0, 0, b"")].concat();
    wire.send(&hello).expect("the preface is sent");
    wire
}

/// A request as it is changed for the worse: its pseudo headers, the others, a body.
struct Request {
    fields: Vec<(String, String)>,
    body: &'static [u8],
}

/// A request with nothing wrong about it.
const WELL: usize = usize::MAX;

/// Sends one, and looks what comes of it.
fn passed_on(site: &Site, request: &Request, id: &str) -> Vec<String> {
    let Request { fields, body } = request;
    let block: Vec<u8> =
        fields.iter().flat_map(|(name, value)| field(name.as_bytes(), value.as_bytes())).collect();
    let mut wire = begun(site);
    wire.limit(Some(Duration::from_millis(300)));
    let flags = if body.is_empty() { 0x5 } else { 0x4 };
    let data = if body.is_empty() { Vec::new() } else { frame(0, 0x1, 1, body) };
    wire.send(&[frame(1, flags, 1, &block), data].concat()).expect("it is sent");
    // Until it is quiet: whatever is passed on has been by then.
    while wire.some().is_ok_and(|bytes| !bytes.is_empty()) {}
    site.requests(id)
}

/// What HTTP/2 can say and HTTP/1.1 would understand otherwise. `ID` stands
/// for the path of a request that must not come to be.
fn worse(what: usize, site: &Site, id: &str) -> Option<Request> {
    let hidden = format!("/smuggled?{id}");
    let second = format!("GET {hidden} HTTP/1.1\r\nHost: x\r\n\r\n");
    let path = format!("{}/outer?{id}", site.prefix);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut fields = vec![
        pair(":method", "POST"),
        pair(":scheme", "http"),
        pair(":path", &path),
        pair(":authority", &site.at.to_string()),
    ];
    let mut body: &'static [u8] = b"";
    match what {
        0 => fields.push(pair("x-a", "1\r\nx-evil: 1")),
        1 => fields.push(pair("x-a", &format!("1\r\n\r\n{second}"))),
        2 => fields.push(pair("x-a: 1\r\nx-evil", "1")),
        3 => fields.push(pair("x-a\r\n\r\nGET", "1")),
        4 => fields.push(pair("x a", "1")),
        5 => fields.push(pair("x-a", "a\nx-evil: 1")),
        6 => fields.push(pair("x-a", "a\0b")),
        7 => fields[2].1 = format!("{path} HTTP/1.1\r\nHost: x\r\n\r\n{second}"),
        8 => fields[2].1 = format!("{path} {hidden}"),
        9 => fields[0].1 = format!("GET {hidden} HTTP/1.1\r\nx-a: "),
        10 => fields[3].1 = format!("{}\r\nx-evil: 1", site.at),
        11 => fields.push(pair("transfer-encoding", "chunked")),
        12 => {
            fields.push(pair("transfer-encoding", "chunked"));
            body = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
        }
        13 => {
            fields.push(pair("content-length", "0"));
            body = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
        }
        14 => fields.push(pair("content-length", "30")),
        15 => fields.extend([pair("content-length", "0"), pair("content-length", "3")]),
        16 => fields.insert(3, pair(":path", &hidden)),
        17 => fields.push(pair(":path", &hidden)),
        18 => fields[2].1 = String::new(),
        WELL => {}
        _ => return None,
    }
    Some(Request { fields, body })
}

/// A request that HTTP/1.1 cannot tell as it is comes to no container.
#[test]
fn what_only_http_2_can_say_is_not_passed_on() {
    let site = site();
    let id = mark();
    let well = worse(WELL, site, &id).expect("one with nothing wrong");
    assert_eq!(passed_on(site, &well, &id), [format!("request POST /outer?{id}")]);
    let mut problems = Vec::new();
    let mut count = 0;
    loop {
        let id = mark();
        let Some(request) = worse(count, site, &id) else { break };
        count += 1;
        let seen = passed_on(site, &request, &id);
        if !seen.is_empty() {
            problems.push(format!("{count}: {:?} was passed on as {seen:?}", request.fields));
        }
    }
    assert!(count > 15, "{count} were tried");
    assert!(problems.is_empty(), "of {count}:\n{}", problems.join("\n"));
    assert_eq!(site.events("request GET /smuggled HTTP"), Vec::<String>::new());
    assert_eq!(site.get("/after").with(200).text(), "ok /after");
}

/// The host that counts is HTTP/2's own; the header beside it does not pass.
#[test]
fn the_host_that_let_a_request_in_is_the_one_that_passes() {
    let site = site();
    let client = levers9_tests::http2::Http2::connect(site.at);
    let request = site.request2("GET", "/echo-head").header("host", "evil.example");
    let answer = client.begin(request.body(()).expect("a request"), true).answer();
    let echo = answer.text().to_ascii_lowercase();
    let kept = echo.matches(&format!("\r\nhost: {}\r\n", site.at)).count();
    assert!(answer.status == 400 || (kept == 1 && !echo.contains("\r\nhost: evil")), "{echo}");
    let prefix = &site.prefix;
    let evil = http::Request::get(format!("http://evil.example{prefix}/x")).header("host", "127.0.0.1");
    let answer = client.begin(evil.body(()).expect("a request"), true).answer();
    assert_eq!((answer.status, answer.field("x-levers9-reason").as_str()), (421, "wrong-host"));
}
