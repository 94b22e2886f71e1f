//! One carrier of a dialer's session: its control stream, and who takes in the
//! streams that the peer opens on it. When to leave it is [`super`]'s.

use std::sync::Arc;
use std::time::Duration;

use levers9_wire::Reset;
use levers9_wire::v1::{self, ResetCode, control_frame};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::awake::Change;
use super::run::Greeted;
use super::{Opened, accept_streams, frame, lost_by};
use crate::carrier::{Carrier, Lost};
use crate::session::{DEAD_AFTER, Due, Liveness, Quiet, Silence, Unanswered};
use crate::stream::{FrameRecv, FrameSend};

/// Halves of the control stream.
const CONTROL: usize = 2;

/// How long a peer that has said goodbye may take to close.
const CLOSES: Duration = Duration::from_secs(1);

/// What is to be known of a carrier.
#[derive(Debug)]
pub(super) enum Said {
    /// The peer is there, and serves this session.
    Pinged,
    /// The peer has heard this side.
    Answered,
    /// Nothing comes where something should.
    Quiet,
    /// The controlplane stops, and says by when and where else to go.
    Drain(v1::Drain),
    /// It says goodbye, and when it means to be back.
    Bye(Duration),
    /// It is gone.
    Lost(Lost),
}

pub(super) struct Riding {
    pub(super) carrier: Carrier,
    pub(super) welcome: Arc<v1::Welcome>,
    /// Which session of the link's it carries.
    pub(super) home: u64,
    send: FrameSend,
    recv: FrameRecv,
    liveness: Liveness,
    /// Where there would be something else.
    silence: Option<Silence>,
    unanswered: Option<Unanswered>,
    /// The peer was told that nothing more is taken.
    told: bool,
    /// Until when it may close, once it has said goodbye, and its words.
    bye: Option<(Instant, String)>,
    _acceptor: AbortOnDropHandle<()>,
}

impl Riding {
    /// `watched`: whether it is to say when it has gone quiet.
    pub(super) fn new(greeted: Greeted, home: u64, opened: mpsc::Sender<Box<Opened>>, watched: bool) -> Self {
        let Greeted { carrier, send, recv, welcome } = greeted;
        let acceptor = AbortOnDropHandle::new(tokio::spawn(accept_streams(carrier.clone(), opened)));
        let liveness = Liveness::new(Instant::now(), None, DEAD_AFTER);
        let every = Duration::from_millis(welcome.ping_interval_ms);
        let silence =
            (watched && !every.is_zero() && every < DEAD_AFTER).then(|| Silence::new(Instant::now(), every));
        let unanswered = watched.then(|| Unanswered::new(Instant::now(), carrier.datagrams()));
        Self {
            carrier,
            welcome,
            home,
            send,
            recv,
            liveness,
            silence,
            unanswered,
            told: false,
            bye: None,
            _acceptor: acceptor,
        }
    }

    /// Keeps the control stream until there is something to be known. Cancel safe.
    pub(super) async fn keep(&mut self, drain: &CancellationToken) -> Said {
        loop {
            let due = tokio::select! {
                biased;
                lost = self.carrier.closed() => return Said::Lost(lost),
                () = drain.cancelled(), if !self.told => {
                    self.told = true;
                    self.say(control_frame::Kind::Drain(v1::Drain::default()));
                    continue;
                }
                sent = self.send.flush(), if self.send.has_pending() => match sent {
                    Ok(()) => continue,
                    Err(error) => return Said::Lost(lost_by(error)),
                },
                // A peer that reads no answers is not heard either.
                frame = self.recv.next::<v1::ControlFrame>(),
                    if self.bye.is_none() && !self.send.is_backed_up() => match frame {
                    Ok(Some(received)) => {
                        self.heard();
                        match self.control(received) {
                            Some(said) => return said,
                            None => continue,
                        }
                    }
                    Ok(None) => {
                        return Said::Lost(Lost::Protocol("the control stream ended".to_owned()));
                    }
                    Err(error) => return Said::Lost(lost_by(error)),
                },
                lost = gone_after(&self.bye) => return Said::Lost(lost),
                quiet = quiet_on(&mut self.silence) => match quiet {
                    Quiet::No => continue,
                    // No nonce that liveness would take for its own.
                    Quiet::Ask => Due::Ping(0),
                    Quiet::Yes => return Said::Quiet,
                },
                () = look_at(&self.unanswered) => match self.is_unanswered() {
                    true => return Said::Quiet,
                    false => continue,
                },
                () = sleep_until(self.liveness.next()) => self.liveness.poll(Instant::now()),
            };
            if self.do_due(due) {
                return Said::Lost(Lost::TimedOut);
            }
        }
    }

