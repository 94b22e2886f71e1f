//! Callers that go away in the middle (B117), many at once on a small pool
//! (B118), and a store that is closed.

use std::time::Duration;

use levers9_controlplane::store::{Dialect, Store, StoreError};
use rand::{Rng, SeedableRng, rngs::StdRng};
use sqlx::{AnyConnection, Connection};

use crate::fixtures::*;

/// A connection the store knows nothing of.
async fn witness(place: &Place) -> AnyConnection {
    AnyConnection::connect(&opened_by_driver(place)).await.unwrap()
}

/// The URL as the driver reads it: SQLite paths are percent-encoded there.
pub(crate) fn opened_by_driver(place: &Place) -> String {
    match place.url.strip_prefix("sqlite://") {
        Some(path) => {
            format!("sqlite://{}", path.replace('%', "%25").replace('?', "%3F").replace(' ', "%20"))
        }
        None => place.url.clone(),
    }
}

async fn sees(witness: &mut AnyConnection, name: &str) -> bool {
    let row = sqlx::query("SELECT id FROM workspaces WHERE name = $1").bind(name.to_owned());
    row.fetch_optional(witness).await.unwrap().is_some()
}

/// Waits for a number of turns of the runtime: finer than its timer.
async fn turns(number: u32) {
    for _ in 0..number {
        tokio::task::yield_now().await;
    }
}

async fn idle_in_transaction(store: &Store, witness: &mut AnyConnection) -> i64 {
    if store.dialect() == Dialect::Sqlite {
        // Another connection can write only while nobody has begun to.
        sqlx::raw_sql("PRAGMA busy_timeout = 0").execute(&mut *witness).await.unwrap();
        sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK").execute(&mut *witness).await.unwrap();
        return 0;
    }
    let open = sqlx::query_scalar(
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    );
    open.fetch_one(witness).await.unwrap()
}

pub(crate) async fn cancelled_callers_leave_no_open_transaction(place: Place) {
    let store = place.open_with(1).await;
    let mut witness = witness(&place).await;
    let mut rng = StdRng::seed_from_u64(117);
    let mut abandoned = 0;
    for n in 0..200 {
        let patience = rng.random_range(0..300);
        let call = store.create_workspace(workspace(&format!("cancelled {n}")), None);
        tokio::select! {
            biased;
            done = call => done.unwrap(),
            () = turns(patience) => abandoned += 1,
        }
        let probe = format!("probe {n}");
        store.create_workspace(workspace(&probe), None).await.unwrap();
        assert!(sees(&mut witness, &probe).await, "round {n}: written into somebody's open transaction");
    }
    assert!(abandoned > 20, "only {abandoned} calls were abandoned: more patience is of no use");
    for n in 0..200 {
        assert!(sees(&mut witness, &format!("cancelled {n}")).await, "round {n}: begun and not finished");
    }
    assert_eq!(idle_in_transaction(&store, &mut witness).await, 0);
}

pub(crate) async fn many_callers_share_a_small_pool(place: Place) {
    let store = place.open_with(5).await;
    let (fence, lease) = a_running_task(&store).await;
    let callers: Vec<_> = (0..400)
        .map(|n| {
            let (store, lease) = (store.clone(), lease.clone());
            tokio::spawn(async move {
                match n % 4 {
                    0 => store.segments(fence.task, 0, 100).await.map(drop),
                    1 => store.live_tasks().await.map(drop),
                    2 => store.reserve_lines(fence.task, n).await.map(drop),
                    _ => store.acquire_lease(&lease.name, lease.holder, 60_000, T0).await.map(drop),
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    store.ping().await.unwrap();
    // Connections come back a moment after their statement's answer.
    for _ in 0..100 {
        let stats = store.stats();
        assert!(stats.open <= stats.limit, "{stats:?}");
        if stats.idle == stats.open {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("still in use: {:?}", store.stats());
}

pub(crate) async fn a_closed_store_says_so(place: Place) {
    let store = place.open().await;
    store.ping().await.unwrap();
    store.close().await;
    for failed in [
        store.ping().await,
        store.workers().await.map(drop),
        store.touch_token(levers9_wire::TokenId::generate(), T0).await,
    ] {
        assert!(matches!(failed, Err(StoreError::ShuttingDown)), "{failed:?}");
    }
}
