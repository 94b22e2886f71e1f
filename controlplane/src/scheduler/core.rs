//! Which waiting task goes to which worker. Pure: what is free and who waits
//! come as arguments, decisions come back. The oldest task chooses first; one
//! that fits nowhere now holds up no other.

use levers9_wire::v1::Resources;
use levers9_wire::{TaskId, WorkerId, WorkspaceId};

/// What a job reserves when it does not say: an eighth of a core, 128 MiB.
pub const DEFAULT_CPU_MILLIS: u64 = 125;
/// See [`DEFAULT_CPU_MILLIS`].
pub const DEFAULT_MEMORY_BYTES: u64 = 128 << 20;

/// What a job needs or a worker has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// Thousandths of a core.
    pub cpu_millis: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Cards.
    pub gpus: u32,
}

impl Amounts {
    /// Whether it is enough for `need`.
    pub(super) fn covers(&self, need: &Self) -> bool {
        self.cpu_millis >= need.cpu_millis && self.memory_bytes >= need.memory_bytes && self.gpus >= need.gpus
    }

    /// Takes `need` away, down to nothing.
    pub fn take(&mut self, need: &Self) {
        self.cpu_millis = self.cpu_millis.saturating_sub(need.cpu_millis);
        self.memory_bytes = self.memory_bytes.saturating_sub(need.memory_bytes);
        self.gpus = self.gpus.saturating_sub(need.gpus);
    }
}

/// What a job reserves: what it asked for, else the default.
#[must_use]
pub fn need_of(resources: &Resources) -> Amounts {
    let or = |asked: u64, default: u64| if asked == 0 { default } else { asked };
    Amounts {
        cpu_millis: or(resources.cpu_millis, DEFAULT_CPU_MILLIS),
        memory_bytes: or(resources.memory_bytes, DEFAULT_MEMORY_BYTES),
        gpus: resources.gpu_count,
    }
}

/// A worker that could take jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub id: WorkerId,
    /// Its pool.
    pub pool: String,
    /// The only workspace it serves; `None` serves all.
    pub workspace: Option<WorkspaceId>,
    /// Its cards' type; empty without cards.
    pub gpu_type: String,
    /// All it has.
    pub total: Amounts,
    /// What is free of that.
    pub free: Amounts,
    /// Whether it can take a job now: connected, not draining, not paused.
    pub ready: bool,
}

/// A task that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Which.
    pub task: TaskId,
    /// Whose.
    pub workspace: WorkspaceId,
    /// What it reserves.
    pub need: Amounts,
    /// The cards it wants; empty for any or none.
    pub gpu_type: String,
    /// The only pool it may go to.
    pub pool: Option<String>,
}

impl Candidate {
    /// Whether it may run the task at all, leaving amounts aside.
    fn may_serve(&self, task: &Waiting) -> bool {
        self.workspace.is_none_or(|own| own == task.workspace)
            && task.pool.as_ref().is_none_or(|pool| *pool == self.pool)
            && (task.need.gpus == 0 || self.gpu_type == task.gpu_type)
    }

    /// Lower is better: CPU jobs stay off cards, then the tightest fit of
    /// cards, then the emptiest worker.
    fn rank(&self, task: &Waiting) -> (bool, u32, std::cmp::Reverse<u64>, WorkerId) {
        let wastes_cards = task.need.gpus == 0 && self.total.gpus > 0;
        let cards_left = if task.need.gpus == 0 { 0 } else { self.free.gpus - task.need.gpus };
        (wastes_cards, cards_left, std::cmp::Reverse(self.free.cpu_millis), self.id)
    }
}

/// Places the waiting tasks, oldest first; takes what they need from `workers`.
pub fn place(workers: &mut [Candidate], waiting: &[Waiting]) -> Vec<(TaskId, WorkerId)> {
    let mut placed = Vec::new();
    for task in waiting {
        let best = workers
            .iter_mut()
            .filter(|worker| worker.ready && worker.may_serve(task) && worker.free.covers(&task.need))
            .min_by_key(|worker| worker.rank(task));
        if let Some(worker) = best {
            worker.free.take(&task.need);
            // An unshared choice: a worker of no workspace that can serve one only is bound by its first.
            placed.push((task.task, worker.id));
        }
    }
    placed
}

