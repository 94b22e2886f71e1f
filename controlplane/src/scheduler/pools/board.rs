//! The board that a pass is played on: what every pool and node can take now,
//! and which workers are coming. [`super::plan`] moves tasks over it one by one,
//! [`super::why`] reads off it what stands in a task's way, so both always
//! agree. It lives for one pass and never looks outside what it was given.

use std::collections::{HashMap, HashSet};

use levers9_wire::{ClusterId, TaskId, WorkspaceId};

use super::types::{
    Held, Limits, Node, Picture, Pool, PoolWorker, Situation, Stage, Withheld, for_jobs, for_pod,
    guard_allows,
};
use crate::scheduler::core::{Amounts, Waiting};

/// Why a whole pool takes nobody, whatever is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shut {
    Away,
    Paused,
    NeverReported,
    Stale,
}

/// Why a pool takes nobody for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// As many are pending as it has nodes that count.
    Ceiling,
    /// [`Limits::guard_pending`].
    GuardPending,
    /// [`Limits::guard_per_minute`].
    GuardMinute,
}

/// Why a node takes nobody, whatever is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed<'a> {
    Withheld(Withheld),
    Resting(&'a str, tokio::time::Instant),
    /// A worker is pending there, whoever it is for.
    Pending,
    NoPodSlot,
    NoFreeCard,
}

/// Why a node cannot take one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Misfit {
    LabelContradicts,
    SharedCards,
    /// It never could, were it empty.
    TooSmall,
    /// What it would take is taken.
    Taken,
}

/// A pool on the board.
#[derive(Debug, Clone)]
pub(super) struct Ground<'a> {
    pub(super) pool: &'a Pool,
    pub(super) shut: Option<Shut>,
    /// Its workers that have not come yet, on record or not.
    pub(super) pending: usize,
    /// Its nodes on which one may be pending.
    pub(super) nodes: usize,
    /// Ordered within the last minute.
    pub(super) minute: usize,
}

impl Ground<'_> {
    /// What keeps it from taking one more worker just now.
    pub(super) fn hold(&self, limits: &Limits) -> Option<Hold> {
        if self.pending >= self.nodes {
            Some(Hold::Ceiling)
        } else if !guard_allows(limits.guard_pending, self.pending) {
            Some(Hold::GuardPending)
        } else if !guard_allows(limits.guard_per_minute, self.minute) {
            Some(Hold::GuardMinute)
        } else {
            None
        }
    }
}

/// A node on the board. Pools that are shut have none.
#[derive(Debug, Clone)]
pub(super) struct Site<'a> {
    pub(super) ground: usize,
    pub(super) node: &'a Node,
    /// What is free less what our workers take that the picture lacks.
    pub(super) left: Held,
    pub(super) closed: Option<Closed<'a>>,
}

impl Site<'_> {
    /// Whether the task could start there now, the node being open.
    pub(super) fn fit(&self, pool: &Pool, task: &Waiting) -> Result<(), Misfit> {
        let (node, need) = (self.node, &task.need);
        if need.gpus > 0 && node.allocatable.cards > 0 {
            if !node.label_allows(&pool.gpu_type, &task.gpu_type) {
                return Err(Misfit::LabelContradicts);
            }
            if need.gpus > 1 && node.shared_cards {
                return Err(Misfit::SharedCards);
            }
        }
        if !node.allocatable.for_jobs().covers(need) {
            return Err(Misfit::TooSmall);
        }
        if self.left.for_jobs().covers(need) { Ok(()) } else { Err(Misfit::Taken) }
    }

    /// Work without cards on a node with cards: such a worker takes no more
    /// than it is started for.
    const fn spares_cards(&self, task: &Waiting) -> bool {
        task.need.gpus == 0 && self.node.allocatable.cards > 0
    }

    /// What the pod of a worker takes that is started here for the task.
    fn size(&self, task: &Waiting) -> Amounts {
        if self.spares_cards(task) {
            return for_pod(&task.need);
        }
        let whole = Amounts {
            cpu_millis: self.left.cpu_millis,
            memory_bytes: self.left.memory_bytes,
            gpus: self.left.cards,
        };
        if !self.node.shared_cards || task.need.gpus == 0 {
            return whole;
        }
        // One slot, for two may be the same card, and an even part of the rest.
        let (least, slots) = (for_pod(&task.need), u64::from(self.left.cards.max(1)));
        Amounts {
            cpu_millis: least.cpu_millis.max(whole.cpu_millis / slots),
            memory_bytes: least.memory_bytes.max(whole.memory_bytes / slots),
            gpus: 1,
        }
    }
}

