//! What the tests put into a container: an HTTP origin that says exactly the
//! bytes it is asked for by path, and tells what it has seen. HTTP/1.1 is
//! written by hand; HTTP/2 on the same port is a fake gRPC service.
//!
//! `levers9-test-origin PORT` listens on loopback and prints `listening`.
#![expect(clippy::expect_used, reason = "what a test stands on fails the test, with words")]

mod bodies;
mod canned;
mod grpc;
mod routes;
mod state;
mod upgrades;

use std::io::{self, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use levers9_tests::http::Wire;

use routes::Next;
use state::State;

/// How HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";
/// No test needs a connection for longer.
const LONGEST: Duration = Duration::from_secs(120);

fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse::<u16>().ok());
    let port = port.expect("the first argument is a port");
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    writeln!(io::stdout(), "listening").expect("somebody reads this");
    let state = Arc::new(State::default());
    for stream in listener.incoming().flatten() {
        let state = Arc::clone(&state);
        std::thread::spawn(move || {
            // How a connection ends is what tests look at from the other side.
            let _ended = connection(&state, stream);
        });
    }
}

fn connection(state: &Arc<State>, stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LONGEST))?;
    if speaks_http2(&stream)? {
        return grpc::serve(Arc::clone(state), stream);
    }
    let mut wire = Wire::new(stream);
    while let Some(head) = wire.head()? {
        state.saw(format!("request {} {}", head.method(), head.target()));
        match routes::answer(state, &mut wire, &head)? {
            Next::Keep => wire.limit(Some(LONGEST)),
            Next::KeepFor(time) => wire.limit(Some(time)),
            Next::Close => return Ok(()),
            Next::Reset => {
                wire.reset();
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Ends the whole process, in the middle of whatever it does.
#[expect(clippy::exit, reason = "its sudden end is what is looked at")]
fn die() -> ! {
    std::process::exit(7)
}

fn speaks_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut start = [0; PREFACE.len()];
    loop {
        let seen = stream.peek(&mut start)?;
        if seen == 0 || !PREFACE.starts_with(&start[..seen.min(PREFACE.len())]) {
            return Ok(false);
        }
        if seen >= PREFACE.len() {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
