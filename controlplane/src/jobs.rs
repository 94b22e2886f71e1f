//! What a submitted command becomes, and how a task is told to end. The calls
//! of the CLI use it now; the SDK's doors open onto the same functions.

use levers9_wire::id::StubId;
use levers9_wire::token::Secret;
use levers9_wire::{RequestId, TaskId, WorkspaceId, v1, valid};
use prost::Message as _;

use crate::ingress::route;
use crate::recover;
use crate::runs;
use crate::scheduler::{candidates, core, fence_of, provision, waiting_of};
use crate::seal::Sealed;
use crate::state::{Shared, now_ms};
use crate::store::{Exposed, Fence, NewStub, NewTask, StoreError, Submitted, TaskNow, TaskStatus};

/// Why a job is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// No known worker could ever run it.
    #[error("{0}")]
    Impossible(String),
    /// The database does not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its environment could not be sealed.
    #[error("the job cannot be stored: {0}")]
    Seal(#[from] crate::seal::SealError),
}

/// Accepts a job once; repeated with the same request id it is the same task.
///
/// # Errors
/// When it could never run, or cannot be stored.
pub async fn submit(
    state: &Shared,
    workspace: WorkspaceId,
    request: RequestId,
    job: valid::Submit,
) -> Result<v1::SubmitAnswer, SubmitError> {
    let now = now_ms();
    let id = TaskId::generate();
    let asked = core::Waiting {
        task: id,
        workspace,
        need: core::need_of(&job.resources),
        gpu_type: job.resources.gpu_type.clone(),
        pool: job.pool.clone(),
    };
    let mut workers = candidates(state).await?;
    if provision::impossible(state, &workers, &asked).is_some() {
        // Another process may know of a worker or cluster that is new.
        recover::refresh(state).await?;
        workers = candidates(state).await?;
        if let Some(reason) = provision::impossible(state, &workers, &asked) {
            return Err(SubmitError::Impossible(reason));
        }
    }
    let note = provision::note(state, &workers, &asked).await?;
    let exposed = exposed(&job);
    let urls = exposed.as_ref().map(|e| state.options.serving.urls(&e.slug, &e.ports)).unwrap_or_default();
    let note = match &exposed {
        Some(_) if urls.is_empty() => {
            join(&note, "its ports have no URL: the operator has set no containerUrl")
        }
        _ => note,
    };
    let answer = v1::SubmitAnswer { task: id.to_wire(), note, urls };
    let config = config_of(&job);
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &config);
    let mut config_hash = [0u8; 32];
    config_hash.copy_from_slice(hash.as_ref());
    let stub = NewStub {
        id: StubId::generate(),
        kind: "container".to_owned(),
        name: job.name.clone(),
        config,
        config_hash,
        object: None,
        image: None,
    };
    let env = v1::ContainerSpec {
        env: job.env.0.into_iter().map(|(name, value)| v1::EnvVar { name, value }).collect(),
        ..v1::ContainerSpec::default()
    };
    let task = NewTask {
        id,
        workspace,
        name: job.name,
        command: job.command,
        env: state.keyring.seal(&env_aad(id), &env.encode_to_vec())?,
        resources: job.resources,
        timeout_ms: job.timeout.and_then(|t| i64::try_from(t.as_millis()).ok()),
        max_retries: job.max_retries,
        detached: job.detached,
        pool: job.pool,
        exposed,
        created_ms: now,
    };
    let sealed = state.keyring.seal(&answer_aad(request), &answer.encode_to_vec())?;
    match state.store.submit(stub, task, request, sealed).await? {
        Submitted::New => {
            // Until somebody follows it, it counts as deserted.
            state.store.set_callers_gone(id, Some(now)).await?;
            state.placeable.notify_one();
            Ok(answer)
        }
        Submitted::Repeated(sealed) => {
            let plain = state.keyring.open(&answer_aad(request), &sealed)?;
            Ok(v1::SubmitAnswer::decode(plain.as_slice()).unwrap_or(answer))
        }
    }
}

/// What HTTP requests may reach of a job, under a slug nobody guesses.
fn exposed(job: &valid::Submit) -> Option<Exposed> {
    let ports: Vec<u16> = job.ports.iter().map(|port| port.get()).collect();
    let slug = || route::slug(&job.name, &mut rand::rng());
    (!ports.is_empty()).then(|| Exposed { slug: slug(), ports, public: job.public })
}

fn join(one: &str, other: &str) -> String {
    if one.is_empty() { other.to_owned() } else { format!("{one}; {other}") }
}

/// What makes two submissions the same stub: everything but the environment,
/// whose values may be secrets.
fn config_of(job: &valid::Submit) -> Vec<u8> {
    let config = v1::SubmitRequest {
        name: job.name.clone(),
        command: job.command.clone(),
        resources: Some(job.resources.clone()),
        pool: job.pool.clone().unwrap_or_default(),
        ..v1::SubmitRequest::default()
    };
    config.encode_to_vec()
}

fn env_aad(task: TaskId) -> Vec<u8> {
    [b"env".as_slice(), task.as_bytes()].concat()
}

/// What a remembered answer is sealed for.
#[must_use]
pub fn answer_aad(request: RequestId) -> Vec<u8> {
    [b"answer".as_slice(), request.as_bytes()].concat()
}

/// What a worker is told to run.
#[must_use]
pub fn spec(
    state: &Shared,
    now: &TaskNow,
    fence: Fence,
    env: Option<&Sealed>,
    token: &Secret,
) -> v1::ContainerSpec {
    let opened = env.and_then(|sealed| state.keyring.open(&env_aad(fence.task), sealed).ok());
    let env =
        opened.and_then(|plain| v1::ContainerSpec::decode(plain.as_slice()).ok()).unwrap_or_default().env;
    let mut resources = now.task.resources.clone();
    let need = core::need_of(&resources);
    (resources.cpu_millis, resources.memory_bytes) = (need.cpu_millis, need.memory_bytes);
    v1::ContainerSpec {
        workspace: now.task.workspace.to_wire(),
        command: now.task.command.clone(),
        env,
        resources: Some(resources),
        task: fence.task.to_wire(),
        attempt: fence.number.0,
        timeout_ms: now.task.timeout_ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0),
        name: now.task.name.clone(),
        token: token.expose().to_owned(),
    }
}

/// Asks a task to end; answers its status afterwards, `None` for an unknown one.
///
/// # Errors
/// When the database fails.
pub async fn cancel(state: &Shared, task: TaskId, reason: &str) -> Result<Option<TaskStatus>, StoreError> {
    let Some(now) = state.store.cancel(task, reason.to_owned(), now_ms()).await? else { return Ok(None) };
    if !now.task.status.is_final()
        && let Some(fence) = fence_of(&now)
    {
        state.runs.stop(fence.container, fence.generation, runs::cancel_order(reason));
    }
    state.logs.status_changed(task);
    state.placeable.notify_one();
    Ok(Some(now.task.status))
}

/// What to tell somebody who waits for a task that has no worker yet.
///
/// # Errors
/// When the database fails.
pub async fn waiting_note(state: &Shared, now: &TaskNow) -> Result<String, StoreError> {
    if !now.task.status.is_waiting() || now.attempt.as_ref().is_some_and(|a| a.state.is_held()) {
        return Ok(String::new());
    }
    provision::note(state, &candidates(state).await?, &waiting_of(now)).await
}
