//! Placing, running, losing, cancelling: how tasks move, and what is fenced off.

use levers9_controlplane::store::{
    Applied, AttemptState, ContainerState, Fence, Lease, Placement, Store, StoreError, TaskStatus, Then,
};
use levers9_wire::{AttemptNumber, ContainerId, Generation, InstanceId, TaskId};

use crate::fixtures::*;

fn complete() -> Then {
    Then::End { status: TaskStatus::Complete, exit_code: Some(0), reason: String::new() }
}

fn retry() -> Then {
    Then::Retry { reason: "its worker is gone".to_owned() }
}

pub(crate) async fn a_task_runs_and_completes(place: Place) {
    let store = place.open().await;
    let (task, lease) = (a_task(&store).await, a_lease(&store).await);
    let placement = placement(task, 1, &lease);
    assert!(store.place(placement.clone()).await.unwrap());
    let fence = fence(&placement);
    let placed = now(&store, task).await;
    let (attempt, container) = (placed.attempt.unwrap(), placed.container.unwrap());
    assert_eq!(
        (placed.task.status, placed.task.attempts, placed.task.lines_reserved),
        (TaskStatus::Pending, 1, 1000)
    );
    assert_eq!(
        (attempt.state, attempt.worker, attempt.base_line),
        (AttemptState::Placed, placement.worker, 0)
    );
    assert_eq!((container.state, container.gpu_count, container.last_event), (ContainerState::Placed, 2, 0));
    assert_eq!(store.task_of_container(placement.container).await.unwrap(), Some(task));
    assert_eq!(store.task_of_container(ContainerId::generate()).await.unwrap(), None);
    assert!(store.waiting_tasks(10).await.unwrap().is_empty(), "a worker has it");

    assert_eq!(store.started(fence, 1, T0 + 20).await.unwrap(), Applied::Done(TaskStatus::Running));
    assert_eq!(store.started(fence, 1, T0 + 21).await.unwrap(), Applied::Duplicate);
    let mut end = ended(AttemptState::Complete, complete(), Some(2));
    end.log_total = Some(42);
    assert_eq!(store.finish(fence, end.clone()).await.unwrap(), Applied::Done(TaskStatus::Complete));
    assert_eq!(store.finish(fence, end).await.unwrap(), Applied::Duplicate);

    let done = now(&store, task).await;
    let (attempt, container) = (done.attempt.unwrap(), done.container.unwrap());
    assert_eq!((done.task.status, done.task.exit_code), (TaskStatus::Complete, Some(0)));
    assert_eq!((done.task.started_ms, done.task.ended_ms), (Some(T0 + 20), Some(T0 + 30)));
    assert_eq!(
        (attempt.state, attempt.started_ms, attempt.ended_ms),
        (AttemptState::Complete, Some(T0 + 20), Some(T0 + 30))
    );
    assert_eq!((attempt.log_total, attempt.reason.as_str()), (Some(42), "said so"));
    assert_eq!(
        (container.state, container.ended_ms, container.last_event),
        (ContainerState::Ended, Some(T0 + 30), 2)
    );
    assert!(store.live_tasks().await.unwrap().is_empty());
    assert!(store.task_env(task).await.unwrap().unwrap().0.is_empty(), "secrets do not outlive their use");
}

pub(crate) async fn placing_is_refused_unless_all_is_right(place: Place) {
    let store = place.open().await;
    let (task, lease) = (a_task(&store).await, a_lease(&store).await);
    let right = placement(task, 1, &lease);
    let wrong = [
        Placement { task: TaskId::generate(), ..right.clone() },
        Placement { number: AttemptNumber(2), ..right.clone() },
        Placement { number: AttemptNumber(0), ..right.clone() },
        Placement { base_line: 5, lines_reserved: 4, ..right.clone() },
        Placement { lease: Lease { epoch: lease.epoch + 1, ..lease.clone() }, ..right.clone() },
        Placement { lease: Lease { holder: InstanceId::generate(), ..lease.clone() }, ..right.clone() },
        Placement { lease: Lease { name: "other".to_owned(), ..lease.clone() }, ..right.clone() },
    ];
    for placement in wrong {
        assert!(!store.place(placement.clone()).await.unwrap(), "{placement:?}");
    }
    store.reserve_lines(task, 1).await.unwrap();
    assert!(!store.place(right.clone()).await.unwrap(), "line 0 is given out");
    let right = Placement { base_line: 1000, lines_reserved: 2000, ..right };
    assert!(store.place(right.clone()).await.unwrap());
    assert!(!store.place(right.clone()).await.unwrap(), "placed already");
    assert!(!store.place(placement(task, 2, &lease)).await.unwrap(), "a worker has it");

    // The same container in the same generation exists once.
    let other = a_task(&store).await;
    let twin = Placement { task: other, ..right };
    assert!(matches!(store.place(twin.clone()).await, Err(StoreError::Conflict(_))));
    assert_eq!(now(&store, other).await.task.attempts, 0);
    assert!(store.place(Placement { generation: Generation(9), ..twin }).await.unwrap());
}

