//! Carries out what is decided about workers on clusters: notes and sends
//! orders, removes Jobs, gives up what is lost. It decides nothing itself:
//! [`super::tend`] and [`crate::scheduler::pools`] do.

use std::time::Duration;

use levers9_wire::token::{Secret, TokenKind};
use levers9_wire::v1::{self, FailureCode, JobPhase, order_open, stream_open};
use levers9_wire::{ClusterId, WorkerId, WorkspaceId};
use tokio::time::{Instant, timeout};

use super::tend::{self, AGAIN, Act, Delivery, Job, View};
use super::{ClusterNow, Ordered};
use crate::auth::mint;
use crate::calls::ENROLMENT_MS;
use crate::scheduler::core::Amounts;
use crate::state::{Shared, now_ms};
use crate::store::{Cluster, Lease, PoolWorker, PoolWorkerState, StoreError, Token};
use crate::workers;

/// How long an agent may take to carry an order out.
const ORDER: Duration = Duration::from_secs(30);
/// What workers on clusters run jobs with, until there are containers.
pub const RUNTIME: &str = "process";

/// A worker to start.
#[derive(Debug, Clone)]
pub struct Start {
    /// Where.
    pub cluster: ClusterId,
    /// On which node.
    pub node: String,
    /// What its pod takes.
    pub amounts: Amounts,
    /// The type of its cards; empty without.
    pub gpu_type: String,
    /// The one workspace it serves; `None` for any.
    pub scope: Option<WorkspaceId>,
}

fn aad(worker: WorkerId) -> Vec<u8> {
    [b"enrolment ".as_slice(), worker.as_bytes()].concat()
}

/// Notes a worker as ordered and sends its order; `false` when it may not be.
///
/// # Errors
/// When the database fails.
pub async fn start(state: &Shared, start: Start, lease: Lease) -> Result<bool, StoreError> {
    let Some(cluster) = state.clusters.get(start.cluster) else { return Ok(false) };
    let (worker, now) = (WorkerId::generate(), now_ms());
    let (secret, row) = mint(TokenKind::Enrolment, start.scope, now, &mut rand::rng());
    let sealed = match state.keyring.seal(&aad(worker), secret.expose().as_bytes()) {
        Ok(sealed) => sealed,
        Err(error) => {
            tracing::error!(%error, "a worker's token cannot be sealed; it is not ordered");
            return Ok(false);
        }
    };
    let token = Token {
        worker: Some(worker),
        pool: Some(cluster.row.name.clone()),
        shared: start.scope.is_none(),
        expires_ms: Some(now + ENROLMENT_MS),
        cluster: Some(start.cluster),
        node: Some(start.node.clone()),
        ..row
    };
    let row = PoolWorker {
        worker,
        cluster: start.cluster,
        node: start.node,
        state: PoolWorkerState::Pending,
        workspace: start.scope,
        cpu_millis: start.amounts.cpu_millis,
        memory_bytes: start.amounts.memory_bytes,
        gpu_type: start.gpu_type,
        gpu_count: start.amounts.gpus,
        enrolment: sealed,
        created_ms: now,
    };
    if !state.store.order_pool_worker(row.clone(), token, lease).await? {
        return Ok(false);
    }
    tracing::info!(%worker, cluster = %cluster.row.name, node = %row.node, cards = row.gpu_count, "a worker is ordered");
    state.clusters.ordered(row, Instant::now());
    send(state, worker);
    Ok(true)
}

/// Begins to stop a worker: it gets nothing more, and its Job is removed.
///
/// # Errors
/// When the database fails.
pub async fn stop(state: &Shared, worker: WorkerId, reason: &str) -> Result<(), StoreError> {
    if !state.store.set_pool_worker(worker, PoolWorkerState::Stopping).await? {
        return Ok(());
    }
    let now = Instant::now();
    state.clusters.update(worker, |w| {
        w.row.state = PoolWorkerState::Stopping;
        (w.delivery, w.since, w.idle_since) = (Delivery::Due(now), now, None);
        reason.clone_into(&mut w.reason);
    });
    tracing::info!(%worker, %reason, "a worker on a cluster is stopped");
    send(state, worker);
    Ok(())
}

