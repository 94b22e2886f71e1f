//! One session with a controlplane, and calls over it. A call that lost its
//! connection is sent again with the same request id, so it takes effect once.

use std::sync::Arc;
use std::time::Duration;

use levers9_transport::dial::{DialError, Dialer};
use levers9_transport::link::{Introduce, Link, Moved, OpenError, Status};
use levers9_transport::quic::{Carrier, Endpoint, Lost, Settings};
use levers9_transport::tcp::Fallback;
use levers9_transport::{Stream, StreamError};
use levers9_wire::token::Secret;
use levers9_wire::v1::{self, ResetCode, call_answer, call_open, stream_open};
use levers9_wire::{InstanceId, RequestId, RetryClass, Side, name};
use rand::SeedableRng as _;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::error::Error;
use crate::settings::Target;

/// How long to try to reach a controlplane.
pub const CONNECT: Duration = Duration::from_secs(10);
/// How long after that to wait for the reason an attempt under way will give.
const EXPLAIN: Duration = Duration::from_secs(2);
/// How long an answer may take on a connection that works.
const ANSWER: Duration = Duration::from_secs(30);
/// How long to take for saying goodbye.
const GOODBYE: Duration = Duration::from_millis(250);
/// How long the last packet may take to leave this machine.
const LAST_PACKET: Duration = Duration::from_millis(1);

/// How long to wait for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// This long.
    Within(Duration),
    /// Until there is one, or the controlplane refuses.
    Forever,
}

/// A session; clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    link: Link,
    place: String,
}

/// A command that only listens asks this often whether the controlplane is
/// still the one it knows: a person is looking at the screen.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Runs what needs a session, on a runtime made for it.
///
/// # Errors
/// With the work's own, and when the system gives no runtime.
pub fn block_on<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = levers9_transport::runtime::current_thread()
        .map_err(|e| Error::failed("cannot start the runtime").because(e))?;
    let result = runtime.block_on(work);
    // A resolver that hangs must not hold the command up.
    runtime.shutdown_background();
    result
}

impl Client {
    /// Connects, within ten seconds.
    ///
    /// # Errors
    /// When the controlplane is not reached, is not believed, or refuses.
    pub async fn connect(target: &Target) -> Result<Self, Error> {
        Self::connect_within(target, CONNECT).await
    }

