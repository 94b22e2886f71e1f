//! Leases: at most one holder at a time, and an epoch that tells a holder's
//! work from that of the one before. In PostgreSQL they run on the database's
//! clock, in SQLite, where one process has the folder anyway, on the caller's.

use levers9_wire::InstanceId;

use super::row::Row;
use super::sql::query;
use super::{Dialect, Store, StoreError};

/// A lease as its holder knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What is leased: `scheduler`…
    pub name: String,
    /// Who holds it.
    pub holder: InstanceId,
    /// How often it changed hands, this time included.
    pub epoch: i64,
}

impl Dialect {
    /// The time leases run on, in Unix milliseconds; `now` is the argument
    /// that holds the caller's.
    pub(super) fn lease_now(self, now: &str) -> String {
        match self {
            Self::Sqlite => now.to_owned(),
            // The caller's time is named so that its type is known, and left out.
            Self::Postgres => {
                format!("(CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT) + 0 * {now})")
            }
        }
    }
}

impl Store {
    /// Takes a lease that is free or has expired, or keeps one's own, for
    /// `ttl_ms` from now; `None` while another holds it.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn acquire_lease(
        &self,
        name: &str,
        holder: InstanceId,
        ttl_ms: i64,
        now_ms: i64,
    ) -> Result<Option<Lease>, StoreError> {
        let now = self.dialect().lease_now("$4");
        let take = query(format!(
            "INSERT INTO leases (name, holder, epoch, expires_ms) VALUES ($1, $2, 1, {now} + $3) \
             ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_ms = excluded.expires_ms, \
             epoch = leases.epoch + CASE WHEN leases.holder = excluded.holder THEN 0 ELSE 1 END \
             WHERE leases.holder IS NULL OR leases.holder = excluded.holder OR leases.expires_ms <= {now} \
             RETURNING epoch"
        ))
        .bind(name.to_owned())
        .bind(holder.to_wire())
        .bind(ttl_ms)
        .bind(now_ms);
        let Some(row) = self.fetch_one(take).await? else { return Ok(None) };
        let epoch = Row::new(&row, "leases").int("epoch")?;
        Ok(Some(Lease { name: name.to_owned(), holder, epoch }))
    }

    /// Lets go of a lease; `false` when another has taken it.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn release_lease(&self, lease: &Lease) -> Result<bool, StoreError> {
        let release = sqlx::query(
            "UPDATE leases SET holder = NULL, expires_ms = 0 WHERE name = $1 AND holder = $2 AND epoch = $3",
        );
        let release = release.bind(lease.name.clone()).bind(lease.holder.to_wire()).bind(lease.epoch);
        Ok(self.execute(release).await? > 0)
    }
}
