//! Which path behaves how. What is long has a module of its own.

use std::io;
use std::time::Duration;

use levers9_tests::http::{Body, Framing, Head, Wire, sha256};

use crate::state::State;
use crate::{bodies, canned, upgrades};

/// What becomes of the connection.
pub(crate) enum Next {
    /// It takes another request.
    Keep,
    /// It does, within this time.
    KeepFor(Duration),
    /// It ends.
    Close,
    /// It ends with a reset.
    Reset,
}

/// How long a connection is kept that is closed early.
const IDLE: Duration = Duration::from_secs(1);

/// Answers a request.
pub(crate) fn answer(state: &State, wire: &mut Wire, head: &Head) -> io::Result<Next> {
    let path = head.path().to_owned();
    let mut parts = path.trim_matches('/').splitn(2, '/');
    let (first, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    match first {
        "expect" => return expect(state, wire, head, rest),
        "upgrade" => return upgrades::answer(state, wire, head, rest),
        "stepped" => return bodies::stepped(state, wire, head),
        "duplex" => return bodies::duplex(wire, head),
        "hang" => return bodies::hang(state, wire, head),
        "break" => return bodies::breaks(wire, head, rest),
        "die" => return bodies::dies(state, wire, head, rest),
        "deaf" => {
            state.saw(format!("deaf {}", head.query("id")));
            std::thread::park();
        }
        "early" => return early(wire),
        "half" => return bodies::half(wire),
        "first-half" => return bodies::first_half(state, wire, head),
        "sink" => return bodies::sink(state, wire, head),
        "sha" => return sha(state, wire, head),
        _ => {}
    }
    let mut body = Body::of_request(head);
    while body.next(wire)?.is_some() {}
    match first {
        "echo-head" => say(wire, &head.raw)?,
        "events" => say(wire, state.events().as_bytes())?,
        "big" => return bodies::big(wire, head),
        "raw" => return canned::answer(wire, rest),
        "status" => return status(wire, head),
        "headers" => canned::many_headers(wire, head)?,
        "trailers" => bodies::trailers(wire)?,
        "idle-close" => {
            say(wire, b"ok")?;
            return Ok(Next::KeepFor(IDLE));
        }
        "once" => {
            state.saw(format!("once {}", head.query("id")));
            say(wire, b"ok")?;
            return Ok(Next::KeepFor(IDLE));
        }
        "step" => {
            state.step(head.query("id"));
            say(wire, b"ok")?;
        }
        _ => say(wire, format!("ok {}", head.target()).as_bytes())?,
    }
    Ok(Next::Keep)
}

/// An answer with a body of a length.
pub(crate) fn say(wire: &mut Wire, body: &[u8]) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    wire.send(&[head.as_bytes(), body].concat())
}

/// `/sha`: what the body was, however it was framed.
fn sha(state: &State, wire: &mut Wire, head: &Head) -> io::Result<Next> {
    let mut body = Body::of_request(head);
    let framing = match body.framing {
        Framing::Chunked => "chunked",
        Framing::Length(_) => "length",
        _ => "none",
    };
    let mut bytes = Vec::new();
    let read = loop {
        match body.next(wire) {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let whole = if read.is_ok() { "whole" } else { "broken" };
    if !head.query("id").is_empty() {
        state.saw(format!("body {} {whole} {}", head.query("id"), bytes.len()));
    }
    read?;
    let trailer = |(name, value): &(String, Vec<u8>)| format!(" {name}={}", String::from_utf8_lossy(value));
    let trailers: String = body.trailers.iter().map(trailer).collect();
    say(wire, format!("{} {} {framing}{trailers}", sha256(&bytes), bytes.len()).as_bytes())?;
    Ok(Next::Keep)
}

/// `/status?code=&framing=`: a status with the header of a body, and the body
/// where there may be one.
fn status(wire: &mut Wire, head: &Head) -> io::Result<Next> {
    let (code, framing) = (head.query("code"), head.query("framing"));
    let has_body = code == "200" && head.method() != "HEAD";
    let (header, body) = match framing {
        "length" => ("Content-Length: 1234\r\n", "x".repeat(1234)),
        "chunked" => ("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n".to_owned()),
        _ => ("", "abc".to_owned()),
    };
    let to_end = has_body && framing == "none";
    let close = if to_end { "Connection: close\r\n" } else { "" };
    let body = if has_body { body.as_str() } else { "" };
    wire.send(format!("HTTP/1.1 {code} Whatever\r\n{close}{header}\r\n{body}").as_bytes())?;
    Ok(if to_end { Next::Close } else { Next::Keep })
}

/// `/expect/100`, `/expect/413`, `/expect/silent`.
fn expect(state: &State, wire: &mut Wire, head: &Head, how: &str) -> io::Result<Next> {
    if how != "413" {
        if how == "100" {
            wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        return sha(state, wire, head);
    }
    wire.send(b"HTTP/1.1 413 Too Much\r\nContent-Length: 8\r\n\r\ntoo much")?;
    wire.limit(Some(Duration::from_millis(500)));
    let mut after = 0;
    while let Ok(bytes) = wire.some() {
        if bytes.is_empty() {
            break;
        }
        after += bytes.len();
    }
    state.saw(format!("after-413 {} {after}", head.query("id")));
    Ok(Next::Close)
}

/// `/early`: answers before the body has come, reads a little of it, and no more.
fn early(wire: &mut Wire) -> io::Result<Next> {
    wire.send(b"HTTP/1.1 413 Enough\r\nConnection: close\r\nContent-Length: 6\r\n\r\nenough")?;
    wire.finish()?;
    std::thread::sleep(IDLE);
    Ok(Next::Close)
}