/// A worker that is to be ordered in this pass.
#[derive(Debug, Clone)]
pub(super) struct Started {
    pub(super) site: usize,
    pub(super) amounts: Amounts,
    pub(super) task: TaskId,
    /// It may still be ordered larger.
    grows: bool,
}

/// A worker that is coming.
#[derive(Debug, Clone)]
pub(super) struct Coming<'a> {
    pub(super) ground: usize,
    pub(super) node: &'a str,
    /// Set by the first task that counts on it.
    pub(super) scope: Option<WorkspaceId>,
    pub(super) gpu_type: String,
    /// What it will have for jobs that nobody counts on yet.
    left: Amounts,
    pub(super) started: Option<Started>,
}

/// What became of a task in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It counts on this one of [`Board::coming`].
    Promised(usize),
    /// Nothing can be done for it now.
    Waits,
}

/// What makes two tasks equal to a pass.
type Shape<'a> = (WorkspaceId, &'a Option<String>, &'a str, (u64, u64, u32));

#[derive(Debug, Clone)]
pub(super) struct Board<'a> {
    limits: &'a Limits,
    pub(super) grounds: Vec<Ground<'a>>,
    pub(super) sites: Vec<Site<'a>>,
    pub(super) coming: Vec<Coming<'a>>,
    /// Shapes that found no room: within a pass room only shrinks.
    hopeless: HashSet<Shape<'a>>,
}

impl<'a> Board<'a> {
    pub(super) fn new(with: &Situation<'a>) -> Self {
        let mut board = Self {
            limits: with.limits,
            grounds: with.pools.iter().map(|pool| ground(pool, with)).collect(),
            sites: Vec::new(),
            coming: Vec::new(),
            hopeless: HashSet::new(),
        };
        for index in 0..board.grounds.len() {
            board.lay_out(index, with);
        }
        board.put_workers(with);
        for site in &mut board.sites {
            site.closed = site.closed.or_else(|| full(site));
        }
        board
    }

    /// Puts a pool's nodes on the board.
    fn lay_out(&mut self, index: usize, with: &Situation<'a>) {
        let ground = &mut self.grounds[index];
        let pool = ground.pool;
        let Some(picture) = &pool.report else { return };
        let mut names = HashSet::new();
        let nodes: Vec<_> = picture.nodes.iter().filter(|n| names.insert(n.name.as_str())).collect();
        ground.nodes = nodes.iter().filter(|node| node.withheld.is_none_or(Withheld::counts)).count();
        if ground.shut.is_some() {
            return;
        }
        let resting: HashMap<&str, _> = pool
            .resting
            .iter()
            .filter(|(_, until, _)| with.now < *until)
            .map(|(node, until, why)| (node.as_str(), Closed::Resting(why, *until)))
            .collect();
        let strangers: HashSet<&str> = picture.strangers.iter().map(String::as_str).collect();
        for node in nodes {
            let name = node.name.as_str();
            let closed = node
                .withheld
                .map(Closed::Withheld)
                .or_else(|| strangers.contains(name).then_some(Closed::Pending))
                .or_else(|| resting.get(name).copied());
            self.sites.push(Site { ground: index, node, left: node.free.at_most(node.allocatable), closed });
        }
    }

