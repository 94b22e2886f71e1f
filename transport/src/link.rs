//! A dialer's session: one carrier to one controlplane, two while it moves,
//! made again for ever when it is lost. Owns the control stream of this side, answers
//! pings, gives out streams to open and those the peer opens. What is said on
//! them is the caller's.

mod awake;
mod riding;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use levers9_wire::v1::{self, ResetCode, control_frame, stream_open};
use levers9_wire::{SessionId, VERSION_MAX, VERSION_MIN, limits};
use rand::rngs::StdRng;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::carrier::{Carrier, Lost, RecvHalf, SendHalf, priority};
use crate::dial::{DialError, Dialer};
use crate::quic::Endpoint;
use crate::session::{Backoff, Moves, Outage, Task};
use crate::stream::{FrameRecv, FrameSend, Stream, StreamError, priority_of};
use awake::Awake;
use riding::{Riding, Said};

/// How long one attempt may take, greeting included.
pub const ATTEMPT: Duration = Duration::from_secs(10);
/// How long a greeting may take where there is another way.
const GREETING: Duration = Duration::from_secs(3);
/// Streams the peer has opened and nobody has taken yet.
const UNTAKEN: usize = 32;
/// A peer that has opened this many streams uses them, and may have more open
/// at once than one that sits idle.
const BUSY_AFTER: u32 = 16;
/// How many.
const BUSY_STREAMS: u32 = 256;
/// How long a look for a better carrier may take.
const PROBE: Duration = Duration::from_secs(5);

/// What a dialer says about itself, asked for at every attempt.
pub trait Introduce: Send + Sync + 'static {
    /// The Hello, without versions and session, which the link adds.
    fn hello(&self) -> v1::Hello;
    /// Told of every Welcome before anything else happens on the carrier.
    fn welcomed(&self, _welcome: &v1::Welcome) {}
}

/// How a link is doing.
#[derive(Debug, Clone)]
pub enum Status {
    /// An attempt is running, the first one or after a pause.
    Dialing,
    /// There is a session. While it lasts it may move: another `Online` with
    /// another carrier follows, and streams of the one before go on.
    Online {
        /// What it rides on; of what kind and why, the carrier says.
        carrier: Carrier,
        /// What the controlplane said.
        welcome: Arc<v1::Welcome>,
    },
    /// The last attempt or carrier failed; another comes.
    Waiting {
        /// Why, shared by all who look.
        why: Arc<DialError>,
        /// When.
        until: Instant,
    },
    /// The link was shut down.
    Closed,
}

/// Why no stream could be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// The link was shut down.
    #[error("the link is closed")]
    Closed,
    /// The stream broke at once.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// Makes endpoints to dial from.
pub type EndpointSource = Box<dyn FnMut() -> io::Result<Endpoint> + Send>;

/// A handle on the session; clones share it.
#[derive(Clone)]
pub struct Link {
    status: watch::Receiver<Status>,
    drain: CancellationToken,
    stop: CancellationToken,
    _task: Arc<AbortOnDropHandle<()>>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("status", &*self.status.borrow()).finish_non_exhaustive()
    }
}

/// A stream the peer opened.
#[derive(Debug)]
pub struct Opened {
    /// What it is.
    pub kind: stream_open::Kind,
    /// Both halves, after the StreamOpen.
    pub stream: Stream,
}

impl Link {
    /// Starts dialing. Streams the controlplane opens arrive on the receiver;
    /// one that nobody takes makes only its own opener wait.
    pub fn start(
        dialer: Dialer,
        endpoints: EndpointSource,
        introduce: Arc<dyn Introduce>,
        rng: StdRng,
    ) -> (Self, mpsc::Receiver<Box<Opened>>) {
        let (opened, incoming) = mpsc::channel(UNTAKEN);
        let (status, watched) = watch::channel(Status::Dialing);
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let runner = Runner {
            dialer,
            endpoints,
            endpoint: None,
            introduce,
            session: None,
            backoff: Backoff::default(),
            rng,
            status,
            opened,
            drain: drain.clone(),
            stop: stop.clone(),
            spread: Duration::ZERO,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(runner.run()));
        (Self { status: watched, drain, stop, _task: Arc::new(task) }, incoming)
    }

