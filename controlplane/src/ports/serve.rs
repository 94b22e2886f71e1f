//! One serving port: takes TCP connections in, puts TLS around them where it
//! is asked for, and speaks HTTP/1.1 and HTTP/2 to a router. Ports 1993 and
//! 1994 are two of these; what is said on them is [`super::http`]'s and
//! [`super::grpc`]'s.
//!
//! It owns every task it starts, down to one per HTTP/2 stream. Taking
//! connections never ends because one failed or descriptors ran out. Whoever
//! is not authenticated yet is limited in number, time and size.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use futures_util::FutureExt as _;
use http::header::{CONNECTION, HeaderValue};
use http::{StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::cut::{Cut, Cuttable};
use super::timed::{Begun, Timed};
use crate::ingress::{Ingress, MAX_HEADER_BYTES, MAX_HEADER_LINES};

/// Where a request came from, among its extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// A port that is being served. Dropping it cuts everything off.
pub(super) struct Port {
    shared: Arc<Shared>,
}

struct Shared {
    serving: Serving,
    tls: Option<TlsAcceptor>,
    connections: Arc<Semaphore>,
    owned: Owned,
}

/// How HTTP is spoken on a connection, and with whom.
#[derive(Clone)]
pub(super) struct Serving {
    /// Names the port in logs.
    pub(super) what: &'static str,
    pub(super) http: auto::Builder<Owned>,
    /// Those there are had better come elsewhere next time.
    pub(super) leave: CancellationToken,
    /// No more connections; those there finish what they have begun.
    pub(super) stop: CancellationToken,
    pub(super) router: Router,
    /// Takes what is for a container.
    pub(super) ingress: Option<Arc<Ingress>>,
}

impl Port {
    /// Starts to serve; `what` names the port in logs.
    pub(super) fn open(
        what: &'static str,
        listener: TcpListener,
        tls: Option<Arc<ServerConfig>>,
        router: Router,
        ingress: Option<Arc<Ingress>>,
    ) -> Self {
        let owned = Owned::default();
        let http = http(owned.clone());
        let (leave, stop) = (CancellationToken::new(), CancellationToken::new());
        let shared = Arc::new(Shared {
            serving: Serving { what, http, leave, stop, router, ingress },
            tls: tls.map(TlsAcceptor::from),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            owned,
        });
        shared.owned.spawn(take_connections(Arc::clone(&shared), listener));
        Self { shared }
    }

    /// Serves on, but asks clients to make their next connection elsewhere.
    pub(super) fn leave(&self) {
        self.shared.serving.leave.cancel();
    }

    /// Takes no more connections, lets requests finish until `deadline`, then
    /// cuts off what is left. Answers how many connections that were.
    pub(super) async fn close(self, deadline: Instant) -> usize {
        let Shared { serving: Serving { what, stop, .. }, connections, owned, .. } = &*self.shared;
        stop.cancel();
        owned.tasks.close();
        if tokio::time::timeout_at(deadline, owned.tasks.wait()).await.is_ok() {
            return 0;
        }
        let late = MAX_CONNECTIONS - connections.available_permits();
        tracing::warn!(port = what, late, "connections were still busy at the deadline and are cut off");
        owned.kill.cancel();
        // Cancelled tasks end at their next step; one that has none is not waited for.
        drop(tokio::time::timeout(LAST_STEP, owned.tasks.wait()).await);
        late
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.shared.owned.kill.cancel();
    }
}

/// Runs tasks that end with the port.
#[derive(Clone, Debug, Default)]
pub(super) struct Owned {
    tasks: TaskTracker,
    kill: CancellationToken,
}

impl Owned {
    /// Ends them all.
    pub(super) fn kill(&self) {
        self.kill.cancel();
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.kill.clone().run_until_cancelled_owned(task));
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Owned {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}

/// The limits that hold wherever HTTP is spoken.
pub(super) fn http(owned: Owned) -> auto::Builder<Owned> {
    let mut http = auto::Builder::new(owned);
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADER_LINES)
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    http
}

async fn take_connections(shared: Arc<Shared>, listener: TcpListener) {
    let mut pause = FIRST_PAUSE;
    let mut warnings = Seldom::default();
    let stop = shared.serving.stop.clone();
    loop {
        if shared.connections.available_permits() == 0 && warnings.may() {
            tracing::warn!(
                port = shared.serving.what,
                limit = MAX_CONNECTIONS,
                "no more connections are taken until one ends"
            );
        }
        let next = async {
            let permit = Arc::clone(&shared.connections).acquire_owned().await.map_err(io::Error::other)?;
            let (stream, peer) = listener.accept().await?;
            leaves_enough(&stream)?;
            Ok((stream, peer, permit))
        };
        let wait = match stop.run_until_cancelled(next).await {
            None => return take_the_last(&shared, &listener),
            Some(Ok((stream, peer, permit))) => {
                pause = FIRST_PAUSE;
                shared.owned.spawn(connection(Arc::clone(&shared), stream, peer, permit));
                continue;
            }
            Some(Err(error)) if is_of_one_connection(&error) => continue,
            Some(Err(error)) => {
                if warnings.may() {
                    tracing::warn!(port = shared.serving.what, %error, "connections cannot be taken; trying on");
                }
                let longer = (pause * 2).min(LONGEST_PAUSE);
                std::mem::replace(&mut pause, longer)
            }
        };
        if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
            return;
        }
    }
}

