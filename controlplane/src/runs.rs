//! Drives containers: one Run stream each to the worker that has it. What the
//! worker reports is stored, fenced, before it is acknowledged; a stop is sent
//! down the same stream. When the carrier is lost the drive ends, and a new
//! one begins where the worker says the container still is.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use levers9_transport::accept::SessionHandle;
use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::v1::{self, run_event, run_order, stream_open};
use levers9_wire::{ContainerId, Generation};
use tokio::sync::{mpsc, watch};

use crate::outcome::{self, Known};
use crate::places::About;
use crate::scheduler::fence_of;
use crate::state::{Shared, now_ms};
use crate::store::{Applied, AttemptState, Fence, Finish, StoreError, TaskNow, TaskStatus};

/// How long a stopped container may take to end by itself.
pub const STOP_GRACE_MS: u64 = 10_000;
/// The pause before a broken Run stream is opened again.
const REOPEN_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
/// The pause before the database is asked again.
const STORE_PAUSE: std::time::Duration = std::time::Duration::from_millis(500);

type Key = (ContainerId, Generation);

/// A container that is driven.
#[derive(Debug)]
struct Driven {
    stops: mpsc::Sender<v1::StopContainer>,
    /// It was told to stop.
    told: bool,
}

/// Where to send stops, and what was ordered and not heard of yet.
#[derive(Debug, Default)]
pub struct Runs {
    driven: Mutex<HashMap<Key, Driven>>,
    unheard: watch::Sender<usize>,
}

/// Something that is ordered and not heard of yet, until it is dropped.
#[derive(Debug)]
pub struct Unheard(watch::Sender<usize>);

impl Drop for Unheard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Runs {
    fn driven(&self) -> MutexGuard<'_, HashMap<Key, Driven>> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells a driven container to stop; `false` when nobody drives it now.
    pub fn stop(&self, container: ContainerId, generation: Generation, stop: v1::StopContainer) -> bool {
        let mut driven = self.driven();
        let Some(one) = driven.get_mut(&(container, generation)) else { return false };
        // A stop that is in line already says the same.
        let sent = one.stops.try_send(stop).is_ok();
        one.told |= sent;
        sent
    }

    fn register(&self, key: Key) -> mpsc::Receiver<v1::StopContainer> {
        let (stops, receiver) = mpsc::channel(4);
        self.driven().insert(key, Driven { stops, told: false });
        receiver
    }

    /// Notes that a drive has told its container to stop.
    fn told(&self, key: Key) {
        if let Some(one) = self.driven().get_mut(&key) {
            one.told = true;
        }
    }

    /// Whether a container is driven and was not told to stop.
    fn goes_on(&self, key: Key) -> bool {
        self.driven().get(&key).is_some_and(|one| !one.told)
    }

    /// To be called once the receiver is closed or dropped: a newer drive may
    /// have taken the place already, and its sender is open.
    fn forget(&self, key: Key) {
        let mut driven = self.driven();
        if driven.get(&key).is_some_and(|one| one.stops.is_closed()) {
            driven.remove(&key);
        }
    }

    /// Something is about to be ordered.
    #[must_use]
    pub fn order(&self) -> Unheard {
        self.unheard.send_modify(|count| *count += 1);
        Unheard(self.unheard.clone())
    }

    /// Waits until every container that was ordered has been heard of, or its
    /// worker has gone. While this process may place tasks that is never so:
    /// to be asked once it is draining. Cancel safe.
    pub async fn all_begun(&self) {
        let mut unheard = self.unheard.subscribe();
        // The sender is this.
        let _all = unheard.wait_for(|count| *count == 0).await;
    }
}

/// Tells containers to stop whose tasks were asked to end at another process,
/// which does not drive them any more.
///
/// # Errors
/// When the database fails.
pub async fn pass_on_stops(state: &Shared) -> Result<(), StoreError> {
    if state.runs.driven().is_empty() {
        return Ok(());
    }
    for now in state.store.tasks_asked_to_end().await? {
        let (Some(fence), Some(reason)) = (fence_of(&now), &now.task.cancel_reason) else { continue };
        if state.runs.goes_on((fence.container, fence.generation)) {
            state.runs.stop(fence.container, fence.generation, cancel_order(reason));
        }
    }
    Ok(())
}

/// The stop that ends a cancelled task's container.
#[must_use]
pub fn cancel_order(reason: &str) -> v1::StopContainer {
    v1::StopContainer {
        grace_ms: STOP_GRACE_MS,
        reason: v1::StopReason::Cancelled.into(),
        text: reason.to_owned(),
    }
}

/// A container to drive.
#[derive(Debug)]
pub struct Drive {
    /// Which attempt.
    pub fence: Fence,
    /// Events stored already.
    pub since_event: u64,
    /// What to run; `None` to attach to what runs.
    pub spec: Option<v1::ContainerSpec>,
    /// What is known of the container.
    pub about: About,
    /// Held until it is heard of, when it is new.
    pub unheard: Option<Unheard>,
}

