//! Answers that are remembered, so that a request repeated with its id has
//! its effect once: what a request changes is stored together with its answer
//! or not at all. And the submission of a task, which is one.

use levers9_wire::id::StubId;
use levers9_wire::{RequestId, WorkspaceId};

use super::row::Row;
use super::sql::{BoxFuture, Query, Sql, number};
use super::task_types::{NewStub, NewTask, Submitted};
use super::{Store, StoreError, TaskStatus};
use crate::seal::Sealed;

/// An answer to remember, and the request it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whom the request spoke for; none before there is a workspace.
    pub workspace: Option<WorkspaceId>,
    /// The request.
    pub request: RequestId,
    /// The answer, sealed.
    pub answer: Sealed,
    /// When it was given.
    pub created_ms: i64,
}

/// What came of a request that may have been answered before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Once<T> {
    /// It was done now, and the answer is remembered.
    Done(T),
    /// It was answered before; nothing was done now.
    Before(Sealed),
}

/// The key column of a request: none is 16 zero bytes, so that it is unique too.
fn workspace_key(workspace: Option<WorkspaceId>) -> Vec<u8> {
    workspace.map_or_else(|| vec![0; 16], WorkspaceId::to_wire)
}

fn select_answer(workspace: Option<WorkspaceId>, request: RequestId) -> Query {
    sqlx::query("SELECT answer FROM calls WHERE workspace = $1 AND request_id = $2")
        .bind(workspace_key(workspace))
        .bind(request.to_wire())
}

/// Remembers an answer, or gives the one that was remembered before.
pub(super) async fn remember(sql: &mut Sql<'_>, answer: &Answer) -> Result<Option<Sealed>, StoreError> {
    // Of two at once the second waits here for the first to commit.
    let insert = sqlx::query(
        "INSERT INTO calls (workspace, request_id, answer, created_ms) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (workspace, request_id) DO NOTHING",
    )
    .bind(workspace_key(answer.workspace))
    .bind(answer.request.to_wire())
    .bind(answer.answer.0.clone())
    .bind(answer.created_ms);
    if sql.execute(insert).await? > 0 {
        return Ok(None);
    }
    let row = sql.fetch_one(select_answer(answer.workspace, answer.request)).await?;
    row.map(|row| Row::new(&row, "calls").blob("answer").map(Sealed)).transpose()
}

/// Forgets an answer that was remembered in this transaction.
pub(super) async fn forget(sql: &mut Sql<'_>, answer: &Answer) -> Result<(), StoreError> {
    let delete = sqlx::query("DELETE FROM calls WHERE workspace = $1 AND request_id = $2")
        .bind(workspace_key(answer.workspace))
        .bind(answer.request.to_wire());
    sql.execute(delete).await.map(drop)
}

/// The id of a stub, registered now or before.
async fn stub_id(sql: &mut Sql<'_>, task: &NewTask, stub: NewStub) -> Result<StubId, StoreError> {
    let insert = sqlx::query(
        "INSERT INTO stubs (id, workspace, type, name, config, config_hash, object, image, created_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (workspace, type, name, config_hash) DO NOTHING",
    )
    .bind(stub.id.to_wire())
    .bind(task.workspace.to_wire())
    .bind(stub.kind.clone())
    .bind(stub.name.clone())
    .bind(stub.config)
    .bind(stub.config_hash.to_vec())
    .bind(stub.object)
    .bind(stub.image)
    .bind(task.created_ms);
    if sql.execute(insert).await? > 0 {
        return Ok(stub.id);
    }
    let registered = sqlx::query(
        "SELECT id FROM stubs WHERE workspace = $1 AND type = $2 AND name = $3 AND config_hash = $4",
    )
    .bind(task.workspace.to_wire())
    .bind(stub.kind)
    .bind(stub.name)
    .bind(stub.config_hash.to_vec());
    let row = sql.fetch_one(registered).await?.ok_or_else(|| StoreError::Conflict("stubs".to_owned()))?;
    Row::new(&row, "stubs").id("id")
}

