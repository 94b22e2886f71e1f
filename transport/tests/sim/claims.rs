//! Carriers that claim a session: a third one, two at once, one that does not
//! say that it moves, one that comes when the last is dying. Over both
//! carriers and from one to the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use levers9_transport::link::open_on;
use levers9_transport::{Carrier, Lost, Stream, StreamError};
use levers9_wire::SessionId;
use levers9_wire::v1::{self, ResetCode, control_frame, stream_open};
use tokio::time::{sleep, timeout};

use crate::pipes::Pipes;
use crate::raw::{Over, dial, hello};
use crate::world::{Server, World, s, session_of};

/// A carrier that was let in.
struct Claimed {
    carrier: Carrier,
    welcome: v1::Welcome,
    /// Kept, since its end is the carrier's.
    _control: Stream,
}

const WAYS: [(Over, Over); 4] =
    [(Over::Quic, Over::Tcp), (Over::Tcp, Over::Quic), (Over::Quic, Over::Quic), (Over::Tcp, Over::Tcp)];

struct Place {
    world: World,
    server: Server,
    pipes: Arc<Pipes>,
    dialed: u16,
}

impl Place {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let (server, pipes) = world.server_over_tcp();
        Self { world, server, pipes, dialed: 0 }
    }

    async fn dial(&mut self, over: Over) -> Carrier {
        self.dialed += 1;
        dial(&self.world, &self.pipes, self.dialed, over).await
    }

    async fn first(&mut self, over: Over) -> Claimed {
        let carrier = self.dial(over).await;
        greet(carrier, hello()).await.unwrap()
    }

    async fn join(&mut self, over: Over, session: &[u8]) -> Claimed {
        let carrier = self.dial(over).await;
        greet(carrier, moving(session)).await.unwrap()
    }

    fn sessions(&self) -> usize {
        self.server.acceptor.gauges().sessions.load(Ordering::Relaxed)
    }

    fn admitted(&self) -> usize {
        self.server.gate.arrivals.lock().unwrap().len()
    }
}

/// A Hello that asks to join a session.
fn moving(session: &[u8]) -> v1::Hello {
    v1::Hello { session: session.to_vec(), moving: true, ..hello() }
}

/// Says Hello, and waits for a Welcome.
async fn greet(carrier: Carrier, hello: v1::Hello) -> Result<Claimed, StreamError> {
    let mut control = open_on(&carrier, stream_open::Kind::Control(v1::ControlOpen {})).await?;
    control.send.send(&v1::ControlFrame { kind: Some(control_frame::Kind::Hello(hello)) }).await?;
    let answer: v1::ControlFrame = control.recv.expect().await?;
    let Some(control_frame::Kind::Welcome(welcome)) = answer.kind else { panic!("{answer:?}") };
    Ok(Claimed { carrier, welcome, _control: control })
}

async fn try_call(carrier: &Carrier) -> Result<(), StreamError> {
    let mut stream = open_on(carrier, stream_open::Kind::Call(v1::CallOpen::default())).await?;
    stream.recv.expect::<v1::CallAnswer>().await.map(drop)
}

async fn call(carrier: &Carrier) {
    timeout(s(2), try_call(carrier)).await.expect("answered in time").expect("answered");
}

