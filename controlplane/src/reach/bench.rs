//! Measuring streams, for operators: the receiving end of a bench stream, here
//! or, moved on, on the worker that has a container. Bounded in number and
//! time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use levers9_transport::quic::HalfError;
use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::token::TokenKind;
use levers9_wire::v1::{self, BenchKind, FailureCode, stream_open};
use levers9_wire::valid;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::relay::{across, refuse};
use super::{What, failure, find, open as open_on};
use crate::auth::{Action, Identity};
use crate::places::Place;
use crate::state::Shared;

/// Bulk streams measured at once, of all callers together.
const BULK_AT_ONCE: usize = 64;
/// What is sent at once, in bytes.
const PIECE: usize = 64 * 1024;
/// How long the opener may take beyond the duration it gave.
const LATE: Duration = Duration::from_secs(10);

/// The benches under way.
#[derive(Debug)]
pub struct Benches {
    bulk: Arc<Semaphore>,
    block: Bytes,
}

impl Default for Benches {
    fn default() -> Self {
        Self { bulk: Arc::new(Semaphore::new(BULK_AT_ONCE)), block: Bytes::from(vec![0; PIECE]) }
    }
}

impl Benches {
    /// Serves a Bench stream of somebody.
    pub async fn serve(&self, state: &Shared, who: &Identity, asked: v1::BenchOpen, mut stream: Stream) {
        let _open = state.open.one(What::Bench);
        let served = match self.admit(state, who, asked).await {
            Ok((bench, place)) => self.measure(state, bench, place, stream).await,
            Err(failure) => {
                let answer = v1::BenchAnswer { failure: Some(failure), ..v1::BenchAnswer::default() };
                refuse(&mut stream, &answer).await;
                Ok(())
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a bench stream ended early");
        }
    }

    async fn admit(
        &self,
        state: &Shared,
        who: &Identity,
        asked: v1::BenchOpen,
    ) -> Result<(valid::Bench, Option<Arc<Place>>), v1::Failure> {
        let bench = valid::Bench::try_from(asked)
            .map_err(|error| failure(FailureCode::Invalid, error.to_string(), ""))?;
        if bench.kind != BenchKind::Open && who.kind != TokenKind::Admin {
            let text = format!("a token of kind {} may not fill the line", who.kind.word());
            return Err(failure(FailureCode::Denied, text, "benches are for admins"));
        }
        let place = match bench.container {
            Some((container, generation)) => {
                Some(find(state, who, Action::Reach, container, generation).await?)
            }
            None => None,
        };
        Ok((bench, place))
    }

    async fn measure(
        &self,
        state: &Shared,
        bench: valid::Bench,
        place: Option<Arc<Place>>,
        mut stream: Stream,
    ) -> Result<(), StreamError> {
        let _slot = match bench.kind {
            BenchKind::Open => None,
            _ => match Arc::clone(&self.bulk).try_acquire_owned() {
                Ok(slot) => Some(slot),
                Err(_) => {
                    let text = format!("{BULK_AT_ONCE} streams are being measured already");
                    let busy = failure(FailureCode::Busy, text, "use fewer streams, or try again");
                    let answer = v1::BenchAnswer { failure: Some(busy), ..v1::BenchAnswer::default() };
                    refuse(&mut stream, &answer).await;
                    return Ok(());
                }
            },
        };
        let deadline = Instant::now() + bench.duration + LATE;
        let served = async {
            match place {
                Some(place) => onward(state, bench, &place, stream).await,
                None => self.here(bench, stream).await,
            }
        };
        timeout_at(deadline, served).await.unwrap_or(Ok(()))
    }

    /// Is the receiver.
    async fn here(&self, bench: valid::Bench, mut stream: Stream) -> Result<(), StreamError> {
        stream.send.send(&answer(0)).await?;
        match bench.kind {
            BenchKind::Up => {
                let (first, mut recv) = stream.recv.into_raw();
                let mut bytes = first.len() as u64;
                let mut chunks: [Bytes; 32] = std::array::from_fn(|_| Bytes::new());
                while let Some(count) = recv.read_many(&mut chunks).await? {
                    bytes += chunks[..count].iter().map(|chunk| chunk.len() as u64).sum::<u64>();
                }
                stream.send.send(&answer(bytes)).await?;
            }
            BenchKind::Down => {
                let mut send = stream.send.into_raw().await?;
                let sent = timeout(bench.duration, async {
                    loop {
                        send.write_all(self.block.clone()).await?;
                    }
                });
                let ended: Result<Result<(), HalfError>, _> = sent.await;
                if let Ok(Err(error)) = ended {
                    return Err(error.into());
                }
                send.finish();
                return Ok(send.delivered().await?);
            }
            BenchKind::Open | BenchKind::Unspecified => {}
        }
        stream.send.finish_and_deliver().await
    }
}

/// Moves a bench on to a worker. What its carrier is like is added in front.
async fn onward(
    state: &Shared,
    bench: valid::Bench,
    place: &Place,
    mut stream: Stream,
) -> Result<(), StreamError> {
    let asked = v1::BenchOpen {
        container: place.container().to_wire(),
        generation: place.generation().0,
        kind: bench.kind.into(),
        duration_ms: u64::try_from(bench.duration.as_millis()).unwrap_or(u64::MAX),
    };
    let mut other = match open_on(&place.session, stream_open::Kind::Bench(asked)).await {
        Ok(other) => other,
        Err(failure) => {
            refuse(&mut stream, &v1::BenchAnswer { failure: Some(failure), ..v1::BenchAnswer::default() })
                .await;
            return Ok(());
        }
    };
    let theirs: v1::BenchAnswer = other.recv.expect().await?;
    let carrier = place.session.carrier();
    let (packets_sent, packets_lost) = carrier.packets();
    let ours = v1::BenchAnswer {
        cpu_us: answer(0).cpu_us.into_iter().chain(theirs.cpu_us).collect(),
        rtt_us: u64::try_from(carrier.rtt().as_micros()).unwrap_or(u64::MAX),
        packets_sent,
        packets_lost,
        ..theirs
    };
    stream.send.send(&ours).await?;
    across(state, stream, other).await;
    Ok(())
}

/// What this process has used, and how many bytes came.
fn answer(bytes: u64) -> v1::BenchAnswer {
    let used = getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0, |usage| usage.user_time().num_microseconds() + usage.system_time().num_microseconds());
    v1::BenchAnswer { cpu_us: vec![u64::try_from(used).unwrap_or(0)], bytes, ..v1::BenchAnswer::default() }
}