fn insert_task(task: NewTask, stub: StubId) -> Result<Query, StoreError> {
    let resources = task.resources;
    let command = serde_json::to_vec(&task.command)
        .map_err(|_| StoreError::Invalid("the command cannot be written as JSON"))?;
    let (slug, ports, public) = match task.exposed {
        Some(exposed) => {
            let ports = serde_json::to_string(&exposed.ports)
                .map_err(|_| StoreError::Invalid("the ports cannot be written as JSON"))?;
            (Some(exposed.slug), Some(ports), exposed.public)
        }
        None => (None, None, false),
    };
    Ok(sqlx::query(
        "INSERT INTO tasks (id, workspace, stub, name, status, created_ms, reason, attempts, max_retries, \
         timeout_ms, detached, pool, lines_reserved, cpu_millis, memory_bytes, gpu_type, gpu_count, cpu_given, \
         memory_given, command, env, slug, ports, public) \
         VALUES ($1, $2, $3, $4, $5, $6, '', 0, $7, $8, $9, $10, 0, $11, $12, $13, $14, $15, $16, $17, $18, $19, \
         $20, $21)",
    )
    .bind(task.id.to_wire())
    .bind(task.workspace.to_wire())
    .bind(stub.to_wire())
    .bind(task.name)
    .bind(TaskStatus::Pending.word())
    .bind(task.created_ms)
    .bind(i64::from(task.max_retries))
    .bind(task.timeout_ms)
    .bind(i64::from(task.detached))
    .bind(task.pool)
    .bind(number(resources.cpu_millis)?)
    .bind(number(resources.memory_bytes)?)
    .bind(resources.gpu_type)
    .bind(i64::from(resources.gpu_count))
    .bind(i64::from(resources.cpu_given))
    .bind(i64::from(resources.memory_given))
    .bind(command)
    .bind(task.env.0)
    .bind(slug)
    .bind(ports)
    .bind(i64::from(public)))
}

impl Store {
    /// Stores a task, its stub where that is new, and the answer to the
    /// request, all or nothing. A request that was answered before changes
    /// nothing and gives that answer.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the workspace is gone or the task exists.
    pub async fn submit(
        &self,
        stub: NewStub,
        task: NewTask,
        request: RequestId,
        answer: Sealed,
    ) -> Result<Submitted, StoreError> {
        let created_ms = task.created_ms;
        let answer = Answer { workspace: Some(task.workspace), request, answer, created_ms };
        let done = self.once(answer, move |sql| {
            Box::pin(async move {
                let stub = stub_id(sql, &task, stub).await?;
                sql.execute(insert_task(task, stub)?).await.map(drop)
            })
        });
        Ok(match done.await? {
            Once::Done(()) => Submitted::New,
            Once::Before(answer) => Submitted::Repeated(answer),
        })
    }

    /// Does something and remembers the answer to the request for it, all or
    /// nothing, unless the request was answered before. Of two at once the
    /// second waits for the first.
    pub(super) async fn once<T, F>(&self, answer: Answer, act: F) -> Result<Once<T>, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Sql<'_>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        self.transact(move |sql| {
            Box::pin(async move {
                if let Some(before) = remember(sql, &answer).await? {
                    return Ok(Once::Before(before));
                }
                act(sql).await.map(Once::Done)
            })
        })
        .await
    }

    /// The answer a request was given before.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn answer(
        &self,
        workspace: Option<WorkspaceId>,
        request: RequestId,
    ) -> Result<Option<Sealed>, StoreError> {
        let row = self.fetch_one(select_answer(workspace, request)).await?;
        row.map(|row| Row::new(&row, "calls").blob("answer").map(Sealed)).transpose()
    }

    /// Forgets the answers given before a time and tells how many there were.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn forget_answers(&self, before_ms: i64) -> Result<u64, StoreError> {
        self.execute(sqlx::query("DELETE FROM calls WHERE created_ms < $1").bind(before_ms)).await
    }
}