/// A worker has enrolled or come back.
///
/// # Errors
/// When the database fails.
pub async fn came(state: &Shared, worker: WorkerId) -> Result<(), StoreError> {
    let Some(ordered) = state.clusters.worker(worker) else { return Ok(()) };
    if ordered.row.state == PoolWorkerState::Pending
        && let Some(reached) = state.store.pool_worker_came(worker).await?
    {
        // Another process may have noted its coming, or that it is to stop.
        state.clusters.reached(worker, reached, Instant::now());
        state.clusters.rested(ordered.row.cluster, &ordered.row.node);
    }
    Ok(())
}

/// Does what is due for every worker on a cluster.
///
/// # Errors
/// When the database fails.
pub async fn tend_all(state: &Shared) -> Result<(), StoreError> {
    let now = Instant::now();
    for ordered in state.clusters.workers() {
        let Some(cluster) = state.clusters.get(ordered.row.cluster) else { continue };
        let act = tend::tend(&view_of(state, &cluster, &ordered), now);
        let worker = ordered.row.worker;
        match act {
            Act::Wait => {}
            Act::Create | Act::Delete => send(state, worker),
            Act::Fail(why) => fail(state, &ordered, why).await?,
            Act::Lost(why) => {
                lost(state, worker, why).await?;
                stop(state, worker, why).await?;
            }
            Act::Forget => forget(state, worker).await?,
        }
    }
    Ok(())
}

fn view_of(state: &Shared, cluster: &ClusterNow, ordered: &Ordered) -> View {
    let worker = state.sessions.worker(ordered.row.worker);
    let picture = cluster.arrived.as_ref().map(|arrived| {
        let job = arrived.jobs.get(&ordered.row.worker);
        let phase = |job: &v1::WorkerJob| JobPhase::try_from(job.phase).unwrap_or(JobPhase::Pending);
        (arrived.jobs_taken, job.map(|job| Job { phase: phase(job) }))
    });
    View {
        state: ordered.row.state,
        delivery: ordered.delivery,
        since: ordered.since,
        agent: cluster.session.is_some(),
        picture,
        away_since: worker.as_ref().and_then(|w| w.away_since),
        connected: worker.is_some_and(|w| w.session.is_some()),
    }
}

/// A worker that will not come.
async fn fail(state: &Shared, ordered: &Ordered, why: &str) -> Result<(), StoreError> {
    let reason = match ordered.reason.as_str() {
        "" => why.to_owned(),
        told => format!("{why}: {told}"),
    };
    tracing::warn!(worker = %ordered.row.worker, node = %ordered.row.node, %reason, "a worker does not come up");
    state.clusters.rest(ordered.row.cluster, &ordered.row.node, &reason, Instant::now());
    stop(state, ordered.row.worker, &reason).await
}

/// What a worker ran is lost: its pod is gone for certain.
///
/// # Errors
/// When the database fails.
pub async fn lost(state: &Shared, worker: WorkerId, why: &str) -> Result<(), StoreError> {
    workers::lose_all(state, worker, &format!("its worker is gone: {why}")).await?;
    state.placeable.notify_one();
    Ok(())
}

async fn forget(state: &Shared, worker: WorkerId) -> Result<(), StoreError> {
    for token in state.store.forget_pool_worker(worker, now_ms()).await? {
        state.sessions.revoke(token);
    }
    lost(state, worker, "its Job was removed").await?;
    state.clusters.forget(worker);
    Ok(())
}

/// Sends the order that is due for a worker, unless one is under way.
fn send(state: &Shared, worker: WorkerId) {
    let now = Instant::now();
    let Some(ordered) = state.clusters.worker(worker) else { return };
    let session = state.clusters.get(ordered.row.cluster).and_then(|c| c.session);
    let (Some(session), Delivery::Due(at)) = (session, ordered.delivery) else { return };
    if at > now {
        return;
    }
    let Some(order) = order_of(state, &ordered) else { return };
    state.clusters.update(worker, |w| w.delivery = Delivery::UnderWay);
    let state = state.clone();
    let sent = ordered.row.state;
    state.clone().tasks.spawn(async move {
        let answered = timeout(ORDER, ask(&session, order)).await;
        let answer = match answered {
            Ok(Ok(answer)) => answer.failure,
            Ok(Err(error)) => Some(unavailable(error.to_string())),
            Err(_) => Some(unavailable("its agent does not answer".to_owned())),
        };
        settle(&state, worker, sent, answer).await;
    });
}

