//! How a task moves once it exists: what workers report, what the
//! controlplane finds out about them, and what people ask for.
//!
//! Whatever concerns an attempt is fenced: it counts only while that attempt,
//! in that container and generation, is the task's current one and has not
//! ended. A final status never changes again.

use levers9_wire::{AttemptNumber, ContainerId, Generation, TaskId};

use super::sql::{Sql, number};
use super::task_types::{Attempt, AttemptState, ContainerState, Task, TaskNow, TaskStatus};
use super::{Store, StoreError, tasks, tokens};

/// Which attempt a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The task.
    pub task: TaskId,
    /// Which try of it.
    pub number: AttemptNumber,
    /// Where that runs.
    pub container: ContainerId,
    /// Which incarnation of that.
    pub generation: Generation,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is stored; this is the task's status now.
    Done(TaskStatus),
    /// It was stored before.
    Duplicate,
    /// It is about an attempt that no longer counts, or never did.
    Stale,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// The attempt's last state.
    pub state: AttemptState,
    /// Why, in words; may be empty.
    pub reason: String,
    /// What that means for the task.
    pub then: Then,
    /// How many log records the attempt has in all, where that is known.
    pub log_total: Option<u64>,
    /// The worker's event that says so; none when the controlplane decides.
    pub event: Option<u64>,
    /// Now.
    pub now_ms: i64,
}

/// What the end of an attempt means for its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// The task ends.
    End {
        /// How: a final status.
        status: TaskStatus,
        /// What its process returned.
        exit_code: Option<i32>,
        /// Why, in words; may be empty.
        reason: String,
    },
    /// The task waits for another attempt, unless somebody wants it to end.
    Retry {
        /// Why, in words.
        reason: String,
    },
}

/// The task and the attempt a report is about, as things are now; otherwise
/// what becomes of a report that does not count.
fn judge(now: Option<TaskNow>, fence: &Fence, event: Option<u64>) -> Result<(Task, Attempt), Applied> {
    let Some(TaskNow { task, attempt: Some(attempt), container: Some(container) }) = now else {
        return Err(Applied::Stale);
    };
    let current = attempt.number == fence.number
        && attempt.container == fence.container
        && attempt.generation == fence.generation;
    if !current {
        return Err(Applied::Stale);
    }
    if event.is_some_and(|event| event <= container.last_event) {
        return Err(Applied::Duplicate);
    }
    if attempt.state.is_final() || task.status.is_final() {
        return Err(Applied::Stale);
    }
    Ok((task, attempt))
}

/// Ends an attempt and its container, and what ends with that.
pub(super) async fn end_attempt(
    sql: &mut Sql<'_>,
    attempt: &Attempt,
    state: AttemptState,
    reason: &str,
    now_ms: i64,
) -> Result<(), StoreError> {
    let ended = sqlx::query(
        "UPDATE attempts SET state = $3, reason = $4, ended_ms = $5 WHERE task = $1 AND number = $2",
    )
    .bind(attempt.task.to_wire())
    .bind(i64::from(attempt.number.0))
    .bind(state.word())
    .bind(reason.to_owned())
    .bind(now_ms);
    sql.execute(ended).await?;
    let ended =
        sqlx::query("UPDATE containers SET state = $3, ended_ms = $4 WHERE id = $1 AND generation = $2")
            .bind(attempt.container.to_wire())
            .bind(number(attempt.generation.0)?)
            .bind(ContainerState::Ended.word())
            .bind(now_ms);
    sql.execute(ended).await?;
    sql.execute(tokens::delete_of(attempt.container)).await.map(drop)
}

/// Moves an attempt that has not ended, and its container with it.
async fn move_attempt(
    sql: &mut Sql<'_>,
    attempt: &Attempt,
    (state, of_container): (AttemptState, ContainerState),
) -> Result<(), StoreError> {
    let moved = sqlx::query("UPDATE attempts SET state = $3 WHERE task = $1 AND number = $2")
        .bind(attempt.task.to_wire())
        .bind(i64::from(attempt.number.0))
        .bind(state.word());
    sql.execute(moved).await?;
    let moved = sqlx::query("UPDATE containers SET state = $3 WHERE id = $1 AND generation = $2")
        .bind(attempt.container.to_wire())
        .bind(number(attempt.generation.0)?)
        .bind(of_container.word());
    sql.execute(moved).await.map(drop)
}

/// Notes the newest event of a container.
async fn note_event(sql: &mut Sql<'_>, attempt: &Attempt, event: Option<u64>) -> Result<(), StoreError> {
    let Some(event) = event else { return Ok(()) };
    let noted = sqlx::query("UPDATE containers SET last_event = $3 WHERE id = $1 AND generation = $2")
        .bind(attempt.container.to_wire())
        .bind(number(attempt.generation.0)?)
        .bind(number(event)?);
    sql.execute(noted).await.map(drop)
}

