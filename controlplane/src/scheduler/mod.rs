//! Places waiting tasks on workers, gives up the attempts of workers that stay
//! away, and ends tasks whose callers stay away. One at a time in the whole
//! installation, by a lease. Decisions are [`core`]'s; this is their shell.

pub mod core;
pub mod pools;
pub mod provision;

use std::sync::atomic::Ordering;
use std::time::Duration;

use levers9_wire::token::{Secret, TokenKind};
use levers9_wire::{ContainerId, Generation, WorkerId, WorkspaceId};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use self::core::{Amounts, Candidate, Waiting, need_of};
use crate::auth::mint;
use crate::logs::ingest;
use crate::recover;
use crate::runs::{self, Drive};
use crate::sessions::WorkerNow;
use crate::state::{CALLER_GRACE, Shared, WORKER_LOST, now_ms};
use crate::store::{AttemptState, Fence, Lease, Placement, PoolWorkerState, StoreError, TaskNow, Token};

const LEASE: &str = "scheduler";
const LEASE_TTL_MS: i64 = 15_000;
const TICK: Duration = Duration::from_secs(1);
/// Tasks looked at in one pass.
const BATCH: u32 = 500;
/// How long the tail of a lost attempt may take to be sealed.
const SEAL_PATIENCE: Duration = Duration::from_secs(5);
/// Line numbers are given out in blocks of this many.
pub const LINE_BLOCK: u64 = 1_000;

/// Runs until the controlplane stops, or another process is to take over. What
/// was begun is finished first; nothing is ordered after.
pub async fn run(state: Shared) {
    let _orders = state.runs.order();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut scheduler =
        Scheduler { state: state.clone(), lease: None, leads_since: Instant::now(), said: None };
    loop {
        tokio::select! {
            biased;
            () = state.stopping.cancelled() => break,
            () = state.draining.cancelled() => break,
            _ = tick.tick() => scheduler.pass(true).await,
            () = state.placeable.notified() => scheduler.pass(false).await,
        }
    }
    state.leading.store(false, Ordering::Relaxed);
    if let Some(lease) = scheduler.lease {
        let _expires_anyway = state.store.release_lease(&lease).await;
    }
}

struct Scheduler {
    state: Shared,
    lease: Option<Lease>,
    /// When it got that from another process, or nobody.
    leads_since: Instant,
    /// The last trouble that was logged.
    said: Option<String>,
}

impl Scheduler {
    async fn pass(&mut self, timers: bool) {
        let result = self.try_pass(timers).await;
        let problem = result.err().map(|error| error.to_string());
        if problem != self.said {
            match &problem {
                Some(problem) => tracing::warn!(%problem, "the scheduler cannot work"),
                None => tracing::info!("the scheduler works again"),
            }
            self.said = problem;
        }
    }

    async fn try_pass(&mut self, timers: bool) -> Result<(), StoreError> {
        if timers {
            runs::pass_on_stops(&self.state).await?;
        }
        if timers || self.lease.is_none() {
            self.renew().await?;
        }
        let Some(lease) = self.lease.clone() else { return Ok(()) };
        if timers {
            self.give_up_lost_workers().await?;
            self.cancel_deserted().await?;
        }
        self.place(lease).await
    }

    /// Keeps the lease, or takes it when it is free. Whoever takes it first
    /// learns what the one before knew.
    async fn renew(&mut self) -> Result<(), StoreError> {
        let state = &self.state;
        let lease = state.store.acquire_lease(LEASE, state.instance, LEASE_TTL_MS, now_ms()).await?;
        let epoch = |lease: &Option<Lease>| lease.as_ref().map(|lease| lease.epoch);
        let is_new = lease.is_some() && epoch(&lease) != epoch(&self.lease);
        if is_new {
            self.lease = None;
            recover::take_over(state).await?;
            self.leads_since = Instant::now();
        }
        self.lease = lease;
        state.leading.store(self.lease.is_some(), Ordering::Relaxed);
        Ok(())
    }

