//! The accepting side: lets peers in, reads their Hello, has a [`Gate`] decide,
//! and keeps the control stream of every session. What a session does with its
//! streams is the gate's.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use levers9_wire::v1::{self, RefuseCode, ResetCode, control_frame, stream_open};
use levers9_wire::{SessionId, VERSION_MAX, VERSION_MIN, limits, valid};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::carrier::{Carrier, Lost};
use crate::link::{Opened, accept_streams, frame, lost_by, open_on, read_open, unopened};
use crate::quic::{self, Endpoint};
use crate::session::{DEAD_AFTER, Due, Liveness, reconnect_spread};
use crate::stream::{FrameRecv, FrameSend, Stream, StreamError};
use crate::tcp::{self, Listener};

/// Streams a peer has opened and its session has not taken yet.
const UNTAKEN: usize = 16;
/// How long a peer may take from its first packet to its Hello.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a refused peer may take to read why.
const PARTING: Duration = Duration::from_secs(2);

/// How many may be on their way in.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Above this many unfinished handshakes, peers first prove their address.
    pub retry_above: usize,
    /// Above this many, they are told to come later.
    pub refuse_above: usize,
    /// Unfinished handshakes over TCP from one address. Many peers may share
    /// one, behind a NAT or a balancer.
    pub per_address: usize,
    /// Sessions in all.
    pub sessions: usize,
    /// How often each session is pinged.
    pub ping_every: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            retry_above: 64,
            refuse_above: 512,
            per_address: 256,
            sessions: 20_000,
            ping_every: crate::session::PING_EVERY,
        }
    }
}

/// Why a peer is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of no.
    pub code: RefuseCode,
    /// For the person who reads it.
    pub text: String,
}

impl Refusal {
    /// A refusal with words.
    #[must_use]
    pub fn new(code: RefuseCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// Decides who comes in, and serves who did.
pub trait Gate: Send + Sync + 'static {
    /// What is known of a peer once it is let in.
    type Admitted: Send + 'static;

    /// Decides about one Hello. `session`, pings and spread of the Welcome are
    /// filled in by the acceptor.
    fn admit(
        &self,
        hello: valid::Hello,
        peer: SocketAddr,
    ) -> impl Future<Output = Result<(v1::Welcome, Self::Admitted), Refusal>> + Send;

    /// Serves one session until it returns; the session is then closed. When
    /// the carrier is lost first, [`Session::next`] ends.
    fn serve(self: Arc<Self>, session: Session, admitted: Self::Admitted) -> impl Future<Output = ()> + Send;
}

/// What the accepting side counts.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Sessions there are.
    pub sessions: AtomicUsize,
    /// Handshakes and greetings under way.
    pub arriving: AtomicUsize,
    /// Peers let in since the start.
    pub admitted: AtomicU64,
    /// Peers refused since the start, with or without words.
    pub refused: AtomicU64,
}

/// Handshakes over TCP under way, by address.
type Arriving = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// One of them while it lives.
struct From {
    arriving: Arriving,
    ip: IpAddr,
}

impl From {
    /// One more from an address, unless there are enough.
    fn new(arriving: &Arriving, ip: IpAddr, most: usize) -> Option<Self> {
        let mut counts = arriving.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(ip).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Self { arriving: Arc::clone(arriving), ip })
    }
}

impl Drop for From {
    fn drop(&mut self) {
        let mut counts = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.ip);
            }
        }
    }
}

/// A peer that wants in, by either way.
enum Inbound {
    Quic(Box<quic::Inbound>),
    Tcp(tcp::Inbound, From),
}

impl Inbound {
    fn peer(&self) -> SocketAddr {
        match self {
            Self::Quic(inbound) => inbound.peer(),
            Self::Tcp(inbound, _) => inbound.peer(),
        }
    }

    async fn handshake(self) -> Result<Carrier, Lost> {
        match self {
            Self::Quic(inbound) => inbound.handshake().await,
            Self::Tcp(inbound, _from) => inbound.handshake().await,
        }
    }
}

/// Counts one up while it lives.
struct Counted(Arc<Gauges>, fn(&Gauges) -> &AtomicUsize);

impl Counted {
    fn new(gauges: &Arc<Gauges>, which: fn(&Gauges) -> &AtomicUsize) -> Self {
        which(gauges).fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(gauges), which)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.1)(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The peer said goodbye.
    Bye(String),
    /// The carrier was lost, or closed by this side.
    Lost(Lost),
}

/// One peer that was let in.
#[derive(Debug)]
pub struct Session {
    handle: SessionHandle,
    incoming: mpsc::Receiver<Box<Opened>>,
}

impl Session {
    /// The next stream the peer opens, or `None` once the carrier is gone.
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<Opened> {
        // The line ends with the carrier: whoever fills it goes first.
        self.incoming.recv().await.map(|opened| *opened)
    }

