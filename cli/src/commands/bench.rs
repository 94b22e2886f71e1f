//! `levers9 bench`: what fits through streams to a controlplane, or on to a
//! worker, what one takes to open, and what that costs at each end. Bounded in
//! time and number by both ends; for admins.

use std::time::Duration;

use levers9_wire::v1::BenchKind;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::args::{Direction, Format};
use crate::client::{Client, block_on};
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::probe::{Probe, percentile};
use crate::settings::BenchSettings;
use crate::signals::Signals;

/// How long streams are opened one after another.
const OPENING: Duration = Duration::from_secs(1);
/// The most of them.
const OPENINGS: usize = 2_000;

/// What one end has used.
#[derive(Debug, Serialize)]
struct Cpu {
    end: &'static str,
    cpu_s_per_gb: f64,
}

/// One direction.
#[derive(Debug, Serialize)]
struct Flow {
    direction: &'static str,
    streams: u32,
    seconds: f64,
    bytes: u64,
    mb_per_s: f64,
    cpu: Vec<Cpu>,
    /// Of the packets this side sent.
    packets_sent: u64,
    packets_lost: u64,
}

/// Opening streams, one after another.
#[derive(Debug, Serialize)]
struct Opening {
    streams: usize,
    p50_ms: f64,
    p99_ms: f64,
}

#[derive(Debug, Serialize)]
struct Bench {
    to: String,
    /// Of the connection to the controlplane.
    rtt_ms: f64,
    /// Of the connection from there to the worker.
    worker_rtt_ms: Option<f64>,
    open: Opening,
    flows: Vec<Flow>,
}

/// Runs the command.
///
/// # Errors
/// When the other end refuses or is lost.
pub fn run(settings: &BenchSettings, printer: &mut Printer) -> Result<u8, Error> {
    let measured = block_on(async {
        let mut signals = Signals::listen()?;
        let client = signals.or(Client::connect(&settings.target)).await?;
        let measured = signals.or(measure(settings, &client, printer)).await;
        client.close().await;
        measured
    })?;
    match settings.format {
        Format::Json => printer.json(&measured)?,
        Format::Text => print(&measured, printer)?,
    }
    Ok(exit::DONE)
}

async fn measure(settings: &BenchSettings, client: &Client, printer: &mut Printer) -> Result<Bench, Error> {
    let probe = Probe::new(client.clone(), settings.to);
    let open = opening(&probe).await?;
    let kinds: &[(&'static str, BenchKind)] = match settings.direction {
        Direction::Up => &[("up", BenchKind::Up)],
        Direction::Down => &[("down", BenchKind::Down)],
        Direction::Both => &[("up", BenchKind::Up), ("down", BenchKind::Down)],
    };
    let mut flows = Vec::new();
    for (direction, kind) in kinds {
        printer.progress(&format!("{direction}: {} streams, {:?}", settings.streams, settings.duration));
        flows.push(flow(settings, client, &probe, direction, *kind).await?);
    }
    let (_, answer) = probe.ping().await?;
    let rtt = client.carrier().map(|carrier| carrier.rtt()).unwrap_or_default();
    Ok(Bench {
        to: settings
            .to
            .map_or_else(|| "controlplane".to_owned(), |id| format!("the worker of container {id}")),
        rtt_ms: ms(rtt),
        worker_rtt_ms: settings.to.map(|_| ms(Duration::from_micros(answer.rtt_us))),
        open,
        flows,
    })
}

async fn opening(probe: &Probe) -> Result<Opening, Error> {
    let (until, mut took) = (Instant::now() + OPENING, Vec::new());
    while Instant::now() < until && took.len() < OPENINGS {
        took.push(probe.ping().await?.0);
    }
    took.sort_unstable();
    let at = |percent| ms(percentile(&took, percent));
    Ok(Opening { streams: took.len(), p50_ms: at(50), p99_ms: at(99) })
}

async fn flow(
    settings: &BenchSettings,
    client: &Client,
    probe: &Probe,
    direction: &'static str,
    kind: BenchKind,
) -> Result<Flow, Error> {
    let packets = || client.carrier().map(|carrier| carrier.packets()).unwrap_or_default();
    let (before, sent_before) = (used(probe).await?, packets());
    let began = Instant::now();
    let mut streams = JoinSet::new();
    for _ in 0..settings.streams {
        let (probe, duration) = (probe.clone(), settings.duration);
        streams.spawn(async move { probe.fill(kind, duration).await });
    }
    let mut bytes = 0;
    while let Some(stream) = streams.join_next().await {
        bytes += stream.map_err(|error| Error::failed("a stream was not measured").because(error))??;
    }
    let seconds = began.elapsed().as_secs_f64();
    let (after, sent_after) = (used(probe).await?, packets());
    let ends = ["levers9 bench", "controlplane", "worker"];
    let spent = after.into_iter().zip(before).zip(ends);
    #[expect(clippy::cast_precision_loss, reason = "bytes and microseconds of a minute at most")]
    let cpu = spent
        .map(|((after, before), end)| Cpu {
            end,
            cpu_s_per_gb: after.saturating_sub(before) as f64 / 1e6 / (bytes.max(1) as f64 / 1e9),
        })
        .collect();
    #[expect(clippy::cast_precision_loss, reason = "bytes of a minute at most")]
    let mb_per_s = bytes as f64 / 1e6 / seconds;
    Ok(Flow {
        direction,
        streams: settings.streams,
        seconds,
        bytes,
        mb_per_s,
        cpu,
        packets_sent: sent_after.0.saturating_sub(sent_before.0),
        packets_lost: sent_after.1.saturating_sub(sent_before.1),
    })
}

/// What each end has used of the CPU since its start, in microseconds: this
/// one, the controlplane, and the worker where there is one.
async fn used(probe: &Probe) -> Result<Vec<u64>, Error> {
    let own = getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0, |usage| usage.user_time().num_microseconds() + usage.system_time().num_microseconds());
    let (_, answer) = probe.ping().await?;
    Ok([u64::try_from(own).unwrap_or_default()].into_iter().chain(answer.cpu_us).collect())
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1_000.0
}

fn print(bench: &Bench, printer: &mut Printer) -> Result<(), Error> {
    let mut pairs = vec![("to", bench.to.clone()), ("round trip", format!("{:.2} ms", bench.rtt_ms))];
    if let Some(rtt) = bench.worker_rtt_ms {
        pairs.push(("and on", format!("{rtt:.2} ms from the controlplane to the worker")));
    }
    let Opening { streams, p50_ms, p99_ms } = &bench.open;
    pairs.push((
        "stream",
        format!("opened and answered in {p50_ms:.2} ms (p50), {p99_ms:.2} ms (p99) of {streams}"),
    ));
    for flow in &bench.flows {
        let cpu: Vec<String> =
            flow.cpu.iter().map(|cpu| format!("{} {:.2}", cpu.end, cpu.cpu_s_per_gb)).collect();
        pairs.push((
            flow.direction,
            format!(
                "{:.1} MB/s over {} streams in {:.1} s; {} of {} packets of this side lost; CPU-s per GB: {}",
                flow.mb_per_s,
                flow.streams,
                flow.seconds,
                flow.packets_lost,
                flow.packets_sent,
                cpu.join(", "),
            ),
        ));
    }
    printer.pairs(&pairs)
}
