//! HTTP connections to ports of containers, each on a tunnel of its own, kept
//! for a moment to be used again. It owns their tasks. Whether a request may
//! be sent again on another one is the caller's to decide.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use levers9_transport::stream::StreamError;
use levers9_transport::tunnel::{Duplex, Raw};
use levers9_wire::v1::{self, FailureCode, ResetCode, stream_open};
use levers9_wire::{ContainerId, Generation};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::body::Upload;
use super::{MAX_HEADER_BYTES, MAX_HEADER_LINES};
use crate::places::Place;
use crate::reach::{self, Counts, What};

/// How long a worker may take to connect.
const CONNECT: Duration = Duration::from_secs(15);
/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(10);
/// The most of one port that are kept.
const KEPT: usize = 64;
/// How often old ones are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// What a caller who does not read holds of a shared connection, in bytes.
const STREAM_WINDOW: u32 = 1 << 20;
/// The largest window of HTTP/2.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;

/// A port of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    container: ContainerId,
    generation: Generation,
    port: u16,
}

impl Key {
    fn of(place: &Place, port: u16) -> Self {
        Self { container: place.container(), generation: place.generation(), port }
    }
}

/// A connection that carries one request at a time. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Single {
    pub(super) sender: http1::SendRequest<Upload>,
    pub(super) task: AbortOnDropHandle<()>,
    key: Key,
}

struct Idle {
    connection: Single,
    since: Instant,
}

#[derive(Default)]
struct Kept {
    single: HashMap<Key, Vec<Idle>>,
    /// Of those that speak HTTP/2, one for each port is enough.
    shared: HashMap<Key, (http2::SendRequest<Upload>, AbortOnDropHandle<()>, Instant)>,
    /// Held by whoever makes one, so that those who come meanwhile share it.
    making: HashMap<Key, Arc<tokio::sync::Mutex<()>>>,
}

