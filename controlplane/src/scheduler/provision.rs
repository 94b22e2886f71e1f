//! The shell around [`super::pools`]: gathers what is known of attached
//! clusters and their workers, carries out what is decided, and asks on behalf
//! of people why a task waits. It decides nothing itself.

use std::collections::HashSet;
use std::time::Duration;

use levers9_wire::WorkerId;
use levers9_wire::v1::{self, JobPhase};
use tokio::time::Instant;

use super::core::{self, Amounts, Candidate, Waiting};
use super::pools::{self, Ends, Limits, Picture, Pool, PoolWorker, Recent, Situation, Stage, Step, Verdict};
use crate::clusters::{Arrived, ClusterNow, Ordered, orders};
use crate::config::WorkerDefaults;
use crate::state::Shared;
use crate::store::{Lease, PoolWorkerState, StoreError, TaskNow};

/// What a pass rests on, owned.
struct Known {
    now: Instant,
    pools: Vec<Pool>,
    workers: Vec<PoolWorker>,
    recent: Recent,
    limits: Limits,
}

impl Known {
    fn gather(state: &Shared) -> Self {
        let now = Instant::now();
        let (clusters, ordered) = (state.clusters.all(), state.clusters.workers());
        let known = ordered.iter().map(|worker| worker.row.worker).collect();
        let starts = clusters.iter().flat_map(|c| c.starts.iter().map(|at| (c.row.id, *at)));
        Self {
            now,
            recent: starts.collect(),
            pools: clusters.iter().map(|cluster| pool(cluster, &known, now)).collect(),
            workers: ordered.iter().map(|worker| pool_worker(worker, &clusters)).collect(),
            limits: limits(&state.options.worker),
        }
    }

    fn with<'a>(&'a self, waiting: &'a [Waiting]) -> Situation<'a> {
        Situation {
            now: self.now,
            pools: &self.pools,
            workers: &self.workers,
            recent: &self.recent,
            waiting,
            limits: &self.limits,
        }
    }
}

fn limits(options: &WorkerDefaults) -> Limits {
    Limits {
        guard_pending: options.guard_pending,
        guard_per_minute: options.guard_per_minute,
        ..Limits::default()
    }
}

fn pool(cluster: &ClusterNow, known: &HashSet<WorkerId>, now: Instant) -> Pool {
    let picture = |arrived: &Arrived| Picture {
        taken: arrived.taken,
        nodes: arrived.report.nodes.iter().map(pools::Node::from).collect(),
        strangers: strangers(arrived, known),
    };
    let resting = cluster.resting.iter().filter(|(_, rest)| rest.until > now);
    Pool {
        id: cluster.row.id,
        name: cluster.row.name.clone(),
        owner: cluster.row.workspace,
        shared: cluster.row.shared,
        gpu_type: cluster.row.settings.gpu_type.clone(),
        connected: cluster.session.is_some(),
        paused: !cluster.fighting(now).is_empty(),
        report: cluster.arrived.as_ref().map(|arrived| picture(arrived)),
        resting: resting.map(|(node, rest)| (node.clone(), rest.until, rest.reason.clone())).collect(),
    }
}

fn is_pending(job: &v1::WorkerJob) -> bool {
    job.phase == i32::from(JobPhase::Pending)
}

/// The nodes of Jobs that nobody here ordered and that have not started.
fn strangers(arrived: &Arrived, known: &HashSet<WorkerId>) -> Vec<String> {
    let stranger = |(worker, job): (&WorkerId, &v1::WorkerJob)| {
        (!known.contains(worker) && is_pending(job)).then(|| job.node.clone())
    };
    arrived.jobs.iter().filter_map(stranger).collect()
}

fn pool_worker(worker: &Ordered, clusters: &[ClusterNow]) -> PoolWorker {
    let row = &worker.row;
    let arrived = clusters.iter().find(|c| c.row.id == row.cluster).and_then(|c| c.arrived.as_ref());
    let job = arrived.and_then(|arrived| arrived.jobs.get(&row.worker));
    PoolWorker {
        id: row.worker,
        pool: row.cluster,
        node: row.node.clone(),
        stage: row.state,
        amounts: Amounts { cpu_millis: row.cpu_millis, memory_bytes: row.memory_bytes, gpus: row.gpu_count },
        gpu_type: row.gpu_type.clone(),
        scope: row.workspace,
        // A pod that waits may not be bound yet: then nothing is counted for it.
        in_report: job.is_some_and(|job| job.phase == i32::from(JobPhase::Running)),
        idle_since: worker.idle_since,
        ordered: worker.since,
        held_up: if row.state == PoolWorkerState::Pending { worker.reason.clone() } else { String::new() },
    }
}

/// The workers that are coming. To be asked for before it is seen what fits
/// where: one that comes in between was passed over there.
#[must_use]
pub fn coming(state: &Shared) -> HashSet<WorkerId> {
    let workers = state.clusters.workers().into_iter();
    workers.filter(|w| w.row.state == PoolWorkerState::Pending).map(|w| w.row.worker).collect()
}

