//! What has to be done now and then: renewing certificates, forgetting what is
//! old, keeping logs within their bounds. Each round does a little; what fails
//! is said once and tried again next time.

use std::time::Duration;

use levers9_transport::cert::{Authority, CertError, Files};
use tokio::time::{MissedTickBehavior, interval};

use crate::state::{Shared, now_ms};
use crate::store::{Segment, StoreError, WorkerState};

const EVERY: Duration = Duration::from_secs(30);
const DAY_MS: i64 = 86_400_000;
/// Answers are kept a day, ended tasks thirty.
const ANSWERS_MS: i64 = DAY_MS;
const TASKS_MS: i64 = 30 * DAY_MS;
/// A worker that was away this long is forgotten.
const WORKER_AWAY: Duration = Duration::from_secs(86_400);
/// Segments or tasks removed in one round.
const BATCH: u32 = 500;

/// Where the certificate comes from.
#[derive(Debug)]
pub enum Certificates {
    /// A CA of our own.
    Own(Authority),
    /// Files an operator keeps.
    Files(Files),
}

impl Certificates {
    fn renew(&self) -> Result<bool, CertError> {
        match self {
            Self::Own(authority) => authority.renew(levers9_wire::clock::unix_millis() / 1_000),
            Self::Files(files) => files.refresh(),
        }
    }
}

/// Runs until the controlplane stops.
pub async fn run(state: Shared, certificates: Certificates) {
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut said = (None, None);
    while state.stopping.run_until_cancelled(tick.tick()).await.is_some() {
        let renewed = certificates.renew();
        if matches!(renewed, Ok(true)) {
            tracing::info!("showing a renewed certificate from now on");
        }
        say(
            &mut said.0,
            renewed.err().map(|e| e.to_string()),
            "the certificate in force stays: the new one is no good",
        );
        let tidied = tidy(&state).await;
        say(&mut said.1, tidied.err().map(|e| e.to_string()), "old rows and logs cannot be removed now");
        state.logs.tidy();
    }
}

/// Logs a problem when it is another than last time.
fn say(before: &mut Option<String>, problem: Option<String>, what: &str) {
    if *before != problem {
        if let Some(problem) = &problem {
            tracing::warn!(%problem, "{what}");
        }
        *before = problem;
    }
}

async fn tidy(state: &Shared) -> Result<(), StoreError> {
    let now = now_ms();
    state.store.forget_answers(now - ANSWERS_MS).await?;
    forget_workers(state).await?;
    bound_logs(state, now).await?;
    state.store.delete_tasks_older_than(now - TASKS_MS, BATCH).await?;
    Ok(())
}

async fn forget_workers(state: &Shared) -> Result<(), StoreError> {
    for worker in state.sessions.workers() {
        if worker.given_up && worker.away_since.is_some_and(|since| since.elapsed() >= WORKER_AWAY) {
            state.store.set_worker_state(worker.id, WorkerState::Gone).await?;
            state.sessions.forget_worker(worker.id);
        }
    }
    Ok(())
}

/// Removes the oldest segments while they are too old or all are too much.
async fn bound_logs(state: &Shared, now: i64) -> Result<(), StoreError> {
    let oldest_kept = now - i64::try_from(state.options.log_age_max.as_millis()).unwrap_or(i64::MAX);
    let mut over = state.store.segment_totals().await?.bytes.saturating_sub(state.options.log_bytes_max);
    let mut goes: Vec<Segment> = Vec::new();
    for segment in state.store.oldest_segments(BATCH).await? {
        if segment.created_ms >= oldest_kept && over == 0 {
            break;
        }
        over = over.saturating_sub(segment.bytes);
        goes.push(segment);
    }
    // Rows first: an object nobody names is only space, a row without one is an error.
    state.store.delete_segments(goes.iter().map(|segment| segment.id).collect()).await?;
    for segment in goes {
        if let Err(error) = state.logs.objects.delete(&segment.object_key).await {
            tracing::warn!(%error, key = %segment.object_key, "a log segment is left over");
        }
    }
    Ok(())
}
