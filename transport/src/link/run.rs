//! What keeps a link's session: dials and greets until there is one, serves
//! it, and moves it from one carrier to another, or to another controlplane.
//! When to move is decided by [`Moves`]; streams are nothing of its.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use levers9_wire::v1::{self, RefuseCode, ResetCode, control_frame, stream_open};
use levers9_wire::{RetryClass, SessionId, VERSION_MAX, VERSION_MIN, limits};
use rand::rngs::StdRng;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::awake::Awake;
use super::riding::{Riding, Said};
use super::{ATTEMPT, EndpointSource, Introduce, Opened, Status, frame, open_on};
use crate::carrier::{Carrier, Lost};
use crate::dial::{DialError, Dialer};
use crate::quic::Endpoint;
use crate::session::{Backoff, Moves, Outage, Task, warn_of_short_pings};
use crate::stream::{FrameRecv, FrameSend, StreamError};

/// How long a greeting may take where there is another way.
const GREETING: Duration = Duration::from_secs(3);
/// How long a look for another carrier may take.
const PROBE: Duration = Duration::from_secs(5);
/// Carriers kept beside the one in use and the one left last.
const MAX_OTHERS: usize = 2;
/// No controlplane may hold a session that it has sent away for longer.
const LONGEST_DRAIN: Duration = Duration::from_secs(3600);

/// The task of one link.
pub(super) struct Runner {
    pub(super) dialer: Dialer,
    pub(super) endpoints: EndpointSource,
    pub(super) introduce: Arc<dyn Introduce>,
    pub(super) rng: StdRng,
    pub(super) status: watch::Sender<Status>,
    pub(super) opened: mpsc::Sender<Box<Opened>>,
    pub(super) drain: CancellationToken,
    pub(super) stop: CancellationToken,
    pub(super) now: Now,
}

/// What a link knows of its session.
#[derive(Default)]
pub(super) struct Now {
    endpoint: Option<Endpoint>,
    session: Option<SessionId>,
    /// How many sessions there have been.
    home: u64,
    spread: Duration,
    /// When the controlplane that said goodbye means to be back.
    back_in: Option<Duration>,
    backoff: Backoff,
    /// How often pings come, as far as that was said.
    pings: Option<Duration>,
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
                    check_version(&welcome)?;
                    let welcome = Arc::new(welcome);
                    return Ok(Greeted { carrier: self.carrier.clone(), send, recv, welcome });
                }
                Some(control_frame::Kind::Refused(refused)) => {
                    let code = refused.code();
                    let mut text = levers9_wire::name::printable(&refused.text, 500);
                    if text.is_empty() {
                        "the controlplane refuses this peer and does not say why".clone_into(&mut text);
                    }
                    return Err(DialError::Refused { code, text, alternatives: refused.alternatives });
                }
                // Anything else before a Welcome, known or not, means nothing yet.
                _ => {}
            }
        }
    }
}

/// A controlplane is to choose one of the versions it was offered.
fn check_version(welcome: &v1::Welcome) -> Result<(), DialError> {
    let version = welcome.version;
    if (VERSION_MIN..=VERSION_MAX).contains(&version) {
        return Ok(());
    }
    let build = levers9_wire::name::printable(&welcome.build, 32);
    let text = format!(
        "the controlplane ({build}) speaks protocol {version}, this levers9 ({}) speaks {VERSION_MIN} to {VERSION_MAX}",
        levers9_wire::BUILD
    );
    Err(DialError::Refused { code: RefuseCode::Version, text, alternatives: Vec::new() })
}

/// The control stream of this side once welcomed.
pub(super) struct Greeted {
    pub(super) carrier: Carrier,
    pub(super) send: FrameSend,
    pub(super) recv: FrameRecv,
    pub(super) welcome: Arc<v1::Welcome>,
}

