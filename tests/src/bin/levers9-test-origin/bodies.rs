//! Bodies that take their time, break, or never come.

use std::io;
use std::time::Duration;

use levers9_tests::http::{Body, Head, Wire, sha256};

use crate::routes::{Next, say};
use crate::state::State;

/// What is sent at once of a long body.
const PIECE: usize = 64 * 1024;
/// How long a break waits until what was sent before is there.
const ARRIVED: Duration = Duration::from_millis(100);

/// `/stepped?id=&n=&type=&framing=`: a line for each step a test allows.
pub(crate) fn stepped(state: &State, wire: &mut Wire, head: &Head) -> io::Result<Next> {
    let mut body = Body::of_request(head);
    while body.next(wire)?.is_some() {}
    let kind = match head.query("type") {
        "events" => "Content-Type: text/event-stream\r\n",
        "events-charset" => "Content-Type: text/event-stream; charset=utf-8\r\n",
        "plain" => "Content-Type: text/plain\r\n",
        "lines" => "Content-Type: application/x-ndjson\r\n",
        "gzip" => "Content-Type: text/plain\r\nContent-Encoding: gzip\r\n",
        _ => "",
    };
    let (id, count) = (head.query("id").to_owned(), head.number("n"));
    let line = |index| format!("line {index}\n");
    let length: usize = (0..count).map(|index| line(index).len()).sum();
    let (chunked, framing) = match head.query("framing") {
        "length" => (false, format!("Content-Length: {length}\r\n")),
        "end" => (false, "Connection: close\r\n".to_owned()),
        _ => (true, "Transfer-Encoding: chunked\r\n".to_owned()),
    };
    wire.send(format!("HTTP/1.1 200 OK\r\n{kind}{framing}\r\n").as_bytes())?;
    for index in 0..count {
        if !state.wait_step(&id) {
            return Ok(Next::Reset);
        }
        match chunked {
            true => wire.send_chunk(line(index).as_bytes())?,
            false => wire.send(line(index).as_bytes())?,
        }
    }
    if chunked {
        wire.send_chunk(b"")?;
    }
    Ok(if head.query("framing") == "end" { Next::Close } else { Next::Keep })
}

/// `/duplex`: each piece goes back as it comes.
pub(crate) fn duplex(wire: &mut Wire, head: &Head) -> io::Result<Next> {
    let mut body = Body::of_request(head);
    wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    while let Some(piece) = body.next(wire)? {
        wire.send_chunk(&piece)?;
    }
    wire.send_chunk(b"")?;
    Ok(Next::Keep)
}

/// `/hang?id=&first=`: answers after a minute, and says when its peer is gone.
pub(crate) fn hang(state: &State, wire: &mut Wire, head: &Head) -> io::Result<Next> {
    let mut body = Body::of_request(head);
    while body.next(wire)?.is_some() {}
    let begun = match head.query("first") {
        "chunk" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        "length" => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nfirst",
        "end" => "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nfirst",
        _ => "",
    };
    wire.send(begun.as_bytes())?;
    let id = head.query("id");
    state.saw(format!("hanging {id}"));
    wire.limit(Some(Duration::from_secs(60)));
    match wire.some() {
        Ok(bytes) if !bytes.is_empty() => state.saw(format!("spoken-to {id}")),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => say(wire, b"late")?,
        _ => state.saw(format!("closed {id}")),
    }
    Ok(Next::Close)
}

/// `/big?bytes=&id=`: much, as fast as it is taken.
pub(crate) fn big(wire: &mut Wire, head: &Head) -> io::Result<Next> {
    let mut left = head.number("bytes");
    let piece: Vec<u8> = (0..PIECE).map(|at| b"0123456789abcdef"[at % 16]).collect();
    wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n").as_bytes())?;
    while left > 0 {
        let now = left.min(PIECE);
        wire.send(&piece[..now])?;
        left -= now;
    }
    Ok(Next::Keep)
}

/// `/break/HOW`: 100 KiB of a megabyte, then a reset.
pub(crate) fn breaks(wire: &mut Wire, head: &Head, how: &str) -> io::Result<Next> {
    let mut body = Body::of_request(head);
    while body.next(wire)?.is_some() {}
    begin_megabyte(wire, how)?;
    std::thread::sleep(ARRIVED);
    Ok(Next::Reset)
}

/// `/die/HOW`: in the middle of an answer, the whole process ends. `/die/wait`
/// waits for its end by another hand.
pub(crate) fn dies(state: &State, wire: &mut Wire, head: &Head, how: &str) -> io::Result<Next> {
    let mut body = Body::of_request(head);
    while body.next(wire)?.is_some() {}
    begin_megabyte(wire, head.query("framing"))?;
    state.saw(format!("dying {}", head.query("id")));
    std::thread::sleep(ARRIVED);
    if how != "wait" {
        crate::die();
    }
    std::thread::park();
    Ok(Next::Close)
}

fn begin_megabyte(wire: &mut Wire, framing: &str) -> io::Result<()> {
    let (header, part) = match framing {
        "chunks" => ("Transfer-Encoding: chunked\r\n", format!("19000\r\n{}\r\n", "z".repeat(100 << 10))),
        "end" => ("Connection: close\r\n", "z".repeat(100 << 10)),
        _ => ("Content-Length: 1048576\r\n", "z".repeat(100 << 10)),
    };
    wire.send(format!("HTTP/1.1 200 OK\r\n{header}\r\n{part}").as_bytes())
}

/// `/sink?id=`: says when the body begins, and how it ends; never answers before.
pub(crate) fn sink(state: &State, wire: &mut Wire, head: &Head) -> io::Result<Next> {
    let (mut body, mut length) = (Body::of_request(head), 0);
    let id = head.query("id");
    loop {
        match body.next(wire) {
            Ok(Some(piece)) => {
                if length == 0 {
                    state.saw(format!("sinking {id}"));
                }
                length += piece.len();
            }
            Ok(None) => break,
            Err(error) => {
                state.saw(format!("sink {id} broken {:?}", error.kind()));
                return Ok(Next::Close);
            }
        }
    }
    state.saw(format!("sink {id} whole {length}"));
    say(wire, length.to_string().as_bytes())?;
    Ok(Next::Keep)
}

/// `/half`: the sum of what comes until the end of input, then a megabyte made of it.
pub(crate) fn half(wire: &mut Wire) -> io::Result<Next> {
    let input = wire.rest()?;
    let derived: Vec<u8> = input.iter().cycle().take(1 << 20).map(|byte| !byte).collect();
    wire.send(&[sha256(&input).as_bytes(), &derived].concat())?;
    Ok(Next::Close)
}

/// `/first-half?id=`: ends its own direction, then listens to the other's end.
pub(crate) fn first_half(state: &State, wire: &mut Wire, head: &Head) -> io::Result<Next> {
    wire.send(b"all of it")?;
    wire.finish()?;
    let input = wire.rest()?;
    state.saw(format!("heard {} {} {}", head.query("id"), sha256(&input), input.len()));
    Ok(Next::Close)
}

/// `/trailers`: two after a body.
pub(crate) fn trailers(wire: &mut Wire) -> io::Result<()> {
    wire.send(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, X-Latin\r\n\r\n\
        4\r\nbody\r\n0\r\nX-Sum: 42\r\nX-Latin: \xe9\r\n\r\n",
    )
}
