//! Attached clusters as they are now: what their agents last reported, which
//! workers are ordered on their nodes, and how each of those is doing. The
//! gate and [`agents`] fill it, the scheduler and the calls read it, [`orders`]
//! carries out what [`crate::scheduler`] decides. Rows are the store's; nothing
//! here speaks to Kubernetes.

pub mod agents;
pub mod orders;
pub mod tend;
pub mod view;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use levers9_transport::accept::SessionHandle;
use levers9_wire::v1::{AgentFacts, NodeReport, ResetCode, WorkerJob};
use levers9_wire::{ClusterId, InstanceId, WorkerId, WorkspaceId};
use tokio::time::Instant;

use crate::scheduler::pools::MINUTE;
use crate::sessions::takeover::{Claims, Verdict};
use crate::store::{Cluster, PoolWorker, PoolWorkerState};
use tend::Delivery;

/// A report that has arrived.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// When its stream was opened: of two reports the later one is the newer.
    pub opened: Instant,
    /// When the API server proved it, on this process's clock.
    pub taken: Instant,
    /// The same of the Jobs alone, which are watched apart from nodes.
    pub jobs_taken: Instant,
    /// What it says of nodes.
    pub report: NodeReport,
    /// What it says of worker Jobs.
    pub jobs: HashMap<WorkerId, WorkerJob>,
}

/// A node that is left alone after a worker failed there.
#[derive(Debug, Clone)]
pub struct Rest {
    /// Until when.
    pub until: Instant,
    /// Why, in words.
    pub reason: String,
    /// Workers that failed there in a row.
    pub failures: u32,
}

/// A cluster as it is known now.
#[derive(Debug, Clone)]
pub struct ClusterNow {
    /// Its row.
    pub row: Cluster,
    /// Its agent's session, while it has one.
    pub session: Option<SessionHandle>,
    /// What the agent said of itself.
    pub facts: AgentFacts,
    /// When it said so.
    pub since: Option<Instant>,
    /// The newest report since this process started.
    pub arrived: Option<Arc<Arrived>>,
    /// Nodes that are left alone.
    pub resting: HashMap<String, Rest>,
    /// When workers were ordered, within the last minute.
    pub starts: VecDeque<Instant>,
    claims: Claims,
}

impl ClusterNow {
    fn new(row: Cluster) -> Self {
        Self {
            row,
            session: None,
            facts: AgentFacts::default(),
            since: None,
            arrived: None,
            resting: HashMap::new(),
            starts: VecDeque::new(),
            claims: Claims::default(),
        }
    }

    /// The agents that fight over it.
    #[must_use]
    pub fn fighting(&self, now: Instant) -> Vec<InstanceId> {
        self.claims.fighting(now)
    }
}

/// A worker on a cluster as it is known now.
#[derive(Debug, Clone)]
pub struct Ordered {
    /// Its row.
    pub row: PoolWorker,
    /// How its order is doing.
    pub delivery: Delivery,
    /// When its state changed last, or this process started.
    pub since: Instant,
    /// Since when it has had nothing to do; `None` while it has, or is not here.
    pub idle_since: Option<Instant>,
    /// What keeps its pod from starting, or why it is being stopped.
    pub reason: String,
}

impl Ordered {
    /// One whose order may be due: whether it was taken is not known, and it
    /// has its effect once.
    fn due(row: PoolWorker, now: Instant) -> Self {
        Self { row, delivery: Delivery::Due(now), since: now, idle_since: None, reason: String::new() }
    }

    /// Is as far as the database says, when that is further.
    fn reach(&mut self, state: PoolWorkerState, now: Instant) {
        if state <= self.row.state {
            return;
        }
        let delivery = match state {
            PoolWorkerState::Running => Delivery::Done(now),
            PoolWorkerState::Pending | PoolWorkerState::Stopping => Delivery::Due(now),
        };
        self.row.state = state;
        (self.delivery, self.since, self.idle_since) = (delivery, now, None);
        self.reason.clear();
    }
}

/// Which clusters and workers on them are known.
#[derive(Debug, Default)]
pub struct Known {
    clusters: HashSet<ClusterId>,
    workers: HashSet<WorkerId>,
}

#[derive(Debug, Default)]
struct Inner {
    clusters: HashMap<ClusterId, ClusterNow>,
    workers: HashMap<WorkerId, Ordered>,
}

