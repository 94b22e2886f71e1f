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
use levers9_wire::v1::FollowLine;
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
    /// By attempt, oldest first. An older one is here while its tail comes in.
    lives: Mutex<Vec<Live>>,
    changed: watch::Sender<Change>,
}

impl TaskLog {
    fn new() -> Self {
        Self { lives: Mutex::default(), changed: watch::channel(Change::default()).0 }
    }

    fn lives(&self) -> MutexGuard<'_, Vec<Live>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at or changes what an attempt has said and is not in a segment
    /// yet; `None` when there is nothing of it here.
    pub fn with<T>(&self, fence: Fence, act: impl FnOnce(&mut Live) -> T) -> Option<T> {
        self.lives().iter_mut().find(|live| live.fence() == fence).map(act)
    }

    /// The attempts that have something here, oldest first.
    #[must_use]
    pub fn fences(&self) -> Vec<Fence> {
        self.lives().iter().map(Live::fence).collect()
    }

    /// The line after the last one that has come in, while anything is known here.
    #[must_use]
    pub fn next_line(&self) -> Option<u64> {
        self.lives().last().map(Live::next_line)
    }

    /// The lines after `since`, when no segment can hold one between.
    #[must_use]
    pub fn lines_after(&self, since: u64, max_bytes: usize) -> Memory {
        let lives = self.lives();
        let wanted = since.saturating_add(1);
        match lives.iter().find(|live| live.next_line() > wanted) {
            Some(live) if wanted >= live.first_line() => Memory::Next(live.lines_after(since, max_bytes)),
            Some(live) => {
                Memory::After { first_line: live.first_line(), lines: live.lines_after(since, max_bytes) }
            }
            // What comes in here is here first.
            None if lives.last().is_some_and(Live::is_open) => Memory::Next(Vec::new()),
            None => Memory::After { first_line: u64::MAX, lines: Vec::new() },
        }
    }

    /// Whether the newest attempt's log comes in here, so that whoever follows
    /// is told of it.
    #[must_use]
    pub fn comes_in(&self) -> bool {
        self.lives().last().is_some_and(Live::is_open)
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

/// An attempt's log that comes in.
#[derive(Debug)]
pub struct Incoming {
    /// The log of its task.
    pub log: Arc<TaskLog>,
    fence: Fence,
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.log.with(self.fence, Live::closed);
        // Who follows looks elsewhere from now on.
        self.log.ring();
    }
}

/// What memory has after a place.
#[derive(Debug)]
pub enum Memory {
    /// These lines follow on the place; none when nothing has come yet.
    Next(Vec<FollowLine>),
    /// Segments may hold lines below `first_line`; these come after them.
    After {
        /// The first line that memory answers for.
        first_line: u64,
        /// What it has from there on.
        lines: Vec<FollowLine>,
    },
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

    /// An attempt begins, or goes on after another process had it: what that
    /// one made durable and gave out is so.
    pub fn begin(&self, fence: Fence, base_line: u64, durable: u64, reserved: u64) {
        self.enter(Live::new(fence, base_line, durable, reserved));
    }

    /// An attempt's log comes in here, until what this gives is dropped.
    #[must_use]
    pub fn take_in(&self, fence: Fence, base_line: u64, durable: u64, reserved: u64) -> Incoming {
        let mut live = Live::new(fence, base_line, durable, reserved);
        live.opened();
        Incoming { log: self.enter(live), fence }
    }

    fn enter(&self, new: Live) -> Arc<TaskLog> {
        let fence = new.fence();
        let log = self.of(fence.task);
        {
            let mut lives = log.lives();
            if let Some(live) = lives.iter_mut().find(|live| live.fence() == fence) {
                live.catch_up(&new);
            } else {
                // Others stay while something of them is not sealed, or comes in.
                lives.retain(|live| !live.is_sealed() || live.is_open());
                let at = lives.partition_point(|live| live.fence().number < fence.number);
                lives.insert(at, new);
            }
        }
        log.ring_status();
        log
    }

    /// How many records an attempt has in all.
    pub fn set_total(&self, fence: Fence, total: u64) {
        let log = self.of(fence.task);
        log.with(fence, |live| live.set_total(total));
        log.ring_status();
    }

    /// A task's status has changed.
    pub fn status_changed(&self, task: TaskId) {
        self.of(task).ring_status();
    }

    /// Drops what nobody follows and what is all in segments: the database
    /// knows the rest.
    pub fn tidy(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|_, log| {
            let unused = Arc::strong_count(log) == 1 && log.changed.receiver_count() == 0;
            let sealed = log.lives().iter().all(Live::is_sealed);
            !(unused && sealed)
        });
    }
}
