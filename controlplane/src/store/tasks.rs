//! Tasks with their attempts and containers, read side: the rows, their
//! words, and the lists the scheduler, the calls and a start-up need. How a
//! task comes into being is in `calls`, how it moves in `placement` and
//! `events`.

use levers9_wire::v1::Resources;
use levers9_wire::{AttemptNumber, ContainerId, Generation, TaskId, WorkspaceId};
use sqlx::any::AnyRow;

use super::row::Row;
use super::sql::{Query, Sql, page, query, words};
use super::task_types::{
    Attempt, AttemptState, Container, ContainerState, Exposed, Task, TaskFilter, TaskNow, TaskStatus,
};
use super::{Scope, Store, StoreError};
use crate::seal::Sealed;

const TASK: &str = "t.id, t.workspace, t.stub, t.name, t.status, t.created_ms, t.started_ms, t.ended_ms, \
    t.exit_code, t.reason, t.attempts, t.max_retries, t.timeout_ms, t.detached, t.pool, t.callers_gone_ms, \
    t.cancel_reason, t.lines_reserved, t.cpu_millis, t.memory_bytes, t.gpu_type, t.gpu_count, t.cpu_given, \
    t.memory_given, t.command, t.slug, t.ports, t.public";

const ATTEMPT: &str = "a.task AS a_task, a.number AS a_number, a.container AS a_container, \
    a.generation AS a_generation, a.worker AS a_worker, a.state AS a_state, a.base_line AS a_base_line, \
    a.created_ms AS a_created_ms, a.started_ms AS a_started_ms, a.ended_ms AS a_ended_ms, \
    a.reason AS a_reason, a.log_next AS a_log_next, a.log_total AS a_log_total";

const CONTAINER: &str = "c.id AS c_id, c.generation AS c_generation, c.workspace AS c_workspace, \
    c.worker AS c_worker, c.stub AS c_stub, c.state AS c_state, c.cpu_millis AS c_cpu_millis, \
    c.memory_bytes AS c_memory_bytes, c.gpu_type AS c_gpu_type, c.gpu_count AS c_gpu_count, \
    c.created_ms AS c_created_ms, c.ended_ms AS c_ended_ms, c.last_event AS c_last_event";

const NOW: &str = "tasks t LEFT JOIN attempts a ON a.task = t.id AND a.number = t.attempts \
    LEFT JOIN containers c ON c.id = a.container AND c.generation = a.generation";

impl Task {
    pub(super) fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let row = Row::new(row, "tasks");
        let command = serde_json::from_slice(&row.blob("command")?);
        Ok(Self {
            id: row.id("id")?,
            workspace: row.id("workspace")?,
            stub: row.id("stub")?,
            name: row.text("name")?,
            status: row.word("status", TaskStatus::from_word)?,
            created_ms: row.int("created_ms")?,
            started_ms: row.opt_int("started_ms")?,
            ended_ms: row.opt_int("ended_ms")?,
            exit_code: row.opt_number("exit_code")?,
            reason: row.text("reason")?,
            attempts: row.number("attempts")?,
            max_retries: row.number("max_retries")?,
            timeout_ms: row.opt_int("timeout_ms")?,
            detached: row.flag("detached")?,
            pool: row.opt_text("pool")?,
            callers_gone_ms: row.opt_int("callers_gone_ms")?,
            cancel_reason: row.opt_text("cancel_reason")?,
            lines_reserved: row.number("lines_reserved")?,
            resources: Resources {
                cpu_millis: row.number("cpu_millis")?,
                memory_bytes: row.number("memory_bytes")?,
                gpu_type: row.text("gpu_type")?,
                gpu_count: row.number("gpu_count")?,
                cpu_given: row.flag("cpu_given")?,
                memory_given: row.flag("memory_given")?,
            },
            command: command.map_err(|error| row.corrupt("command", error))?,
            exposed: read_exposed(&row)?,
        })
    }
}

fn read_exposed(row: &Row<'_>) -> Result<Option<Exposed>, StoreError> {
    let Some(slug) = row.opt_text("slug")? else { return Ok(None) };
    let ports = serde_json::from_str(&row.text("ports")?).map_err(|error| row.corrupt("ports", error))?;
    Ok(Some(Exposed { slug, ports, public: row.flag("public")? }))
}

