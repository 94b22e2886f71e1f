//! The accepting side: lets peers in, reads their Hello, has a [`Gate`] decide,
//! and keeps the control stream of every session. What a session does with its
//! streams is the gate's.

mod session;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use levers9_wire::v1::{self, RefuseCode, ResetCode, control_frame, stream_open};
use levers9_wire::{InstanceId, SessionId, VERSION_MAX, VERSION_MIN, limits, valid};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::carrier::{Carrier, Lost};
use crate::link::{frame, read_open, unopened};
use crate::quic::{self, Endpoint};
use crate::session::reconnect_spread;
use crate::stream::{FrameRecv, FrameSend};
use crate::tcp::{self, Listener};

use session::{Directory, Keeper, Live, Parting};
pub use session::{Ending, Session, SessionHandle};

/// How long a peer may take from its first packet to its Hello.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long peers may take to read a goodbye.
const FAREWELL: Duration = Duration::from_secs(2);
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
    /// Where else to dial at once, as host:port.
    pub alternatives: Vec<String>,
}

impl Refusal {
    /// A refusal with words.
    #[must_use]
    pub fn new(code: RefuseCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), alternatives: Vec::new() }
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

    /// Decides whether a carrier may join a session there is: the Hello names
    /// the session and is of the same instance. Whether it is of the same
    /// identity, and still welcome, is what remains to be checked. Where the
    /// Hello says that it moves, streams of both carriers come from the one
    /// [`Session`] then, and new ones go to the newer; where it does not, a new
    /// session begins under the same id. `None` treats it as any other, with
    /// an id of its own.
    fn rejoin(
        &self,
        hello: &valid::Hello,
        session: &SessionHandle,
        peer: SocketAddr,
    ) -> impl Future<Output = Result<Option<v1::Welcome>, Refusal>> + Send {
        let _undecided = (hello, session, peer);
        async { Ok(None) }
    }

    /// Serves one session until it returns; the session is then closed. When
    /// its last carrier is lost first, [`Session::next`] ends.
    fn serve(self: Arc<Self>, session: Session, admitted: Self::Admitted) -> impl Future<Output = ()> + Send;
}

/// What the accepting side counts.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Sessions there are.
    pub sessions: AtomicUsize,
    /// Handshakes and greetings under way.
    pub arriving: AtomicUsize,
    /// Carriers over TCP there are, through proxies or not.
    pub over_tcp: AtomicUsize,
    /// Carriers that joined a session which moved, since the start.
    pub joined: AtomicU64,
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

/// A carrier whose peer has said Hello, with its control stream.
struct Arrived {
    carrier: Carrier,
    send: FrameSend,
    recv: FrameRecv,
}

/// Accepts peers for one gate.
pub struct Acceptor<G> {
    endpoint: Endpoint,
    listener: Option<Listener>,
    by_address: Arriving,
    directory: Arc<Directory>,
    gate: Arc<G>,
    limits: Limits,
    gauges: Arc<Gauges>,
    serve_on: Handle,
    tasks: TaskTracker,
    keepers: TaskTracker,
    parting: Arc<watch::Sender<Parting>>,
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
            directory: Arc::clone(&self.directory),
            gate: Arc::clone(&self.gate),
            limits: self.limits,
            gauges: Arc::clone(&self.gauges),
            serve_on: self.serve_on.clone(),
            tasks: self.tasks.clone(),
            keepers: self.keepers.clone(),
            parting: Arc::clone(&self.parting),
            stop: self.stop.clone(),
        }
    }
}

