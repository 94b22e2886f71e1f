//! A small world for property tests: clusters whose nodes have neighbours,
//! agents that report late, never, or what was true long ago, workers that come
//! slowly, fail or never come, and a controlplane that forgets. Time is plain
//! arithmetic; one `tick` is one pass of the scheduler.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use levers9_wire::{ClusterId, TaskId, WorkerId, WorkspaceId};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use super::tests::workspace;
use super::types::{for_jobs, guard_allows};
use super::*;
use crate::scheduler::core::{self, Amounts, Candidate, Waiting};

pub(super) const GI: u64 = 1 << 30;
/// A Job whose pod has not started is removed by its agent then.
const REMOVED: Duration = Duration::from_secs(20 * 60);
/// The controlplane gives a worker up then, whatever its agent says.
const GIVEN_UP: Duration = Duration::from_secs(25 * 60);
const SETTLED: Duration = Duration::from_secs(3);

/// A real node.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) all: Held,
    pub(super) neighbours: Vec<Held>,
    pub(super) ready: bool,
    pub(super) cordoned: bool,
    pub(super) label: String,
    pub(super) shared_cards: bool,
}

/// How a worker's pod does once it is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Comes(Duration),
    Fails(Duration),
    NeverComes,
}

/// A real worker Job.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) worker: WorkerId,
    pub(super) node: String,
    amounts: Amounts,
    fate: Fate,
    created: Instant,
    bound: Option<Instant>,
    pub(super) running: bool,
    failed: bool,
    deleted: Option<Instant>,
    refused: Option<Instant>,
    /// Whether it ever had a task.
    pub(super) used: bool,
}

impl Job {
    /// Its pod takes room.
    fn holds(&self) -> bool {
        self.bound.is_some() && !self.failed
    }

    pub(super) fn pending(&self) -> bool {
        !self.running && !self.failed && self.deleted.is_none()
    }

    /// It is there or coming, and nobody has ordered its end.
    pub(super) fn stays(&self) -> bool {
        !self.failed && self.deleted.is_none()
    }
}

#[derive(Debug, Clone)]
struct Report {
    picture: Picture,
    /// Every Job: whether it is bound, whether it has failed.
    jobs: HashMap<WorkerId, (bool, bool)>,
}

