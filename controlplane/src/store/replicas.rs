//! The controlplanes that run on one database, and where peers may dial each.
//! One that says nothing for a while is not there any more. They run on the
//! database's clock, as leases do.

use levers9_wire::InstanceId;

use super::row::Row;
use super::sql::query;
use super::{Store, StoreError};

impl Store {
    /// Says that a controlplane is here, for `ttl_ms` from now. `address` is
    /// empty where it does not know how it is reached; one that was at the same
    /// address before is not there any more.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn announce_replica(
        &self,
        instance: InstanceId,
        address: &str,
        ttl_ms: i64,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let now = self.dialect().lease_now("$4");
        let announce = query(format!(
            "INSERT INTO replicas (instance, address, expires_ms) VALUES ($1, $2, {now} + $3) \
             ON CONFLICT (instance) DO UPDATE SET address = excluded.address, expires_ms = excluded.expires_ms"
        ));
        let announce = announce.bind(instance.to_wire()).bind(address.to_owned()).bind(ttl_ms).bind(now_ms);
        self.execute(announce).await?;
        let now = self.dialect().lease_now("$3");
        let forget = query(format!(
            "DELETE FROM replicas WHERE expires_ms < {now} OR (address = $1 AND address <> '' AND instance <> $2)"
        ));
        self.execute(forget.bind(address.to_owned()).bind(instance.to_wire()).bind(now_ms)).await?;
        Ok(())
    }

    /// A controlplane is about to stop. Gives the addresses of the others.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn withdraw_replica(
        &self,
        instance: InstanceId,
        now_ms: i64,
    ) -> Result<Vec<String>, StoreError> {
        let withdraw = sqlx::query("DELETE FROM replicas WHERE instance = $1").bind(instance.to_wire());
        self.execute(withdraw).await?;
        let now = self.dialect().lease_now("$1");
        let others =
            query(format!("SELECT address FROM replicas WHERE expires_ms >= {now} ORDER BY instance"));
        let rows = self.fetch(others.bind(now_ms)).await?;
        rows.iter().map(|row| Row::new(row, "replicas").text("address")).collect()
    }
}
