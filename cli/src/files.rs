//! Small private files that several commands may change at once: a lock, and
//! a write that is there whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Keeps others that ask for the same lock out until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _held: File,
}

impl Lock {
    /// Waits for the lock that belongs to a file.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let held = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(beside(path, ".lock"))?;
        held.lock()?;
        Ok(Self { _held: held })
    }
}

/// The text of a file, or `None` when there is none.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a file by another one that only its owner may read. Whoever reads
/// meanwhile sees the old text or the new one. The caller holds the lock.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A link to a file elsewhere stays a link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let fresh = beside(&target, &format!(".{}.new", std::process::id()));
    let written = write_new(&fresh, text).and_then(|()| fs::rename(&fresh, &target));
    if written.is_err() {
        // What is left of a failed write helps nobody.
        let _absent = fs::remove_file(&fresh);
    }
    written
}

/// Whether [`replace`] would find room for a file.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    let trial = beside(path, &format!(".{}.new", std::process::id()));
    write_new(&trial, "")?;
    fs::remove_file(&trial)
}

/// Makes a folder, with those above it, that only its owner may enter. One
/// that is there already is tightened only when it is `ours`.
pub(crate) fn private_folder(folder: &Path, ours: bool) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    if ours && mode & 0o077 != 0 {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_private_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("new"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        replace(&link, "new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
    }
}
