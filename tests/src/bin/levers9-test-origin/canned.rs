//! `/raw/NAME`: answers whose bytes are the point. `/headers`: many of them.

use std::io;

use levers9_tests::http::{Head, Wire};

use crate::routes::Next;

/// Sends one by its name.
pub(crate) fn answer(wire: &mut Wire, name: &str) -> io::Result<Next> {
    let long = "y".repeat(7 * 1024);
    let (bytes, next): (Vec<u8>, Next) = match name {
        "values" => {
            let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Latin: caf\xe9\r\n".to_vec();
            bytes.extend_from_slice("X-Utf: über\r\nX-Empty:\r\n".as_bytes());
            bytes.extend_from_slice(format!("X-Long: {long}\r\n").as_bytes());
            bytes.extend_from_slice(b"Set-Cookie: a=1; Path=/\r\nSet-Cookie: levers9_session=evil\r\n");
            bytes.extend_from_slice(b"Set-Cookie: b=\xe9\r\nSet-Cookie: a=3\r\n");
            bytes.extend_from_slice(b"X-Levers9-Reason: forged\r\n\r\nok");
            (bytes, Next::Keep)
        }
        "garbage" => (b"this is not HTTP at all\r\n\r\n".to_vec(), Next::Close),
        "bad-status" => (b"HTTP/1.1 9999 What\r\nContent-Length: 0\r\n\r\n".to_vec(), Next::Close),
        "bad-header" => (b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n".to_vec(), Next::Close),
        "two-lengths" => {
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc".to_vec(), Next::Close)
        }
        "half-head" => (b"HTTP/1.1 200 OK\r\nContent-Le".to_vec(), Next::Close),
        "nothing" => (Vec::new(), Next::Close),
        "reset" => (Vec::new(), Next::Reset),
        "truncated" => (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789".to_vec(), Next::Close),
        "truncated-chunks" => {
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n".to_vec(), Next::Close)
        }
        "bad-chunk" => (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\nzz\r\nmore".to_vec(),
            Next::Close,
        ),
        "early-hints" => (
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec(),
            Next::Keep,
        ),
        // A second answer that nobody asked for.
        "unasked" => (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
                .to_vec(),
            Next::Keep,
        ),
        "http10" => (b"HTTP/1.0 200 OK\r\n\r\nold".to_vec(), Next::Close),
        name => (format!("HTTP/1.1 404 No {name}\r\nContent-Length: 0\r\n\r\n").into_bytes(), Next::Keep),
    };
    wire.send(&bytes)?;
    Ok(next)
}

/// `/headers?total=BYTES`, `?lines=N`, `?one=BYTES`.
pub(crate) fn many_headers(wire: &mut Wire, head: &Head) -> io::Result<()> {
    let mut lines = String::new();
    let total = head.number("total");
    for index in 0.. {
        if lines.len() >= total {
            break;
        }
        lines.push_str(&format!("X-Fill-{index}: {}\r\n", "f".repeat(1000)));
    }
    lines.extend((0..head.number("lines")).map(|line| format!("X-Line: {line}\r\n")));
    if head.number("one") > 0 {
        lines.push_str(&format!("X-One: {}\r\n", "o".repeat(head.number("one"))));
    }
    wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{lines}\r\nok").as_bytes())
}
