//! Serves a worker's session: settles what it runs against what is wanted,
//! takes in its logs, and notices its going. Placing on it is the scheduler's.

use std::collections::HashMap;
use std::time::Duration;

use levers9_transport::accept::{Ending, Session, SessionHandle};
use levers9_transport::link::Opened;
use levers9_transport::stream::Stream;
use levers9_transport::tunnel::{Duplex, Raw};
use levers9_wire::v1::{self, ResetCode, WorkerFacts, stream_open};
use levers9_wire::valid::{self, Running};
use levers9_wire::{InstanceId, TokenId, WorkerId};
use tokio::time::{Instant, interval};

use crate::clusters::orders;
use crate::logs::ingest;
use crate::places::Place;
use crate::reach::{self, What};
use crate::runs::{self, Drive};
use crate::scheduler::{fence_of, held_by};
use crate::sessions::WorkerNow;
use crate::state::{Shared, now_ms};
use crate::store::{PoolWorkerState, StoreError, TaskNow, Token, Worker, WorkerState};

/// How often to look whether an enrolled worker has answered a ping.
const CONFIRM_EVERY: Duration = Duration::from_secs(1);

/// Logs a worker may send at once.
const LOG_STREAMS: u32 = 512;

/// A worker that was let in.
#[derive(Debug)]
pub struct Arrival {
    /// The token it has from now on.
    pub token: Token,
    /// The enrolment it came with just now.
    pub enrolment: Option<TokenId>,
    /// Which worker.
    pub worker: WorkerId,
    /// Its process.
    pub instance: InstanceId,
    /// What it has.
    pub facts: WorkerFacts,
    /// Its build.
    pub build: String,
    /// What it runs.
    pub inventory: Vec<Running>,
}

/// Serves one worker until its session ends.
pub async fn serve(state: &Shared, mut session: Session, arrival: Arrival) {
    let handle = session.handle().clone();
    // Each of its containers has a log stream.
    handle.carrier().permit_streams(LOG_STREAMS);
    if let Err(error) = settle(state, &handle, &arrival).await {
        tracing::warn!(%error, worker = %arrival.worker, "a worker cannot be taken in now");
        handle.close(ResetCode::Internal, "the controlplane cannot take the worker in now");
        return;
    }
    // An enrolment may be repeated until an answered ping shows that the worker has its token.
    let mut unconfirmed = arrival.enrolment;
    // Looked for also while the worker opens one stream after the other.
    let mut look = interval(CONFIRM_EVERY);
    loop {
        tokio::select! {
            opened = session.next() => {
                let Some(opened) = opened else { break };
                take(state, &arrival, &handle, opened);
            }
            _ = look.tick(), if unconfirmed.is_some() => {
                if let Some(enrolment) = unconfirmed.take_if(|_| handle.rtt().is_some())
                    && let Err(error) = state.store.confirm_enrolment(enrolment).await
                {
                    tracing::warn!(%error, "an enrolment cannot be confirmed yet");
                    unconfirmed = Some(enrolment);
                }
            }
        }
    }
    leave(state, &handle, &arrival).await;
}

fn take(state: &Shared, arrival: &Arrival, session: &SessionHandle, opened: Opened) {
    match opened.kind {
        stream_open::Kind::Log(open) => {
            let serve = ingest::serve(state.clone(), arrival.worker, session.clone(), open, opened.stream);
            state.tasks.spawn(serve);
        }
        stream_open::Kind::Door(open) => {
            let of = (arrival.worker, session.clone());
            state.tasks.spawn(door(state.clone(), of, open, opened.stream));
        }
        _ => {
            let mut stream = opened.stream;
            stream.abort(ResetCode::Unsupported);
        }
    }
}

/// Lets something in a container speak to the controlplane, when it is one of
/// this worker's own.
async fn door(
    state: Shared,
    (worker, session): (WorkerId, SessionHandle),
    open: v1::DoorOpen,
    mut stream: Stream,
) {
    let door = match valid::Door::try_from(open) {
        Ok(door) => door,
        Err(error) => {
            tracing::warn!(%error, "a worker opened a door that makes no sense");
            return stream.abort(ResetCode::Protocol);
        }
    };
    let own = is_own(&state, (worker, &session), &door).await;
    let (true, Some(doors)) = (own, state.doors.get()) else { return stream.abort(ResetCode::Refused) };
    match Raw::of(stream).await {
        Ok(raw) => {
            let (io, peer) = (Duplex::new(raw), session.carrier().peer());
            doors.serve(door.container, door.service, io, peer, state.open.one(What::Door));
        }
        Err(error) => tracing::debug!(%error, "a door broke at once"),
    }
}

/// Whether a door is of a container that this worker has. One that has just
/// come may open doors before its containers are known.
async fn is_own(state: &Shared, (worker, session): (WorkerId, &SessionHandle), door: &valid::Door) -> bool {
    let fits = |place: &Place| {
        place.container() == door.container
            && place.generation() == door.generation
            && place.session.is_same(session)
    };
    if state.places.container(door.container).is_some_and(|place| fits(&place)) {
        return true;
    }
    let held = async {
        let task = state.store.task_of_container(door.container).await?;
        let Some(task) = task else { return Ok(None) };
        let now = state.store.task(task).await?;
        let is_it = |now: &TaskNow| {
            now.is_on(worker) && fence_of(now).is_some_and(|f| f.generation == door.generation)
        };
        Ok::<_, StoreError>(now.filter(is_it))
    };
    match held.await {
        Ok(Some(now)) => reach::arrival(state, now, fits).await.is_ok(),
        _ => false,
    }
}

