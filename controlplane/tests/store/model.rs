//! Random operations on a few tasks, against a model of how they may move:
//! whatever the order, the store accepts and refuses exactly what it should.

use levers9_controlplane::store::{Applied, AttemptState, Fence, Lease, Store, TaskStatus, Then};
use levers9_wire::TaskId;
use proptest::prelude::*;

use crate::fixtures::*;

/// One thing that may happen to a task.
#[derive(Debug, Clone)]
enum Op {
    /// Place attempt number (current + 1 + off).
    Place {
        task: usize,
        off: u32,
    },
    /// An event about the attempt `back` before the newest.
    Start {
        task: usize,
        back: usize,
        event: u64,
    },
    Finish {
        task: usize,
        back: usize,
        event: Option<u64>,
        retry: bool,
    },
    Unreachable {
        task: usize,
        back: usize,
        retry: bool,
    },
    Reachable {
        task: usize,
        back: usize,
    },
    Cancel {
        task: usize,
    },
    Expire {
        task: usize,
    },
}

const TASKS: usize = 2;

fn op() -> impl Strategy<Value = Op> {
    let (task, back) = (0..TASKS, 0..2usize);
    prop_oneof![
        4 => (task.clone(), 0..2u32).prop_map(|(task, off)| Op::Place { task, off }),
        4 => (task.clone(), back.clone(), 1..4u64).prop_map(|(task, back, event)| Op::Start { task, back, event }),
        2 => (task.clone(), back.clone(), proptest::option::of(1..5u64), any::<bool>())
            .prop_map(|(task, back, event, retry)| Op::Finish { task, back, event, retry }),
        3 => (task.clone(), back.clone(), any::<bool>())
            .prop_map(|(task, back, retry)| Op::Unreachable { task, back, retry }),
        3 => (task.clone(), back).prop_map(|(task, back)| Op::Reachable { task, back }),
        1 => task.clone().prop_map(|task| Op::Cancel { task }),
        1 => task.prop_map(|task| Op::Expire { task }),
    ]
}

#[derive(Debug)]
struct Try {
    fence: Fence,
    state: AttemptState,
    began: bool,
    last_event: u64,
}

#[derive(Debug)]
struct Model {
    id: TaskId,
    status: TaskStatus,
    cancelled: bool,
    tries: Vec<Try>,
}

impl Model {
    /// What becomes of a report, unless it counts.
    fn judge(&self, back: usize, event: Option<u64>) -> Option<Applied> {
        let Some(newest) = self.tries.last().filter(|_| back == 0) else { return Some(Applied::Stale) };
        if event.is_some_and(|event| event <= newest.last_event) {
            return Some(Applied::Duplicate);
        }
        (newest.state.is_final() || self.status.is_final()).then_some(Applied::Stale)
    }

    fn fence(&self, back: usize) -> Option<Fence> {
        self.tries.iter().rev().nth(back).map(|one| one.fence)
    }

    fn newest(&mut self) -> &mut Try {
        self.tries.last_mut().unwrap()
    }

    fn held(&self) -> bool {
        self.tries.last().is_some_and(|newest| newest.state.is_held())
    }

    /// Ends the task unless a worker has it.
    fn end_unheld(&mut self, status: TaskStatus, state: AttemptState) {
        if self.held() || self.status.is_final() {
            return;
        }
        self.status = status;
        if let Some(newest) = self.tries.last_mut().filter(|newest| !newest.state.is_final()) {
            newest.state = state;
        }
    }
}

async fn place(store: &Store, lease: &Lease, model: &mut Model, off: u32) {
    let next = u32::try_from(model.tries.len()).unwrap() + 1;
    let placement = placement(model.id, next + off, lease);
    let may = off == 0 && model.status.is_waiting() && !model.cancelled && !model.held();
    assert_eq!(store.place(placement.clone()).await.unwrap(), may);
    if may {
        if let Some(before) = model.tries.last_mut().filter(|before| !before.state.is_final()) {
            before.state = AttemptState::Lost;
        }
        let fence = fence(&placement);
        model.tries.push(Try { fence, state: AttemptState::Placed, began: false, last_event: 0 });
    }
}

async fn start(store: &Store, model: &mut Model, back: usize, event: u64) {
    let Some(fence) = model.fence(back) else { return };
    let expected = model.judge(back, Some(event)).unwrap_or(Applied::Done(TaskStatus::Running));
    assert_eq!(store.started(fence, event, T0).await.unwrap(), expected);
    if matches!(expected, Applied::Done(_)) {
        model.status = TaskStatus::Running;
        *model.newest() = Try { fence, state: AttemptState::Running, began: true, last_event: event };
    }
}

