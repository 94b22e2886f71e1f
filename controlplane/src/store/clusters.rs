//! Attached clusters and the workers ordered on them. A cluster's rows go
//! together: its tokens are revoked and its workers forgotten with it.

use levers9_wire::v1::ClusterSettings;
use levers9_wire::{ClusterId, TokenId, WorkerId, WorkspaceId};
use prost::Message as _;
use sqlx::any::AnyRow;

use super::placement::holds;
use super::row::Row;
use super::sql::{Query, Sql, number, query};
use super::{Answer, Lease, Once, Store, StoreError, Token, calls, tokens};
use crate::seal::Sealed;

const CLUSTER: &str =
    "id, workspace, name, settings, shared, created_ms, last_seen_ms, agent_build, kubernetes";
const WORKER: &str = "worker, cluster, node, state, workspace, cpu_millis, memory_bytes, gpu_type, gpu_count, \
    enrolment, created_ms";

/// An attached cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Its identity.
    pub id: ClusterId,
    /// The workspace that attached it.
    pub workspace: WorkspaceId,
    /// What people call it; one of a kind in its workspace.
    pub name: String,
    /// As it was attached.
    pub settings: ClusterSettings,
    /// Whether it serves every workspace.
    pub shared: bool,
    /// When it was attached.
    pub created_ms: i64,
    /// When its agent was last heard of, roughly.
    pub last_seen_ms: Option<i64>,
    /// The agent's build, for people; empty when it never came.
    pub agent_build: String,
    /// The version of its API server, for people.
    pub kubernetes: String,
}

impl Cluster {
    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let row = Row::new(row, "clusters");
        let settings = ClusterSettings::decode(row.blob("settings")?.as_slice())
            .map_err(|error| row.corrupt("settings", error))?;
        Ok(Self {
            id: row.id("id")?,
            workspace: row.id("workspace")?,
            name: row.text("name")?,
            settings,
            shared: row.flag("shared")?,
            created_ms: row.int("created_ms")?,
            last_seen_ms: row.opt_int("last_seen_ms")?,
            agent_build: row.text("agent_build")?,
            kubernetes: row.text("kubernetes")?,
        })
    }

    fn insert(&self) -> Query {
        query(format!(
            "INSERT INTO clusters ({CLUSTER}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
             ON CONFLICT (workspace, name) DO NOTHING"
        ))
        .bind(self.id.to_wire())
        .bind(self.workspace.to_wire())
        .bind(self.name.clone())
        .bind(self.settings.encode_to_vec())
        .bind(i64::from(self.shared))
        .bind(self.created_ms)
        .bind(self.last_seen_ms)
        .bind(self.agent_build.clone())
        .bind(self.kubernetes.clone())
    }
}

/// What came of attaching a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// It is attached.
    Yes,
    /// The workspace has one of this name.
    NameTaken,
    /// The workspace has as many as it may; this many.
    QuotaFull(u32),
}

/// How far a worker on a cluster is; it never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolWorkerState {
    /// Ordered; it has not enrolled yet.
    Pending,
    /// It has enrolled.
    Running,
    /// Its Job is to be removed.
    Stopping,
}

impl PoolWorkerState {
    /// The word in the database.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Stopping => "stopping",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        [Self::Pending, Self::Running, Self::Stopping].into_iter().find(|state| state.word() == word)
    }
}

/// A worker that was ordered on a node of a cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolWorker {
    /// Its identity; it names the Job.
    pub worker: WorkerId,
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: String,
    /// How far it is.
    pub state: PoolWorkerState,
    /// The one workspace it serves; none for a shared one.
    pub workspace: Option<WorkspaceId>,
    /// What its pod takes, in thousandths of a core.
    pub cpu_millis: u64,
    /// What its pod takes, in bytes.
    pub memory_bytes: u64,
    /// The type of its cards; empty without.
    pub gpu_type: String,
    /// Its cards.
    pub gpu_count: u32,
    /// The token it enrols with, sealed, for orders that have to be repeated.
    pub enrolment: Sealed,
    /// When it was ordered.
    pub created_ms: i64,
}

impl PoolWorker {
    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let row = Row::new(row, "pool_workers");
        Ok(Self {
            worker: row.id("worker")?,
            cluster: row.id("cluster")?,
            node: row.text("node")?,
            state: row.word("state", PoolWorkerState::from_word)?,
            workspace: row.opt_id("workspace")?,
            cpu_millis: row.number("cpu_millis")?,
            memory_bytes: row.number("memory_bytes")?,
            gpu_type: row.text("gpu_type")?,
            gpu_count: row.number("gpu_count")?,
            enrolment: Sealed(row.blob("enrolment")?),
            created_ms: row.int("created_ms")?,
        })
    }

    fn insert(&self) -> Result<Query, StoreError> {
        Ok(query(format!(
            "INSERT INTO pool_workers ({WORKER}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
             ON CONFLICT DO NOTHING"
        ))
        .bind(self.worker.to_wire())
        .bind(self.cluster.to_wire())
        .bind(self.node.clone())
        .bind(self.state.word())
        .bind(self.workspace.map(WorkspaceId::to_wire))
        .bind(number(self.cpu_millis)?)
        .bind(number(self.memory_bytes)?)
        .bind(self.gpu_type.clone())
        .bind(i64::from(self.gpu_count))
        .bind(self.enrolment.0.clone())
        .bind(self.created_ms))
    }
}