/// Connections, and the tasks that move them.
pub(super) struct Pool {
    kept: Mutex<Kept>,
    open: Arc<Counts>,
    tasks: TaskTracker,
    kill: CancellationToken,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Counts its connections among what is open.
    pub(super) fn start(open: Arc<Counts>) -> Arc<Self> {
        let pool = Arc::new(Self {
            kept: Mutex::default(),
            open,
            tasks: TaskTracker::new(),
            kill: CancellationToken::new(),
        });
        let swept = Arc::downgrade(&pool);
        pool.spawn_detached(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(pool) = swept.upgrade() else { return };
                pool.sweep(Instant::now());
            }
        });
        pool
    }

    /// Runs something that ends with the pool.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
        let kill = self.kill.clone();
        AbortOnDropHandle::new(self.tasks.spawn(async move {
            let _ended = kill.run_until_cancelled_owned(task).await;
        }))
    }

    /// Runs something that ends with the pool and that nobody holds.
    pub(super) fn spawn_detached(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.kill.clone().run_until_cancelled_owned(task));
    }

    /// Ends everything.
    pub(super) fn close(&self) {
        self.kill.cancel();
        *self.lock() = Kept::default();
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that was used before, at most `idle` ago.
    pub(super) fn take(&self, place: &Place, port: u16, idle: Duration) -> Option<Single> {
        let mut kept = self.lock();
        let of_port = kept.single.get_mut(&Key::of(place, port))?;
        // The one used last is the least likely to be closed at the other end.
        while let Some(Idle { connection, since }) = of_port.pop() {
            if since.elapsed() > idle {
                return None;
            }
            if connection.sender.is_ready() && !connection.sender.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection once its answer has been read to the end. One that
    /// does not come to that ends.
    pub(super) fn give_back(self: &Arc<Self>, mut connection: Single) {
        let pool = Arc::downgrade(self);
        let waiting = self.kill.clone().run_until_cancelled_owned(async move {
            if connection.sender.ready().await.is_err() {
                return;
            }
            if let Some(pool) = pool.upgrade() {
                let mut kept = pool.lock();
                let of_port = kept.single.entry(connection.key).or_default();
                if of_port.len() < KEPT {
                    of_port.push(Idle { connection, since: Instant::now() });
                }
            }
        });
        self.tasks.spawn(waiting);
    }

    fn sweep(&self, now: Instant) {
        let mut kept = self.lock();
        kept.single.retain(|_, of_port| {
            of_port.retain(|idle| now - idle.since < IDLE && !idle.connection.sender.is_closed());
            !of_port.is_empty()
        });
        kept.shared.retain(|_, (sender, _, used)| now - *used < IDLE && !sender.is_closed());
        kept.making.retain(|_, making| Arc::strong_count(making) > 1);
    }

    /// Makes a new connection.
    pub(super) async fn connect(&self, place: &Place, port: u16) -> Result<Single, v1::Failure> {
        let tunnel = tunnel(place, port).await?;
        let handshake = http1::Builder::new()
            .max_headers(MAX_HEADER_LINES)
            .max_buf_size(MAX_HEADER_BYTES)
            .handshake(TokioIo::new(tunnel));
        let (sender, connection) = handshake.await.map_err(|error| broken(&error))?;
        let open = self.open.one(What::Connection);
        let task = self.spawn(async move {
            let _open = open;
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to a container ended early");
            }
        });
        Ok(Single { sender, task, key: Key::of(place, port) })
    }

    /// A connection that speaks HTTP/2, shared by all requests to the port.
    pub(super) async fn shared(
        self: &Arc<Self>,
        place: &Place,
        port: u16,
    ) -> Result<http2::SendRequest<Upload>, v1::Failure> {
        let key = Key::of(place, port);
        if let Some(made) = self.made(key) {
            return Ok(made);
        }
        let making = Arc::clone(self.lock().making.entry(key).or_default());
        // Who has waited as long as a connection may take makes one beside.
        let _turn = timeout(CONNECT, making.lock()).await;
        if let Some(made) = self.made(key) {
            return Ok(made);
        }
        let tunnel = tunnel(place, port).await?;
        let handshake = http2::Builder::new(Spawner(Arc::clone(self)))
            .timer(TokioTimer::new())
            // Callers who do not read must not use up what all of them share.
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(LARGEST_WINDOW)
            .max_header_list_size(u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX))
            .handshake(TokioIo::new(tunnel));
        let (sender, connection) = handshake.await.map_err(|error| broken(&error))?;
        // Requests in flight keep it; what is kept here lets go of it when nobody asks.
        let open = self.open.one(What::Connection);
        let task = self.spawn(async move {
            let _open = open;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a container ended early");
            }
        });
        self.lock().shared.insert(key, (sender.clone(), task, Instant::now()));
        Ok(sender)
    }

    /// The shared connection that is there.
    fn made(&self, key: Key) -> Option<http2::SendRequest<Upload>> {
        let mut kept = self.lock();
        let (sender, _, used) = kept.shared.get_mut(&key).filter(|(sender, ..)| !sender.is_closed())?;
        *used = Instant::now();
        Some(sender.clone())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

/// Runs the library's own tasks.
#[derive(Clone)]
struct Spawner(Arc<Pool>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawner {
    fn execute(&self, task: F) {
        self.0.tasks.spawn(self.0.kill.clone().run_until_cancelled_owned(task));
    }
}

/// Opens a tunnel and waits until it leads somewhere.
async fn tunnel(place: &Place, port: u16) -> Result<Duplex, v1::Failure> {
    let open = v1::TunnelOpen {
        container: place.container().to_wire(),
        generation: place.generation().0,
        port: u32::from(port),
    };
    let made = async {
        let mut stream = reach::open(&place.session, stream_open::Kind::Tunnel(open)).await?;
        let answer = stream.recv.expect::<v1::TunnelAnswer>().await.map_err(|error| lost(&error))?;
        match answer.failure {
            Some(failure) => Err(failure),
            None => Raw::of(stream).await.map(Duplex::new).map_err(|error| lost(&error)),
        }
    };
    timeout(CONNECT, made).await.unwrap_or_else(|_| {
        let text = format!("port {port} was not connected within {} s", CONNECT.as_secs());
        Err(reach::failure(FailureCode::Timeout, text, ""))
    })
}

fn lost(error: &StreamError) -> v1::Failure {
    match error {
        StreamError::Reset(reset) if reset.code == ResetCode::Cancelled => {
            reach::failure(FailureCode::NotRunning, "the container has ended", "")
        }
        error => {
            reach::failure(FailureCode::WorkerAway, format!("the way to the container broke: {error}"), "")
        }
    }
}

fn broken(error: &hyper::Error) -> v1::Failure {
    let text = format!("the container broke the connection at once: {error}");
    reach::failure(FailureCode::Internal, text, "")
}
