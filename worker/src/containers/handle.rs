//! One container as a session sees it: its events, its log, an order to stop.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use levers9_wire::valid::Spec;
use levers9_wire::{AttemptNumber, ContainerId, Generation, TaskId, v1};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Key;
use crate::life::{Stop, Why};
use crate::runtime::Inside;
use crate::spool::Spool;

/// Connections into one container at once.
const TUNNELS: usize = 1024;
/// Commands beside the container's own at once.
const EXECS: usize = 256;

/// What the container's driver and its handles share.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) task: TaskId,
    pub(super) attempt: AttemptNumber,
    pub(super) folder: PathBuf,
    pub(super) spool: Spool,
    journal: Mutex<Journal>,
    /// What can be waited for in the journal.
    pub(super) mark: watch::Sender<Mark>,
    /// The order to stop: the first reason, the earliest deadline.
    pub(super) stop: watch::Sender<Option<Stop>>,
    abort: OnceLock<AbortHandle>,
    /// The ways into it, once it runs.
    inside: OnceLock<Arc<dyn Inside>>,
    /// Nothing of it runs any more.
    over: CancellationToken,
    tunnels: Arc<Semaphore>,
    execs: Arc<Semaphore>,
    door: Option<Door>,
}

/// Where a container finds the controlplane.
#[derive(Debug)]
struct Door {
    port: u16,
    /// Until somebody serves it.
    listener: Mutex<Option<TcpListener>>,
}

#[derive(Debug, Default)]
struct Journal {
    events: Vec<v1::RunEvent>,
    /// No process of it is left, or none was ever started.
    clear: bool,
}

/// How far a journal is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) last_event: u64,
    pub(super) acknowledged: u64,
    pub(super) ended: bool,
}

impl Entry {
    pub(super) fn new(
        key: Key,
        spec: &Spec,
        folder: PathBuf,
        spool: Spool,
        door: Option<(u16, TcpListener)>,
    ) -> Self {
        Self {
            key,
            task: spec.task,
            attempt: spec.attempt,
            folder,
            spool,
            journal: Mutex::default(),
            mark: watch::Sender::new(Mark::default()),
            stop: watch::Sender::new(None),
            abort: OnceLock::new(),
            inside: OnceLock::new(),
            over: CancellationToken::new(),
            tunnels: Arc::new(Semaphore::new(TUNNELS)),
            execs: Arc::new(Semaphore::new(EXECS)),
            door: door.map(|(port, listener)| Door { port, listener: Mutex::new(Some(listener)) }),
        }
    }

    pub(super) fn set_inside(&self, inside: Arc<dyn Inside>) {
        // There is one driver, and it starts once.
        let _first = self.inside.set(inside);
    }

    /// Nothing of it runs any more: whatever reaches into it ends.
    pub(super) fn set_over(&self) {
        self.over.cancel();
        drop(self.take_door());
    }

    pub(super) fn door_port(&self) -> Option<u16> {
        self.door.as_ref().map(|door| door.port)
    }

    fn take_door(&self) -> Option<TcpListener> {
        self.door.as_ref()?.listener.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_abort(&self, handle: AbortHandle) {
        // There is one driver, and it is set once.
        let _first = self.abort.set(handle);
    }

    pub(super) fn abort(&self) {
        if let Some(handle) = self.abort.get() {
            handle.abort();
        }
    }

    pub(super) fn stop(&self, why: Why, grace: Duration) {
        let deadline = Instant::now() + grace;
        self.stop.send_modify(|stop| match stop {
            Some(stop) => stop.deadline = stop.deadline.min(deadline),
            None => *stop = Some(Stop { why, deadline }),
        });
    }

    /// Appends an event. Nothing is appended after the end.
    pub(super) fn tell(&self, kind: v1::run_event::Kind) {
        let ends = matches!(kind, v1::run_event::Kind::Ended(_));
        let mut journal = self.journal();
        if self.mark.borrow().ended {
            return;
        }
        let sequence = journal.events.len() as u64 + 1;
        let (task, attempt) = (self.task.to_wire(), self.attempt.0);
        journal.events.push(v1::RunEvent { sequence, task, attempt, kind: Some(kind) });
        drop(journal);
        self.mark.send_modify(|mark| {
            mark.last_event = sequence;
            mark.ended = ends;
        });
    }

    pub(super) fn set_clear(&self) {
        self.journal().clear = true;
    }

    pub(super) fn may_have_processes(&self) -> bool {
        !self.journal().clear
    }

    pub(super) fn last_event(&self) -> u64 {
        self.mark.borrow().last_event
    }

    /// Waits for the last event.
    pub(super) async fn ended(&self) {
        let mut mark = self.mark.subscribe();
        // The sender is in `self`: it does not go away meanwhile.
        let _open = mark.wait_for(|mark| mark.ended).await;
    }
}

/// Why nothing reaches into a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRunning {
    /// It has not started yet.
    #[error("the container has not started yet")]
    NotStarted,
    /// It has ended.
    #[error("the container has ended")]
    Ended,
}

