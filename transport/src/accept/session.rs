//! One session of the accepting side: what it rides on, how it ends, and the
//! control stream of each of its carriers. It has one carrier, and two while
//! it moves; it ends with the last. Who may join it is decided elsewhere.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use levers9_wire::v1::{self, ResetCode, control_frame, stream_open};
use levers9_wire::{InstanceId, SessionId};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::carrier::{Carrier, Lost};
use crate::link::{Opened, accept_streams, frame, lost_by, open_on};
use crate::session::{DEAD_AFTER, Due, Liveness, Quiet, Silence};
use crate::stream::{FrameRecv, FrameSend, Stream, StreamError};

/// Streams a peer has opened and its session has not taken yet.
const UNTAKEN: usize = 16;
/// Carriers a session may have at once.
const CARRIERS: usize = 2;

/// How long a peer may take to hear a goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// What peers are told when this side is about to stop.
#[derive(Debug, Clone)]
pub(super) enum Parting {
    /// Nothing: it goes on.
    No,
    /// To go elsewhere.
    Drain {
        /// When it closes.
        until: Instant,
        /// Where else to dial.
        alternatives: Arc<[String]>,
    },
    /// Goodbye.
    Bye {
        /// When it means to be back; zero when it does not.
        back_in: Duration,
        /// Why.
        words: Arc<str>,
    },
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The peer said goodbye.
    Bye(String),
    /// The last carrier was lost, or closed by this side.
    Lost(Lost),
}

/// One peer that was let in.
#[derive(Debug)]
pub struct Session {
    handle: SessionHandle,
    incoming: mpsc::Receiver<Box<Opened>>,
}

impl Session {
    /// The next stream the peer opens, on whichever carrier, or `None` once
    /// the last is gone. Cancel safe.
    pub async fn next(&mut self) -> Option<Opened> {
        // The line ends with the carriers: whoever fills it goes first.
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
    live: Arc<Live>,
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.live.id)
            .field("carrier", &self.carrier())
            .finish_non_exhaustive()
    }
}

impl SessionHandle {
    pub(super) fn of(live: &Arc<Live>) -> Self {
        Self { live: Arc::clone(live) }
    }

    /// Which session.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.live.id
    }

    /// Whether both are the same session, whatever it rides on. Two of one id
    /// are not when one came in the place of the other.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.live, &other.live)
    }

    /// What it rides on: of the carriers that work and have not gone quiet the
    /// best, and of two alike the newer; the last one there was once none works.
    #[must_use]
    pub fn carrier(&self) -> Carrier {
        let riding = self.live.lock();
        let working = riding.carriers.iter().rev().filter(|one| one.carrier.lost().is_none());
        // The first of several that are as good, which is the newest.
        let best = working.min_by_key(|one| (one.quiet.load(Ordering::Relaxed), one.carrier.kind()));
        best.map_or(&riding.newest, |one| &one.carrier).clone()
    }

    /// All it rides on, the newest last.
    #[must_use]
    pub fn carriers(&self) -> Vec<Carrier> {
        self.live.lock().carriers.iter().map(|one| one.carrier.clone()).collect()
    }

    /// The round-trip time of the last ping, once there was one.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        match self.live.rtt_us.load(Ordering::Relaxed) {
            0 => None,
            us => Some(Duration::from_micros(us)),
        }
    }

    /// Whether the peer has said that it takes nothing more.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.live.draining.load(Ordering::Relaxed)
    }

    /// Opens a stream to the peer, on its best carrier. Cancel safe.
    ///
    /// # Errors
    /// When the carrier is gone.
    pub async fn open(&self, kind: stream_open::Kind) -> Result<Stream, StreamError> {
        open_on(&self.carrier(), kind).await
    }

    /// Ends the session now, with a code and words. A carrier that was about
    /// to join it is too late.
    pub fn close(&self, why: ResetCode, words: &str) {
        let mut riding = self.live.lock();
        riding.line = None;
        riding.carriers.iter().for_each(|one| one.carrier.close(why, words));
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.live.ending.borrow().is_some()
    }

    /// Waits for the end. Cancel safe.
    pub async fn ended(&self) -> Ending {
        let mut ending = self.live.ending.subscribe();
        match ending.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(ending)) => ending.clone(),
            // Not to be: this handle keeps the sender.
            _ => Ending::Lost(Lost::TimedOut),
        }
    }
}

/// A session and what it rides on.
pub(super) struct Live {
    id: SessionId,
    instance: InstanceId,
    riding: Mutex<Riding>,
    rtt_us: AtomicU64,
    draining: AtomicBool,
    ending: watch::Sender<Option<Ending>>,
}

