//! What the controlplane must not forget, in PostgreSQL or SQLite.
//!
//! [`Store`] is the only thing in levers9 that speaks SQL. The scheduler, the
//! sessions, the calls and the log sealer talk to it in typed rows; it hands
//! out no connection and no transaction. One set of statements serves both
//! databases (`sqlx::Any`), [`Dialect`] names the few places that differ.
//!
//! Every unit of work runs in a task of its own: a caller that goes away
//! neither stops it half way nor puts a connection back into the pool inside
//! an open transaction. What was begun is committed or rolled back, whoever
//! still listens. A connection is held for SQL alone, never while waiting for
//! anything else.
//!
//! The store never reads a clock: times are Unix milliseconds and come as
//! arguments (a lease in PostgreSQL runs on the database's clock). It never
//! sees a plain secret: environments and remembered answers come sealed,
//! tokens as hashes. Absence is `Ok(None)`, never an error.

mod calls;
mod clusters;
mod error;
mod events;
mod lease;
mod logs;
mod migrate;
mod open;
mod placement;
mod replicas;
mod row;
mod sql;
mod task_types;
mod tasks;
mod tokens;
mod workers;
mod workspaces;

use std::future::Future;
use std::sync::Arc;

use sqlx::any::AnyRow;
use sqlx::pool::PoolConnection;
use sqlx::{Any, Connection as _, Pool};

pub use calls::{Answer, Once};
pub use clusters::{Attached, Cluster, PoolWorker, PoolWorkerState};
pub use error::StoreError;
pub use events::{Applied, Fence, Finish, Then};
pub use lease::Lease;
pub use logs::{Segment, SegmentAdded, SegmentId, SegmentTotals};
pub use open::{DEFAULT_POOL_SIZE, Dialect};
pub use placement::Placement;
pub use task_types::{
    Attempt, AttemptState, Container, ContainerState, Exposed, NewStub, NewTask, Submitted, Task, TaskFilter,
    TaskNow, TaskStatus,
};
pub use tokens::{EnrolmentClaim, Token, TokenHash};
pub use workers::{Worker, WorkerState};
pub use workspaces::Workspace;

use levers9_wire::WorkspaceId;
use open::FolderLock;
use sql::{BoxFuture, Query, Sql};

/// Whose rows an operation may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of every workspace, and those of none.
    All,
    /// Those of one workspace.
    Workspace(WorkspaceId),
}

impl Scope {
    /// The workspace as a query argument; `None` lets every row through.
    fn bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::All => None,
            Self::Workspace(workspace) => Some(workspace.to_wire()),
        }
    }
}

/// How busy the connection pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStats {
    /// Connections that are open.
    pub open: u32,
    /// Of those, how many nobody uses.
    pub idle: u32,
    /// The most there may be.
    pub limit: u32,
}

/// The database. Cheap to clone; the last clone lets go of the data folder.
#[derive(Debug, Clone)]
pub struct Store {
    pool: Pool<Any>,
    dialect: Dialect,
    /// Held so that no other controlplane uses the same folder.
    _folder: Option<Arc<FolderLock>>,
}

impl Store {
    /// Which database this is.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Asks the database for a sign of life.
    ///
    /// # Errors
    /// When it gives none within the acquire timeout.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.fetch(sqlx::query("SELECT 1")).await.map(drop)
    }

    /// How busy the pool is now.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let idle = u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX);
        PoolStats { open: self.pool.size(), idle, limit: self.pool.options().get_max_connections() }
    }

    /// Waits for what runs, then closes every connection. Later calls fail.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Runs one statement and tells how many rows it touched.
    async fn execute(&self, query: Query) -> Result<u64, StoreError> {
        let pool = self.pool.clone();
        detached(async move { Ok(query.execute(&pool).await?.rows_affected()) }).await
    }

    /// Runs one statement and takes all its rows.
    async fn fetch(&self, query: Query) -> Result<Vec<AnyRow>, StoreError> {
        let pool = self.pool.clone();
        detached(async move { Ok(query.fetch_all(&pool).await?) }).await
    }

    /// Runs one statement that gives at most one row.
    async fn fetch_one(&self, query: Query) -> Result<Option<AnyRow>, StoreError> {
        self.fetch(query).await.map(|rows| rows.into_iter().next())
    }

    /// Runs `work` in one transaction: committed when it succeeds, rolled back
    /// when it fails.
    async fn transact<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Sql<'_>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        let (pool, dialect) = (self.pool.clone(), self.dialect);
        detached(async move {
            let mut connection = pool.acquire().await?;
            let done = in_transaction(&mut connection, dialect, work).await;
            if done.as_ref().is_err_and(|failed| !failed.is_clean) {
                // A connection that could not end its transaction would refuse the next one.
                connection.close_on_drop();
            }
            done.map_err(|failed| failed.error)
        })
        .await
    }
}

/// A transaction that failed, and whether its connection is as before.
struct Failed {
    error: StoreError,
    is_clean: bool,
}

async fn in_transaction<T, F>(
    connection: &mut PoolConnection<Any>,
    dialect: Dialect,
    work: F,
) -> Result<T, Failed>
where
    F: for<'c> FnOnce(&'c mut Sql<'_>) -> BoxFuture<'c, Result<T, StoreError>>,
{
    let unclean = |error: sqlx::Error| Failed { error: error.into(), is_clean: false };
    let mut transaction = connection.begin_with(dialect.begin()).await.map_err(unclean)?;
    match work(&mut Sql::new(&mut transaction, dialect)).await {
        Ok(value) => transaction.commit().await.map(|()| value).map_err(unclean),
        // The first error is the one worth telling.
        Err(error) => match transaction.rollback().await {
            Ok(()) => Err(Failed { error, is_clean: true }),
            Err(_) => Err(Failed { error, is_clean: false }),
        },
    }
}

/// Runs `work` to its end in a task of its own, whether or not the caller
/// stays to hear of it.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::spawn(work).await {
        Ok(done) => done,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(StoreError::ShuttingDown),
        },
    }
}
