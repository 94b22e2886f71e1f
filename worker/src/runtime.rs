//! What starts containers and ends them. `process` is here; `runc` and
//! `runsc` will implement the same trait. A runtime keeps no list: what it
//! started belongs to the caller, and ends when the caller lets go of it.

mod execs;
mod ports;
mod process;
mod reach;
mod recover;

use std::fmt::Debug;
use std::io::PipeReader;
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use levers9_wire::valid::Env;
use levers9_wire::{ContainerId, Generation};
use tokio::net::TcpStream;
use tokio::sync::watch;

pub use crate::cgroup::Limits;
pub use process::{Process, Settings};
pub use recover::Recovered;

/// The name of a container's folder below the worker's data folder.
#[must_use]
pub fn folder_name(container: ContainerId, generation: Generation) -> String {
    format!("{container}.{generation}")
}

/// Whose folder has this name; `None` when it is no container's.
#[must_use]
pub fn parse_folder_name(name: &str) -> Option<(ContainerId, Generation)> {
    let (container, generation) = name.rsplit_once('.')?;
    let (container, generation) = (container.parse().ok()?, Generation(generation.parse().ok()?));
    (folder_name(container, generation) == name).then_some((container, generation))
}

/// What to start.
pub struct Launch {
    /// Which container.
    pub container: ContainerId,
    /// Which incarnation.
    pub generation: Generation,
    /// A folder of its own, named by [`folder_name`].
    pub folder: PathBuf,
    /// Program and arguments; never empty.
    pub argv: Vec<String>,
    /// The whole environment; of two with one name the later counts.
    pub env: Vec<(String, Vec<u8>)>,
    /// Where it runs.
    pub workdir: PathBuf,
    /// Limits to enforce.
    pub limits: Limits,
}

impl Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch")
            .field("container", &self.container)
            .field("argv", &self.argv)
            .field("workdir", &self.workdir)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// A container that runs. Dropping it kills it.
pub struct Running {
    /// Its command's process number, as this process sees it.
    pub pid: u32,
    /// Its output. To be read from now on: a full pipe stops the command.
    pub stdout: PipeReader,
    /// Its errors, likewise.
    pub stderr: PipeReader,
    /// What the user should know: limits that could not be enforced.
    pub notes: Vec<String>,
    /// Signals it.
    pub control: Control,
    /// The ways into it.
    pub inside: Arc<dyn Inside>,
    /// Resolves when no process of it is left, also those it put into the
    /// background. To be polled all the time: it also passes on the signals.
    pub end: Pin<Box<dyn Future<Output = End> + Send>>,
}

impl Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("pid", &self.pid).field("notes", &self.notes).finish_non_exhaustive()
    }
}

/// How far a container is asked to end. Later ones include earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    None,
    Terminate,
    Kill,
}

/// Signals one container. Never waits.
#[derive(Debug)]
pub struct Control(watch::Sender<Pressure>);

impl Control {
    pub(crate) fn new() -> (Self, watch::Receiver<Pressure>) {
        let (sender, receiver) = watch::channel(Pressure::None);
        (Self(sender), receiver)
    }

    /// SIGTERM to the command's process group, once.
    pub fn terminate(&self) {
        self.press(Pressure::Terminate);
    }

    /// SIGKILL to everything of the container.
    pub fn kill(&self) {
        self.press(Pressure::Kill);
    }

    fn press(&self, pressure: Pressure) {
        self.0.send_if_modified(|current| {
            let more = pressure > *current;
            *current = pressure.max(*current);
            more
        });
    }
}

/// Why a container did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct StartFailure {
    /// What a shell would exit with: 127 not found, 126 not executable, 125
    /// anything else.
    pub exit_code: i32,
    /// What failed, with which value.
    pub words: String,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// How its command ended.
    pub how: How,
    /// What else the user should know; may be empty.
    pub note: String,
}

/// How a container's command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// It exited with this code.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// The memory limit ended it; words that name the limit.
    OutOfMemory(String),
    /// It is dead, but nobody saw how; words that say what is known.
    Lost(String),
}

/// The ways into a running container. It may be held on to when the container
/// has ended: everything then says so.
#[async_trait]
pub trait Inside: Send + Sync + Debug {
    /// A connection to what listens on a TCP port of the container, and never
    /// to anything else. Waits for as long as it takes; cancel safe.
    async fn connect(&self, port: NonZeroU16) -> Result<TcpStream, Unreachable>;

    /// Starts a command beside the container's own, with its environment and
    /// rights, and ends it with the container. Never waits.
    ///
    /// # Errors
    /// When the container has ended, or has as many commands as it may.
    fn exec(&self, exec: Exec) -> Result<Executing, NoExec>;
}

/// Why there is no connection to a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// Nobody takes connections there.
    #[error("nothing in the container listens on port {0}")]
    NotListening(NonZeroU16),
    /// Somebody does who is not of the container.
    #[error("what listens on port {0} is not the container's")]
    NotOwn(NonZeroU16),
    /// The system does not let it.
    #[error("cannot connect to port {port} of the container: {words}")]
    Failed {
        /// Which port.
        port: NonZeroU16,
        /// Why not.
        words: String,
    },
}

/// A command to run in a container.
#[derive(Debug)]
pub struct Exec {
    /// Program and arguments; empty for a shell.
    pub argv: Vec<String>,
    /// Beside the container's own variables, and before them.
    pub env: Env,
    /// Where, relative to the container's own working directory.
    pub workdir: Option<PathBuf>,
    /// Its input, output and errors: the command alone holds them afterwards.
    pub stdio: [OwnedFd; 3],
    /// They are a terminal, which is to be its own.
    pub terminal: bool,
}

/// Why a command is not even tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoExec {
    /// The container has ended.
    #[error("the container has ended")]
    Ended,
    /// There are too many.
    #[error("the container has as many commands as it may")]
    Busy,
    /// No socket can be made.
    #[error("there are no descriptors left")]
    NoDescriptors,
}

/// A command in a container.
pub struct Executing {
    /// Follows it. Dropped before its end it hangs up: the command and all
    /// that is in its session are ended.
    pub course: Box<dyn Course>,
    /// Signals its process group. What comes before it has started is kept
    /// until it has. Never waits.
    pub signal: Box<dyn Fn(i32) + Send + Sync>,
}

impl Debug for Executing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executing").finish_non_exhaustive()
    }
}

/// What becomes of a command in a container.
#[async_trait]
pub trait Course: Send {
    /// Waits until it runs. To be awaited to its end, first and once.
    async fn started(&mut self) -> Result<(), ExecEnd>;
    /// Waits for its end. Cancel safe.
    async fn ended(&mut self) -> ExecEnd;
}

/// How a command in a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEnd {
    /// It exited with this code.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// It did not start.
    NotStarted(StartFailure),
    /// It ended with the container.
    WithContainer,
}

/// A way to run containers.
#[async_trait]
pub trait Runtime: Send + Sync + Debug {
    /// Its name, as in a worker's facts.
    fn name(&self) -> &'static str;

    /// Whether containers are not kept apart, so that all on one worker must
    /// belong to one workspace.
    fn serves_one_workspace(&self) -> bool;

    /// Starts a container; returns when its command runs.
    async fn start(&self, launch: Launch) -> Result<Running, StartFailure>;

    /// Kills what an earlier worker left in the folders below `root` and
    /// removes these folders. To be called before anything is started.
    async fn recover(&self, root: &Path) -> std::io::Result<Recovered>;
}