pub(crate) async fn of_many_at_once_only_one_counts(place: Place) {
    let store = place.open().await;
    let lease = a_lease(&store).await;
    for _ in 0..20 {
        let task = a_task(&store).await;
        let tries = (0..5).map(|_| placement(task, 1, &lease)).map(|placement| {
            let store = store.clone();
            tokio::spawn(async move { (fence(&placement), store.place(placement).await.unwrap()) })
        });
        let placed = all(tries).await;
        let won: Vec<_> = placed.iter().filter(|(_, won)| *won).map(|(fence, _)| *fence).collect();
        assert_eq!((won.len(), store.attempts(task).await.unwrap().len()), (1, 1));

        let tries = (0..5).map(|_| {
            let (store, fence, end) =
                (store.clone(), won[0], ended(AttemptState::Complete, complete(), Some(1)));
            tokio::spawn(async move { store.finish(fence, end).await.unwrap() })
        });
        let finished = all(tries).await;
        let counted =
            finished.iter().filter(|applied| **applied == Applied::Done(TaskStatus::Complete)).count();
        let repeated = finished.iter().filter(|applied| **applied == Applied::Duplicate).count();
        assert_eq!((counted, repeated), (1, 4));
    }
}

async fn all<T>(running: impl Iterator<Item = tokio::task::JoinHandle<T>>) -> Vec<T> {
    let running: Vec<_> = running.collect();
    let mut done = Vec::new();
    for one in running {
        done.push(one.await.unwrap());
    }
    done
}

pub(crate) async fn a_lease_that_changed_hands_places_nothing(place: Place) {
    let store = place.open().await;
    let task = a_task(&store).await;
    let old = a_lease(&store).await;
    store.release_lease(&old).await.unwrap();
    let new = store.acquire_lease(&old.name, old.holder, 60_000, T0).await.unwrap().unwrap();
    assert!(!store.place(placement(task, 1, &old)).await.unwrap());
    assert!(store.place(placement(task, 1, &new)).await.unwrap());
}

async fn next_attempt(store: &Store, fence: Fence, lease: &Lease) -> Fence {
    let placement = placement(fence.task, fence.number.0 + 1, lease);
    assert!(store.place(placement.clone()).await.unwrap());
    crate::fixtures::fence(&placement)
}

pub(crate) async fn a_lost_attempt_is_retried_and_its_late_result_rejected(place: Place) {
    let store = place.open().await;
    let (old, lease) = a_running_task(&store).await;
    let gone = store.unreachable(old, Some("its worker is gone".to_owned()), T0 + 40).await.unwrap();
    assert_eq!(gone, Applied::Done(TaskStatus::Retry));
    let waiting = store.waiting_tasks(10).await.unwrap();
    assert_eq!((waiting.len(), waiting[0].task.reason.as_str()), (1, "its worker is gone"));
    let new = next_attempt(&store, old, &lease).await;

    let attempts = store.attempts(old.task).await.unwrap();
    assert_eq!((attempts[0].state, attempts[1].state), (AttemptState::Lost, AttemptState::Placed));
    for late in [
        store.finish(old, ended(AttemptState::Complete, complete(), Some(2))).await.unwrap(),
        store.started(old, 9, T0).await.unwrap(),
        store.reachable(old).await.unwrap(),
        store.unreachable(old, None, T0).await.unwrap(),
        store.started(Fence { generation: Generation(77), ..new }, 1, T0).await.unwrap(),
        store.started(Fence { container: old.container, ..new }, 1, T0).await.unwrap(),
        store.started(Fence { task: TaskId::generate(), ..new }, 1, T0).await.unwrap(),
    ] {
        assert_eq!(late, Applied::Stale);
    }
    assert_eq!(store.started(new, 1, T0 + 50).await.unwrap(), Applied::Done(TaskStatus::Running));
    let end = ended(AttemptState::Complete, complete(), Some(2));
    assert_eq!(store.finish(new, end).await.unwrap(), Applied::Done(TaskStatus::Complete));
    assert_eq!(now(&store, old.task).await.task.started_ms, Some(T0 + 20), "the first start counts");

    // Lost for certain: retried without waiting for its return.
    let (lost, lease) = a_running_task(&store).await;
    let end = ended(AttemptState::Lost, retry(), None);
    assert_eq!(store.finish(lost, end).await.unwrap(), Applied::Done(TaskStatus::Retry));
    assert_eq!(store.reachable(lost).await.unwrap(), Applied::Stale);
    next_attempt(&store, lost, &lease).await;
}