impl Runner {
    pub(super) async fn run(mut self) {
        let stop = self.stop.clone();
        let mut said: Option<String> = None;
        loop {
            let attempt = stop.run_until_cancelled(self.attempt()).await;
            let (outage, why) = match attempt {
                None => break,
                Some(Ok(greeted)) => {
                    said = None;
                    let Some(lost) = self.serve(greeted).await else { break };
                    let (why, spread) = (DialError::Lost(self.dialer.target(), lost), self.now.spread);
                    match self.now.back_in.take() {
                        Some(back_in) => (Outage::Told { back_in, spread }, why),
                        None => (Outage::Lost { spread }, why),
                    }
                }
                Some(Err(error)) if error.retry() == RetryClass::Fatal => (Outage::Refused, error),
                Some(Err(error)) => {
                    // A fresh socket next time: this one may be on a network that is gone.
                    self.now.endpoint = None;
                    (Outage::Failed, error)
                }
            };
            let pause = self.now.backoff.pause(outage, &mut self.rng);
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
        if let Some(endpoint) = self.now.endpoint.take() {
            endpoint.close(ResetCode::Done, "", Duration::from_millis(500)).await;
        }
        self.status.send_replace(Status::Closed);
    }

    /// Dials and greets, and dials again at once where it is sent on.
    async fn attempt(&mut self) -> Result<Greeted, DialError> {
        let endpoint = match &self.now.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => {
                let fresh = (self.endpoints)().map_err(|e| DialError::Socket(e.to_string()))?;
                self.now.endpoint.insert(fresh).clone()
            }
        };
        let (mut result, failed) =
            greet_any(&self.dialer, &endpoint, &*self.introduce, self.now.session).await;
        if let Some(failed) = failed {
            self.dialer.tried(failed);
        }
        if let Err(DialError::Refused { alternatives, .. }) = &result
            && !alternatives.is_empty()
        {
            let elsewhere = self.dialer.elsewhere(alternatives, None);
            (result, _) = greet_any(&elsewhere, &endpoint, &*self.introduce, self.now.session).await;
        }
        if let Ok(Greeted { welcome, carrier, .. }) = &result {
            self.now.home += 1;
            self.dialer.went_by(Some(carrier.kind()), Instant::now());
            self.took(welcome);
        }
        result
    }

