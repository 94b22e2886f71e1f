//! The service account's token as a file: read at every request, because the
//! kubelet replaces it long before a process ends, and kept for as long as
//! the file is away or empty in the middle of that.

use std::fmt;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use http::HeaderValue;

/// The longest token, in bytes; the API server takes no longer header.
const LONGEST: u64 = 64 * 1024;

/// A token that another process replaces.
pub(super) struct TokenFile {
    path: PathBuf,
    last: Mutex<Option<HeaderValue>>,
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl TokenFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, last: Mutex::new(None) }
    }

    /// The `Authorization` of a request made now; none when there never was a token.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fresh) = self.read() {
            *last = Some(fresh);
        }
        last.clone()
    }

    fn read(&self) -> Option<HeaderValue> {
        let mut text = String::new();
        std::fs::File::open(&self.path).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        let mut value = HeaderValue::try_from(format!("Bearer {text}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_again_and_kept_while_its_file_is_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let token = TokenFile::new(path.clone());
        assert_eq!(token.header(), None);
        std::fs::write(&path, "first\n").unwrap();
        assert_eq!(token.header().unwrap(), "Bearer first");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(token.header().unwrap(), "Bearer first");
        std::fs::write(&path, "").unwrap();
        assert_eq!(token.header().unwrap(), "Bearer first");
        std::fs::write(&path, "second").unwrap();
        assert_eq!(token.header().unwrap(), "Bearer second");
        assert!(!format!("{token:?} {:?}", token.header()).contains("second"));
    }
}