/// Why no known worker could ever run a task, in words; `None` when one could,
/// or when none is known that may serve the workspace at all.
#[must_use]
pub fn impossible(workers: &[Candidate], task: &Waiting) -> Option<String> {
    use levers9_wire::quantity::{show_cpu, show_memory};
    let mine: Vec<_> =
        workers.iter().filter(|w| w.workspace.is_none_or(|own| own == task.workspace)).collect();
    if mine.is_empty() {
        return None;
    }
    if let Some(pool) = &task.pool
        && !mine.iter().any(|w| w.pool == *pool)
    {
        return Some(format!("there is no pool {pool:?}"));
    }
    let serving: Vec<_> = mine.into_iter().filter(|w| w.may_serve(task)).collect();
    if serving.is_empty() {
        return Some(format!("no worker has {} GPUs", task.gpu_type));
    }
    if serving.iter().any(|w| w.total.covers(&task.need)) {
        return None;
    }
    let most = |pick: fn(&Amounts) -> u64| serving.iter().map(|w| pick(&w.total)).max().unwrap_or(0);
    let (memory, cpu) = (most(|t| t.memory_bytes), most(|t| t.cpu_millis));
    let cards = most(|t| u64::from(t.gpus));
    let need = &task.need;
    Some(if need.memory_bytes > memory {
        let asked = show_memory(need.memory_bytes);
        format!("{asked} of memory is more than any worker has; the largest has {}", show_memory(memory))
    } else if need.cpu_millis > cpu {
        let asked = show_cpu(need.cpu_millis);
        format!("{asked} CPU is more than any worker has; the largest has {}", show_cpu(cpu))
    } else if u64::from(need.gpus) > cards {
        format!("{} {} GPUs are more than any one worker has; the most are {cards}", need.gpus, task.gpu_type)
    } else {
        "no single worker has this much CPU, memory and GPUs together".to_owned()
    })
}

/// Why a task is not on one worker: a word for scripts, and words for people.
#[must_use]
pub fn why_not_on(worker: &Candidate, task: &Waiting) -> (&'static str, String) {
    if task.pool.as_ref().is_some_and(|pool| *pool != worker.pool) {
        ("another-pool", "the task is to go to another pool".to_owned())
    } else if !worker.may_serve(task) {
        ("wrong-card", format!("it has no {} GPUs", task.gpu_type))
    } else if !worker.total.covers(&task.need) {
        ("too-small", "it has less than the task asks for".to_owned())
    } else if !worker.ready {
        ("away", "it is not connected, or takes nothing more".to_owned())
    } else if worker.free.covers(&task.need) {
        ("room", "it has room; the task is about to be placed".to_owned())
    } else {
        ("busy", "what it has is taken by other jobs".to_owned())
    }
}

