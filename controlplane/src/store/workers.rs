//! Workers as they were last known: who they are, what they bring, whom they
//! serve. Whether one is connected now is the sessions' to say.

use levers9_wire::v1::WorkerFacts;
use levers9_wire::{ClusterId, WorkerId, WorkspaceId};
use sqlx::any::AnyRow;

use super::row::Row;
use super::sql::{number, query};
use super::{Store, StoreError};

const COLUMNS: &str = "id, workspace, bound_workspace, pool, hostname, cpu_millis, memory_bytes, gpu_type, \
    gpu_count, runtime, node, build, state, created_ms, last_seen_ms, cluster";

/// What may be done with a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerState {
    /// It takes work.
    Ready,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It has no session; what it runs may still come back.
    Unreachable,
    /// It is given up.
    Gone,
}

impl WorkerState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Draining, Self::Unreachable, Self::Gone];

    /// The word in listings and in the database.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Unreachable => "unreachable",
            Self::Gone => "gone",
        }
    }

    /// The state of a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// A machine that runs containers.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Its identity.
    pub id: WorkerId,
    /// The one workspace it serves; none for a shared worker.
    pub workspace: Option<WorkspaceId>,
    /// The workspace a shared worker without isolation has bound itself to.
    pub bound_workspace: Option<WorkspaceId>,
    /// Where it comes from.
    pub pool: String,
    /// What it said of itself.
    pub facts: WorkerFacts,
    /// Its build, for people.
    pub build: String,
    /// What may be done with it.
    pub state: WorkerState,
    /// When it enrolled.
    pub created_ms: i64,
    /// When it was last heard of, roughly.
    pub last_seen_ms: i64,
    /// The cluster it was ordered on.
    pub cluster: Option<ClusterId>,
}

impl Worker {
    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let row = Row::new(row, "workers");
        Ok(Self {
            id: row.id("id")?,
            workspace: row.opt_id("workspace")?,
            bound_workspace: row.opt_id("bound_workspace")?,
            pool: row.text("pool")?,
            facts: WorkerFacts {
                hostname: row.text("hostname")?,
                cpu_millis: row.number("cpu_millis")?,
                memory_bytes: row.number("memory_bytes")?,
                gpu_type: row.text("gpu_type")?,
                gpu_count: row.number("gpu_count")?,
                runtime: row.text("runtime")?,
                node: row.text("node")?,
            },
            build: row.text("build")?,
            state: row.word("state", WorkerState::from_word)?,
            created_ms: row.int("created_ms")?,
            last_seen_ms: row.int("last_seen_ms")?,
            cluster: row.opt_id("cluster")?,
        })
    }
}

impl Store {
    /// Adds a worker, or brings what it says of itself up to date. Its scope,
    /// binding, pool and creation time stay as they were at enrolment.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn upsert_worker(&self, worker: &Worker) -> Result<(), StoreError> {
        let facts = worker.facts.clone();
        let upsert = query(format!(
            "INSERT INTO workers ({COLUMNS}) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) \
             ON CONFLICT (id) DO UPDATE SET hostname = excluded.hostname, cpu_millis = excluded.cpu_millis, \
             memory_bytes = excluded.memory_bytes, gpu_type = excluded.gpu_type, gpu_count = excluded.gpu_count, \
             runtime = excluded.runtime, node = excluded.node, build = excluded.build, state = excluded.state, \
             last_seen_ms = excluded.last_seen_ms"
        ))
        .bind(worker.id.to_wire())
        .bind(worker.workspace.map(WorkspaceId::to_wire))
        .bind(worker.bound_workspace.map(WorkspaceId::to_wire))
        .bind(worker.pool.clone())
        .bind(facts.hostname)
        .bind(number(facts.cpu_millis)?)
        .bind(number(facts.memory_bytes)?)
        .bind(facts.gpu_type)
        .bind(i64::from(facts.gpu_count))
        .bind(facts.runtime)
        .bind(facts.node)
        .bind(worker.build.clone())
        .bind(worker.state.word())
        .bind(worker.created_ms)
        .bind(worker.last_seen_ms)
        .bind(worker.cluster.map(ClusterId::to_wire));
        self.execute(upsert).await.map(drop)
    }

    /// The worker of an id.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn worker(&self, id: WorkerId) -> Result<Option<Worker>, StoreError> {
        let found = query(format!("SELECT {COLUMNS} FROM workers WHERE id = $1")).bind(id.to_wire());
        self.fetch_one(found).await?.as_ref().map(Worker::read).transpose()
    }

    /// Every worker, oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn workers(&self) -> Result<Vec<Worker>, StoreError> {
        let rows = self.fetch(query(format!("SELECT {COLUMNS} FROM workers ORDER BY id"))).await?;
        rows.iter().map(Worker::read).collect()
    }

    /// Says what may be done with a worker; `false` when there is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn set_worker_state(&self, id: WorkerId, state: WorkerState) -> Result<bool, StoreError> {
        let query = sqlx::query("UPDATE workers SET state = $2 WHERE id = $1");
        Ok(self.execute(query.bind(id.to_wire()).bind(state.word())).await? > 0)
    }

    /// Binds a worker to a workspace for good; `false` when it is bound to, or
    /// was enrolled for, another.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn bind_worker(&self, id: WorkerId, workspace: WorkspaceId) -> Result<bool, StoreError> {
        let query = sqlx::query(
            "UPDATE workers SET bound_workspace = $2 WHERE id = $1 \
             AND (bound_workspace IS NULL OR bound_workspace = $2) AND (workspace IS NULL OR workspace = $2)",
        );
        Ok(self.execute(query.bind(id.to_wire()).bind(workspace.to_wire())).await? > 0)
    }
}
