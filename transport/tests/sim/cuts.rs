//! How connections die, with streams of every kind on them: both halves of
//! both ends see it, nobody hangs, and nothing is left.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use levers9_transport::accept::Gauges;
use levers9_transport::link::{Link, open_on};
use levers9_transport::quic::HalfError;
use levers9_transport::{Carrier, CarrierKind, Stream};
use levers9_wire::v1::{self, stream_open};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::pipes::{Cable, Flow, Pipes};
use crate::world::{
    Broken, Server, World, call, client_address, hold, hole, moves_to, offline, online, rides_on, s,
    server_address, session_of,
};

/// When a carrier that is dead is given up at the latest.
const GIVEN_UP: Duration = Duration::from_millis(45_100);

/// One of every kind a peer may open beside the control stream.
pub(crate) fn kinds() -> [stream_open::Kind; 10] {
    [
        stream_open::Kind::NodeReport(v1::NodeReportOpen::default()),
        stream_open::Kind::Log(v1::LogOpen::default()),
        stream_open::Kind::Call(v1::CallOpen::default()),
        stream_open::Kind::Run(v1::RunOpen::default()),
        stream_open::Kind::Follow(v1::FollowOpen::default()),
        stream_open::Kind::Exec(v1::ExecOpen::default()),
        stream_open::Kind::Order(v1::OrderOpen::default()),
        stream_open::Kind::Tunnel(v1::TunnelOpen::default()),
        stream_open::Kind::Door(v1::DoorOpen::default()),
        stream_open::Kind::Bench(v1::BenchOpen::default()),
    ]
}

/// A stream with something under way on it.
async fn started(mut stream: Stream) -> Stream {
    stream.send.send(&v1::Ping { nonce: 7 }).await.unwrap();
    stream
}

/// Streams of every kind, opened from both sides, and what becomes of the
/// halves at the dialer.
async fn everything(
    carrier: &Carrier,
    server: &Server,
    incoming: &mut tokio::sync::mpsc::Receiver<Box<levers9_transport::link::Opened>>,
) -> (JoinSet<Broken>, JoinSet<Broken>) {
    server.gate.holds.store(true, Ordering::Relaxed);
    let (mut near, mut far) = (JoinSet::new(), JoinSet::new());
    let before = server.gate.serving.load(Ordering::Relaxed);
    let session = session_of(server);
    for kind in kinds() {
        near.spawn(hold(started(open_on(carrier, kind.clone()).await.unwrap()).await));
        far.spawn(hold(started(session.open(kind).await.unwrap()).await));
        near.spawn(hold(started(incoming.recv().await.unwrap().stream).await));
    }
    while server.gate.serving.load(Ordering::Relaxed) < before + kinds().len() {
        sleep(Duration::from_millis(10)).await;
    }
    (near, far)
}

/// All of them are broken by the loss of their carrier, at once.
async fn all_lost(streams: JoinSet<Broken>, within: Duration) {
    let broken = timeout(within, streams.join_all()).await.expect("no half hangs");
    assert!(broken.len() >= kinds().len());
    broken.iter().for_each(lost);
}

fn lost(Broken { sending, receiving }: &Broken) {
    assert!(matches!(sending, HalfError::Lost(_)), "{sending}");
    assert!(matches!(receiving, HalfError::Lost(_)), "{receiving}");
}