fn unavailable(text: String) -> v1::Failure {
    v1::Failure { code: FailureCode::Unavailable.into(), text, hint: String::new() }
}

async fn ask(
    session: &levers9_transport::accept::SessionHandle,
    order: order_open::Order,
) -> Result<v1::OrderAnswer, levers9_transport::StreamError> {
    let open = v1::OrderOpen { order: Some(order) };
    let mut stream = session.open(stream_open::Kind::Order(open)).await?;
    stream.send.finish();
    stream.recv.expect().await
}

/// Notes what an agent answered to an order.
async fn settle(state: &Shared, worker: WorkerId, sent: PoolWorkerState, failure: Option<v1::Failure>) {
    let now = Instant::now();
    let Some(ordered) = state.clusters.worker(worker) else { return };
    if state.draining.is_cancelled() {
        // Whoever takes over orders it again, and has its own answer.
        return;
    }
    if ordered.row.state != sent {
        if ordered.row.state == PoolWorkerState::Stopping {
            // It was to be stopped meanwhile: that order is due now.
            state.clusters.update(worker, |w| w.delivery = Delivery::Due(now));
            send(state, worker);
        }
        // A worker that came before its order's answer needs no order.
        return;
    }
    let Some(failure) = failure else {
        state.clusters.update(worker, |w| w.delivery = Delivery::Done(now));
        return state.placeable.notify_one();
    };
    let code = FailureCode::try_from(failure.code).unwrap_or(FailureCode::Internal);
    let temporary =
        matches!(code, FailureCode::Unavailable | FailureCode::Timeout) || sent != PoolWorkerState::Pending;
    if temporary {
        tracing::debug!(%worker, text = %failure.text, "an order is tried again");
        state.clusters.update(worker, |w| {
            w.delivery = Delivery::Due(now + AGAIN);
            w.reason.clone_from(&failure.text);
        });
    } else {
        state.clusters.update(worker, |w| w.delivery = Delivery::Done(now));
        let why = format!("its agent refused the order: {}", failure.text);
        if let Err(error) = fail(state, &ordered, &why).await {
            tracing::warn!(%error, %worker, "a refused order cannot be noted yet");
        }
    }
}

fn order_of(state: &Shared, ordered: &Ordered) -> Option<order_open::Order> {
    let row = &ordered.row;
    if row.state == PoolWorkerState::Stopping {
        return Some(order_open::Order::Delete(v1::DeleteWorker { worker: row.worker.to_wire() }));
    }
    let cluster = state.clusters.get(row.cluster)?;
    let secret = match state.keyring.open(&aad(row.worker), &row.enrolment) {
        Ok(secret) => Secret::new(String::from_utf8_lossy(&secret)),
        Err(error) => {
            tracing::error!(%error, worker = %row.worker, "a worker's token cannot be opened");
            return None;
        }
    };
    let amounts = v1::NodeAmounts {
        cpu_millis: row.cpu_millis,
        memory_bytes: row.memory_bytes,
        cards: row.gpu_count,
        pods: 1,
    };
    Some(order_open::Order::Create(v1::CreateWorker {
        worker: row.worker.to_wire(),
        image: image(state, &cluster.row),
        namespace: cluster.row.settings.namespace,
        node: row.node.clone(),
        amounts: Some(amounts),
        gpu_type: row.gpu_type.clone(),
        env: Vec::new(),
        enrolment_token: secret.expose().to_owned(),
        runtime: RUNTIME.to_owned(),
        host_network: state.options.worker.host_network && RUNTIME != "process",
    }))
}

/// The image of a cluster's workers.
#[must_use]
pub fn image(state: &Shared, cluster: &Cluster) -> String {
    match cluster.settings.worker_image.as_str() {
        "" => state.options.worker.image.clone().unwrap_or_default(),
        image => image.to_owned(),
    }
}
