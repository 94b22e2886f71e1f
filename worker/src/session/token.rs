//! The worker's token: an enrolment token at first, the worker token it was
//! exchanged for from then on. In memory, or also in a 0600 file where a
//! machine is to keep its identity.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use levers9_wire::token::Secret;

const FILE: &str = "worker.token";

#[derive(Debug)]
pub(super) struct TokenStore {
    file: Option<PathBuf>,
    current: Mutex<Secret>,
}

impl TokenStore {
    /// The kept token, or else the given one.
    pub(super) fn open(folder: Option<PathBuf>, given: Option<Secret>) -> io::Result<Self> {
        let file = match folder {
            Some(folder) => {
                fs::create_dir_all(&folder)?;
                Some(file_in(&folder))
            }
            None => None,
        };
        let kept = match &file {
            Some(file) => read(file)?,
            None => None,
        };
        Ok(Self { file, current: Mutex::new(kept.or(given).unwrap_or_default()) })
    }

    pub(super) fn current(&self) -> Secret {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn replace(&self, token: Secret) {
        if let Some(file) = &self.file
            && let Err(error) = write(file, &token)
        {
            tracing::error!(%error, file = %file.display(), "the worker token cannot be kept; a restart will need another enrolment");
        }
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = token;
    }
}

/// Where a state folder has the token.
pub(super) fn file_in(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

fn read(file: &Path) -> io::Result<Option<Secret>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(Secret::new(text.trim())).filter(|token| !token.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(file: &Path, token: &Secret) -> io::Result<()> {
    let fresh = file.with_extension("new");
    let _gone = fs::remove_file(&fresh);
    let mut out = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    out.write_all(token.expose().as_bytes())?;
    out.sync_all()?;
    fs::rename(&fresh, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_kept_token_is_preferred_and_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let open =
            |given: &str| TokenStore::open(Some(folder.path().to_owned()), Some(Secret::new(given))).unwrap();
        let store = open("enrolment");
        assert_eq!(store.current().expose(), "enrolment");
        store.replace(Secret::new("worker"));
        assert_eq!(open("another").current().expose(), "worker");
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
