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
    begin(state, true).await
}

/// Before this process schedules in the place of another. Callers that were
/// that one's have their grace, those that are here say so again in time.
///
/// # Errors
/// When the database fails.
pub async fn take_over(state: &Shared) -> Result<(), StoreError> {
    begin(state, false).await
}

/// `anew`: also those graces begin anew that had begun before.
async fn begin(state: &Shared, anew: bool) -> Result<(), StoreError> {
    state.store.begin_graces(now_ms(), anew).await?;
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use levers9_wire::v1::{ClusterSettings, WorkerFacts};
    use levers9_wire::{ClusterId, WorkerId, WorkspaceId};

    use super::*;
    use crate::clusters::tend::Delivery;
    use crate::seal::Sealed;
    use crate::sessions::Sessions;
    use crate::store::{Cluster, PoolWorker, PoolWorkerState, Worker, WorkerState};
    use crate::testing::{alone, placed};

    fn worker(state: WorkerState) -> Worker {
        Worker {
            id: WorkerId::generate(),
            workspace: None,
            bound_workspace: None,
            pool: "default".to_owned(),
            facts: WorkerFacts::default(),
            build: String::new(),
            state,
            created_ms: 1,
            last_seen_ms: 1,
            cluster: None,
        }
    }

    #[test]
    fn who_is_away_stays_away_since_then_and_who_is_gone_goes() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let later = start + Duration::from_secs(60);
        let (stays, goes) = (worker(WorkerState::Ready), worker(WorkerState::Ready));
        sessions.merge(vec![stays.clone(), goes.clone(), worker(WorkerState::Gone)], &HashSet::new(), start);
        assert_eq!(sessions.workers().len(), 2, "one that is gone does not come");
        sessions.update_worker(stays.id, |worker| worker.given_up = true);
        let bound = Some(WorkspaceId::generate());
        let renamed = Worker { pool: "other".to_owned(), bound_workspace: bound, ..stays.clone() };
        let new = worker(WorkerState::Ready);
        let away = sessions.away();
        assert_eq!(away, HashSet::from([stays.id, goes.id]));
        // It came between: the rows are older than it.
        let between = worker(WorkerState::Ready);
        sessions.merge(vec![stays.clone(), goes.clone(), between.clone()], &HashSet::new(), later);
        sessions.merge(
            vec![renamed, Worker { state: WorkerState::Gone, ..goes.clone() }, new.clone()],
            &away,
            later,
        );
        let since = |id| sessions.worker(id).map(|worker| worker.away_since);
        assert_eq!(since(stays.id), Some(Some(start)));
        assert_eq!((since(goes.id), since(new.id)), (None, Some(Some(later))));
        assert_eq!(since(between.id), Some(Some(later)), "what came meanwhile is newer than the rows");
        let stays = sessions.worker(stays.id).unwrap();
        assert_eq!((stays.pool.as_str(), stays.bound, stays.given_up), ("other", bound, true));
    }

    fn cluster() -> Cluster {
        Cluster {
            id: ClusterId::generate(),
            workspace: WorkspaceId::generate(),
            name: "lab".to_owned(),
            settings: ClusterSettings::default(),
            shared: false,
            created_ms: 1,
            last_seen_ms: None,
            agent_build: String::new(),
            kubernetes: String::new(),
        }
    }

    fn ordered(cluster: ClusterId, state: PoolWorkerState) -> PoolWorker {
        PoolWorker {
            worker: WorkerId::generate(),
            cluster,
            node: "n".to_owned(),
            state,
            workspace: None,
            cpu_millis: 1,
            memory_bytes: 1,
            gpu_type: String::new(),
            gpu_count: 0,
            enrolment: Sealed(Vec::new()),
            created_ms: 1,
        }
    }

    #[test]
    fn what_is_ordered_on_clusters_goes_forward_only() {
        use PoolWorkerState::{Pending, Running, Stopping};
        let (clusters, start) = (crate::clusters::Clusters::default(), Instant::now());
        let later = start + Duration::from_secs(60);
        let (lab, left) = (cluster(), cluster());
        let (comes, stops, lost) =
            (ordered(lab.id, Pending), ordered(lab.id, Running), ordered(left.id, Running));
        let rows = (vec![lab.clone(), left.clone()], vec![comes.clone(), stops.clone(), lost.clone()]);
        clusters.merge(rows, &clusters.known(), start);
        clusters.reached(stops.worker, Stopping, start);
        let shared = Cluster { shared: true, ..lab.clone() };
        let moved = vec![PoolWorker { state: Running, ..comes.clone() }, stops.clone(), lost.clone()];
        assert!(
            clusters.merge((vec![shared], moved), &clusters.known(), later).is_empty(),
            "no agent was here"
        );
        let now =
            |worker: &PoolWorker| clusters.worker(worker.worker).map(|w| (w.row.state, w.since, w.delivery));
        assert_eq!(now(&comes), Some((Running, later, Delivery::Done(later))));
        assert_eq!(now(&stops), Some((Stopping, start, Delivery::Due(start))), "the row was read before");
        assert_eq!(now(&lost), None, "it goes with its cluster");
        assert!(clusters.get(lab.id).unwrap().row.shared && clusters.get(left.id).is_none());
    }

    #[tokio::test]
    async fn callers_have_their_grace_once_they_may_be_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let state = alone(folder.path()).await;
        let task = placed(&state, WorkerId::generate()).await.task;
        let gone = async || state.store.task(task).await.unwrap().unwrap().task.callers_gone_ms;
        assert_eq!(gone().await, None);
        take_over(&state).await.unwrap();
        assert!(gone().await.is_some(), "who followed elsewhere may not come back");
        state.store.set_callers_gone(task, Some(5)).await.unwrap();
        take_over(&state).await.unwrap();
        assert_eq!(gone().await, Some(5), "a grace goes on");
        start(&state).await.unwrap();
        assert!(gone().await > Some(5), "after a start it begins anew");
    }

    #[tokio::test]
    async fn a_look_that_began_after_the_question_answers_it() {
        let folder = tempfile::tempdir().unwrap();
        let state = alone(folder.path()).await;
        let begun = Instant::now();
        refresh(&state).await.unwrap();
        let asked: Vec<_> = (0..50).map(|_| refresh(&state)).collect();
        for one in futures_util::future::join_all(asked).await {
            one.unwrap();
        }
        let took = begun.elapsed();
        assert!(took >= EVERY && took < 2 * EVERY, "all fifty share the second look: {took:?}");
    }
}
