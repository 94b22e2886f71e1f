//! Waiting for a container whose worker is on its way here: from another
//! process that drains, or from a carrier that was lost. Whoever wants to reach
//! it waits a moment instead of being sent away.

use std::sync::Arc;
use std::time::Duration;

use levers9_wire::v1;
use tokio::time::timeout;

use super::away;
use crate::places::Place;
use crate::state::Shared;
use crate::store::TaskNow;

/// How long a container may take to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a container that cannot be reached now may soon be: some worker has
/// it, as far as anybody knows.
#[must_use]
pub fn is_expected(now: &TaskNow) -> bool {
    !now.task.status.is_final() && now.attempt.as_ref().is_some_and(|attempt| attempt.state.is_held())
}

/// The place of a task that had none just now, once it has one that fits.
/// Whoever waits stops as soon as there is nothing to wait for. Cancel safe.
///
/// # Errors
/// When none comes in time, or too many wait already: why there is none.
pub async fn arrival(
    state: &Shared,
    mut now: TaskNow,
    fits: impl Fn(&Place) -> bool,
) -> Result<Arc<Place>, v1::Failure> {
    // To a process that is about to stop nobody comes.
    let waits = is_expected(&now) && !state.draining.is_cancelled();
    let Some(_slot) = waits.then(|| state.places.wait()).flatten() else { return Err(away(state, &now)) };
    let arrived = timeout(PATIENCE, come(state, &mut now, fits)).await;
    arrived.ok().flatten().ok_or_else(|| away(state, &now))
}

/// Waits until a place is there, or the task is as it has none.
async fn come(state: &Shared, now: &mut TaskNow, fits: impl Fn(&Place) -> bool) -> Option<Arc<Place>> {
    let task = now.task.id;
    let (mut entered, mut changed) = (state.places.watch(), state.logs.of(task).watch());
    let mut read = None;
    loop {
        entered.borrow_and_update();
        let status = changed.borrow_and_update().status;
        if let Some(place) = state.places.task(task).filter(|place| fits(place)) {
            return Some(place);
        }
        if read != Some(status) {
            read = Some(status);
            if let Ok(newer) = state.store.task(task).await {
                *now = newer?;
            }
            if !is_expected(now) {
                return None;
            }
        }
        tokio::select! {
            _entered = entered.changed() => {}
            _changed = changed.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use levers9_wire::WorkerId;
    use levers9_wire::v1::FailureCode;
    use tokio::time::Instant;

    use super::*;
    use crate::state::now_ms;
    use crate::store::{AttemptState, TaskStatus};
    use crate::testing::{alone, placed};

    #[tokio::test]
    async fn whoever_waits_is_told_when_there_is_nothing_to_wait_for() {
        let folder = tempfile::tempdir().unwrap();
        let state = alone(folder.path()).await;
        let fence = placed(&state, WorkerId::generate()).await;
        let now = state.store.task(fence.task).await.unwrap().unwrap();
        assert!(is_expected(&now));
        let mut unreachable = now.clone();
        unreachable.attempt.as_mut().unwrap().state = AttemptState::Unreachable;
        let mut ended = now.clone();
        ended.task.status = TaskStatus::Complete;
        assert!(!is_expected(&unreachable) && !is_expected(&ended));

        let begun = Instant::now();
        let waiting = tokio::spawn({
            let (state, now) = (state.clone(), now.clone());
            async move { arrival(&state, now, |_| true).await.unwrap_err() }
        });
        state.store.unreachable(fence, None, now_ms()).await.unwrap();
        state.logs.status_changed(fence.task);
        let failure = waiting.await.unwrap();
        assert_eq!(failure.code(), FailureCode::WorkerAway, "{}", failure.text);
        let slots: Vec<_> = std::iter::from_fn(|| state.places.wait()).collect();
        assert_eq!(slots.len(), 1_024);
        assert_eq!(arrival(&state, now.clone(), |_| true).await.unwrap_err().code(), FailureCode::WorkerAway);
        drop(slots);
        state.draining.cancel();
        assert_eq!(arrival(&state, now, |_| true).await.unwrap_err().code(), FailureCode::WorkerAway);
        assert!(begun.elapsed() < PATIENCE, "nobody waited to the end");
    }
}