/// What the server held is broken too.
async fn all_lost_there(server: &Server, within: Duration) {
    let quiet = async {
        while server.gate.serving.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(within, quiet).await.expect("no half hangs at the server");
    let broken = std::mem::take(&mut *server.gate.broken.lock().unwrap());
    assert_eq!(broken.len(), kinds().len());
    broken.iter().for_each(lost);
}

fn counts(gauges: &Arc<Gauges>) -> [usize; 3] {
    [&gauges.sessions, &gauges.arriving, &gauges.over_tcp].map(|gauge| gauge.load(Ordering::Relaxed))
}

/// A session over TCP, and every way to end its connection.
async fn over_tcp(seed: u64) -> (World, Server, Arc<Pipes>, Link, Incoming) {
    let world = World::new(seed);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let (link, incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(2)).await;
    (world, server, pipes, link, incoming)
}

type Incoming = tokio::sync::mpsc::Receiver<Box<levers9_transport::link::Opened>>;

/// How a TCP connection dies, and how soon each side must know.
#[derive(Debug, Clone, Copy)]
enum Death {
    Cut,
    Reset,
    Swallowed,
    Stalled,
}

impl Death {
    fn strike(self, pipes: &Pipes) {
        match self {
            Self::Cut => pipes.cut(),
            Self::Reset => pipes.reset(),
            Self::Swallowed => pipes.set(Cable::both(Flow::Swallow)),
            Self::Stalled => pipes.set(Cable::both(Flow::Stall)),
        }
    }

    fn seen_within(self) -> Duration {
        match self {
            Self::Cut | Self::Reset => Duration::from_millis(100),
            Self::Swallowed | Self::Stalled => GIVEN_UP,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn however_a_tcp_connection_dies_every_half_of_every_stream_sees_it() {
    for (number, death) in
        [Death::Cut, Death::Reset, Death::Swallowed, Death::Stalled].into_iter().enumerate()
    {
        let (_world, server, pipes, link, mut incoming) = over_tcp(700 + number as u64).await;
        let (carrier, session) = (rides_on(&link), session_of(&server));
        let theirs = session.carrier();
        let (near, far) = everything(&carrier, &server, &mut incoming).await;
        // Somewhere between two pings.
        sleep(s(7)).await;
        let began = Instant::now();
        pipes.blocked.store(true, Ordering::Relaxed);
        death.strike(&pipes);
        let within = death.seen_within();
        let (_, (), ()) =
            tokio::join!(all_lost(near, within), all_lost(far, within), all_lost_there(&server, within));
        timeout(within, session.ended()).await.expect("the session has ended");
        assert!(began.elapsed() <= within, "{death:?} took {:?}", began.elapsed());
        sleep(s(3)).await;
        assert_eq!(counts(&server.acceptor.gauges()), [0, 0, 0], "{death:?}");
        assert_eq!((carrier.halves(), theirs.halves()), (0, 0), "{death:?}");
        // It is back once there is a way.
        pipes.set(Cable::default());
        pipes.blocked.store(false, Ordering::Relaxed);
        server.gate.holds.store(false, Ordering::Relaxed);
        online(&link, s(41)).await;
        call(&link).await;
    }
}

/// One direction is eaten: whoever hears nothing gives it up, and the other
/// hears of that or hears nothing either.
#[tokio::test(start_paused = true)]
async fn a_tcp_connection_that_works_one_way_is_given_up_by_both() {
    for (number, cable) in [
        Cable::up(Flow::Swallow),
        Cable::down(Flow::Swallow),
        Cable::up(Flow::Stall),
        Cable::down(Flow::Stall),
    ]
    .into_iter()
    .enumerate()
    {
        let (_world, server, pipes, link, mut incoming) = over_tcp(710 + number as u64).await;
        let (near, far) = everything(&rides_on(&link), &server, &mut incoming).await;
        sleep(s(11)).await;
        pipes.blocked.store(true, Ordering::Relaxed);
        pipes.set(cable);
        tokio::join!(all_lost(near, GIVEN_UP), all_lost(far, GIVEN_UP), all_lost_there(&server, GIVEN_UP));
        sleep(s(3)).await;
        assert_eq!(counts(&server.acceptor.gauges()), [0, 0, 0], "{cable:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_quic_connection_that_works_one_way_is_given_up_by_both() {
    for (number, up) in [true, false].into_iter().enumerate() {
        let world = World::new(720 + number as u64);
        let server = world.server();
        let (link, mut incoming) = world.link(1);
        online(&link, s(2)).await;
        let (carrier, theirs) = (rides_on(&link), session_of(&server).carrier());
        let (near, far) = everything(&carrier, &server, &mut incoming).await;
        sleep(s(11)).await;
        let (here, there) = (client_address(1), server_address());
        let (from, to) = if up { (here, there) } else { (there, here) };
        world.network.set_path(from, to, hole());
        tokio::join!(all_lost(near, GIVEN_UP), all_lost(far, GIVEN_UP), all_lost_there(&server, GIVEN_UP));
        // What it sends may still arrive: nobody is to come now.
        link.shutdown(s(1)).await;
        sleep(s(11)).await;
        assert_eq!(counts(&server.acceptor.gauges()), [0, 0, 0], "up: {up}");
        assert_eq!((carrier.halves(), theirs.halves()), (0, 0), "up: {up}");
    }
}

/// With a fallback a half-open path costs the time of a ping, not of a death.
#[tokio::test(start_paused = true)]
async fn a_path_that_eats_one_direction_is_left_for_tcp() {
    for (number, up) in [true, false].into_iter().enumerate() {
        let world = World::new(730 + number as u64);
        let (server, pipes) = world.server_over_tcp();
        let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
        let session = online(&link, s(2)).await;
        let (here, there) = (client_address(1), server_address());
        let (from, to) = if up { (here, there) } else { (there, here) };
        world.network.set_path(from, to, hole());
        // Other sockets of this client meet the same.
        world.network.set(hole());
        let took = moves_to(&link, CarrierKind::Tcp, s(60)).await;
        assert!(took <= GIVEN_UP, "up: {up}, took {took:?}");
        assert_eq!(online(&link, s(1)).await, session);
        call(&link).await;
        assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1);
    }
}

/// The connection a session moves away from dies before its streams are done.
#[tokio::test(start_paused = true)]
async fn what_is_left_behind_in_a_move_dies_without_the_session() {
    for (number, death) in [Death::Cut, Death::Reset, Death::Swallowed].into_iter().enumerate() {
        let (world, server, pipes, link, mut incoming) = over_tcp(740 + number as u64).await;
        let (near, far) = everything(&rides_on(&link), &server, &mut incoming).await;
        server.gate.holds.store(false, Ordering::Relaxed);
        let session = online(&link, s(1)).await;
        world.network.set(levers9_transport::sim::links::rack());
        moves_to(&link, CarrierKind::Quic, s(14)).await;
        death.strike(&pipes);
        let within = death.seen_within();
        tokio::join!(all_lost(near, within), all_lost(far, within), all_lost_there(&server, within));
        call(&link).await;
        sleep(s(60)).await;
        call(&link).await;
        assert_eq!(online(&link, s(1)).await, session);
        assert_eq!(counts(&server.acceptor.gauges()), [1, 0, 0], "{death:?}");
        assert_eq!(session_of(&server).carriers().len(), 1);
        assert!(server.gate.endings.lock().unwrap().is_empty());
    }
}

/// The connection a session moves to dies in the middle of the move: the
/// handshake, or just after.
#[tokio::test(start_paused = true)]
async fn a_way_back_that_dies_on_the_way_costs_nothing() {
    for after in [0, 2, 4, 6, 10, 30, 100, 500] {
        let (world, server, _pipes, link, _incoming) = over_tcp(750 + after).await;
        let session = online(&link, s(1)).await;
        // QUIC works for a moment, whenever it is looked for.
        let (network, sent) = (world.network.clone(), world.network.trace().len());
        world.network.set(levers9_transport::sim::links::wan());
        let probed = async {
            while network.trace().len() == sent {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(s(14), probed).await.expect("it looks for QUIC");
        sleep(Duration::from_millis(after)).await;
        world.network.set(hole());
        sleep(s(60)).await;
        assert_eq!(rides_on(&link).kind(), CarrierKind::Tcp, "after {after} ms");
        assert_eq!(online(&link, s(1)).await, session, "after {after} ms");
        call(&link).await;
        assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1, "after {after} ms");
        sleep(s(60)).await;
        assert_eq!(counts(&server.acceptor.gauges()), [1, 0, 1], "after {after} ms");
        assert_eq!(session_of(&server).carriers().len(), 1, "after {after} ms");
    }
}

/// From UDP to TCP, and TCP dies while the session moves there.
#[tokio::test(start_paused = true)]
async fn a_fallback_that_dies_on_the_way_is_tried_again() {
    for death in [Death::Cut, Death::Reset, Death::Swallowed] {
        let world = World::new(770);
        let (server, pipes) = world.server_over_tcp();
        let (link, mut incoming) = world.link_with_tcp(1, "token", &pipes);
        online(&link, s(2)).await;
        let (near, far) = everything(&rides_on(&link), &server, &mut incoming).await;
        server.gate.holds.store(false, Ordering::Relaxed);
        world.network.set(hole());
        let made = async {
            while pipes.made.load(Ordering::Relaxed) == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(s(50), made).await.expect("TCP is tried");
        death.strike(&pipes);
        sleep(s(2)).await;
        pipes.set(Cable::default());
        tokio::join!(all_lost(near, s(60)), all_lost(far, s(60)), all_lost_there(&server, s(60)));
        moves_to(&link, CarrierKind::Tcp, s(60)).await;
        call(&link).await;
        sleep(s(100)).await;
        assert_eq!(counts(&server.acceptor.gauges()), [1, 0, 1], "{death:?}");
        call(&link).await;
    }
}

/// Slow is not dead: byte by byte, or late by seconds.
#[tokio::test(start_paused = true)]
async fn a_slow_connection_is_kept() {
    for cable in [
        Cable::both(Flow::Dribble(Duration::from_millis(20))),
        Cable::both(Flow::Late(Duration::from_secs(4))),
    ] {
        let (_world, server, pipes, link, _incoming) = over_tcp(780).await;
        pipes.set(cable);
        for _ in 0..10 {
            sleep(s(30)).await;
            timeout(s(30), call(&link)).await.expect("answered, if late");
        }
        assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1, "{cable:?}");
    }
}

/// Nothing is left of a session whose peer is gone for good.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_peer_that_is_gone() {
    let (_world, server, pipes, link, _incoming) = over_tcp(790).await;
    pipes.blocked.store(true, Ordering::Relaxed);
    pipes.set(Cable::both(Flow::Swallow));
    offline(&link, GIVEN_UP).await;
    link.shutdown(s(1)).await;
    sleep(s(5)).await;
    assert_eq!(counts(&server.acceptor.gauges()), [0, 0, 0]);
}
