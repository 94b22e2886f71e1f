//! What runs in the container: HTTP/1.1 as plain as it gets. `GET /` answers
//! 1 KiB, `GET /bytes/N` answers N bytes.

use std::io::{self, Write as _};
use std::net::Ipv4Addr;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// How long an answer to `GET /` is, in bytes.
const SMALL: u64 = 1024;
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Serves until it is killed.
pub(crate) fn run(port: u16) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        writeln!(io::stdout(), "{}", listener.local_addr()?.port())?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(serve(stream));
        }
    })
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::with_capacity(4096);
    loop {
        let end = loop {
            if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        };
        let (length, close) = (asked(&head[..end]), asks_to_close(&head[..end]));
        head.drain(..end);
        let connection = if close { "close" } else { "keep-alive" };
        let mut answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: {connection}\r\n\r\n")
                .into_bytes();
        let mut left = length;
        if left <= SMALL {
            answer.extend(std::iter::repeat_n(b'x', usize::try_from(left).unwrap_or_default()));
            left = 0;
        }
        stream.write_all(&answer).await?;
        while left > 0 {
            let size = usize::try_from(left).unwrap_or(ZEROS.len()).min(ZEROS.len());
            stream.write_all(&ZEROS[..size]).await?;
            left -= size as u64;
        }
        if close {
            return stream.shutdown().await;
        }
    }
}

/// How many bytes a request asks for.
fn asked(head: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(head);
    let path = text.split(' ').nth(1).unwrap_or_default();
    path.strip_prefix("/bytes/").and_then(|number| number.parse().ok()).unwrap_or(SMALL)
}

fn asks_to_close(head: &[u8]) -> bool {
    String::from_utf8_lossy(head).to_ascii_lowercase().contains("\r\nconnection: close")
}
