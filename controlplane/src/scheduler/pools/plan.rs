//! Which workers to order and which to stop. The oldest task chooses first; one
//! that can be given nothing now holds up no other. Planning twice on the same
//! facts orders nothing twice, provided that what was ordered is on record.

use levers9_wire::{ClusterId, TaskId, WorkerId, WorkspaceId};

use super::board::Board;
use super::types::{PoolWorker, Situation, Stage};
use crate::scheduler::core::Amounts;

/// Why a worker is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopWhy {
    /// It has had nothing to do for [`super::Limits::idle`], and nobody waits
    /// whom it could serve.
    Idle,
    /// It has had nothing to do for twice as long although somebody waits whom
    /// it could serve: nothing reaches it.
    Useless,
}

impl StopWhy {
    /// For people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Idle => "it had nothing to do",
            Self::Useless => "it took no work although there was some",
        }
    }
}

/// Something to do about workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Order one.
    Start {
        /// In which cluster.
        pool: ClusterId,
        /// On which node.
        node: String,
        /// What its pod takes, [`levers9_wire::limits::WORKER_MEMORY`] included.
        amounts: Amounts,
        /// What it is to call its cards: as the task that it is started for
        /// does, so that the task can be placed on it. Empty without cards.
        gpu_type: String,
        /// The only workspace it serves.
        scope: Option<WorkspaceId>,
        /// The first task that it is started for.
        task: TaskId,
    },
    /// Stop one.
    Stop {
        /// Which.
        worker: WorkerId,
        /// Why.
        why: StopWhy,
    },
}

/// Decides what to do now. The shell puts every start on record and notes it in
/// [`super::Recent`] before it plans again; a start that it cannot put on
/// record is simply planned again.
#[must_use]
pub fn plan(with: &Situation<'_>) -> Vec<Step> {
    let mut steps = stops(with);
    if with.waiting.is_empty() {
        return steps;
    }
    let mut board = Board::new(with);
    for task in with.waiting {
        board.serve(task);
    }
    let Board { grounds, coming, .. } = board;
    steps.extend(coming.into_iter().filter_map(|coming| {
        let started = coming.started?;
        Some(Step::Start {
            pool: grounds[coming.ground].pool.id,
            node: coming.node.to_owned(),
            amounts: started.amounts,
            gpu_type: coming.gpu_type,
            scope: coming.scope,
            task: started.task,
        })
    }));
    steps
}

fn stops(with: &Situation<'_>) -> Vec<Step> {
    let stop = |worker: &PoolWorker| {
        let idle = with.now.saturating_duration_since(worker.idle_since?);
        if worker.stage != Stage::Running || idle < with.limits.idle {
            return None;
        }
        let why = match (wanted(worker, with), idle >= 2 * with.limits.idle) {
            (false, _) => StopWhy::Idle,
            (true, true) => StopWhy::Useless,
            (true, false) => return None,
        };
        Some(Step::Stop { worker: worker.id, why })
    };
    with.workers.iter().filter_map(stop).collect()
}

/// Whether somebody waits whom the worker could serve.
fn wanted(worker: &PoolWorker, with: &Situation<'_>) -> bool {
    let Some(pool) = with.pools.iter().find(|pool| pool.id == worker.pool) else { return false };
    with.waiting.iter().any(|task| pool.serves(task) && worker.could_run(task))
}
