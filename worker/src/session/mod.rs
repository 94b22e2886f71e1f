//! A worker's session with its controlplane: says who it is and what it runs,
//! takes the Run streams, sends the logs, and carries what reaches into a
//! container (tunnels, execs) and out of it (doors). It decides nothing about a
//! container; those are [`crate::containers`]'s, and they run on whether or
//! not there is a session.

mod answers;
mod benches;
mod doors;
mod execs;
mod logs;
mod runs;
mod token;
mod tunnels;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use levers9_transport::dial::Dialer;
use levers9_transport::link::{Introduce, Link, Opened, Status};
use levers9_transport::quic::{Endpoint, Settings as Tuning};
use levers9_transport::tcp::{Fallback, Proxies};
use levers9_transport::{Address, link::EndpointSource};
use levers9_wire::token::Secret;
use levers9_wire::v1::{self, ResetCode, stream_open};
use levers9_wire::{ContainerId, InstanceId};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::containers::{Config, Containers, OpenError};
use crate::runtime::{Process, Settings as ProcessSettings};
use token::TokenStore;

/// How long the last logs and events may take to be taken, once all has ended.
const HANDOVER: Duration = Duration::from_secs(5);
/// How long the goodbye may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// What a worker is started with.
#[derive(Debug)]
pub struct Settings {
    /// The controlplane.
    pub address: Address,
    /// An enrolment or worker token; a kept one is preferred.
    pub token: Option<Secret>,
    /// Where the worker token is kept, for machines; `None` keeps it in memory.
    pub state: Option<PathBuf>,
    /// The containers' settings.
    pub containers: Config,
    /// The process runtime's settings.
    pub process: ProcessSettings,
    /// The tuning of the session.
    pub tuning: Tuning,
    /// Which proxies lead out, where nothing else does.
    pub proxies: Proxies,
}

/// The session's tuning for a worker: the controlplane opens one stream for
/// each container, and one for each connection and command in it.
#[must_use]
pub fn tuning() -> Tuning {
    Tuning { max_streams: 2048, ..Tuning::default() }
}

/// Why a worker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder cannot be used.
    #[error(transparent)]
    Containers(#[from] OpenError),
    /// The state folder cannot be used.
    #[error("cannot use the state folder: {0}")]
    State(std::io::Error),
    /// There is no token.
    #[error(
        "there is no token: set LEVERS9_WORKER_TOKEN, or --token-file, to what `levers9 worker enroll` printed"
    )]
    NoToken,
}

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    link: Link,
    containers: Containers,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Who this worker is, at every Hello.
struct Me {
    tokens: TokenStore,
    instance: InstanceId,
    facts: v1::WorkerFacts,
    containers: Containers,
}

impl fmt::Debug for Me {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Me").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl Introduce for Me {
    fn hello(&self) -> v1::Hello {
        v1::Hello {
            role: v1::Role::Worker.into(),
            token: self.tokens.current().expose().to_owned(),
            instance: self.instance.to_wire(),
            worker: Some(self.facts.clone()),
            inventory: self.containers.inventory(),
            ..v1::Hello::default()
        }
    }

    fn welcomed(&self, welcome: &v1::Welcome) {
        if !welcome.worker_token.is_empty() {
            self.tokens.replace(Secret::new(welcome.worker_token.as_str()));
        }
        tracing::info!(workspace = %welcome.workspace_name, "online");
    }
}

impl Worker {
    /// Starts a worker: clears away what an earlier one left, then dials. Must
    /// be called within the runtime it is to live on.
    ///
    /// # Errors
    /// When its folders cannot be used or there is no token.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let tokens = TokenStore::open(settings.state, settings.token).map_err(StartError::State)?;
        if tokens.current().is_empty() {
            return Err(StartError::NoToken);
        }
        let facts = settings.containers.facts.clone();
        let runtime = Arc::new(Process::new(settings.process));
        let (containers, recovered) = Containers::open(settings.containers, runtime).await?;
        tracing::info!(?recovered, "cleared away what an earlier worker left");
        let me = Me { tokens, instance: InstanceId::generate(), facts, containers: containers.clone() };
        let tuning = settings.tuning;
        let endpoints: EndpointSource = Box::new(move || Endpoint::dialing(&tuning));
        let fallback = Fallback::default().with_proxies(settings.proxies);
        let dialer = Dialer::new(settings.address).with_fallback(fallback);
        let (link, incoming) = Link::start(dialer, endpoints, Arc::new(me), StdRng::from_os_rng());
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let session = Session {
            link: link.clone(),
            containers: containers.clone(),
            tasks: tasks.clone(),
            stop: stop.clone(),
            benches: Arc::new(Semaphore::new(benches::BENCHES)),
        };
        for left in containers.left_logs() {
            tracing::info!(container = %left.container, "an earlier worker left a part of its log");
            tasks.spawn(logs::send(session.clone(), left));
        }
        tasks.spawn(session.serve(incoming));
        Ok(Self { link, containers, tasks, stop })
    }

    /// Whether a state folder holds a worker token from before.
    #[must_use]
    pub fn has_token(state: &Path) -> bool {
        token::file_in(state).exists()
    }

    /// How the session is doing, to be watched.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.link.status()
    }

    /// Stops in order: says that it takes nothing new, ends the containers with `grace`
    /// between SIGTERM and SIGKILL, hands over their last words, says goodbye.
    /// Returns the containers that were late.
    pub async fn shutdown(self, grace: Duration) -> Vec<ContainerId> {
        self.link.drain();
        let late = self.containers.shutdown(grace).await;
        if timeout(HANDOVER, self.containers.all_forgotten()).await.is_err() {
            tracing::warn!("the controlplane did not take the last logs or results in time");
        }
        self.stop.cancel();
        self.link.shutdown(GOODBYE).await;
        self.containers.close().await;
        self.tasks.close();
        if timeout(GOODBYE, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "tasks of the session were late");
        }
        late
    }
}

/// What serves the streams.
#[derive(Debug, Clone)]
struct Session {
    link: Link,
    containers: Containers,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// How many more streams may measure.
    benches: Arc<Semaphore>,
}

impl Session {
    async fn serve(self, mut incoming: mpsc::Receiver<Box<Opened>>) {
        while let Some(Some(opened)) = self.stop.run_until_cancelled(incoming.recv()).await {
            let Opened { kind, mut stream } = *opened;
            let session = self.clone();
            match kind {
                stream_open::Kind::Run(open) => self.spawn(runs::serve(session, open, stream)),
                stream_open::Kind::Tunnel(open) => self.spawn(tunnels::serve(session, open, stream)),
                stream_open::Kind::Exec(open) => self.spawn(execs::serve(session, open, stream)),
                stream_open::Kind::Bench(open) => self.spawn(benches::serve(session, open, stream)),
                _ => stream.abort(ResetCode::Unsupported),
            }
        }
    }

    /// Serves a stream until the worker stops.
    fn spawn(&self, serving: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let _stopped = stop.run_until_cancelled(serving).await;
        });
    }
}