async fn attach(
    sql: &mut Sql<'_>,
    cluster: Cluster,
    token: Token,
    quota: Option<u32>,
) -> Result<Attached, StoreError> {
    // Two at once count one after the other.
    let lock = sql.dialect().for_update();
    let own = query(format!("SELECT id FROM workspaces WHERE id = $1{lock}"));
    sql.fetch_one(own.bind(cluster.workspace.to_wire())).await?;
    let rows = sqlx::query("SELECT name FROM clusters WHERE workspace = $1");
    let rows = sql.fetch(rows.bind(cluster.workspace.to_wire())).await?;
    for row in &rows {
        if Row::new(row, "clusters").text("name")? == cluster.name {
            return Ok(Attached::NameTaken);
        }
    }
    let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    if quota.is_some_and(|quota| count >= quota) {
        return Ok(Attached::QuotaFull(count));
    }
    if sql.execute(cluster.insert()).await? == 0 {
        return Ok(Attached::NameTaken);
    }
    sql.execute(tokens::insert(&token)).await?;
    Ok(Attached::Yes)
}

async fn detach(sql: &mut Sql<'_>, id: ClusterId, now_ms: i64) -> Result<Vec<TokenId>, StoreError> {
    let revoke = sqlx::query(
        "UPDATE tokens SET revoked_ms = COALESCE(revoked_ms, $2) WHERE cluster = $1 RETURNING id",
    );
    let rows = sql.fetch(revoke.bind(id.to_wire()).bind(now_ms)).await?;
    sql.execute(sqlx::query("DELETE FROM pool_workers WHERE cluster = $1").bind(id.to_wire())).await?;
    sql.execute(sqlx::query("DELETE FROM clusters WHERE id = $1").bind(id.to_wire())).await?;
    rows.iter().map(|row| Row::new(row, "tokens").id("id")).collect()
}

async fn rotate(sql: &mut Sql<'_>, id: ClusterId, token: Token, until_ms: i64) -> Result<(), StoreError> {
    let end = sqlx::query(
        "UPDATE tokens SET expires_ms = $2 WHERE cluster = $1 AND kind = 'cluster' \
         AND revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $2)",
    );
    sql.execute(end.bind(id.to_wire()).bind(until_ms)).await?;
    sql.execute(tokens::insert(&token)).await?;
    Ok(())
}

impl Store {
    /// Attaches a cluster together with its agent's token, unless the name is
    /// taken or the workspace has `quota` clusters already (`None`: no limit).
    ///
    /// # Errors
    /// When the database fails.
    pub async fn attach_cluster(
        &self,
        cluster: Cluster,
        token: Token,
        quota: Option<u32>,
    ) -> Result<Attached, StoreError> {
        self.transact(move |sql| Box::pin(attach(sql, cluster, token, quota))).await
    }

