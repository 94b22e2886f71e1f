//! Peers that are up to no good, and those that are only broken.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::desk::{assert_well, get, parts, serve};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

async fn connect(at: SocketAddr) -> TcpStream {
    TcpStream::connect(at).await.unwrap()
}

/// Reads until the other side ends; answers when that was.
async fn until_cut(stream: &mut TcpStream) -> Duration {
    let started = Instant::now();
    let mut rest = Vec::new();
    // A reset is an end as well.
    drop(stream.read_to_end(&mut rest).await);
    started.elapsed()
}

#[tokio::test]
async fn garbage_harms_nobody() {
    let served = serve().await;
    let huge_frame = [PREFACE, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat();
    let endless_path = [b"GET /".as_slice(), &[b'a'; 200_000]].concat();
    let samples: [&[u8]; 8] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"\0\0\0\0",
        b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /api/v1/controlplane/auth/authorize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        &huge_frame,
        &endless_path,
        PREFACE,
    ];
    let mut held = Vec::new();
    for sample in samples {
        for at in [served.http, served.grpc] {
            let mut stream = connect(at).await;
            // It may be cut off while it still writes.
            drop(stream.write_all(sample).await);
            held.push(stream);
            held.push(connect(at).await);
        }
    }
    assert_well(&served).await;
    drop(held);
    assert_well(&served).await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_begin_is_cut_off_after_ten_seconds() {
    let served = serve().await;
    for at in [served.http, served.grpc] {
        for start in [b"".as_slice(), b"G", b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-drip: ", &PREFACE[..20]] {
            let mut stream = connect(at).await;
            stream.write_all(start).await.unwrap();
            let after = until_cut(&mut stream).await;
            assert!(after <= Duration::from_millis(10_100), "{start:?} was kept for {after:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_header_that_drips_is_cut_off_too() {
    let served = serve().await;
    let mut stream = connect(served.http).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    stream.write_all(b"GET /healthz HT").await.unwrap();
    let after = until_cut(&mut stream).await;
    assert!(after > Duration::from_secs(60) && after <= Duration::from_secs(76), "kept for {after:?}");
}

#[tokio::test]
async fn pings_are_answered_however_often_they_come() {
    let served = serve().await;
    let mut stream = connect(served.grpc).await;
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    stream.write_all(&[PREFACE, &settings, &ping.repeat(100)].concat()).await.unwrap();
    let mut answered = 0;
    while answered < 100 {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.unwrap();
        assert_ne!(head[3], 7, "GOAWAY");
        answered += usize::from(head[3] == 6 && head[4] & 1 == 1);
    }
}

#[tokio::test]
async fn large_headers_are_refused() {
    let served = serve().await;
    let header = format!("x-large: {}", "a".repeat(140_000));
    let answer = get(served.http, "/healthz", &[&header]).await;
    assert_eq!(parts(&answer).0, 431);
}
