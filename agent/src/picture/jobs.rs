//! The worker Jobs of this cluster: how each is, which wait to start, which
//! have waited too long or got a second pod. Knows Jobs that were ordered a moment ago before the
//! watch shows them, so that two orders never both find room. Pure: what time
//! it is comes as an argument, and nothing is created or deleted here.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use levers9_wire::{WorkerId, v1};
use tokio::time::Instant;

use super::own::{End, OwnPod, WorkerJob};

/// How long a worker's pod may take to start before its Job is removed.
pub const START_WITHIN: Duration = Duration::from_secs(20 * 60);
/// How much later than a Job was created the Jobs must have been proved for
/// its absence to mean that it is not there.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);

/// What is known of worker Jobs.
#[derive(Debug, Default)]
pub struct Jobs {
    jobs: BTreeMap<WorkerId, Entry>,
    /// The workers' pods, by name.
    pods: BTreeMap<WorkerId, BTreeMap<Box<str>, OwnPod>>,
    /// Whose each pod is.
    owners: HashMap<Box<str>, WorkerId>,
    ordered: BTreeMap<WorkerId, Ordered>,
    told: Vec<v1::WorkerJob>,
    dirty: bool,
}

#[derive(Debug)]
struct Entry {
    job: WorkerJob,
    /// A pod of it has started, though it may be gone since.
    started: bool,
    /// The first pod that was seen of it. Its worker is that pod and no other.
    pod: Option<Box<str>>,
    /// The Job controller has made another one.
    replaced: bool,
}

impl Entry {
    fn new(job: WorkerJob) -> Self {
        Self { job, started: false, pod: None, replaced: false }
    }

    /// A pod of the Job was seen.
    fn saw(&mut self, key: &str, pod: &OwnPod) {
        if pod.job != self.job.uid {
            return;
        }
        self.started |= pod.started;
        match &self.pod {
            None => self.pod = Some(Box::from(key)),
            Some(first) => self.replaced |= **first != *key,
        }
    }
}

/// A Job that is being created, or was and is not shown yet.
#[derive(Debug)]
struct Ordered {
    node: String,
    /// How many requests for it have no answer yet.
    under_way: u32,
    /// From when on its absence may mean that it is not there; none before an answer.
    answered: Option<Instant>,
}

/// A Job that is to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doomed {
    /// Whose.
    pub worker: WorkerId,
    /// Which object.
    pub uid: String,
    /// Which version of it, where another one might be spared.
    pub version: Option<String>,
    /// Why.
    pub why: Doom,
}

/// Why a Job is to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doom {
    /// Its pod has not started in time.
    Overdue,
    /// Its pod was replaced by another, which is no worker that anybody knows.
    Replaced,
}

impl std::fmt::Display for Doom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Overdue => "its pod had not started in 20 minutes",
            Self::Replaced => "its pod was lost, and another was made for it",
        })
    }
}

/// What is still there of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Its Job is being created, or was and is not shown yet.
    Coming,
    /// Its Job.
    Job,
    /// A pod without a Job.
    Pod,
}

/// Why there is no room for one more worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Full {
    /// Another worker waits to start on the node.
    Node(WorkerId),
    /// As many wait to start as there are nodes for them.
    Cluster(usize),
}

impl Jobs {
    /// A Job came or changed.
    pub fn put_job(&mut self, job: WorkerJob) {
        self.dirty = true;
        self.ordered.remove(&job.worker);
        if let Some(known) = self.jobs.get_mut(&job.worker).filter(|entry| entry.job.uid == job.uid) {
            known.job = job;
            return;
        }
        let mut entry = Entry::new(job);
        for (key, pod) in self.pods.get(&entry.job.worker).into_iter().flatten() {
            entry.saw(key, pod);
        }
        self.jobs.insert(entry.job.worker, entry);
    }

    /// A Job is gone.
    pub fn remove_job(&mut self, job: &WorkerJob) {
        if self.jobs.get(&job.worker).is_some_and(|entry| entry.job.uid == job.uid) {
            self.jobs.remove(&job.worker);
            self.dirty = true;
        }
    }

    /// The Jobs are these and no others.
    pub fn replace_jobs(&mut self, jobs: Vec<WorkerJob>) {
        let mut before = std::mem::take(&mut self.jobs);
        for job in jobs {
            if let Some(entry) = before.remove(&job.worker) {
                self.jobs.insert(job.worker, entry);
            }
            self.put_job(job);
        }
        self.dirty = true;
    }