/// Moves a task that has not ended.
async fn move_task(
    sql: &mut Sql<'_>,
    task: TaskId,
    status: TaskStatus,
    reason: &str,
) -> Result<(), StoreError> {
    let moved = sqlx::query("UPDATE tasks SET status = $2, reason = $3 WHERE id = $1")
        .bind(task.to_wire())
        .bind(status.word())
        .bind(reason.to_owned());
    sql.execute(moved).await.map(drop)
}

/// Ends a task for good.
async fn end_task(
    sql: &mut Sql<'_>,
    task: TaskId,
    (status, exit_code, reason): (TaskStatus, Option<i32>, &str),
    now_ms: i64,
) -> Result<(), StoreError> {
    if !status.is_final() {
        return Err(StoreError::Invalid("a task ends with a final status"));
    }
    let ended = sqlx::query(
        "UPDATE tasks SET status = $2, exit_code = $3, reason = $4, ended_ms = $5, env = $6 WHERE id = $1",
    )
    .bind(task.to_wire())
    .bind(status.word())
    .bind(exit_code.map(i64::from))
    .bind(reason.to_owned())
    .bind(now_ms)
    // Nothing runs it again: its secrets need not outlive it.
    .bind(Vec::<u8>::new());
    sql.execute(ended).await.map(drop)
}

async fn start(
    sql: &mut Sql<'_>,
    (task, attempt): (Task, Attempt),
    event: u64,
    now_ms: i64,
) -> Result<TaskStatus, StoreError> {
    move_attempt(sql, &attempt, (AttemptState::Running, ContainerState::Running)).await?;
    note_event(sql, &attempt, Some(event)).await?;
    let began = sqlx::query(
        "UPDATE attempts SET started_ms = COALESCE(started_ms, $3) WHERE task = $1 AND number = $2",
    )
    .bind(attempt.task.to_wire())
    .bind(i64::from(attempt.number.0))
    .bind(now_ms);
    sql.execute(began).await?;
    let began = sqlx::query("UPDATE tasks SET started_ms = COALESCE(started_ms, $2) WHERE id = $1");
    sql.execute(began.bind(task.id.to_wire()).bind(now_ms)).await?;
    move_task(sql, task.id, TaskStatus::Running, "").await?;
    Ok(TaskStatus::Running)
}

async fn finish(
    sql: &mut Sql<'_>,
    (task, attempt): (Task, Attempt),
    finish: Finish,
) -> Result<TaskStatus, StoreError> {
    if !finish.state.is_final() {
        return Err(StoreError::Invalid("an attempt ends with a final state"));
    }
    end_attempt(sql, &attempt, finish.state, &finish.reason, finish.now_ms).await?;
    note_event(sql, &attempt, finish.event).await?;
    if let Some(total) = finish.log_total {
        let known = sqlx::query("UPDATE attempts SET log_total = $3 WHERE task = $1 AND number = $2")
            .bind(attempt.task.to_wire())
            .bind(i64::from(attempt.number.0))
            .bind(number(total)?);
        sql.execute(known).await?;
    }
    match (finish.then, &task.cancel_reason) {
        (Then::End { status, exit_code, reason }, _) => {
            end_task(sql, task.id, (status, exit_code, &reason), finish.now_ms).await?;
            Ok(status)
        }
        (Then::Retry { .. }, Some(reason)) => {
            end_task(sql, task.id, (TaskStatus::Cancelled, None, reason), finish.now_ms).await?;
            Ok(TaskStatus::Cancelled)
        }
        (Then::Retry { reason }, None) => {
            move_task(sql, task.id, TaskStatus::Retry, &reason).await?;
            Ok(TaskStatus::Retry)
        }
    }
}

async fn lose_sight(
    sql: &mut Sql<'_>,
    (task, attempt): (Task, Attempt),
    retry: Option<&str>,
    now_ms: i64,
) -> Result<TaskStatus, StoreError> {
    if let Some(reason) = &task.cancel_reason {
        end_attempt(sql, &attempt, AttemptState::Cancelled, reason, now_ms).await?;
        end_task(sql, task.id, (TaskStatus::Cancelled, None, reason), now_ms).await?;
        return Ok(TaskStatus::Cancelled);
    }
    move_attempt(sql, &attempt, (AttemptState::Unreachable, ContainerState::Unreachable)).await?;
    let Some(reason) = retry else { return Ok(task.status) };
    move_task(sql, task.id, TaskStatus::Retry, reason).await?;
    Ok(TaskStatus::Retry)
}