/// Every attached cluster.
#[derive(Debug, Default)]
pub struct Clusters {
    inner: Mutex<Inner>,
}

/// The longest a node is left alone after failures.
const REST_MAX: Duration = Duration::from_secs(600);
/// How long after the first; each further one doubles it.
const REST_FIRST: Duration = Duration::from_secs(30);

impl Clusters {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known now.
    #[must_use]
    pub fn known(&self) -> Known {
        let inner = self.lock();
        Known {
            clusters: inner.clusters.keys().copied().collect(),
            workers: inner.workers.keys().copied().collect(),
        }
    }

    /// Takes over what the database says. What was `known` before it was asked
    /// and is gone there goes; gives the sessions of agents that are left over.
    pub fn merge(
        &self,
        (clusters, workers): (Vec<Cluster>, Vec<PoolWorker>),
        known: &Known,
        now: Instant,
    ) -> Vec<SessionHandle> {
        let mut inner = self.lock();
        let (mut no_cluster, mut no_worker) = (known.clusters.clone(), known.workers.clone());
        for row in clusters {
            no_cluster.remove(&row.id);
            let cluster = inner.clusters.entry(row.id).or_insert_with(|| ClusterNow::new(row.clone()));
            cluster.row = match cluster.session {
                // It told its build and version itself.
                Some(_) => Cluster {
                    agent_build: std::mem::take(&mut cluster.row.agent_build),
                    kubernetes: std::mem::take(&mut cluster.row.kubernetes),
                    ..row
                },
                None => row,
            };
        }
        for row in workers {
            no_worker.remove(&row.worker);
            let (id, state) = (row.worker, row.state);
            inner.workers.entry(id).or_insert_with(|| Ordered::due(row, now)).reach(state, now);
        }
        inner
            .workers
            .retain(|id, worker| !no_worker.contains(id) && !no_cluster.contains(&worker.row.cluster));
        no_cluster.iter().filter_map(|id| inner.clusters.remove(id)?.session).collect()
    }

    /// Adds a cluster.
    pub fn put(&self, row: Cluster) {
        self.lock().clusters.insert(row.id, ClusterNow::new(row));
    }

    /// Lets a cluster serve every workspace, or its own only; not one that has left meanwhile.
    pub fn share(&self, id: ClusterId, shared: bool) {
        if let Some(cluster) = self.lock().clusters.get_mut(&id) {
            cluster.row.shared = shared;
        }
    }

    /// Takes a cluster and its workers out. Gives the workers.
    pub fn remove(&self, id: ClusterId) -> Vec<WorkerId> {
        let mut inner = self.lock();
        inner.clusters.remove(&id);
        let of: Vec<_> =
            inner.workers.values().filter(|w| w.row.cluster == id).map(|w| w.row.worker).collect();
        for worker in &of {
            inner.workers.remove(worker);
        }
        of
    }

