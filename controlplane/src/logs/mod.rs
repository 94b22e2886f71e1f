//! What running jobs say. Records come in by [`ingest`], are shown at once
//! from memory, and become durable in segments ([`objects`]); [`reader`] gives
//! out any line from either. A line's number is its attempt's base plus its
//! index, given out in blocks that are stored before anything is shown, so
//! that no number is ever used twice.

pub mod follow;
pub mod ingest;
pub mod live;
pub mod objects;
pub mod reader;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use levers9_wire::TaskId;
use tokio::sync::watch;

use crate::store::Fence;
use live::Live;
use objects::Objects;

/// How often a task's log and its status have changed. Followers ask the
/// database for the status only when that has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Change {
    /// Of the log.
    pub log: u64,
    /// Of the status.
    pub status: u64,
}

/// One task's log and state as they change.
#[derive(Debug)]
pub struct TaskLog {
    live: Mutex<Option<Live>>,
    changed: watch::Sender<Change>,
}

impl TaskLog {
    fn new() -> Self {
        Self { live: Mutex::new(None), changed: watch::channel(Change::default()).0 }
    }

    /// What the current attempt has said and is not in a segment yet.
    pub fn live(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells followers that there is more to read.
    pub fn ring(&self) {
        self.changed.send_modify(|change| change.log += 1);
    }

    /// Tells followers that the task's status has changed.
    fn ring_status(&self) {
        self.changed.send_modify(|change| change.status += 1);
    }

    /// To be told of changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Change> {
        self.changed.subscribe()
    }
}

/// The live logs of all tasks.
#[derive(Debug)]
pub struct Logs {
    tasks: Mutex<HashMap<TaskId, Arc<TaskLog>>>,
    /// Where segments are.
    pub objects: Objects,
}

impl Logs {
    /// No logs yet, over a place for segments.
    #[must_use]
    pub fn new(objects: Objects) -> Self {
        Self { tasks: Mutex::default(), objects }
    }

    /// The log of a task, made when there is none.
    #[must_use]
    pub fn of(&self, task: TaskId) -> Arc<TaskLog> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(tasks.entry(task).or_insert_with(|| Arc::new(TaskLog::new())))
    }

    /// An attempt begins, or goes on after a restart of this process.
    pub fn begin(&self, fence: Fence, base_line: u64, durable: u64, reserved: u64) {
        let log = self.of(fence.task);
        {
            let mut live = log.live();
            if live.as_ref().is_none_or(|live| live.fence() != fence) {
                *live = Some(Live::new(fence, base_line, durable, reserved));
            }
        }
        log.ring_status();
    }

    /// How many records an attempt has in all.
    pub fn set_total(&self, fence: Fence, total: u64) {
        let log = self.of(fence.task);
        if let Some(live) = log.live().as_mut().filter(|live| live.fence() == fence) {
            live.set_total(total);
        }
        log.ring_status();
    }

    /// A task's status has changed.
    pub fn status_changed(&self, task: TaskId) {
        self.of(task).ring_status();
    }

    /// Drops what nobody follows and whose attempt is complete.
    pub fn tidy(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|_, log| {
            let unused = Arc::strong_count(log) == 1 && log.changed.receiver_count() == 0;
            let settled = log.live().as_ref().is_none_or(Live::is_settled);
            !(unused && settled)
        });
    }
}
