//! Asks over HTTP/1.1 as fast as answers come: so many connections at once,
//! kept alive or one for each request.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::stats::percentile;

/// No request takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where to ask, and for what.
#[derive(Debug, Clone)]
pub(super) struct At {
    pub(super) address: SocketAddr,
    /// With a slash at its end.
    pub(super) path: String,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    pub(super) wall_s: f64,
    pub(super) count: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

impl At {
    fn request(&self, what: &str, close: bool) -> Vec<u8> {
        let connection = if close { "close" } else { "keep-alive" };
        format!("GET {}{what} HTTP/1.1\r\nhost: localhost\r\nconnection: {connection}\r\n\r\n", self.path)
            .into_bytes()
    }

    async fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Reads so many bytes over one connection, and says how long it took, in seconds.
    pub(super) async fn download(&self, bytes: u64) -> Result<f64> {
        let began = Instant::now();
        let moved = async {
            let mut stream = self.connect().await?;
            stream.write_all(&self.request(&format!("bytes/{bytes}"), false)).await?;
            let came = answer(&mut stream, &mut Vec::new()).await?;
            ensure!(came == bytes, "{came} bytes came instead of {bytes}");
            Ok(())
        };
        timeout(PATIENCE, moved).await??;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Requests of 1 KiB for so long, over so many connections that are kept.
    pub(super) async fn keep_alive(&self, connections: usize, time: Duration) -> Result<Answered> {
        let request = self.request("", false);
        self.repeat(connections, time, move |at| {
            let request = request.clone();
            async move {
                let (mut stream, mut buffer) = (at.connect().await?, Vec::new());
                let mut took = Vec::new();
                let until = Instant::now() + time;
                while Instant::now() < until {
                    let began = Instant::now();
                    stream.write_all(&request).await?;
                    answer(&mut stream, &mut buffer).await?;
                    took.push(began.elapsed());
                }
                Ok(took)
            }
        })
        .await
    }

    /// The same with a connection for each.
    pub(super) async fn one_each(&self, at_once: usize, time: Duration) -> Result<Answered> {
        let request = self.request("", true);
        self.repeat(at_once, time, move |at| {
            let request = request.clone();
            async move {
                let mut took = Vec::new();
                let until = Instant::now() + time;
                while Instant::now() < until {
                    let began = Instant::now();
                    let mut stream = at.connect().await?;
                    stream.write_all(&request).await?;
                    answer(&mut stream, &mut Vec::new()).await?;
                    took.push(began.elapsed());
                }
                Ok(took)
            }
        })
        .await
    }

    async fn repeat<F>(&self, at_once: usize, time: Duration, one: impl Fn(Self) -> F) -> Result<Answered>
    where
        F: Future<Output = Result<Vec<Duration>>> + Send + 'static,
    {
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..at_once {
            tasks.spawn(timeout(time + PATIENCE, one(self.clone())));
        }
        let mut took = Vec::new();
        while let Some(task) = tasks.join_next().await {
            took.extend(task???.into_iter().map(|one| u64::try_from(one.as_nanos()).unwrap_or(u64::MAX)));
        }
        let wall_s = began.elapsed().as_secs_f64();
        took.sort_unstable();
        ensure!(!took.is_empty(), "nothing was answered");
        let ms = |percent| percentile(&took, percent) as f64 / 1e6;
        Ok(Answered { wall_s, count: took.len() as u64, p50_ms: ms(50), p99_ms: ms(99) })
    }
}

/// Reads one answer, and says how long its body was.
async fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<u64> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        ensure!(stream.read_buf(buffer).await? > 0, "the connection ended before an answer");
    };
    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
    ensure!(head.starts_with("http/1.1 200"), "answered {:?}", head.lines().next());
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).context("no length")?;
    let length: u64 = length.trim().parse()?;
    buffer.drain(..end);
    let mut came = buffer.len() as u64;
    buffer.clear();
    let mut piece = vec![0; 256 * 1024];
    while came < length {
        let size = stream.read(&mut piece).await?;
        ensure!(size > 0, "the answer ended at {came} of {length} bytes");
        came += size as u64;
    }
    Ok(came)
}