#[tokio::test(start_paused = true)]
async fn a_third_carrier_takes_the_place_of_the_oldest() {
    for (one, other) in WAYS {
        let mut place = Place::new(951);
        let first = place.first(one).await;
        let id = first.welcome.session.clone();
        let second = place.join(other, &id).await;
        assert!(second.welcome.joined && second.welcome.session == id);
        call(&first.carrier).await;
        call(&second.carrier).await;
        let third = place.join(one, &id).await;
        assert!(third.welcome.joined && third.welcome.session == id);
        let Lost::Closed(reset, words) = timeout(s(1), first.carrier.closed()).await.expect("it is closed")
        else {
            panic!("{one:?} {other:?}")
        };
        assert_eq!((reset.code, words.as_str()), (ResetCode::Done, "the session moved on"));
        sleep(s(1)).await;
        assert_eq!(session_of(&place.server).carriers().len(), 2);
        call(&second.carrier).await;
        call(&third.carrier).await;
        assert_eq!((place.sessions(), place.admitted()), (1, 1), "{one:?} {other:?}");
        // It ends with the last of them, not before.
        third.carrier.close(ResetCode::Done, "");
        sleep(s(1)).await;
        assert_eq!(place.sessions(), 1);
        call(&second.carrier).await;
        second.carrier.close(ResetCode::Done, "");
        sleep(s(1)).await;
        assert_eq!(place.sessions(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn two_that_join_at_once_both_carry_it() {
    for (one, other) in WAYS {
        let mut place = Place::new(952);
        let first = place.first(one).await;
        let id = first.welcome.session.clone();
        let (a, b) = (place.dial(one).await, place.dial(other).await);
        let (a, b) = tokio::join!(greet(a, moving(&id)), greet(b, moving(&id)));
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!(a.welcome.joined && b.welcome.joined);
        sleep(s(1)).await;
        assert!(first.carrier.lost().is_some(), "the oldest has left");
        assert_eq!(session_of(&place.server).carriers().len(), 2);
        call(&a.carrier).await;
        call(&b.carrier).await;
        assert_eq!((place.sessions(), place.admitted()), (1, 1), "{one:?} {other:?}");
    }
}

/// Who does not say that it moves begins anew, under the same id: what it had
/// is its gate's to end, and does not take the new one along.
#[tokio::test(start_paused = true)]
async fn who_does_not_move_begins_anew_under_the_same_id() {
    for (one, other) in WAYS {
        let mut place = Place::new(953);
        let first = place.first(one).await;
        let old = session_of(&place.server);
        let id = first.welcome.session.clone();
        let carrier = place.dial(other).await;
        let again = greet(carrier, v1::Hello { session: id.clone(), ..hello() }).await.unwrap();
        assert!(!again.welcome.joined && again.welcome.session == id);
        sleep(s(1)).await;
        let new = session_of(&place.server);
        assert!(!new.is_same(&old) && new.id() == old.id());
        assert_eq!((place.sessions(), place.admitted()), (2, 2), "{one:?} {other:?}");
        old.close(ResetCode::Superseded, "it came again");
        let Lost::Closed(reset, _) = timeout(s(1), first.carrier.closed()).await.unwrap() else { panic!() };
        assert_eq!(reset.code, ResetCode::Superseded);
        sleep(s(1)).await;
        call(&again.carrier).await;
        // A carrier that joins now joins the new one.
        let joined = place.join(one, &id).await;
        assert!(joined.welcome.joined);
        sleep(s(1)).await;
        assert_eq!((new.carriers().len(), old.carriers().len()), (2, 0));
        call(&joined.carrier).await;
        assert_eq!(place.sessions(), 1);
    }
}

/// Another process does not get the session, nor its id.
#[tokio::test(start_paused = true)]
async fn another_instance_gets_neither_the_session_nor_its_id() {
    for (one, other) in WAYS {
        for moving in [true, false] {
            let mut place = Place::new(954);
            let first = place.first(one).await;
            let carrier = place.dial(other).await;
            let session = first.welcome.session.clone();
            let thief = v1::Hello { session, moving, instance: vec![2; 16], ..hello() };
            let thief = greet(carrier, thief).await.unwrap();
            assert!(!thief.welcome.joined);
            assert_ne!(thief.welcome.session, first.welcome.session);
            call(&thief.carrier).await;
            call(&first.carrier).await;
            assert_eq!(place.server.gate.joined.load(Ordering::Relaxed), 0);
            assert_eq!((place.sessions(), place.admitted()), (2, 2));
        }
    }
}

/// An id nobody knows: a new session that has it, since its process had it
/// from another controlplane.
#[tokio::test(start_paused = true)]
async fn an_unknown_id_is_kept_by_who_brings_it() {
    for over in [Over::Quic, Over::Tcp] {
        let mut place = Place::new(955);
        let id = SessionId::generate().to_wire();
        let moved = place.join(over, &id).await;
        assert!(!moved.welcome.joined && moved.welcome.session == id);
        call(&moved.carrier).await;
        assert_eq!((place.sessions(), place.admitted()), (1, 1));
    }
}

/// The last carrier dies while another joins: the newcomer is served, by the
/// old session or by a new one, or is told to come again; it never hangs.
#[tokio::test(start_paused = true)]
async fn a_join_against_the_death_of_the_last_carrier_never_hangs() {
    let mut outcomes = [0; 3];
    for (one, other) in WAYS {
        for (after, how) in (0..24).flat_map(|after| (0..2).map(move |how| (after, how))) {
            let mut place = Place::new(956);
            let first = place.first(one).await;
            let id = first.welcome.session.clone();
            let second = place.dial(other).await;
            let session = session_of(&place.server);
            let dying = async {
                sleep(Duration::from_micros(250 * after)).await;
                match how {
                    0 => first.carrier.close(ResetCode::Done, "gone"),
                    _ => session.close(ResetCode::Revoked, "out"),
                }
            };
            let joining = async { timeout(s(15), greet(second, moving(&id))).await.expect("answered") };
            let (joined, ()) = tokio::join!(joining, dying);
            let case = format!("{one:?} {other:?} after {after}, {how}");
            match joined {
                Ok(claimed) => {
                    let called = timeout(s(5), try_call(&claimed.carrier)).await;
                    let called = called.unwrap_or_else(|_| panic!("{case}: it is not served"));
                    match called {
                        Ok(()) if claimed.welcome.joined => outcomes[0] += 1,
                        Ok(()) => outcomes[1] += 1,
                        // Welcomed, and too late all the same: told so by the end of its carrier.
                        Err(_) => {
                            outcomes[2] += 1;
                            timeout(s(1), claimed.carrier.closed()).await.expect("it is told");
                        }
                    }
                    claimed.carrier.close(ResetCode::Done, "");
                }
                Err(StreamError::Lost(_)) => outcomes[2] += 1,
                Err(other) => panic!("{case}: {other}"),
            }
            sleep(s(3)).await;
            assert_eq!(place.sessions(), 0, "{case}");
            assert_eq!(place.server.gate.serving.load(Ordering::Relaxed), 0, "{case}");
        }
    }
    assert!(outcomes.iter().take(2).all(|count| *count > 0), "{outcomes:?}");
}