    /// Connects, within a time of one's own.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_within(target: &Target, patience: Duration) -> Result<Self, Error> {
        let fallback = Fallback::default().with_proxies(target.proxies.clone());
        let dialer = Dialer::new(target.address.clone()).with_fallback(fallback);
        let endpoints =
            Box::new(|| Endpoint::dialing(&Settings { keep_alive: KEEP_ALIVE, ..Settings::default() }));
        let me = Arc::new(Me { token: target.token.clone(), instance: InstanceId::generate() });
        // The controlplane opens no streams to a command.
        let (link, _none_come) = Link::start(dialer, endpoints, me, rand::rngs::StdRng::from_os_rng());
        let client = Self { link, place: target.address.authority() };
        client.session(Patience::Within(patience)).await?;
        Ok(client)
    }

    /// Waits for a session. Cancel safe.
    ///
    /// # Errors
    /// When there is none in time, or there will be none because the
    /// controlplane refuses.
    pub async fn session(&self, patience: Patience) -> Result<Arc<v1::Welcome>, Error> {
        let deadline = match patience {
            Patience::Within(patience) => Some(Instant::now() + patience),
            Patience::Forever => None,
        };
        let mut status = self.link.status();
        let mut last: Option<Arc<DialError>> = None;
        loop {
            match &*status.borrow_and_update() {
                Status::Online { welcome, carrier, .. } if carrier.lost().is_none() => {
                    return Ok(Arc::clone(welcome));
                }
                Status::Waiting { why, .. } if is_final(why) => return Err(self.not_reached(why)),
                Status::Waiting { why, .. } => last = Some(Arc::clone(why)),
                Status::Online { .. } | Status::Dialing | Status::Closed => {}
            }
            let changed = match (deadline, &last) {
                (None, _) => Ok(status.changed().await),
                (Some(deadline), Some(_)) => timeout_at(deadline, status.changed()).await,
                // An attempt that has the whole time to itself knows the reason a moment later.
                (Some(deadline), None) => timeout_at(deadline + EXPLAIN, status.changed()).await,
            };
            match (changed, last.as_deref()) {
                (Ok(Ok(())), _) => {}
                (Ok(Err(_)), _) => return Err(Error::failed("the session was closed")),
                (Err(_), Some(why)) => return Err(self.not_reached(why)),
                (Err(_), None) => {
                    let words = format!("no answer from UDP {} in time", self.place);
                    return Err(Error::unreachable("cannot reach the controlplane").because(words));
                }
            }
        }
    }

    fn not_reached(&self, why: &DialError) -> Error {
        match why {
            DialError::Lost(_, lost) if is_revoked(lost) => self.revoked(),
            why if why.is_unreachable() => {
                Error::unreachable("cannot reach the controlplane").because(why.to_string())
            }
            _ => {
                Error::failed(format!("the controlplane at {} refuses", self.place)).because(why.to_string())
            }
        }
        .hint_if_none(why.hint())
    }

    fn revoked(&self) -> Error {
        Error::failed(format!("the controlplane at {} has ended the session", self.place))
            .because("the token was revoked")
            .hint("log in again: levers9 login")
    }

    /// Makes a call, and again with the same id when the connection is lost.
    /// Cancel safe in that nothing is left open; the call may have been made.
    ///
    /// # Errors
    /// When the controlplane says no, or cannot be reached.
    pub async fn call(
        &self,
        request: call_open::Request,
        patience: Patience,
    ) -> Result<call_answer::Answer, Error> {
        let open = v1::CallOpen { request_id: RequestId::generate().to_wire(), request: Some(request) };
        let mut pause = Pause::default();
        let mut tries_left = 8;
        loop {
            self.session(patience).await?;
            let answered = timeout(ANSWER, self.ask(open.clone())).await;
            let error = match answered {
                Err(_) => self.no_answer(),
                Ok(Err(error)) => match again(&error) {
                    true => self.broken(&error),
                    false => return Err(self.broken(&error)),
                },
                Ok(Ok(call_answer::Answer::Failure(failure))) => match failure.code() {
                    v1::FailureCode::Unavailable => refused(failure),
                    _ => return Err(refused(failure)),
                },
                Ok(Ok(answer)) => return Ok(answer),
            };
            tries_left -= 1;
            if patience != Patience::Forever && tries_left == 0 {
                return Err(error);
            }
            pause.wait().await;
        }
    }

    async fn ask(&self, open: v1::CallOpen) -> Result<call_answer::Answer, StreamError> {
        let mut stream = self.open(stream_open::Kind::Call(open)).await?;
        stream.send.finish();
        let answer: v1::CallAnswer = stream.recv.expect().await?;
        // An answer of a kind this build does not know says as little as none.
        answer.answer.ok_or(StreamError::Reset(levers9_wire::Reset::local(ResetCode::Unsupported)))
    }

    /// Opens a stream on the session there is.
    ///
    /// # Errors
    /// When the session is gone.
    pub async fn open(&self, kind: stream_open::Kind) -> Result<Stream, StreamError> {
        self.link.open(kind).await.map_err(stream_error)
    }

    /// As [`Client::open`], and when what it is for is better done on another.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn open_until_moved(&self, kind: stream_open::Kind) -> Result<(Stream, Moved), StreamError> {
        self.link.open_until_moved(kind).await.map_err(stream_error)
    }

    /// Waits until the session there is now is lost, and says why; `None` when
    /// there is none now. One that moves to another carrier is not lost.
    /// Cancel safe.
    pub async fn lost(&self) -> Option<Lost> {
        let mut status = self.link.status();
        let is_online = |status: &Status| matches!(status, Status::Online { .. });
        if !is_online(&status.borrow_and_update()) {
            return None;
        }
        match status.wait_for(|status| !is_online(status)).await.as_deref() {
            Ok(Status::Waiting { why, .. }) => match &**why {
                DialError::Lost(_, lost) => Some(lost.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    /// Why the session was lost, in words. Where this side has closed it, the
    /// reason is the one it had for that.
    #[must_use]
    pub fn why_lost(&self, lost: &Lost) -> String {
        match (lost, &*self.link.status().borrow()) {
            (Lost::Closed(reset, _), Status::Waiting { why, .. }) if reset.side == Side::Local => {
                match &**why {
                    DialError::Lost(_, lost) => lost.to_string(),
                    why => why.to_string(),
                }
            }
            _ => lost.to_string(),
        }
    }

    /// What the session rides on now, when there is one.
    #[must_use]
    pub fn carrier(&self) -> Option<Carrier> {
        match &*self.link.status().borrow() {
            Status::Online { carrier, .. } => Some(carrier.clone()),
            _ => None,
        }
    }

    /// A stream's failure in words.
    #[must_use]
    pub fn broken(&self, error: &StreamError) -> Error {
        let what = format!("the controlplane at {} has ended the request", self.place);
        match error {
            StreamError::Reset(reset) if reset.code == ResetCode::Revoked => self.revoked(),
            StreamError::Lost(lost) if is_revoked(lost) => self.revoked(),
            error => Error::failed(what).because(error.to_string()),
        }
    }

    fn no_answer(&self) -> Error {
        Error::failed(format!("the controlplane at {} does not answer", self.place))
            .because(format!("nothing came in {} s", ANSWER.as_secs()))
            .hint("what was asked for may still happen: look before asking again")
    }

    /// The host and port, for messages.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Says goodbye, and waits until the controlplane has heard it rather than
    /// until QUIC has forgotten the connection.
    pub async fn close(self) {
        let carrier = match &*self.link.status().borrow() {
            Status::Online { carrier, .. } => carrier.clone(),
            _ => return,
        };
        tokio::select! {
            () = self.link.shutdown(GOODBYE) => {}
            _closed = carrier.closed() => sleep(LAST_PACKET).await,
        }
    }
}

fn stream_error(error: OpenError) -> StreamError {
    match error {
        OpenError::Stream(error) => error,
        OpenError::Closed => StreamError::Closed,
    }
}

/// Whether the same thing on a new stream can work.
#[must_use]
pub fn again(error: &StreamError) -> bool {
    match error {
        StreamError::Lost(lost) => !is_revoked(lost),
        error => error.retry() != RetryClass::Fatal,
    }
}

/// A refusal of the controlplane in its own words.
#[must_use]
pub fn refused(failure: v1::Failure) -> Error {
    let text =
        if failure.text.is_empty() { "the controlplane refuses without a reason" } else { &failure.text };
    let code = failure.code();
    Error::failed(name::printable(text, 2000)).hint(failure.hint).of_code(code)
}

/// An answer of another kind than the question.
#[must_use]
pub fn misanswered() -> Error {
    Error::failed("the controlplane has answered another question than the one asked").hint("upgrade levers9")
}

fn is_final(why: &DialError) -> bool {
    match why {
        DialError::Resolve { .. } | DialError::Trust(_) | DialError::NotLevers9(..) => true,
        DialError::Lost(_, lost) => is_revoked(lost),
        why => why.retry() == RetryClass::Fatal,
    }
}

fn is_revoked(lost: &Lost) -> bool {
    matches!(lost, Lost::Closed(reset, _) if reset.code == ResetCode::Revoked)
}

/// A growing pause between tries.
#[derive(Debug)]
pub struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(Duration::from_millis(50))
    }
}

impl Pause {
    /// Waits, twice as long each time, at most two seconds. Cancel safe.
    pub async fn wait(&mut self) {
        let now = self.0;
        self.0 = (now * 2).min(Duration::from_secs(2));
        sleep(now).await;
    }
}

/// What the command says about itself.
struct Me {
    token: Secret,
    instance: InstanceId,
}

impl Introduce for Me {
    fn hello(&self) -> v1::Hello {
        v1::Hello {
            role: v1::Role::Cli.into(),
            token: self.token.expose().to_owned(),
            instance: self.instance.to_wire(),
            ..v1::Hello::default()
        }
    }
}
