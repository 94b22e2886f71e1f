//! What the controlplane orders of the cluster: create a worker Job, delete
//! one, say how they are. Whatever it orders, nothing is created outside the
//! agent's namespace, its lent nodes and its image repository, and there is
//! never a second worker waiting on a node. The answer to an order that is
//! repeated is that of the first. A worker is deleted when its pod is gone.

mod rules;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Request as HttpRequest;
use kube::core::Request;
use kube::core::params::{DeleteParams, GetParams, PostParams, Preconditions, PropagationPolicy};
use levers9_wire::name::printable;
use levers9_wire::v1::{self, FailureCode, order_open};
use levers9_wire::valid::Create;
use levers9_wire::{WorkerId, limits};
use prost::Message as _;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout_at};

use crate::capacity::CLUSTER_LABEL;
use crate::eyes::Eyes;
use crate::kubernetes::{Api, ApiError};
use crate::picture::jobs::{Doomed, Left};
use crate::picture::own::{NODE_ANNOTATION, WORKER_LABEL};
use crate::template;

pub use rules::Own;

/// How long an order waits for what is being deleted to be gone; whoever gave
/// it waits a little longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a Job is tried to be created while one of its name goes away.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest an API server works on a request that nobody waits for any more.
const LATEST: Duration = Duration::from_secs(60);

/// Carries out orders; clones share everything.
#[derive(Debug, Clone)]
pub struct Orders {
    /// What the agent may do at all.
    own: Arc<Own>,
    eyes: Eyes,
    api: Arc<OnceLock<Api>>,
}

/// What is looked at of a Job that is there already.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Found {
    metadata: FoundMetadata,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct FoundMetadata {
    uid: String,
    labels: std::collections::BTreeMap<String, String>,
    annotations: std::collections::BTreeMap<String, String>,
    deletion_timestamp: Option<String>,
}

type Done = Result<(), v1::Failure>;

impl Orders {
    /// Orders for an agent. `api` is filled once there is a way to the API server.
    #[must_use]
    pub fn new(own: Own, eyes: Eyes, api: Arc<OnceLock<Api>>) -> Self {
        Self { own: Arc::new(own), eyes, api }
    }

    /// Carries out one order.
    pub async fn serve(&self, order: v1::OrderOpen) -> v1::OrderAnswer {
        let done = match order.order {
            Some(order_open::Order::Create(create)) => self.create(create).await,
            Some(order_open::Order::Delete(delete)) => self.delete(&delete).await,
            Some(order_open::Order::Observe(_)) => return self.observe(),
            None => Err(failure(FailureCode::Unsupported, "this agent does not know the order")),
        };
        v1::OrderAnswer { failure: done.err(), jobs: Vec::new() }
    }

    fn api(&self) -> Result<&Api, v1::Failure> {
        let none = || failure(FailureCode::Unavailable, "the agent has no way to the API server yet");
        self.api.get().ok_or_else(none)
    }

    async fn create(&self, order: v1::CreateWorker) -> Done {
        let until = Instant::now() + PATIENCE;
        let create = Create::try_from(order).map_err(|e| failure(FailureCode::Invalid, e))?;
        self.own.admit(&create)?;
        let api = self.api()?;
        let job = template::job(&create, &self.own.workers);
        let body = serde_json::to_vec(&job)
            .map_err(|_| failure(FailureCode::Internal, "the worker Job cannot be written"))?;
        let request = Request::new(self.path()).create(&PostParams::default(), body);
        let request = request.map_err(|e| failure(FailureCode::Internal, e))?;
        rules::take_room(&create, &mut self.eyes.picture(), Instant::now())?;
        // Should whoever asked be gone meanwhile, the Job may come all the same.
        let mut room = Room { orders: self, worker: create.worker, outcome: Outcome::Open };
        loop {
            match api.ask(request.clone()).await {
                Ok(_) => {
                    room.outcome = Outcome::Created;
                    tracing::info!(worker = %create.worker, node = create.node, "created a worker Job");
                    return Ok(());
                }
                Err(error) if error.is(409) => {
                    // This request has surely created nothing.
                    room.outcome = Outcome::Refused;
                    if self.is_there(api, &create).await? {
                        room.outcome = Outcome::Created;
                        return Ok(());
                    }
                }
                Err(error) => {
                    room.outcome = if error.leaves_open() { Outcome::Open } else { Outcome::Refused };
                    tracing::warn!(worker = %create.worker, node = create.node, %error, "no worker Job was created");
                    return Err(refused("the worker Job was not created", &error));
                }
            }
            if Instant::now() + AGAIN >= until {
                let text = "a worker Job of that name is still being deleted; order it again";
                return Err(failure(FailureCode::Unavailable, text));
            }
            sleep(AGAIN).await;
            room.outcome = Outcome::Open;
        }
    }

