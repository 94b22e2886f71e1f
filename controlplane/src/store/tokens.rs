//! Tokens by their rows: a hash to find one by, what it is good for, and the
//! single use of an enrolment. The secret itself never gets here.

use std::fmt;

use aws_lc_rs::digest;
use levers9_wire::token::{Secret, TokenKind};
use levers9_wire::{ClusterId, ContainerId, InstanceId, TokenId, WorkerId, WorkspaceId};
use sqlx::any::AnyRow;

use super::row::Row;
use super::sql::{Query, query};
use super::{Answer, Once, Scope, Store, StoreError};

const COLUMNS: &str = "id, workspace, kind, hash, hint, created_ms, last_used_ms, expires_ms, revoked_ms, \
    container, worker, pool, shared, claimed_instance, confirmed, cluster, node";

/// The SHA-256 of a token, by which it is stored and found.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// Hashes a token.
    #[must_use]
    pub fn of(token: &Secret) -> Self {
        let hash = digest::digest(&digest::SHA256, token.expose().as_bytes());
        let mut bytes = [0u8; 32];
        bytes.copy_from_slice(hash.as_ref());
        Self(bytes)
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its identity.
    pub id: TokenId,
    /// Whom it speaks for; none for what is shared by all.
    pub workspace: Option<WorkspaceId>,
    /// What it lets its holder do.
    pub kind: TokenKind,
    /// The hash of the secret.
    pub hash: TokenHash,
    /// What tells it apart in a list.
    pub hint: String,
    /// When it was created.
    pub created_ms: i64,
    /// When it was last used, roughly.
    pub last_used_ms: Option<i64>,
    /// From when on it is no longer good.
    pub expires_ms: Option<i64>,
    /// When it was revoked.
    pub revoked_ms: Option<i64>,
    /// The container a restricted token is good for.
    pub container: Option<ContainerId>,
    /// The worker a worker or enrolment token is for.
    pub worker: Option<WorkerId>,
    /// The pool an enrolment or join token leads to.
    pub pool: Option<String>,
    /// Whether the worker it leads to serves every workspace.
    pub shared: bool,
    /// The process that used an enrolment token.
    pub claimed_instance: Option<InstanceId>,
    /// Whether that process has its worker token for certain.
    pub confirmed: bool,
    /// The cluster that an agent, or a worker on it, belongs to.
    pub cluster: Option<ClusterId>,
    /// The only node that a worker may enrol from.
    pub node: Option<String>,
}

impl Token {
    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let row = Row::new(row, "tokens");
        Ok(Self {
            id: row.id("id")?,
            workspace: row.opt_id("workspace")?,
            kind: row.word("kind", TokenKind::from_word)?,
            hash: TokenHash(row.fixed("hash")?),
            hint: row.text("hint")?,
            created_ms: row.int("created_ms")?,
            last_used_ms: row.opt_int("last_used_ms")?,
            expires_ms: row.opt_int("expires_ms")?,
            revoked_ms: row.opt_int("revoked_ms")?,
            container: row.opt_id("container")?,
            worker: row.opt_id("worker")?,
            pool: row.opt_text("pool")?,
            shared: row.flag("shared")?,
            claimed_instance: row.opt_id("claimed_instance")?,
            confirmed: row.flag("confirmed")?,
            cluster: row.opt_id("cluster")?,
            node: row.opt_text("node")?,
        })
    }
}

/// What came of using an enrolment token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnrolmentClaim {
    /// This is its one use.
    First,
    /// The same process asks again before it confirmed: its answer got lost.
    Repeat,
    /// Another process used it, or this one has confirmed already.
    UsedByOther,
    /// Its time is over, it was revoked, or it is no enrolment token.
    Expired,
}

/// How a token would be claimed now.
fn judge_claim(token: &Token, instance: InstanceId, now_ms: i64) -> EnrolmentClaim {
    if token.kind != TokenKind::Enrolment || token.revoked_ms.is_some() {
        return EnrolmentClaim::Expired;
    }
    match token.claimed_instance {
        // A claim made in time stays repeatable: what expires is the offer.
        Some(owner) if owner == instance && !token.confirmed => EnrolmentClaim::Repeat,
        Some(_) => EnrolmentClaim::UsedByOther,
        None if token.expires_ms.is_some_and(|end| end <= now_ms) => EnrolmentClaim::Expired,
        None => EnrolmentClaim::First,
    }
}