    /// How it is doing, to be watched.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Waits for a session. Cancel safe.
    ///
    /// # Errors
    /// When the link was shut down.
    pub async fn online(&self) -> Result<(Carrier, Arc<v1::Welcome>), OpenError> {
        // Most often there is one, and nothing to wait for.
        if let Status::Online { carrier, welcome } = &*self.status.borrow() {
            return Ok((carrier.clone(), Arc::clone(welcome)));
        }
        let mut status = self.status.clone();
        let seen = status.wait_for(|s| matches!(s, Status::Online { .. } | Status::Closed)).await;
        match seen.as_deref() {
            Ok(Status::Online { carrier, welcome }) => Ok((carrier.clone(), Arc::clone(welcome))),
            _ => Err(OpenError::Closed),
        }
    }

    /// Opens a stream on the current carrier, waiting for one. Cancel safe: a
    /// stream opened by a dropped call is reset.
    ///
    /// # Errors
    /// When the link was shut down or the carrier broke.
    pub async fn open(&self, kind: stream_open::Kind) -> Result<Stream, OpenError> {
        let (carrier, _) = self.online().await?;
        Ok(open_on(&carrier, kind).await?)
    }

    /// Tells the controlplane that this side takes nothing more, now and on
    /// every carrier to come. What runs goes on.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Says goodbye and waits, at most `patience`, until the controlplane has
    /// heard it.
    pub async fn shutdown(&self, patience: Duration) {
        self.stop.cancel();
        let mut status = self.status.clone();
        let _late = timeout(patience, status.wait_for(|s| matches!(s, Status::Closed))).await;
    }
}

/// Opens a stream of a kind on a carrier and sends its StreamOpen.
///
/// # Errors
/// When the header is too large or the carrier is gone.
pub async fn open_on(carrier: &Carrier, kind: stream_open::Kind) -> Result<Stream, StreamError> {
    let (send, recv) = carrier.open().await?;
    let priority = priority_of(&kind);
    let mut stream = Stream::new(send, recv);
    if priority != priority::INTERACTIVE {
        stream.send.set_priority(priority);
    }
    let mut header = stream.send.with_limit(limits::STREAM_OPEN);
    header.send(&v1::StreamOpen { kind: Some(kind) }).await?;
    stream.send = header.with_limit(limits::FRAME);
    Ok(stream)
}

/// Reads what a peer's new stream is.
///
/// # Errors
/// When it does not say so in time, or says what this build does not know; the
/// stream is then reset with the reason and the session is unharmed.
pub async fn read_open(mut stream: Stream) -> Result<Opened, StreamError> {
    match timeout(ATTEMPT, stream.recv.expect::<v1::StreamOpen>()).await {
        Ok(read) => begin(stream, read),
        Err(_) => {
            stream.abort(ResetCode::Timeout);
            Err(StreamError::Reset(levers9_wire::Reset::local(ResetCode::Timeout)))
        }
    }
}

/// A new stream before it has said what it is.
pub(crate) fn unopened((send, recv): (SendHalf, RecvHalf)) -> Stream {
    let mut stream = Stream::new(send, recv);
    stream.recv = stream.recv.with_limit(limits::STREAM_OPEN);
    stream
}

/// What a stream is, once its first frame was read.
fn begin(mut stream: Stream, read: Result<v1::StreamOpen, StreamError>) -> Result<Opened, StreamError> {
    match read {
        Err(error) => {
            stream.abort(ResetCode::Protocol);
            Err(error)
        }
        Ok(v1::StreamOpen { kind: None }) => {
            tracing::warn!("the peer opened a stream of a kind this build does not know");
            stream.abort(ResetCode::Unsupported);
            Err(StreamError::Reset(levers9_wire::Reset::local(ResetCode::Unsupported)))
        }
        Ok(v1::StreamOpen { kind: Some(kind) }) => {
            let priority = priority_of(&kind);
            if priority != priority::INTERACTIVE {
                stream.send.set_priority(priority);
            }
            stream.recv = stream.recv.with_limit(limits::FRAME);
            Ok(Opened { kind, stream })
        }
    }
}