impl Attempt {
    fn read(row: &AnyRow) -> Result<Option<Self>, StoreError> {
        let row = Row::part(row, "attempts", "a_");
        let Some(task) = row.opt_id("task")? else { return Ok(None) };
        Ok(Some(Self {
            task,
            number: AttemptNumber(row.number("number")?),
            container: row.id("container")?,
            generation: Generation(row.number("generation")?),
            worker: row.id("worker")?,
            state: row.word("state", AttemptState::from_word)?,
            base_line: row.number("base_line")?,
            created_ms: row.int("created_ms")?,
            started_ms: row.opt_int("started_ms")?,
            ended_ms: row.opt_int("ended_ms")?,
            reason: row.text("reason")?,
            log_next: row.number("log_next")?,
            log_total: row.opt_number("log_total")?,
        }))
    }
}

impl Container {
    fn read(row: &AnyRow) -> Result<Option<Self>, StoreError> {
        let row = Row::part(row, "containers", "c_");
        let Some(id) = row.opt_id("id")? else { return Ok(None) };
        Ok(Some(Self {
            id,
            generation: Generation(row.number("generation")?),
            workspace: row.id("workspace")?,
            worker: row.id("worker")?,
            stub: row.id("stub")?,
            state: row.word("state", ContainerState::from_word)?,
            cpu_millis: row.number("cpu_millis")?,
            memory_bytes: row.number("memory_bytes")?,
            gpu_type: row.text("gpu_type")?,
            gpu_count: row.number("gpu_count")?,
            created_ms: row.int("created_ms")?,
            ended_ms: row.opt_int("ended_ms")?,
            last_event: row.number("last_event")?,
        }))
    }
}

impl TaskNow {
    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        Ok(Self { task: Task::read(row)?, attempt: Attempt::read(row)?, container: Container::read(row)? })
    }
}

/// Tasks with their current attempt, where `condition` holds.
fn now_where(condition: &str) -> Query {
    query(format!("SELECT {TASK}, {ATTEMPT}, {CONTAINER} FROM {NOW} WHERE {condition}"))
}

/// Reads a task with its current attempt and keeps both as they are until the
/// transaction ends: whoever changes a task comes through here first.
pub(super) async fn locked(sql: &mut Sql<'_>, task: TaskId) -> Result<Option<TaskNow>, StoreError> {
    let lock = sql.dialect().for_update();
    if !lock.is_empty() {
        // A joined row would be read as of before the wait for its lock.
        let wait = query(format!("SELECT id FROM tasks WHERE id = $1{lock}")).bind(task.to_wire());
        sql.execute(wait).await?;
    }
    let row = sql.fetch_one(now_where("t.id = $1").bind(task.to_wire())).await?;
    row.as_ref().map(TaskNow::read).transpose()
}

impl Store {
    async fn tasks_now(&self, query: Query) -> Result<Vec<TaskNow>, StoreError> {
        self.fetch(query).await?.iter().map(TaskNow::read).collect()
    }

