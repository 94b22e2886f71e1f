//! What an order may not ask for, and whether there is room for what it asks
//! for. Pure.

use std::time::Duration;

use levers9_wire::limits;
use levers9_wire::v1::{self, FailureCode};
use levers9_wire::valid::{self, Create};
use tokio::time::Instant;

use super::failure;
use crate::picture::jobs::{Doomed, Full};
use crate::picture::{Picture, STALE};
use crate::template::{LEAST_MEMORY, Settings};

/// A picture by which Jobs are removed is no older than this.
const FRESH: Duration = Duration::from_secs(60);

/// What the agent was started with that no order changes.
#[derive(Debug, Clone)]
pub struct Own {
    /// What all its workers have in common.
    pub workers: Settings,
    /// The image repository it starts workers from.
    pub repository: String,
}

impl Own {
    /// Refuses what is not this agent's to do.
    pub(super) fn admit(&self, create: &Create) -> Result<(), v1::Failure> {
        let denied = |text: String| Err(failure(FailureCode::Denied, text));
        let Settings { namespace, runtime, .. } = &self.workers;
        if create.namespace != *namespace {
            return denied(format!(
                "this agent creates workers in namespace {namespace} only, not in {}",
                create.namespace
            ));
        }
        if valid::repository(&create.image) != self.repository {
            return denied(format!(
                "this agent starts workers from {} only, not from {}",
                self.repository, create.image
            ));
        }
        if create.runtime != runtime.word() {
            let own = runtime.word();
            return denied(format!("this agent starts {own} workers only, not {}", create.runtime));
        }
        if create.amounts.cards > 0 && create.gpu_type.is_empty() {
            return Err(failure(FailureCode::Invalid, "the type of the worker's cards is missing"));
        }
        let least = limits::WORKER_MEMORY + LEAST_MEMORY;
        if create.amounts.memory_bytes < least {
            let text = format!(
                "a worker needs {least} bytes of memory at least, not {}",
                create.amounts.memory_bytes
            );
            return Err(failure(FailureCode::Invalid, text));
        }
        if create.enrolment.is_empty() {
            return Err(failure(FailureCode::Invalid, "the enrolment token is missing"));
        }
        if create.env.0.iter().any(|(_, value)| std::str::from_utf8(value).is_err()) {
            return Err(failure(FailureCode::Invalid, "an environment variable is not text"));
        }
        Ok(())
    }
}

/// Takes room for a worker, if its node is lent and there is any.
pub(super) fn take_room(create: &Create, picture: &mut Picture, now: Instant) -> Result<(), v1::Failure> {
    match picture.age(now) {
        None => {
            return Err(failure(FailureCode::Unavailable, "the agent has not seen the cluster's nodes yet"));
        }
        Some(age) if age > STALE => {
            let seconds = age.as_secs();
            let text = format!("what the agent knows of the cluster is {seconds} s old");
            return Err(failure(FailureCode::Unavailable, text));
        }
        Some(_) => {}
    }
    let node = create.node.as_str();
    if !picture.books.is_lent(node) {
        let text = format!("node {node} is not lent: it does not exist, or the selector does not name it");
        return Err(failure(FailureCode::Denied, text));
    }
    let ready = picture.books.ready();
    picture.jobs.order(create.worker, node, ready).map_err(|full| match full {
        Full::Node(worker) => {
            let text = format!("worker {worker} on node {node} has not started yet");
            failure(FailureCode::Conflict, text)
        }
        Full::Cluster(pending) => {
            let text = format!("{pending} workers have not started yet, and {ready} nodes are ready for one");
            failure(FailureCode::Busy, text)
        }
    })
}

/// The Jobs to remove. By an old picture none is: a pod may have started since.
pub(super) fn doomed(picture: &Picture, now: Instant, now_ms: i64) -> Vec<Doomed> {
    if picture.age(now).is_some_and(|age| age <= FRESH) { picture.jobs.doomed(now_ms) } else { Vec::new() }
}
