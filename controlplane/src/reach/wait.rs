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
