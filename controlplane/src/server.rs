//! A controlplane as a whole: opens its data, binds its ports, starts its
//! rooms, and stops them in order. The `levers9-controlplane` binary and
//! `levers9 dev` run it.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use levers9_transport::Address;
use levers9_transport::accept::{Acceptor, Limits};
use levers9_transport::cert::{Authority, CertError, CertResolver, Files};
use levers9_transport::quic::{Endpoint, Identity, ServerKeys, bind};
use levers9_transport::runtime::TransportThread;
use levers9_transport::tcp::{self, Listener};
use levers9_wire::token::Secret;
use levers9_wire::{InstanceId, WorkspaceId};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::calls;
use crate::clusters::Clusters;
use crate::config::{Certificate, Config, Sealing, TcpListen};
use crate::drain;
use crate::front::FrontDesk;
use crate::gate::Porter;
use crate::ingress::{Ingress, Serving};
use crate::janitor::{self, Certificates};
use crate::logs::{Logs, objects::Objects};
use crate::ports::{Ports, PortsError};
use crate::seal::{KeyFileError, Keyring};
use crate::sessions::Sessions;
use crate::state::{Options, Shared, State, now_ms, trust_of};
use crate::store::{Store, StoreError};
use crate::{recover, scheduler};

/// How long peers may take to hear that the controlplane stops.
const TELL: Duration = Duration::from_secs(3);
/// When peers may look again whether another process has taken the place.
const BACK: Duration = Duration::from_secs(1);
/// How long running calls may take to end.
const DRAIN: Duration = Duration::from_secs(10);

/// Why a controlplane does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port cannot be had.
    #[error("cannot listen on {protocol} {address} ({option}): {source}")]
    Port {
        /// UDP or TCP.
        protocol: &'static str,
        /// Which.
        address: SocketAddr,
        /// The option that sets it.
        option: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The data folder cannot be used.
    #[error("{folder}: {source}")]
    Folder {
        /// Which.
        folder: String,
        /// Why.
        source: io::Error,
    },
    /// The data folder is open to others, and only its owner can close it.
    #[error(
        "the data folder {0} is open to other users and not ours to close; name a folder inside it, which is made: data: {0}/data"
    )]
    OpenFolder(String),
    /// The database cannot be opened.
    #[error("{}", .0.chain())]
    Store(StoreError),
    /// There is no certificate to show.
    #[error(transparent)]
    Certificate(#[from] CertError),
    /// There is no key to seal with.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// QUIC cannot be set up.
    #[error("QUIC cannot be set up: {0}")]
    Quic(io::Error),
    /// The gRPC or HTTP port cannot be served.
    #[error(transparent)]
    Ports(#[from] PortsError),
}

impl StartError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Port { source, option, .. } if source.kind() == io::ErrorKind::AddrInUse => Some(format!(
                "something else has the port; free it, or choose another with {option} (0 takes a free one)"
            )),
            Self::Port { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("ports below 1024 need privileges".to_owned())
            }
            Self::Store(StoreError::FolderInUse(_)) => {
                Some("stop that one, or give this one a data folder of its own".to_owned())
            }
            _ => None,
        }
    }
}

/// How often another port is tried that is free for UDP and for TCP.
const FREE_PORTS: u32 = 16;

/// The sockets of a controlplane, bound before anything is started.
#[derive(Debug)]
pub struct Sockets {
    quic: UdpSocket,
    /// For those whom UDP does not reach.
    tcp: Option<TcpListener>,
    grpc: TcpListener,
    http: TcpListener,
}

