//! A dialer's session: one carrier to one controlplane, two while it moves,
//! made again for ever when it is lost. Owns the control stream of this side, answers
//! pings, gives out streams to open and those the peer opens. What is said on
//! them is the caller's.

mod awake;
mod riding;
mod run;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use levers9_wire::limits;
use levers9_wire::v1::{self, ResetCode, control_frame, stream_open};
use rand::rngs::StdRng;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::carrier::{Carrier, Lost, RecvHalf, SendHalf, priority};
use crate::dial::{DialError, Dialer};
use crate::quic::Endpoint;
use crate::stream::{Stream, StreamError, priority_of};
use run::{Now, Runner};

/// How long one attempt may take, greeting included.
pub const ATTEMPT: Duration = Duration::from_secs(10);
/// Streams the peer has opened and nobody has taken yet.
const UNTAKEN: usize = 32;
/// A peer that has opened this many streams uses them, and may have more open
/// at once than one that sits idle.
const BUSY_AFTER: u32 = 16;
/// How many.
const BUSY_STREAMS: u32 = 256;

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
        /// Another number whenever what runs on the carriers before had better
        /// be begun again: the session is new to its controlplane, or has fled
        /// from a carrier on which nothing came any more.
        home: u64,
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
            introduce,
            rng,
            status,
            opened,
            drain: drain.clone(),
            stop: stop.clone(),
            now: Now::default(),
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
        if let Status::Online { carrier, welcome, .. } = &*self.status.borrow() {
            return Ok((carrier.clone(), Arc::clone(welcome)));
        }
        let mut status = self.status.clone();
        let seen = status.wait_for(|s| matches!(s, Status::Online { .. } | Status::Closed)).await;
        match seen.as_deref() {
            Ok(Status::Online { carrier, welcome, .. }) => Ok((carrier.clone(), Arc::clone(welcome))),
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

    /// As [`Link::open`]; the second of both tells when the session is
    /// another's to serve, or has fled from the stream's carrier, and what the
    /// stream is for had better go on on another.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub async fn open_until_moved(&self, kind: stream_open::Kind) -> Result<(Stream, Moved), OpenError> {
        let mut status = self.status.clone();
        loop {
            let (carrier, home) = match &*status.borrow_and_update() {
                Status::Online { carrier, home, .. } => (Some(carrier.clone()), *home),
                Status::Closed => return Err(OpenError::Closed),
                Status::Dialing | Status::Waiting { .. } => (None, 0),
            };
            if let Some(carrier) = carrier {
                return Ok((open_on(&carrier, kind).await?, Moved { status, home }));
            }
            status.changed().await.map_err(|_| OpenError::Closed)?;
        }
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

/// Tells when what a stream is for is better done on another.
#[derive(Debug)]
pub struct Moved {
    status: watch::Receiver<Status>,
    home: u64,
}

impl Moved {
    fn is_another(&self, status: &Status) -> bool {
        matches!(status, Status::Online { home, .. } if *home != self.home)
    }

    /// Whether it is so already.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.is_another(&self.status.borrow())
    }

    /// Waits until the stream had better be left for another; it may go on for
    /// a while. Cancel safe.
    pub async fn wait(&mut self) {
        while !self.has_moved() {
            if self.status.changed().await.is_err() {
                // There will be none.
                std::future::pending::<()>().await;
            }
        }
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