/// One carrier, and whether nothing comes on it where something should.
struct Carrying {
    carrier: Carrier,
    quiet: Arc<AtomicBool>,
}

struct Riding {
    /// The newest last.
    carriers: Vec<Carrying>,
    newest: Carrier,
    /// Where streams go that the peer opens; none once it has ended or is to
    /// end, and then no carrier joins any more.
    line: Option<mpsc::Sender<Box<Opened>>>,
}

/// A session over its first carrier, which does not carry it yet.
pub(super) fn begin(id: SessionId, instance: InstanceId, carrier: Carrier) -> (Session, Arc<Live>) {
    let (line, incoming) = mpsc::channel(UNTAKEN);
    let live = Arc::new(Live {
        id,
        instance,
        riding: Mutex::new(Riding { carriers: Vec::new(), newest: carrier, line: Some(line) }),
        rtt_us: AtomicU64::new(0),
        draining: AtomicBool::new(false),
        ending: watch::Sender::new(None),
    });
    (Session { handle: SessionHandle::of(&live), incoming }, live)
}

impl Live {
    fn lock(&self) -> MutexGuard<'_, Riding> {
        self.riding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    pub(super) fn is_of(&self, instance: InstanceId) -> bool {
        self.instance == instance
    }

    /// One more carrier; where to put the streams of it, unless the session
    /// has ended. The oldest goes when there are too many.
    fn join(&self, carrier: &Carrier) -> Option<(mpsc::Sender<Box<Opened>>, Arc<AtomicBool>)> {
        let mut riding = self.lock();
        let line = riding.line.clone()?;
        let quiet = Arc::new(AtomicBool::new(false));
        carrier.permit_streams(riding.newest.permitted());
        riding.carriers.push(Carrying { carrier: carrier.clone(), quiet: Arc::clone(&quiet) });
        riding.newest = carrier.clone();
        if riding.carriers.len() > CARRIERS {
            riding.carriers[0].carrier.close(ResetCode::Done, "the session moved on");
        }
        Some((line, quiet))
    }

    /// The peer hears nothing on the others.
    fn fled_to(&self, carrier: &Carrier) {
        let riding = self.lock();
        let others = riding.carriers.iter().filter(|one| one.carrier.number() != carrier.number());
        others.for_each(|one| one.quiet.store(true, Ordering::Relaxed));
    }

    /// A carrier is gone, and the session with the last, or with a goodbye.
    fn leave(&self, gone: &Carrier, ending: Ending) {
        let mut riding = self.lock();
        riding.carriers.retain(|one| one.carrier.number() != gone.number());
        let over = riding.carriers.is_empty() || matches!(ending, Ending::Bye(_));
        if over {
            riding.line = None;
            riding.carriers.iter().for_each(|one| one.carrier.close(ResetCode::Done, ""));
            drop(riding);
            self.ending.send_if_modified(|known| {
                let first = known.is_none();
                if first {
                    *known = Some(ending);
                }
                first
            });
        }
    }
}

/// The sessions there are, for carriers that join one.
#[derive(Default)]
pub(super) struct Directory(Mutex<HashMap<SessionId, Weak<Live>>>);

impl Directory {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Weak<Live>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, live: &Arc<Live>) {
        self.lock().insert(live.id, Arc::downgrade(live));
    }

    pub(super) fn get(&self, id: SessionId) -> Option<Arc<Live>> {
        self.lock().get(&id).and_then(Weak::upgrade).filter(|live| live.ending.borrow().is_none())
    }

    /// How many have not said that they take nothing more.
    pub(super) fn staying(&self) -> usize {
        let stays =
            |live: &Arc<Live>| live.ending.borrow().is_none() && !live.draining.load(Ordering::Relaxed);
        self.lock().values().filter_map(Weak::upgrade).filter(stays).count()
    }

    /// Takes a session out, unless a newer one has its place.
    pub(super) fn take(&self, live: &Arc<Live>) {
        let mut sessions = self.lock();
        if sessions.get(&live.id).is_some_and(|kept| std::ptr::eq(kept.as_ptr(), Arc::as_ptr(live))) {
            sessions.remove(&live.id);
        }
    }
}

/// Keeps the control stream of one carrier. Dropped, the carrier carries the
/// session no more.
pub(super) struct Keeper {
    live: Arc<Live>,
    carrier: Carrier,
    send: FrameSend,
    recv: FrameRecv,
    ping_every: Duration,
    parting: watch::Receiver<Parting>,
    quiet: Arc<AtomicBool>,
    ending: Option<Ending>,
    acceptor: AbortOnDropHandle<()>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Nothing more is taken in by the time the session is said to have ended.
        self.acceptor.abort();
        let unsaid = || Ending::Lost(self.carrier.lost().unwrap_or(Lost::TimedOut));
        let ending = self.ending.take().unwrap_or_else(unsaid);
        self.live.leave(&self.carrier, ending);
    }
}

