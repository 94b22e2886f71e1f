//! Serves one Follow stream: a task's status and log from a line on, live
//! until it has ended. Who follows as a caller keeps the task alive; when the
//! last caller is gone the task has 120 s.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::v1::{self, FailureCode, LogStream, follow_event};
use levers9_wire::{ContainerId, TaskId};
use tokio::time::{Instant, sleep_until, timeout};

use super::TaskLog;
use super::reader::{self, Cache, ReadError};
use crate::auth::{Action, Identity, authorize};
use crate::jobs;
use crate::scheduler::fence_of;
use crate::state::{Shared, now_ms};
use crate::store::{StoreError, TaskNow, TaskStatus};

/// A status is repeated at least this often: silence is not death.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How often to look for what another process may have stored.
const ELSEWHERE: Duration = Duration::from_millis(1_500);
/// How often to look whether the tail of an ended task's log has arrived.
const TAIL_CHECK: Duration = Duration::from_secs(1);
/// How long the tail of an ended task's log may take to arrive.
const TAIL_PATIENCE: Duration = Duration::from_secs(30);

/// Who follows which task as a caller.
#[derive(Debug, Default)]
pub struct Callers {
    count: Mutex<HashMap<TaskId, usize>>,
}

impl Callers {
    fn add(&self, task: TaskId) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner).entry(task).or_default() += 1;
    }

    /// Whether it was the last one.
    fn remove(&self, task: TaskId) -> bool {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        match count.get_mut(&task) {
            Some(n) if *n > 1 => {
                *n -= 1;
                false
            }
            _ => {
                count.remove(&task);
                true
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Serves a Follow stream of somebody.
pub async fn serve(
    state: Shared,
    callers: Arc<Callers>,
    who: Identity,
    open: v1::FollowOpen,
    mut stream: Stream,
) {
    let found = find(&state, &who, &open.id).await;
    let result = match found {
        Ok(Some(task)) => {
            let counted = open.caller && authorize(&who, Action::Submit, who.workspace);
            if counted {
                callers.add(task);
                note_callers(&state, task, None).await;
            }
            let followed = follow(&state, task, &open, counted, &mut stream).await;
            if counted && callers.remove(task) {
                note_callers(&state, task, Some(now_ms())).await;
            }
            followed
        }
        Ok(None) => {
            refuse(&mut stream, FailureCode::NotFound, "no such task or container", "levers9 task list").await
        }
        Err(error) => refuse(&mut stream, FailureCode::Unavailable, &error.to_string(), "").await,
    };
    match result {
        Ok(()) => {
            let _read = timeout(Duration::from_secs(10), stream.send.finish_and_deliver()).await;
        }
        Err(FollowError::Stream(_)) => {}
        Err(error) => {
            let _told = refuse(&mut stream, FailureCode::Unavailable, &error.to_string(), "").await;
            let _read = timeout(Duration::from_secs(10), stream.send.finish_and_deliver()).await;
        }
    }
}

async fn note_callers(state: &Shared, task: TaskId, gone: Option<i64>) {
    if let Err(error) = state.store.set_callers_gone(task, gone).await {
        tracing::warn!(%error, %task, "the callers of a task cannot be noted");
    }
}

async fn refuse(stream: &mut Stream, code: FailureCode, text: &str, hint: &str) -> Result<(), FollowError> {
    let failure = v1::Failure { code: code.into(), text: text.to_owned(), hint: hint.to_owned() };
    send(stream, follow_event::Kind::Failure(failure)).await
}

async fn send(stream: &mut Stream, kind: follow_event::Kind) -> Result<(), FollowError> {
    Ok(stream.send.send(&v1::FollowEvent { kind: Some(kind) }).await?)
}

/// The task an id names for somebody: by its own id or its container's.
async fn find(state: &Shared, who: &Identity, id: &[u8]) -> Result<Option<TaskId>, StoreError> {
    let Ok(Some(task)) = TaskId::from_wire(id) else { return Ok(None) };
    let found = match state.store.task(task).await? {
        Some(now) => Some(now),
        None => match ContainerId::from_wire(id) {
            Ok(Some(container)) => match state.store.task_of_container(container).await? {
                Some(task) => state.store.task(task).await?,
                None => None,
            },
            _ => None,
        },
    };
    Ok(found.filter(|now| authorize(who, Action::Read, Some(now.task.workspace))).map(|now| now.task.id))
}

/// A task as a follower last read it.
struct Known {
    now: TaskNow,
    /// The change it was read at.
    version: u64,
    /// When.
    at: Instant,
}

async fn follow(
    state: &Shared,
    task: TaskId,
    open: &v1::FollowOpen,
    counted: bool,
    stream: &mut Stream,
) -> Result<(), FollowError> {
    let log = state.logs.of(task);
    let mut watch = log.watch();
    let mut since = open.since_line;
    if let Some(count) = open.tail {
        since = since.max(reader::tail(state, task, &log, count, |line| is_shown(line, open)).await?);
    }
    let (mut cache, mut told) = (Cache::default(), None);
    let mut ended_at: Option<Instant> = None;
    let (mut known, mut repeat): (Option<Known>, _) = (None, Instant::now() + KEEPALIVE);
    loop {
        // The status is read before the lines: lines that come after it are seen next time.
        let change = *watch.borrow_and_update();
        if Instant::now() >= repeat {
            (told, known, repeat) = (None, None, Instant::now() + KEEPALIVE);
        }
        let pace = |known: &Known| pace_of(state, &known.now, &log);
        if known.as_ref().is_none_or(|k| k.version != change.status || k.at.elapsed() >= pace(k)) {
            let Some(now) = state.store.task(task).await? else { return Ok(()) };
            if counted && now.task.callers_gone_ms.is_some() && !now.task.status.is_final() {
                // Somebody else, or another process, saw its own last one go.
                note_callers(state, task, None).await;
            }
            if let (Some(fence), Some(attempt)) = (fence_of(&now), &now.attempt) {
                // Another process may have sealed more than came in here.
                log.with(fence, |live| live.sealed(attempt.log_next));
            }
            tell_status(state, &now, &mut told, stream).await?;
            known = Some(Known { now, version: change.status, at: Instant::now() });
        }
        let Some(Known { now, at, .. }) = &known else { return Ok(()) };
        let (over, read_at) = (now.task.status.is_final(), *at);
        let complete = over && is_complete(now, &log);
        if send_lines(state, task, &log, &mut since, open, &mut cache, stream).await? {
            continue;
        }
        if !open.follow || (over && tail_is_here(state, now, complete, &mut ended_at)) {
            return send(stream, follow_event::Kind::Ended(ending(now, complete))).await;
        }
        let again = repeat.min(read_at + pace_of(state, now, &log));
        tokio::select! {
            _changed = watch.changed() => {}
            () = sleep_until(again) => {}
            // The caller says nothing more: this is how its going is noticed.
            gone = stream.recv.next::<v1::FollowEvent>() => {
                return match gone {
                    Ok(_) => Err(StreamError::Early.into()),
                    Err(error) => Err(error.into()),
                };
            }
        }
    }
}

/// How long what was read of a task is good while nobody says that it changed.
fn pace_of(state: &Shared, now: &TaskNow, log: &TaskLog) -> Duration {
    pace(now, log.comes_in(), state.leading.load(Ordering::Relaxed))
}

/// The same, by whether its log comes in here, and whether tasks are placed here.
fn pace(now: &TaskNow, comes_in: bool, leading: bool) -> Duration {
    if now.task.status.is_final() {
        return TAIL_CHECK;
    }
    let held = now.attempt.as_ref().is_some_and(|attempt| attempt.state.is_held());
    if if held { comes_in } else { leading } { KEEPALIVE } else { ELSEWHERE }
}

/// What was told last: status, attempt and note.
type Told = Option<(TaskStatus, u32, String)>;

async fn tell_status(
    state: &Shared,
    now: &TaskNow,
    told: &mut Told,
    stream: &mut Stream,
) -> Result<(), FollowError> {
    let note = jobs::waiting_note(state, now).await?;
    let news = (now.task.status, now.task.attempts, note);
    if told.as_ref() == Some(&news) {
        return Ok(());
    }
    let status = v1::FollowStatus {
        task: now.task.id.to_wire(),
        status: news.0.word().to_owned(),
        note: news.2.clone(),
        attempt: news.1,
    };
    *told = Some(news);
    send(stream, follow_event::Kind::Status(status)).await
}

/// Whether somebody asked for lines of this stream.
fn is_shown(line: &v1::FollowLine, open: &v1::FollowOpen) -> bool {
    match LogStream::try_from(line.stream) {
        Ok(LogStream::Stdout) => !open.skip_stdout,
        Ok(LogStream::Stderr) => !open.skip_stderr,
        _ => true,
    }
}

/// Sends the next lines; `false` when there were none.
async fn send_lines(
    state: &Shared,
    task: TaskId,
    log: &TaskLog,
    since: &mut u64,
    open: &v1::FollowOpen,
    cache: &mut Cache,
    stream: &mut Stream,
) -> Result<bool, FollowError> {
    let mut lines = reader::next(state, task, log, *since, cache).await?;
    let Some(last) = lines.last() else { return Ok(false) };
    *since = last.line;
    lines.retain(|line| is_shown(line, open));
    if !lines.is_empty() {
        send(stream, follow_event::Kind::Lines(v1::FollowLines { lines })).await?;
    }
    Ok(true)
}

/// Whether every record of the last attempt has come in, here or elsewhere.
fn is_complete(now: &TaskNow, log: &TaskLog) -> bool {
    let (Some(attempt), Some(fence)) = (&now.attempt, fence_of(now)) else { return true };
    let has = |next: u64| attempt.log_total.is_some_and(|total| next >= total);
    match log.with(fence, |live| (live.is_open(), live.is_complete() || has(live.next_index()))) {
        // What another process has sealed meanwhile is shown once it is here.
        Some((true, all)) => all,
        Some((false, all)) => all || has(attempt.log_next),
        None => attempt.log_total.is_none() || has(attempt.log_next),
    }
}

/// Whether there is nothing left to wait for once a task has ended.
fn tail_is_here(state: &Shared, now: &TaskNow, complete: bool, ended_at: &mut Option<Instant>) -> bool {
    if complete {
        return true;
    }
    let Some(attempt) = &now.attempt else { return true };
    // Of an attempt that was lost nobody knows the end, and a worker that is away sends nothing.
    let away = state.sessions.worker(attempt.worker).is_none_or(|worker| worker.session.is_none());
    if attempt.log_total.is_none() && away {
        return true;
    }
    ended_at.get_or_insert_with(Instant::now).elapsed() >= TAIL_PATIENCE
}

fn ending(now: &TaskNow, complete: bool) -> v1::FollowEnded {
    v1::FollowEnded {
        status: now.task.status.word().to_owned(),
        exit_code: now.task.exit_code,
        reason: now.task.reason.clone(),
        complete,
    }
}

#[cfg(test)]
mod tests {
    use levers9_wire::WorkerId;

    use super::*;
    use crate::store::AttemptState;
    use crate::testing::{alone, placed};

    #[tokio::test]
    async fn what_is_told_here_is_not_looked_for_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let state = alone(folder.path()).await;
        let fence = placed(&state, WorkerId::generate()).await;
        let held = state.store.task(fence.task).await.unwrap().unwrap();
        let mut waiting = held.clone();
        waiting.attempt.as_mut().unwrap().state = AttemptState::Unreachable;
        let mut over = held.clone();
        over.task.status = TaskStatus::Complete;
        for (now, comes_in, leading, wanted) in [
            (&held, true, false, KEEPALIVE),
            (&held, false, true, ELSEWHERE),
            (&waiting, false, true, KEEPALIVE),
            (&waiting, false, false, ELSEWHERE),
            (&over, true, true, TAIL_CHECK),
        ] {
            assert_eq!(pace(now, comes_in, leading), wanted);
        }
    }
}
