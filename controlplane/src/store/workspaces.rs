//! Workspaces: the tenants. The first one comes into being together with its
//! admin token, exactly once.

use levers9_wire::WorkspaceId;

use super::row::Row;
use super::sql::Sql;
use super::{Answer, Dialect, Once, Store, StoreError, Token, calls, tokens};

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Its identity.
    pub id: WorkspaceId,
    /// What people call it; one of a kind.
    pub name: String,
    /// When it was created.
    pub created_ms: i64,
}

impl Workspace {
    fn read(row: &sqlx::any::AnyRow) -> Result<Self, StoreError> {
        let row = Row::new(row, "workspaces");
        Ok(Self { id: row.id("id")?, name: row.text("name")?, created_ms: row.int("created_ms")? })
    }

    fn insert(&self) -> super::Query {
        sqlx::query("INSERT INTO workspaces (id, name, created_ms) VALUES ($1, $2, $3)")
            .bind(self.id.to_wire())
            .bind(self.name.clone())
            .bind(self.created_ms)
    }
}

async fn create(sql: &mut Sql<'_>, workspace: Workspace, token: Option<Token>) -> Result<(), StoreError> {
    sql.execute(workspace.insert()).await?;
    if let Some(token) = token {
        sql.execute(tokens::insert(&token)).await?;
    }
    Ok(())
}

impl Store {
    /// Creates the first workspace and its admin token, and remembers the
    /// answer with them where one is given; `false`, and nothing is created,
    /// when there is a workspace already.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn first_workspace(
        &self,
        workspace: Workspace,
        admin: Token,
        answer: Option<Answer>,
    ) -> Result<bool, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                if sql.dialect() == Dialect::Postgres {
                    // Two that bootstrap at once: the second waits, then sees the first's row.
                    sql.execute(sqlx::query("LOCK TABLE workspaces IN SHARE ROW EXCLUSIVE MODE")).await?;
                }
                if sql.fetch_one(sqlx::query("SELECT id FROM workspaces LIMIT 1")).await?.is_some() {
                    return Ok(false);
                }
                create(sql, workspace, Some(admin)).await?;
                if let Some(answer) = answer {
                    calls::remember(sql, &answer).await?;
                }
                Ok(true)
            })
        })
        .await
    }

    /// Creates a workspace, with a first token where one is given.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the name is taken.
    pub async fn create_workspace(
        &self,
        workspace: Workspace,
        token: Option<Token>,
    ) -> Result<(), StoreError> {
        self.transact(move |sql| Box::pin(create(sql, workspace, token))).await
    }

    /// Creates a workspace with a first token and remembers the answer that
    /// says so, once.
    ///
    /// # Errors
    /// As [`Store::create_workspace`].
    pub async fn create_workspace_once(
        &self,
        workspace: Workspace,
        token: Token,
        answer: Answer,
    ) -> Result<Once<()>, StoreError> {
        self.once(answer, move |sql| Box::pin(create(sql, workspace, Some(token)))).await
    }

    /// Every workspace, by name.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn workspaces(&self) -> Result<Vec<Workspace>, StoreError> {
        let rows =
            self.fetch(sqlx::query("SELECT id, name, created_ms FROM workspaces ORDER BY name")).await?;
        rows.iter().map(Workspace::read).collect()
    }

    /// The workspace of an id.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn workspace(&self, id: WorkspaceId) -> Result<Option<Workspace>, StoreError> {
        let query =
            sqlx::query("SELECT id, name, created_ms FROM workspaces WHERE id = $1").bind(id.to_wire());
        self.fetch_one(query).await?.as_ref().map(Workspace::read).transpose()
    }
}
