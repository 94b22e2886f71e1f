//! A small world to test in: a network, a controlplane's end whose gate lets
//! everybody in and answers streams, and links that dial it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use levers9_transport::accept::{Acceptor, Ending, Gate, Limits, Refusal, Session, SessionHandle};
use levers9_transport::address::{Address, Pin, Trust};
use levers9_transport::carrier::SendHalf;
use levers9_transport::dial::{DialError, Dialer, Resolve};
use levers9_transport::link::{Introduce, Link, OpenError, Opened, Status};
use levers9_transport::quic::{Endpoint, HalfError, Identity, Settings};
use levers9_transport::sim::{self, Conditions, Network};
use levers9_transport::stream::Stream;
use levers9_transport::tcp::{Fallback, Listener, Via};
use levers9_transport::tunnel::{Raw, relay};
use levers9_transport::{Carrier, CarrierKind};
use levers9_wire::v1::{self, RefuseCode, stream_open};
use levers9_wire::{InstanceId, SessionId, valid};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::pipes::Pipes;

pub(crate) const HOST: &str = "10.0.0.1";
pub(crate) const NAME: &str = "controlplane.test";

pub(crate) fn server_address() -> SocketAddr {
    format!("{HOST}:443").parse().unwrap()
}

pub(crate) fn client_address(number: u16) -> SocketAddr {
    format!("10.1.{}.{}:5000", number / 250, number % 250 + 1).parse().unwrap()
}

pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) settings: Settings,
    /// How often servers ping, if not as the settings say.
    pub(crate) ping_every: Option<Duration>,
    /// Where sessions are served, if not where the test runs.
    pub(crate) serve_on: Option<tokio::runtime::Handle>,
    pub(crate) identity: Identity,
    pub(crate) pin: Pin,
    seed: u64,
}

/// Lets in everybody but who says "refused", and serves:
/// `Log` echoes raw bytes, `Tunnel` is led back to its opener, `Follow` sends `since_line` bytes, or as many numbers `tail` ms apart, a `Call` gets one answer.
#[derive(Default)]
pub(crate) struct Open {
    /// When each peer was let in.
    pub(crate) arrivals: Mutex<Vec<Instant>>,
    pub(crate) sessions: Mutex<Vec<SessionId>>,
    pub(crate) endings: Mutex<Vec<Ending>>,
    pub(crate) serving: AtomicUsize,
    /// Streams to open to each peer.
    pub(crate) open: AtomicUsize,
    /// Everybody there was.
    pub(crate) handles: Mutex<Vec<SessionHandle>>,
    /// How often a carrier joined a session.
    pub(crate) joined: AtomicUsize,
    /// Streams are not served but held until they break.
    pub(crate) holds: AtomicBool,
    /// How those broke.
    pub(crate) broken: Mutex<Vec<Broken>>,
}

/// How a stream that was held broke.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) sending: HalfError,
    pub(crate) receiving: HalfError,
}

impl Gate for Open {
    type Admitted = ();

    async fn admit(&self, hello: valid::Hello, _peer: SocketAddr) -> Result<(v1::Welcome, ()), Refusal> {
        if hello.token.expose() == "refused" {
            return Err(Refusal::new(RefuseCode::TokenRevoked, "the token was revoked"));
        }
        self.arrivals.lock().unwrap().push(Instant::now());
        Ok((v1::Welcome::default(), ()))
    }

    async fn rejoin(
        &self,
        hello: &valid::Hello,
        session: &SessionHandle,
        _peer: SocketAddr,
    ) -> Result<Option<v1::Welcome>, Refusal> {
        match hello.token.expose() {
            "stranger" => return Ok(None),
            "revoked meanwhile" => session.close(v1::ResetCode::Revoked, "the token was revoked"),
            _ => {}
        }
        self.joined.fetch_add(1, Ordering::Relaxed);
        Ok(Some(v1::Welcome::default()))
    }

