//! Brings the tables up to the version of this build. The statements are part
//! of the binary. Each one applied is recorded with its checksum, so running
//! again does nothing, and a changed or unknown one is refused. PostgreSQL
//! holds an advisory lock meanwhile: controlplanes that start together take
//! turns.

use std::borrow::Cow;

use sqlx::AnyConnection;
use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

use super::{Dialect, StoreError};

/// One step: its version, what it is for, and its SQL for both databases.
struct Step {
    version: i64,
    purpose: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

const STEPS: &[Step] = &[
    Step {
        version: 1,
        purpose: "start",
        sqlite: include_str!("../../migrations/sqlite/0001_start.sql"),
        postgres: include_str!("../../migrations/postgres/0001_start.sql"),
    },
    Step {
        version: 2,
        purpose: "reach",
        sqlite: include_str!("../../migrations/sqlite/0002_reach.sql"),
        postgres: include_str!("../../migrations/postgres/0002_reach.sql"),
    },
    Step {
        version: 3,
        purpose: "clusters",
        sqlite: include_str!("../../migrations/sqlite/0003_clusters.sql"),
        postgres: include_str!("../../migrations/postgres/0003_clusters.sql"),
    },
    Step {
        version: 4,
        purpose: "replicas",
        sqlite: include_str!("../../migrations/sqlite/0004_replicas.sql"),
        postgres: include_str!("../../migrations/postgres/0004_replicas.sql"),
    },
];

/// Applies what is missing, each step in a transaction.
pub(super) async fn run(connection: &mut AnyConnection, dialect: Dialect) -> Result<(), StoreError> {
    let migrator = Migrator::with_migrations(STEPS.iter().map(|step| step.of(dialect)).collect());
    // `run` does the same, but the compiler does not see that its future is
    // `Send`: it borrows through a trait with a lifetime.
    migrator.run_direct(None, connection, false).await.map_err(StoreError::Migrate)
}

impl Step {
    fn of(&self, dialect: Dialect) -> Migration {
        let sql = match dialect {
            Dialect::Sqlite => self.sqlite,
            Dialect::Postgres => self.postgres,
        };
        let purpose = Cow::Borrowed(self.purpose);
        Migration::new(self.version, purpose, MigrationType::Simple, sql.into_sql_str(), false)
    }
}