#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) pool: Pool,
    pub(super) machines: Vec<Machine>,
    pub(super) jobs: Vec<Job>,
    /// Reports get lost on their way.
    pub(super) lost: bool,
    /// The agent goes on sending what it last knew.
    pub(super) deaf: bool,
    pub(super) delay: Duration,
    last: Option<Report>,
    under_way: VecDeque<(Instant, Report)>,
    view: Option<Report>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waits,
    On(WorkerId, Instant),
    Done,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) waiting: Waiting,
    pub(super) state: State,
    pub(super) length: Duration,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) rng: StdRng,
    pub(super) now: Instant,
    pub(super) clusters: Vec<Cluster>,
    pub(super) records: Vec<PoolWorker>,
    pub(super) tasks: Vec<Task>,
    pub(super) limits: Limits,
    pub(super) recent: Recent,
    pub(super) fate: Fate,
    /// Reports call everything free and know of no pod.
    pub(super) lies: bool,
    /// How many records were lost for a node.
    pub(super) lost_records: HashMap<(ClusterId, String), usize>,
    pub(super) started: usize,
    last_report: Instant,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let now = Instant::now();
        let clusters = (0..rng.random_range(1..4u8)).map(|n| Cluster::random(n, &mut rng)).collect();
        Self {
            rng,
            now,
            clusters,
            records: Vec::new(),
            tasks: Vec::new(),
            limits: Limits::default(),
            recent: Recent::default(),
            fate: Fate::Comes(Duration::from_secs(20)),
            lies: false,
            lost_records: HashMap::new(),
            started: 0,
            last_report: now,
        }
    }

    pub(super) fn submit(&mut self, owner: WorkspaceId, need: Amounts, gpu_type: &str, length: Duration) {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(self.tasks.len() as u64 + 1).to_be_bytes());
        let waiting = Waiting {
            task: TaskId::from_bytes(id),
            workspace: owner,
            need,
            gpu_type: gpu_type.into(),
            pool: None,
        };
        self.tasks.push(Task { waiting, state: State::Waits, length });
    }

    /// One pass of everything, `step` after the last.
    pub(super) fn tick(&mut self, step: Duration) -> Result<(), TestCaseError> {
        self.now += step;
        self.run_clusters();
        self.run_reports();
        self.tend();
        self.end_tasks();
        self.place();
        self.order()?;
        self.check_nodes()
    }

    fn run_clusters(&mut self) {
        let now = self.now;
        let known: HashSet<WorkerId> = self.records.iter().map(|w| w.id).collect();
        for cluster in &mut self.clusters {
            for at in 0..cluster.jobs.len() {
                let job = cluster.jobs[at].clone();
                if job.bound.is_none() && job.deleted.is_none() && cluster.has_room(&job) {
                    cluster.jobs[at].bound = Some(now);
                }
                let job = &mut cluster.jobs[at];
                let Some(bound) = job.bound else { continue };
                let age = now - bound;
                match job.fate {
                    Fate::Comes(after) if age >= after && !job.failed => job.running = true,
                    Fate::Fails(after) if age >= after => job.failed = true,
                    _ => {}
                }
                // A worker that nobody knows is refused, tries again, and ends.
                if job.running && !known.contains(&job.worker) {
                    let since = *job.refused.get_or_insert(now);
                    job.deleted = job.deleted.or((now - since >= Duration::from_secs(60)).then_some(now));
                }
            }
            for job in &mut cluster.jobs {
                if job.pending() && now - job.created >= REMOVED {
                    job.deleted = Some(now);
                }
            }
            cluster.jobs.retain(|job| job.deleted.is_none_or(|at| now - at < Duration::from_secs(5)));
        }
    }

    fn run_reports(&mut self) {
        let now = self.now;
        let due = now - self.last_report >= Duration::from_secs(10);
        if due {
            self.last_report = now;
        }
        let known: HashSet<WorkerId> = self.records.iter().map(|w| w.id).collect();
        for cluster in &mut self.clusters {
            if due && cluster.pool.connected {
                let fresh = cluster.report(now, self.lies);
                let report = match (&cluster.last, cluster.deaf) {
                    (Some(last), true) => last.clone(),
                    _ => fresh,
                };
                cluster.last = Some(report.clone());
                if !cluster.lost {
                    cluster.under_way.push_back((now + cluster.delay, report));
                }
            }
            while let Some((_, report)) = cluster.under_way.pop_front_if(|(at, _)| *at <= now) {
                let newer = |seen: &Report| seen.picture.taken < report.picture.taken;
                if cluster.view.as_ref().is_none_or(newer) {
                    cluster.view = Some(report);
                }
            }
            let mut picture = cluster.view.as_ref().map(|view| view.picture.clone());
            if let (Some(picture), Some(view)) = (&mut picture, &cluster.view) {
                // What the shell does with the Jobs of a report.
                let strange =
                    |job: &&Job| view.jobs.contains_key(&job.worker) && !known.contains(&job.worker);
                let strange = cluster.jobs.iter().filter(|job| job.pending()).filter(strange);
                picture.strangers = strange.map(|job| job.node.clone()).collect();
            }
            cluster.pool.report = picture;
        }
    }

    /// What the shell does about each worker on record.
    fn tend(&mut self) {
        let now = self.now;
        let mut lost = Vec::new();
        for worker in &mut self.records {
            let Some(cluster) = self.clusters.iter_mut().find(|c| c.pool.id == worker.pool) else { continue };
            let real = cluster.jobs.iter_mut().find(|job| job.worker == worker.id);
            let view = cluster.view.as_ref();
            let shown = view.and_then(|view| view.jobs.get(&worker.id).copied());
            let settled = view.is_some_and(|view| view.picture.taken >= worker.ordered + SETTLED);
            worker.in_report = shown.is_some_and(|(bound, _)| bound) && !self.lies;
            let alive = real.as_ref().is_some_and(|job| job.running);
            match worker.stage {
                Stage::Pending if alive => {
                    worker.stage = Stage::Running;
                    worker.idle_since = Some(now);
                }
                Stage::Pending => {
                    let gone = settled && (shown.is_none() || shown.is_some_and(|(_, failed)| failed));
                    if gone || now - worker.ordered >= GIVEN_UP {
                        let until = now + Duration::from_secs(30);
                        cluster.pool.resting.push((worker.node.clone(), until, "it failed".into()));
                        worker.stage = Stage::Stopping;
                    }
                }
                Stage::Running if !alive && settled && shown.is_none() => lost.push(worker.id),
                Stage::Running => {}
                Stage::Stopping => match real {
                    Some(job) if cluster.pool.connected => job.deleted = job.deleted.or(Some(now)),
                    Some(_) => {}
                    None if settled && shown.is_none() => lost.push(worker.id),
                    None => {}
                },
            }
        }
        self.records.retain(|worker| !lost.contains(&worker.id));
        for task in &mut self.tasks {
            if matches!(task.state, State::On(on, _) if !self.records.iter().any(|w| w.id == on)) {
                task.state = State::Waits;
            }
        }
    }

    fn end_tasks(&mut self) {
        for task in &mut self.tasks {
            if matches!(task.state, State::On(_, since) if self.now - since >= task.length) {
                task.state = State::Done;
            }
        }
        for worker in &mut self.records {
            let busy = self.tasks.iter().any(|t| matches!(t.state, State::On(on, _) if on == worker.id));
            worker.idle_since = match (busy, worker.stage) {
                (false, Stage::Running) => worker.idle_since.or(Some(self.now)),
                _ => None,
            };
        }
    }

    /// The candidates as the placing core is given them.
    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |worker: &PoolWorker| {
            let cluster = self.clusters.iter().find(|c| c.pool.id == worker.pool)?;
            let total = for_jobs(&worker.amounts);
            let mut free = total;
            for task in &self.tasks {
                if matches!(task.state, State::On(on, _) if on == worker.id) {
                    free.take(&task.waiting.need);
                }
            }
            let alive =
                cluster.jobs.iter().any(|j| j.worker == worker.id && j.running && j.deleted.is_none());
            // With sharing off its workers get no more of others' tasks.
            let allowed = worker.scope.is_none_or(|scope| cluster.pool.visible_to(scope));
            Some(Candidate {
                id: worker.id,
                pool: cluster.pool.name.clone(),
                workspace: worker.scope,
                gpu_type: worker.gpu_type.clone(),
                total,
                free,
                ready: alive && allowed && worker.stage == Stage::Running,
            })
        };
        self.records.iter().filter_map(candidate).collect()
    }

    fn place(&mut self) {
        let mut candidates = self.candidates();
        for (task, worker) in core::place(&mut candidates, &self.waiting()) {
            for placed in self.tasks.iter_mut().filter(|t| t.waiting.task == task) {
                placed.state = State::On(worker, self.now);
            }
            for record in self.records.iter_mut().filter(|w| w.id == worker) {
                record.idle_since = None;
            }
            for job in self.clusters.iter_mut().flat_map(|c| &mut c.jobs).filter(|j| j.worker == worker) {
                job.used = true;
            }
        }
    }

    fn waiting(&self) -> Vec<Waiting> {
        self.tasks.iter().filter(|t| t.state == State::Waits).map(|t| t.waiting.clone()).collect()
    }

    fn order(&mut self) -> Result<(), TestCaseError> {
        let waiting = self.waiting();
        let pools: Vec<Pool> = self.clusters.iter().map(|c| c.pool.clone()).collect();
        let with = Situation {
            now: self.now,
            pools: &pools,
            workers: &self.records,
            recent: &self.recent,
            waiting: &waiting,
            limits: &self.limits,
        };
        let steps = plan(&with);
        check(&with, &steps)?;
        for step in steps {
            match step {
                Step::Stop { worker, .. } => {
                    for record in self.records.iter_mut().filter(|w| w.id == worker) {
                        record.stage = Stage::Stopping;
                        record.ordered = self.now;
                    }
                }
                Step::Start { pool, node, amounts, gpu_type, scope, .. } => {
                    self.start(pool, node, amounts, gpu_type, scope)?;
                }
            }
        }
        Ok(())
    }

    fn start(
        &mut self,
        pool: ClusterId,
        node: String,
        amounts: Amounts,
        gpu_type: String,
        scope: Option<WorkspaceId>,
    ) -> Result<(), TestCaseError> {
        self.started += 1;
        self.recent.note(pool, self.now);
        let id = WorkerId::new(0, &mut self.rng);
        let fate = self.fate;
        let now = self.now;
        let Some(cluster) = self.clusters.iter_mut().find(|c| c.pool.id == pool) else {
            return Err(TestCaseError::fail("a worker in no cluster"));
        };
        cluster.jobs.push(Job {
            worker: id,
            node: node.clone(),
            amounts,
            fate,
            created: now,
            bound: None,
            running: false,
            failed: false,
            deleted: None,
            refused: None,
            used: false,
        });
        self.records.push(PoolWorker {
            id,
            pool,
            node,
            stage: Stage::Pending,
            amounts,
            gpu_type,
            scope,
            in_report: false,
            idle_since: None,
            ordered: now,
            held_up: String::new(),
        });
        Ok(())
    }

    /// Really pending on a node: one, and one more for each record that was lost.
    fn check_nodes(&self) -> Result<(), TestCaseError> {
        for cluster in &self.clusters {
            let mut pending: HashMap<&str, usize> = HashMap::new();
            for job in cluster.jobs.iter().filter(|job| job.pending()) {
                *pending.entry(&job.node).or_default() += 1;
            }
            for (node, count) in pending {
                let lost = self.lost_records.get(&(cluster.pool.id, node.to_owned())).copied().unwrap_or(0);
                prop_assert!(count <= 1 + lost, "{count} workers are pending on {node}");
            }
        }
        Ok(())
    }

    /// Whether a node that is open now could run the task were it rid of workers.
    pub(super) fn has_room_for(&self, task: &Waiting) -> bool {
        let able = |cluster: &Cluster| {
            let open = |m: &&Machine| m.ready && !m.cordoned;
            cluster.pool.serves(task)
                && cluster.pool.has_cards_for(task)
                && cluster.machines.iter().filter(open).any(|machine| machine.could_run(task))
        };
        self.clusters.iter().any(able)
    }
}