impl Sockets {
    /// Binds all ports a configuration names.
    ///
    /// # Errors
    /// When one is taken or not permitted; it names the option that sets it.
    pub fn bind(config: &Config, options: [&'static str; 3]) -> Result<Self, StartError> {
        let port =
            |protocol, address, option| move |source| StartError::Port { protocol, address, option, source };
        let listen = |address: SocketAddr| {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok::<_, io::Error>(listener)
        };
        let [quic, grpc, http] = options;
        let (udp, fallback) = Self::bind_sessions(config, |protocol, address| port(protocol, address, quic))?;
        Ok(Self {
            quic: udp,
            tcp: fallback,
            grpc: listen(config.grpc).map_err(port("TCP", config.grpc, grpc))?,
            http: listen(config.http).map_err(port("TCP", config.http, http))?,
        })
    }

    /// The sockets of sessions: UDP, and TCP on the same port unless another
    /// is named, since that is where peers look.
    fn bind_sessions<E>(
        config: &Config,
        failed: impl Fn(&'static str, SocketAddr) -> E,
    ) -> Result<(UdpSocket, Option<TcpListener>), StartError>
    where
        E: FnOnce(io::Error) -> StartError,
    {
        let mut tries = 0;
        loop {
            let udp = bind(config.quic, config.transport.socket_buffer)
                .map_err(|error| failed("UDP", config.quic)(error))?;
            let at = match config.tcp {
                TcpListen::Off => return Ok((udp, None)),
                TcpListen::At(address) => address,
                TcpListen::Same => udp.local_addr().map_err(StartError::Quic)?,
            };
            match tcp::bind(at) {
                Ok(listener) => return Ok((udp, Some(listener))),
                // A port that was free for UDP may not be for TCP: another one, then.
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && config.tcp == TcpListen::Same
                        && config.quic.port() == 0
                        && tries < FREE_PORTS =>
                {
                    tries += 1;
                }
                Err(error) => return Err(failed("TCP", at)(error)),
            }
        }
    }
}

/// Where a controlplane is.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// What clients and workers dial.
    pub dial: Address,
    /// UDP.
    pub quic: SocketAddr,
    /// gRPC.
    pub grpc: SocketAddr,
    /// HTTP.
    pub http: SocketAddr,
}

/// A running controlplane.
#[derive(Debug)]
pub struct Controlplane {
    state: Shared,
    addresses: Addresses,
    acceptor: Acceptor<Porter>,
    ports: Ports,
    ingress: Arc<Ingress>,
    rooms: TaskTracker,
    transport: TransportThread,
    announcing: AbortOnDropHandle<()>,
    /// How long what runs may go on where another takes over.
    drain: Duration,
}

impl Controlplane {
    /// Starts a controlplane on bound sockets.
    ///
    /// # Errors
    /// When its data, keys, certificate or ports cannot be used.
    pub async fn start(config: &Config, sockets: Sockets) -> Result<Self, StartError> {
        make_folder(&config.data)?;
        let store =
            Store::open(config.database.expose(), config.database_pool).await.map_err(StartError::Store)?;
        let keyring = open_keys(config)?;
        let (certificates, resolver) = open_certificates(config)?;
        let bound = Addresses {
            quic: sockets.quic.local_addr().map_err(StartError::Quic)?,
            grpc: sockets.grpc.local_addr().map_err(StartError::Quic)?,
            http: sockets.http.local_addr().map_err(StartError::Quic)?,
            dial: config
                .address(sockets.quic.local_addr().map_err(StartError::Quic)?.port(), trust_of(&resolver)),
        };
        let transport = TransportThread::start().map_err(StartError::Quic)?;
        let state: Shared = Arc::new(State {
            store,
            keyring,
            instance: InstanceId::generate(),
            options: Options {
                host: bound.dial.host.clone(),
                port: bound.dial.port,
                certificate: Arc::clone(&resolver),
                bootstrap_secret: config.bootstrap_secret.clone(),
                serving: serving(config, bound.http),
                log_bytes_max: config.logs.max_bytes,
                log_age_max: config.logs.max_age,
                worker: config.worker.clone(),
            },
            sessions: Sessions::default(),
            clusters: Clusters::default(),
            logs: Logs::new(Objects::new(config.data.join("logs"))),
            runs: crate::runs::Runs::default(),
            places: crate::places::Places::default(),
            transport: transport.handle().clone(),
            open: Arc::default(),
            benches: crate::reach::Benches::default(),
            doors: OnceLock::new(),
            failures: crate::limiter::FailureLimiter::default(),
            trouble: crate::state::Trouble::default(),
            data: config.data.clone(),
            placeable: Notify::new(),
            tasks: TaskTracker::new(),
            leading: std::sync::atomic::AtomicBool::default(),
            refreshes: recover::Refreshes::default(),
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
        });
        recover::start(&state).await.map_err(StartError::Store)?;
        let identity = Identity { certificate: Arc::clone(&resolver), keys: reset_keys(&config.data)? };
        let acceptor = listen(&state, config, (sockets.quic, sockets.tcp), &identity, &transport)?;
        let rooms = TaskTracker::new();
        rooms.spawn(scheduler::run(Arc::clone(&state)));
        rooms.spawn(janitor::run(Arc::clone(&state), certificates));
        let announced = drain::address_of(bound.quic);
        drain::announce(&state, &announced).await.map_err(StartError::Store)?;
        let announcing = tokio::spawn(drain::announce_on(Arc::clone(&state), announced));
        let desk = Arc::new(FrontDesk::new(Arc::clone(&state), acceptor.gauges(), Arc::clone(&resolver)));
        let (http, grpc) = (tokio_listener(sockets.http)?, tokio_listener(sockets.grpc)?);
        let ingress = Arc::new(Ingress::new(Arc::clone(&state)));
        let ports = Ports::start(
            http,
            grpc,
            Some(resolver),
            config.insecure_listen,
            desk,
            Some(Arc::clone(&ingress)),
        )?;
        // There is one set of ports, and it is set once.
        let _first = state.doors.set(ports.doors());
        Ok(Self {
            state,
            addresses: bound,
            acceptor,
            ports,
            ingress,
            rooms,
            transport,
            announcing: AbortOnDropHandle::new(announcing),
            drain: config.drain,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Makes the first workspace and gives its admin token; `None` when there
    /// is a workspace already. For `levers9 dev`, whose user is the operator.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn first_token(&self) -> Result<Option<Secret>, StoreError> {
        Ok(calls::create_first(&self.state).await?.map(|first| first.token))
    }

    /// A fresh token of a kind in the first workspace. For `levers9 dev`.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn mint(&self, kind: levers9_wire::token::TokenKind) -> Result<Secret, StoreError> {
        let workspace: Option<WorkspaceId> = self.state.store.workspaces().await?.first().map(|w| w.id);
        let (secret, row) = crate::auth::mint(kind, workspace, now_ms(), &mut rand::rng());
        let worker =
            (kind == levers9_wire::token::TokenKind::Enrolment).then(levers9_wire::WorkerId::generate);
        let (pool, expires_ms) =
            (worker.map(|_| "local".to_owned()), worker.map(|_| now_ms() + calls::ENROLMENT_MS));
        let row = crate::store::Token { worker, pool, expires_ms, ..row };
        self.state.store.insert_token(&row).await?;
        Ok(secret)
    }

    /// Whether a token is good for people.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn knows(&self, token: &Secret) -> Result<bool, StoreError> {
        let found = self.state.store.token_by_hash(crate::store::TokenHash::of(token)).await?;
        Ok(found.is_some_and(|token| token.revoked_ms.is_none()))
    }