/// The statement that adds a token.
pub(super) fn insert(token: &Token) -> Query {
    query(format!(
        "INSERT INTO tokens ({COLUMNS}) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"
    ))
    .bind(token.id.to_wire())
    .bind(token.workspace.map(WorkspaceId::to_wire))
    .bind(token.kind.word())
    .bind(token.hash.0.to_vec())
    .bind(token.hint.clone())
    .bind(token.created_ms)
    .bind(token.last_used_ms)
    .bind(token.expires_ms)
    .bind(token.revoked_ms)
    .bind(token.container.map(ContainerId::to_wire))
    .bind(token.worker.map(WorkerId::to_wire))
    .bind(token.pool.clone())
    .bind(i64::from(token.shared))
    .bind(token.claimed_instance.map(InstanceId::to_wire))
    .bind(i64::from(token.confirmed))
    .bind(token.cluster.map(ClusterId::to_wire))
    .bind(token.node.clone())
}

/// The statement that removes the tokens that end with a container.
pub(super) fn delete_of(container: ContainerId) -> Query {
    sqlx::query("DELETE FROM tokens WHERE container = $1").bind(container.to_wire())
}

impl Store {
    /// Adds a token.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when its id or hash exists.
    pub async fn insert_token(&self, token: &Token) -> Result<(), StoreError> {
        self.execute(insert(token)).await.map(drop)
    }

    /// Adds a token and remembers the answer that says so, once.
    ///
    /// # Errors
    /// As [`Store::insert_token`].
    pub async fn insert_token_once(&self, token: Token, answer: Answer) -> Result<Once<()>, StoreError> {
        self.once(answer, move |sql| Box::pin(async move { sql.execute(insert(&token)).await.map(drop) }))
            .await
    }

    /// The token of a hash, whether or not it is still good.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn token_by_hash(&self, hash: TokenHash) -> Result<Option<Token>, StoreError> {
        let found = query(format!("SELECT {COLUMNS} FROM tokens WHERE hash = $1")).bind(hash.0.to_vec());
        self.fetch_one(found).await?.as_ref().map(Token::read).transpose()
    }

    /// Tokens, newest first: those that are good now and were made for
    /// somebody, or `all` there are. A running container has one of its own.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn tokens(&self, scope: Scope, all: bool, now_ms: i64) -> Result<Vec<Token>, StoreError> {
        let good = if all {
            ""
        } else {
            " AND revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $2) AND container IS NULL"
        };
        let statement = format!(
            "SELECT {COLUMNS} FROM tokens WHERE ($1 IS NULL OR workspace = $1){good} ORDER BY id DESC"
        );
        let statement = query(statement).bind(scope.bytes());
        let statement = if all { statement } else { statement.bind(now_ms) };
        self.fetch(statement).await?.iter().map(Token::read).collect()
    }

    /// Revokes a token within a scope and gives its row; the time of a first
    /// revocation stays.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn revoke_token(
        &self,
        id: TokenId,
        scope: Scope,
        now_ms: i64,
    ) -> Result<Option<Token>, StoreError> {
        let revoked = query(format!(
            "UPDATE tokens SET revoked_ms = COALESCE(revoked_ms, $3) \
             WHERE id = $1 AND ($2 IS NULL OR workspace = $2) RETURNING {COLUMNS}"
        ))
        .bind(id.to_wire())
        .bind(scope.bytes())
        .bind(now_ms);
        self.fetch_one(revoked).await?.as_ref().map(Token::read).transpose()
    }

    /// Notes that a token was used.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn touch_token(&self, id: TokenId, now_ms: i64) -> Result<(), StoreError> {
        let query = sqlx::query(
            "UPDATE tokens SET last_used_ms = $2 WHERE id = $1 AND (last_used_ms IS NULL OR last_used_ms < $2)",
        );
        self.execute(query.bind(id.to_wire()).bind(now_ms)).await.map(drop)
    }

    /// Uses an enrolment token for one process; `None` when there is no such token.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn claim_enrolment(
        &self,
        id: TokenId,
        instance: InstanceId,
        now_ms: i64,
    ) -> Result<Option<EnrolmentClaim>, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                let lock = sql.dialect().for_update();
                let found =
                    query(format!("SELECT {COLUMNS} FROM tokens WHERE id = $1{lock}")).bind(id.to_wire());
                let Some(row) = sql.fetch_one(found).await? else { return Ok(None) };
                let claim = judge_claim(&Token::read(&row)?, instance, now_ms);
                if claim == EnrolmentClaim::First {
                    let claimed = sqlx::query(
                        "UPDATE tokens SET claimed_instance = $2, last_used_ms = $3 WHERE id = $1",
                    );
                    sql.execute(claimed.bind(id.to_wire()).bind(instance.to_wire()).bind(now_ms)).await?;
                }
                Ok(Some(claim))
            })
        })
        .await
    }

    /// Ends the repeatability of a claim; `false` when there is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn confirm_enrolment(&self, id: TokenId) -> Result<bool, StoreError> {
        let query =
            sqlx::query("UPDATE tokens SET confirmed = 1 WHERE id = $1 AND claimed_instance IS NOT NULL");
        Ok(self.execute(query.bind(id.to_wire())).await? > 0)
    }
}
