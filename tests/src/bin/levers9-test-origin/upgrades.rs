//! `/upgrade/HOW`: what may become of a wish to leave HTTP.

use std::io;

use levers9_tests::http::{Head, Wire};

use crate::routes::Next;
use crate::state::State;

const SWITCHED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-Latin: \xe9\r\n\r\n";

/// Grants or refuses it.
pub(crate) fn answer(state: &State, wire: &mut Wire, head: &Head, how: &str) -> io::Result<Next> {
    let id = head.query("id");
    match how {
        "401" | "426" | "200" => {
            let upgrade = if how == "426" { "Connection: Upgrade\r\nUpgrade: other\r\n" } else { "" };
            let body = format!("refused {how}");
            let head = format!("HTTP/1.1 {how} No\r\n{upgrade}Content-Length: {}\r\n\r\n{body}", body.len());
            wire.send(head.as_bytes())?;
            return Ok(Next::Keep);
        }
        "103-101" => wire.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")?,
        _ => {}
    }
    // The first bytes of the new protocol come with the answer.
    wire.send(&[SWITCHED, b"hello "].concat())?;
    state.saw(format!("upgraded {id}"));
    match how {
        "stall" => std::thread::park(),
        "flood" => {
            let piece = [7; 64 * 1024];
            while wire.send(&piece).is_ok() {}
            state.saw(format!("closed {id}"));
        }
        "reset" => {
            let _go = wire.some()?;
            return Ok(Next::Reset);
        }
        "die" => {
            let _go = wire.some()?;
            crate::die();
        }
        _ => echo(state, wire, id)?,
    }
    Ok(Next::Close)
}

/// Says everything back, and `bye` after the end of input.
fn echo(state: &State, wire: &mut Wire, id: &str) -> io::Result<()> {
    loop {
        match wire.some() {
            Ok(bytes) if bytes.is_empty() => break,
            Ok(bytes) => wire.send(&bytes)?,
            Err(error) => {
                state.saw(format!("upgrade {id} broken {:?}", error.kind()));
                return Ok(());
            }
        }
    }
    state.saw(format!("upgrade {id} ended"));
    wire.send(b"bye")
}
