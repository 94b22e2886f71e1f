//! Segments, line numbers and retention.

use levers9_controlplane::store::{AttemptState, Segment, SegmentAdded, SegmentTotals, TaskStatus, Then};
use levers9_wire::TaskId;

use crate::fixtures::*;

pub(crate) async fn segments_follow_one_another(place: Place) {
    let store = place.open().await;
    let (fence, _) = a_running_task(&store).await;
    let task = fence.task;
    let add = |segment: Segment| {
        let store = store.clone();
        async move { store.add_segment(segment).await.unwrap() }
    };
    let first = segment(task, 1, (0, 10), 0);
    assert_eq!(add(first.clone()).await, SegmentAdded::Added);
    assert_eq!(add(first.clone()).await, SegmentAdded::AlreadyThere);
    assert_eq!(add(segment(task, 1, (0, 10), 0)).await, SegmentAdded::AlreadyThere, "whatever its id");
    assert_eq!(add(segment(task, 1, (0, 11), 0)).await, SegmentAdded::Expected(10), "overlap");
    assert_eq!(add(segment(task, 1, (5, 15), 0)).await, SegmentAdded::Expected(10), "overlap");
    assert_eq!(add(segment(task, 1, (11, 15), 0)).await, SegmentAdded::Expected(10), "gap");
    for wrong in [
        segment(task, 2, (0, 1), 0),
        segment(TaskId::generate(), 1, (0, 1), 0),
        segment(task, 1, (10, 10), 0),
        segment(task, 1, (10, 11), 1),
        segment(task, 1, (10, 1001), 0),
    ] {
        assert_eq!(add(wrong.clone()).await, SegmentAdded::Refused, "{wrong:?}");
    }
    assert_eq!(store.reserve_lines(task, 2000).await.unwrap(), Some(2000));
    assert_eq!(store.reserve_lines(task, 1500).await.unwrap(), Some(2000), "never fewer");
    assert_eq!(store.reserve_lines(TaskId::generate(), 1).await.unwrap(), None);
    let second = segment(task, 1, (10, 1001), 0);
    assert_eq!(add(second.clone()).await, SegmentAdded::Added);

    assert_eq!(now(&store, task).await.attempt.unwrap().log_next, 1001);
    assert_eq!(store.segments(task, 0, 10).await.unwrap(), [first.clone(), second.clone()]);
    assert_eq!(store.segments(task, 9, 10).await.unwrap().len(), 2);
    assert_eq!(store.segments(task, 10, 10).await.unwrap(), [second]);
    assert_eq!(store.segments(task, 1001, 10).await.unwrap(), []);
    assert_eq!(store.segments(task, 0, 1).await.unwrap(), [first]);
    assert_eq!(store.segment_totals().await.unwrap(), SegmentTotals { segments: 2, bytes: 10_010 });
}

pub(crate) async fn a_new_attempts_lines_never_overlap(place: Place) {
    let store = place.open().await;
    let (old, lease) = a_running_task(&store).await;
    let task = old.task;
    assert_eq!(store.add_segment(segment(task, 1, (0, 10), 0)).await.unwrap(), SegmentAdded::Added);
    store.unreachable(old, Some("away".to_owned()), T0 + 40).await.unwrap();
    assert!(store.place(placement(task, 2, &lease)).await.unwrap());
    // What came from the old attempt before is still sealed, up to the new one's base.
    assert_eq!(store.add_segment(segment(task, 1, (10, 1000), 0)).await.unwrap(), SegmentAdded::Added);
    assert_eq!(store.reserve_lines(task, 3000).await.unwrap(), Some(3000));
    assert_eq!(store.add_segment(segment(task, 1, (1000, 1001), 0)).await.unwrap(), SegmentAdded::Refused);
    assert_eq!(store.add_segment(segment(task, 2, (0, 5), 1000)).await.unwrap(), SegmentAdded::Added);
    let lines: Vec<_> =
        store.segments(task, 0, 10).await.unwrap().iter().map(|s| (s.first_line, s.next_line)).collect();
    assert_eq!(lines, [(0, 10), (10, 1000), (1000, 1005)]);
}

pub(crate) async fn retention_deletes_the_oldest_and_then_the_task(place: Place) {
    let store = place.open().await;
    let (fence, lease) = a_running_task(&store).await;
    let other = a_running_task(&store).await.0;
    let segments: Vec<_> = (0..3).map(|n| segment(fence.task, 1, (n * 10, n * 10 + 10), 0)).collect();
    for segment in &segments {
        store.add_segment(segment.clone()).await.unwrap();
    }
    assert_eq!(store.oldest_segments(2).await.unwrap(), segments[..2]);
    assert_eq!(store.delete_segments(segments[..2].iter().map(|s| s.id).collect()).await.unwrap(), 2);
    assert_eq!(store.delete_segments(vec![]).await.unwrap(), 0);
    assert_eq!(store.segment_totals().await.unwrap(), SegmentTotals { segments: 1, bytes: 100 });

    assert_eq!(store.delete_tasks_older_than(i64::MAX, 10).await.unwrap(), 0, "both live");
    let then = Then::End { status: TaskStatus::Error, exit_code: Some(1), reason: String::new() };
    store.finish(fence, ended(AttemptState::Failed, then, Some(2))).await.unwrap();
    assert_eq!(store.delete_tasks_older_than(T0 + 31, 10).await.unwrap(), 0, "its log is still there");
    // More than one statement's worth, most of them unknown.
    let mut ids: Vec<_> = (0..1200).map(|n| segment(fence.task, 1, (n, n + 1), 0).id).collect();
    ids.push(segments[2].id);
    assert_eq!(store.delete_segments(ids).await.unwrap(), 1);
    assert_eq!(store.delete_tasks_older_than(T0 + 30, 10).await.unwrap(), 0, "not old enough");
    assert_eq!(store.delete_tasks_older_than(T0 + 31, 10).await.unwrap(), 1);
    assert_eq!(store.task(fence.task).await.unwrap(), None);
    assert_eq!(store.attempts(fence.task).await.unwrap(), []);
    assert_eq!(store.task_of_container(fence.container).await.unwrap(), None);
    assert_eq!(now(&store, other.task).await.attempt.unwrap().container, other.container);
    // The container's row went too: its id is free again.
    let mut again = placement(a_task(&store).await, 1, &lease);
    (again.container, again.generation) = (fence.container, fence.generation);
    assert!(
        !store.place(again).await.unwrap()
            || store.task_of_container(fence.container).await.unwrap().is_some()
    );
}