    /// Asks every task to end, with a reason. For `levers9 dev`, whose jobs
    /// end with it.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn cancel_all(&self, reason: &str) -> Result<usize, StoreError> {
        let live = self.state.store.live_tasks().await?;
        for now in &live {
            crate::jobs::cancel(&self.state, now.task.id, reason).await?;
        }
        Ok(live.len())
    }

    /// How many tasks have not ended.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn live_tasks(&self) -> Result<usize, StoreError> {
        Ok(self.state.store.live_tasks().await?.len())
    }

    /// Stops in order: nothing new is placed; where another controlplane is
    /// there, everybody goes to it and what runs here ends, unless `hurry` is
    /// cancelled; then all are told, and the database is closed. Returns who
    /// was late.
    pub async fn shutdown(self, hurry: CancellationToken) -> Vec<&'static str> {
        let mut late = Vec::new();
        let mut back_in = BACK;
        drop(self.announcing);
        match drain::withdraw(&self.state).await {
            Some(others) => {
                self.state.draining.cancel();
                back_in = Duration::ZERO;
                let when = (others, self.drain);
                late.extend(drain::make_way(&self.state, &self.acceptor, self.ports, when, &hurry).await);
                self.state.stopping.cancel();
            }
            None => {
                self.state.stopping.cancel();
                if self.ports.shutdown(Instant::now() + TELL).await > 0 {
                    late.push("connections of the HTTP and gRPC ports");
                }
            }
        }
        if !self.acceptor.shutdown("the controlplane is shutting down", back_in, TELL).await {
            late.push("sessions");
        }
        self.ingress.close();
        self.rooms.close();
        self.state.tasks.close();
        if tokio::time::timeout(DRAIN, self.rooms.wait()).await.is_err() {
            late.push("the scheduler");
        }
        if tokio::time::timeout(DRAIN, self.state.tasks.wait()).await.is_err() {
            late.push("calls and log streams");
        }
        let _late = tokio::time::timeout(DRAIN, self.state.store.close()).await;
        let transport = self.transport;
        let _panicked = tokio::task::spawn_blocking(move || drop(transport)).await;
        late
    }
}