impl Machine {
    fn taken_by_others(&self) -> Held {
        self.neighbours.iter().fold(Held::default(), |sum, held| sum.plus(*held))
    }

    fn could_run(&self, task: &Waiting) -> bool {
        let others = self.taken_by_others();
        let left = Held {
            cpu_millis: self.all.cpu_millis.saturating_sub(others.cpu_millis),
            memory_bytes: self.all.memory_bytes.saturating_sub(others.memory_bytes),
            cards: self.all.cards.saturating_sub(others.cards),
            pods: self.all.pods,
        };
        let has = left.for_jobs();
        let names = task.need.gpus == 0 || self.label.is_empty() || self.label == task.gpu_type;
        let enough = has.cpu_millis >= task.need.cpu_millis
            && has.memory_bytes >= task.need.memory_bytes
            && has.gpus >= task.need.gpus;
        names
            && enough
            && !(self.shared_cards && task.need.gpus > 1)
            && (self.all.cards == 0 || left.cards > 0)
    }
}

impl Cluster {
    fn random(n: u8, rng: &mut StdRng) -> Self {
        let machines = (0..rng.random_range(1..4u8))
            .map(|at| {
                let cards = [0, 1, 4, 8][rng.random_range(0..4usize)];
                let cores = rng.random_range(2..17u64);
                Machine {
                    name: format!("c{n}-n{at}"),
                    all: Held { cpu_millis: cores * 1_000, memory_bytes: cores * 2 * GI, cards, pods: 20 },
                    neighbours: Vec::new(),
                    ready: true,
                    cordoned: false,
                    label: ["", "", "T4", "L4"][rng.random_range(0..4usize)].into(),
                    shared_cards: rng.random_range(0..5) == 0,
                }
            })
            .collect();
        Self {
            pool: Pool {
                id: ClusterId::from_bytes([n + 1; 16]),
                name: format!("c{n}"),
                owner: workspace(rng.random_range(1..3)),
                shared: rng.random_range(0..2) == 0,
                gpu_type: ["T4", "T4", "L4"][rng.random_range(0..3usize)].into(),
                connected: true,
                paused: false,
                report: None,
                resting: Vec::new(),
            },
            machines,
            jobs: Vec::new(),
            lost: false,
            deaf: false,
            delay: Duration::ZERO,
            last: None,
            under_way: VecDeque::new(),
            view: None,
        }
    }

