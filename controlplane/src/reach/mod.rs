//! Reaching into containers: finds the way to one for somebody who may, opens
//! a stream on to its worker, and moves bytes between the two. What is said on
//! a stream is the caller's and the worker's; nothing is looked into here but
//! who may reach what. A container of another workspace is not there.

mod bench;
mod counts;
mod relay;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use levers9_transport::accept::SessionHandle;
use levers9_transport::stream::Stream;
use levers9_wire::v1::{self, FailureCode, stream_open};
use levers9_wire::{ContainerId, Generation, TaskId};
use tokio::time::timeout;

use crate::auth::{Action, Identity, authorize};
use crate::places::Place;
use crate::state::Shared;
use crate::store::{StoreError, TaskNow};

pub use bench::Benches;
pub use counts::{Counted, Counts, What};
pub use relay::{exec, tunnel};
pub use wait::{arrival, is_expected};

/// How long a worker may take to permit one more stream.
const OPEN: Duration = Duration::from_secs(10);

/// A refusal, as the wire says it.
#[must_use]
pub fn failure(code: FailureCode, text: impl Into<String>, hint: &str) -> v1::Failure {
    v1::Failure { code: code.into(), text: text.into(), hint: hint.to_owned() }
}

/// The way to a container, by its id or its task's, for somebody who may do
/// something there.
///
/// # Errors
/// When there is none, in words for whoever asked.
pub async fn find(
    state: &Shared,
    who: &Identity,
    action: Action,
    container: ContainerId,
    generation: Option<Generation>,
) -> Result<Arc<Place>, v1::Failure> {
    // Tasks and containers have ids of one form.
    let task = TaskId::from_bytes(*container.as_bytes());
    let place = match state.places.container(container).or_else(|| state.places.task(task)) {
        Some(place) => place,
        None => absent(state, who, action, container, task).await?,
    };
    if !authorize(who, action, Some(place.about.workspace)) {
        return Err(no_such_container());
    }
    match generation {
        Some(wanted) if wanted != place.generation() => Err(failure(
            FailureCode::NotRunning,
            format!("generation {} of container {} has ended", wanted.0, place.container()),
            "",
        )),
        _ => Ok(place),
    }
}

fn no_such_container() -> v1::Failure {
    failure(FailureCode::NotFound, "no such container", "levers9 container list shows them")
}

/// The way to a container that is not here now, if it comes in time.
async fn absent(
    state: &Shared,
    who: &Identity,
    action: Action,
    container: ContainerId,
    task: TaskId,
) -> Result<Arc<Place>, v1::Failure> {
    let looked_up = async {
        let of_container = state.store.task_of_container(container).await?;
        state.store.task(of_container.unwrap_or(task)).await
    };
    let found: Result<Option<TaskNow>, StoreError> = looked_up.await;
    match found {
        Ok(Some(now)) if authorize(who, action, Some(now.task.workspace)) => {
            arrival(state, now, |_| true).await
        }
        Ok(_) => Err(no_such_container()),
        Err(error) => {
            tracing::error!(error = %error.chain(), "a container cannot be looked up");
            Err(failure(FailureCode::Unavailable, error.to_string(), ""))
        }
    }
}

/// Why a task that is there has no container to reach.
#[must_use]
pub fn away(state: &Shared, now: &TaskNow) -> v1::Failure {
    let id = now.task.id;
    let held = now.attempt.as_ref().filter(|attempt| !attempt.state.is_final());
    match held {
        _ if now.task.status.is_final() => {
            let text = format!("task {id} has ended: {}", now.task.status.word());
            failure(FailureCode::NotRunning, text, "levers9 container list shows those that run")
        }
        None => failure(FailureCode::NotRunning, format!("task {id} waits for a worker"), ""),
        Some(attempt) if state.sessions.worker(attempt.worker).is_none_or(|w| w.session.is_none()) => {
            let text = format!("worker {} of task {id} is away", attempt.worker);
            failure(FailureCode::WorkerAway, text, "it is expected back; try again")
        }
        Some(_) => failure(FailureCode::NotRunning, format!("task {id} is being started"), "try again"),
    }
}

/// Opens a stream on to a worker, in bounded time.
///
/// # Errors
/// When the worker's session is gone, or takes no more streams now.
pub async fn open(session: &SessionHandle, kind: stream_open::Kind) -> Result<Stream, v1::Failure> {
    match timeout(OPEN, session.open(kind)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(failure(
            FailureCode::WorkerAway,
            format!("the worker's session broke: {error}"),
            "it is expected back; try again",
        )),
        Err(_) => Err(failure(
            FailureCode::Busy,
            "the worker takes no more streams now",
            "close some, or try again",
        )),
    }
}
