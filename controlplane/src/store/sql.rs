//! Statements inside one transaction, and the conversions between Rust and
//! the four SQL types both databases share. Each table's own statements are in
//! the module named after it.

use std::future::Future;
use std::pin::Pin;

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::{Any, AnyConnection, AssertSqlSafe};

use super::{Dialect, StoreError};

/// A future that borrows its transaction.
pub(super) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A statement with its arguments.
pub(super) type Query = sqlx::query::Query<'static, Any, AnyArguments>;

/// A statement put together from constants of this module's neighbours. What
/// a user gave is bound, never part of the text.
pub(super) fn query(sql: String) -> Query {
    sqlx::query(AssertSqlSafe(sql))
}

/// One open transaction.
pub(super) struct Sql<'c> {
    connection: &'c mut AnyConnection,
    dialect: Dialect,
}

impl<'c> Sql<'c> {
    pub(super) fn new(connection: &'c mut AnyConnection, dialect: Dialect) -> Self {
        Self { connection, dialect }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Runs a statement and tells how many rows it touched.
    pub(super) async fn execute(&mut self, query: Query) -> Result<u64, StoreError> {
        Ok(query.execute(&mut *self.connection).await?.rows_affected())
    }

    /// Runs a statement and takes all its rows.
    pub(super) async fn fetch(&mut self, query: Query) -> Result<Vec<AnyRow>, StoreError> {
        Ok(query.fetch_all(&mut *self.connection).await?)
    }

    /// Runs a statement that gives at most one row.
    pub(super) async fn fetch_one(&mut self, query: Query) -> Result<Option<AnyRow>, StoreError> {
        self.fetch(query).await.map(|rows| rows.into_iter().next())
    }
}

/// A count or size as SQL holds it.
pub(super) fn number(value: u64) -> Result<i64, StoreError> {
    i64::try_from(value).map_err(|_| StoreError::Invalid("a number is above 2^63 - 1"))
}

/// A page's length as SQL holds it: at least 1, at most 1,000.
pub(super) fn page(limit: u32) -> i64 {
    i64::from(limit.clamp(1, 1000))
}

/// Words of a closed set as a list for `IN`.
pub(super) fn words<'a>(of: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = of.into_iter().map(|word| format!("'{word}'")).collect();
    quoted.join(", ")
}