    /// Whether none is attached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().clusters.is_empty()
    }

    /// One cluster.
    #[must_use]
    pub fn get(&self, id: ClusterId) -> Option<ClusterNow> {
        self.lock().clusters.get(&id).cloned()
    }

    /// All clusters, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<ClusterNow> {
        let mut all: Vec<_> = self.lock().clusters.values().cloned().collect();
        all.sort_by_key(|cluster| cluster.row.id);
        all
    }

    /// The cluster that a workspace calls so: its own first, then a shared one.
    /// With `every` also others', for an admin.
    #[must_use]
    pub fn named(&self, name: &str, workspace: Option<WorkspaceId>, every: bool) -> Option<ClusterNow> {
        let all = self.all();
        let id = name.parse::<ClusterId>().ok();
        let called = |c: &&ClusterNow| c.row.name == name || id == Some(c.row.id);
        let own = all.iter().filter(called).find(|c| Some(c.row.workspace) == workspace);
        own.or_else(|| all.iter().filter(called).find(|c| c.row.shared))
            .or_else(|| all.iter().filter(called).find(|_| every))
            .cloned()
    }

    /// An agent says Hello.
    pub fn claim(&self, id: ClusterId, instance: InstanceId, now: Instant) -> Option<Verdict> {
        self.lock().clusters.get_mut(&id).map(|cluster| cluster.claims.claim(instance, now))
    }

    /// An agent is here. An older session of the cluster is ended.
    pub fn arrive(
        &self,
        id: ClusterId,
        session: &SessionHandle,
        (facts, build): (AgentFacts, &str),
        now: Instant,
    ) {
        let older = {
            let mut inner = self.lock();
            let Some(cluster) = inner.clusters.get_mut(&id) else { return };
            build.clone_into(&mut cluster.row.agent_build);
            cluster.row.kubernetes.clone_from(&facts.kubernetes);
            (cluster.facts, cluster.since) = (facts, Some(now));
            cluster.session.replace(session.clone())
        };
        if let Some(older) = older.filter(|old| !old.is_same(session)) {
            older.close(ResetCode::Superseded, "superseded by a newer session of this cluster's agent");
        }
    }

    /// An agent's session has ended; `false` when it was not the current one.
    pub fn left(&self, id: ClusterId, instance: InstanceId, session: &SessionHandle) -> bool {
        let mut inner = self.lock();
        let Some(cluster) = inner.clusters.get_mut(&id) else { return false };
        let current = cluster.session.as_ref().is_some_and(|s| s.is_same(session));
        if current {
            cluster.session = None;
            cluster.claims.ended(instance);
        }
        current
    }

    /// Takes a report in, unless a newer one is there; `false` then.
    pub fn reported(&self, id: ClusterId, arrived: Arrived) -> bool {
        let mut inner = self.lock();
        let Some(cluster) = inner.clusters.get_mut(&id) else { return false };
        if cluster.arrived.as_ref().is_some_and(|now| now.opened > arrived.opened) {
            return false;
        }
        let arrived = Arc::new(arrived);
        cluster.arrived = Some(Arc::clone(&arrived));
        for worker in inner.workers.values_mut().filter(|w| w.row.cluster == id) {
            if worker.row.state == PoolWorkerState::Pending {
                let job = arrived.jobs.get(&worker.row.worker);
                worker.reason = job.map(|job| job.reason.clone()).unwrap_or_default();
            }
        }
        true
    }

    /// Leaves a node alone for a while: a worker failed there.
    pub fn rest(&self, id: ClusterId, node: &str, reason: &str, now: Instant) {
        let mut inner = self.lock();
        let Some(cluster) = inner.clusters.get_mut(&id) else { return };
        let failures = cluster.resting.get(node).map_or(1, |rest| rest.failures.saturating_add(1));
        let pause = REST_FIRST.saturating_mul(1 << (failures - 1).min(8)).min(REST_MAX);
        let rest = Rest { until: now + pause, reason: reason.to_owned(), failures };
        cluster.resting.insert(node.to_owned(), rest);
    }

    /// A worker has come up on a node: what failed there before is over.
    pub fn rested(&self, id: ClusterId, node: &str) {
        if let Some(cluster) = self.lock().clusters.get_mut(&id) {
            cluster.resting.remove(node);
        }
    }

    /// A worker was ordered.
    pub fn ordered(&self, row: PoolWorker, now: Instant) {
        let mut inner = self.lock();
        if let Some(cluster) = inner.clusters.get_mut(&row.cluster) {
            cluster.starts.retain(|at| now.saturating_duration_since(*at) < MINUTE);
            cluster.starts.push_back(now);
        }
        inner.workers.insert(row.worker, Ordered::due(row, now));
    }

    /// One worker.
    #[must_use]
    pub fn worker(&self, id: WorkerId) -> Option<Ordered> {
        self.lock().workers.get(&id).cloned()
    }

    /// All workers, oldest first.
    #[must_use]
    pub fn workers(&self) -> Vec<Ordered> {
        let mut workers: Vec<_> = self.lock().workers.values().cloned().collect();
        workers.sort_by_key(|worker| worker.row.worker);
        workers
    }

    /// Changes what is known of a worker.
    pub fn update(&self, id: WorkerId, change: impl FnOnce(&mut Ordered)) {
        if let Some(worker) = self.lock().workers.get_mut(&id) {
            change(worker);
        }
    }

    /// A worker is as far as the database says.
    pub fn reached(&self, id: WorkerId, state: PoolWorkerState, now: Instant) {
        self.update(id, |worker| worker.reach(state, now));
    }

    /// Takes a worker out.
    pub fn forget(&self, id: WorkerId) {
        self.lock().workers.remove(&id);
    }
}
