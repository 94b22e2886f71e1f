//! Calls about work: submitting, listing and ending tasks and containers.

use levers9_wire::v1::{self, FailureCode, call_answer};
use levers9_wire::{ContainerId, RequestId, TaskId, valid};

use super::{Answered, Refused, allowed};
use crate::auth::{Action, Identity, authorize};
use crate::jobs::{self, SubmitError};
use crate::scheduler::{provision, waiting_of};
use crate::state::{Shared, unsigned};
use crate::store::{Attempt, ContainerState, TaskFilter, TaskNow, TaskStatus};

/// Rows in a list when nobody says how many.
const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 1_000;

pub(super) async fn submit(
    state: &Shared,
    who: &Identity,
    id: RequestId,
    asked: v1::SubmitRequest,
) -> Answered {
    let workspace = allowed(who, Action::Submit)?;
    let job =
        valid::Submit::try_from(asked).map_err(|e| Refused::new(FailureCode::Invalid, e.to_string()))?;
    match jobs::submit(state, workspace, id, job).await {
        Ok(answer) => Ok(call_answer::Answer::Submit(answer)),
        Err(SubmitError::Impossible(reason)) => Err(Refused::new(FailureCode::Impossible, reason)
            .hint("ask for less, or see what there is: levers9 worker list")),
        Err(SubmitError::Store(error)) => Err(error.into()),
        Err(error) => Err(Refused::new(FailureCode::Internal, error.to_string())),
    }
}

pub(super) async fn task_list(state: &Shared, who: &Identity, asked: v1::TaskListRequest) -> Answered {
    allowed(who, Action::Read)?;
    let statuses = asked.status.iter().map(|word| status(word)).collect::<Result<Vec<_>, _>>()?;
    let before =
        TaskId::from_wire(&asked.before).map_err(|e| Refused::new(FailureCode::Invalid, e.to_string()))?;
    let limit = if asked.limit == 0 { DEFAULT_LIMIT } else { asked.limit.min(MAX_LIMIT) };
    let tasks = state.store.tasks(TaskFilter { scope: who.scope(), statuses, before, limit }).await?;
    Ok(call_answer::Answer::TaskList(v1::TaskListAnswer {
        tasks: tasks.iter().map(|now| to_task(state, now)).collect(),
    }))
}

fn status(word: &str) -> Result<TaskStatus, Refused> {
    TaskStatus::from_word(&word.to_ascii_uppercase()).ok_or_else(|| {
        let known: Vec<_> = TaskStatus::ALL.iter().map(|s| s.word()).collect();
        let word = levers9_wire::name::printable(word, 32);
        Refused::new(
            FailureCode::Invalid,
            format!("{word:?} is no task status; they are {}", known.join(", ")),
        )
    })
}

/// A task somebody may see. Another workspace's is not there.
async fn find(state: &Shared, who: &Identity, id: &[u8]) -> Result<TaskNow, Refused> {
    let missing = || Refused::not_found("task").hint("levers9 task list shows them");
    let id = TaskId::from_wire(id).ok().flatten().ok_or_else(missing)?;
    let now = state.store.task(id).await?.ok_or_else(missing)?;
    if authorize(who, Action::Read, Some(now.task.workspace)) { Ok(now) } else { Err(missing()) }
}

pub(super) async fn task_show(state: &Shared, who: &Identity, asked: v1::TaskShowRequest) -> Answered {
    let now = find(state, who, &asked.task).await?;
    let attempts = state.store.attempts(now.task.id).await?.iter().map(to_attempt).collect();
    Ok(call_answer::Answer::TaskShow(v1::TaskShowAnswer { task: Some(to_task(state, &now)), attempts }))
}

pub(super) async fn task_why(state: &Shared, who: &Identity, asked: v1::TaskWhyRequest) -> Answered {
    let now = find(state, who, &asked.task).await?;
    let task = &now.task;
    let status = task.status.word().to_owned();
    let held = now.attempt.as_ref().is_some_and(|attempt| attempt.state.is_held());
    if !task.status.is_waiting() || held {
        let summary = match (task.status.is_final(), held) {
            (true, _) => format!("the task has ended: {status}"),
            (false, true) => "the task has a worker".to_owned(),
            (false, false) => "the task does not wait for a worker".to_owned(),
        };
        return Ok(call_answer::Answer::TaskWhy(v1::TaskWhyAnswer { status, summary, places: Vec::new() }));
    }
    let why = provision::why(state, &waiting_of(&now)).await?;
    Ok(call_answer::Answer::TaskWhy(v1::TaskWhyAnswer { status, ..why }))
}