impl Keeper {
    /// Lets a carrier carry a session and takes in the streams of it, unless
    /// that has ended.
    pub(super) fn new(
        live: Arc<Live>,
        carrier: Carrier,
        (send, recv): (FrameSend, FrameRecv),
        ping_every: Duration,
        mut parting: watch::Receiver<Parting>,
    ) -> Option<Self> {
        let (line, quiet) = live.join(&carrier)?;
        let acceptor = AbortOnDropHandle::new(tokio::spawn(accept_streams(carrier.clone(), line)));
        // What was said before this one came is said to it too.
        parting.mark_changed();
        Some(Self { live, carrier, send, recv, ping_every, parting, quiet, ending: None, acceptor })
    }

    /// Runs until the carrier is gone.
    pub(super) async fn run(mut self) {
        let ending = self.keep().await;
        self.ending = Some(ending);
    }

    /// Until the carrier is gone; says how.
    async fn keep(&mut self) -> Ending {
        let mut liveness = Liveness::new(Instant::now(), Some(self.ping_every), DEAD_AFTER);
        // Its answers come as often as it is asked.
        let mut silence = Silence::new(Instant::now(), self.ping_every);
        loop {
            let due = tokio::select! {
                biased;
                lost = self.carrier.closed() => return Ending::Lost(lost),
                Ok(()) = self.parting.changed() => {
                    let parting = self.parting.borrow_and_update().clone();
                    match parting {
                        Parting::No => {}
                        Parting::Drain { until, alternatives } => self.say_drain(until, &alternatives),
                        Parting::Bye { back_in, words } => return self.say_goodbye(back_in, &words).await,
                    }
                    continue;
                }
                sent = self.send.flush(), if self.send.has_pending() => match sent {
                    Ok(()) => continue,
                    Err(error) => return self.give_up(lost_by(error)),
                },
                // A peer that reads no answers is not heard either.
                frame = self.recv.next::<v1::ControlFrame>(), if !self.send.is_backed_up() => match frame {
                    Ok(Some(received)) => {
                        liveness.heard(Instant::now());
                        silence.heard(Instant::now());
                        self.quiet.store(false, Ordering::Relaxed);
                        if let Some(ending) = self.control(received, &mut liveness) { return ending }
                        continue;
                    }
                    Ok(None) => return self.give_up(Lost::Protocol("the control stream ended".to_owned())),
                    Err(error) => return self.give_up(lost_by(error)),
                },
                () = sleep_until(silence.next()) => match silence.poll(Instant::now()) {
                    Quiet::No => continue,
                    // No nonce that liveness would take for its own.
                    Quiet::Ask => Due::Ping(0),
                    Quiet::Yes => {
                        self.quiet.store(true, Ordering::Relaxed);
                        continue;
                    }
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

    fn say_drain(&mut self, until: Instant, alternatives: &[String]) {
        let left = until.saturating_duration_since(Instant::now()).as_millis();
        let drain = v1::Drain {
            // Nothing left is still no leave to stay.
            deadline_ms: u64::try_from(left).unwrap_or(u64::MAX).max(1),
            alternatives: alternatives.to_vec(),
        };
        let _too_large = self.send.queue(&frame(control_frame::Kind::Drain(drain)));
    }

    /// Says goodbye, and closes once the peer has heard it or takes too long.
    async fn say_goodbye(&mut self, back_in: Duration, words: &str) -> Ending {
        let back_in_ms = u64::try_from(back_in.as_millis()).unwrap_or(u64::MAX);
        let bye = frame(control_frame::Kind::Bye(v1::Bye { reason: words.to_owned(), back_in_ms }));
        let said = async {
            self.send.send(&bye).await?;
            self.send.finish_and_deliver().await
        };
        tokio::select! {
            _heard = timeout(GOODBYE, said) => {}
            _lost = self.carrier.closed() => {}
        }
        self.carrier.close(ResetCode::Draining, words);
        Ending::Lost(self.carrier.lost().unwrap_or(Lost::TimedOut))
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
                    self.live.rtt_us.store(us, Ordering::Relaxed);
                }
                None
            }
            Some(control_frame::Kind::Ping(v1::Ping { nonce })) => {
                let _too_large = self.send.queue(&frame(control_frame::Kind::Pong(v1::Pong { nonce })));
                None
            }
            Some(control_frame::Kind::Drain(_)) => {
                self.live.draining.store(true, Ordering::Relaxed);
                None
            }
            Some(control_frame::Kind::Fled(_)) => {
                self.live.fled_to(&self.carrier);
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