/// Registers the worker and settles its containers. The attempts it should
/// have are looked up before it is registered: what is placed after cannot be
/// in its inventory.
async fn settle(state: &Shared, session: &SessionHandle, arrival: &Arrival) -> Result<(), StoreError> {
    let held = held_by(state, arrival.worker).await?;
    let row = register(state, arrival).await?;
    state.sessions.put_worker(WorkerNow {
        session: Some(session.clone()),
        token: Some(arrival.token.id),
        away_since: None,
        given_up: false,
        ..WorkerNow::away(row, Instant::now())
    });
    orders::came(state, arrival.worker).await?;
    let mut inventory: HashMap<_, _> =
        arrival.inventory.iter().map(|running| ((running.container, running.generation), running)).collect();
    for now in held {
        let Some(fence) = fence_of(&now) else { continue };
        if inventory.remove(&(fence.container, fence.generation)).is_some() {
            attach(state, session, &now).await?;
        } else {
            runs::lose(state, fence, "its worker no longer has the container").await?;
        }
    }
    for running in inventory.into_values() {
        tracing::info!(container = %running.container, generation = running.generation.0, "a worker has a container nobody wants");
        state.tasks.spawn(runs::discard(session.clone(), running.container, running.generation));
    }
    state.placeable.notify_one();
    Ok(())
}

async fn register(state: &Shared, arrival: &Arrival) -> Result<Worker, StoreError> {
    let before = state.store.worker(arrival.worker).await?;
    let row = Worker {
        id: arrival.worker,
        workspace: if arrival.token.shared { None } else { arrival.token.workspace },
        bound_workspace: before.as_ref().and_then(|w| w.bound_workspace),
        pool: arrival.token.pool.clone().unwrap_or_else(|| "default".to_owned()),
        facts: arrival.facts.clone(),
        build: arrival.build.clone(),
        state: WorkerState::Ready,
        created_ms: before.map_or_else(now_ms, |w| w.created_ms),
        last_seen_ms: now_ms(),
        cluster: arrival.token.cluster,
    };
    state.store.upsert_worker(&row).await?;
    Ok(row)
}

/// Goes on driving a container that its worker still has.
async fn attach(state: &Shared, session: &SessionHandle, now: &TaskNow) -> Result<(), StoreError> {
    let Some(fence) = fence_of(now) else { return Ok(()) };
    state.store.reachable(fence).await?;
    if let Some(attempt) = &now.attempt {
        state.logs.begin(fence, attempt.base_line, attempt.log_next, now.task.lines_reserved);
    }
    state.logs.status_changed(fence.task);
    let since_event = now.container.as_ref().map_or(0, |c| c.last_event);
    let drive = Drive { fence, since_event, spec: None, about: now.into(), unheard: None };
    state.tasks.spawn(runs::drive(state.clone(), session.clone(), drive));
    Ok(())
}

async fn leave(state: &Shared, session: &SessionHandle, arrival: &Arrival) {
    let ending = session.ended().await;
    if !state.sessions.worker_left(arrival.worker, arrival.instance, session, Instant::now()) {
        return;
    }
    match &ending {
        Ending::Lost(lost) => tracing::info!(worker = %arrival.worker, %lost, "a worker is away"),
        // It goes to the process that takes over, and tells that one if it stops.
        Ending::Bye(reason) if state.draining.is_cancelled() => {
            tracing::info!(worker = %arrival.worker, %reason, "a worker leaves this process");
        }
        Ending::Bye(reason) => {
            tracing::info!(worker = %arrival.worker, %reason, "a worker leaves");
            if let Err(error) = gone(state, arrival.worker).await {
                tracing::warn!(%error, worker = %arrival.worker, "a worker's leaving cannot be noted");
            }
        }
    }
}

/// A worker does not come back: what it ran is lost, and itself forgotten.
///
/// # Errors
/// When the database fails.
pub async fn lose_all(state: &Shared, worker: WorkerId, why: &str) -> Result<(), StoreError> {
    for now in held_by(state, worker).await? {
        if let Some(fence) = fence_of(&now) {
            runs::lose(state, fence, why).await?;
        }
    }
    state.store.set_worker_state(worker, WorkerState::Gone).await?;
    state.sessions.forget_worker(worker);
    Ok(())
}

/// A worker said that it does not come back.
async fn gone(state: &Shared, worker: WorkerId) -> Result<(), StoreError> {
    lose_all(state, worker, "its worker shut down").await?;
    if state.clusters.worker(worker).is_some_and(|w| w.row.state != PoolWorkerState::Stopping) {
        // What is left of its Job goes too.
        orders::stop(state, worker, "it shut down").await?;
    }
    state.placeable.notify_one();
    Ok(())
}