    /// Counts the workers on record: where they are, and what they will take.
    fn put_workers(&mut self, with: &Situation<'a>) {
        let grounds: HashMap<ClusterId, usize> =
            self.grounds.iter().enumerate().map(|(index, ground)| (ground.pool.id, index)).collect();
        let sites: HashMap<(usize, &str), usize> =
            self.sites.iter().enumerate().map(|(at, s)| ((s.ground, s.node.name.as_str()), at)).collect();
        let mut coming: Vec<&PoolWorker> = Vec::new();
        for worker in with.workers {
            let Some(&ground) = grounds.get(&worker.pool) else { continue };
            let site = sites.get(&(ground, worker.node.as_str())).map(|at| &mut self.sites[*at]);
            let pending = worker.stage == Stage::Pending;
            if let Some(site) = site {
                if !worker.in_report {
                    site.left = site.left.less(&worker.amounts);
                }
                if pending && !matches!(site.closed, Some(Closed::Withheld(reason)) if !reason.is_full()) {
                    site.closed = Some(Closed::Pending);
                }
            }
            if pending {
                self.grounds[ground].pending += 1;
                if with.now.saturating_duration_since(worker.ordered) < with.limits.late {
                    coming.push(worker);
                }
            }
        }
        // First come, first counted on: the next pass then finds every task
        // where this one left it, and orders nothing for it again.
        coming.sort_by_key(|worker| worker.ordered);
        self.coming.extend(coming.into_iter().map(|worker| Coming {
            ground: grounds[&worker.pool],
            node: &worker.node,
            scope: worker.scope,
            gpu_type: worker.gpu_type.clone(),
            left: for_jobs(&worker.amounts),
            started: None,
        }));
    }

    /// Finds the task a worker: one that is coming, or a new one.
    pub(super) fn serve(&mut self, task: &'a Waiting) -> Outcome {
        let need = (task.need.cpu_millis, task.need.memory_bytes, task.need.gpus);
        let shape = (task.workspace, &task.pool, task.gpu_type.as_str(), need);
        if self.hopeless.contains(&shape) {
            return Outcome::Waits;
        }
        if let Some(index) = self.promise(task) {
            return Outcome::Promised(index);
        }
        let best = self.best_site(task);
        // What spares cards becomes larger rather than more.
        let spares = best.is_none_or(|at| self.sites[at].spares_cards(task));
        if spares && let Some(index) = self.grow(task) {
            return Outcome::Promised(index);
        }
        if let Some(at) = best {
            return Outcome::Promised(self.start(at, task));
        }
        self.hopeless.insert(shape);
        Outcome::Waits
    }

    /// Lets the task count on the first coming worker that will have room.
    fn promise(&mut self, task: &Waiting) -> Option<usize> {
        let index =
            self.coming.iter().position(|c| self.may_count_on(c, task) && c.left.covers(&task.need))?;
        let coming = &mut self.coming[index];
        coming.left.take(&task.need);
        coming.scope = Some(task.workspace);
        Some(index)
    }

    fn may_count_on(&self, coming: &Coming<'_>, task: &Waiting) -> bool {
        self.grounds[coming.ground].pool.serves(task)
            && coming.scope.is_none_or(|only| only == task.workspace)
            && (task.need.gpus == 0 || coming.gpu_type == task.gpu_type)
    }