struct Runner {
    dialer: Dialer,
    endpoints: EndpointSource,
    endpoint: Option<Endpoint>,
    introduce: Arc<dyn Introduce>,
    session: Option<SessionId>,
    backoff: Backoff,
    rng: StdRng,
    status: watch::Sender<Status>,
    opened: mpsc::Sender<Box<Opened>>,
    drain: CancellationToken,
    stop: CancellationToken,
    spread: Duration,
}

/// What is said on a new carrier.
struct Greeting<'a> {
    carrier: &'a Carrier,
    introduce: &'a dyn Introduce,
    session: Option<SessionId>,
    target: String,
    /// The session's carrier works, and this one is to join it.
    moving: bool,
}

impl Greeting<'_> {
    async fn greet(self) -> Result<Greeted, DialError> {
        let broken = |error: StreamError| match error {
            StreamError::Lost(lost) => DialError::Lost(self.target.clone(), lost),
            other => DialError::NotLevers9(self.target.clone(), other.to_string()),
        };
        let control = stream_open::Kind::Control(v1::ControlOpen {});
        let stream = open_on(self.carrier, control).await.map_err(&broken)?;
        let (mut send, mut recv) =
            (stream.send.with_limit(limits::CONTROL), stream.recv.with_limit(limits::CONTROL));
        let hello = v1::Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            build: levers9_wire::BUILD.to_owned(),
            session: self.session.map(SessionId::to_wire).unwrap_or_default(),
            moving: self.moving,
            ..self.introduce.hello()
        };
        send.send(&frame(control_frame::Kind::Hello(hello))).await.map_err(&broken)?;
        loop {
            match recv.expect::<v1::ControlFrame>().await.map_err(&broken)?.kind {
                Some(control_frame::Kind::Welcome(welcome)) => {
                    let welcome = Arc::new(welcome);
                    return Ok(Greeted { carrier: self.carrier.clone(), send, recv, welcome });
                }
                Some(control_frame::Kind::Refused(refused)) => {
                    let code = refused.code();
                    let text = levers9_wire::name::printable(&refused.text, 500);
                    return Err(DialError::Refused { code, text });
                }
                // Anything else before a Welcome, known or not, means nothing yet.
                _ => {}
            }
        }
    }
}

/// The control stream of this side once welcomed.
struct Greeted {
    carrier: Carrier,
    send: FrameSend,
    recv: FrameRecv,
    welcome: Arc<v1::Welcome>,
}