    /// What others may hold of it.
    #[must_use]
    pub fn handle(&self) -> &SessionHandle {
        &self.handle
    }
}

/// A session as others see it; clones share it.
#[derive(Clone)]
pub struct SessionHandle {
    id: SessionId,
    carrier: Carrier,
    rtt_us: Arc<AtomicU64>,
    draining: Arc<AtomicBool>,
    ending: watch::Receiver<Option<Ending>>,
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("carrier", &self.carrier)
            .finish_non_exhaustive()
    }
}

impl SessionHandle {
    /// Which session.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// What it rides on.
    #[must_use]
    pub fn carrier(&self) -> &Carrier {
        &self.carrier
    }

    /// The round-trip time of the last ping, once there was one.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        match self.rtt_us.load(Ordering::Relaxed) {
            0 => None,
            us => Some(Duration::from_micros(us)),
        }
    }

    /// Whether the peer has said that it takes nothing more.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Opens a stream to the peer. Cancel safe.
    ///
    /// # Errors
    /// When the carrier is gone.
    pub async fn open(&self, kind: stream_open::Kind) -> Result<Stream, StreamError> {
        open_on(&self.carrier, kind).await
    }

    /// Ends the session now, with a code and words.
    pub fn close(&self, why: ResetCode, words: &str) {
        self.carrier.close(why, words);
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ending.borrow().is_some()
    }

    /// Waits for the end. Cancel safe.
    pub async fn ended(&self) -> Ending {
        let mut ending = self.ending.clone();
        match ending.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(ending)) => ending.clone(),
            // The control task is gone without a word: it was aborted with the acceptor.
            _ => Ending::Lost(self.carrier.lost().unwrap_or(Lost::TimedOut)),
        }
    }
}

