//! Serves an agent's session: takes its reports in. What is ordered of it is
//! [`super::orders`]'; whether it is let in at all is the gate's.

use std::collections::HashMap;
use std::time::Duration;

use levers9_transport::accept::{Ending, Session, SessionHandle};
use levers9_transport::link::Opened;
use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::v1::{self, AgentFacts, FailureCode, ResetCode, stream_open};
use levers9_wire::{ClusterId, InstanceId, TokenId, WorkerId, limits, valid};
use tokio::time::{Instant, timeout};

use super::{Arrived, ClusterNow};
use crate::state::{Shared, now_ms};

/// How long a report may take to come through.
const REPORT: Duration = Duration::from_secs(30);
/// Reports that are read at once; an agent resets the older ones.
const REPORTS: usize = 4;

/// An agent that was let in.
#[derive(Debug)]
pub struct Arrival {
    /// The token it came with.
    pub token: TokenId,
    /// Its hash.
    pub hash: crate::store::TokenHash,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its process.
    pub instance: InstanceId,
    /// What it says of itself.
    pub facts: AgentFacts,
    /// Its build.
    pub build: String,
}

/// Serves one agent until its session ends.
pub async fn serve(state: &Shared, mut session: Session, arrival: Arrival) {
    let handle = session.handle().clone();
    state.clusters.arrive(arrival.cluster, &handle, (arrival.facts.clone(), &arrival.build), Instant::now());
    seen(state, &arrival).await;
    state.placeable.notify_one();
    let reading = std::sync::Arc::new(tokio::sync::Semaphore::new(REPORTS));
    while let Some(Opened { kind, mut stream }) = session.next().await {
        let (opened, slot) = (Instant::now(), std::sync::Arc::clone(&reading).try_acquire_owned());
        match (kind, slot) {
            (stream_open::Kind::NodeReport(_), Ok(slot)) => {
                let state = state.clone();
                let from = Sender { cluster: arrival.cluster, session: handle.clone(), opened };
                state.clone().tasks.spawn(async move {
                    let _failed = timeout(REPORT, report(&state, &from, stream)).await;
                    drop(slot);
                });
            }
            (stream_open::Kind::NodeReport(_), Err(_)) => stream.abort(ResetCode::Busy),
            _ => stream.abort(ResetCode::Unsupported),
        }
    }
    let ending = handle.ended().await;
    if state.clusters.left(arrival.cluster, arrival.instance, &handle) {
        match ending {
            Ending::Lost(lost) => tracing::info!(cluster = %arrival.cluster, %lost, "an agent is away"),
            Ending::Bye(reason) => tracing::info!(cluster = %arrival.cluster, %reason, "an agent leaves"),
        }
    }
}

async fn seen(state: &Shared, arrival: &Arrival) {
    let noted =
        state.store.cluster_seen(arrival.cluster, &arrival.build, &arrival.facts.kubernetes, now_ms());
    if let Err(error) = noted.await {
        tracing::warn!(%error, cluster = %arrival.cluster, "the coming of an agent was not noted");
    }
}

/// Whose report it is.
struct Sender {
    cluster: ClusterId,
    session: SessionHandle,
    /// When its stream was opened.
    opened: Instant,
}

/// Reads one report and answers it.
async fn report(
    state: &Shared,
    &Sender { cluster, ref session, opened }: &Sender,
    stream: Stream,
) -> Result<(), StreamError> {
    let Stream { mut send, recv } = stream;
    let read: v1::NodeReport = recv.with_limit(limits::NODE_REPORT).expect().await?;
    let now = Instant::now();
    let answer = match valid::Report::try_from(read) {
        Ok(valid::Report(report)) => {
            let known = state.clusters.get(cluster);
            let of_current = |c: &ClusterNow| c.session.as_ref().is_some_and(|s| s.is_same(session));
            if let Some(ClusterNow { row, .. }) = known.filter(of_current) {
                take(state, cluster, report, (opened, now));
                let seen = state.store.cluster_seen(cluster, &row.agent_build, &row.kubernetes, now_ms());
                if let Err(error) = seen.await {
                    tracing::debug!(%error, %cluster, "a report was not noted");
                }
            }
            v1::NodeReportAnswer::default()
        }
        Err(error) => {
            tracing::warn!(%error, %cluster, "an agent's report is refused");
            let failure = v1::Failure {
                code: FailureCode::Invalid.into(),
                text: error.to_string(),
                hint: String::new(),
            };
            v1::NodeReportAnswer { failure: Some(failure) }
        }
    };
    send.send(&answer).await?;
    send.finish_and_deliver().await
}

fn take(state: &Shared, cluster: ClusterId, mut report: v1::NodeReport, (opened, now): (Instant, Instant)) {
    // A clock that began later than the picture was taken: as old as can be said.
    let ago = |age_ms| now.checked_sub(Duration::from_millis(age_ms)).unwrap_or(now);
    let (taken, jobs_taken) = (ago(report.age_ms), ago(report.jobs_age_ms));
    let jobs: HashMap<_, _> = std::mem::take(&mut report.jobs)
        .into_iter()
        .filter_map(|job| Some((WorkerId::from_wire(&job.worker).ok().flatten()?, job)))
        .collect();
    if state.clusters.reported(cluster, Arrived { opened, taken, jobs_taken, report, jobs }) {
        state.placeable.notify_one();
    }
}
