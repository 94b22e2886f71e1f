//! All containers of a worker: what is taken, what is refused, what is free,
//! and the shutdown. A session asks here and holds [`Handle`]s; each
//! container's life is driven by a task of its own that this owns. What of a
//! log outlives its container is here too. Nothing here knows of a network:
//! containers run on whoever can be reached.

mod driver;
mod environment;
mod handle;
mod left;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use levers9_wire::valid::{Run, Spec};
use levers9_wire::{ContainerId, Generation, WorkspaceId, v1};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::capacity::{Booking, Capacity, Short};
use crate::life::Why;
use crate::runtime::{Recovered, Runtime, folder_name};
use crate::spool::{self, Spool};
use handle::Entry;
pub use handle::{Handle, NotRunning};
pub use left::LeftLog;

/// How long after the kill of its last process a container may take to end.
const LATE: Duration = Duration::from_secs(15);

/// Settings of a worker's containers.
#[derive(Debug, Clone)]
pub struct Config {
    /// The worker's own folder. One worker at a time: it is locked.
    pub data: PathBuf,
    /// What there is to be given to containers.
    pub facts: v1::WorkerFacts,
    /// Run in this folder, which is never deleted, instead of a private one.
    pub workdir: Option<PathBuf>,
    /// Serve only this workspace. Without it a runtime that does not keep
    /// containers apart binds to the first it serves.
    pub workspace: Option<WorkspaceId>,
    /// The PATH containers get.
    pub path: OsString,
    /// How much log each container keeps.
    pub log: spool::Limits,
    /// How long a container that timed out has between SIGTERM and SIGKILL.
    pub timeout_grace: Duration,
}

impl Config {
    /// The defaults for a data folder: PATH is this process's own.
    #[must_use]
    pub fn new(data: PathBuf, facts: v1::WorkerFacts) -> Self {
        Self {
            data,
            facts,
            workdir: None,
            workspace: None,
            path: std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
            log: spool::Limits::default(),
            timeout_grace: Duration::from_secs(10),
        }
    }
}