pub(super) async fn task_stop(state: &Shared, who: &Identity, asked: v1::TaskStopRequest) -> Answered {
    let now = find(state, who, &asked.task).await?;
    if !authorize(who, Action::Stop, Some(now.task.workspace)) {
        return Err(Refused::new(FailureCode::Denied, "this token may not stop tasks"));
    }
    let status = jobs::cancel(state, now.task.id, "stopped by a user").await?.unwrap_or(now.task.status);
    Ok(call_answer::Answer::TaskStop(v1::TaskStopAnswer { status: status.word().to_owned() }))
}

pub(super) async fn container_list(
    state: &Shared,
    who: &Identity,
    asked: v1::ContainerListRequest,
) -> Answered {
    allowed(who, Action::Read)?;
    let statuses = if asked.all { Vec::new() } else { TaskStatus::LIVE.to_vec() };
    let filter = TaskFilter { scope: who.scope(), statuses, before: None, limit: MAX_LIMIT };
    let tasks = state.store.tasks(filter).await?;
    let containers = tasks.iter().filter_map(|now| to_container(now, asked.all)).collect();
    Ok(call_answer::Answer::ContainerList(v1::ContainerListAnswer { containers }))
}

pub(super) async fn container_stop(
    state: &Shared,
    who: &Identity,
    asked: v1::ContainerStopRequest,
) -> Answered {
    let missing = || Refused::not_found("container").hint("levers9 container list shows them");
    let id = ContainerId::from_wire(&asked.container).ok().flatten().ok_or_else(missing)?;
    let task = state.store.task_of_container(id).await?.ok_or_else(missing)?;
    let now = state.store.task(task).await?.ok_or_else(missing)?;
    if !authorize(who, Action::Read, Some(now.task.workspace)) {
        return Err(missing());
    }
    if !authorize(who, Action::Stop, Some(now.task.workspace)) {
        return Err(Refused::new(FailureCode::Denied, "this token may not stop containers"));
    }
    // A container that serves one task ends with it.
    jobs::cancel(state, task, "its container was stopped by a user").await?;
    let after = state.store.task(task).await?;
    let word = after.and_then(|now| now.container).map_or(ContainerState::Ended, |c| c.state).word();
    Ok(call_answer::Answer::ContainerStop(v1::ContainerStopAnswer { state: word.to_owned() }))
}

fn to_task(state: &Shared, now: &TaskNow) -> v1::Task {
    let task = &now.task;
    let exposed = task.exposed.as_ref();
    v1::Task {
        id: task.id.to_wire(),
        name: task.name.clone(),
        status: task.status.word().to_owned(),
        command: task.command.clone(),
        created_unix_ms: unsigned(task.created_ms),
        started_unix_ms: task.started_ms.map(unsigned),
        ended_unix_ms: task.ended_ms.map(unsigned),
        exit_code: task.exit_code,
        reason: task.reason.clone(),
        attempts: task.attempts,
        container: now.attempt.as_ref().map(|a| a.container.to_wire()).unwrap_or_default(),
        worker: now.attempt.as_ref().map(|a| a.worker.to_wire()).unwrap_or_default(),
        pool: task.pool.clone().unwrap_or_default(),
        resources: Some(task.resources.clone()),
        detached: task.detached,
        timeout_ms: task.timeout_ms.map_or(0, unsigned),
        max_retries: task.max_retries,
        ports: exposed.map(|e| e.ports.iter().map(|port| u32::from(*port)).collect()).unwrap_or_default(),
        public: exposed.is_some_and(|e| e.public),
        urls: exposed.map(|e| state.options.serving.urls(&e.slug, &e.ports)).unwrap_or_default(),
    }
}

fn to_attempt(attempt: &Attempt) -> v1::Attempt {
    v1::Attempt {
        number: attempt.number.0,
        container: attempt.container.to_wire(),
        generation: attempt.generation.0,
        worker: attempt.worker.to_wire(),
        state: attempt.state.word().to_owned(),
        created_unix_ms: unsigned(attempt.created_ms),
        ended_unix_ms: attempt.ended_ms.map(unsigned),
        reason: attempt.reason.clone(),
    }
}

fn to_container(now: &TaskNow, all: bool) -> Option<v1::Container> {
    let container = now.container.as_ref()?;
    if !all && container.state == ContainerState::Ended {
        return None;
    }
    Some(v1::Container {
        id: container.id.to_wire(),
        generation: container.generation.0,
        state: container.state.word().to_owned(),
        worker: container.worker.to_wire(),
        task: now.task.id.to_wire(),
        name: now.task.name.clone(),
        resources: Some(now.task.resources.clone()),
        created_unix_ms: unsigned(container.created_ms),
    })
}