/// Takes the connections that are made already, before nobody does any more.
fn take_the_last(shared: &Arc<Shared>, listener: &TcpListener) {
    while let Ok(permit) = Arc::clone(&shared.connections).try_acquire_owned()
        && let Some(Ok((stream, peer))) = listener.accept().now_or_never()
    {
        shared.owned.spawn(connection(Arc::clone(shared), stream, peer, permit));
    }
}

/// Refuses a connection that would take one of the last descriptors: strangers
/// must not keep the controlplane from storing what runs. The kernel gives out
/// the lowest number that is free.
fn leaves_enough(stream: &TcpStream) -> io::Result<()> {
    let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    let kept = KEPT_FILES.min(limit / 4);
    let number = u64::try_from(stream.as_raw_fd()).unwrap_or(u64::MAX);
    if number < limit - kept { Ok(()) } else { Err(io::Error::from_raw_os_error(Errno::EMFILE as i32)) }
}

/// Whether the peer gave up before its connection was taken; the next one may be good.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, peer: SocketAddr, _permit: OwnedSemaphorePermit) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(port = shared.serving.what, %peer, %error, "the connection was gone at once");
        return;
    }
    let cut = Cut::default();
    let stream = Cuttable::new(stream, cut.clone());
    let Some(tls) = &shared.tls else { return shared.serving.speak(stream, peer, cut).await };
    let handshake = tokio::time::timeout(HANDSHAKE, tls.accept(stream));
    match shared.serving.stop.run_until_cancelled(handshake).await {
        Some(Ok(Ok(stream))) => shared.serving.speak(stream, peer, cut).await,
        Some(Ok(Err(error))) => {
            tracing::debug!(port = shared.serving.what, %peer, %error, "the TLS handshake failed")
        }
        Some(Err(_)) => tracing::debug!(port = shared.serving.what, %peer, "the TLS handshake took too long"),
        None => {}
    }
}

impl Serving {
    /// Until a connection is to take no more requests. One of HTTP/2 can tell
    /// its client so beforehand; one of HTTP/1 that waits for the next request
    /// may be getting it now, and has its next answer to say so.
    async fn time_to_go(&self, is_http2: &AtomicBool) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.leave.cancelled() => {
                if !is_http2.load(Ordering::Relaxed) {
                    self.stop.cancelled().await;
                }
            }
        }
    }

    /// Speaks HTTP/1.1 or HTTP/2 until the connection ends.
    pub(super) async fn speak<Io: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        io: Io,
        peer: SocketAddr,
        cut: Cut,
    ) {
        let begun = Begun::default();
        let io = TokioIo::new(Timed::new(io, begun.clone()));
        let router = TowerToHyperService::new(self.router.clone());
        let ingress = self.ingress.clone();
        let of_request = cut.clone();
        let many_at_once = Arc::new(AtomicBool::new(false));
        let (is_http2, leave) = (Arc::clone(&many_at_once), self.leave.clone());
        let service = service_fn(move |mut request: http::Request<Incoming>| {
            begun.set();
            let version = request.version();
            is_http2.store(version == Version::HTTP_2, Ordering::Relaxed);
            request.extensions_mut().insert(of_request.clone());
            let (router, ingress, leave) = (router.clone(), ingress.clone(), leave.clone());
            async move {
                let answer = answer(request, peer, router, ingress).await;
                Ok::<_, Infallible>(if leave.is_cancelled() { last(answer, version) } else { answer })
            }
        });
        let mut connection = std::pin::pin!(self.http.serve_connection_with_upgrades(io, service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.time_to_go(&many_at_once) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            // The answer broke off: to a client without chunks its end would look whole.
            if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_user) {
                cut.set();
            }
            tracing::debug!(port = self.what, %peer, %error, "the connection ended early");
        }
    }
}

type Answer = http::Response<axum::body::Body>;

/// Has the one answer whom a request is for.
async fn answer(
    request: http::Request<Incoming>,
    peer: SocketAddr,
    router: TowerToHyperService<Router>,
    ingress: Option<Arc<Ingress>>,
) -> Answer {
    let mut request = match &ingress {
        None => request,
        Some(ingress) => match ingress.answer(request, peer).await {
            Ok(answer) => return answer,
            Err(request) => *request,
        },
    };
    request.extensions_mut().insert(Peer(peer));
    router.call(request).await.unwrap_or_else(|never| match never {})
}

/// An answer after which its connection ends, where one carries no others.
fn last(mut answer: Answer, version: Version) -> Answer {
    if version < Version::HTTP_2 && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// Says now and then what could be said without end.
#[derive(Default)]
struct Seldom {
    last: Option<Instant>,
}

impl Seldom {
    fn may(&mut self) -> bool {
        let now = Instant::now();
        let may = self.last.is_none_or(|last| now - last >= WARN_EVERY);
        if may {
            self.last = Some(now);
        }
        may
    }
}

/// Open connections per port; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 1024;
/// Descriptors that connections leave to the rest of the process.
const KEPT_FILES: u64 = 64;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// For the next request's header on an HTTP/1 connection, idle time included:
/// longer than the 60 s for which balancers keep a connection to use again.
const IDLE: Duration = Duration::from_secs(75);
const MAX_STREAMS: u32 = 1000;
/// What one upload that nobody takes holds, in bytes.
const STREAM_WINDOW: u32 = 512 << 10;
/// What all uploads of a connection hold together: a few must not use it up.
const CONNECTION_WINDOW: u32 = 8 << 20;
/// HTTP/2 pings of ours; a peer may send its own as often as it likes.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const WARN_EVERY: Duration = Duration::from_secs(60);
const LAST_STEP: Duration = Duration::from_secs(1);
