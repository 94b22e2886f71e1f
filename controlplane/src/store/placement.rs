//! Placing a task on a worker: the one way an attempt comes into being.

use levers9_wire::{AttemptNumber, ContainerId, Generation, TaskId, WorkerId};

use super::events::end_attempt;
use super::row::Row;
use super::sql::{Query, Sql, number, query};
use super::task_types::{AttemptState, ContainerState, Task, TaskNow};
use super::{Lease, Store, StoreError, Token, tasks, tokens};

/// Where a task's next attempt is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The task.
    pub task: TaskId,
    /// Which try this is: one more than were placed.
    pub number: AttemptNumber,
    /// The container that will run it.
    pub container: ContainerId,
    /// Its incarnation.
    pub generation: Generation,
    /// The worker that will run that.
    pub worker: WorkerId,
    /// The line number of its record 0: never below what is reserved.
    pub base_line: u64,
    /// Line numbers below this are given out from now on.
    pub lines_reserved: u64,
    /// What the container shows at its doors; takes the place of an earlier one.
    pub token: Option<Token>,
    /// What entitles the caller to place.
    pub lease: Lease,
    /// Now.
    pub now_ms: i64,
}

/// Whether a task may be placed so, as it is now.
fn may_place(now: &TaskNow, placement: &Placement) -> bool {
    let task = &now.task;
    task.status.is_waiting()
        && task.cancel_reason.is_none()
        && task.attempts.checked_add(1) == Some(placement.number.0)
        && !now.attempt.as_ref().is_some_and(|attempt| attempt.state.is_held())
        && placement.base_line >= task.lines_reserved
        && placement.lines_reserved >= placement.base_line
}

pub(super) async fn holds(sql: &mut Sql<'_>, lease: &Lease) -> Result<bool, StoreError> {
    let lock = sql.dialect().for_share();
    let held = query(format!("SELECT epoch FROM leases WHERE name = $1 AND holder = $2{lock}"))
        .bind(lease.name.clone())
        .bind(lease.holder.to_wire());
    let Some(row) = sql.fetch_one(held).await? else { return Ok(false) };
    Ok(Row::new(&row, "leases").int("epoch")? == lease.epoch)
}

fn insert_container(task: Task, placement: &Placement) -> Result<Query, StoreError> {
    Ok(sqlx::query(
        "INSERT INTO containers (id, generation, workspace, worker, stub, state, cpu_millis, memory_bytes, \
         gpu_type, gpu_count, created_ms, last_event) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 0)",
    )
    .bind(placement.container.to_wire())
    .bind(number(placement.generation.0)?)
    .bind(task.workspace.to_wire())
    .bind(placement.worker.to_wire())
    .bind(task.stub.to_wire())
    .bind(ContainerState::Placed.word())
    .bind(number(task.resources.cpu_millis)?)
    .bind(number(task.resources.memory_bytes)?)
    .bind(task.resources.gpu_type)
    .bind(i64::from(task.resources.gpu_count))
    .bind(placement.now_ms))
}

fn insert_attempt(placement: &Placement) -> Result<Query, StoreError> {
    Ok(sqlx::query(
        "INSERT INTO attempts (task, number, container, generation, worker, state, base_line, created_ms, reason, \
         log_next) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, '', 0)",
    )
    .bind(placement.task.to_wire())
    .bind(i64::from(placement.number.0))
    .bind(placement.container.to_wire())
    .bind(number(placement.generation.0)?)
    .bind(placement.worker.to_wire())
    .bind(AttemptState::Placed.word())
    .bind(number(placement.base_line)?)
    .bind(placement.now_ms))
}

impl Store {
    /// Places the next attempt of a task. An unreachable attempt before it is
    /// lost for good from here on.
    ///
    /// `false`, and nothing changes, unless the lease is still the caller's,
    /// the task waits and nobody wants it to end, the number is the next one,
    /// no worker has the task, and the lines are not given out yet.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the container exists in this generation.
    pub async fn place(&self, placement: Placement) -> Result<bool, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                if !holds(sql, &placement.lease).await? {
                    return Ok(false);
                }
                let Some(now) = tasks::locked(sql, placement.task).await? else { return Ok(false) };
                if !may_place(&now, &placement) {
                    return Ok(false);
                }
                if let Some(before) = now.attempt.filter(|attempt| !attempt.state.is_final()) {
                    let reason = "its worker did not return before another attempt was placed";
                    end_attempt(sql, &before, AttemptState::Lost, reason, placement.now_ms).await?;
                }
                sql.execute(insert_container(now.task, &placement)?).await?;
                sql.execute(insert_attempt(&placement)?).await?;
                sql.execute(tokens::delete_of(placement.container)).await?;
                if let Some(token) = &placement.token {
                    sql.execute(tokens::insert(token)).await?;
                }
                let counted =
                    sqlx::query("UPDATE tasks SET attempts = $2, lines_reserved = $3 WHERE id = $1")
                        .bind(placement.task.to_wire())
                        .bind(i64::from(placement.number.0))
                        .bind(number(placement.lines_reserved)?);
                sql.execute(counted).await?;
                Ok(true)
            })
        })
        .await
    }
}
