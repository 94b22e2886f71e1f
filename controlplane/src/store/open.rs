//! From a URL to a ready pool: which database, its connection settings, and
//! the lock that keeps a second controlplane off an SQLite folder.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{Any, ConnectOptions};

use super::{Store, StoreError, migrate};

/// Connections to PostgreSQL when the settings say nothing.
pub const DEFAULT_POOL_SIZE: u32 = 16;

/// How long a caller waits for a free connection before it is told so.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// One SQLite connection does all the work: there is never a second writer
/// to be "locked" out by, and reads see what was written before them.
const SQLITE_SETUP: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; \
    PRAGMA foreign_keys = ON; PRAGMA busy_timeout = 5000;";

/// Bounds on what one statement or an abandoned transaction can hold up.
const POSTGRES_SETUP: &str = "SET statement_timeout = '30s'; SET lock_timeout = '10s'; \
    SET idle_in_transaction_session_timeout = '60s';";

/// The file whose lock says that the data folder is in use.
const LOCK_FILE: &str = "lock";

/// Which database the store runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// One file in a data folder, or in memory; one controlplane.
    Sqlite,
    /// A server; any number of controlplanes.
    Postgres,
}

impl Dialect {
    /// How a transaction that will write begins.
    pub(super) fn begin(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN",
        }
    }

    /// What keeps the selected rows as they are until the transaction ends.
    /// An SQLite transaction is alone already.
    pub(super) fn for_update(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres => " FOR UPDATE",
        }
    }

    /// Like [`Self::for_update`], shared with others that only look.
    pub(super) fn for_share(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres => " FOR SHARE",
        }
    }

    /// What a URL names.
    ///
    /// # Errors
    /// When it is neither a PostgreSQL nor an SQLite URL.
    pub fn of_url(url: &str) -> Result<Self, StoreError> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => Ok(Self::Postgres),
            Some("sqlite") => Ok(Self::Sqlite),
            _ => Err(StoreError::Url("it starts with postgres:// or sqlite://")),
        }
    }
}

impl Store {
    /// Opens the database `url` names and brings its tables up to date.
    ///
    /// `postgres://user@host/name` opens at most `pool_size` connections.
    /// `sqlite://folder/file` takes the path as it is written, creates folder
    /// and file, and takes the folder for itself; `sqlite::memory:` forgets
    /// everything when closed.
    ///
    /// # Errors
    /// When the URL is not usable, the folder is in use, the database does not
    /// answer, or its tables belong to a newer build.
    pub async fn open(url: &str, pool_size: u32) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        match Dialect::of_url(url)? {
            Dialect::Postgres => open_postgres(url, pool_size.max(1)).await,
            Dialect::Sqlite => open_sqlite(url).await,
        }
    }
}

async fn open_postgres(url: &str, pool_size: u32) -> Result<Store, StoreError> {
    let options = AnyConnectOptions::from_str(url).map_err(|_| StoreError::Url("it cannot be parsed"))?;
    // Migrations wait for one another and may take long: no timeouts there.
    let mut connection = options.connect().await?;
    migrate::run(&mut connection, Dialect::Postgres).await?;
    drop(sqlx::Connection::close(connection).await);
    let pool = pool_options(POSTGRES_SETUP).max_connections(pool_size).connect_with(options).await?;
    Ok(Store { pool, dialect: Dialect::Postgres, _folder: None })
}

async fn open_sqlite(url: &str) -> Result<Store, StoreError> {
    let path = url.trim_start_matches("sqlite:").trim_start_matches("//");
    let (options, folder) = if path == ":memory:" {
        (AnyConnectOptions::from_str("sqlite::memory:")?, None)
    } else {
        let (folder, file) = FolderLock::take(Path::new(path))?;
        (AnyConnectOptions::from_str(&sqlite_url(&file)?)?, Some(Arc::new(folder)))
    };
    // The pool would repeat a set-up that fails until its timeout, and say no
    // more than that: what is wrong with the file is found out before.
    let mut probe = options.connect().await?;
    sqlx::raw_sql(SQLITE_SETUP).execute(&mut probe).await?;
    drop(sqlx::Connection::close(probe).await);
    // The one connection lives as long as the pool: SQLite in memory is gone
    // with it. It needs no test before use, there is no network to lose it.
    let pool = pool_options(SQLITE_SETUP)
        .max_connections(1)
        .min_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_with(options)
        .await?;
    migrate::run(&mut *pool.acquire().await?, Dialect::Sqlite).await?;
    Ok(Store { pool, dialect: Dialect::Sqlite, _folder: folder })
}

fn pool_options(setup: &'static str) -> sqlx::pool::PoolOptions<Any> {
    AnyPoolOptions::new().acquire_timeout(ACQUIRE_TIMEOUT).after_connect(move |connection, _| {
        Box::pin(async move { sqlx::raw_sql(setup).execute(connection).await.map(drop) })
    })
}

/// A path as the driver's URL: it decodes percent signs and cuts at '?'.
fn sqlite_url(file: &Path) -> Result<String, StoreError> {
    let text = file.to_str().ok_or(StoreError::Url("the path is not UTF-8"))?;
    let mut url = "sqlite:".to_owned();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => url.push(char::from(byte)),
            other => url.push_str(&format!("%{other:02X}")),
        }
    }
    url.push_str("?mode=rwc");
    Ok(url)
}

/// A data folder that is this process's alone.
#[derive(Debug)]
pub(super) struct FolderLock {
    /// The lock goes with the handle, also when the process is killed.
    _file: File,
}

impl FolderLock {
    /// Creates and locks the folder of a database file. Answers the lock and
    /// the file's absolute path.
    fn take(path: &Path) -> Result<(Self, PathBuf), StoreError> {
        let name = path.file_name().ok_or(StoreError::Url("it names no file"))?;
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let failed = |source| StoreError::Folder { folder: folder.to_owned(), source };
        create_private(folder).map_err(failed)?;
        let folder = folder.canonicalize().map_err(failed)?;
        let failed = |source| StoreError::Folder { folder: folder.clone(), source };
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join(LOCK_FILE))
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok((Self { _file: file }, folder.join(name))),
            Err(TryLockError::WouldBlock) => Err(StoreError::FolderInUse(folder)),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}

/// Creates a folder, and those above it, for this user's eyes only.
fn create_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_which_database_it_names() {
        assert_eq!(Dialect::of_url("postgresql://h/d").unwrap(), Dialect::Postgres);
        assert_eq!(Dialect::of_url("sqlite::memory:").unwrap(), Dialect::Sqlite);
        for bad in ["", "mysql://h/d", "/var/lib/levers9", "postgres"] {
            assert!(matches!(Dialect::of_url(bad), Err(StoreError::Url(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_path_survives_the_drivers_url() {
        let url = sqlite_url(Path::new("/a b/50%3F?#é.db")).unwrap();
        assert_eq!(url, "sqlite:/a%20b/50%253F%3F%23%C3%A9.db?mode=rwc");
    }
}
