//! Bench streams from this side: what a stream takes to open and answer, and
//! what fits through so many of them. `doctor` and `bench` ask.

use std::time::Duration;

use bytes::Bytes;
use levers9_transport::StreamError;
use levers9_transport::stream::Stream;
use levers9_wire::ContainerId;
use levers9_wire::v1::{self, BenchKind, stream_open::Kind};
use tokio::time::{Instant, timeout_at};

use crate::client::{Client, refused};
use crate::error::Error;

/// How long the other end may take beyond the time that is measured.
const LATE: Duration = Duration::from_secs(10);
/// What is sent at once, in bytes.
const PIECE: usize = 64 * 1024;

/// The far end of bench streams.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    client: Client,
    container: Option<ContainerId>,
    block: Bytes,
}

impl Probe {
    /// To the controlplane, or on to the worker that has a container.
    pub(crate) fn new(client: Client, container: Option<ContainerId>) -> Self {
        Self { client, container, block: Bytes::from(vec![0; PIECE]) }
    }

    async fn open(&self, kind: BenchKind, duration: Duration) -> Result<(Stream, v1::BenchAnswer), Error> {
        let open = v1::BenchOpen {
            container: self.container.map(ContainerId::to_wire).unwrap_or_default(),
            generation: 0,
            kind: kind.into(),
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        };
        let broken = |error: StreamError| self.client.broken(&error);
        let mut stream = self.client.open(Kind::Bench(open)).await.map_err(broken)?;
        if kind != BenchKind::Up {
            stream.send.finish();
        }
        let answer: v1::BenchAnswer = stream.recv.expect().await.map_err(broken)?;
        match answer.failure {
            Some(failure) => Err(refused(failure)),
            None => Ok((stream, answer)),
        }
    }

    /// Opens a stream and waits for its answer, in bounded time.
    pub(crate) async fn ping(&self) -> Result<(Duration, v1::BenchAnswer), Error> {
        let began = Instant::now();
        let asked = self.open(BenchKind::Open, Duration::ZERO);
        let (_, answer) = self.in_time(began + LATE, asked).await?;
        Ok((began.elapsed(), answer))
    }

    /// Moves bytes for so long; says how many arrived.
    pub(crate) async fn fill(&self, kind: BenchKind, duration: Duration) -> Result<u64, Error> {
        let deadline = Instant::now() + duration + LATE;
        match kind {
            BenchKind::Up => self.in_time(deadline, self.up(duration)).await,
            _ => self.in_time(deadline, self.down(duration)).await,
        }
    }

    async fn in_time<T>(
        &self,
        deadline: Instant,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let late =
            || Error::failed(format!("the other end, through {}, does not answer", self.client.place()));
        timeout_at(deadline, work).await.unwrap_or_else(|_| Err(late()))
    }

    async fn up(&self, duration: Duration) -> Result<u64, Error> {
        let until = Instant::now() + duration;
        let (stream, _) = self.open(BenchKind::Up, duration).await?;
        let broken = |error: StreamError| self.client.broken(&error);
        let Stream { send, mut recv } = stream;
        let mut send = send.into_raw().await.map_err(broken)?;
        while Instant::now() < until {
            send.write_all(self.block.clone()).await.map_err(|error| broken(error.into()))?;
        }
        send.finish();
        let counted: v1::BenchAnswer = recv.expect().await.map_err(broken)?;
        Ok(counted.bytes)
    }

    async fn down(&self, duration: Duration) -> Result<u64, Error> {
        let (stream, _) = self.open(BenchKind::Down, duration).await?;
        let (first, mut recv) = stream.recv.into_raw();
        let mut bytes = first.len() as u64;
        let mut chunks: [Bytes; 32] = std::array::from_fn(|_| Bytes::new());
        let broken = |error: levers9_transport::quic::HalfError| self.client.broken(&error.into());
        while let Some(count) = recv.read_many(&mut chunks).await.map_err(broken)? {
            bytes += chunks[..count].iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        }
        Ok(bytes)
    }
}

/// The value below which so many hundredths of a sorted list are.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last * percent).div_ceil(100)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_few_and_of_many() {
        let ms: Vec<_> = (1..=101).map(Duration::from_millis).collect();
        assert_eq!(percentile(&ms, 50), Duration::from_millis(51));
        assert_eq!(percentile(&ms, 99), Duration::from_millis(100));
        assert_eq!(percentile(&ms[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