pub(crate) async fn a_worker_that_returns_gets_its_attempt_back(place: Place) {
    let store = place.open().await;
    let (fence, _) = a_running_task(&store).await;
    assert_eq!(store.reachable(fence).await.unwrap(), Applied::Duplicate, "it never went");
    for retry in [None, Some("away".to_owned())] {
        store.unreachable(fence, retry, T0 + 40).await.unwrap();
        let away = now(&store, fence.task).await;
        assert_eq!(away.attempt.unwrap().state, AttemptState::Unreachable);
        assert_eq!(away.container.unwrap().state, ContainerState::Unreachable);
        assert_eq!(store.reachable(fence).await.unwrap(), Applied::Done(TaskStatus::Running));
        let back = now(&store, fence.task).await;
        assert_eq!((back.task.status, back.task.reason.as_str()), (TaskStatus::Running, ""));
        assert_eq!(back.attempt.unwrap().state, AttemptState::Running);
    }
    // A result that arrives while it counts as away is a result.
    store.unreachable(fence, Some("away".to_owned()), T0 + 40).await.unwrap();
    let end = ended(AttemptState::Complete, complete(), Some(2));
    assert_eq!(store.finish(fence, end).await.unwrap(), Applied::Done(TaskStatus::Complete));

    let (placed, _) = a_placed_task(&store).await;
    store.unreachable(placed, Some("away".to_owned()), T0 + 40).await.unwrap();
    assert_eq!(store.reachable(placed).await.unwrap(), Applied::Done(TaskStatus::Retry));
    assert_eq!(now(&store, placed.task).await.attempt.unwrap().state, AttemptState::Placed);
    assert!(store.waiting_tasks(10).await.unwrap().is_empty());
}

pub(crate) async fn a_waiting_task_is_cancelled_at_once(place: Place) {
    let store = place.open().await;
    let (task, lease) = (a_task(&store).await, a_lease(&store).await);
    let after = store.cancel(task, "stopped".to_owned(), T0 + 5).await.unwrap().unwrap();
    assert_eq!((after.task.status, after.task.ended_ms), (TaskStatus::Cancelled, Some(T0 + 5)));
    assert_eq!(after.task.reason, "stopped");
    assert!(!store.place(placement(task, 1, &lease)).await.unwrap());
    assert_eq!(store.cancel(TaskId::generate(), String::new(), T0).await.unwrap(), None);

    let late = a_task(&store).await;
    assert!(store.end_waiting(late, TaskStatus::Expired, "nobody took it".to_owned(), T0 + 6).await.unwrap());
    assert_eq!(now(&store, late).await.task.status, TaskStatus::Expired);
    assert!(!store.end_waiting(late, TaskStatus::Error, String::new(), T0 + 7).await.unwrap());
    assert!(!store.end_waiting(TaskId::generate(), TaskStatus::Error, String::new(), T0).await.unwrap());
}

pub(crate) async fn a_running_task_is_cancelled_when_its_worker_says_so(place: Place) {
    let store = place.open().await;
    let (fence, _) = a_running_task(&store).await;
    let after = store.cancel(fence.task, "first".to_owned(), T0 + 25).await.unwrap().unwrap();
    assert_eq!(
        (after.task.status, after.task.cancel_reason.as_deref()),
        (TaskStatus::Running, Some("first"))
    );
    assert_eq!(after.attempt.unwrap().container, fence.container);
    let again = store.cancel(fence.task, "second".to_owned(), T0 + 26).await.unwrap().unwrap();
    assert_eq!(again.task.cancel_reason.as_deref(), Some("first"));
    assert!(
        !store.end_waiting(fence.task, TaskStatus::Error, String::new(), T0).await.unwrap(),
        "a worker has it"
    );
    // The worker reports it lost, not stopped: it is not retried for that.
    let end = ended(AttemptState::Lost, retry(), Some(2));
    assert_eq!(store.finish(fence, end).await.unwrap(), Applied::Done(TaskStatus::Cancelled));
    assert_eq!(now(&store, fence.task).await.task.reason, "first");

    // It ended by itself before it was told: that is what happened.
    let (fence, _) = a_running_task(&store).await;
    store.cancel(fence.task, "too late".to_owned(), T0 + 25).await.unwrap();
    let end = ended(AttemptState::Complete, complete(), Some(2));
    assert_eq!(store.finish(fence, end).await.unwrap(), Applied::Done(TaskStatus::Complete));

    // Its worker goes away while it is being told.
    let (fence, _) = a_running_task(&store).await;
    store.cancel(fence.task, "stopped".to_owned(), T0 + 25).await.unwrap();
    let gone = store.unreachable(fence, Some("away".to_owned()), T0 + 40).await.unwrap();
    assert_eq!(gone, Applied::Done(TaskStatus::Cancelled));
}