impl<G: Gate> Acceptor<G> {
    /// An acceptor whose sessions are served on `serve_on`.
    pub fn new(endpoint: Endpoint, gate: Arc<G>, mut limits: Limits, serve_on: Handle) -> Self {
        // Whatever is asked for, a quiet session outlives the idle timeout.
        limits.ping_every = limits.ping_every.min(endpoint.settings().idle_timeout / 3);
        crate::session::warn_of_short_pings(limits.ping_every);
        Self {
            endpoint,
            listener: None,
            by_address: Arc::default(),
            directory: Arc::default(),
            gate,
            limits,
            gauges: Arc::default(),
            serve_on,
            tasks: TaskTracker::new(),
            keepers: TaskTracker::new(),
            parting: Arc::new(watch::Sender::new(Parting::No)),
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
            // Without an order: neither way in keeps the other from being looked at.
            tokio::select! {
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

    /// What is about to stop is no place to come to: who comes is sent on.
    fn sends_on(&self) -> Option<Refusal> {
        let alternatives = match &*self.parting.borrow() {
            Parting::No => return None,
            Parting::Drain { alternatives, .. } => alternatives.to_vec(),
            Parting::Bye { .. } => Vec::new(),
        };
        let refusal = Refusal::new(RefuseCode::Busy, "this controlplane is about to stop");
        Some(Refusal { alternatives, ..refusal })
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

    /// Takes no new peers and tells all to go elsewhere within a time: to `alternatives`, as host:port, or wherever the name they dialed
    /// leads. Their sessions go on until [`Acceptor::shutdown`].
    pub fn drain(&self, within: Duration, alternatives: Vec<String>) {
        let drain = Parting::Drain { until: Instant::now() + within, alternatives: alternatives.into() };
        self.parting.send_replace(drain);
    }

    /// How many sessions have not said yet that they take nothing more here:
    /// after [`Acceptor::drain`], those that have gone nowhere else.
    #[must_use]
    pub fn staying(&self) -> usize {
        self.directory.staying()
    }

    /// Stops taking peers, closes the sessions, and waits at most `patience`
    /// for their tasks. Peers are told when this side means to be back, if it
    /// does. Returns whether all ended in time.
    pub async fn shutdown(&self, words: &str, back_in: Duration, patience: Duration) -> bool {
        self.parting.send_replace(Parting::Bye { back_in, words: words.into() });
        self.keepers.close();
        let _late = timeout(FAREWELL.min(patience), self.keepers.wait()).await;
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
        let all = async { tokio::join!(self.tasks.wait(), self.keepers.wait()) };
        let ended = timeout(patience, all).await.is_ok();
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
        let hello = match hello {
            Ok(hello) => hello,
            Err(refusal) => return self.refuse(&carrier, &mut send, refusal).await,
        };
        if let Some(refusal) = self.sends_on() {
            return self.refuse(&carrier, &mut send, refusal).await;
        }
        let (instance, held) = (hello.instance, hello.session.and_then(|id| self.directory.get(id)));
        // The id of a session that goes on is its own process's, as the gate knows it.
        let mut kept = hello.session.filter(|_| held.is_none());
        if let Some(live) = held.filter(|live| live.is_of(instance)) {
            match self.ask(self.gate.rejoin(&hello, &SessionHandle::of(&live), carrier.peer())).await {
                Ok(Some(welcome)) if hello.moving => {
                    let welcome = v1::Welcome { joined: true, ..welcome };
                    let arrived = Arrived { carrier, send, recv };
                    if let Some(arrived) = self.welcome(live.id(), welcome, arrived).await {
                        drop(counted);
                        self.gauges.joined.fetch_add(1, Ordering::Relaxed);
                        self.keep(live, arrived);
                    }
                    return;
                }
                Ok(Some(_)) => kept = hello.session,
                Ok(None) => {}
                Err(refusal) => return self.refuse(&carrier, &mut send, refusal).await,
            }
        }
        match self.ask(self.gate.admit(hello, carrier.peer())).await {
            Ok((welcome, admitted)) => {
                let id = kept.unwrap_or_else(SessionId::generate);
                let arrived = Arrived { carrier, send, recv };
                if let Some(arrived) = self.welcome(id, welcome, arrived).await {
                    drop(counted);
                    self.gauges.admitted.fetch_add(1, Ordering::Relaxed);
                    self.start(id, instance, arrived, admitted);
                }
            }
            Err(refusal) => self.refuse(&carrier, &mut send, refusal).await,
        }
    }

    /// Has the gate decide, within the time there is.
    async fn ask<T>(&self, decision: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        timeout(PATIENCE, decision).await.unwrap_or_else(|_| {
            Err(Refusal::new(RefuseCode::Busy, "the controlplane is too busy to check the token"))
        })
    }

    /// Says Welcome; gives back the carrier when it could be said.
    async fn welcome(&self, id: SessionId, welcome: v1::Welcome, mut arrived: Arrived) -> Option<Arrived> {
        let welcome = v1::Welcome {
            session: id.to_wire(),
            version: VERSION_MAX,
            ping_interval_ms: u64::try_from(self.limits.ping_every.as_millis()).unwrap_or(u64::MAX),
            reconnect_spread_ms: self.spread_ms(),
            build: levers9_wire::BUILD.to_owned(),
            ..welcome
        };
        let said = timeout(PATIENCE, arrived.send.send(&frame(control_frame::Kind::Welcome(welcome)))).await;
        if !matches!(said, Ok(Ok(()))) {
            return None;
        }
        Some(arrived)
    }

    async fn refuse(&self, carrier: &Carrier, send: &mut FrameSend, refusal: Refusal) {
        let Refusal { code, text, alternatives } = refusal;
        self.gauges.refused.fetch_add(1, Ordering::Relaxed);
        let refused = v1::Refused { code: code.into(), text: text.clone(), alternatives };
        let parting = async {
            send.send(&frame(control_frame::Kind::Refused(refused))).await?;
            send.finish_and_deliver().await
        };
        let _read = timeout(PARTING, parting).await;
        carrier.close(ResetCode::Refused, &text);
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

    fn start(&self, id: SessionId, instance: InstanceId, arrived: Arrived, admitted: G::Admitted) {
        let (session, live) = session::begin(id, instance, arrived.carrier.clone());
        self.directory.put(&live);
        let (counted, directory) = (Counted::new(&self.gauges, |g| &g.sessions), Arc::clone(&self.directory));
        let ended = Arc::clone(&live);
        self.keep(live, arrived);
        self.tasks.spawn(async move {
            let _counted = counted;
            SessionHandle::of(&ended).ended().await;
            directory.take(&ended);
        });
        let (gate, handle) = (Arc::clone(&self.gate), session.handle().clone());
        self.tasks.spawn_on(
            async move {
                gate.serve(session, admitted).await;
                handle.close(ResetCode::Done, "");
            },
            &self.serve_on,
        );
    }

    /// Lets a carrier carry a session, the first or a newer one.
    fn keep(&self, live: Arc<Live>, arrived: Arrived) {
        let Arrived { carrier, send, recv } = arrived;
        let (every, parting) = (self.limits.ping_every, self.parting.subscribe());
        match Keeper::new(live, carrier.clone(), (send, recv), every, parting) {
            Some(keeper) => {
                let over_tcp = carrier.kind().is_fallback();
                let counted = over_tcp.then(|| Counted::new(&self.gauges, |g| &g.over_tcp));
                self.keepers.spawn(async move {
                    keeper.run().await;
                    drop(counted);
                });
            }
            None => carrier.close(ResetCode::CarrierLost, "the session ended meanwhile"),
        }
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