/// Why the data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another worker has it.
    #[error("the data folder {0:?} is in use by another worker")]
    Locked(PathBuf),
    /// It cannot be made, read or locked.
    #[error("cannot use the data folder {folder:?}: {source}")]
    Folder {
        /// Which.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What an earlier worker left cannot be cleared away.
    #[error("cannot clear away what an earlier worker left in {folder:?}: {source}")]
    Recover {
        /// Where.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Why a container is not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Reattaching to a container that is not here, or starting one of which
    /// only the log is left.
    #[error("this worker does not have container {0} of generation {1}")]
    Unknown(ContainerId, Generation),
    /// A newer incarnation is known.
    #[error("generation {generation} of container {container} is replaced by {newer}")]
    Replaced {
        /// Which container.
        container: ContainerId,
        /// The incarnation asked for.
        generation: Generation,
        /// The one that is here.
        newer: Generation,
    },
    /// It does not fit.
    #[error("the container {0}")]
    Short(#[from] Short),
    /// The worker serves another workspace and keeps nothing apart.
    #[error("this worker serves one workspace only, and not {0}")]
    OtherWorkspace(WorkspaceId),
    /// The worker is shutting down.
    #[error("the worker is shutting down")]
    ShuttingDown,
    /// There are as many containers as one inventory can name.
    #[error("the worker has {0} containers and takes no more")]
    TooMany(usize),
    /// The container's folder or log cannot be made.
    #[error("cannot make the container's folder {folder:?}: {source}")]
    Folder {
        /// Which.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no place where it could find the controlplane.
    #[error("cannot listen for the container on the loopback address: {0}")]
    Door(io::Error),
}

impl Refused {
    /// The event that answers a `Run` stream.
    #[must_use]
    pub fn ended(&self) -> v1::RunEnded {
        let outcome = match self {
            Self::Unknown(..) => v1::Outcome::UnknownContainer,
            Self::Folder { .. } | Self::Door(_) => v1::Outcome::WorkerFailed,
            _ => v1::Outcome::Refused,
        };
        v1::RunEnded { outcome: outcome.into(), reason: self.to_string(), ..v1::RunEnded::default() }
    }
}

type Key = (ContainerId, Generation);

/// All containers of a worker. Clones are the same.
#[derive(Debug, Clone)]
pub struct Containers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: Config,
    runtime: Arc<dyn Runtime>,
    root: PathBuf,
    /// Where logs are kept whose containers are gone.
    left: PathBuf,
    state: Mutex<State>,
    /// How many containers there are; tells of every one taken and forgotten.
    count: watch::Sender<usize>,
    drivers: TaskTracker,
    /// Logs that are left are waited for no longer.
    closing: CancellationToken,
    _lock: File,
}

#[derive(Debug)]
struct State {
    entries: HashMap<Key, Arc<Entry>>,
    left: HashMap<Key, LeftLog>,
    capacity: Capacity,
    workspace: Option<WorkspaceId>,
    shutting_down: bool,
}

impl Containers {
    /// Opens the data folder, and clears away what an earlier worker left,
    /// except logs that were not acknowledged: see [`Self::left_logs`].
    ///
    /// # Errors
    /// When the folder is in use by another worker or cannot be used.
    pub async fn open(config: Config, runtime: Arc<dyn Runtime>) -> Result<(Self, Recovered), OpenError> {
        let (root, left) = (config.data.join("containers"), config.data.join("left"));
        let folder = |source| OpenError::Folder { folder: config.data.clone(), source };
        [&config.data, &root, &left].into_iter().try_for_each(|one| make_private(one)).map_err(folder)?;
        let root = root.canonicalize().map_err(folder)?;
        let lock = File::create(config.data.join("lock")).map_err(folder)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(OpenError::Locked(config.data)),
            Err(std::fs::TryLockError::Error(source)) => return Err(folder(source)),
        }
        let recover = |source| OpenError::Recover { folder: config.data.clone(), source };
        // Only the worker writes a log, and that one is gone: whatever still
        // runs, the logs can be moved out of the way before all the rest goes.
        left::keep_all(&root, &left).map_err(recover)?;
        let recovered = runtime.recover(&root).await.map_err(recover)?;
        let (place, limits) = (left.clone(), config.log);
        let loading = tokio::task::spawn_blocking(move || left::load(&place, limits));
        let logs = loading.await.map_err(io::Error::other).flatten().map_err(recover)?;
        let state = State {
            entries: HashMap::new(),
            left: HashMap::new(),
            capacity: Capacity::new(&config.facts),
            workspace: config.workspace,
            shutting_down: false,
        };
        let (state, (count, _)) = (Mutex::new(state), watch::channel(0));
        let (drivers, closing) = (TaskTracker::new(), CancellationToken::new());
        let shared = Shared { config, runtime, root, left, state, count, drivers, closing, _lock: lock };
        let containers = Self(Arc::new(shared));
        logs.into_iter().for_each(|(folder, log)| containers.hold(folder, log));
        Ok((containers, recovered))
    }

    /// Holds a log until it is acknowledged; then it is forgotten.
    fn hold(&self, folder: PathBuf, log: LeftLog) {
        let (key, mut progress) = ((log.container, log.generation), log.spool.progress());
        self.0.lock().left.insert(key, log);
        let shared = Arc::clone(&self.0);
        self.0.drivers.spawn(async move {
            // The sender is in the log that is held: it does not go away meanwhile.
            let settled = progress.wait_for(|progress| progress.is_settled());
            if shared.closing.run_until_cancelled(settled).await.is_some() {
                remove_folder(folder).await;
                shared.lock().left.remove(&key);
            }
        });
    }

    /// Takes a container, or gives the one it has already: asking twice has
    /// the effect of asking once. A newer incarnation stops the older ones.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When it is not taken; nothing has changed then.
    pub fn run(&self, run: Run) -> Result<Handle, Refused> {
        let key = (run.container, run.generation);
        let mut state = self.0.lock();
        if let Some(entry) = state.entries.get(&key) {
            return Ok(Handle::new(Arc::clone(entry)));
        }
        // With a log left it has run already, and its records have their numbers.
        let Some(spec) = run.spec.filter(|_| !state.left.contains_key(&key)) else {
            return Err(Refused::Unknown(run.container, run.generation));
        };
        let booking = self.admit(&mut state, key, &spec)?;
        let gpus = state.capacity.gpu_names(&booking);
        let made = self.make_entry(key, &spec);
        let (entry, writer) = match made {
            Ok(made) => made,
            Err(refused) => {
                state.capacity.give_back(booking);
                return Err(refused);
            }
        };
        state.workspace.get_or_insert(spec.workspace);
        let older: Vec<Arc<Entry>> = state
            .entries
            .iter()
            .filter(|((container, _), _)| *container == key.0)
            .map(|(_, e)| e.clone())
            .collect();
        state.entries.insert(key, Arc::clone(&entry));
        self.0.count.send_replace(state.entries.len());
        let job = driver::Job {
            shared: Arc::clone(&self.0),
            entry: Arc::clone(&entry),
            spec,
            booking,
            gpus,
            writer,
        };
        entry.set_abort(self.0.drivers.spawn(job.drive()).abort_handle());
        drop(state);
        for one in older {
            let text = format!("replaced by generation {}", key.1);
            one.stop(Why::Ordered { reason: v1::StopReason::NotWanted, text }, Duration::ZERO);
        }
        Ok(Handle::new(entry))
    }

    fn admit(&self, state: &mut State, key: Key, spec: &Spec) -> Result<Booking, Refused> {
        if state.shutting_down {
            return Err(Refused::ShuttingDown);
        }
        if state.entries.len() >= levers9_wire::limits::INVENTORY {
            return Err(Refused::TooMany(state.entries.len()));
        }
        let newer = state.entries.keys().filter(|(container, g)| *container == key.0 && *g > key.1).max();
        if let Some((container, newer)) = newer.copied() {
            return Err(Refused::Replaced { container, generation: key.1, newer });
        }
        let bound = self.0.config.workspace.is_some() || self.0.runtime.serves_one_workspace();
        if bound && state.workspace.is_some_and(|workspace| workspace != spec.workspace) {
            return Err(Refused::OtherWorkspace(spec.workspace));
        }
        Ok(state.capacity.book(&spec.resources)?)
    }

    fn make_entry(&self, key: Key, spec: &Spec) -> Result<(Arc<Entry>, spool::Writer), Refused> {
        let door = if spec.token.is_empty() { None } else { Some(door().map_err(Refused::Door)?) };
        let folder = self.0.root.join(folder_name(key.0, key.1));
        let made = make_private(&folder)
            .and_then(|()| std::fs::create_dir_all(folder.join(environment::WORK)))
            .and_then(|()| Spool::create(&folder.join(left::LOG), self.0.config.log));
        match made {
            Ok((spool, writer)) => Ok((Arc::new(Entry::new(key, spec, folder, spool, door)), writer)),
            Err(source) => Err(Refused::Folder { folder, source }),
        }
    }

    /// The container with this id and generation, if it is here.
    #[must_use]
    pub fn get(&self, container: ContainerId, generation: Generation) -> Option<Handle> {
        self.0.lock().entries.get(&(container, generation)).map(|entry| Handle::new(Arc::clone(entry)))
    }

    /// Every container that is not forgotten yet.
    #[must_use]
    pub fn all(&self) -> Vec<Handle> {
        self.0.lock().entries.values().map(|entry| Handle::new(Arc::clone(entry))).collect()
    }

    /// The logs of containers that went without all of it being acknowledged,
    /// by this worker's start. Each is to be acknowledged to its end.
    #[must_use]
    pub fn left_logs(&self) -> Vec<LeftLog> {
        self.0.lock().left.values().cloned().collect()
    }

    /// What a Hello says: every container that is not forgotten yet.
    #[must_use]
    pub fn inventory(&self) -> Vec<v1::RunningContainer> {
        let state = self.0.lock();
        let one = |((container, generation), entry): (&Key, &Arc<Entry>)| v1::RunningContainer {
            container: container.to_wire(),
            generation: generation.0,
            last_event: entry.last_event(),
        };
        state.entries.iter().map(one).collect()
    }

    /// Tells how many containers there are that are not forgotten yet.
    #[must_use]
    pub fn count(&self) -> watch::Receiver<usize> {
        self.0.count.subscribe()
    }

    /// Takes nothing new, stops every container with `grace` between SIGTERM
    /// and SIGKILL, and waits until all have ended. Their events and logs can
    /// be read and acknowledged afterwards, until [`Self::close`]. Returns the
    /// containers that had not ended 15 s after the grace; these are given up.
    pub async fn shutdown(&self, grace: Duration) -> Vec<ContainerId> {
        let entries: Vec<Arc<Entry>> = {
            let mut state = self.0.lock();
            state.shutting_down = true;
            state.entries.values().cloned().collect()
        };
        for entry in &entries {
            entry.stop(Why::Ordered { reason: v1::StopReason::Shutdown, text: String::new() }, grace);
        }
        let deadline = Instant::now() + grace + LATE;
        let mut late = Vec::new();
        for entry in entries {
            if timeout_at(deadline, entry.ended()).await.is_err() {
                tracing::error!(container = %entry.key.0, "did not end; giving it up");
                entry.abort();
                late.push(entry.key.0);
            }
        }
        late
    }

    /// Waits until every container is forgotten: its end and its whole log
    /// are acknowledged.
    pub async fn all_forgotten(&self) {
        let mut count = self.0.count.subscribe();
        // The sender is in `self`: it does not go away meanwhile.
        let _open = count.wait_for(|count| *count == 0).await;
    }

    /// Gives everything up that is left, whatever was acknowledged, kills what
    /// runs, and waits for the tasks. Logs that were not acknowledged are kept
    /// for the next start. To be called last.
    pub async fn close(self) {
        let entries: Vec<Arc<Entry>> = {
            let mut state = self.0.lock();
            state.shutting_down = true;
            state.entries.values().cloned().collect()
        };
        for entry in &entries {
            entry.abort();
        }
        self.0.closing.cancel();
        self.0.drivers.close();
        self.0.drivers.wait().await;
        for entry in entries.iter().filter(|entry| !entry.may_have_processes()) {
            if !entry.spool.progress().borrow().is_settled()
                && let Err(error) = left::keep(&entry.folder, &self.0.left)
            {
                tracing::warn!(folder = %entry.folder.display(), %error, "cannot keep the log for later");
                continue;
            }
            remove_folder(entry.folder.clone()).await;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, key: Key) {
        let mut state = self.lock();
        state.entries.remove(&key);
        let count = state.entries.len();
        drop(state);
        self.count.send_replace(count);
    }
}

/// A place that only this machine can reach.
fn door() -> io::Result<(u16, TcpListener)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    Ok((listener.local_addr()?.port(), listener))
}

fn make_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

async fn remove_folder(folder: PathBuf) {
    match tokio::fs::remove_dir_all(&folder).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(folder = %folder.display(), %error, "cannot remove; the next start tries again");
        }
        _ => {}
    }
}
