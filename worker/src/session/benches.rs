//! Serves one Bench stream: the receiving side of a measurement of streams.

use bytes::Bytes;
use levers9_transport::quic::{RecvHalf, SendHalf};
use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::v1::{self, BenchKind, FailureCode};
use levers9_wire::valid;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use tokio::time::{Instant, timeout_at};

use super::Session;
use super::answers::{self, failure};

/// Streams that measure at once.
pub(super) const BENCHES: usize = 64;
/// What is written at once, by all.
static BLOCK: [u8; 64 * 1024] = [0; 64 * 1024];
/// Chunks read in one turn.
const CHUNKS: usize = 32;

pub(super) async fn serve(session: Session, open: v1::BenchOpen, stream: Stream) {
    let begun = valid::Bench::try_from(open).map_err(|error| failure(FailureCode::Invalid, error)).and_then(
        |bench| match session.benches.try_acquire() {
            Ok(permit) => Ok((bench, permit)),
            Err(_) => Err(failure(FailureCode::Busy, "the worker measures as many streams as it may")),
        },
    );
    let measured = match begun {
        Ok((bench, _permit)) => measure(bench, stream).await,
        Err(failure) => refuse(failure, stream).await,
    };
    if let Err(error) = measured {
        tracing::debug!(%error, "a measurement ended early");
    }
}

async fn refuse(failure: v1::Failure, mut stream: Stream) -> Result<(), StreamError> {
    stream.send.send(&v1::BenchAnswer { failure: Some(failure), ..v1::BenchAnswer::default() }).await?;
    answers::part(stream.send.into_raw().await?, stream.recv.into_raw().1).await;
    Ok(())
}

async fn measure(bench: valid::Bench, mut stream: Stream) -> Result<(), StreamError> {
    stream.send.send(&answer(0)).await?;
    match bench.kind {
        BenchKind::Up => {
            let (first, mut recv) = stream.recv.into_raw();
            let bytes = first.len() as u64 + count(&mut recv).await?;
            stream.send.send(&answer(bytes)).await?;
            answers::part(stream.send.into_raw().await?, recv).await;
        }
        BenchKind::Down => {
            let mut send = stream.send.into_raw().await?;
            fill(&mut send, Instant::now() + bench.duration).await?;
            answers::part(send, stream.recv.into_raw().1).await;
        }
        BenchKind::Open | BenchKind::Unspecified => {
            answers::part(stream.send.into_raw().await?, stream.recv.into_raw().1).await;
        }
    }
    Ok(())
}

fn answer(bytes: u64) -> v1::BenchAnswer {
    v1::BenchAnswer { cpu_us: vec![cpu_us()], bytes, ..v1::BenchAnswer::default() }
}

/// What this process has used of the CPU since its start.
fn cpu_us() -> u64 {
    let micros = |time: TimeVal| {
        let (seconds, rest) = (u64::try_from(time.tv_sec()), u64::try_from(time.tv_usec()));
        seconds.unwrap_or(0).saturating_mul(1_000_000).saturating_add(rest.unwrap_or(0))
    };
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0, |usage| micros(usage.user_time()) + micros(usage.system_time()))
}

async fn count(recv: &mut RecvHalf) -> Result<u64, StreamError> {
    let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
    let mut total = 0;
    while let Some(read) = recv.read_many(&mut chunks).await? {
        total += chunks[..read].iter().map(|chunk| chunk.len() as u64).sum::<u64>();
    }
    Ok(total)
}

/// Writes until the time is over.
async fn fill(send: &mut SendHalf, until: Instant) -> Result<(), StreamError> {
    while Instant::now() < until {
        let mut next = Bytes::from_static(&BLOCK);
        while !next.is_empty() {
            match timeout_at(until, send.write(&mut next)).await {
                Ok(written) => written?,
                Err(_) => return Ok(()),
            }
        }
    }
    Ok(())
}