    /// A pod of a worker came or changed.
    pub fn put_pod(&mut self, key: &str, pod: OwnPod) {
        let pods = self.pods.entry(pod.worker).or_default();
        if pods.get(key) == Some(&pod) {
            return;
        }
        self.dirty = true;
        if let Some(entry) = self.jobs.get_mut(&pod.worker) {
            entry.saw(key, &pod);
        }
        self.owners.insert(Box::from(key), pod.worker);
        pods.insert(Box::from(key), pod);
    }

    /// A pod is gone.
    pub fn remove_pod(&mut self, key: &str) {
        let Some(worker) = self.owners.remove(key) else { return };
        self.dirty = true;
        if let Some(pods) = self.pods.get_mut(&worker) {
            pods.remove(key);
            if pods.is_empty() {
                self.pods.remove(&worker);
            }
        }
    }

    /// The workers' pods are these and no others.
    pub fn replace_pods(&mut self, pods: Vec<(Box<str>, OwnPod)>) {
        self.dirty = true;
        self.pods.clear();
        self.owners.clear();
        pods.into_iter().for_each(|(key, pod)| self.put_pod(&key, pod));
    }

    fn pods_of<'a>(&'a self, job: &'a WorkerJob) -> impl Iterator<Item = &'a OwnPod> {
        let pods = self.pods.get(&job.worker).into_iter().flat_map(BTreeMap::values);
        pods.filter(|pod| pod.job == job.uid)
    }

    /// Whether anything that is reported differs from the last time this was asked.
    pub fn settle(&mut self) -> bool {
        if !std::mem::take(&mut self.dirty) {
            return false;
        }
        // Ages change without anything happening.
        let now: Vec<_> = self.wire(0).map(|job| v1::WorkerJob { age_ms: 0, ..job }).collect();
        let changed = now != self.told;
        self.told = now;
        changed
    }

    /// Every Job, at a time in Unix milliseconds by the API server's clock.
    pub fn wire(&self, now_ms: i64) -> impl Iterator<Item = v1::WorkerJob> {
        self.jobs.values().map(move |entry| {
            let (phase, reason) = self.phase(entry);
            v1::WorkerJob {
                worker: entry.job.worker.to_wire(),
                node: entry.job.node.clone(),
                phase: phase.into(),
                reason,
                age_ms: u64::try_from(age_ms(&entry.job, now_ms)).unwrap_or_default(),
                deleting: entry.job.deleting,
            }
        })
    }

    fn phase(&self, entry: &Entry) -> (v1::JobPhase, String) {
        let pods: Vec<&OwnPod> = self.pods_of(&entry.job).collect();
        match entry.job.end {
            Some(End::Succeeded) => return (v1::JobPhase::Succeeded, String::new()),
            Some(End::Failed) => {
                // The pod says more than the Job, while it is there.
                let said = pods.iter().map(|pod| &pod.reason).find(|reason| !reason.is_empty());
                return (v1::JobPhase::Failed, said.unwrap_or(&entry.job.reason).clone());
            }
            None => {}
        }
        if entry.replaced {
            return (v1::JobPhase::Failed, Doom::Replaced.to_string());
        }
        if pods.iter().any(|pod| pod.started && pod.end.is_none()) {
            return (v1::JobPhase::Running, String::new());
        }
        if let Some(pod) = pods.iter().find(|pod| pod.end.is_none()) {
            return (v1::JobPhase::Pending, pod.reason.clone());
        }
        match pods.iter().find_map(|pod| Some((pod.end?, &pod.reason))) {
            Some((End::Succeeded, _)) => (v1::JobPhase::Succeeded, String::new()),
            Some((End::Failed, reason)) => (v1::JobPhase::Failed, reason.clone()),
            None if entry.started => (v1::JobPhase::Failed, "its pod is gone".to_owned()),
            None => (v1::JobPhase::Pending, String::new()),
        }
    }

    /// Whether a Job of this worker is known, or on its way.
    #[must_use]
    pub fn knows(&self, worker: WorkerId) -> bool {
        self.jobs.contains_key(&worker) || self.ordered.contains_key(&worker)
    }

    /// Takes room for a new worker, until the watch shows its Job.
    ///
    /// # Errors
    /// When there is none.
    pub fn order(&mut self, worker: WorkerId, node: &str, nodes_ready: usize) -> Result<(), Full> {
        // The same order again: creating its Job again changes nothing.
        if let Some(ordered) = self.ordered.get_mut(&worker) {
            ordered.under_way += 1;
            return Ok(());
        }
        if self.jobs.contains_key(&worker) {
            return Ok(());
        }
        let pending = self.pending();
        if let Some(other) = pending.iter().find(|(_, at)| at == &node) {
            return Err(Full::Node(other.0));
        }
        if pending.len() >= nodes_ready {
            return Err(Full::Cluster(pending.len()));
        }
        self.ordered.insert(worker, Ordered { node: node.to_owned(), under_way: 1, answered: None });
        Ok(())
    }