    fn heard(&mut self) {
        let now = Instant::now();
        self.liveness.heard(now);
        self.silence.iter_mut().for_each(|silence| silence.heard(now));
    }

    fn is_unanswered(&mut self) -> bool {
        let datagrams = self.carrier.datagrams();
        self.unanswered.as_mut().is_some_and(|unanswered| unanswered.poll(Instant::now(), datagrams))
    }

    /// Whether the peer is dead.
    fn do_due(&mut self, due: Due) -> bool {
        match due {
            Due::Nothing => {}
            Due::Ping(nonce) => self.say(control_frame::Kind::Ping(v1::Ping { nonce })),
            Due::Dead => return true,
        }
        false
    }

    fn say(&mut self, kind: control_frame::Kind) {
        let _too_large = self.send.queue(&frame(kind));
    }

    fn control(&mut self, received: v1::ControlFrame) -> Option<Said> {
        match received.kind {
            Some(control_frame::Kind::Ping(v1::Ping { nonce })) => {
                self.say(control_frame::Kind::Pong(v1::Pong { nonce }));
                return Some(Said::Pinged);
            }
            Some(control_frame::Kind::Pong(v1::Pong { nonce })) => {
                self.liveness.pong(nonce, Instant::now());
                return Some(Said::Answered);
            }
            Some(control_frame::Kind::Bye(bye)) => {
                let reason = levers9_wire::name::printable(&bye.reason, 200);
                tracing::info!(%reason, "the controlplane says goodbye");
                self.bye = Some((Instant::now() + CLOSES, reason));
                return Some(Said::Bye(Duration::from_millis(bye.back_in_ms)));
            }
            Some(control_frame::Kind::Drain(drain)) if drain.deadline_ms > 0 => {
                return Some(Said::Drain(drain));
            }
            Some(control_frame::Kind::Drain(_)) => {}
            _ => tracing::warn!("the controlplane sent a control frame this build does not know"),
        }
        None
    }

    /// The process was asleep, or the network is another: see who is there.
    /// QUIC finds its way over another network by itself.
    pub(super) fn ask(&mut self, change: Change) {
        if change == Change::Slept || self.carrier.kind().is_fallback() {
            let due = self.liveness.woke(Instant::now());
            self.do_due(due);
        }
    }

    /// Asks the peer to say that it hears this side: that it is heard here says
    /// nothing about the way there.
    pub(super) fn ask_for_answer(&mut self) {
        // No nonce that liveness would take for its own.
        self.do_due(Due::Ping(0));
    }

    /// Whether anything but the control stream runs on it.
    pub(super) fn is_used(&self) -> bool {
        self.carrier.halves() > CONTROL
    }

    /// Tells the peer that nothing comes on the session's other carriers.
    pub(super) fn fled(&mut self) {
        self.say(control_frame::Kind::Fled(v1::Fled {}));
    }

    /// Tells the peer that the session goes on elsewhere: what runs here may
    /// end, and nothing new is to be begun.
    pub(super) fn moved_on(&mut self) {
        self.told = true;
        self.say(control_frame::Kind::Drain(v1::Drain::default()));
    }

    pub(super) fn close(&self) {
        self.carrier.close(ResetCode::Done, "");
    }

    /// Tells the peer that the session ends, and closes.
    pub(super) async fn say_goodbye(mut self) {
        let bye = frame(control_frame::Kind::Bye(v1::Bye { reason: "closing".to_owned(), back_in_ms: 0 }));
        let said = async {
            self.send.send(&bye).await?;
            self.send.finish_and_deliver().await
        };
        let _heard = timeout(Duration::from_secs(1), said).await;
        self.recv.stop(ResetCode::Done);
        self.close();
        let _told = timeout(Duration::from_millis(500), self.carrier.told()).await;
    }
}

/// When to look at what has been sent; never where nobody watches. Cancel safe.
async fn look_at(unanswered: &Option<Unanswered>) {
    match unanswered {
        Some(unanswered) => sleep_until(unanswered.next()).await,
        None => std::future::pending().await,
    }
}

/// When a peer that has said goodbye is taken to be gone, since the packet
/// that says so may be lost. Cancel safe.
async fn gone_after(bye: &Option<(Instant, String)>) -> Lost {
    match bye {
        Some((until, reason)) => {
            sleep_until(*until).await;
            Lost::Closed(Reset::remote(ResetCode::Draining as u64), reason.clone())
        }
        None => std::future::pending().await,
    }
}

/// When a carrier has gone quiet; never where nobody watches. Cancel safe.
async fn quiet_on(silence: &mut Option<Silence>) -> Quiet {
    match silence {
        Some(silence) => {
            sleep_until(silence.next()).await;
            silence.poll(Instant::now())
        }
        None => std::future::pending().await,
    }
}
