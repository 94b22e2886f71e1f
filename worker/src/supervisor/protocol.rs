//! What worker and supervisor say to each other: one JSON object a line over
//! the supervisor's stdin, a socket (see [`super::channel`]); and the outcome
//! file, which is the truth about how a command ended. Environment values may
//! be secrets: they pass here and nowhere else, never through arguments or files.
//!
//! A container may be given more commands to run while it runs: execs. The
//! worker makes a socket for each and sends one end of it to the inner
//! supervisor, which starts a stage with that end as its stdin (see
//! [`super::stage`]). What to run and its descriptors go over that socket.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The outcome's file name in the container's folder.
const OUTCOME: &str = "outcome.json";

/// The command to run.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Command {
    /// Program and arguments; empty only for an exec, and means a shell then.
    pub(crate) argv: Vec<String>,
    /// The whole environment; of two with one name the later counts.
    pub(crate) env: Vec<(String, Vec<u8>)>,
    /// Where it runs.
    pub(crate) workdir: PathBuf,
    /// `cgroup.procs` files to join before it starts.
    pub(crate) cgroups: Vec<PathBuf>,
    /// Soft limit on each process's private writable memory, in bytes.
    pub(crate) data_limit: Option<u64>,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Command")
            .field("argv", &self.argv)
            .field("workdir", &self.workdir)
            .finish_non_exhaustive()
    }
}

/// From the worker to the inner supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Start the command; once, and first.
    Run(Command),
    /// SIGTERM to the command's process group.
    Terminate,
    /// SIGKILL to everything.
    Kill,
    /// Start the stage of an exec; its socket comes with this.
    Exec {
        /// Names it from now on.
        id: u64,
    },
    /// A signal to an exec's process group.
    ExecSignal {
        /// Which exec.
        id: u64,
        /// The signal's number.
        signal: i32,
    },
    /// The caller of an exec is gone: end its whole session, also what it has
    /// put into the background, and also when its command has ended meanwhile,
    /// which it may have done because of that.
    ExecHangUp {
        /// Which exec.
        id: u64,
    },
    /// The end of an exec was heard: what it has left may stay.
    ExecForget {
        /// Which exec.
        id: u64,
    },
}

/// From a supervisor to the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The outer one started the inner one, whose number it sees is this.
    Inner {
        /// Process number.
        pid: i32,
    },
    /// The command runs.
    Started {
        /// Its number, as the inner supervisor sees it.
        pid: i32,
    },
    /// An exec's command, or its stage, has ended, or no stage could be started.
    ExecEnded {
        /// Which exec.
        id: u64,
        /// How.
        outcome: Outcome,
    },
}

/// From the worker to a stage, once, with the command's three descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Exec {
    /// What to become. Its control groups are the supervisor's already.
    pub(crate) command: Command,
    /// The descriptors are a terminal, and it becomes the command's own.
    pub(crate) terminal: bool,
}

/// From a stage to the worker. The end of the socket after `Ready` says that
/// the command runs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum StageReport {
    /// The command is about to run.
    Ready,
    /// It does not run.
    Failed {
        /// Why.
        outcome: Outcome,
    },
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// It exited.
    Exited {
        /// With this code.
        code: i32,
    },
    /// A signal ended it.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// There is no such program.
    NotFound {
        /// What was looked for and where.
        words: String,
    },
    /// There is such a file, but it cannot be executed.
    NotExecutable {
        /// Which and why.
        words: String,
    },
    /// It did not start for another reason.
    StartFailed {
        /// Why.
        words: String,
    },
    /// It is dead, but nobody saw how.
    Lost {
        /// What is known.
        words: String,
    },
}

/// What the outcome file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// How the command ended.
    pub(crate) outcome: Outcome,
    /// Processes that could not be killed.
    pub(crate) stuck: Vec<i32>,
}

impl Ending {
    /// Writes it into the container's folder, whole or not at all.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let half = folder.join("outcome.half");
        std::fs::write(&half, serde_json::to_vec(self)?)?;
        std::fs::rename(half, folder.join(OUTCOME))
    }

    /// Reads it; `None` while there is none.
    pub(crate) fn read(folder: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(folder.join(OUTCOME)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// One message as a line.
pub(crate) fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_travels_with_bytes_and_shows_no_values() {
        let command = Command {
            argv: vec!["echo".into(), "ä\n".into()],
            env: vec![("KEY".into(), vec![0xff, b'\n', 7])],
            workdir: "/tmp".into(),
            cgroups: vec![],
            data_limit: Some(1),
        };
        assert!(!format!("{command:?}").contains("255"));
        let text = line(&Order::Run(command.clone())).expect("serializes");
        assert_eq!(text.iter().filter(|b| **b == b'\n').count(), 1);
        let Ok(Order::Run(back)) = serde_json::from_slice(&text) else { panic!("not a Run order") };
        assert_eq!((back.argv, back.env), (command.argv, command.env));
    }

    #[test]
    fn an_ending_is_read_as_written() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Ending::read(folder.path()).expect("readable"), None);
        let ending = Ending { outcome: Outcome::Exited { code: 3 }, stuck: vec![7] };
        ending.write(folder.path()).expect("written");
        assert_eq!(Ending::read(folder.path()).expect("readable"), Some(ending));
    }
}