    /// A request to create a Job is over, and the Job is there or may still
    /// come until `settled`.
    pub fn answered(&mut self, worker: WorkerId, settled: Instant) {
        if let Some(ordered) = self.ordered.get_mut(&worker) {
            ordered.under_way = ordered.under_way.saturating_sub(1);
            ordered.answered = ordered.answered.max(Some(settled));
        }
    }

    /// A request to create a Job is over and has not created it.
    pub fn refused(&mut self, worker: WorkerId) {
        let Some(ordered) = self.ordered.get_mut(&worker) else { return };
        ordered.under_way = ordered.under_way.saturating_sub(1);
        if ordered.under_way == 0 && ordered.answered.is_none() {
            self.ordered.remove(&worker);
        }
    }

    /// The API server has no Job of this worker at `now`, unless one is being created.
    pub fn missing(&mut self, worker: WorkerId, now: Instant) {
        let over = |o: &Ordered| o.under_way == 0 && o.answered.is_none_or(|at| at <= now);
        if self.ordered.get(&worker).is_some_and(over) {
            self.ordered.remove(&worker);
        }
    }

    /// Forgets what was ordered and is not there: the API server has since
    /// proved at `proved` which Jobs there are.
    pub fn forget_ordered(&mut self, proved: Instant) {
        let shown = |at: Instant| proved >= at + SHOWN_WITHIN;
        self.ordered.retain(|_, o| o.under_way > 0 || !o.answered.is_some_and(shown));
    }

    /// What is still there of a worker; none when it is gone for certain.
    #[must_use]
    pub fn left(&self, worker: WorkerId) -> Option<Left> {
        if self.jobs.contains_key(&worker) {
            Some(Left::Job)
        } else if self.ordered.contains_key(&worker) {
            Some(Left::Coming)
        } else {
            self.pods.contains_key(&worker).then_some(Left::Pod)
        }
    }

    /// The workers that wait to start, and where. One that is being deleted
    /// counts until it is gone.
    fn pending(&self) -> Vec<(WorkerId, &str)> {
        let waits = |entry: &&Entry| {
            self.phase(entry).0 == v1::JobPhase::Pending || self.pods_of(&entry.job).any(OwnPod::waits)
        };
        let jobs = self.jobs.values().filter(waits).map(|e| (e.job.worker, e.job.node.as_str()));
        let ordered = self.ordered.iter().filter(|(worker, _)| !self.jobs.contains_key(worker));
        let ordered = ordered.map(|(worker, ordered)| (*worker, ordered.node.as_str()));
        // Pods whose Job is gone or not shown yet.
        let pods = self.pods.values().flat_map(BTreeMap::values).filter(|pod| pod.waits());
        let pods = pods.filter(|pod| !self.knows(pod.worker)).map(|pod| (pod.worker, pod.node.as_str()));
        jobs.chain(ordered).chain(pods).collect()
    }

    /// The Jobs to remove, at a time in Unix milliseconds by the API server's
    /// clock: those whose pod has not started in time, and those whose pod was
    /// replaced.
    #[must_use]
    pub fn doomed(&self, now_ms: i64) -> Vec<Doomed> {
        let late = i64::try_from(START_WITHIN.as_millis()).unwrap_or(i64::MAX);
        let doom = |entry: &Entry| {
            if entry.job.deleting || entry.job.end.is_some() {
                None
            } else if entry.replaced {
                Some(Doom::Replaced)
            } else {
                let waits = !entry.started && self.phase(entry).0 == v1::JobPhase::Pending;
                (waits && age_ms(&entry.job, now_ms) >= late).then_some(Doom::Overdue)
            }
        };
        let doomed = |entry: &Entry| {
            let why = doom(entry)?;
            Some(Doomed {
                worker: entry.job.worker,
                uid: entry.job.uid.clone(),
                // A pod that starts after all changes its Job.
                version: (why == Doom::Overdue).then(|| entry.job.version.clone()),
                why,
            })
        };
        self.jobs.values().filter_map(doomed).collect()
    }
}

fn age_ms(job: &WorkerJob, now_ms: i64) -> i64 {
    now_ms.saturating_sub(job.created_ms)
}

#[cfg(test)]
mod tests;