async fn finish(store: &Store, model: &mut Model, back: usize, event: Option<u64>, retry: bool) {
    let Some(fence) = model.fence(back) else { return };
    let (then, status) = match retry {
        true if model.cancelled => (Then::Retry { reason: String::new() }, TaskStatus::Cancelled),
        true => (Then::Retry { reason: String::new() }, TaskStatus::Retry),
        false => {
            let status = TaskStatus::Complete;
            (Then::End { status, exit_code: Some(0), reason: String::new() }, status)
        }
    };
    let expected = model.judge(back, event).unwrap_or(Applied::Done(status));
    let state = if retry { AttemptState::Lost } else { AttemptState::Complete };
    assert_eq!(store.finish(fence, ended(state, then, event)).await.unwrap(), expected);
    if matches!(expected, Applied::Done(_)) {
        model.status = status;
        let newest = model.newest();
        (newest.state, newest.last_event) = (state, event.unwrap_or(newest.last_event));
    }
}

async fn unreachable(store: &Store, model: &mut Model, back: usize, retry: bool) {
    let Some(fence) = model.fence(back) else { return };
    let status = match (model.cancelled, retry) {
        (true, _) => TaskStatus::Cancelled,
        (false, true) => TaskStatus::Retry,
        (false, false) => model.status,
    };
    let expected = model.judge(back, None).unwrap_or(Applied::Done(status));
    let reason = retry.then(|| "away".to_owned());
    assert_eq!(store.unreachable(fence, reason, T0).await.unwrap(), expected);
    if matches!(expected, Applied::Done(_)) {
        model.status = status;
        model.newest().state =
            if model.cancelled { AttemptState::Cancelled } else { AttemptState::Unreachable };
    }
}

async fn reachable(store: &Store, model: &mut Model, back: usize) {
    let Some(fence) = model.fence(back) else { return };
    let began = model.tries.last().is_some_and(|newest| newest.began);
    let status = if began { TaskStatus::Running } else { model.status };
    let expected = match model.judge(back, None) {
        Some(refused) => refused,
        None if model.held() => Applied::Duplicate,
        None => Applied::Done(status),
    };
    assert_eq!(store.reachable(fence).await.unwrap(), expected);
    if matches!(expected, Applied::Done(_)) {
        model.status = status;
        model.newest().state = if began { AttemptState::Running } else { AttemptState::Placed };
    }
}

async fn step(store: &Store, lease: &Lease, models: &mut [Model], op: Op) {
    match op {
        Op::Place { task, off } => place(store, lease, &mut models[task], off).await,
        Op::Start { task, back, event } => start(store, &mut models[task], back, event).await,
        Op::Finish { task, back, event, retry } => finish(store, &mut models[task], back, event, retry).await,
        Op::Unreachable { task, back, retry } => unreachable(store, &mut models[task], back, retry).await,
        Op::Reachable { task, back } => reachable(store, &mut models[task], back).await,
        Op::Cancel { task } => {
            let model = &mut models[task];
            store.cancel(model.id, "stop".to_owned(), T0).await.unwrap();
            model.cancelled |= !model.status.is_final();
            model.end_unheld(TaskStatus::Cancelled, AttemptState::Cancelled);
        }
        Op::Expire { task } => {
            let model = &mut models[task];
            let ends = !model.status.is_final() && !model.held();
            let done = store.end_waiting(model.id, TaskStatus::Expired, String::new(), T0).await.unwrap();
            assert_eq!(done, ends);
            model.end_unheld(TaskStatus::Expired, AttemptState::Lost);
        }
    }
}

/// What is stored is what the model says, attempt by attempt.
async fn compare(store: &Store, models: &[Model]) {
    let waiting: Vec<_> = store.waiting_tasks(1000).await.unwrap().iter().map(|now| now.task.id).collect();
    for model in models {
        let found = now(store, model.id).await;
        assert_eq!((found.task.status, found.task.cancel_reason.is_some()), (model.status, model.cancelled));
        assert_eq!(found.task.ended_ms.is_some(), model.status.is_final());
        let states: Vec<_> =
            store.attempts(model.id).await.unwrap().iter().map(|one| (one.container, one.state)).collect();
        let expected: Vec<_> = model.tries.iter().map(|one| (one.fence.container, one.state)).collect();
        assert_eq!(states, expected);
        let wants = model.status.is_waiting() && !model.cancelled && !model.held();
        assert_eq!(waiting.contains(&model.id), wants);
        let over = states.iter().filter(|(_, state)| !state.is_final()).count();
        assert!(over <= 1, "at most one attempt of a task counts");
        assert!(!model.status.is_final() || over == 0, "nothing outlives its task");
    }
}

async fn run(ops: Vec<Op>) {
    let store = Store::open("sqlite::memory:", 1).await.unwrap();
    let lease = a_lease(&store).await;
    let mut models = Vec::new();
    for _ in 0..TASKS {
        let id = a_task(&store).await;
        models.push(Model { id, status: TaskStatus::Pending, cancelled: false, tries: Vec::new() });
    }
    for op in ops {
        step(&store, &lease, &mut models, op).await;
        compare(&store, &models).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn tasks_move_as_the_model_says(ops in proptest::collection::vec(op(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(ops));
    }
}