    async fn place(&self, lease: Lease) -> Result<(), StoreError> {
        let waiting = self.state.store.waiting_tasks(BATCH).await?;
        if waiting.is_empty() && self.state.clusters.is_empty() {
            return Ok(());
        }
        let coming = provision::coming(&self.state);
        let mut asked: Vec<Waiting> = waiting.iter().map(waiting_of).collect();
        if !asked.is_empty() {
            let placed = core::place(&mut candidates(&self.state).await?, &asked);
            for (task, worker) in &placed {
                if self.state.draining.is_cancelled() {
                    return Ok(());
                }
                if let Some(now) = waiting.iter().find(|now| now.task.id == *task) {
                    self.start(now, *worker, lease.clone()).await?;
                }
            }
            asked.retain(|task| !placed.iter().any(|(placed, _)| *placed == task.task));
        }
        if self.state.clusters.is_empty() {
            return Ok(());
        }
        let live = self.state.store.live_tasks().await?;
        provision::provision(&self.state, &coming, &asked, &live, &lease).await
    }

    /// Places one task and begins to drive its container.
    async fn start(&self, now: &TaskNow, worker: WorkerId, lease: Lease) -> Result<(), StoreError> {
        let state = &self.state;
        let workspace = now.task.workspace;
        let Some(entry) = state.sessions.worker(worker) else { return Ok(()) };
        let Some(session) = entry.session.clone() else { return Ok(()) };
        if entry.serves().is_none() {
            // A shared worker without isolation serves the first workspace it gets a job of.
            if !state.store.bind_worker(worker, workspace).await? {
                return Ok(());
            }
            state.sessions.update_worker(worker, |w| w.bound = Some(workspace));
        }
        // A lost container's next incarnation keeps its id.
        let (container, generation) = match &now.attempt {
            Some(before) => (before.container, Generation(before.generation.0 + 1)),
            None => (ContainerId::generate(), Generation(1)),
        };
        let base_line = now.task.lines_reserved.max(1);
        let number = levers9_wire::AttemptNumber(now.task.attempts + 1);
        let fence = Fence { task: now.task.id, number, container, generation };
        let env = state.store.task_env(now.task.id).await?;
        let (secret, token) = container_token(workspace, container);
        let unheard = Some(state.runs.order());
        let placement = Placement {
            task: now.task.id,
            number,
            container,
            generation,
            worker,
            base_line,
            lines_reserved: base_line + LINE_BLOCK,
            token: Some(token),
            lease,
            now_ms: now_ms(),
        };
        if !state.store.place(placement).await? {
            return Ok(());
        }
        // A disk that takes nothing must not hold up every other task.
        let _late = timeout(SEAL_PATIENCE, ingest::seal_left(state, fence.task)).await;
        state.logs.begin(fence, base_line, 0, base_line + LINE_BLOCK);
        let spec = crate::jobs::spec(state, now, fence, env.as_ref(), &secret);
        let drive = Drive { fence, since_event: 0, spec: Some(spec), about: now.into(), unheard };
        state.tasks.spawn(runs::drive(state.clone(), session, drive));
        Ok(())
    }

    /// Attempts on workers that have been away too long wait for another place.
    async fn give_up_lost_workers(&self) -> Result<(), StoreError> {
        if self.leads_since.elapsed() < WORKER_LOST {
            // Nobody had time to come here yet, whoever was with the one before.
            return Ok(());
        }
        for worker in self.state.sessions.workers() {
            let away = worker.away_since.is_some_and(|since| since.elapsed() >= WORKER_LOST);
            if !away || worker.given_up {
                continue;
            }
            tracing::warn!(worker = %worker.id, host = %worker.facts.hostname, "a worker has been away for 90 s; its tasks are tried elsewhere");
            for now in held_by(&self.state, worker.id).await? {
                self.give_up(&now).await?;
            }
            self.state.sessions.update_worker(worker.id, |w| w.given_up = true);
        }
        Ok(())
    }

    async fn give_up(&self, now: &TaskNow) -> Result<(), StoreError> {
        let Some(fence) = fence_of(now) else { return Ok(()) };
        let reason = "its worker has been away for 90 s";
        let attempts = self.state.store.attempts(now.task.id).await?;
        let lost = attempts.iter().filter(|a| a.state == AttemptState::Lost).count();
        if lost >= usize::try_from(now.task.max_retries).unwrap_or(usize::MAX) {
            return runs::lose(&self.state, fence, reason).await;
        }
        self.state.store.unreachable(fence, Some(reason.to_owned()), now_ms()).await?;
        self.state.logs.status_changed(now.task.id);
        Ok(())
    }

