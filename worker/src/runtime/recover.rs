//! What the `process` runtime writes down about a container before anything
//! runs in it, and what the next start of the worker does with it: check that
//! the processes are still the same, kill them, remove groups and folder.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::process::MARK;
use crate::{cgroup, proc};

const FILE: &str = "processes.json";
/// How long leftovers may resist SIGKILL.
const PATIENCE: Duration = Duration::from_secs(10);

/// The processes and groups of one container.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    /// Which boot the process numbers are of.
    pub(super) boot: String,
    /// The two supervisors, outer first.
    pub(super) supervisors: Vec<proc::Identity>,
    /// Control groups.
    pub(super) groups: Vec<PathBuf>,
}

impl Record {
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let half = folder.join("processes.half");
        std::fs::write(&half, serde_json::to_vec(self)?)?;
        std::fs::rename(half, folder.join(FILE))
    }

    fn read(folder: &Path) -> Self {
        // Without a record no command was started: there are no groups with
        // processes in them, and supervisors end by themselves.
        std::fs::read(folder.join(FILE))
            .ok()
            .and_then(|b| serde_json::from_slice(&b).ok())
            .unwrap_or_default()
    }

    /// Kills what descends from the supervisors or carries the container's
    /// mark, then the supervisors: while they live, nothing that started below
    /// them gets out of sight. Returns who was killed and who could not be.
    /// Blocks.
    pub(super) fn kill(&self, mark: &str) -> (Vec<i32>, Vec<i32>) {
        let same_boot = self.boot == proc::boot_id();
        let supervisors =
            || self.supervisors.iter().filter(|one| same_boot && one.is_alive()).map(|one| one.pid);
        let others = || {
            let mut found = proc::marked(MARK, mark);
            found.extend(supervisors().flat_map(proc::descendants));
            found.sort_unstable();
            found.dedup();
            found.retain(|pid| self.supervisors.iter().all(|one| one.pid != *pid));
            found
        };
        let mut killed = others();
        killed.extend(supervisors());
        let mut stuck = proc::kill_until_gone(others, || {}, PATIENCE);
        stuck.extend(proc::kill_until_gone(|| supervisors().collect(), || {}, PATIENCE));
        (killed, stuck)
    }
}

/// What a worker's start found and did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// Folders of containers of an earlier worker, removed now.
    pub containers: usize,
    /// Processes of theirs that still ran and were killed.
    pub killed: Vec<i32>,
    /// Processes of theirs that do not die; their folders are left.
    pub stuck: Vec<i32>,
}

pub(super) async fn recover(root: PathBuf) -> io::Result<Recovered> {
    let mut recovered = Recovered::default();
    let mut entries = tokio::fs::read_dir(&root).await?;
    while let Some(entry) = entries.next_entry().await? {
        let folder = entry.path();
        let mark = entry.file_name().to_string_lossy().into_owned();
        let work = folder.clone();
        let task = tokio::task::spawn_blocking(move || {
            let record = Record::read(&work);
            let outcome = record.kill(&mark);
            (record.groups, outcome)
        });
        let (groups, (killed, stuck)) = task.await.map_err(io::Error::other)?;
        recovered.killed.extend(killed);
        recovered.stuck.extend_from_slice(&stuck);
        if stuck.is_empty() {
            cgroup::remove(&groups).await?;
            tokio::fs::remove_dir_all(&folder).await?;
            recovered.containers += 1;
        }
    }
    Ok(recovered)
}
