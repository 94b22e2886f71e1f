//! Why a task still waits: for each pool that its workspace may see the one
//! reason that it is not there, and what would end that. It reads the same
//! board that [`super::plan()`] plays on, with the older tasks served first.
//!
//! Nothing here mentions a pool that is another workspace's own. In a shared
//! pool that somebody else attached no node is named or counted, and neither
//! amounts nor the words of a failure are told (F42).

use std::collections::HashMap;
use std::time::Duration;

use levers9_wire::quantity::show_duration;
use levers9_wire::{ClusterId, WorkerId};

use super::board::{Board, Closed, Ground, Hold, Misfit, Outcome, Shut, Site};
use super::types::{MINUTE, PoolWorker, Situation, Stage, Withheld};
use super::words;
use crate::scheduler::core::{Amounts, Waiting};

/// For a worker, in how much time at the latest the first of its tasks ends,
/// where that is known: what is left of a timeout.
pub type Ends = HashMap<WorkerId, Duration>;

/// What stands between a task and a place, the most hopeful first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Nothing: a worker is ordered with the next pass.
    Room,
    /// A worker is coming there.
    Pending,
    /// It has room; the task is promised to a worker that comes elsewhere.
    Promised,
    /// A worker that could run it is there and full.
    Busy,
    /// Workers that cannot run it hold the room.
    TakenByLevers9,
    /// Other pods hold the room.
    TakenByOthers,
    /// As many workers are coming to the pool as it has nodes.
    Ceiling,
    /// `worker.provisioningGuard` holds the pool.
    Guard,
    /// A worker failed there lately.
    Resting,
    /// The node takes no further pod.
    NoPodSlot,
    /// The pool's last report is too old.
    Stale,
    /// The pool has not reported since the controlplane's start.
    NeverReported,
    /// The pool's agent has no session.
    Away,
    /// Two agents fight over the pool.
    Paused,
    /// The node is not ready, or is being deleted.
    NotReady,
    /// The node is cordoned.
    Cordoned,
    /// The node has a taint that workers do not tolerate.
    Tainted,
    /// What the node has cannot be read.
    Unreadable,
    /// The pool has no node.
    NoNodes,
    /// The node would be too small were it empty.
    TooSmall,
    /// The node's cards are shared: no job gets two.
    SharedCards,
    /// The node's labels say that its cards are others than the pool says.
    LabelContradicts,
    /// The pool has other cards.
    WrongCard,
    /// The task is to go to another pool.
    AnotherPool,
}

impl Reason {
    /// The word for scripts.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Pending => "pending",
            Self::Promised => "promised",
            Self::Busy => "busy",
            Self::TakenByLevers9 => "taken-by-levers9",
            Self::TakenByOthers => "taken-by-others",
            Self::Ceiling => "ceiling",
            Self::Guard => "guard",
            Self::Resting => "resting",
            Self::NoPodSlot => "no-pod-slot",
            Self::Stale => "stale",
            Self::NeverReported => "never-reported",
            Self::Away => "away",
            Self::Paused => "paused",
            Self::NotReady => "not-ready",
            Self::Cordoned => "cordoned",
            Self::Tainted => "tainted",
            Self::Unreadable => "unreadable",
            Self::NoNodes => "no-nodes",
            Self::TooSmall => "too-small",
            Self::SharedCards => "shared-cards",
            Self::LabelContradicts => "label-contradicts",
            Self::WrongCard => "wrong-card",
            Self::AnotherPool => "another-pool",
        }
    }

    /// Whether waiting alone never ends it.
    #[must_use]
    pub fn lasts(self) -> bool {
        self >= Self::TooSmall
    }
}

/// A pool or a node, and why the task is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The pool's name.
    pub pool: String,
    /// The node's name; empty for the whole pool, and for any node of a pool
    /// that is not the workspace's own.
    pub node: String,
    /// The reason.
    pub reason: Reason,
    /// The reason for people: a clause without a full stop.
    pub text: String,
    /// What would end it: a clause without a full stop; empty when nothing will.
    pub frees: String,
}

/// Why a task waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// In one sentence, without a full stop.
    pub summary: String,
    /// Place by place: the workspace's own pools first, then by name.
    pub places: Vec<Place>,
}