    /// Whether the Job of that name is this order's, from an earlier try;
    /// `false` when it is about to be gone.
    async fn is_there(&self, api: &Api, create: &Create) -> Result<bool, v1::Failure> {
        let found = self.find(api, create.worker).await;
        let found = found.map_err(|e| refused("a worker Job of that name cannot be read", &e))?;
        let Some(found) = found.filter(|found| found.metadata.deletion_timestamp.is_none()) else {
            return Ok(false);
        };
        let pinned = found.metadata.annotations.get(NODE_ANNOTATION);
        if self.is_own(&found, create.worker) && pinned == Some(&create.node) {
            Ok(true)
        } else {
            Err(failure(FailureCode::Conflict, "there is a Job of that name that is not this order's"))
        }
    }

    async fn delete(&self, order: &v1::DeleteWorker) -> Done {
        let until = Instant::now() + PATIENCE;
        let worker = WorkerId::from_wire(&order.worker).map_err(|e| failure(FailureCode::Invalid, e))?;
        let worker = worker.ok_or_else(|| failure(FailureCode::Invalid, "the worker is missing"))?;
        let api = self.api()?;
        let found = self.find(api, worker).await;
        match found.map_err(|e| refused("the worker Job cannot be read", &e))? {
            None => self.eyes.picture().jobs.missing(worker, Instant::now()),
            Some(found) if !self.is_own(&found, worker) => {
                let text = "the Job of that name is not a worker of this cluster";
                return Err(failure(FailureCode::Denied, text));
            }
            Some(found) if found.metadata.deletion_timestamp.is_some() => {}
            Some(found) => {
                let only = Preconditions { uid: Some(found.metadata.uid), resource_version: None };
                let removed = self.remove(api, worker, only).await;
                removed.map_err(|e| refused("the worker Job was not deleted", &e))?;
                tracing::info!(%worker, "deleted a worker Job");
            }
        }
        self.gone(worker, until).await
    }

    /// Waits until the API server shows neither a Job nor a pod of a worker.
    async fn gone(&self, worker: WorkerId, until: Instant) -> Done {
        let mut touches = self.eyes.touches();
        loop {
            let Some(left) = self.eyes.picture().jobs.left(worker) else { return Ok(()) };
            if !matches!(timeout_at(until, touches.changed()).await, Ok(Ok(()))) {
                return Err(failure(
                    FailureCode::Unavailable,
                    match left {
                        Left::Coming => "the worker Job is being created; order it again",
                        Left::Job => {
                            "the worker Job is being deleted, its pod has yet to end; order it again"
                        }
                        Left::Pod => "the worker Job is gone, a pod of it has yet to end; order it again",
                    },
                ));
            }
        }
    }

    fn observe(&self) -> v1::OrderAnswer {
        let now_ms = self.now_ms();
        let jobs = self.eyes.picture().jobs.wire(now_ms).take(limits::JOBS).collect();
        let mut answer = v1::OrderAnswer { failure: None, jobs };
        while answer.encoded_len() > limits::FRAME / 2 {
            let fewer = answer.jobs.len() / 2;
            answer.jobs.truncate(fewer);
        }
        answer
    }