/// Accepts peers for one gate.
pub struct Acceptor<G> {
    endpoint: Endpoint,
    listener: Option<Listener>,
    by_address: Arriving,
    gate: Arc<G>,
    limits: Limits,
    gauges: Arc<Gauges>,
    serve_on: Handle,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl<G> fmt::Debug for Acceptor<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl<G> Clone for Acceptor<G> {
    fn clone(&self) -> Self {
        Self {
            endpoint: self.endpoint.clone(),
            listener: self.listener.clone(),
            by_address: Arc::clone(&self.by_address),
            gate: Arc::clone(&self.gate),
            limits: self.limits,
            gauges: Arc::clone(&self.gauges),
            serve_on: self.serve_on.clone(),
            tasks: self.tasks.clone(),
            stop: self.stop.clone(),
        }
    }
}

impl<G: Gate> Acceptor<G> {
    /// An acceptor whose sessions are served on `serve_on`.
    pub fn new(endpoint: Endpoint, gate: Arc<G>, limits: Limits, serve_on: Handle) -> Self {
        Self {
            endpoint,
            listener: None,
            by_address: Arc::default(),
            gate,
            limits,
            gauges: Arc::default(),
            serve_on,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Accepts over TCP too, for peers that UDP does not reach.
    #[must_use]
    pub fn with_tcp(mut self, listener: Listener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// What it counts.
    #[must_use]
    pub fn gauges(&self) -> Arc<Gauges> {
        Arc::clone(&self.gauges)
    }

    /// Accepts until [`Acceptor::shutdown`].
    pub async fn run(&self) {
        let over_tcp = async || match &self.listener {
            Some(listener) => listener.accept().await,
            None => std::future::pending().await,
        };
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                inbound = self.endpoint.accept() => match inbound {
                    Some(inbound) => self.over_quic(inbound),
                    None => return,
                },
                inbound = over_tcp() => self.over_tcp(inbound),
            }
        }
    }

    /// Whether there is room for one more.
    fn has_room(&self) -> bool {
        let arriving = self.gauges.arriving.load(Ordering::Relaxed);
        let sessions = self.gauges.sessions.load(Ordering::Relaxed);
        let room = arriving < self.limits.refuse_above && sessions < self.limits.sessions;
        if !room {
            self.gauges.refused.fetch_add(1, Ordering::Relaxed);
        }
        room
    }

    fn over_quic(&self, inbound: quic::Inbound) {
        if !self.has_room() {
            return inbound.refuse();
        }
        let arriving = self.gauges.arriving.load(Ordering::Relaxed);
        if arriving >= self.limits.retry_above && !inbound.is_validated() {
            return inbound.ask_to_retry();
        }
        self.let_arrive(Inbound::Quic(Box::new(inbound)));
    }

    fn over_tcp(&self, inbound: tcp::Inbound) {
        if !self.has_room() {
            return inbound.refuse();
        }
        let ip = inbound.peer().ip().to_canonical();
        match From::new(&self.by_address, ip, self.limits.per_address) {
            Some(from) => self.let_arrive(Inbound::Tcp(inbound, from)),
            None => {
                self.gauges.refused.fetch_add(1, Ordering::Relaxed);
                inbound.refuse();
            }
        }
    }

    fn let_arrive(&self, inbound: Inbound) {
        let counted = Counted::new(&self.gauges, |g| &g.arriving);
        self.tasks.spawn(self.clone().arrive(inbound, counted));
    }

    /// Stops taking peers, closes the sessions, and waits at most `patience`
    /// for their tasks. Returns whether all ended in time.
    pub async fn shutdown(&self, words: &str, patience: Duration) -> bool {
        self.stop.cancel();
        self.endpoint.stop_accepting();
        self.tasks.close();
        let over_tcp = async {
            match &self.listener {
                Some(listener) => listener.close(ResetCode::Draining, words, patience).await,
                None => true,
            }
        };
        let over_quic = self.endpoint.close(ResetCode::Draining, words, patience);
        let (tcp_told, quic_told) = tokio::join!(over_tcp, over_quic);
        let ended = timeout(patience, self.tasks.wait()).await.is_ok();
        tcp_told && quic_told && ended
    }

    async fn arrive(self, inbound: Inbound, counted: Counted) {
        let peer = inbound.peer();
        let greeted = async {
            let carrier = inbound.handshake().await.map_err(|lost| lost.to_string())?;
            self.greeting(&carrier).await.map(|greeting| (carrier, greeting))
        };
        let (carrier, (mut send, recv, hello)) = match timeout(PATIENCE, greeted).await {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(problem)) => {
                self.gauges.refused.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%peer, %problem, "a peer did not get in");
                return;
            }
            Err(_) => {
                self.gauges.refused.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%peer, "a peer took too long to say who it is");
                return;
            }
        };
        let kept = hello.as_ref().ok().and_then(|hello| hello.session);
        let decided = match hello {
            Ok(hello) => {
                timeout(PATIENCE, self.gate.admit(hello, carrier.peer())).await.unwrap_or_else(|_| {
                    Err(Refusal::new(RefuseCode::Busy, "the controlplane is too busy to check the token"))
                })
            }
            Err(refusal) => Err(refusal),
        };
        match decided {
            Ok((welcome, admitted)) => {
                let id = kept.unwrap_or_else(SessionId::generate);
                let welcome = v1::Welcome {
                    session: id.to_wire(),
                    version: VERSION_MAX,
                    ping_interval_ms: u64::try_from(self.limits.ping_every.as_millis()).unwrap_or(u64::MAX),
                    reconnect_spread_ms: self.spread_ms(),
                    build: levers9_wire::BUILD.to_owned(),
                    ..welcome
                };
                if send.send(&frame(control_frame::Kind::Welcome(welcome))).await.is_err() {
                    return;
                }
                self.gauges.admitted.fetch_add(1, Ordering::Relaxed);
                drop(counted);
                self.start(id, carrier, send, recv, admitted);
            }
            Err(Refusal { code, text }) => {
                self.gauges.refused.fetch_add(1, Ordering::Relaxed);
                let refused = v1::Refused { code: code.into(), text: text.clone() };
                let parting = async {
                    send.send(&frame(control_frame::Kind::Refused(refused))).await?;
                    send.finish_and_deliver().await
                };
                let _read = timeout(PARTING, parting).await;
                carrier.close(ResetCode::Refused, &text);
            }
        }
    }

    fn spread_ms(&self) -> u64 {
        let sessions = self.gauges.sessions.load(Ordering::Relaxed);
        u64::try_from(reconnect_spread(sessions).as_millis()).unwrap_or(u64::MAX)
    }

    /// Reads the control stream's opening and the Hello on it.
    async fn greeting(
        &self,
        carrier: &Carrier,
    ) -> Result<(FrameSend, FrameRecv, Result<valid::Hello, Refusal>), String> {
        let wrong = |words: &str| {
            carrier.close(ResetCode::Protocol, words);
            words.to_owned()
        };
        let halves = carrier.accept().await.map_err(|lost| lost.to_string())?;
        let opened = read_open(unopened(halves)).await.map_err(|error| wrong(&error.to_string()))?;
        if !matches!(opened.kind, stream_open::Kind::Control(_)) {
            return Err(wrong("the first stream must be the control stream"));
        }
        let send = opened.stream.send.with_limit(limits::CONTROL);
        let mut recv = opened.stream.recv.with_limit(limits::CONTROL);
        let first = recv.expect::<v1::ControlFrame>().await.map_err(|error| wrong(&error.to_string()))?;
        let Some(control_frame::Kind::Hello(hello)) = first.kind else {
            return Err(wrong("the first control frame must be a hello"));
        };
        Ok((send, recv, check_hello(hello)))
    }

    fn start(
        &self,
        id: SessionId,
        carrier: Carrier,
        send: FrameSend,
        recv: FrameRecv,
        admitted: G::Admitted,
    ) {
        let (opened, incoming) = mpsc::channel(UNTAKEN);
        let (ended, ending) = watch::channel(None);
        let rtt_us = Arc::new(AtomicU64::new(0));
        let draining = Arc::new(AtomicBool::new(false));
        let handle = SessionHandle {
            id,
            carrier: carrier.clone(),
            rtt_us: Arc::clone(&rtt_us),
            draining: Arc::clone(&draining),
            ending,
        };
        let counted = Counted::new(&self.gauges, |g| &g.sessions);
        let ping_every = self.limits.ping_every;
        let keeper = Keeper { carrier: carrier.clone(), send, recv, rtt_us, draining, ping_every };
        self.tasks.spawn(async move {
            let _counted = counted;
            let acceptor =
                AbortOnDropHandle::new(tokio::spawn(accept_streams(keeper.carrier.clone(), opened)));
            let ending = keeper.run().await;
            drop(acceptor);
            ended.send_replace(Some(ending));
        });
        let gate = Arc::clone(&self.gate);
        let session = Session { handle, incoming };
        self.tasks.spawn_on(
            async move {
                gate.serve(session, admitted).await;
                carrier.close(ResetCode::Done, "");
            },
            &self.serve_on,
        );
    }
}

