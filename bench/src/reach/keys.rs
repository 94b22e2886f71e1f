//! A keystroke's way to a command in a container and back, alone and while
//! downloads from the same worker take all there is, over one session.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use levers9::client::{Client, block_on};
use levers9::contexts::Store;
use levers9::settings::Target;
use levers9_transport::Stream;
use levers9_wire::ContainerId;
use levers9_wire::v1::{self, BenchKind, exec_input, exec_output, stream_open::Kind};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::stats::percentile;

/// How often a key is pressed.
const EVERY: Duration = Duration::from_millis(10);
/// Downloads beside it.
const STREAMS: usize = 4;

/// What keys and pings took, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    pub(super) key_p50_ms: f64,
    pub(super) key_p99_ms: f64,
    /// A stream opened to the worker and answered.
    pub(super) ping_p99_ms: f64,
    /// What the downloads got, in MB a second.
    pub(super) bulk_mb_s: f64,
}

/// Presses keys for so long.
pub(super) fn press(
    config: &Path,
    container: ContainerId,
    beside_bulk: bool,
    time: Duration,
) -> Result<Took> {
    let contexts = Store::at(config.to_owned()).load()?;
    let context = contexts.get("default").context("no context")?;
    let target = Target {
        address: context.address.context("no address")?,
        token: context.section.token,
        proxies: levers9_transport::tcp::Proxies::default(),
    };
    block_on(async {
        let client = Client::connect(&target).await?;
        let took = pressed(&client, container, beside_bulk, time).await;
        client.close().await;
        Ok(took)
    })?
}

async fn pressed(client: &Client, container: ContainerId, beside_bulk: bool, time: Duration) -> Result<Took> {
    let began = Instant::now();
    let mut downloads = JoinSet::new();
    for _ in 0..if beside_bulk { STREAMS } else { 0 } {
        let client = client.clone();
        downloads.spawn(async move { download(&client, container, time + Duration::from_millis(500)).await });
    }
    let mut exec = start(client, container).await?;
    let mut every = interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut keys, mut pings) = (Vec::new(), Vec::new());
    while began.elapsed() < time {
        every.tick().await;
        let pressed = Instant::now();
        let key = exec_input::Kind::Stdin(Bytes::from_static(b"x"));
        exec.send.send(&v1::ExecInput { kind: Some(key) }).await?;
        match exec.recv.expect::<v1::ExecOutput>().await?.kind {
            Some(exec_output::Kind::Stdout(bytes)) => ensure!(&bytes[..] == b"x", "echoed {bytes:?}"),
            other => bail!("instead of the key came {other:?}"),
        }
        keys.push(nanos(pressed));
        let pinged = Instant::now();
        ping(client, container).await?;
        pings.push(nanos(pinged));
    }
    let mut bytes = 0;
    while let Some(download) = downloads.join_next().await {
        bytes += download??;
    }
    keys.sort_unstable();
    pings.sort_unstable();
    let ms = |took: &[u64], percent| percentile(took, percent) as f64 / 1e6;
    Ok(Took {
        key_p50_ms: ms(&keys, 50),
        key_p99_ms: ms(&keys, 99),
        ping_p99_ms: ms(&pings, 99),
        bulk_mb_s: bytes as f64 / 1e6 / began.elapsed().as_secs_f64(),
    })
}

/// `cat`, which gives every key back.
async fn start(client: &Client, container: ContainerId) -> Result<Stream> {
    let open = v1::ExecOpen {
        container: container.to_wire(),
        command: vec!["cat".to_owned()],
        stdin: true,
        ..v1::ExecOpen::default()
    };
    let mut stream = client.open(Kind::Exec(open)).await?;
    match stream.recv.expect::<v1::ExecOutput>().await?.kind {
        Some(exec_output::Kind::Started(_)) => Ok(stream),
        other => bail!("the command was not started: {other:?}"),
    }
}

fn bench(container: ContainerId, kind: BenchKind, time: Duration) -> Kind {
    Kind::Bench(v1::BenchOpen {
        container: container.to_wire(),
        generation: 0,
        kind: kind.into(),
        duration_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
    })
}

async fn ping(client: &Client, container: ContainerId) -> Result<()> {
    let mut stream = client.open(bench(container, BenchKind::Open, Duration::ZERO)).await?;
    stream.send.finish();
    let answer: v1::BenchAnswer = stream.recv.expect().await?;
    ensure!(answer.failure.is_none(), "{:?}", answer.failure);
    Ok(())
}

async fn download(client: &Client, container: ContainerId, time: Duration) -> Result<u64> {
    let mut stream = client.open(bench(container, BenchKind::Down, time)).await?;
    stream.send.finish();
    let answer: v1::BenchAnswer = stream.recv.expect().await?;
    ensure!(answer.failure.is_none(), "{:?}", answer.failure);
    let (first, mut recv) = stream.recv.into_raw();
    let mut bytes = first.len() as u64;
    let mut chunks: [Bytes; 32] = std::array::from_fn(|_| Bytes::new());
    while let Some(count) = recv.read_many(&mut chunks).await? {
        bytes += chunks[..count].iter().map(|chunk| chunk.len() as u64).sum::<u64>();
    }
    Ok(bytes)
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