/// Drives one container until it has ended or the session is gone. A stream
/// that breaks while the session lives is opened again.
pub async fn drive(state: Shared, session: SessionHandle, mut drive: Drive) {
    let key = (drive.fence.container, drive.fence.generation);
    let mut stops = state.runs.register(key);
    let entered = state.places.enter(drive.fence, drive.about.clone(), session.clone());
    while let Err(error) = run(&state, &session, &mut drive, &mut stops).await {
        tracing::debug!(%error, container = %key.0, "the drive of a container ended early");
        if matches!(error, StreamError::Frame(_)) {
            // What does not fit a frame does not fit the next one either.
            if let Err(error) = lose(&state, drive.fence, &format!("it cannot be ordered: {error}")).await {
                tracing::error!(%error, "an attempt that cannot be ordered cannot be ended");
            }
            break;
        }
        if session.has_ended() || !wants_more(&state, drive.fence).await {
            break;
        }
        tokio::time::sleep(REOPEN_PAUSE).await;
    }
    drop(stops);
    state.runs.forget(key);
    state.places.leave(key.0, entered);
}

/// Whether an attempt is still to be driven.
async fn wants_more(state: &Shared, fence: Fence) -> bool {
    match state.store.task(fence.task).await {
        Ok(now) => now.is_some_and(|now| {
            let current =
                now.attempt.as_ref().is_some_and(|a| a.number == fence.number && !a.state.is_final());
            current && !now.task.status.is_final()
        }),
        Err(_) => true,
    }
}

async fn run(
    state: &Shared,
    session: &SessionHandle,
    drive: &mut Drive,
    stops: &mut mpsc::Receiver<v1::StopContainer>,
) -> Result<(), StreamError> {
    let fence = drive.fence;
    let open = v1::RunOpen {
        container: fence.container.to_wire(),
        generation: fence.generation.0,
        since_event: drive.since_event,
        spec: drive.spec.clone(),
    };
    let mut stream = session.open(stream_open::Kind::Run(open)).await?;
    // A cancel stores its reason, then looks for this drive; this drive is
    // registered, then looks for the reason. One of them finds the other.
    if let Some(stop) = asked_to_stop(state, fence).await {
        order(&mut stream, run_order::Kind::Stop(stop)).await?;
        state.runs.told((fence.container, fence.generation));
    }
    loop {
        tokio::select! {
            event = stream.recv.next::<v1::RunEvent>() => {
                let Some(event) = event? else { return Ok(()) };
                let sequence = event.sequence;
                let ended = matches!(event.kind, Some(run_event::Kind::Ended(_)));
                store_event(state, fence, event).await;
                drive.since_event = drive.since_event.max(sequence);
                drive.unheard = None;
                order(&mut stream, run_order::Kind::AckEvent(sequence)).await?;
                if ended {
                    return stream.send.finish_and_deliver().await;
                }
            }
            Some(stop) = stops.recv() => order(&mut stream, run_order::Kind::Stop(stop)).await?,
        }
    }
}

async fn asked_to_stop(state: &Shared, fence: Fence) -> Option<v1::StopContainer> {
    loop {
        match state.store.task(fence.task).await {
            Ok(now) => return now?.task.cancel_reason.as_deref().map(cancel_order),
            Err(error) if error.is_retryable() => tokio::time::sleep(STORE_PAUSE).await,
            Err(_) => return None,
        }
    }
}

async fn order(stream: &mut Stream, kind: run_order::Kind) -> Result<(), StreamError> {
    stream.send.send(&v1::RunOrder { kind: Some(kind) }).await
}

/// Tells a worker to end a container the controlplane does not want.
pub async fn discard(session: SessionHandle, container: ContainerId, generation: Generation) {
    let open =
        v1::RunOpen { container: container.to_wire(), generation: generation.0, ..v1::RunOpen::default() };
    let discard = async {
        let mut stream = session.open(stream_open::Kind::Run(open)).await?;
        let stop = v1::StopContainer {
            grace_ms: 5_000,
            reason: v1::StopReason::NotWanted.into(),
            text: "the controlplane does not want this container".to_owned(),
        };
        order(&mut stream, run_order::Kind::Stop(stop)).await?;
        while let Some(event) = stream.recv.next::<v1::RunEvent>().await? {
            order(&mut stream, run_order::Kind::AckEvent(event.sequence)).await?;
            if matches!(event.kind, Some(run_event::Kind::Ended(_))) {
                stream.send.finish_and_deliver().await?;
                break;
            }
        }
        Ok::<_, StreamError>(())
    };
    if let Err(error) = discard.await {
        tracing::debug!(%error, %container, "discarding a container ended early");
    }
}

