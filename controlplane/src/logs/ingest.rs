//! Takes in the log of one container from its worker: numbers the records,
//! shows them at once, seals them into segments, and acknowledges what is
//! durable. A database or disk that does not take a segment makes the worker
//! keep its records; nothing is acknowledged before it is safe.

use std::sync::Arc;
use std::time::Duration;

use levers9_transport::accept::SessionHandle;
use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::{ContainerId, Generation, WorkerId, v1};
use tokio::time::{Instant, sleep, sleep_until};

use super::TaskLog;
use super::live::SEGMENT_BYTES;
use super::objects;
use crate::runs;
use crate::scheduler::LINE_BLOCK;
use crate::state::{Shared, now_ms};
use crate::store::{Fence, Segment, SegmentAdded, SegmentId, StoreError};

/// The pause before trying again what the disk or database did not take.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a log is not taken in further.
#[derive(Debug, thiserror::Error)]
enum IngestError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("it is of an attempt that no longer counts")]
    Stale,
    #[error(transparent)]
    Order(#[from] super::live::OutOfOrder),
}

/// Serves one Log stream of a worker until its end.
pub async fn serve(
    state: Shared,
    worker: WorkerId,
    session: SessionHandle,
    open: v1::LogOpen,
    mut stream: Stream,
) {
    let (Ok(Some(container)), generation) =
        (ContainerId::from_wire(&open.container), Generation(open.generation))
    else {
        stream.abort(v1::ResetCode::Protocol);
        return;
    };
    match ingest(&state, worker, container, generation, &mut stream).await {
        Ok(()) => {}
        Err(IngestError::Stale) => {
            tracing::info!(%container, generation = generation.0, "refused the log of an attempt that no longer counts");
            // Nobody wants any of it: the worker may forget it all, and the container with it.
            if stream.send.send(&v1::LogAck { next_index: u64::MAX }).await.is_ok() {
                stream.send.finish();
            }
            runs::discard(session, container, generation).await;
        }
        Err(error) => {
            tracing::debug!(%error, %container, "a log stream ended early");
            stream.abort(v1::ResetCode::Internal);
        }
    }
}

async fn ingest(
    state: &Shared,
    worker: WorkerId,
    container: ContainerId,
    generation: Generation,
    stream: &mut Stream,
) -> Result<(), IngestError> {
    let mut intake = Intake::begin(state, worker, container, generation).await?;
    intake.acknowledge(stream).await?;
    loop {
        let seal_at = intake.log.live().as_ref().and_then(super::live::Live::seal_at);
        tokio::select! {
            batch = stream.recv.next::<v1::LogBatch>() => {
                let Some(batch) = batch? else {
                    intake.seal_all(stream).await?;
                    return Ok(());
                };
                let end = batch.end;
                intake.take(batch).await?;
                if end {
                    intake.seal_all(stream).await?;
                    return Ok(stream.send.finish_and_deliver().await?);
                }
                if intake.is_full() {
                    intake.seal_all(stream).await?;
                }
            }
            () = sleep_until(seal_at.unwrap_or_else(Instant::now)), if seal_at.is_some() => {
                intake.seal_all(stream).await?;
            }
        }
    }
}

/// One attempt's log coming in.
struct Intake<'a> {
    state: &'a Shared,
    fence: Fence,
    log: Arc<TaskLog>,
}

impl<'a> Intake<'a> {
    async fn begin(
        state: &'a Shared,
        worker: WorkerId,
        container: ContainerId,
        generation: Generation,
    ) -> Result<Self, IngestError> {
        let task = state.store.task_of_container(container).await?.ok_or(IngestError::Stale)?;
        let attempts = state.store.attempts(task).await?;
        let attempt = attempts
            .into_iter()
            .find(|a| a.container == container && a.generation == generation && a.worker == worker)
            .ok_or(IngestError::Stale)?;
        let now = state.store.task(task).await?.ok_or(IngestError::Stale)?;
        // The tail of the last attempt is still wanted when its task has ended; of an older one it is not.
        if now.attempt.as_ref().is_none_or(|current| current.number != attempt.number) {
            return Err(IngestError::Stale);
        }
        let fence = Fence { task, number: attempt.number, container, generation };
        state.logs.begin(fence, attempt.base_line, attempt.log_next, now.task.lines_reserved);
        if let Some(total) = attempt.log_total {
            state.logs.set_total(fence, total);
        }
        Ok(Self { state, fence, log: state.logs.of(task) })
    }