/// What to tell a caller whose task waits; nothing when it is about to be placed.
#[must_use]
pub fn why_waiting(workers: &[Candidate], task: &Waiting) -> String {
    let able = || workers.iter().filter(|w| w.ready && w.may_serve(task));
    if able().any(|w| w.free.covers(&task.need)) {
        return String::new();
    }
    let ready = able().count();
    let wanted = if task.need.gpus > 0 {
        format!(" with {} {}", task.need.gpus, task.gpu_type)
    } else {
        String::new()
    };
    match ready {
        0 => format!("no worker{wanted} is connected; waiting for one"),
        1 => format!("the worker{wanted} is busy; waiting"),
        n => format!("all {n} workers{wanted} are busy; waiting"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::StdRng};

    fn ids() -> impl FnMut() -> StdRng {
        let mut seed = 0;
        move || {
            seed += 1;
            StdRng::seed_from_u64(seed)
        }
    }

    fn worker(rng: &mut StdRng, cpu: u64, gpus: u32, gpu_type: &str) -> Candidate {
        let total = Amounts { cpu_millis: cpu, memory_bytes: 8 << 30, gpus };
        Candidate {
            id: WorkerId::new(0, rng),
            pool: "default".into(),
            workspace: None,
            gpu_type: gpu_type.into(),
            total,
            free: total,
            ready: true,
        }
    }

    fn task(rng: &mut StdRng, cpu: u64, gpus: u32, gpu_type: &str) -> Waiting {
        Waiting {
            task: TaskId::new(0, rng),
            workspace: WorkspaceId::new(0, &mut StdRng::seed_from_u64(99)),
            need: Amounts { cpu_millis: cpu, memory_bytes: 1 << 20, gpus },
            gpu_type: gpu_type.into(),
            pool: None,
        }
    }

    #[test]
    fn cpu_jobs_stay_off_cards_while_they_can() {
        let mut next = ids();
        let mut workers = [worker(&mut next(), 64_000, 8, "T4"), worker(&mut next(), 1_000, 0, "")];
        let waiting = [task(&mut next(), 1_000, 0, ""), task(&mut next(), 1_000, 0, "")];
        let (cards, plain) = (workers[0].id, workers[1].id);
        let placed = place(&mut workers, &waiting);
        assert_eq!(placed, [(waiting[0].task, plain), (waiting[1].task, cards)]);
        assert_eq!(workers[0].free.gpus, 8);
    }

    #[test]
    fn a_task_that_fits_nowhere_holds_up_no_other() {
        let mut next = ids();
        let mut workers = [worker(&mut next(), 1_000, 0, "")];
        let waiting = [task(&mut next(), 9_000, 0, ""), task(&mut next(), 500, 0, "")];
        assert_eq!(place(&mut workers, &waiting), [(waiting[1].task, workers[0].id)]);
    }

    #[test]
    fn what_can_never_run_is_said_with_the_largest_there_is() {
        let mut next = ids();
        let workers = [worker(&mut next(), 4_000, 1, "T4")];
        let of = |task: &Waiting| impossible(&workers, task).unwrap();
        let mut large = task(&mut next(), 100, 0, "");
        large.need.memory_bytes = 64 << 30;
        assert_eq!(of(&large), "64Gi of memory is more than any worker has; the largest has 8Gi");
        assert_eq!(of(&task(&mut next(), 100, 1, "H100")), "no worker has H100 GPUs");
        assert_eq!(
            of(&task(&mut next(), 100, 4, "T4")),
            "4 T4 GPUs are more than any one worker has; the most are 1"
        );
        assert_eq!(impossible(&[], &large), None);
        let pool = Waiting { pool: Some("nowhere".into()), ..task(&mut next(), 100, 0, "") };
        assert_eq!(of(&pool), "there is no pool \"nowhere\"");
    }

    #[test]
    fn another_workspace_s_worker_is_neither_used_nor_told_of() {
        let mut next = ids();
        let mut theirs = worker(&mut next(), 4_000, 1, "T4");
        theirs.workspace = Some(WorkspaceId::new(7, &mut next()));
        let mine = task(&mut next(), 100, 1, "T4");
        let mut workers = [theirs];
        assert!(place(&mut workers, std::slice::from_ref(&mine)).is_empty());
        assert_eq!(impossible(&workers, &mine), None);
        assert_eq!(why_waiting(&workers, &mine), "no worker with 1 T4 is connected; waiting for one");
    }

    proptest! {
        #[test]
        fn never_gives_out_more_than_there_is_and_leaves_nothing_that_fits(
            sizes in prop::collection::vec((0..8_000u64, 0..9u32), 1..6),
            wanted in prop::collection::vec((1..4_000u64, 0..4u32), 1..40),
        ) {
            let mut next = ids();
            let mut workers: Vec<_> = sizes
                .iter()
                .map(|(cpu, gpus)| worker(&mut next(), *cpu, *gpus, if *gpus > 0 { "T4" } else { "" }))
                .collect();
            let waiting: Vec<_> = wanted
                .iter()
                .map(|(cpu, gpus)| task(&mut next(), *cpu, *gpus, if *gpus > 0 { "T4" } else { "" }))
                .collect();
            let before = workers.clone();
            let placed = place(&mut workers, &waiting);
            for (was, is) in before.iter().zip(&workers) {
                let mut used = Amounts::default();
                for (task, _) in placed.iter().filter(|(_, worker)| *worker == was.id) {
                    let need = waiting.iter().find(|w| w.task == *task).unwrap().need;
                    used.cpu_millis += need.cpu_millis;
                    used.gpus += need.gpus;
                }
                prop_assert!(used.cpu_millis <= was.total.cpu_millis && used.gpus <= was.total.gpus);
                prop_assert_eq!(is.free.cpu_millis, was.free.cpu_millis - used.cpu_millis);
            }
            let left: Vec<_> = waiting.iter().filter(|w| !placed.iter().any(|(t, _)| *t == w.task)).cloned().collect();
            prop_assert!(place(&mut workers, &left).is_empty());
        }
    }
}