    /// Attaches a cluster and remembers the answer that says so, once; no
    /// answer is remembered when it is not attached.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn attach_cluster_once(
        &self,
        cluster: Cluster,
        token: Token,
        quota: Option<u32>,
        answer: Answer,
    ) -> Result<Once<Attached>, StoreError> {
        self.once(answer.clone(), move |sql| {
            Box::pin(async move {
                let attached = attach(sql, cluster, token, quota).await?;
                if attached != Attached::Yes {
                    calls::forget(sql, &answer).await?;
                }
                Ok(attached)
            })
        })
        .await
    }

    /// Every cluster, oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn clusters(&self) -> Result<Vec<Cluster>, StoreError> {
        let rows = self.fetch(query(format!("SELECT {CLUSTER} FROM clusters ORDER BY id"))).await?;
        rows.iter().map(Cluster::read).collect()
    }

    /// Says whether a cluster serves every workspace; `false` when there is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn share_cluster(&self, id: ClusterId, shared: bool) -> Result<bool, StoreError> {
        let update = sqlx::query("UPDATE clusters SET shared = $2 WHERE id = $1");
        Ok(self.execute(update.bind(id.to_wire()).bind(i64::from(shared))).await? > 0)
    }

    /// Notes that a cluster's agent was heard of.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn cluster_seen(
        &self,
        id: ClusterId,
        build: &str,
        kubernetes: &str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let update = sqlx::query(
            "UPDATE clusters SET last_seen_ms = $2, agent_build = $3, kubernetes = $4 WHERE id = $1",
        );
        let update =
            update.bind(id.to_wire()).bind(now_ms).bind(build.to_owned()).bind(kubernetes.to_owned());
        self.execute(update).await.map(drop)
    }

    /// Forgets a cluster and revokes every token that is bound to it: its
    /// agent's, its workers', and what they were to enrol with. Gives them.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn detach_cluster(&self, id: ClusterId, now_ms: i64) -> Result<Vec<TokenId>, StoreError> {
        self.transact(move |sql| Box::pin(detach(sql, id, now_ms))).await
    }

    /// Forgets a cluster as [`Store::detach_cluster`] and remembers the answer
    /// that says so, once.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn detach_cluster_once(
        &self,
        id: ClusterId,
        now_ms: i64,
        answer: Answer,
    ) -> Result<Once<Vec<TokenId>>, StoreError> {
        self.once(answer, move |sql| Box::pin(detach(sql, id, now_ms))).await
    }

    /// Adds another token for a cluster's agent; those before are good until
    /// `until_ms` at most.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn rotate_cluster_token(
        &self,
        id: ClusterId,
        token: Token,
        until_ms: i64,
    ) -> Result<(), StoreError> {
        self.transact(move |sql| Box::pin(rotate(sql, id, token, until_ms))).await
    }

    /// Adds another token as [`Store::rotate_cluster_token`] and remembers the
    /// answer that says so, once.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn rotate_cluster_token_once(
        &self,
        id: ClusterId,
        token: Token,
        until_ms: i64,
        answer: Answer,
    ) -> Result<Once<()>, StoreError> {
        self.once(answer, move |sql| Box::pin(rotate(sql, id, token, until_ms))).await
    }

    /// Revokes the tokens of a cluster's agent that are older than the one it
    /// came with now. Gives those that were revoked by this.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn retire_cluster_tokens(
        &self,
        id: ClusterId,
        keep: TokenId,
        now_ms: i64,
    ) -> Result<Vec<TokenId>, StoreError> {
        // Ids begin with the time, so that an older one sorts before.
        let revoke = sqlx::query(
            "UPDATE tokens SET revoked_ms = $3 WHERE cluster = $1 AND kind = 'cluster' AND id < $2 \
             AND revoked_ms IS NULL RETURNING id",
        );
        let rows = self.fetch(revoke.bind(id.to_wire()).bind(keep.to_wire()).bind(now_ms)).await?;
        rows.iter().map(|row| Row::new(row, "tokens").id("id")).collect()
    }

    /// Notes that a worker is ordered, with the token it enrols with; `false`,
    /// and nothing is noted, when the lease is lost or one is on its way to
    /// that node already.
    ///
    /// # Errors
    /// When the database fails, or the cluster is gone.
    pub async fn order_pool_worker(
        &self,
        worker: PoolWorker,
        enrolment: Token,
        lease: Lease,
    ) -> Result<bool, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                if !holds(sql, &lease).await? || sql.execute(worker.insert()?).await? == 0 {
                    return Ok(false);
                }
                sql.execute(tokens::insert(&enrolment)).await?;
                Ok(true)
            })
        })
        .await
    }

    /// Every worker ordered on a cluster, oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn pool_workers(&self) -> Result<Vec<PoolWorker>, StoreError> {
        let rows = self.fetch(query(format!("SELECT {WORKER} FROM pool_workers ORDER BY worker"))).await?;
        rows.iter().map(PoolWorker::read).collect()
    }

    /// Says how far a worker on a cluster is; `false` when there is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn set_pool_worker(
        &self,
        worker: WorkerId,
        state: PoolWorkerState,
    ) -> Result<bool, StoreError> {
        let update = sqlx::query("UPDATE pool_workers SET state = $2 WHERE worker = $1");
        Ok(self.execute(update.bind(worker.to_wire()).bind(state.word())).await? > 0)
    }

    /// A worker on a cluster has come: it is no longer on its way. Gives how
    /// far it is now; `None` when it is not known.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn pool_worker_came(&self, worker: WorkerId) -> Result<Option<PoolWorkerState>, StoreError> {
        let update = sqlx::query(
            "UPDATE pool_workers SET state = CASE WHEN state = 'pending' THEN 'running' ELSE state END \
             WHERE worker = $1 RETURNING state",
        );
        let row = self.fetch_one(update.bind(worker.to_wire())).await?;
        row.map(|row| Row::new(&row, "pool_workers").word("state", PoolWorkerState::from_word)).transpose()
    }

    /// Forgets a worker on a cluster and revokes its tokens. Gives them.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn forget_pool_worker(
        &self,
        worker: WorkerId,
        now_ms: i64,
    ) -> Result<Vec<TokenId>, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                let delete = sqlx::query("DELETE FROM pool_workers WHERE worker = $1");
                sql.execute(delete.bind(worker.to_wire())).await?;
                let revoke = sqlx::query(
                    "UPDATE tokens SET revoked_ms = $2 WHERE worker = $1 AND cluster IS NOT NULL \
                     AND revoked_ms IS NULL RETURNING id",
                );
                let rows = sql.fetch(revoke.bind(worker.to_wire()).bind(now_ms)).await?;
                rows.iter().map(|row| Row::new(row, "tokens").id("id")).collect()
            })
        })
        .await
    }
}