fn check_hello(hello: v1::Hello) -> Result<valid::Hello, Refusal> {
    let (low, high) = (hello.version_min, hello.version_max);
    if high < VERSION_MIN || low > VERSION_MAX {
        let build = levers9_wire::name::printable(&hello.build, 32);
        let text = format!(
            "levers9 {build} speaks protocol {low} to {high}, this controlplane ({}) speaks {VERSION_MIN} to {VERSION_MAX}",
            levers9_wire::BUILD
        );
        return Err(Refusal::new(RefuseCode::Version, text));
    }
    valid::Hello::try_from(hello).map_err(|invalid| Refusal::new(RefuseCode::BadHello, invalid.to_string()))
}

/// Keeps one session's control stream.
struct Keeper {
    carrier: Carrier,
    send: FrameSend,
    recv: FrameRecv,
    rtt_us: Arc<AtomicU64>,
    draining: Arc<AtomicBool>,
    ping_every: Duration,
}

impl Keeper {
    /// Runs until the session has ended, and says how.
    async fn run(mut self) -> Ending {
        let mut liveness = Liveness::new(Instant::now(), Some(self.ping_every), DEAD_AFTER);
        loop {
            let due = tokio::select! {
                biased;
                lost = self.carrier.closed() => return Ending::Lost(lost),
                sent = self.send.flush(), if self.send.has_pending() => match sent {
                    Ok(()) => continue,
                    Err(error) => return self.give_up(lost_by(error)),
                },
                frame = self.recv.next::<v1::ControlFrame>() => match frame {
                    Ok(Some(received)) => {
                        liveness.heard(Instant::now());
                        if let Some(ending) = self.control(received, &mut liveness) { return ending }
                        continue;
                    }
                    Ok(None) => return self.give_up(Lost::Protocol("the control stream ended".to_owned())),
                    Err(error) => return self.give_up(lost_by(error)),
                },
                () = sleep_until(liveness.next()) => liveness.poll(Instant::now()),
            };
            match due {
                Due::Nothing => {}
                Due::Ping(nonce) => {
                    let _too_large = self.send.queue(&frame(control_frame::Kind::Ping(v1::Ping { nonce })));
                }
                Due::Dead => return self.give_up(Lost::TimedOut),
            }
        }
    }

    fn give_up(&self, lost: Lost) -> Ending {
        self.carrier.close(ResetCode::Timeout, "given up");
        Ending::Lost(lost)
    }

    fn control(&mut self, received: v1::ControlFrame, liveness: &mut Liveness) -> Option<Ending> {
        match received.kind {
            Some(control_frame::Kind::Pong(v1::Pong { nonce })) => {
                if let Some(rtt) = liveness.pong(nonce, Instant::now()) {
                    let us = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX).max(1);
                    self.rtt_us.store(us, Ordering::Relaxed);
                }
                None
            }
            Some(control_frame::Kind::Ping(v1::Ping { nonce })) => {
                let _too_large = self.send.queue(&frame(control_frame::Kind::Pong(v1::Pong { nonce })));
                None
            }
            Some(control_frame::Kind::Drain(_)) => {
                self.draining.store(true, Ordering::Relaxed);
                None
            }
            Some(control_frame::Kind::Bye(bye)) => {
                Some(Ending::Bye(levers9_wire::name::printable(&bye.reason, 200)))
            }
            _ => {
                tracing::warn!(peer = %self.carrier.peer(), "a peer sent a control frame this build does not know");
                None
            }
        }
    }
}
