//! What the scheduler of pools is told: clusters with the last picture of
//! their nodes, the workers that were ordered on them, limits. Plain data, made
//! by the shell for each pass from rows, sessions and reports; nothing here
//! decides.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use levers9_wire::limits::WORKER_MEMORY;
use levers9_wire::v1::{NodeAmounts, NodeState, WithheldReason};
use levers9_wire::{ClusterId, WorkerId, WorkspaceId, gpu};
use tokio::time::Instant;

use crate::scheduler::core::{Amounts, Waiting};
/// How far a worker is.
pub use crate::store::PoolWorkerState as Stage;

/// A report that is older stands for nothing any more.
pub const STALE: Duration = Duration::from_secs(90);
/// The span that [`Limits::guard_per_minute`] counts in.
pub const MINUTE: Duration = Duration::from_secs(60);

/// Amounts of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Thousandths of a core.
    pub cpu_millis: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Whole cards; of a node with shared cards, slots.
    pub cards: u32,
    /// Pods.
    pub pods: u32,
}

impl Held {
    /// What is left when one pod takes `amounts`, down to nothing.
    #[must_use]
    pub fn less(self, amounts: &Amounts) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_sub(amounts.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_sub(amounts.memory_bytes),
            cards: self.cards.saturating_sub(amounts.gpus),
            pods: self.pods.saturating_sub(1),
        }
    }

    /// What both are together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            cards: self.cards.saturating_add(other.cards),
            pods: self.pods.saturating_add(other.pods),
        }
    }

    /// The lesser of both, amount by amount.
    pub(super) fn at_most(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.min(other.cpu_millis),
            memory_bytes: self.memory_bytes.min(other.memory_bytes),
            cards: self.cards.min(other.cards),
            pods: self.pods.min(other.pods),
        }
    }

    /// What a worker that takes all of this has for its jobs.
    #[must_use]
    pub fn for_jobs(&self) -> Amounts {
        for_jobs(&Amounts { cpu_millis: self.cpu_millis, memory_bytes: self.memory_bytes, gpus: self.cards })
    }
}

impl From<&NodeAmounts> for Held {
    fn from(amounts: &NodeAmounts) -> Self {
        Self {
            cpu_millis: amounts.cpu_millis,
            memory_bytes: amounts.memory_bytes,
            cards: amounts.cards,
            pods: amounts.pods,
        }
    }
}

/// What a worker whose pod takes `amounts` has for its jobs.
pub(super) fn for_jobs(amounts: &Amounts) -> Amounts {
    Amounts { memory_bytes: amounts.memory_bytes.saturating_sub(WORKER_MEMORY), ..*amounts }
}

/// What the pod of a worker takes that is to have `amounts` for its jobs.
pub(super) fn for_pod(amounts: &Amounts) -> Amounts {
    Amounts { memory_bytes: amounts.memory_bytes.saturating_add(WORKER_MEMORY), ..*amounts }
}

/// Why a node lets no worker in, as its agent says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Withheld {
    /// It is being deleted.
    Deleting,
    /// Its kubelet does not report it ready.
    NotReady,
    /// It is cordoned.
    Cordoned,
    /// It has a taint that workers do not tolerate.
    Tainted,
    /// An amount of it cannot be read, or the agent has a reason of its own.
    Unreadable,
    /// It takes no further pod.
    NoPodSlot,
    /// It has cards and none is free.
    NoFreeCard,
}

impl Withheld {
    /// Reads the field of a report. A reason that this build does not know
    /// withholds the node as well.
    #[must_use]
    pub fn of(wire: i32) -> Option<Self> {
        Some(match WithheldReason::try_from(wire) {
            Ok(WithheldReason::Unspecified) => return None,
            Ok(WithheldReason::Deleting) => Self::Deleting,
            Ok(WithheldReason::NotReady) => Self::NotReady,
            Ok(WithheldReason::Cordoned) => Self::Cordoned,
            Ok(WithheldReason::Tainted) => Self::Tainted,
            Ok(WithheldReason::NoPodSlot) => Self::NoPodSlot,
            Ok(WithheldReason::NoFreeCard) => Self::NoFreeCard,
            Ok(WithheldReason::Unreadable) | Err(_) => Self::Unreadable,
        })
    }

    /// Whether it is only what pods have taken; no defect of the node.
    pub(super) const fn is_full(self) -> bool {
        matches!(self, Self::NoPodSlot | Self::NoFreeCard)
    }

