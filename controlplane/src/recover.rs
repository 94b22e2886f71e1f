//! Brings memory in line with the database: at a start, when this process
//! becomes the one that schedules, and when somebody names what memory does
//! not know because another process on the same database took it in. Whoever
//! has a session here keeps it; who is away stays away since then; what is
//! gone from the database goes. It writes nothing but the grace of callers.

use levers9_transport::accept::SessionHandle;
use levers9_wire::v1::ResetCode;
use tokio::sync::Mutex;
use tokio::time::{Duration, Instant, sleep_until};

use crate::scheduler::fence_of;
use crate::state::{Shared, now_ms};
use crate::store::StoreError;

/// Memory is brought in line at the request of peers once in this time at most.
const EVERY: Duration = Duration::from_secs(1);

/// When memory was brought in line last.
#[derive(Debug, Default)]
pub struct Refreshes(Mutex<Option<Instant>>);

/// After a start. Nobody has had time to come back: every grace begins anew.
///
/// # Errors
/// When the database fails.
pub async fn start(state: &Shared) -> Result<(), StoreError> {
    state.store.begin_graces(now_ms(), true).await?;
    align(state).await?;
    begin_logs(state).await
}

/// Before this process schedules in the place of another. Callers that were
/// that one's have their grace, those that are here say so again in time.
///
/// # Errors
/// When the database fails.
pub async fn take_over(state: &Shared) -> Result<(), StoreError> {
    state.store.begin_graces(now_ms(), false).await?;
    align(state).await?;
    begin_logs(state).await
}

/// For something that memory does not know. When it returns memory is newer
/// than the call; all who ask within a second share one look.
///
/// # Errors
/// When the database fails.
pub async fn refresh(state: &Shared) -> Result<(), StoreError> {
    let asked = Instant::now();
    let mut last = state.refreshes.0.lock().await;
    if last.is_some_and(|last| last >= asked) {
        return Ok(());
    }
    if let Some(last) = *last {
        sleep_until(last + EVERY).await;
    }
    *last = Some(Instant::now());
    align(state).await
}

/// Workers and clusters. What came or went while the database was read is
/// newer than what it said.
async fn align(state: &Shared) -> Result<(), StoreError> {
    let (workers, clusters) = (state.sessions.away(), state.clusters.known());
    let now = Instant::now();
    state.sessions.merge(state.store.workers().await?, &workers, now);
    let rows = (state.store.clusters().await?, state.store.pool_workers().await?);
    for session in state.clusters.merge(rows, &clusters, now) {
        end(&session);
    }
    Ok(())
}

fn end(session: &SessionHandle) {
    session.close(ResetCode::Revoked, "the cluster was detached");
}

/// Where the logs of live tasks go on.
async fn begin_logs(state: &Shared) -> Result<(), StoreError> {
    for live in state.store.live_tasks().await? {
        if let (Some(fence), Some(attempt)) = (fence_of(&live), &live.attempt) {
            state.logs.begin(fence, attempt.base_line, attempt.log_next, live.task.lines_reserved);
        }
    }
    Ok(())
}