    /// What levers9's pods take of a node.
    fn taken_by_us(&self, node: &str) -> Held {
        let here = self.jobs.iter().filter(|job| job.node == node && job.holds());
        here.fold(Held::default(), |sum, job| {
            let a = &job.amounts;
            sum.plus(Held { cpu_millis: a.cpu_millis, memory_bytes: a.memory_bytes, cards: a.gpus, pods: 1 })
        })
    }

    fn free(&self, machine: &Machine) -> Held {
        let taken = self.taken_by_us(&machine.name).plus(machine.taken_by_others());
        Held {
            cpu_millis: machine.all.cpu_millis.saturating_sub(taken.cpu_millis),
            memory_bytes: machine.all.memory_bytes.saturating_sub(taken.memory_bytes),
            cards: machine.all.cards.saturating_sub(taken.cards),
            pods: machine.all.pods.saturating_sub(taken.pods),
        }
    }

    /// As the kube-scheduler would say.
    fn has_room(&self, job: &Job) -> bool {
        let machine = self.machines.iter().find(|m| m.name == job.node && m.ready && !m.cordoned);
        machine.map(|machine| self.free(machine)).is_some_and(|free| {
            free.cpu_millis >= job.amounts.cpu_millis
                && free.memory_bytes >= job.amounts.memory_bytes
                && free.cards >= job.amounts.gpus
                && free.pods > 0
        })
    }