/// Says why the task waits. The task need not be among those waiting; where it
/// is, only the older ones go before it.
#[must_use]
pub fn why(with: &Situation<'_>, task: &Waiting, ends: &Ends) -> Why {
    let mut board = Board::new(with);
    for older in with.waiting.iter().take_while(|older| older.task != task.task) {
        board.serve(older);
    }
    // What becomes of the task is tried on a board of its own.
    let mut next = board.clone();
    let (mut promised, mut chosen) = (None, None);
    if let Outcome::Promised(index) = next.serve(task) {
        match &next.coming[index].started {
            Some(started) if index == board.coming.len() => chosen = Some(started.site),
            _ => promised = Some(index),
        }
    }
    let teller = Teller { with, task, ends, promised, chosen, board: &board };
    let mut seen: Vec<usize> = (0..board.grounds.len())
        .filter(|index| board.grounds[*index].pool.visible_to(task.workspace))
        .collect();
    seen.sort_by_key(|index| {
        let pool = board.grounds[*index].pool;
        (pool.owner != task.workspace, &pool.name, pool.id)
    });
    let places: Vec<Place> = seen.into_iter().flat_map(|index| teller.pool(index)).collect();
    Why { summary: words::summary(&places, task), places }
}

/// What all the answers about one task rest on.
struct Teller<'a> {
    with: &'a Situation<'a>,
    task: &'a Waiting,
    ends: &'a Ends,
    /// The coming worker that will take it.
    promised: Option<usize>,
    /// The site where the next pass starts one for it.
    chosen: Option<usize>,
    board: &'a Board<'a>,
}