    /// Deletes the Jobs whose pod has not started in time or was replaced, as
    /// they were found.
    pub async fn clean_up(&self) {
        let Some(api) = self.api.get() else { return };
        let doomed = rules::doomed(&self.eyes.picture(), Instant::now(), self.now_ms());
        for Doomed { worker, uid, version, why } in doomed {
            let as_found = Preconditions { uid: Some(uid), resource_version: version };
            match self.remove(api, worker, as_found).await {
                Ok(()) => tracing::warn!(%worker, %why, "deleted a worker Job"),
                // It is not any more what it was.
                Err(error) if error.is(409) => {}
                Err(error) => tracing::warn!(%worker, %why, %error, "a worker Job was not deleted"),
            }
        }
    }

    /// The API server's time, in Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        let own = || i64::try_from(levers9_wire::clock::unix_millis()).unwrap_or(i64::MAX);
        self.api.get().map_or_else(own, Api::now_ms)
    }

    fn path(&self) -> String {
        format!("/apis/batch/v1/namespaces/{}/jobs", self.own.workers.namespace)
    }

    async fn find(&self, api: &Api, worker: WorkerId) -> Result<Option<Found>, ApiError> {
        let name = template::job_name(worker);
        let request = Request::new(self.path()).get(&name, &GetParams::default());
        match api.ask(request.map_err(ApiError::garbage)?).await {
            Ok(body) => serde_json::from_slice(&body).map(Some).map_err(ApiError::garbage),
            Err(error) if error.is(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes a Job and, before it is gone itself, its pod.
    async fn remove(&self, api: &Api, worker: WorkerId, only: Preconditions) -> Result<(), ApiError> {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            preconditions: Some(only),
            ..DeleteParams::default()
        };
        let request = Request::new(self.path()).delete(&template::job_name(worker), &params);
        let request: HttpRequest<Vec<u8>> = request.map_err(ApiError::garbage)?;
        match api.ask(request).await {
            Err(error) if !error.is(404) => Err(error),
            _ => Ok(()),
        }
    }

    fn is_own(&self, found: &Found, worker: WorkerId) -> bool {
        let labels = &found.metadata.labels;
        labels.get(CLUSTER_LABEL) == Some(&self.own.workers.cluster.to_string())
            && labels.get(WORKER_LABEL) == Some(&worker.to_string())
    }
}

/// What came of a request to create a Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The Job is there.
    Created,
    /// It may be there, or come.
    Open,
    /// It was not created.
    Refused,
}

/// Room for a worker that is being created. Where its Job was surely not
/// created it is given back; else it is kept until the watch has shown the Job,
/// or has had the time to.
struct Room<'a> {
    orders: &'a Orders,
    worker: WorkerId,
    outcome: Outcome,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let jobs = &mut self.orders.eyes.picture().jobs;
        let now = Instant::now();
        match self.outcome {
            Outcome::Created => jobs.answered(self.worker, now),
            Outcome::Open => jobs.answered(self.worker, now + LATEST),
            Outcome::Refused => jobs.refused(self.worker),
        }
    }
}

/// A failure in the words of the wire.
pub(crate) fn failure(code: FailureCode, text: impl ToString) -> v1::Failure {
    v1::Failure { code: code.into(), text: printable(&text.to_string(), 500), hint: String::new() }
}

/// What the API server's refusal means for whoever ordered.
fn refused(what: &str, error: &ApiError) -> v1::Failure {
    let code = match error {
        ApiError::Refused { code: 403, .. } => FailureCode::Denied,
        ApiError::Refused { code: 400 | 422, .. } => FailureCode::Invalid,
        _ => FailureCode::Unavailable,
    };
    failure(code, format!("{what}: {error}"))
}

#[cfg(test)]
mod tests;