/// Where containers are served: under a suffix that is set, or by path where
/// nobody else can come in.
fn serving(config: &Config, http: SocketAddr) -> Serving {
    match &config.container_url {
        Some(suffix) => Serving::Hosts(suffix.clone()),
        None if http.ip().to_canonical().is_loopback() => Serving::Paths(http),
        None => Serving::Nowhere,
    }
}

fn tokio_listener(listener: TcpListener) -> Result<tokio::net::TcpListener, StartError> {
    tokio::net::TcpListener::from_std(listener).map_err(StartError::Quic)
}

/// Makes the data folder, and takes it for this user alone: commands and
/// outputs of jobs are in it, and keys.
fn make_folder(folder: &Path) -> Result<(), StartError> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let failed = |source| StartError::Folder { folder: folder.display().to_string(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let mode = std::fs::metadata(folder).map_err(failed)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    match std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)) {
        Ok(()) => {
            tracing::warn!(folder = %folder.display(), "the data folder was open to other users; closed it to them");
            Ok(())
        }
        // The top of a mounted volume belongs to whoever mounted it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && mode & 0o007 == 0 => {
            tracing::warn!(folder = %folder.display(), "the data folder is another user's and open to its group");
            Ok(())
        }
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            Err(StartError::OpenFolder(folder.display().to_string()))
        }
        Err(source) => Err(failed(source)),
    }
}

fn open_keys(config: &Config) -> Result<Keyring, StartError> {
    match &config.sealing {
        Sealing::File(path) => Ok(Keyring::load_or_create(path)?),
        Sealing::Keys { current, previous } => {
            let previous: Vec<_> = previous.iter().map(|key| *key.expose()).collect();
            Ok(Keyring::new(current.expose(), &previous)?)
        }
    }
}

fn open_certificates(config: &Config) -> Result<(Certificates, Arc<CertResolver>), StartError> {
    match &config.certificate {
        Certificate::Own(folder) => {
            let now = levers9_wire::clock::unix_millis() / 1_000;
            let authority = Authority::open(folder, &config.names, now)?;
            let resolver = authority.resolver();
            Ok((Certificates::Own(authority), resolver))
        }
        Certificate::Files { certificate, key } => {
            let files = Files::open(certificate, key)?;
            let resolver = files.resolver();
            Ok((Certificates::Files(files), resolver))
        }
    }
}

/// The key that signs resets, kept so that peers notice a restart at once.
fn reset_keys(data: &Path) -> Result<ServerKeys, StartError> {
    let path = data.join("reset.key");
    let keyring = Keyring::load_or_create(&path)?;
    Ok(ServerKeys { reset: keyring.derive(b"levers9 stateless reset") })
}

fn listen(
    state: &Shared,
    config: &Config,
    (socket, fallback): (UdpSocket, Option<TcpListener>),
    identity: &Identity,
    transport: &TransportThread,
) -> Result<Acceptor<Porter>, StartError> {
    let here = tokio::runtime::Handle::current();
    let (endpoint, fallback) = {
        let _on_transport = transport.handle().enter();
        let fallback = fallback.map(|socket| Listener::new(socket, &config.transport, identity));
        let endpoint = Endpoint::accepting(socket, &config.transport, identity).map_err(StartError::Quic)?;
        (endpoint, fallback.transpose().map_err(StartError::Quic)?)
    };
    let limits = Limits { ping_every: config.transport.ping_interval(), ..Limits::default() };
    let acceptor = Acceptor::new(endpoint, Arc::new(Porter::new(Arc::clone(state))), limits, here);
    let acceptor = match fallback {
        Some(fallback) => acceptor.with_tcp(fallback),
        None => acceptor,
    };
    let runner = acceptor.clone();
    transport.handle().spawn(async move { runner.run().await });
    Ok(acceptor)
}