/// One container. Clones are the same container, but each waits for itself.
#[derive(Debug, Clone)]
pub struct Handle {
    entry: Arc<Entry>,
    mark: watch::Receiver<Mark>,
}

impl Handle {
    pub(super) fn new(entry: Arc<Entry>) -> Self {
        let mut mark = entry.mark.subscribe();
        // So that the first wait returns when there are events already.
        mark.mark_changed();
        Self { entry, mark }
    }

    /// Which container.
    #[must_use]
    pub fn container(&self) -> ContainerId {
        self.entry.key.0
    }

    /// Which incarnation.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.entry.key.1
    }

    /// The task it serves.
    #[must_use]
    pub fn task(&self) -> TaskId {
        self.entry.task
    }

    /// Which try of the task.
    #[must_use]
    pub fn attempt(&self) -> AttemptNumber {
        self.entry.attempt
    }

    /// The events after this sequence number; the first event has 1.
    #[must_use]
    pub fn events_since(&self, sequence: u64) -> Vec<v1::RunEvent> {
        self.entry.journal().events.iter().filter(|event| event.sequence > sequence).cloned().collect()
    }

    /// Waits for events or acknowledgements that this handle has not been
    /// woken for; the first call returns at once.
    pub async fn changed(&mut self) {
        // The sender is in the entry this handle holds.
        let _open = self.mark.changed().await;
    }

    /// Whether the last event was told.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.mark.borrow().ended
    }

    /// Stops it: SIGTERM now, SIGKILL to everything of it after the grace.
    /// The first reason given stays, the earliest deadline counts.
    pub fn stop(&self, order: v1::StopContainer) {
        let text = levers9_wire::name::printable(&order.text, 256);
        let grace = Duration::from_millis(order.grace_ms.min(MAX_GRACE_MS));
        self.entry.stop(Why::Ordered { reason: order.reason(), text }, grace);
    }

    /// Takes note that the events up to this one are stored. When the last
    /// one is, and all of the log, the container is forgotten.
    pub fn acknowledge_event(&self, sequence: u64) {
        self.entry.mark.send_modify(|mark| {
            mark.acknowledged = mark.acknowledged.max(sequence.min(mark.last_event));
        });
    }

    /// The ways into it.
    ///
    /// # Errors
    /// When it does not run.
    pub fn inside(&self) -> Result<Arc<dyn Inside>, NotRunning> {
        if self.entry.over.is_cancelled() {
            return Err(NotRunning::Ended);
        }
        self.entry.inside.get().cloned().ok_or(NotRunning::NotStarted)
    }

    /// Waits until nothing of it runs any more.
    pub async fn over(&self) {
        self.entry.over.cancelled().await;
    }

    /// Why what runs in it has ended, for whoever was in it.
    #[must_use]
    pub fn end_words(&self) -> &'static str {
        match &*self.entry.stop.borrow() {
            Some(Stop { why: Why::Ordered { reason: v1::StopReason::Shutdown, .. }, .. }) => {
                "the worker is shutting down"
            }
            _ => "the container has ended",
        }
    }

    /// The right to one connection into it; `None` when there are too many.
    #[must_use]
    pub fn tunnel_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.entry.tunnels).try_acquire_owned().ok()
    }

    /// The right to one command in it; `None` when there are too many.
    #[must_use]
    pub fn exec_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.entry.execs).try_acquire_owned().ok()
    }

    /// The listener behind which it expects the controlplane, when it has a
    /// token; given out once.
    #[must_use]
    pub fn take_door(&self) -> Option<TcpListener> {
        self.entry.take_door()
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> Spool {
        self.entry.spool.clone()
    }
}

/// The longest grace of a stop, in milliseconds: a day.
const MAX_GRACE_MS: u64 = 86_400_000;
