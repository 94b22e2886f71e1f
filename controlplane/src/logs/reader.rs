//! Any lines of a task, from segments or from memory. It keeps no queue: a
//! reader has a place and takes the next lines when it wants them, however
//! slow it is.

use std::collections::VecDeque;

use levers9_wire::TaskId;
use levers9_wire::v1::FollowLine;

use super::live::to_line;
use super::objects;
use super::{Memory, TaskLog};
use crate::state::Shared;
use crate::store::StoreError;

/// The most data given out at once, in bytes.
pub const BATCH: usize = 256 * 1024;

/// Why lines cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The database does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A segment cannot be read.
    #[error("a part of the log cannot be read: {0}")]
    Object(#[from] std::io::Error),
    /// A segment is damaged.
    #[error("a part of the log is damaged: {0}")]
    Damaged(#[from] levers9_wire::frame::BadFrame),
}

/// The last segment a reader looked at, so that it is not loaded for each batch.
#[derive(Debug, Default)]
pub struct Cache {
    key: String,
    lines: Vec<FollowLine>,
}

/// The next lines after `since`, in order; empty when there are none now.
///
/// # Errors
/// When the database or a segment cannot be read.
pub async fn next(
    state: &Shared,
    task: TaskId,
    log: &TaskLog,
    since: u64,
    cache: &mut Cache,
) -> Result<Vec<FollowLine>, ReadError> {
    let held: Vec<_> = after(&cache.lines, since);
    if !held.is_empty() {
        return Ok(held);
    }
    // Memory first: a reader that keeps up never touches the database.
    let (first_in_memory, in_memory) = match log.lines_after(since, BATCH) {
        Memory::Next(lines) => return Ok(lines),
        Memory::After { first_line, lines } => (first_line, lines),
    };
    // Lines are counted in signed 64 bits there; none comes after the last of those.
    let mut from = since.saturating_add(1).min(i64::MAX.unsigned_abs());
    loop {
        let segment = state.store.segments(task, from, 1).await?.into_iter().next();
        let Some(segment) = segment.filter(|segment| segment.first_line < first_in_memory) else {
            return Ok(in_memory);
        };
        if cache.key != segment.object_key {
            let records = objects::decode(&state.logs.objects.get(&segment.object_key).await?)?;
            let base = segment.first_line - segment.first_index;
            cache.lines = records.iter().map(|record| to_line(base, record)).collect();
            cache.key = segment.object_key;
        }
        let lines = after(&cache.lines, since);
        if !lines.is_empty() {
            return Ok(lines);
        }
        from = segment.next_line;
    }
}

/// The lines after a place, up to a batch.
fn after(lines: &[FollowLine], since: u64) -> Vec<FollowLine> {
    let start = lines.partition_point(|line| line.line <= since);
    let mut bytes = 0;
    lines[start..]
        .iter()
        .take_while(|line| {
            let fits = bytes == 0 || bytes + line.data.len() <= BATCH;
            bytes += line.data.len() + 48;
            fits
        })
        .cloned()
        .collect()
}

/// The place after which exactly the last `count` lines there are now follow,
/// of those that `shown` lets through.
///
/// # Errors
/// When the database or a segment cannot be read.
pub async fn tail(
    state: &Shared,
    task: TaskId,
    log: &TaskLog,
    count: u64,
    shown: impl Fn(&FollowLine) -> bool,
) -> Result<u64, ReadError> {
    let wanted = usize::try_from(count).unwrap_or(usize::MAX).min(1_000_000);
    // Most often the last attempt alone has enough; only then is the whole log read.
    let near = log.next_line().map_or(0, |next| next.saturating_sub(count.saturating_add(2)));
    match place_of_last(state, task, log, near, wanted, &shown).await? {
        Some(place) => Ok(place),
        None if near > 0 => Ok(place_of_last(state, task, log, 0, wanted, &shown).await?.unwrap_or(0)),
        None => Ok(0),
    }
}

/// The place before the last `wanted` lines after `since`; `None` when there
/// are not more than that.
async fn place_of_last(
    state: &Shared,
    task: TaskId,
    log: &TaskLog,
    mut since: u64,
    wanted: usize,
    shown: impl Fn(&FollowLine) -> bool,
) -> Result<Option<u64>, ReadError> {
    let (mut last, mut cache) = (VecDeque::new(), Cache::default());
    loop {
        let some = next(state, task, log, since, &mut cache).await?;
        let Some(end) = some.last() else { break };
        since = end.line;
        for line in some.iter().filter(|line| shown(line)) {
            last.push_back(line.line);
            if last.len() > wanted + 1 {
                last.pop_front();
            }
        }
    }
    Ok(if last.len() > wanted { last.front().copied() } else { None })
}
