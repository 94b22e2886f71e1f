//! Takes in the log of one container from its worker: numbers the records,
//! shows them at once, seals them into segments, and acknowledges what is
//! durable. A database or disk that does not take a segment makes the worker
//! keep its records; nothing is acknowledged before it is safe.

use std::sync::Arc;
use std::time::Duration;

use levers9_transport::accept::SessionHandle;
use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::{ContainerId, Generation, TaskId, WorkerId, v1};
use tokio::time::{Instant, sleep, sleep_until};

use super::live::{Live, OutOfOrder};
use super::{Incoming, TaskLog, objects};
use crate::runs;
use crate::scheduler::LINE_BLOCK;
use crate::state::{Shared, now_ms};
use crate::store::{Attempt, Fence, Segment, SegmentAdded, SegmentId, StoreError};

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
    Order(#[from] OutOfOrder),
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
    let mut intake = match Intake::begin(&state, worker, container, generation).await {
        Ok(intake) => intake,
        Err(IngestError::Stale) => {
            tracing::info!(%container, generation = generation.0, "refused the log of an attempt that no longer counts");
            // Nobody wants any of it: the worker may forget it all, and the container with it.
            if stream.send.send(&v1::LogAck { next_index: u64::MAX }).await.is_ok() {
                stream.send.finish();
            }
            return runs::discard(session, container, generation).await;
        }
        Err(error) => {
            tracing::debug!(%error, %container, "a log cannot be taken in now");
            return stream.abort(v1::ResetCode::Internal);
        }
    };
    if let Err(error) = ingest(&mut intake, &mut stream).await {
        tracing::debug!(%error, %container, "a log stream ended early");
        stream.abort(v1::ResetCode::Internal);
        // What was shown must not be forgotten, whether or not its worker comes back.
        if let Err(error) = intake.seal_all().await {
            tracing::warn!(%error, %container, "the last records of a log that was cut off are not kept");
        }
    }
}

async fn ingest(intake: &mut Intake<'_>, stream: &mut Stream) -> Result<(), IngestError> {
    intake.acknowledge(stream).await?;
    loop {
        let seal_at = intake.with(|live| live.seal_at())?;
        tokio::select! {
            batch = stream.recv.next::<v1::LogBatch>() => {
                let Some(batch) = batch? else {
                    intake.seal_all().await?;
                    return intake.acknowledge(stream).await;
                };
                let end = batch.end;
                intake.take(batch).await?;
                if end {
                    intake.seal_all().await?;
                    intake.acknowledge(stream).await?;
                    return Ok(stream.send.finish_and_deliver().await?);
                }
                if intake.with(|live| live.is_full())? {
                    intake.seal_all().await?;
                    intake.acknowledge(stream).await?;
                }
            }
            () = sleep_until(seal_at.unwrap_or_else(Instant::now)), if seal_at.is_some() => {
                intake.seal_all().await?;
                intake.acknowledge(stream).await?;
            }
        }
    }
}

/// Makes durable what is left in memory of a task's attempts, before another
/// one begins.
pub async fn seal_left(state: &Shared, task: TaskId) {
    let log = state.logs.of(task);
    for fence in log.fences() {
        let mut left = Intake { state, fence, log: Arc::clone(&log), line_limit: None, _open: None };
        if let Err(error) = left.seal_all().await {
            tracing::warn!(%error, %task, "the last records of a lost attempt are not kept");
        }
    }
}

/// One attempt's log coming in.
struct Intake<'a> {
    state: &'a Shared,
    fence: Fence,
    log: Arc<TaskLog>,
    /// The lines of an attempt that is not the current one end before those of
    /// the next.
    line_limit: Option<u64>,
    /// While more may come.
    _open: Option<Incoming>,
}

