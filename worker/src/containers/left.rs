//! The logs of containers that are gone while records of theirs were not
//! acknowledged: their worker was killed, or nobody took them before it
//! stopped. They lie in a folder of their own below the data folder and are
//! offered until they are acknowledged, or for a day.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use levers9_wire::{ContainerId, Generation, clock};

use crate::runtime::parse_folder_name;
use crate::spool::{Limits, Spool};

/// The log's name in a container's folder.
pub(super) const LOG: &str = "log";
/// How long a log is kept that nobody takes.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// The log of a container that is gone.
#[derive(Debug, Clone)]
pub struct LeftLog {
    /// Which container.
    pub container: ContainerId,
    /// Which incarnation.
    pub generation: Generation,
    /// What there is of its log. It has ended; acknowledged to its end it is
    /// forgotten.
    pub spool: Spool,
}

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(clock::unix_millis())
}

/// Moves the logs of all containers below `root` to `left`.
pub(super) fn keep_all(root: &Path, left: &Path) -> io::Result<()> {
    std::fs::read_dir(root)?.try_for_each(|entry| keep(&entry?.path(), left))
}

/// Moves the log of one container to `left`, if it has one.
pub(super) fn keep(folder: &Path, left: &Path) -> io::Result<()> {
    let log = folder.join(LOG);
    let (Ok(opened), Some(name)) = (File::open(&log), folder.file_name()) else { return Ok(()) };
    // From now on it is left.
    opened.set_modified(now())?;
    std::fs::rename(log, left.join(name))
}

/// Reads the logs in `left` and removes those that are acknowledged or too
/// old. One that cannot be read is left for the next start. Blocks.
pub(super) fn load(left: &Path, limits: Limits) -> io::Result<Vec<(PathBuf, LeftLog)>> {
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(left)? {
        let entry = entry?;
        let Some((container, generation)) = entry.file_name().to_str().and_then(parse_folder_name) else {
            continue;
        };
        let (folder, since) = (entry.path(), entry.metadata()?.modified()?);
        if now().duration_since(since).is_ok_and(|age| age >= KEPT) {
            tracing::warn!(%container, "nobody took the rest of its log for a day; removing it");
            std::fs::remove_dir_all(folder)?;
            continue;
        }
        match Spool::reopen(&folder, limits) {
            Ok(spool) if spool.progress().borrow().is_settled() => std::fs::remove_dir_all(folder)?,
            Ok(spool) => logs.push((folder, LeftLog { container, generation, spool })),
            Err(error) => tracing::warn!(folder = %folder.display(), %error, "cannot read a log"),
        }
    }
    Ok(logs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use levers9_wire::v1;

    fn container(root: &Path, lines: usize) -> PathBuf {
        let folder = root.join(crate::runtime::folder_name(ContainerId::generate(), Generation(3)));
        let (_, mut writer) = Spool::create(&folder.join(LOG), Limits::default()).unwrap();
        (0..lines).for_each(|_| writer.put(v1::LogStream::Stdout, 1, b"line\n"));
        folder
    }

    #[test]
    fn logs_with_records_are_kept_for_a_day_from_when_they_were_left() {
        let data = tempfile::tempdir().unwrap();
        let (root, left) = (data.path().join("containers"), data.path().join("left"));
        std::fs::create_dir(&left).unwrap();
        let (with, without) = (container(&root, 2), container(&root, 0));
        // The folder of a container that ran long is old; its log is not.
        File::open(with.join(LOG)).unwrap().set_modified(now() - 2 * KEPT).unwrap();
        keep_all(&root, &left).unwrap();
        keep_all(&root, &left).unwrap();
        assert!(!with.join(LOG).exists() && !without.join(LOG).exists());
        let loaded = load(&left, Limits::default()).unwrap();
        let [(folder, log)] = &loaded[..] else { panic!("{loaded:?}") };
        assert_eq!(folder.file_name(), with.file_name());
        assert_eq!(log.generation, Generation(3));
        assert_eq!(log.spool.progress().borrow().next_index, 2);
        assert_eq!(std::fs::read_dir(&left).unwrap().count(), 1, "the empty one is removed");

        File::open(folder).unwrap().set_modified(now() - KEPT + Duration::from_secs(60)).unwrap();
        assert_eq!(load(&left, Limits::default()).unwrap().len(), 1);
        File::open(folder).unwrap().set_modified(now() - KEPT).unwrap();
        assert!(load(&left, Limits::default()).unwrap().is_empty());
        assert!(!folder.exists());
    }

    #[test]
    fn what_is_no_log_is_left_alone() {
        let left = tempfile::tempdir().unwrap();
        let id = ContainerId::generate();
        for name in ["notes".to_owned(), format!("{id}"), format!("{id}.x"), format!("{id}.01")] {
            std::fs::create_dir(left.path().join(name)).unwrap();
        }
        assert!(load(left.path(), Limits::default()).unwrap().is_empty());
        assert_eq!(std::fs::read_dir(left.path()).unwrap().count(), 4);
    }
}