    /// Whether such a node counts as one on which a worker may be pending
    /// (F102): it is Ready and not cordoned.
    #[must_use]
    pub const fn counts(self) -> bool {
        !matches!(self, Self::Deleting | Self::NotReady | Self::Cordoned)
    }
}

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// Its name; one of a kind in its cluster.
    pub name: String,
    /// Why it lets no worker in; `None` when it is offered.
    pub withheld: Option<Withheld>,
    /// All that pods may take; nothing when it cannot be read.
    pub allocatable: Held,
    /// What no pod has taken.
    pub free: Held,
    /// What levers9's pods have taken, of whichever record or of none.
    pub levers9: Held,
    /// What other pods have taken.
    pub others: Held,
    /// What the node keeps back.
    pub reserved: Held,
    /// What its labels call its cards; empty when they say nothing.
    pub gpu_label: String,
    /// Its cards are time-sliced: `cards` counts slots, and no job gets two.
    pub shared_cards: bool,
}

impl From<&NodeState> for Node {
    fn from(node: &NodeState) -> Self {
        let held = |amounts: &Option<NodeAmounts>| amounts.as_ref().map(Held::from).unwrap_or_default();
        Self {
            name: node.name.clone(),
            withheld: Withheld::of(node.withheld),
            allocatable: held(&node.allocatable),
            free: held(&node.free),
            levers9: held(&node.levers9),
            others: held(&node.others),
            reserved: held(&node.reserved),
            gpu_label: node.gpu_label.clone(),
            shared_cards: node.shared_cards,
        }
    }
}

impl Node {
    /// Whether its labels allow that its cards are what the pool and the task
    /// call them. A label contradicts a name, it never makes a card.
    pub(super) fn label_allows(&self, pool: &str, wanted: &str) -> bool {
        let allows = |name: &str| name == self.gpu_label || gpu::fits(name, &self.gpu_label);
        self.gpu_label.is_empty() || (allows(pool) && allows(wanted))
    }
}

/// A cluster's nodes as its agent last reported them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// When the API server proved it: the report's arrival less its age, on
    /// this process's clock.
    pub taken: Instant,
    /// The lent nodes. Of two with one name the first holds.
    pub nodes: Vec<Node>,
    /// For each worker Job in the report that has not started and that no
    /// record names, its node: such a pod is a pending worker too.
    pub strangers: Vec<String>,
}

/// An attached cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Which.
    pub id: ClusterId,
    /// What people call it.
    pub name: String,
    /// The workspace that attached it.
    pub owner: WorkspaceId,
    /// Whether it serves every workspace.
    pub shared: bool,
    /// Its cards' type.
    pub gpu_type: String,
    /// Its agent has a session.
    pub connected: bool,
    /// Two agents fight over it.
    pub paused: bool,
    /// `None` when nothing was reported since the controlplane's start.
    pub report: Option<Picture>,
    /// Nodes to leave alone until then, and why: a worker failed there.
    pub resting: Vec<(String, Instant, String)>,
}

impl Pool {
    /// Whether the workspace may know that the pool is there.
    #[must_use]
    pub fn visible_to(&self, workspace: WorkspaceId) -> bool {
        self.shared || self.owner == workspace
    }

    /// Whether the task may go there, leaving cards and amounts aside.
    #[must_use]
    pub fn serves(&self, task: &Waiting) -> bool {
        self.visible_to(task.workspace) && task.pool.as_ref().is_none_or(|name| *name == self.name)
    }

    /// Whether its cards are, by name, what the task asks for, if it does.
    #[must_use]
    pub fn has_cards_for(&self, task: &Waiting) -> bool {
        task.need.gpus == 0 || self.gpu_type == task.gpu_type || gpu::fits(&self.gpu_type, &task.gpu_type)
    }
}

/// A worker that was ordered on a node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolWorker {
    /// Which.
    pub id: WorkerId,
    /// The cluster.
    pub pool: ClusterId,
    /// The node.
    pub node: String,
    /// How far it is.
    pub stage: Stage,
    /// What its pod takes of the node, [`WORKER_MEMORY`] for itself included.
    pub amounts: Amounts,
    /// What it calls its cards; empty without.
    pub gpu_type: String,
    /// The only workspace it serves; `None` until its first job binds it.
    pub scope: Option<WorkspaceId>,
    /// The latest picture counts its pod under `levers9`: the Job is listed
    /// with a pod that is bound or running.
    pub in_report: bool,
    /// Since when it has had no job; `None` while it has, or is not here.
    pub idle_since: Option<Instant>,
    /// When it was ordered. Of equal ones the first in the list is the older.
    pub ordered: Instant,
    /// What keeps its pod from starting, for those who may know; may be empty.
    pub held_up: String,
}

impl PoolWorker {
    /// Whether it may run the task, its amounts and its pool aside. Names of
    /// cards are compared as [`crate::scheduler::core`] does when it places.
    pub(super) fn may_serve(&self, task: &Waiting) -> bool {
        self.scope.is_none_or(|only| only == task.workspace)
            && (task.need.gpus == 0 || self.gpu_type == task.gpu_type)
    }

