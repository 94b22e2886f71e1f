//! The log of one container, on disk until it is acknowledged.
//!
//! One [`Writer`] appends records, any number of readers take them from a
//! position on through [`Spool`]; reading consumes nothing, only an
//! acknowledgement deletes. When more is unacknowledged than the limits
//! allow, whole chunks between head and tail are dropped, and the next record
//! after the gap says how much. Memory is bounded whatever the output.

mod chunk;
mod cutter;
mod drain;
mod reopen;
mod writer;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use levers9_wire::v1;
use tokio::sync::watch;

use chunk::{Chunk, Part};
pub use cutter::{Cutter, PARTIAL_WAIT};
pub use drain::Drain;
pub use writer::Writer;

/// What one record costs in an answer beside its data, in bytes.
const RECORD_COST: usize = 32;

/// How much a spool keeps, in bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A chunk file is closed when it is this long.
    pub chunk: u64,
    /// Kept from the oldest unacknowledged record on.
    pub head: u64,
    /// Kept before the newest record.
    pub tail: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { chunk: 4 << 20, head: 64 << 20, tail: 64 << 20 }
    }
}

/// How far a log is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of records so far: the index the next one will have.
    pub next_index: u64,
    /// Every record below this one is acknowledged.
    pub acknowledged: u64,
    /// No record will follow.
    pub ended: bool,
}

impl Progress {
    /// Whether the log is complete and acknowledged to its end.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.ended && self.acknowledged >= self.next_index
    }
}

/// Why records could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the log chunk {path:?}: {source}")]
pub struct ReadError {
    path: PathBuf,
    source: io::Error,
}

/// The readers' side of a log. Clones are the same log.
#[derive(Debug, Clone)]
pub struct Spool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    limits: Limits,
    state: Mutex<State>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first; the last one may still grow.
    chunks: VecDeque<Chunk>,
    progress: Progress,
    /// Where the reader stands: the index after the record read last.
    served: u64,
}