    /// Tells the worker from where on records are wanted, or what is durable.
    async fn acknowledge(&self, stream: &mut Stream) -> Result<(), IngestError> {
        let next_index = self.log.live().as_ref().map_or(0, super::live::Live::next_index);
        stream.send.send(&v1::LogAck { next_index }).await?;
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.log.live().as_ref().is_some_and(super::live::Live::is_full)
    }

    async fn take(&mut self, batch: v1::LogBatch) -> Result<(), IngestError> {
        if let Some(last) = batch.records.last() {
            self.reserve(last.index.saturating_add(1)).await?;
        }
        let now = Instant::now();
        {
            let mut live = self.log.live();
            let live = live.as_mut().filter(|live| live.fence() == self.fence).ok_or(IngestError::Stale)?;
            for record in batch.records {
                live.push(record, now)?;
            }
            if batch.end {
                let total = live.next_index();
                live.set_total(total);
            }
        }
        self.log.ring();
        Ok(())
    }

    /// Gives out line numbers up to a record, before it is shown.
    async fn reserve(&self, next_index: u64) -> Result<(), IngestError> {
        let wanted = self.log.live().as_ref().and_then(|live| live.to_reserve(next_index, LINE_BLOCK));
        let Some(upto) = wanted else { return Ok(()) };
        loop {
            match self.state.store.reserve_lines(self.fence.task, upto).await {
                Ok(_) => break,
                Err(error) if error.is_retryable() => sleep(PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(live) = self.log.live().as_mut() {
            live.reserved(upto);
        }
        Ok(())
    }

    /// Makes durable what has come and acknowledges it.
    async fn seal_all(&mut self, stream: &mut Stream) -> Result<(), IngestError> {
        let (first_index, records) = match self.log.live().as_ref() {
            Some(live) if live.fence() == self.fence => live.unsealed(),
            _ => return Err(IngestError::Stale),
        };
        if let Some(last) = records.last() {
            let next_index = last.index + 1;
            self.seal(first_index, next_index, &records).await?;
            if let Some(live) = self.log.live().as_mut().filter(|live| live.fence() == self.fence) {
                live.sealed(next_index);
            }
            self.log.ring();
        }
        self.acknowledge(stream).await
    }

    async fn seal(
        &self,
        first_index: u64,
        next_index: u64,
        records: &[v1::LogRecord],
    ) -> Result<(), IngestError> {
        let Some(base) = self.log.live().as_ref().map(|live| live.line_of(0)) else {
            return Err(IngestError::Stale);
        };
        let bytes = objects::encode(records).map_err(StreamError::Frame)?;
        let task = self.fence.task;
        // The length is in the name, so that a longer run from the same index is another object.
        let key = format!("{task}/{}-{first_index}-{next_index}", self.fence.number);
        let segment = Segment {
            id: SegmentId(*levers9_wire::RequestId::generate().as_bytes()),
            task,
            attempt: self.fence.number,
            first_index,
            next_index,
            first_line: base + first_index,
            next_line: base + next_index,
            object_key: key.clone(),
            bytes: bytes.len() as u64,
            created_ms: now_ms(),
        };
        let mut said = false;
        loop {
            let problem = match self.state.logs.objects.put(&key, bytes.clone()).await {
                Err(error) => error.to_string(),
                Ok(()) => match self.state.store.add_segment(segment.clone()).await {
                    Ok(SegmentAdded::Added | SegmentAdded::AlreadyThere) => return Ok(()),
                    Ok(SegmentAdded::Expected(_) | SegmentAdded::Refused) => return Err(IngestError::Stale),
                    Err(error) if error.is_retryable() => error.to_string(),
                    Err(error) => return Err(error.into()),
                },
            };
            if !said {
                tracing::error!(%problem, %task, bytes = SEGMENT_BYTES, "a log segment cannot be stored; the worker keeps it until it can");
                said = true;
            }
            sleep(PAUSE).await;
        }
    }
}
