//! Opening: migrations, the folder's lock, URLs that name nothing.

use std::error::Error;

use levers9_controlplane::store::{DEFAULT_POOL_SIZE, Store, StoreError};
use sqlx::{AnyConnection, Connection};

use crate::fixtures::*;
use crate::pressure::opened_by_driver;

pub(crate) async fn migrating_again_changes_nothing(place: Place) {
    let store = place.open().await;
    let workspace = a_workspace(&store).await;
    store.close().await;
    drop(store);
    for _ in 0..2 {
        let store = place.open().await;
        assert!(store.workspace(workspace).await.unwrap().is_some());
        store.close().await;
    }
}

/// A database as the build before left it: what was in it is still there.
pub(crate) async fn an_older_database_is_brought_up_to_date(place: Place) {
    let store = place.open().await;
    let task = a_task(&store).await;
    store.close().await;
    drop(store);
    let mut raw = AnyConnection::connect(&opened_by_driver(&place)).await.unwrap();
    let older = "DROP INDEX tokens_by_container; DROP INDEX tasks_by_slug; ALTER TABLE tasks DROP COLUMN slug; \
        ALTER TABLE tasks DROP COLUMN ports; ALTER TABLE tasks DROP COLUMN public; \
        DELETE FROM _sqlx_migrations WHERE version = 2";
    sqlx::raw_sql(older).execute(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    let store = place.open().await;
    assert_eq!(store.task(task).await.unwrap().unwrap().task.exposed, None);
}

pub(crate) async fn a_database_of_a_newer_build_is_refused(place: Place) {
    place.open().await.close().await;
    let mut raw = AnyConnection::connect(&opened_by_driver(&place)).await.unwrap();
    let newer = "UPDATE _sqlx_migrations SET version = 999 WHERE version = 1";
    sqlx::raw_sql(newer).execute(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    let refused = Store::open(&place.url, DEFAULT_POOL_SIZE).await.unwrap_err();
    assert!(matches!(refused, StoreError::Migrate(_)), "{refused:?}");
    assert!(refused.source().unwrap().to_string().contains("999"), "{refused:?}");
}

#[tokio::test]
async fn controlplanes_that_start_together_take_turns() {
    let place = Place::postgres().await;
    let starts: Vec<_> = (0..6)
        .map(|_| {
            let url = place.url.clone();
            tokio::spawn(async move { Store::open(&url, 2).await.unwrap() })
        })
        .collect();
    for start in starts {
        start.await.unwrap().ping().await.unwrap();
    }
}

#[tokio::test]
async fn a_data_folder_has_one_controlplane() {
    let place = Place::sqlite();
    let store = place.open().await;
    let folder = place.url.trim_start_matches("sqlite://").trim_end_matches("/levers9.db");
    for file in ["levers9.db", "another.db"] {
        let refused = Store::open(&format!("sqlite://{folder}/{file}"), 1).await.unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, StoreError::FolderInUse(_)), "{text}");
        assert!(text.contains(folder) && text.contains("another controlplane"), "{text}");
    }
    let clone = store.clone();
    drop(store);
    assert!(Store::open(&place.url, 1).await.is_err(), "a clone still has it");
    clone.close().await;
    drop(clone);
    place.open().await.ping().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_opened_is_said_clearly() {
    for url in ["", "mysql://h/d", "postgres", "sqlite:", "sqlite://"] {
        let refused = Store::open(url, 1).await.unwrap_err();
        assert!(matches!(refused, StoreError::Url(_)), "{url}: {refused:?}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = Store::open(&format!("sqlite://{}/x.db", file.path().display()), 1).await.unwrap_err();
    assert!(matches!(refused, StoreError::Folder { .. }), "{refused:?}");
    let folder = tempfile::tempdir().unwrap();
    let nobody = format!("postgres://u@localhost/d?host={}", folder.path().display());
    let refused = Store::open(&nobody, 1).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.db"), vec![7u8; 8192]).unwrap();
    let refused = Store::open(&format!("sqlite://{}/x.db", folder.path().display()), 1).await.unwrap_err();
    assert!(matches!(refused, StoreError::Damaged(_)), "{refused:?}");
}

#[tokio::test]
async fn sqlite_runs_as_it_is_meant_to() {
    let place = Place::sqlite();
    let store = place.open().await;
    let mut raw = AnyConnection::connect(&opened_by_driver(&place)).await.unwrap();
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut raw).await.unwrap();
    assert_eq!(mode, "wal");
    assert_eq!(store.stats().limit, 1);
    let memory = Store::open("sqlite::memory:", 5).await.unwrap();
    a_workspace(&memory).await;
    assert!(store.workspaces().await.unwrap().is_empty(), "not the same database");
}

#[tokio::test]
async fn a_pool_with_no_free_connection_says_so_in_five_seconds() {
    let place = Place::postgres().await;
    let store = place.open_with(1).await;
    let mut raw = AnyConnection::connect(&place.url).await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE workers IN ACCESS EXCLUSIVE MODE").execute(&mut raw).await.unwrap();
    let stuck = {
        let store = store.clone();
        tokio::spawn(async move { store.workers().await })
    };
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let refused = store.ping().await.unwrap_err();
    assert!(matches!(refused, StoreError::Exhausted) && refused.is_retryable(), "{refused:?}");
    raw.close().await.unwrap();
    stuck.await.unwrap().unwrap();
    store.ping().await.unwrap();
}
