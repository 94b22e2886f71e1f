//! What runs in a container for a test: this binary again, told by a variable
//! what to be. It uses threads and plain sockets only.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use checksum::digest;

/// The variable.
pub(crate) const BE: &str = "LEVERS9_TEST_BE";

/// The command that runs a helper in a container.
pub(crate) fn command() -> String {
    let own = std::env::current_exe().expect("known");
    format!("exec {} --exact helper::be --nocapture", own.display())
}

/// A checksum that a test and a helper agree on.
pub(crate) mod checksum {
    pub(crate) fn digest(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// The answer to an input: 1 MiB that depends on it.
pub(crate) fn answer(input: &[u8]) -> Vec<u8> {
    digest(input).to_le_bytes().into_iter().cycle().take(1 << 20).collect()
}

/// Not a test by itself.
#[test]
fn be() {
    let Ok(what) = std::env::var(BE) else { return };
    let (kind, address) = what.split_once(' ').unwrap_or((&what, "127.0.0.1:0"));
    if kind == "client" {
        return client();
    }
    let listener = TcpListener::bind(address).expect("bound");
    let port = listener.local_addr().expect("bound").port();
    std::fs::write("port", format!("{port}\n")).expect("written");
    for connection in listener.incoming() {
        let (connection, kind) = (connection.expect("accepted"), kind.to_owned());
        std::thread::spawn(move || serve(&kind, connection));
    }
}

fn serve(kind: &str, mut connection: TcpStream) {
    match kind {
        // Reads to the end, then answers.
        "answer" => {
            let mut input = Vec::new();
            connection.read_to_end(&mut input).expect("read");
            connection.write_all(&answer(&input)).expect("written");
        }
        // Says all and ends its side first, then reads to the end and notes it.
        "first" => {
            connection.write_all(&answer(b"")).expect("written");
            connection.shutdown(Shutdown::Write).expect("ended");
            let mut input = Vec::new();
            connection.read_to_end(&mut input).expect("read");
            std::fs::write("seen", format!("{} {}\n", input.len(), digest(&input))).expect("written");
        }
        // Breaks in the middle.
        "break" => {
            connection.write_all(&[1; 100 * 1024]).expect("written");
            let mut one = [0];
            connection.read_exact(&mut one).expect("read");
            reset_at_drop(&connection);
        }
        // Notes how its peer ends.
        "watch" => {
            connection.write_all(b"hello").expect("written");
            let mut all = Vec::new();
            let how = match connection.read_to_end(&mut all) {
                Ok(_) => "end".to_owned(),
                Err(error) => format!("{:?}", error.kind()),
            };
            std::fs::write("how", format!("{how}\n")).expect("written");
        }
        "close" => {}
        "hold" => {
            connection.write_all(b"hello").expect("written");
            std::thread::sleep(Duration::from_secs(1000));
        }
        other => panic!("{other}"),
    }
}

/// Makes the drop of a connection a reset.
fn reset_at_drop(connection: &TcpStream) {
    let own = connection.try_clone().expect("cloned");
    own.set_nonblocking(true).expect("set");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let own = tokio::net::TcpStream::from_std(own).expect("taken");
        own.set_zero_linger().expect("set");
    });
}

/// Dials the door, says what the test told it to and notes the answer.
fn client() {
    let variable = |name: &str| std::env::var(name).expect(name);
    let (host, port) = (variable("LEVERS9_CONTROLPLANE_HOST"), variable("LEVERS9_CONTROLPLANE_PORT"));
    assert_eq!(variable("LEVERS9_CONTROLPLANE_TLS"), "false");
    assert_eq!(variable("LEVERS9_CONTROLPLANE_HTTP_URL"), format!("http://{host}:{port}"));
    std::fs::write("port", format!("{port}\n")).expect("written");
    for (number, greeting) in ["GET / HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n"].into_iter().enumerate() {
        let mut door = TcpStream::connect(format!("{host}:{port}")).expect("connected");
        // In pieces: what it is must be waited for.
        for byte in greeting.bytes() {
            door.write_all(&[byte]).expect("written");
        }
        door.write_all(variable("LEVERS9_TOKEN").as_bytes()).expect("written");
        door.shutdown(Shutdown::Write).expect("ended");
        let mut back = Vec::new();
        door.read_to_end(&mut back).expect("read");
        std::fs::write(format!("back{number}"), format!("{}\n", String::from_utf8_lossy(&back)))
            .expect("written");
    }
    let mut held = TcpStream::connect(format!("{host}:{port}")).expect("connected");
    held.write_all(b"GET").expect("written");
    std::thread::sleep(Duration::from_secs(1000));
}