impl<'a> Intake<'a> {
    /// Any attempt's log is taken in from the worker that has it: the tail of
    /// a lost one was said and may have been shown.
    async fn begin(
        state: &'a Shared,
        worker: WorkerId,
        container: ContainerId,
        generation: Generation,
    ) -> Result<Self, IngestError> {
        let task = state.store.task_of_container(container).await?.ok_or(IngestError::Stale)?;
        let attempts = state.store.attempts(task).await?;
        let is_it =
            |a: &&Attempt| a.container == container && a.generation == generation && a.worker == worker;
        let attempt = attempts.iter().find(is_it).ok_or(IngestError::Stale)?;
        let now = state.store.task(task).await?.ok_or(IngestError::Stale)?;
        let line_limit = attempts.iter().filter(|a| a.number > attempt.number).map(|a| a.base_line).min();
        let fence = Fence { task, number: attempt.number, container, generation };
        let reserved = line_limit.unwrap_or(now.task.lines_reserved);
        let open = state.logs.take_in(fence, attempt.base_line, attempt.log_next, reserved);
        if let Some(total) = attempt.log_total {
            state.logs.set_total(fence, total);
        }
        Ok(Self { state, fence, log: Arc::clone(&open.log), line_limit, _open: Some(open) })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Live) -> T) -> Result<T, IngestError> {
        self.log.with(self.fence, act).ok_or(IngestError::Stale)
    }

    /// Tells the worker from where on records are wanted, or what is durable.
    async fn acknowledge(&self, stream: &mut Stream) -> Result<(), IngestError> {
        let next_index = self.with(|live| live.durable())?;
        stream.send.send(&v1::LogAck { next_index }).await?;
        Ok(())
    }

    async fn take(&mut self, mut batch: v1::LogBatch) -> Result<(), IngestError> {
        if let Some(limit) = self.line_limit {
            let room = self.with(|live| limit.saturating_sub(live.line_of(0)))?;
            batch.records.retain(|record| record.index < room);
        }
        if let Some(last) = batch.records.last() {
            self.reserve(last.index.saturating_add(1)).await?;
        }
        let now = Instant::now();
        self.with(|live| {
            batch.records.into_iter().try_for_each(|record| live.push(record, now))?;
            if batch.end {
                live.set_total(live.next_index());
            }
            Ok::<_, OutOfOrder>(())
        })??;
        self.log.ring();
        Ok(())
    }

    /// Gives out line numbers up to a record, before it is shown.
    async fn reserve(&self, next_index: u64) -> Result<(), IngestError> {
        let Some(upto) = self.with(|live| live.to_reserve(next_index, LINE_BLOCK))? else { return Ok(()) };
        loop {
            match self.state.store.reserve_lines(self.fence.task, upto).await {
                Ok(_) => break,
                Err(error) if error.is_retryable() => sleep(PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
        self.with(|live| live.reserved(upto))
    }

    /// Makes durable what has come.
    async fn seal_all(&mut self) -> Result<(), IngestError> {
        loop {
            let (base, first_index, records) = self.with(|live| {
                let (first_index, records) = live.unsealed();
                (live.line_of(0), first_index, records)
            })?;
            let Some(last) = records.last() else { return Ok(()) };
            let next_index = last.index + 1;
            // Somebody else may have sealed a part meanwhile: the rest is next.
            let durable = self.seal(base, first_index, next_index, &records).await?;
            if durable <= first_index {
                return Err(IngestError::Stale);
            }
            self.with(|live| live.sealed(durable))?;
            self.log.ring();
        }
    }

    /// Seals records; answers up to which index the attempt is durable.
    async fn seal(
        &self,
        base: u64,
        first_index: u64,
        next_index: u64,
        records: &[v1::LogRecord],
    ) -> Result<u64, IngestError> {
        let bytes = objects::encode(records).map_err(StreamError::Frame)?;
        let task = self.fence.task;
        // The end is in the name, so that a longer run from the same index is another object.
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
        loop {
            let problem = match self.state.logs.objects.put(&key, bytes.clone()).await {
                Err(error) => error.to_string(),
                Ok(()) => match self.state.store.add_segment(segment.clone()).await {
                    Ok(SegmentAdded::Added | SegmentAdded::AlreadyThere) => {
                        self.state.trouble.over();
                        return Ok(next_index);
                    }
                    Ok(SegmentAdded::Expected(durable)) => return Ok(durable),
                    Ok(SegmentAdded::Refused) => return Err(IngestError::Stale),
                    Err(error) if error.is_retryable() => error.to_string(),
                    Err(error) => return Err(error.into()),
                },
            };
            self.state.trouble.is(&format!("log segments cannot be stored: {problem}"));
            if self.state.stopping.run_until_cancelled(sleep(PAUSE)).await.is_none() {
                return Err(IngestError::Store(StoreError::ShuttingDown));
            }
        }
    }
}

#[cfg(test)]
mod tests;