    /// Tasks that were to end with their callers, and whose callers are gone.
    async fn cancel_deserted(&self) -> Result<(), StoreError> {
        let grace = i64::try_from(CALLER_GRACE.as_millis()).unwrap_or(i64::MAX);
        for task in self.state.store.tasks_without_callers(now_ms() - grace).await? {
            let reason = format!("no caller for {} s", CALLER_GRACE.as_secs());
            crate::jobs::cancel(&self.state, task, &reason).await?;
        }
        Ok(())
    }
}

/// The attempt a task has now, as a fence.
#[must_use]
pub fn fence_of(now: &TaskNow) -> Option<Fence> {
    let attempt = now.attempt.as_ref()?;
    Some(Fence {
        task: now.task.id,
        number: attempt.number,
        container: attempt.container,
        generation: attempt.generation,
    })
}

/// The live tasks whose current attempt a worker has.
///
/// # Errors
/// When the database fails.
pub async fn held_by(state: &Shared, worker: WorkerId) -> Result<Vec<TaskNow>, StoreError> {
    let live = state.store.live_tasks().await?;
    Ok(live.into_iter().filter(|now| now.is_on(worker)).collect())
}

/// What a task asks for, as the core sees it.
#[must_use]
pub fn waiting_of(now: &TaskNow) -> Waiting {
    Waiting {
        task: now.task.id,
        workspace: now.task.workspace,
        need: need_of(&now.task.resources),
        gpu_type: now.task.resources.gpu_type.clone(),
        pool: now.task.pool.clone(),
    }
}

/// The known workers with what is free on each.
///
/// # Errors
/// When the database fails.
pub async fn candidates(state: &Shared) -> Result<Vec<Candidate>, StoreError> {
    let live = state.store.live_tasks().await?;
    let now = Instant::now();
    let free_of = |worker: &WorkerNow| {
        let mut free = worker.total();
        for task in &live {
            if task.is_on(worker.id) {
                free.take(&need_of(&task.task.resources));
            }
        }
        free
    };
    let candidate = |worker: WorkerNow| {
        let (workspace, wanted) = serves_now(state, &worker);
        Candidate {
            id: worker.id,
            pool: worker.pool.clone(),
            workspace,
            gpu_type: worker.facts.gpu_type.clone(),
            total: worker.total(),
            free: free_of(&worker),
            ready: wanted && worker.takes_more() && state.sessions.fighting(worker.id, now).is_empty(),
        }
    };
    Ok(state.sessions.workers().into_iter().map(candidate).collect())
}

/// Whom a worker serves from now on, and whether it gets anything at all. A
/// cluster that is no longer shared serves its own workspace with the next job.
fn serves_now(state: &Shared, worker: &WorkerNow) -> (Option<WorkspaceId>, bool) {
    let serves = worker.serves();
    let Some(id) = worker.cluster else { return (serves, true) };
    let Some(cluster) = state.clusters.get(id) else { return (serves, false) };
    let running = state.clusters.worker(worker.id).is_some_and(|w| w.row.state == PoolWorkerState::Running);
    match (cluster.row.shared, serves) {
        (true, _) => (serves, running),
        (false, None) => (Some(cluster.row.workspace), running),
        (false, Some(of)) => (serves, running && of == cluster.row.workspace),
    }
}

/// What is free of a worker's total, for listings.
#[must_use]
pub fn free_on(candidates: &[Candidate], worker: WorkerId) -> Amounts {
    candidates.iter().find(|c| c.id == worker).map(|c| c.free).unwrap_or_default()
}
/// What a container shows at its doors. It ends with the container.
fn container_token(workspace: WorkspaceId, container: ContainerId) -> (Secret, Token) {
    let (secret, row) = mint(TokenKind::WorkspaceRestricted, Some(workspace), now_ms(), &mut rand::rng());
    (secret, Token { container: Some(container), ..row })
}