/// Notes which workers have nothing to do, then orders and stops workers for
/// the tasks that fit on none. `coming` were so before that was seen.
///
/// # Errors
/// When the database fails.
pub async fn provision(
    state: &Shared,
    coming: &HashSet<WorkerId>,
    waiting: &[Waiting],
    live: &[TaskNow],
    lease: &Lease,
) -> Result<(), StoreError> {
    orders::tend_all(state).await?;
    note_idle(state, live);
    if waiting.is_empty() && state.clusters.workers().iter().all(|w| w.idle_since.is_none()) {
        // Nobody to start one for, and none to stop: what clusters report needs no reading.
        return Ok(());
    }
    let mut known = Known::gather(state);
    for worker in known.workers.iter_mut().filter(|w| w.stage == Stage::Running) {
        if coming.contains(&worker.id) {
            // It takes its tasks in the next pass.
            worker.stage = Stage::Pending;
        }
    }
    for step in pools::plan(&known.with(waiting)) {
        if state.draining.is_cancelled() {
            break;
        }
        match step {
            Step::Start { pool, node, amounts, gpu_type, scope, task: _ } => {
                let start = orders::Start { cluster: pool, node, amounts, gpu_type, scope };
                orders::start(state, start, lease.clone()).await?;
            }
            Step::Stop { worker, why } => orders::stop(state, worker, why.word()).await?,
        }
    }
    Ok(())
}

/// A worker is idle while it is here and holds no task's current attempt.
fn note_idle(state: &Shared, live: &[TaskNow]) {
    let now = Instant::now();
    for worker in state.clusters.workers() {
        let id = worker.row.worker;
        let here = state.sessions.worker(id).is_some_and(|w| w.session.is_some());
        let idle =
            here && worker.row.state == PoolWorkerState::Running && !live.iter().any(|now| now.is_on(id));
        if idle != worker.idle_since.is_some() {
            state.clusters.update(id, |w| w.idle_since = idle.then_some(now));
        }
    }
}

/// Why neither a known worker nor a pool could ever take a task; `None` when
/// one could, or when too little is known.
#[must_use]
pub fn impossible(state: &Shared, workers: &[Candidate], task: &Waiting) -> Option<String> {
    let by_workers = core::impossible(workers, task);
    if state.clusters.is_empty() {
        return by_workers;
    }
    let plain = workers.iter().any(|w| w.workspace.is_none_or(|own| own == task.workspace));
    match pools::impossible(&Known::gather(state).pools, task) {
        Verdict::Could | Verdict::Might => None,
        Verdict::NoPool => by_workers,
        Verdict::Never(_) if plain && by_workers.is_none() => None,
        Verdict::Never(words) => Some(words),
    }
}

/// Why a task waits, over workers and pools.
///
/// # Errors
/// When the database fails.
pub async fn why(state: &Shared, task: &Waiting) -> Result<v1::TaskWhyAnswer, StoreError> {
    let candidates = super::candidates(state).await?;
    let known = Known::gather(state);
    let waiting: Vec<_> =
        state.store.waiting_tasks(super::BATCH).await?.iter().map(super::waiting_of).collect();
    let ends = ends(state).await?;
    let told = pools::why(&known.with(&waiting), task, &ends);
    let mut places: Vec<_> = told.places.into_iter().map(to_place).collect();
    places.extend(machines(state, &candidates, task));
    let summary = if known.pools.iter().any(|pool| pool.visible_to(task.workspace)) {
        told.summary
    } else {
        core::why_waiting(&candidates, task)
    };
    Ok(v1::TaskWhyAnswer { status: String::new(), summary, places })
}

fn to_place(place: pools::Place) -> v1::WhyPlace {
    v1::WhyPlace {
        pool: place.pool,
        node: place.node,
        reason: place.reason.word().to_owned(),
        text: place.text,
        frees: place.frees,
    }
}

/// Workers that are on no cluster, and why the task is on none of them.
fn machines(state: &Shared, candidates: &[Candidate], task: &Waiting) -> Vec<v1::WhyPlace> {
    let sees = |c: &&Candidate| c.workspace.is_none_or(|own| own == task.workspace);
    let mut places = Vec::new();
    for candidate in candidates.iter().filter(sees) {
        let Some(worker) = state.sessions.worker(candidate.id).filter(|w| w.cluster.is_none()) else {
            continue;
        };
        let (reason, text) = core::why_not_on(candidate, task);
        places.push(v1::WhyPlace {
            pool: candidate.pool.clone(),
            node: worker.facts.hostname,
            reason: reason.to_owned(),
            text,
            frees: if reason == "busy" { "when a job on it ends".to_owned() } else { String::new() },
        });
    }
    places
}

/// For each worker, in how much time at the latest the first task there ends.
async fn ends(state: &Shared) -> Result<Ends, StoreError> {
    let live = state.store.live_tasks().await?;
    let now_ms = crate::state::now_ms();
    let mut ends = Ends::new();
    for now in &live {
        let (Some(attempt), Some(timeout)) = (&now.attempt, now.task.timeout_ms) else { continue };
        let Some(started) = attempt.started_ms else { continue };
        let ran = u64::try_from(now_ms - started).unwrap_or(0);
        let left = Duration::from_millis(u64::try_from(timeout).unwrap_or(0).saturating_sub(ran));
        ends.entry(attempt.worker).and_modify(|known| *known = left.min(*known)).or_insert(left);
    }
    Ok(ends)
}

/// What to tell a caller whose task waits; nothing when it is about to be placed.
///
/// # Errors
/// When the database fails.
pub async fn note(state: &Shared, workers: &[Candidate], task: &Waiting) -> Result<String, StoreError> {
    let plain = core::why_waiting(workers, task);
    if plain.is_empty() {
        return Ok(plain);
    }
    let known = Known::gather(state);
    if !known.pools.iter().any(|pool| pool.visible_to(task.workspace)) {
        return Ok(plain);
    }
    let waiting: Vec<_> =
        state.store.waiting_tasks(super::BATCH).await?.iter().map(super::waiting_of).collect();
    Ok(pools::why(&known.with(&waiting), task, &Ends::new()).summary)
}