    fn report(&self, now: Instant, lies: bool) -> Report {
        let node = |machine: &Machine| {
            let free = if lies { machine.all } else { self.free(machine) };
            let full = machine.all.cards > 0 && free.cards == 0;
            let withheld = match (machine.ready, machine.cordoned) {
                (false, _) => Some(Withheld::NotReady),
                (_, true) => Some(Withheld::Cordoned),
                _ => full.then_some(Withheld::NoFreeCard),
            };
            Node {
                name: machine.name.clone(),
                withheld,
                allocatable: machine.all,
                free,
                levers9: self.taken_by_us(&machine.name),
                others: machine.taken_by_others(),
                reserved: Held::default(),
                gpu_label: machine.label.clone(),
                shared_cards: machine.shared_cards,
            }
        };
        let nodes = self.machines.iter().map(node).collect();
        Report {
            picture: Picture { taken: now, nodes, strangers: Vec::new() },
            jobs: self.jobs.iter().map(|job| (job.worker, (job.holds(), job.failed))).collect(),
        }
    }

    /// What a start of the controlplane leaves of it.
    pub(super) fn forget(&mut self) {
        self.view = None;
        self.under_way.clear();
        self.pool.report = None;
        self.pool.resting.clear();
    }
}

/// What must hold of the steps of every pass.
pub(super) fn check(with: &Situation<'_>, steps: &[Step]) -> Result<(), TestCaseError> {
    let pending = |worker: &&PoolWorker| worker.stage == Stage::Pending;
    let mut busy: HashSet<(ClusterId, &str)> =
        with.workers.iter().filter(pending).map(|w| (w.pool, w.node.as_str())).collect();
    let mut counts: HashMap<ClusterId, (usize, usize)> = HashMap::new();
    for pool in with.pools {
        let record = with.workers.iter().filter(pending).filter(|w| w.pool == pool.id).count();
        let minute = with.recent.within_a_minute(pool.id, with.now).count();
        counts.insert(pool.id, (record, minute));
    }
    for step in steps {
        let Step::Start { pool, node, amounts, gpu_type, scope, task } = step else { continue };
        let task = with.waiting.iter().find(|w| w.task == *task).unwrap();
        let pool = with.pools.iter().find(|p| p.id == *pool).unwrap();
        prop_assert!(pool.connected && !pool.paused && pool.serves(task) && pool.has_cards_for(task));
        prop_assert_eq!(*scope, Some(task.workspace));
        let picture = pool.report.as_ref().unwrap();
        prop_assert!(with.now - picture.taken < with.limits.stale);
        let site = picture.nodes.iter().find(|n| n.name == *node).unwrap();
        prop_assert!(site.withheld.is_none());
        prop_assert!(!pool.resting.iter().any(|(n, until, _)| n == node && with.now < *until));
        prop_assert!(!picture.strangers.contains(node));
        prop_assert!(busy.insert((pool.id, node)), "a second one is pending on {node}");
        let (record, minute) = counts.get_mut(&pool.id).unwrap();
        let counting = picture.nodes.iter().filter(|n| n.withheld.is_none_or(Withheld::counts)).count();
        prop_assert!(*record + picture.strangers.len() < counting, "more are pending than nodes");
        prop_assert!(guard_allows(with.limits.guard_pending, *record));
        prop_assert!(guard_allows(with.limits.guard_per_minute, *minute));
        *record += 1;
        *minute += 1;
        let own = with.workers.iter().filter(|w| w.pool == pool.id && w.node == *node && !w.in_report);
        let left = own.fold(site.free.at_most(site.allocatable), |left, worker| left.less(&worker.amounts));
        prop_assert!(left.pods > 0 && amounts.gpus <= left.cards);
        prop_assert!(amounts.cpu_millis <= left.cpu_millis && amounts.memory_bytes <= left.memory_bytes);
        let has = for_jobs(amounts);
        prop_assert!(has.cpu_millis >= task.need.cpu_millis && has.memory_bytes >= task.need.memory_bytes);
        prop_assert!(has.gpus >= task.need.gpus);
        prop_assert!(task.need.gpus == 0 || *gpu_type == task.gpu_type);
        prop_assert!(task.need.gpus > 0 || site.allocatable.cards == 0 || amounts.gpus == 0);
        prop_assert!(!site.shared_cards || amounts.gpus <= 1);
    }
    Ok(())
}
