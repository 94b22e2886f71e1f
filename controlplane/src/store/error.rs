//! What can go wrong with the database, sorted by what the caller can do
//! about it. Absence is not here: it is `Ok(None)`.

use std::io;
use std::path::PathBuf;

use sqlx::error::ErrorKind;
use sqlx::migrate::MigrateError;

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached or is busy. Nothing is known of the
    /// outcome; repeat with the same request id.
    #[error("the database is unavailable")]
    Unavailable(#[source] sqlx::Error),
    /// No connection was to be had for the whole acquire timeout.
    #[error(
        "no database connection within 5 s: the database is down or too slow, or its pool too small for the load"
    )]
    Exhausted,
    /// The process stops; repeat elsewhere.
    #[error("the controlplane is shutting down")]
    ShuttingDown,
    /// Something else has this name, id or place already, or what this refers
    /// to does not exist.
    #[error("conflicts with what is stored ({0})")]
    Conflict(String),
    /// The caller asked for what the schema cannot hold.
    #[error("cannot be stored: {0}")]
    Invalid(&'static str),
    /// What is stored makes no sense: damage, or a hand in the tables.
    #[error("stored data is corrupt: {table}.{column} {problem}")]
    Corrupt {
        /// Which table.
        table: &'static str,
        /// Which column.
        column: String,
        /// What is wrong.
        problem: String,
    },
    /// The database reports itself damaged.
    #[error("the database file is damaged")]
    Damaged(#[source] sqlx::Error),
    /// Another controlplane has the data folder.
    #[error("the data folder {} is in use by another controlplane", .0.display())]
    FolderInUse(PathBuf),
    /// The data folder cannot be used.
    #[error("cannot use the data folder {}", .folder.display())]
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The URL names no database this build can use.
    #[error("the database URL is not usable: {0}")]
    Url(&'static str),
    /// The tables could not be brought up to this build's version.
    #[error("the database cannot be migrated")]
    Migrate(#[source] MigrateError),
    /// There is no room left where the database is.
    #[error("the controlplane's disk is full")]
    DiskFull(#[source] sqlx::Error),
    /// The database refuses a statement for a reason nobody expected.
    #[error("the database refused a statement")]
    Refused(#[source] sqlx::Error),
}

impl StoreError {
    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::DiskFull(_) | Self::Exhausted | Self::ShuttingDown)
    }

    /// Its words and those of its causes, each once.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(next) = cause {
            let words = next.to_string();
            if !text.contains(&words) {
                text = format!("{text}: {words}");
            }
            cause = next.source();
        }
        text
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error as E;
        match &error {
            E::PoolTimedOut => Self::Exhausted,
            E::PoolClosed => Self::ShuttingDown,
            E::Io(_)
            | E::Tls(_)
            | E::Protocol(_)
            | E::WorkerCrashed
            | E::BeginFailed
            | E::InvalidSavePointStatement => Self::Unavailable(error),
            E::Database(refusal) => match refusal.kind() {
                ErrorKind::UniqueViolation | ErrorKind::ForeignKeyViolation => {
                    Self::Conflict(refusal.constraint().unwrap_or(refusal.message()).to_owned())
                }
                ErrorKind::CheckViolation | ErrorKind::NotNullViolation => {
                    Self::Invalid("a value breaks a rule of its table")
                }
                _ => by_code(refusal.code().as_deref().unwrap_or_default())(error),
            },
            _ => Self::Refused(error),
        }
    }
}

/// SQLite's code for a disk without room.
const SQLITE_FULL: u32 = 13;

/// Sorts a code of PostgreSQL (five characters, sorted by the first two) or of
/// SQLite (a number whose low byte is the primary code).
fn by_code(code: &str) -> fn(sqlx::Error) -> StoreError {
    if code == "53100" || code.parse::<u32>().is_ok_and(|code| code & 0xff == SQLITE_FULL) {
        return StoreError::DiskFull;
    }
    if code.len() == 5 {
        return match code.get(..2).unwrap_or_default() {
            // Connection, transaction rollback, resources, operator, system.
            "08" | "40" | "53" | "55" | "57" | "58" => StoreError::Unavailable,
            "22" => |_| StoreError::Invalid("a text or number is outside what the database can hold"),
            "XX" => StoreError::Damaged,
            _ => StoreError::Refused,
        };
    }
    match code.parse::<u32>().map(|code| code & 0xff) {
        // BUSY, LOCKED, NOMEM, IOERR, CANTOPEN.
        Ok(5 | 6 | 7 | 10 | 14) => StoreError::Unavailable,
        // CORRUPT, NOTADB.
        Ok(11 | 26) => StoreError::Damaged,
        _ => StoreError::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_by_what_a_caller_can_do() {
        for busy in ["40001", "40P01", "57P01", "53300", "5", "517", "13"] {
            assert!(by_code(busy)(sqlx::Error::RowNotFound).is_retryable(), "{busy}");
        }
        for damaged in ["XX001", "11", "26"] {
            assert!(
                matches!(by_code(damaged)(sqlx::Error::RowNotFound), StoreError::Damaged(_)),
                "{damaged}"
            );
        }
        for other in ["42601", "1", "", "aé12"] {
            assert!(matches!(by_code(other)(sqlx::Error::RowNotFound), StoreError::Refused(_)), "{other}");
        }
    }
}