/// Stores an event, however long the database takes: it is acknowledged only after.
async fn store_event(state: &Shared, fence: Fence, event: v1::RunEvent) {
    loop {
        match apply(state, fence, &event).await {
            Ok(()) => return,
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "an event of a container cannot be stored yet");
                tokio::time::sleep(STORE_PAUSE).await;
            }
            Err(error) => {
                tracing::error!(%error, task = %fence.task, "an event of a container cannot be stored");
                return;
            }
        }
    }
}

async fn apply(state: &Shared, fence: Fence, event: &v1::RunEvent) -> Result<(), StoreError> {
    let now_ms = now_ms();
    match &event.kind {
        Some(run_event::Kind::Started(_)) => {
            let applied = state.store.started(fence, event.sequence, now_ms).await?;
            after(state, fence, applied);
        }
        Some(run_event::Kind::Ended(ended)) => {
            let Some(now) = state.store.task(fence.task).await? else { return Ok(()) };
            let lost_before = lost_before(state, &now, fence).await?;
            let known = Known {
                cancel_reason: now.task.cancel_reason.as_deref(),
                lost_before,
                max_retries: now.task.max_retries,
                number: fence.number.0,
            };
            let (attempt_state, then) = outcome::of_event(ended, known);
            let reason = levers9_wire::name::printable(&ended.reason, levers9_wire::limits::TEXT);
            state.logs.set_total(fence, ended.log_records);
            let finish = Finish {
                state: attempt_state,
                reason,
                then,
                log_total: Some(ended.log_records),
                event: Some(event.sequence),
                now_ms,
            };
            let applied = state.store.finish(fence, finish).await?;
            after(state, fence, applied);
        }
        None => tracing::warn!("a worker reported an event this build does not know"),
    }
    Ok(())
}

/// How many attempts before this one were lost.
async fn lost_before(state: &Shared, now: &TaskNow, fence: Fence) -> Result<u32, StoreError> {
    if now.task.attempts <= 1 {
        return Ok(0);
    }
    let attempts = state.store.attempts(fence.task).await?;
    let lost = attempts.iter().filter(|a| a.number < fence.number && a.state == AttemptState::Lost).count();
    Ok(u32::try_from(lost).unwrap_or(u32::MAX))
}

/// The container of an attempt is gone: the task is tried again or ends.
///
/// # Errors
/// When the database fails.
pub async fn lose(state: &Shared, fence: Fence, reason: &str) -> Result<(), StoreError> {
    let Some(now) = state.store.task(fence.task).await? else { return Ok(()) };
    let known = Known {
        cancel_reason: now.task.cancel_reason.as_deref(),
        lost_before: lost_before(state, &now, fence).await?,
        max_retries: now.task.max_retries,
        number: fence.number.0,
    };
    let (attempt_state, then) = outcome::lost(reason, known);
    let finish = Finish {
        state: attempt_state,
        reason: reason.to_owned(),
        then,
        log_total: None,
        event: None,
        now_ms: now_ms(),
    };
    let applied = state.store.finish(fence, finish).await?;
    after(state, fence, applied);
    Ok(())
}

/// Lets everybody know who has to.
fn after(state: &Shared, fence: Fence, applied: Applied) {
    match applied {
        Applied::Done(status) => {
            state.logs.status_changed(fence.task);
            if status == TaskStatus::Retry || status.is_final() {
                state.placeable.notify_one();
            }
        }
        // Another process stored it; who follows here does not know.
        Applied::Duplicate => {
            state.logs.status_changed(fence.task);
            state.placeable.notify_one();
        }
        Applied::Stale => {
            tracing::info!(task = %fence.task, attempt = fence.number.0, "refused the report of an attempt that no longer counts");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use levers9_wire::v1::StopContainer;

    #[tokio::test]
    async fn all_have_begun_once_every_order_was_heard_of() {
        let runs = Runs::default();
        runs.all_begun().await;
        let (one, other) = (runs.order(), runs.order());
        let mut all = std::pin::pin!(runs.all_begun());
        drop(one);
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), &mut all).await;
        assert!(waits.is_err(), "one was not heard of");
        drop(other);
        all.await;
    }

    #[test]
    fn a_container_is_told_once_that_another_process_was_asked_to_end_it() {
        let (runs, key) = (Runs::default(), (ContainerId::generate(), Generation(1)));
        assert!(!runs.goes_on(key), "nobody drives it");
        let mut stops = runs.register(key);
        assert!(runs.goes_on(key));
        assert!(runs.stop(key.0, key.1, StopContainer::default()));
        assert!(!runs.goes_on(key) && stops.try_recv().is_ok());
        // Another drive of it: its stream begins with what is known then.
        let _again = runs.register(key);
        assert!(runs.goes_on(key));
        runs.told(key);
        assert!(!runs.goes_on(key));
        drop(stops);
        runs.forget(key);
        assert!(runs.driven().contains_key(&key), "the newer one goes on");
    }
}