    /// A task with its current attempt and container.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn task(&self, id: TaskId) -> Result<Option<TaskNow>, StoreError> {
        Ok(self.tasks_now(now_where("t.id = $1").bind(id.to_wire())).await?.pop())
    }

    /// The task with a slug, whether or not it has ended.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn task_by_slug(&self, slug: String) -> Result<Option<TaskNow>, StoreError> {
        Ok(self.tasks_now(now_where("t.slug = $1").bind(slug)).await?.pop())
    }

    /// The newest live task of a name in a workspace that exposes something.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn exposed_task(
        &self,
        workspace: WorkspaceId,
        name: String,
    ) -> Result<Option<TaskNow>, StoreError> {
        let query = now_where(
            "t.workspace = $1 AND t.name = $2 AND t.slug IS NOT NULL \
             AND t.status IN ('PENDING', 'RUNNING', 'RETRY') ORDER BY t.id DESC LIMIT 1",
        );
        Ok(self.tasks_now(query.bind(workspace.to_wire()).bind(name)).await?.pop())
    }

    /// The environment of a task, sealed; empty once the task has ended.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn task_env(&self, id: TaskId) -> Result<Option<Sealed>, StoreError> {
        let row =
            self.fetch_one(sqlx::query("SELECT env FROM tasks WHERE id = $1").bind(id.to_wire())).await?;
        row.map(|row| Row::new(&row, "tasks").blob("env").map(Sealed)).transpose()
    }

    /// The task a container serves, or served in its newest incarnation.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn task_of_container(&self, container: ContainerId) -> Result<Option<TaskId>, StoreError> {
        let query =
            sqlx::query("SELECT task FROM attempts WHERE container = $1 ORDER BY generation DESC LIMIT 1");
        let row = self.fetch_one(query.bind(container.to_wire())).await?;
        row.map(|row| Row::new(&row, "attempts").id("task")).transpose()
    }

    /// Tasks, newest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskNow>, StoreError> {
        let mut conditions = vec!["1 = 1".to_owned()];
        let mut ids = Vec::new();
        if let Scope::Workspace(workspace) = filter.scope {
            ids.push(workspace.to_wire());
            conditions.push(format!("t.workspace = ${}", ids.len()));
        }
        if let Some(before) = filter.before {
            ids.push(before.to_wire());
            conditions.push(format!("t.id < ${}", ids.len()));
        }
        if !filter.statuses.is_empty() {
            conditions
                .push(format!("t.status IN ({})", words(filter.statuses.iter().map(|status| status.word()))));
        }
        let limit = page(filter.limit);
        let query = now_where(&format!("{} ORDER BY t.id DESC LIMIT {limit}", conditions.join(" AND ")));
        let query = ids.into_iter().fold(query, |query, id| query.bind(id));
        self.tasks_now(query).await
    }

    /// Tasks that want a place, oldest first: never those somebody wants to
    /// end, nor those a worker has already.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn waiting_tasks(&self, limit: u32) -> Result<Vec<TaskNow>, StoreError> {
        let query = now_where(
            "t.status IN ('PENDING', 'RETRY') AND t.cancel_reason IS NULL \
             AND (a.state IS NULL OR a.state NOT IN ('placed', 'running')) ORDER BY t.created_ms, t.id LIMIT $1",
        );
        self.tasks_now(query.bind(page(limit))).await
    }

    /// Every task that has not ended, oldest first: what a controlplane needs
    /// to know when it starts.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn live_tasks(&self) -> Result<Vec<TaskNow>, StoreError> {
        self.tasks_now(now_where("t.status IN ('PENDING', 'RUNNING', 'RETRY') ORDER BY t.id")).await
    }

    /// Every attempt of a task, in order.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn attempts(&self, task: TaskId) -> Result<Vec<Attempt>, StoreError> {
        let list = query(format!("SELECT {ATTEMPT} FROM attempts a WHERE a.task = $1 ORDER BY a.number"));
        let rows = self.fetch(list.bind(task.to_wire())).await?;
        rows.iter().filter_map(|row| Attempt::read(row).transpose()).collect()
    }

    /// Notes since when nobody follows a task, or that somebody does again.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn set_callers_gone(&self, task: TaskId, since_ms: Option<i64>) -> Result<bool, StoreError> {
        let query = sqlx::query("UPDATE tasks SET callers_gone_ms = $2 WHERE id = $1");
        Ok(self.execute(query.bind(task.to_wire()).bind(since_ms)).await? > 0)
    }

    /// Notes that live tasks that end with their callers have none from now
    /// on, until one comes: those that have one, or with `anew` all of them.
    /// Tells how many.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn begin_graces(&self, now_ms: i64, anew: bool) -> Result<u64, StoreError> {
        let query = sqlx::query(
            "UPDATE tasks SET callers_gone_ms = $1 WHERE detached = 0 AND (callers_gone_ms IS NULL OR $2 = 1) \
             AND status IN ('PENDING', 'RUNNING', 'RETRY')",
        );
        self.execute(query.bind(now_ms).bind(i64::from(anew))).await
    }

    /// Tasks that somebody wants to end and a worker still has.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn tasks_asked_to_end(&self) -> Result<Vec<TaskNow>, StoreError> {
        self.tasks_now(now_where(
            "t.cancel_reason IS NOT NULL AND t.status IN ('PENDING', 'RUNNING', 'RETRY') \
             AND a.state IN ('placed', 'running')",
        ))
        .await
    }

    /// Live tasks that were to end with their callers, whose last one went at
    /// or before a time, and which nobody has told to end yet.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn tasks_without_callers(&self, gone_by_ms: i64) -> Result<Vec<TaskId>, StoreError> {
        let query = sqlx::query(
            "SELECT id FROM tasks WHERE callers_gone_ms <= $1 AND detached = 0 AND cancel_reason IS NULL \
             AND status IN ('PENDING', 'RUNNING', 'RETRY') ORDER BY callers_gone_ms",
        );
        let rows = self.fetch(query.bind(gone_by_ms)).await?;
        rows.iter().map(|row| Row::new(row, "tasks").id("id")).collect()
    }
}