impl Spool {
    /// A new log in an empty folder, which is made.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn create(folder: &Path, limits: Limits) -> io::Result<(Self, Writer)> {
        std::fs::create_dir_all(folder)?;
        let (progress, _) = watch::channel(Progress::default());
        let state = Mutex::new(State::default());
        let shared = Arc::new(Shared { folder: folder.to_owned(), limits, state, progress });
        Ok((Self(Arc::clone(&shared)), Writer::new(shared)))
    }

    /// A log whose writer is gone, as far as its files go: up to the last
    /// whole record. It has ended. What was acknowledged of it is not known; it
    /// counts as nothing. How many records are missing between those that are
    /// there is told as ever, but not how many bytes these had. Blocks on the disk.
    ///
    /// # Errors
    /// When the folder or a file in it cannot be read.
    pub fn reopen(folder: &Path, limits: Limits) -> io::Result<Self> {
        let chunks = reopen::chunks(folder)?;
        let next_index = chunks.back().map_or(0, Chunk::end);
        let progress = Progress { next_index, acknowledged: 0, ended: true };
        let state = Mutex::new(State { chunks, progress, served: 0 });
        let (progress, _) = watch::channel(progress);
        Ok(Self(Arc::new(Shared { folder: folder.to_owned(), limits, state, progress })))
    }

    /// Tells of new records, of acknowledgements and of the end.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.0.progress.subscribe()
    }

    /// [`Self::read_from`] on a thread that may block.
    ///
    /// # Errors
    /// When a chunk cannot be read.
    pub async fn read(&self, index: u64, max_bytes: usize) -> Result<Vec<v1::LogRecord>, ReadError> {
        let spool = self.clone();
        match tokio::task::spawn_blocking(move || spool.read_from(index, max_bytes)).await {
            Ok(result) => result,
            Err(stopped) => {
                Err(ReadError { path: self.0.folder.clone(), source: io::Error::other(stopped.to_string()) })
            }
        }
    }

    /// Records from `index` on, as many as fit into `max_bytes`, but at least
    /// one if there is one. What was dropped before a record stands in it.
    /// Blocks on the disk.
    ///
    /// `dropped_records` is exact for any index. `dropped_bytes` is for a reader
    /// that goes on where it was; for any other it may be too high, by what it
    /// has of a chunk that was dropped after it was read.
    ///
    /// # Errors
    /// When a chunk cannot be read.
    pub fn read_from(&self, index: u64, max_bytes: usize) -> Result<Vec<v1::LogRecord>, ReadError> {
        let (mut next, mut room) = (index, max_bytes);
        let mut records: Vec<v1::LogRecord> = Vec::new();
        while let Some(part) = self.locate(&mut next) {
            let before = records.len();
            let path = self.0.path(part.first);
            match part.read(&path, next, &mut room, records.is_empty(), &mut records) {
                // Dropped or acknowledged meanwhile: look again.
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_gone(part.first) => continue,
                Err(source) => return Err(ReadError { path, source }),
                Ok(()) => {}
            }
            let Some(first) = records.get_mut(before) else { break };
            if first.index > next {
                first.dropped_records = first.index - next;
                first.dropped_bytes = part.dropped_bytes;
            }
            next = records.last().map_or(next, |last| last.index + 1);
            if room == 0 {
                break;
            }
        }
        let mut state = self.0.lock();
        state.served = next.min(state.progress.next_index);
        Ok(records)
    }

    /// The part to read for an index; what is acknowledged is passed over.
    fn locate(&self, next: &mut u64) -> Option<Part> {
        let state = self.0.lock();
        *next = (*next).max(state.progress.acknowledged);
        let chunk = state.chunks.iter().find(|chunk| chunk.end() > *next)?;
        Some(chunk.part(*next))
    }

    fn is_gone(&self, first: u64) -> bool {
        !self.0.lock().chunks.iter().any(|chunk| chunk.first == first)
    }

    /// Takes note that every record below `next_index` is safe elsewhere and
    /// deletes what no reader will need.
    pub async fn acknowledge(&self, next_index: u64) {
        let (gone, progress) = {
            let mut state = self.0.lock();
            let next_index = next_index.min(state.progress.next_index);
            state.progress.acknowledged = state.progress.acknowledged.max(next_index);
            let acknowledged = state.progress.acknowledged;
            let mut gone = Vec::new();
            while state.chunks.front().is_some_and(|chunk| chunk.sealed && chunk.end() <= acknowledged) {
                gone.extend(state.chunks.pop_front().map(|chunk| self.0.path(chunk.first)));
            }
            (gone, state.progress)
        };
        self.0.progress.send_replace(progress);
        if !gone.is_empty() {
            let deleting = tokio::task::spawn_blocking(move || gone.iter().for_each(|path| delete(path)));
            // It can only fail when the runtime is going down.
            let _stopped = deleting.await;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, first: u64) -> PathBuf {
        path_of(&self.folder, first)
    }

    /// Drops chunks between head and tail while there is too much, and says
    /// which files are to be deleted.
    fn trim(&self, state: &mut State) -> Vec<PathBuf> {
        let mut gone = Vec::new();
        let mut kept: u64 = state.chunks.iter().map(|chunk| chunk.file_bytes).sum();
        while kept > self.limits.head.saturating_add(self.limits.tail) {
            let Some(at) = self.first_to_drop(state) else { break };
            let Some(chunk) = state.chunks.remove(at) else { break };
            kept -= chunk.file_bytes;
            gone.push(self.path(chunk.first));
            let served = state.served;
            if let Some(after) = state.chunks.get_mut(at) {
                after.succeed(chunk, served);
            }
        }
        gone
    }

    /// The oldest chunk that lies wholly behind the head, is closed, and is
    /// not half read: what a reader missed of it could not be counted.
    fn first_to_drop(&self, state: &State) -> Option<usize> {
        let mut start = 0;
        for (at, chunk) in state.chunks.iter().enumerate() {
            let half_read = chunk.first < state.served && state.served < chunk.end();
            if start >= self.limits.head && chunk.sealed && !half_read && at + 1 < state.chunks.len() {
                return Some(at);
            }
            start += chunk.file_bytes;
        }
        None
    }
}

/// Where the chunk is that begins with this index.
fn path_of(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{first:020}.log"))
}

/// The index a file's chunk begins with, by its name; `None` when it is no chunk.
fn first_of(name: &OsStr) -> Option<u64> {
    let digits = name.to_str()?.strip_suffix(".log")?;
    digits.parse().ok().filter(|_| digits.len() == 20)
}

fn delete(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot delete a log chunk");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