pub(crate) async fn an_unreachable_task_is_cancelled_at_once(place: Place) {
    let store = place.open().await;
    for retry in [None, Some("away".to_owned())] {
        let (fence, _) = a_running_task(&store).await;
        store.unreachable(fence, retry, T0 + 40).await.unwrap();
        let after = store.cancel(fence.task, "stopped".to_owned(), T0 + 41).await.unwrap().unwrap();
        assert_eq!(after.task.status, TaskStatus::Cancelled);
        assert_eq!(after.attempt.unwrap().state, AttemptState::Cancelled);
        assert_eq!(after.container.unwrap().state, ContainerState::Ended);
        assert_eq!(store.reachable(fence).await.unwrap(), Applied::Stale);
    }
    let (fence, _) = a_running_task(&store).await;
    store.unreachable(fence, None, T0 + 40).await.unwrap();
    assert!(store.end_waiting(fence.task, TaskStatus::Error, "lost".to_owned(), T0 + 41).await.unwrap());
    assert_eq!(now(&store, fence.task).await.attempt.unwrap().state, AttemptState::Lost);
}

pub(crate) async fn a_final_status_never_changes(place: Place) {
    let store = place.open().await;
    let lease = a_lease(&store).await;
    let finals = TaskStatus::ALL.iter().copied().filter(|status| status.is_final());
    let mut seen = 0;
    for status in finals {
        let placement = placement(a_task(&store).await, 1, &lease);
        store.place(placement.clone()).await.unwrap();
        let fence = fence(&placement);
        let then = Then::End { status, exit_code: None, reason: "done".to_owned() };
        assert_eq!(
            store.finish(fence, ended(AttemptState::Failed, then, None)).await.unwrap(),
            Applied::Done(status)
        );
        let before = now(&store, fence.task).await;
        store.cancel(fence.task, "no".to_owned(), T0 + 90).await.unwrap();
        store.end_waiting(fence.task, TaskStatus::Error, "no".to_owned(), T0 + 90).await.unwrap();
        assert!(!store.place(crate::fixtures::placement(fence.task, 2, &lease)).await.unwrap());
        for late in [
            store.finish(fence, ended(AttemptState::Complete, complete(), Some(5))).await.unwrap(),
            store.started(fence, 6, T0 + 90).await.unwrap(),
            store.reachable(fence).await.unwrap(),
            store.unreachable(fence, Some("no".to_owned()), T0 + 90).await.unwrap(),
        ] {
            assert_eq!(late, Applied::Stale);
        }
        assert_eq!(now(&store, fence.task).await, before);
        seen += 1;
    }
    assert_eq!(seen, 5);
}

pub(crate) async fn an_attempt_ends_with_a_final_state_only(place: Place) {
    let store = place.open().await;
    let (fence, _) = a_running_task(&store).await;
    let before = now(&store, fence.task).await;
    let running = Then::End { status: TaskStatus::Running, exit_code: None, reason: String::new() };
    for wrong in
        [ended(AttemptState::Running, complete(), Some(2)), ended(AttemptState::Failed, running, Some(2))]
    {
        assert!(matches!(store.finish(fence, wrong).await, Err(StoreError::Invalid(_))));
    }
    assert_eq!(now(&store, fence.task).await, before, "rolled back");
}

pub(crate) async fn a_lease_has_one_holder_and_its_epoch_grows(place: Place) {
    let store = place.open().await;
    let (a, b) = (InstanceId::generate(), InstanceId::generate());
    let acquire = |who, ttl, now| {
        let store = store.clone();
        async move { store.acquire_lease("scheduler", who, ttl, now).await.unwrap() }
    };
    let first = acquire(a, 60_000, T0).await.unwrap();
    assert_eq!((first.epoch, first.holder), (1, a));
    assert_eq!(acquire(b, 60_000, T0).await, None);
    assert_eq!(acquire(a, 60_000, T0).await, Some(first.clone()), "one's own, kept");
    assert!(store.release_lease(&first).await.unwrap());
    // Taken for no time at all: expired at once, on either clock.
    let second = acquire(b, 0, T0 + 2).await.unwrap();
    assert_eq!(second.epoch, 2);
    let third = acquire(a, 60_000, T0 + 3).await.unwrap();
    assert_eq!(third.epoch, 3);
    assert!(!store.release_lease(&second).await.unwrap());
    assert!(store.acquire_lease("other", b, 60_000, T0).await.unwrap().is_some());
}