async fn regain(sql: &mut Sql<'_>, (task, attempt): (Task, Attempt)) -> Result<TaskStatus, StoreError> {
    if attempt.started_ms.is_none() {
        move_attempt(sql, &attempt, (AttemptState::Placed, ContainerState::Placed)).await?;
        return Ok(task.status);
    }
    move_attempt(sql, &attempt, (AttemptState::Running, ContainerState::Running)).await?;
    move_task(sql, task.id, TaskStatus::Running, "").await?;
    Ok(TaskStatus::Running)
}

/// Ends a task that no reachable worker has; `false` when one has it.
async fn end_unheld(
    sql: &mut Sql<'_>,
    now: &TaskNow,
    (status, reason): (TaskStatus, &str),
    now_ms: i64,
) -> Result<bool, StoreError> {
    match &now.attempt {
        Some(attempt) if attempt.state.is_held() => return Ok(false),
        Some(attempt) if !attempt.state.is_final() => {
            let state =
                if status == TaskStatus::Cancelled { AttemptState::Cancelled } else { AttemptState::Lost };
            end_attempt(sql, attempt, state, reason, now_ms).await?;
        }
        _ => {}
    }
    end_task(sql, now.task.id, (status, None, reason), now_ms).await?;
    Ok(true)
}

impl Store {
    /// Notes that an attempt's process runs.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn started(&self, fence: Fence, event: u64, now_ms: i64) -> Result<Applied, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                match judge(tasks::locked(sql, fence.task).await?, &fence, Some(event)) {
                    Ok(counts) => start(sql, counts, event, now_ms).await.map(Applied::Done),
                    Err(applied) => Ok(applied),
                }
            })
        })
        .await
    }

    /// Ends an attempt and its container, and moves the task.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when a state that is not final is to be the last.
    pub async fn finish(&self, fence: Fence, end: Finish) -> Result<Applied, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                match judge(tasks::locked(sql, fence.task).await?, &fence, end.event) {
                    Ok(counts) => finish(sql, counts, end).await.map(Applied::Done),
                    Err(applied) => Ok(applied),
                }
            })
        })
        .await
    }

    /// Notes that the worker of an attempt is away. With a reason to `retry`
    /// the task waits for another attempt meanwhile; without one it stays as
    /// it is. A task somebody wants to end ends here.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn unreachable(
        &self,
        fence: Fence,
        retry: Option<String>,
        now_ms: i64,
    ) -> Result<Applied, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                match judge(tasks::locked(sql, fence.task).await?, &fence, None) {
                    Ok(counts) => lose_sight(sql, counts, retry.as_deref(), now_ms).await.map(Applied::Done),
                    Err(applied) => Ok(applied),
                }
            })
        })
        .await
    }

    /// Notes that the worker of an unreachable attempt is back and still has it.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn reachable(&self, fence: Fence) -> Result<Applied, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                match judge(tasks::locked(sql, fence.task).await?, &fence, None) {
                    Ok((_, attempt)) if attempt.state.is_held() => Ok(Applied::Duplicate),
                    Ok(counts) => regain(sql, counts).await.map(Applied::Done),
                    Err(applied) => Ok(applied),
                }
            })
        })
        .await
    }

    /// Asks a task to end as CANCELLED: at once when no reachable worker has
    /// it, otherwise when that worker says so. The first reason stays. Answers
    /// the task as it is afterwards.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn cancel(
        &self,
        task: TaskId,
        reason: String,
        now_ms: i64,
    ) -> Result<Option<TaskNow>, StoreError> {
        let done = self.transact(move |sql| {
            Box::pin(async move {
                let Some(now) = tasks::locked(sql, task).await? else { return Ok(()) };
                if now.task.status.is_final() {
                    return Ok(());
                }
                let asked =
                    sqlx::query("UPDATE tasks SET cancel_reason = COALESCE(cancel_reason, $2) WHERE id = $1");
                sql.execute(asked.bind(task.to_wire()).bind(reason.clone())).await?;
                let reason = now.task.cancel_reason.as_ref().unwrap_or(&reason);
                end_unheld(sql, &now, (TaskStatus::Cancelled, reason), now_ms).await.map(drop)
            })
        });
        done.await?;
        self.task(task).await
    }

    /// Ends a task that no reachable worker has, as EXPIRED or ERROR; `false`
    /// when a worker has it, or it has ended.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the status is not final.
    pub async fn end_waiting(
        &self,
        task: TaskId,
        status: TaskStatus,
        reason: String,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                match tasks::locked(sql, task).await? {
                    Some(now) if !now.task.status.is_final() => {
                        end_unheld(sql, &now, (status, &reason), now_ms).await
                    }
                    _ => Ok(false),
                }
            })
        })
        .await
    }
}