    /// Serves a session until its last carrier is lost (`Some`) or the link is
    /// shut down (`None`). On a fallback it looks for something better, and
    /// moves there when it finds it; away from a controlplane that stops it
    /// moves anywhere.
    async fn serve(&mut self, greeted: Greeted) -> Option<Lost> {
        let current = self.ride(greeted);
        let moves = Moves::new(Instant::now(), self.may_move(&current), &mut self.rng);
        let mut awake = Awake::new(self.dialer.is_real().then(|| current.carrier.peer()));
        let mut on = Carriers {
            current,
            left: None,
            others: Vec::new(),
            moves,
            probe: None,
            alternatives: Vec::new(),
            flees: false,
        };
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    on.leave();
                    on.others.iter().for_each(Riding::close);
                    on.current.say_goodbye().await;
                    return None;
                }
                said = on.current.keep(&self.drain) => if let Some(lost) = self.heard(&mut on, said) {
                    return Some(lost);
                },
                said = keep_left(&mut on.left, &self.drain) => self.heard_of_left(&mut on, &said),
                (index, said) = keep_any(&mut on.others, &self.drain) => if matches!(said, Said::Lost(_)) {
                    on.others.swap_remove(index).close();
                },
                probed = result_of(&mut on.probe) => self.probed(&mut on, probed),
                () = sleep_until(on.moves.next().unwrap_or_else(far)) => self.do_due(&mut on),
                change = awake.changed() => {
                    on.current.ask(change);
                    on.left.iter_mut().for_each(|left| left.ask(change));
                    on.moves.network_changed(Instant::now());
                    self.dialer.went_by(None, Instant::now());
                }
            }
        }
    }

    /// Something of the carrier in use; why it is lost, when that ends the session.
    fn heard(&mut self, on: &mut Carriers, said: Said) -> Option<Lost> {
        match said {
            // Whoever pings us is alive and serves us: the outage is over.
            Said::Pinged => self.now.backoff.proved(),
            // What was left may be better after all; the other side sees the same.
            Said::Quiet if on.moves.may_return() => {
                // What could not go on there goes on here.
                self.now.home += 1;
                on.left.iter_mut().for_each(|left| left.home = self.now.home);
                self.swap(on);
                on.current.fled();
            }
            Said::Quiet if self.now.session.is_some() && on.moves.suspected() => {
                on.flees = true;
                on.probe = Some(self.probe(self.dialer.clone()));
            }
            Said::Quiet | Said::Answered => {}
            Said::Drain(drain) => {
                let within = Duration::from_millis(drain.deadline_ms).min(LONGEST_DRAIN);
                tracing::info!(
                    seconds = within.as_secs(),
                    "the controlplane stops; the session goes on elsewhere"
                );
                on.alternatives = drain.alternatives;
                on.moves.evicted(Instant::now(), within, self.now.spread, &mut self.rng);
            }
            Said::Bye(back_in) => self.now.back_in = Some(back_in),
            Said::Lost(lost) => {
                on.current.close();
                let Some(back) = on.left.take() else {
                    on.others.iter().for_each(Riding::close);
                    return Some(lost);
                };
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
            // One that was quiet and is the better one may be there again, one way at least.
            Said::Pinged if better && on.moves.may_return() => {
                on.left.iter_mut().for_each(Riding::ask_for_answer);
            }
            Said::Answered if better && on.moves.may_return() => self.swap(on),
            Said::Pinged | Said::Answered | Said::Quiet | Said::Drain(_) | Said::Bye(_) => {}
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
                self.now.endpoint = Some(endpoint);
                self.dialer.went_by(Some(greeted.carrier.kind()), Instant::now());
                let (joined, flees) = (greeted.welcome.joined, std::mem::take(&mut on.flees));
                // From a carrier that has gone quiet, what can be begun again is.
                self.now.home += u64::from(!joined || flees);
                self.took(&greeted.welcome);
                greeted.carrier.permit_streams(on.current.carrier.permitted());
                let mut older = std::mem::replace(&mut on.current, self.ride(greeted));
                match (joined, flees) {
                    (false, _) => older.moved_on(),
                    (true, true) => on.current.fled(),
                    (true, false) => {}
                }
                let kind = on.current.carrier.kind();
                tracing::info!(%kind, why = %on.current.carrier.why(), "the session moves to another carrier");
                // Its controlplane stops, and closes it when nothing runs on it any more.
                if let Some(before) = on.left.replace(older) {
                    on.others.push(before);
                    if on.others.len() > MAX_OTHERS {
                        on.others.remove(0).close();
                    }
                }
                on.moves.moved(Instant::now(), self.may_move(&on.current), &mut self.rng);
            }
            Err(problem) => {
                tracing::debug!(%problem, "no better carrier");
                on.flees = false;
                on.moves.failed(Instant::now(), &mut self.rng);
            }
        }
    }

    fn do_due(&mut self, on: &mut Carriers) {
        match on.moves.poll(Instant::now()) {
            Task::Nothing => {}
            Task::Probe => on.probe = Some(self.probe(self.dialer.over_quic_only())),
            Task::Elsewhere => {
                let elsewhere = self.dialer.elsewhere(&on.alternatives, Some(on.current.carrier.peer()));
                on.probe = Some(self.probe(elsewhere));
            }
            Task::Look => {
                on.moves.looked(Instant::now(), on.left.as_ref().is_some_and(Riding::is_used));
            }
            Task::Leave => on.leave(),
        }
    }

    /// Whether a session on this carrier may look for a better one.
    fn may_move(&self, current: &Riding) -> bool {
        current.carrier.kind().is_fallback() && self.now.session.is_some()
    }

    fn ride(&self, greeted: Greeted) -> Riding {
        let watched = self.dialer.has_fallback() && !greeted.carrier.kind().is_fallback();
        let riding = Riding::new(greeted, self.now.home, self.opened.clone(), watched);
        self.show(&riding);
        riding
    }

    fn show(&self, riding: &Riding) {
        let (carrier, welcome) = (riding.carrier.clone(), Arc::clone(&riding.welcome));
        self.status.send_replace(Status::Online { carrier, welcome, home: riding.home });
    }

    fn took(&mut self, welcome: &v1::Welcome) {
        self.now.session = SessionId::from_wire(&welcome.session).ok().flatten();
        self.now.spread = Duration::from_millis(welcome.reconnect_spread_ms);
        self.introduce.welcomed(welcome);
        let theirs = Duration::from_millis(welcome.ping_interval_ms);
        let own = self.now.endpoint.as_ref().map(|endpoint| endpoint.settings().ping_interval());
        let pings = own.map(|own| if theirs.is_zero() { own } else { own.min(theirs) });
        if pings != self.now.pings {
            pings.into_iter().for_each(warn_of_short_pings);
            self.now.pings = pings;
        }
    }

    /// Looks for another carrier, and asks to move the session there.
    fn probe(&mut self, mut dialer: Dialer) -> Probing {
        let endpoint = (self.endpoints)().map_err(|e| DialError::Socket(e.to_string()));
        let introduce = Arc::clone(&self.introduce);
        let session = self.now.session;
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

/// The first session that any address grants, and the addresses that did
/// not answer, once there were any.
async fn greet_any(
    dialer: &Dialer,
    endpoint: &Endpoint,
    introduce: &dyn Introduce,
    session: Option<SessionId>,
) -> (Result<Greeted, DialError>, Option<Vec<SocketAddr>>) {
    let addresses = match dialer.addresses().await {
        Ok(addresses) => addresses,
        Err(error) => return (Err(error), None),
    };
    let deadline = Instant::now() + ATTEMPT;
    let mut race = dialer.race(endpoint, addresses);
    let result = loop {
        let Ok(Some(carrier)) = timeout_at(deadline, race.next()).await else {
            break Err(race.verdict().await);
        };
        // Where there is another way, one that is mute is not waited for.
        let patience = if race.has_more() { GREETING } else { ATTEMPT };
        let greeting =
            Greeting { carrier: &carrier, introduce, session, target: dialer.target(), moving: false };
        match timeout(patience, greeting.greet()).await {
            Ok(Ok(greeted)) => break Ok(greeted),
            // Another address may be another controlplane, which is not as busy.
            Ok(Err(error)) if error.retry() == RetryClass::Fatal => {
                carrier.close(ResetCode::Done, "");
                break Err(error);
            }
            Ok(Err(error)) => {
                carrier.close(ResetCode::Done, "");
                race.in_vain(carrier.kind(), error);
            }
            Err(_) => {
                carrier.close(ResetCode::Timeout, "no welcome");
                race.in_vain(carrier.kind(), DialError::NoWelcome(dialer.target()));
            }
        }
    };
    (result, Some(race.failed()))
}

/// What a session rides on: the carrier in use, the one that was left, and the
/// look for another.
struct Carriers {
    current: Riding,
    left: Option<Riding>,
    /// Those left before at a controlplane that stops.
    others: Vec<Riding>,
    moves: Moves,
    probe: Option<Probing>,
    /// Where else to dial, in the words of a controlplane that stops.
    alternatives: Vec<String>,
    /// The look is for something to flee to.
    flees: bool,
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

/// What is said on any of several, and on which; for ever when there is none.
/// Cancel safe.
async fn keep_any(others: &mut [Riding], drain: &CancellationToken) -> (usize, Said) {
    if others.is_empty() {
        return std::future::pending().await;
    }
    let keeping = others.iter_mut().map(|other| Box::pin(other.keep(drain)));
    let (said, index, _) = futures_util::future::select_all(keeping).await;
    (index, said)
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}