impl Runner {
    async fn run(mut self) {
        let stop = self.stop.clone();
        let mut said: Option<String> = None;
        loop {
            let attempt = stop.run_until_cancelled(self.attempt()).await;
            let (outage, why) = match attempt {
                None => break,
                Some(Ok(greeted)) => {
                    said = None;
                    let Some(lost) = self.serve(greeted).await else { break };
                    let why = DialError::Lost(self.dialer.target(), lost);
                    (Outage::Lost { spread: self.spread }, why)
                }
                Some(Err(error)) if error.retry() == levers9_wire::RetryClass::Fatal => {
                    (Outage::Refused, error)
                }
                Some(Err(error)) => {
                    // A fresh socket next time: this one may be on a network that is gone.
                    self.endpoint = None;
                    (Outage::Failed, error)
                }
            };
            let pause = self.backoff.pause(outage, &mut self.rng);
            let words = why.to_string();
            if said.as_ref() != Some(&words) {
                tracing::warn!(problem = %words, "no session with the controlplane; trying again until there is one");
                said = Some(words);
            }
            let until = Instant::now() + pause;
            self.status.send_replace(Status::Waiting { why: Arc::new(why), until });
            if stop.run_until_cancelled(sleep_until(until)).await.is_none() {
                break;
            }
            self.status.send_replace(Status::Dialing);
        }
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close(ResetCode::Done, "", Duration::from_millis(500)).await;
        }
        self.status.send_replace(Status::Closed);
    }

    /// Dials and greets.
    async fn attempt(&mut self) -> Result<Greeted, DialError> {
        let endpoint = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => {
                let fresh = (self.endpoints)().map_err(|e| DialError::Socket(e.to_string()))?;
                self.endpoint.insert(fresh).clone()
            }
        };
        let addresses = self.dialer.addresses().await?;
        let deadline = Instant::now() + ATTEMPT;
        let mut race = self.dialer.race(&endpoint, addresses);
        let result = loop {
            let Ok(Some(carrier)) = timeout_at(deadline, race.next()).await else {
                break Err(race.verdict().await);
            };
            // Where there is another way, one that is mute is not waited for.
            let patience = if race.has_more() { GREETING } else { ATTEMPT };
            let greeting = Greeting {
                carrier: &carrier,
                introduce: &*self.introduce,
                session: self.session,
                target: self.dialer.target(),
                moving: false,
            };
            match timeout(patience, greeting.greet()).await {
                Ok(Ok(greeted)) => break Ok(greeted),
                Ok(Err(error @ DialError::Refused { .. })) => {
                    carrier.close(ResetCode::Done, "");
                    break Err(error);
                }
                Ok(Err(error)) => {
                    carrier.close(ResetCode::Done, "");
                    race.in_vain(carrier.kind(), error);
                }
                Err(_) => {
                    carrier.close(ResetCode::Timeout, "no welcome");
                    race.in_vain(carrier.kind(), DialError::NoWelcome(self.dialer.target()));
                }
            }
        };
        let failed = race.failed();
        drop(race);
        self.dialer.tried(failed);
        if let Ok(Greeted { welcome, .. }) = &result {
            self.took(welcome);
        }
        result
    }

    /// Serves a session until its last carrier is lost (`Some`) or the link is
    /// shut down (`None`). On a fallback it looks for something better, and
    /// moves there when it finds it.
    async fn serve(&mut self, greeted: Greeted) -> Option<Lost> {
        let current = self.ride(greeted);
        let moves = Moves::new(Instant::now(), self.may_move(&current), &mut self.rng);
        let mut awake = Awake::new(self.dialer.is_real().then(|| current.carrier.peer()));
        let mut on = Carriers { current, left: None, moves, probe: None };
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    on.leave();
                    on.current.say_goodbye().await;
                    return None;
                }
                said = on.current.keep(&self.drain) => if let Some(lost) = self.heard(&mut on, said) {
                    return Some(lost);
                },
                said = keep_left(&mut on.left, &self.drain) => self.heard_of_left(&mut on, &said),
                probed = result_of(&mut on.probe) => self.probed(&mut on, probed),
                () = sleep_until(on.moves.next().unwrap_or_else(far)) => self.do_due(&mut on),
                change = awake.changed() => {
                    on.current.ask(change);
                    on.left.iter_mut().for_each(|left| left.ask(change));
                    on.moves.network_changed(Instant::now());
                }
            }
        }
    }

    /// Something of the carrier in use; why it is lost, when that ends the session.
    fn heard(&mut self, on: &mut Carriers, said: Said) -> Option<Lost> {
        match said {
            // Whoever pings us is alive and serves us: the outage is over.
            Said::Pinged => self.backoff.proved(),
            // What was left may be better after all; the other side sees the same.
            Said::Quiet if on.left.is_some() => self.swap(on),
            Said::Quiet if self.session.is_some() && on.moves.suspected() => {
                on.probe = Some(self.probe(self.dialer.clone()));
            }
            Said::Quiet => {}
            Said::Lost(lost) => {
                on.current.close();
                let Some(back) = on.left.take() else { return Some(lost) };
                tracing::info!(%lost, kind = %back.carrier.kind(), "back on the carrier the session had left");
                on.current = back;
                self.show(&on.current);
                on.moves.fell_back(Instant::now(), self.may_move(&on.current), &mut self.rng);
            }
        }
        None
    }

    /// Something of the carrier that was left.
    fn heard_of_left(&mut self, on: &mut Carriers, said: &Said) {
        let better = on.left.as_ref().is_some_and(|left| left.carrier.kind() < on.current.carrier.kind());
        match said {
            // One that was quiet and is the better one is there again.
            Said::Pinged if better => self.swap(on),
            Said::Pinged | Said::Quiet => {}
            Said::Lost(_) => {
                on.leave();
                on.moves.gone();
            }
        }
    }

    /// Goes back to the carrier that was left, and leaves the other.
    fn swap(&mut self, on: &mut Carriers) {
        if let Some(left) = &mut on.left {
            std::mem::swap(left, &mut on.current);
            self.show(&on.current);
            on.moves.moved(Instant::now(), self.may_move(&on.current), &mut self.rng);
        }
    }

    /// Moves to what was found, if anything was.
    fn probed(&mut self, on: &mut Carriers, probed: Result<(Endpoint, Greeted), DialError>) {
        on.probe = None;
        match probed {
            Ok((endpoint, greeted)) => {
                self.endpoint = Some(endpoint);
                self.took(&greeted.welcome);
                greeted.carrier.permit_streams(on.current.carrier.permitted());
                let older = std::mem::replace(&mut on.current, self.ride(greeted));
                let kind = on.current.carrier.kind();
                tracing::info!(%kind, why = %on.current.carrier.why(), "the session moves to another carrier");
                // One that was left before had its time.
                on.leave();
                on.left = Some(older);
                on.moves.moved(Instant::now(), self.may_move(&on.current), &mut self.rng);
            }
            Err(problem) => {
                tracing::debug!(%problem, "no better carrier");
                on.moves.failed(Instant::now(), &mut self.rng);
            }
        }
    }

    fn do_due(&mut self, on: &mut Carriers) {
        match on.moves.poll(Instant::now()) {
            Task::Nothing => {}
            Task::Probe => on.probe = Some(self.probe(self.dialer.over_quic_only())),
            Task::Look => {
                on.moves.looked(Instant::now(), on.left.as_ref().is_some_and(Riding::is_used));
            }
            Task::Leave => on.leave(),
        }
    }

    /// Whether a session on this carrier may look for a better one.
    fn may_move(&self, current: &Riding) -> bool {
        current.carrier.kind().is_fallback() && self.session.is_some()
    }

    fn ride(&self, greeted: Greeted) -> Riding {
        let watched = self.dialer.has_fallback() && !greeted.carrier.kind().is_fallback();
        let riding = Riding::new(greeted, self.opened.clone(), watched);
        self.show(&riding);
        riding
    }

    fn show(&self, riding: &Riding) {
        let (carrier, welcome) = (riding.carrier.clone(), Arc::clone(&riding.welcome));
        self.status.send_replace(Status::Online { carrier, welcome });
    }

    fn took(&mut self, welcome: &v1::Welcome) {
        self.session = SessionId::from_wire(&welcome.session).ok().flatten();
        self.spread = Duration::from_millis(welcome.reconnect_spread_ms);
        self.introduce.welcomed(welcome);
    }

    /// Looks for another carrier, and asks to move the session there.
    fn probe(&mut self, mut dialer: Dialer) -> Probing {
        let endpoint = (self.endpoints)().map_err(|e| DialError::Socket(e.to_string()));
        let introduce = Arc::clone(&self.introduce);
        let session = self.session;
        AbortOnDropHandle::new(tokio::spawn(async move {
            let endpoint = endpoint?;
            let carrier = dialer.dial(&endpoint, PROBE).await?;
            let target = dialer.target();
            let greeting =
                Greeting { carrier: &carrier, introduce: &*introduce, session, target, moving: true };
            let greeted = timeout(GREETING, greeting.greet()).await;
            let greeted = greeted.unwrap_or_else(|_| Err(DialError::NoWelcome(dialer.target())));
            match greeted {
                Ok(greeted) => Ok((endpoint, greeted)),
                Err(error) => {
                    carrier.close(ResetCode::Done, "");
                    Err(error)
                }
            }
        }))
    }
}

