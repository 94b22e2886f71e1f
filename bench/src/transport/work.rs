//! The work of a client, the same for every variant: downloads side by side,
//! calls with so many in flight, streams until their first byte.

use std::time::Duration;

use anyhow::{Result, ensure};
use levers9_transport::Address;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::protocol::{ANSWER, Done, Work};
use crate::stats::percentile;

/// How often a call is made beside downloads.
const PING_EVERY: Duration = Duration::from_millis(10);

/// Makes clients of one variant for one server.
pub(super) trait Dialer: Sized {
    type Client: Client;

    fn new(address: &Address) -> Result<Self>;

    /// Connects, and waits until streams can be opened.
    fn connect(&self) -> impl Future<Output = Result<Self::Client>>;
}

/// Something that is said and answered at once, over and over.
pub(super) trait Ping: Send {
    /// Says it, and waits for the answer.
    fn ping(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// A call stands for a ping where nothing better is at hand.
impl<C: Client> Ping for C {
    async fn ping(&mut self) -> Result<()> {
        self.call().await
    }
}

/// A connected client; clones share the connection.
pub(super) trait Client: Clone + Send + Sync + 'static {
    /// What pings on this connection.
    type Pinger: Ping;

    /// Makes it.
    fn pinger(&self) -> impl Future<Output = Result<Self::Pinger>> + Send;

    /// Makes ready for so many streams at once.
    fn prepare(&self, _streams: u32) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Opens a stream, asks for so many bytes, reads them to the stream's end,
    /// and says how many came.
    fn download(&self, bytes: u64) -> impl Future<Output = Result<u64>> + Send;

    /// A request of about 100 bytes, answered by 1 KiB, on a stream of its own.
    fn call(&self) -> impl Future<Output = Result<()>> + Send {
        async {
            let came = self.download(ANSWER as u64).await?;
            ensure!(came == ANSWER as u64, "an answer of {came} bytes");
            Ok(())
        }
    }
}

/// Makes ready for work.
pub(super) async fn prepare<C: Client>(client: &C, work: Work) -> Result<()> {
    match work {
        Work::Bulk { streams, .. } | Work::Pinged { streams, .. } => client.prepare(streams).await,
        Work::Calls { .. } | Work::FirstByte { .. } => Ok(()),
    }
}

/// Does it.
pub(super) async fn run<C: Client>(client: &C, work: Work) -> Result<Done> {
    match work {
        Work::Bulk { streams, bytes } => bulk(client, streams, bytes).await,
        Work::Calls { in_flight, millis } => {
            let client = client.clone();
            repeat(in_flight, millis, move || {
                let client = client.clone();
                async move { client.call().await }
            })
            .await
        }
        Work::Pinged { streams, millis } => pinged(client, streams, millis).await,
        Work::FirstByte { millis } => {
            let client = client.clone();
            // The one byte and the end of the stream come in one packet.
            repeat(1, millis, move || {
                let client = client.clone();
                async move { client.download(1).await.map(drop) }
            })
            .await
        }
    }
}

async fn bulk<C: Client>(client: &C, streams: u32, bytes: u64) -> Result<Done> {
    let each = bytes / u64::from(streams);
    let started = Instant::now();
    let mut downloads = JoinSet::new();
    for _ in 0..streams {
        let client = client.clone();
        downloads.spawn(async move { client.download(each).await });
    }
    let mut count = 0;
    while let Some(download) = downloads.join_next().await {
        count += download??;
    }
    ensure!(count == each * u64::from(streams), "{count} bytes came instead of {bytes}");
    Ok(Done { wall_us: micros(started.elapsed()), count, ..Done::default() })
}

/// Pings now and then while downloads that do not end take all there is.
async fn pinged<C: Client>(client: &C, streams: u32, millis: u64) -> Result<Done> {
    let mut downloads = JoinSet::new();
    for _ in 0..streams {
        let client = client.clone();
        downloads.spawn(async move { client.download(1 << 40).await });
    }
    let started = Instant::now();
    let mut every = tokio::time::interval(PING_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut took = Vec::new();
    let mut pinger = client.pinger().await?;
    while started.elapsed() < Duration::from_millis(millis) {
        every.tick().await;
        let began = Instant::now();
        pinger.ping().await?;
        took.push(nanos(began.elapsed()));
        if let Some(ended) = downloads.try_join_next() {
            ensure!(false, "a download ended: {ended:?}");
        }
    }
    drop(pinger);
    let wall_us = micros(started.elapsed());
    downloads.shutdown().await;
    took.sort_unstable();
    let (p50_ns, p99_ns) = (percentile(&took, 50), percentile(&took, 99));
    Ok(Done { wall_us, count: took.len() as u64, p50_ns, p99_ns })
}

/// Does something over and over for a while, so many at once.
async fn repeat<F>(in_flight: u32, millis: u64, once: impl Fn() -> F + Clone + Send + 'static) -> Result<Done>
where
    F: Future<Output = Result<()>> + Send,
{
    let started = Instant::now();
    let until = started + Duration::from_millis(millis);
    let mut tasks = JoinSet::new();
    for _ in 0..in_flight {
        let once = once.clone();
        tasks.spawn(async move {
            let mut took = Vec::new();
            let mut now = Instant::now();
            while now < until {
                once().await?;
                let then = Instant::now();
                took.push(nanos(then - now));
                now = then;
            }
            anyhow::Ok(took)
        });
    }
    let mut took = Vec::new();
    while let Some(task) = tasks.join_next().await {
        took.append(&mut task??);
    }
    let wall_us = micros(started.elapsed());
    took.sort_unstable();
    let (p50_ns, p99_ns) = (percentile(&took, 50), percentile(&took, 99));
    Ok(Done { wall_us, count: took.len() as u64, p50_ns, p99_ns })
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