    /// Whether it could run the task were it empty.
    pub(super) fn could_run(&self, task: &Waiting) -> bool {
        self.may_serve(task) && for_jobs(&self.amounts).covers(&task.need)
    }
}

/// What the scheduler keeps to. In the two guards a negative number switches
/// the check off and **zero allows nothing**: with 0 no worker is ever ordered.
/// (Elsewhere, as in the quota of clusters, 0 is "no limit".)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A picture this old is not placed by.
    pub stale: Duration,
    /// The most workers that are pending in one pool.
    pub guard_pending: i64,
    /// The most workers that are ordered in one pool within a minute.
    pub guard_per_minute: i64,
    /// A worker without work this long is stopped.
    pub idle: Duration,
    /// A worker that has been pending this long is no longer counted on: tasks
    /// that wait for it may have another.
    pub late: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stale: STALE,
            guard_pending: 20,
            guard_per_minute: 30,
            idle: Duration::from_secs(300),
            late: Duration::from_secs(300),
        }
    }
}

/// Whether a guard that is set to `limit` lets one more come after `count`.
pub(super) fn guard_allows(limit: i64, count: usize) -> bool {
    limit < 0 || i64::try_from(count).is_ok_and(|count| count < limit)
}

/// When workers were ordered lately, for each pool. The shell keeps it and
/// notes each order it sends; planning only reads it.
#[derive(Debug, Clone, Default)]
pub struct Recent {
    starts: HashMap<ClusterId, VecDeque<Instant>>,
}

impl Recent {
    /// A worker is ordered now. Forgets what is more than a minute old.
    pub fn note(&mut self, pool: ClusterId, now: Instant) {
        let starts = self.starts.entry(pool).or_default();
        starts.retain(|at| now.saturating_duration_since(*at) < MINUTE);
        starts.push_back(now);
    }

    /// Those of the last minute, oldest first.
    pub(super) fn within_a_minute(&self, pool: ClusterId, now: Instant) -> impl Iterator<Item = Instant> {
        let starts = self.starts.get(&pool).into_iter().flatten().copied();
        starts.filter(move |at| now.saturating_duration_since(*at) < MINUTE)
    }
}

impl FromIterator<(ClusterId, Instant)> for Recent {
    fn from_iter<I: IntoIterator<Item = (ClusterId, Instant)>>(starts: I) -> Self {
        let mut recent = Self::default();
        for (pool, at) in starts {
            recent.starts.entry(pool).or_default().push_back(at);
        }
        recent
    }
}

/// All that a decision rests on.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The time.
    pub now: Instant,
    /// The attached clusters.
    pub pools: &'a [Pool],
    /// The workers on record, in whatever state, oldest first.
    pub workers: &'a [PoolWorker],
    /// What was ordered lately.
    pub recent: &'a Recent,
    /// The tasks that fit on no connected worker now, oldest first.
    pub waiting: &'a [Waiting],
    /// What to keep to.
    pub limits: &'a Limits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_allows_nothing_and_a_negative_guard_is_off() {
        assert!(!guard_allows(0, 0) && !guard_allows(20, 20));
        assert!(guard_allows(1, 0) && guard_allows(20, 19) && guard_allows(-1, 1_000_000));
    }

    #[test]
    fn an_unknown_reason_withholds() {
        assert_eq!(Withheld::of(0), None);
        assert_eq!(Withheld::of(4), Some(Withheld::Tainted));
        assert_eq!(Withheld::of(77), Some(Withheld::Unreadable));
        let counting: Vec<_> = (1..=7).filter_map(Withheld::of).filter(|w| w.counts()).collect();
        assert_eq!(counting.len(), 4, "{counting:?}");
    }

    #[test]
    fn a_label_speaks_against_the_pool_s_name_and_the_task_s() {
        let labelled = |label: &str| Node { gpu_label: label.into(), ..Node::default() };
        assert!(labelled("").label_allows("A100", "A100-80"));
        assert!(labelled("A100-80").label_allows("A100", "A100-80"));
        assert!(!labelled("A100-40").label_allows("A100", "A100-80"));
        assert!(!labelled("T4").label_allows("A100", "A100"));
    }

    #[test]
    fn what_is_a_minute_old_is_forgotten() {
        let (base, pool) = (Instant::now(), ClusterId::from_bytes([1; 16]));
        let mut recent = Recent::default();
        recent.note(pool, base);
        recent.note(pool, base + MINUTE / 2);
        assert_eq!(recent.within_a_minute(pool, base + MINUTE / 2).count(), 2);
        assert_eq!(recent.within_a_minute(pool, base + MINUTE).count(), 1);
        recent.note(pool, base + MINUTE);
        assert_eq!(recent.starts[&pool].len(), 2);
    }
}