/// What a session rides on: the carrier in use, the one that was left, and the
/// look for another.
struct Carriers {
    current: Riding,
    left: Option<Riding>,
    moves: Moves,
    probe: Option<Probing>,
}

impl Carriers {
    /// Closes what was left.
    fn leave(&mut self) {
        self.left.take().iter().for_each(Riding::close);
    }
}

/// A look for a better carrier.
type Probing = AbortOnDropHandle<Result<(Endpoint, Greeted), DialError>>;

/// What became of it; for ever when there is none. Cancel safe.
async fn result_of(probe: &mut Option<Probing>) -> Result<(Endpoint, Greeted), DialError> {
    match probe {
        Some(probe) => probe.await.unwrap_or_else(|error| Err(DialError::Socket(error.to_string()))),
        None => std::future::pending().await,
    }
}

/// What is said on the carrier that was left; for ever when there is none. Cancel safe.
async fn keep_left(left: &mut Option<Riding>, drain: &CancellationToken) -> Said {
    match left {
        Some(left) => left.keep(drain).await,
        None => std::future::pending().await,
    }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

pub(crate) fn frame(kind: control_frame::Kind) -> v1::ControlFrame {
    v1::ControlFrame { kind: Some(kind) }
}

pub(crate) fn lost_by(error: StreamError) -> Lost {
    match error {
        StreamError::Lost(lost) => lost,
        StreamError::Reset(reset) => Lost::Closed(reset, String::new()),
        other => Lost::Protocol(other.to_string()),
    }
}

/// Hands on the streams a peer opens until the carrier is gone. Most have said
/// what they are when they arrive; one that has not gets a task of its own, so
/// that it holds up no other.
pub(crate) async fn accept_streams(carrier: Carrier, opened: mpsc::Sender<Box<Opened>>) {
    let mut opening = tokio::task::JoinSet::new();
    let guard = carrier.guard();
    tokio::pin!(guard);
    let mut accepted_so_far = 0u32;
    loop {
        tokio::select! {
            () = &mut guard => return,
            accepted = carrier.accept() => {
                let Ok(halves) = accepted else { return };
                accepted_so_far = accepted_so_far.saturating_add(1);
                if accepted_so_far == BUSY_AFTER {
                    carrier.permit_streams(BUSY_STREAMS);
                }
                let mut stream = unopened(halves);
                // Cancel safe: what was read of an unfinished frame stays in the stream.
                match stream.recv.expect::<v1::StreamOpen>().now_or_never() {
                    Some(read) => {
                        if let Some(waiting) = hand_on(begin(stream, read), &opened) {
                            let opened = opened.clone();
                            opening.spawn(async move { let _nobody = opened.send(waiting).await; });
                        }
                    }
                    None => {
                        let opened = opened.clone();
                        opening.spawn(async move {
                            if let Some(stream) = reported(read_open(stream).await) {
                                let _nobody = opened.send(stream).await;
                            }
                        });
                    }
                }
            }
            Some(_) = opening.join_next() => {}
        }
    }
}

/// Puts an opened stream in line, or gives it back when the line is full.
fn hand_on(read: Result<Opened, StreamError>, line: &mpsc::Sender<Box<Opened>>) -> Option<Box<Opened>> {
    match line.try_send(reported(read)?) {
        Err(mpsc::error::TrySendError::Full(waiting)) => Some(waiting),
        Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => None,
    }
}

fn reported(read: Result<Opened, StreamError>) -> Option<Box<Opened>> {
    read.inspect_err(|error| tracing::debug!(%error, "a stream was not opened")).ok().map(Box::new)
}