impl Teller<'_> {
    fn pool(&self, index: usize) -> Vec<Place> {
        let ground = &self.board.grounds[index];
        if let Some((reason, text, frees)) = self.whole(index, ground) {
            let pool = ground.pool.name.clone();
            return vec![Place { pool, node: String::new(), reason, text, frees }];
        }
        let owned = ground.pool.owner == self.task.workspace;
        let sites = self.board.sites.iter().enumerate().filter(|(_, site)| site.ground == index);
        let mut places: Vec<Place> = sites.map(|(at, site)| self.node(at, site, owned)).collect();
        places.sort_by(|a, b| a.node.cmp(&b.node));
        if !owned {
            // One for each reason, or they could be counted. The soonest end is
            // the one that matters, and shorter texts of one kind say less.
            places.sort_by(|a, b| (a.reason, &a.frees, &a.text).cmp(&(b.reason, &b.frees, &b.text)));
            places.dedup_by_key(|place| place.reason);
        }
        places
    }

    /// What holds for all of a pool.
    fn whole(&self, index: usize, ground: &Ground<'_>) -> Option<(Reason, String, String)> {
        let (pool, task) = (ground.pool, self.task);
        let say = |reason: Reason, text: String, frees: &str| Some((reason, text, frees.to_owned()));
        if !pool.serves(task) {
            let asked = task.pool.as_deref().unwrap_or_default();
            return say(Reason::AnotherPool, format!("the task is to go to pool {asked:?}"), "");
        }
        if !pool.has_cards_for(task) {
            return say(
                Reason::WrongCard,
                format!("its cards are {}, not {}", pool.gpu_type, task.gpu_type),
                "",
            );
        }
        if let Some(shut) = ground.shut {
            let (reason, text, frees) = self.shut(shut, ground);
            return say(reason, text, frees);
        }
        let mut sites = self.board.sites.iter().filter(|site| site.ground == index);
        if sites.clone().next().is_none() {
            return say(Reason::NoNodes, "it has no nodes now".to_owned(), "when a node joins it");
        }
        let hold = ground.hold(self.with.limits)?;
        // Where nothing else stands in the way, the hold does; a worker that
        // is coming for the task goes before it.
        let promised = self.promised.is_some_and(|at| self.board.coming[at].ground == index);
        if promised || !sites.any(|site| site.closed.is_none() && site.fit(pool, task).is_ok()) {
            return None;
        }
        let (reason, text, frees) = self.hold(hold, pool.id);
        Some((reason, text, frees))
    }

    fn shut(&self, shut: Shut, ground: &Ground<'_>) -> (Reason, String, &'static str) {
        match shut {
            Shut::Away => (Reason::Away, "its agent is not connected".to_owned(), "when its agent is back"),
            Shut::Paused => (
                Reason::Paused,
                "two agents fight over it".to_owned(),
                "a minute after only one of them is left",
            ),
            Shut::NeverReported => (
                Reason::NeverReported,
                "its agent has reported no nodes since the controlplane started".to_owned(),
                "with its first report",
            ),
            Shut::Stale => {
                let taken = ground.pool.report.as_ref().map_or(self.with.now, |picture| picture.taken);
                let age = whole_seconds(self.with.now.saturating_duration_since(taken));
                let text = format!("its last report is {} old", show_duration(age));
                (Reason::Stale, text, "with its next report")
            }
        }
    }

    fn hold(&self, hold: Hold, pool: ClusterId) -> (Reason, String, String) {
        let limits = self.with.limits;
        let guard = |text: String, frees: String| (Reason::Guard, text, frees);
        match hold {
            Hold::Ceiling => (
                Reason::Ceiling,
                "as many workers are coming as it has nodes".to_owned(),
                "when one of them is there".to_owned(),
            ),
            Hold::GuardPending | Hold::GuardMinute
                if limits.guard_pending == 0 || limits.guard_per_minute == 0 =>
            {
                guard("worker.provisioningGuard is 0: no worker is ordered".to_owned(), String::new())
            }
            Hold::GuardPending => guard(
                format!("{} workers are coming, the most that may", limits.guard_pending),
                "when one of them is there".to_owned(),
            ),
            Hold::GuardMinute => {
                let oldest = self.with.recent.within_a_minute(pool, self.with.now).min();
                let passed = oldest.map(|at| self.with.now.saturating_duration_since(at)).unwrap_or_default();
                guard(
                    format!(
                        "{} workers were ordered within a minute, the most that may be",
                        limits.guard_per_minute
                    ),
                    format!("in at most {}", show_duration(whole_seconds(MINUTE.saturating_sub(passed)))),
                )
            }
        }
    }

    fn node(&self, at: usize, site: &Site<'_>, owned: bool) -> Place {
        let (reason, text, frees) = self.reason(at, site, owned);
        let pool = self.board.grounds[site.ground].pool;
        Place {
            pool: pool.name.clone(),
            node: if owned { site.node.name.clone() } else { String::new() },
            reason,
            text,
            frees,
        }
    }

    /// The one reason of a node, what lasts longest first.
    fn reason(&self, at: usize, site: &Site<'_>, owned: bool) -> (Reason, String, String) {
        let pool = self.board.grounds[site.ground].pool;
        let fit = site.fit(pool, self.task);
        let say = |reason: Reason| {
            let (text, frees) = words::of(reason);
            (reason, text.to_owned(), frees.to_owned())
        };
        let readable = site.node.allocatable != super::Held::default();
        match fit {
            Err(Misfit::LabelContradicts) if owned => {
                let text = format!("its labels call its cards {}", site.node.gpu_label);
                return (Reason::LabelContradicts, text, String::new());
            }
            Err(Misfit::LabelContradicts) => return say(Reason::LabelContradicts),
            Err(Misfit::SharedCards) => return say(Reason::SharedCards),
            Err(Misfit::TooSmall) if readable && owned => {
                let text = words::too_small(&site.node.allocatable.for_jobs(), &self.task.need);
                return (Reason::TooSmall, text, String::new());
            }
            Err(Misfit::TooSmall) if readable => return say(Reason::TooSmall),
            _ => {}
        }
        match site.closed {
            Some(Closed::Withheld(withheld)) if !withheld.is_full() => say(lasting(withheld)),
            Some(Closed::Withheld(Withheld::NoPodSlot) | Closed::NoPodSlot) => say(Reason::NoPodSlot),
            Some(Closed::Withheld(_) | Closed::NoFreeCard) => self.taken(site, owned),
            Some(Closed::Resting(why, until)) => {
                let frees = format!(
                    "in {}",
                    show_duration(whole_seconds(until.saturating_duration_since(self.with.now)))
                );
                match owned {
                    true => (Reason::Resting, format!("a worker failed there lately: {why}"), frees),
                    false => say(Reason::Resting),
                }
            }
            Some(Closed::Pending) => self.pending(site, owned),
            None if fit.is_err() => self.taken(site, owned),
            None if self.chosen == Some(at) => say(Reason::Room),
            None => say(Reason::Promised),
        }
    }

    /// Of a node with a pending worker.
    fn pending(&self, site: &Site<'_>, owned: bool) -> (Reason, String, String) {
        let comes_here = |at: usize| {
            let coming = &self.board.coming[at];
            coming.ground == site.ground && coming.node == site.node.name
        };
        let text = if self.promised.is_some_and(comes_here) {
            "a worker is coming there and will take it"
        } else {
            "a worker for other tasks is coming there; never two at once"
        };
        let pool = self.board.grounds[site.ground].pool;
        let here =
            |w: &&PoolWorker| w.pool == pool.id && w.node == site.node.name && w.stage == Stage::Pending;
        let told = self.with.workers.iter().find(here).map_or("", |worker| &worker.held_up);
        let text = if owned && !told.is_empty() {
            format!("{text}; its pod waits: {told}")
        } else {
            text.to_owned()
        };
        (Reason::Pending, text, "when the worker is there".to_owned())
    }

    /// Of a node whose room is taken: by whom.
    fn taken(&self, site: &Site<'_>, owned: bool) -> (Reason, String, String) {
        let pool = self.board.grounds[site.ground].pool;
        let here = |worker: &&PoolWorker| worker.pool == pool.id && worker.node == site.node.name;
        let workers: Vec<&PoolWorker> = self.with.workers.iter().filter(here).collect();
        let text = |default: &str| {
            if owned {
                words::left(&site.left, &site.node.allocatable, self.task)
            } else {
                default.to_owned()
            }
        };
        let able: Vec<&PoolWorker> = workers
            .iter()
            .copied()
            .filter(|worker| worker.stage == Stage::Running && worker.could_run(self.task))
            .collect();
        if !able.is_empty() {
            let frees = match able.iter().filter_map(|worker| self.ends.get(&worker.id)).min() {
                Some(end) => format!(
                    "when a task on its worker ends, in at most {} (a task's timeout)",
                    show_duration(whole_seconds(*end))
                ),
                None => "when a task on its worker ends".to_owned(),
            };
            return (Reason::Busy, "a worker that could run it is there, and full".to_owned(), frees);
        }
        // Nodes with cards are offered for nothing while none is free.
        let cards = self.task.need.gpus.max(u32::from(site.node.allocatable.cards > 0));
        let need = Amounts { gpus: cards, ..self.task.need };
        let missing = |worker: &&&PoolWorker| !worker.in_report;
        let ours = workers.iter().filter(missing).fold(site.node.levers9, |sum, worker| {
            let a = &worker.amounts;
            sum.plus(super::Held {
                cpu_millis: a.cpu_millis,
                memory_bytes: a.memory_bytes,
                cards: a.gpus,
                pods: 1,
            })
        });
        let without_ours = site.left.plus(ours).for_jobs();
        if !without_ours.covers(&need) {
            return (
                Reason::TakenByOthers,
                text("what it would need there is taken by other pods"),
                "when others' pods leave".to_owned(),
            );
        }
        let frees = match workers.iter().any(|worker| worker.stage == Stage::Stopping) {
            true => "when the worker that stops there is gone".to_owned(),
            false => format!(
                "when a worker there has had nothing to do for {}",
                show_duration(self.with.limits.idle)
            ),
        };
        (Reason::TakenByLevers9, text("what it would need there is taken by levers9's workers"), frees)
    }
}

fn lasting(withheld: Withheld) -> Reason {
    match withheld {
        Withheld::Deleting | Withheld::NotReady => Reason::NotReady,
        Withheld::Cordoned => Reason::Cordoned,
        Withheld::Tainted => Reason::Tainted,
        Withheld::Unreadable | Withheld::NoPodSlot | Withheld::NoFreeCard => Reason::Unreadable,
    }
}

/// A duration that people read, rounded up to whole seconds.
fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}