    async fn serve(self: Arc<Self>, mut session: Session, (): ()) {
        self.handles.lock().unwrap().push(session.handle().clone());
        self.sessions.lock().unwrap().push(session.handle().id());
        for _ in 0..self.open.load(Ordering::Relaxed) {
            let run = stream_open::Kind::Run(v1::RunOpen::default());
            if let Ok(mut stream) = session.handle().open(run).await {
                stream.send.finish();
            }
        }
        while let Some(opened) = session.next().await {
            let gate = Arc::clone(&self);
            let handle = session.handle().clone();
            tokio::spawn(async move {
                gate.serving.fetch_add(1, Ordering::Relaxed);
                let holds = gate.holds.load(Ordering::Relaxed);
                match opened.kind {
                    _ if holds => {
                        let broken = hold(opened.stream).await;
                        gate.broken.lock().unwrap().push(broken);
                    }
                    stream_open::Kind::Tunnel(open) => lead_back(&handle, open, opened.stream).await,
                    _ => serve_stream(opened).await,
                }
                gate.serving.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let ending = session.handle().ended().await;
        self.endings.lock().unwrap().push(ending);
    }
}

/// Reads a stream and waits until both of its halves are broken.
pub(crate) async fn hold(stream: Stream) -> Broken {
    let Raw { send, mut recv, .. } = Raw::of(stream).await.unwrap();
    let reading = async {
        loop {
            match recv.read(usize::MAX).await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("what is cut has not ended well"),
                Err(error) => break error,
            }
        }
    };
    let (sending, receiving) = tokio::join!(send.stopped(), reading);
    Broken { sending, receiving }
}

/// Moves a tunnel on to a stream that is opened to the same peer.
async fn lead_back(handle: &SessionHandle, open: v1::TunnelOpen, stream: Stream) {
    let Ok(onward) = handle.open(stream_open::Kind::Tunnel(open)).await else { return };
    let (Ok(near), Ok(far)) = (Raw::of(stream).await, Raw::of(onward).await) else { return };
    let _cut = relay(near, far).await;
}

async fn serve_stream(opened: Opened) {
    match opened.kind {
        stream_open::Kind::Log(_) => {
            let (Ok(mut send), (rest, mut recv)) =
                (opened.stream.send.into_raw().await, opened.stream.recv.into_raw())
            else {
                return;
            };
            if send.write_all(rest).await.is_err() {
                return;
            }
            while let Ok(Some(bytes)) = recv.read(64 * 1024).await {
                if send.write_all(bytes).await.is_err() {
                    return;
                }
            }
            send.finish();
        }
        stream_open::Kind::Follow(follow) => {
            let Ok(mut send) = opened.stream.send.into_raw().await else { return };
            if let Some(pause) = follow.tail {
                return send_numbers(&mut send, follow.since_line, Duration::from_millis(pause)).await;
            }
            let mut left = usize::try_from(follow.since_line).unwrap();
            let block = Bytes::from(vec![7u8; 64 * 1024]);
            while left > 0 {
                let piece = block.slice(..left.min(block.len()));
                left -= piece.len();
                if send.write_all(piece).await.is_err() {
                    return;
                }
            }
            send.finish();
            let _delivered = send.delivered().await;
        }
        stream_open::Kind::Call(_) => {
            let mut stream = opened.stream;
            let answer =
                v1::CallAnswer { answer: Some(v1::call_answer::Answer::WhoAmI(v1::WhoAmIAnswer::default())) };
            if stream.send.send(&answer).await.is_ok() {
                stream.send.finish();
            }
        }
        kind => read_frames(kind, opened.stream).await,
    }
}

/// Numbers from 0 on, with pauses between them.
async fn send_numbers(send: &mut SendHalf, count: u64, pause: Duration) {
    for number in 0..count {
        if send.write_all(number.to_be_bytes().to_vec().into()).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
    }
    send.finish();
    let _delivered = send.delivered().await;
}

/// Reads the frames that belong to a kind, until there are none or one is bad.
pub(crate) async fn read_frames(kind: stream_open::Kind, stream: Stream) {
    async fn all<M: prost::Message + Default>(mut stream: Stream) {
        while let Ok(Some(_)) = stream.recv.next::<M>().await {}
    }
    match kind {
        stream_open::Kind::Control(_) => all::<v1::ControlFrame>(stream).await,
        stream_open::Kind::NodeReport(_) => all::<v1::NodeReport>(stream).await,
        stream_open::Kind::Order(_) => all::<v1::OrderAnswer>(stream).await,
        stream_open::Kind::Run(_) => all::<v1::RunEvent>(stream).await,
        stream_open::Kind::Log(_) => all::<v1::LogBatch>(stream).await,
        stream_open::Kind::Call(_) => all::<v1::CallAnswer>(stream).await,
        stream_open::Kind::Follow(_) => all::<v1::FollowEvent>(stream).await,
        stream_open::Kind::Exec(_) => all::<v1::ExecInput>(stream).await,
        stream_open::Kind::Tunnel(_) => all::<v1::TunnelAnswer>(stream).await,
        stream_open::Kind::Door(_) => {}
        stream_open::Kind::Bench(_) => all::<v1::BenchAnswer>(stream).await,
    }
}

pub(crate) struct Me {
    pub(crate) token: String,
    pub(crate) instance: InstanceId,
}

impl Introduce for Me {
    fn hello(&self) -> v1::Hello {
        v1::Hello {
            role: v1::Role::Worker.into(),
            token: self.token.clone(),
            instance: self.instance.to_wire(),
            ..v1::Hello::default()
        }
    }
}

pub(crate) struct Server {
    pub(crate) gate: Arc<Open>,
    pub(crate) acceptor: Acceptor<Open>,
    pub(crate) endpoint: Endpoint,
    task: JoinHandle<()>,
}

impl Server {
    /// As kill -9 does: no goodbye, the address is gone.
    pub(crate) fn kill(self, world: &World) {
        world.network.unplug(server_address());
        self.task.abort();
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let (identity, pin) = sim::identity(&[HOST, NAME]);
        Self {
            network: Network::new(seed),
            settings: Settings::default(),
            ping_every: None,
            serve_on: None,
            identity,
            pin,
            seed,
        }
    }

    fn seed_for(&self, number: u16) -> [u8; 32] {
        let mut seed = [0u8; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..10].copy_from_slice(&number.to_le_bytes());
        seed
    }

    pub(crate) fn server(&self) -> Server {
        self.server_with(None)
    }

    /// A server that is reached over TCP too, and the way to it.
    pub(crate) fn server_over_tcp(&self) -> (Server, Arc<Pipes>) {
        let (listener, pipes) = self.listener();
        (self.server_with(Some(listener)), pipes)
    }

    fn server_with(&self, listener: Option<Listener>) -> Server {
        self.server_at(server_address(), listener)
    }

    /// A server that shows the same certificate at another address.
    pub(crate) fn server_at(&self, at: SocketAddr, listener: Option<Listener>) -> Server {
        self.server_on(self.accepting_at(at), listener)
    }

    /// An endpoint that accepts, for nobody yet.
    pub(crate) fn accepting_at(&self, at: SocketAddr) -> Endpoint {
        let socket = sim::as_socket(&self.network.socket(at));
        Endpoint::on(socket, &self.settings, Some(&self.identity), Some(self.seed_for(u16::MAX))).unwrap()
    }

    /// A listener without a server, and the way to it.
    pub(crate) fn listener(&self) -> (Listener, Arc<Pipes>) {
        let (given, connections) = mpsc::channel(16);
        let listener = Listener::given(connections, &self.settings, &self.identity).unwrap();
        (listener, Arc::new(Pipes::new(given)))
    }

    /// A server over what accepts already.
    pub(crate) fn server_on(&self, endpoint: Endpoint, listener: Option<Listener>) -> Server {
        let gate = Arc::new(Open::default());
        let ping_every = self.ping_every.unwrap_or(self.settings.ping_interval());
        let limits = Limits { ping_every, ..Limits::default() };
        let handle = self.serve_on.clone().unwrap_or_else(tokio::runtime::Handle::current);
        let acceptor = Acceptor::new(endpoint.clone(), Arc::clone(&gate), limits, handle);
        let acceptor = match listener {
            Some(listener) => acceptor.with_tcp(listener),
            None => acceptor,
        };
        let runner = acceptor.clone();
        Server { gate, acceptor, endpoint, task: tokio::spawn(async move { runner.run().await }) }
    }

    pub(crate) fn address(&self) -> Address {
        Address { host: HOST.to_owned(), port: 443, trust: Trust::Pins(vec![self.pin]) }
    }

    pub(crate) fn endpoint(&self, number: u16) -> Endpoint {
        let socket = sim::as_socket(&self.network.socket(client_address(number)));
        Endpoint::on(socket, &self.settings, None, Some(self.seed_for(number))).unwrap()
    }

    pub(crate) fn link(&self, number: u16) -> (Link, mpsc::Receiver<Box<Opened>>) {
        self.link_as(number, "token", None)
    }

    pub(crate) fn link_as(
        &self,
        number: u16,
        token: &str,
        resolver: Option<(Arc<dyn Resolve>, &str)>,
    ) -> (Link, mpsc::Receiver<Box<Opened>>) {
        self.link_by(number, token, resolver, None, false)
    }

    /// A link that may have several carriers at once, with a resolver for a name.
    pub(crate) fn link_that_moves(
        &self,
        number: u16,
        resolver: Option<(Arc<dyn Resolve>, &str)>,
    ) -> (Link, mpsc::Receiver<Box<Opened>>) {
        self.link_by(number, "token", resolver, None, true)
    }

    /// A link that goes by TCP where UDP does not get through.
    pub(crate) fn link_with_tcp(
        &self,
        number: u16,
        token: &str,
        pipes: &Arc<Pipes>,
    ) -> (Link, mpsc::Receiver<Box<Opened>>) {
        let via: Arc<dyn Via> = Arc::<Pipes>::clone(pipes);
        self.link_by(number, token, None, Some(Fallback::default().with_via(via)), true)
    }

    /// A link of a process that can open no UDP socket.
    pub(crate) fn link_without_udp(
        &self,
        number: u16,
        pipes: &Arc<Pipes>,
    ) -> (Link, mpsc::Receiver<Box<Opened>>) {
        let via: Arc<dyn Via> = Arc::<Pipes>::clone(pipes);
        let dialer = Dialer::new(self.address()).without_probe();
        let dialer = dialer.with_fallback(Fallback::default().with_via(via));
        let mut rng = StdRng::from_seed(self.seed_for(number));
        let me = Me { token: "token".to_owned(), instance: InstanceId::new(0, &mut rng) };
        let settings = self.settings.clone();
        let refused = || std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let source = move || Endpoint::without_socket(&settings, &refused());
        Link::start(dialer, Box::new(source), Arc::new(me), rng)
    }

    pub(crate) fn link_by(
        &self,
        number: u16,
        token: &str,
        resolver: Option<(Arc<dyn Resolve>, &str)>,
        fallback: Option<Fallback>,
        // A link that looks for other carriers has several sockets at once.
        several: bool,
    ) -> (Link, mpsc::Receiver<Box<Opened>>) {
        let mut address = self.address();
        let mut rng = StdRng::from_seed(self.seed_for(number));
        let me = Me { token: token.to_owned(), instance: InstanceId::new(0, &mut rng) };
        if let Some((_, name)) = &resolver {
            (*name).clone_into(&mut address.host);
        }
        let mut dialer = Dialer::new(address).without_probe();
        if let Some((resolver, _)) = resolver {
            dialer = dialer.with_resolver(resolver);
        }
        if let Some(fallback) = fallback {
            dialer = dialer.with_fallback(fallback);
        }
        let (network, settings, seed) = (self.network.clone(), self.settings.clone(), self.seed_for(number));
        let mut at = client_address(number);
        let source = move || {
            let socket = sim::as_socket(&network.socket(at));
            at.set_port(at.port() + u16::from(several));
            Endpoint::on(socket, &settings, None, Some(seed))
        };
        Link::start(dialer, Box::new(source), Arc::new(me), rng)
    }
}

/// Waits for a session, in virtual time.
pub(crate) async fn online(link: &Link, within: Duration) -> SessionId {
    let (_, welcome) = timeout(within, link.online()).await.expect("online in time").unwrap();
    SessionId::from_wire(&welcome.session).unwrap().unwrap()
}

/// Waits until this many peers have been let in since the server's start.
pub(crate) async fn arrived(server: &Server, count: usize, within: Duration) {
    let all_there = async {
        while server.gate.arrivals.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if timeout(within, all_there).await.is_err() {
        panic!("{} of {count} arrived within {within:?}", server.gate.arrivals.lock().unwrap().len());
    }
}

/// Waits until a link is not online.
pub(crate) async fn offline(link: &Link, within: Duration) {
    let mut status = link.status();
    let gone = status.wait_for(|s| !matches!(s, Status::Online { .. }));
    timeout(within, gone).await.expect("offline in time").unwrap();
}

/// A stream the server fills with `bytes` bytes.
pub(crate) async fn download(link: &Link, bytes: u64) -> Stream {
    let follow = v1::FollowOpen { since_line: bytes, ..v1::FollowOpen::default() };
    link.open(stream_open::Kind::Follow(follow)).await.unwrap()
}

/// Reads to the end and counts.
pub(crate) async fn drain(stream: Stream) -> Result<u64, HalfError> {
    let (first, mut recv) = stream.recv.into_raw();
    let mut count = first.len() as u64;
    while let Some(bytes) = recv.read(1 << 20).await? {
        count += bytes.len() as u64;
    }
    Ok(count)
}

/// Sends `bytes` through an echo stream and compares.
pub(crate) async fn echo(link: &Link, bytes: &[u8]) {
    let stream = link.open(stream_open::Kind::Log(v1::LogOpen::default())).await.unwrap();
    let mut send = stream.send.into_raw().await.unwrap();
    let (first, mut recv) = stream.recv.into_raw();
    let out = Bytes::copy_from_slice(bytes);
    let writing = async move {
        send.write_all(out).await.unwrap();
        send.finish();
        send.delivered().await.unwrap();
    };
    let reading = async move {
        let mut back = first.to_vec();
        while let Some(piece) = recv.read(1 << 20).await.unwrap() {
            back.extend_from_slice(&piece);
        }
        back
    };
    let ((), back) = tokio::join!(writing, reading);
    assert!(back == bytes, "{} bytes came back of {}", back.len(), bytes.len());
}

/// One call, answered.
pub(crate) async fn call(link: &Link) {
    try_call(link).await.unwrap();
}

/// One call, answered or broken.
pub(crate) async fn try_call(link: &Link) -> Result<(), OpenError> {
    let open = v1::CallOpen { request_id: vec![1; 16], request: None };
    let mut stream = link.open(stream_open::Kind::Call(open)).await?;
    stream.recv.expect::<v1::CallAnswer>().await?;
    Ok(())
}

pub(crate) fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A path on which everything vanishes.
pub(crate) fn hole() -> Conditions {
    Conditions { black_hole: true, ..Conditions::default() }
}

/// Why there is no session, once that is known.
pub(crate) async fn why(link: &Link, within: Duration) -> Arc<DialError> {
    let mut status = link.status();
    let waiting = status.wait_for(|s| matches!(s, Status::Waiting { .. }));
    match timeout(within, waiting).await.expect("known in time").unwrap().clone() {
        Status::Waiting { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

/// So many peers that have said nothing for a minute.
pub(crate) async fn idle_peers(world: &World, count: u16) -> Vec<(Link, mpsc::Receiver<Box<Opened>>)> {
    let mut peers = Vec::new();
    for number in 0..count {
        let (link, incoming) = world.link(number);
        online(&link, s(10)).await;
        peers.push((link, incoming));
    }
    tokio::time::sleep(s(60)).await;
    peers
}

/// The carrier a link uses now.
pub(crate) fn rides_on(link: &Link) -> Carrier {
    match &*link.status().borrow() {
        Status::Online { carrier, .. } => carrier.clone(),
        other => panic!("{other:?}"),
    }
}

/// Waits until the link rides on another kind of carrier; says how long it took.
pub(crate) async fn moves_to(link: &Link, kind: CarrierKind, within: Duration) -> Duration {
    let began = Instant::now();
    let mut status = link.status();
    let there = status.wait_for(|s| matches!(s, Status::Online { carrier, .. } if carrier.kind() == kind));
    timeout(within, there).await.expect("it moves in time").unwrap();
    began.elapsed()
}

/// The session that came last.
pub(crate) fn session_of(server: &Server) -> SessionHandle {
    server.gate.handles.lock().unwrap().last().expect("a session").clone()
}