    /// The open node with room where the task had best start.
    fn best_site(&self, task: &Waiting) -> Option<usize> {
        let open: Vec<bool> = self.grounds.iter().map(|ground| self.is_open(ground, task)).collect();
        let able = |site: &Site<'_>| {
            open[site.ground]
                && site.closed.is_none()
                && site.fit(self.grounds[site.ground].pool, task).is_ok()
        };
        let sites = self.sites.iter().enumerate().filter(|(_, site)| able(site));
        sites.min_by_key(|(_, site)| self.rank(site, task)).map(|(at, _)| at)
    }

    fn is_open(&self, ground: &Ground<'_>, task: &Waiting) -> bool {
        ground.shut.is_none()
            && ground.pool.serves(task)
            && ground.pool.has_cards_for(task)
            && ground.hold(self.limits).is_none()
    }

    /// Lower is better: the workspace's own pools, nodes without cards for work
    /// without, the fewest cards left over, for work without cards the least
    /// CPU, names.
    fn rank(&self, site: &Site<'a>, task: &Waiting) -> (bool, bool, u32, u64, &'a str, &'a str) {
        let pool = self.grounds[site.ground].pool;
        let cpu = if task.need.gpus == 0 { site.left.cpu_millis } else { 0 };
        (
            pool.owner != task.workspace,
            site.spares_cards(task),
            site.left.cards.saturating_sub(task.need.gpus),
            cpu,
            &pool.name,
            &site.node.name,
        )
    }

    /// Makes a worker of this pass that spares its node's cards larger.
    fn grow(&mut self, task: &Waiting) -> Option<usize> {
        if task.need.gpus > 0 {
            return None;
        }
        let index = self.coming.iter().position(|coming| {
            let room = |started: &Started| {
                let left = &self.sites[started.site].left;
                let left = Amounts { cpu_millis: left.cpu_millis, memory_bytes: left.memory_bytes, gpus: 0 };
                started.grows && left.covers(&task.need)
            };
            coming.started.as_ref().is_some_and(room) && self.may_count_on(coming, task)
        })?;
        let started = self.coming[index].started.as_mut()?;
        started.amounts.cpu_millis += task.need.cpu_millis;
        started.amounts.memory_bytes += task.need.memory_bytes;
        let left = &mut self.sites[started.site].left;
        left.cpu_millis -= task.need.cpu_millis;
        left.memory_bytes -= task.need.memory_bytes;
        Some(index)
    }

    /// Starts a worker for the task; the node and the pool are found open.
    fn start(&mut self, at: usize, task: &Waiting) -> usize {
        let site = &mut self.sites[at];
        let (amounts, grows) = (site.size(task), site.spares_cards(task));
        site.left = site.left.less(&amounts);
        site.closed = Some(Closed::Pending);
        let ground = &mut self.grounds[site.ground];
        ground.pending += 1;
        ground.minute += 1;
        let mut left = for_jobs(&amounts);
        left.take(&task.need);
        self.coming.push(Coming {
            ground: site.ground,
            node: &site.node.name,
            // One workspace for each worker, as the `process` runtime needs it.
            scope: Some(task.workspace),
            gpu_type: if amounts.gpus > 0 { task.gpu_type.clone() } else { String::new() },
            left,
            started: Some(Started { site: at, amounts, task: task.task, grows }),
        });
        self.coming.len() - 1
    }
}

/// A pool as it is before its workers are counted.
fn ground<'a>(pool: &'a Pool, with: &Situation<'a>) -> Ground<'a> {
    let stale = |picture: &Picture| with.now.saturating_duration_since(picture.taken) >= with.limits.stale;
    let shut = if !pool.connected {
        Some(Shut::Away)
    } else if pool.paused {
        Some(Shut::Paused)
    } else {
        match &pool.report {
            None => Some(Shut::NeverReported),
            Some(picture) if stale(picture) => Some(Shut::Stale),
            Some(_) => None,
        }
    };
    Ground {
        pool,
        shut,
        pending: pool.report.as_ref().map_or(0, |picture| picture.strangers.len()),
        nodes: 0,
        minute: with.recent.within_a_minute(pool.id, with.now).count(),
    }
}

/// Why nobody fits on a node as it is with our workers counted. One that has
/// cards and none free is offered for nothing.
fn full<'a>(site: &Site<'_>) -> Option<Closed<'a>> {
    if site.left.pods == 0 {
        Some(Closed::NoPodSlot)
    } else if site.node.allocatable.cards > 0 && site.left.cards == 0 {
        Some(Closed::NoFreeCard)
    } else {
        None
    }
}
