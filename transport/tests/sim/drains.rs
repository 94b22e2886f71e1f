//! Controlplanes that stop: sessions go elsewhere before, what runs ends where
//! it is, and who has nowhere to go comes back at once.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use levers9_transport::Lost;
use levers9_transport::dial::Resolve;
use levers9_transport::link::{Link, Status};
use levers9_transport::quic::HalfError;
use levers9_transport::sim::{Conditions, links};
use levers9_wire::v1::{self, ResetCode, stream_open};
use tokio::time::{Instant, sleep, timeout};

use crate::outages::Names;
use crate::world::{NAME, Server, World, arrived, call, offline, online, rides_on, s, server_address, why};

fn other_address() -> SocketAddr {
    "10.0.0.2:443".parse().unwrap()
}

/// Waits until the link's session is at an address; it is online all the while.
async fn moves_to(link: &Link, address: SocketAddr, within: Duration) -> Duration {
    let began = Instant::now();
    let mut status = link.status();
    let there = async {
        loop {
            match &*status.borrow_and_update() {
                Status::Online { carrier, .. } if carrier.peer() == address => return,
                Status::Online { .. } => {}
                other => panic!("offline on the way: {other:?}"),
            }
            status.changed().await.unwrap();
        }
    };
    timeout(within, there).await.expect("it moves in time");
    began.elapsed()
}

/// How many carriers and sessions a server has.
fn sessions(server: &Server) -> usize {
    server.acceptor.gauges().sessions.load(Ordering::Relaxed)
}

fn names(of: &[SocketAddr]) -> (Arc<Names>, Arc<dyn Resolve>) {
    let names = Arc::new(Names(Mutex::new(of.to_vec())));
    (Arc::clone(&names), names)
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_where_it_is_sent_and_its_streams_end_where_they_are() {
    let world = World::new(401);
    world.network.set(links::wan());
    let (old, new) = (world.server(), world.server_at(other_address(), None));
    let (link, mut incoming) = world.link_that_moves(1, None);
    online(&link, s(2)).await;
    let log = stream_open::Kind::Log(v1::LogOpen::default());
    let (echoing, mut moved) = link.open_until_moved(log).await.unwrap();
    let (mut send, (_, mut recv)) = (echoing.send.into_raw().await.unwrap(), echoing.recv.into_raw());
    send.write_all(Bytes::from_static(b"before ")).await.unwrap();
    assert_eq!(recv.read(100).await.unwrap().unwrap(), "before ");
    assert!(timeout(s(60), moved.wait()).await.is_err(), "nobody moves by himself");

    old.acceptor.drain(s(60), vec![other_address().to_string()]);
    let took = moves_to(&link, other_address(), s(5)).await;
    assert!(took < s(1), "{took:?}");
    timeout(s(1), moved.wait()).await.expect("the stream's owner is told");
    call(&link).await;
    assert_eq!(new.gate.arrivals.lock().unwrap().len(), 1);
    assert_eq!((sessions(&old), sessions(&new)), (1, 1));
    // What the old one opens meanwhile still arrives.
    let handle = old.gate.handles.lock().unwrap()[0].clone();
    let _opened = handle.open(stream_open::Kind::Run(v1::RunOpen::default())).await.unwrap();
    assert!(matches!(incoming.recv().await.unwrap().kind, stream_open::Kind::Run(_)));

    sleep(s(30)).await;
    send.write_all(Bytes::from_static(b"after ")).await.unwrap();
    assert_eq!(recv.read(100).await.unwrap().unwrap(), "after ");
    // The old one comes to its end: the stream is told that it is a drain.
    assert!(old.acceptor.shutdown("replaced", Duration::ZERO, s(3)).await);
    let ended = timeout(s(2), recv.read(100)).await.expect("it ends").unwrap_err();
    let HalfError::Lost(Lost::Closed(reset, _)) = &ended else { panic!("{ended:?}") };
    assert_eq!(reset.code, ResetCode::Draining);
    sleep(s(120)).await;
    assert_eq!(rides_on(&link).peer(), other_address());
    assert_eq!(new.gate.arrivals.lock().unwrap().len(), 1, "it stays where it is");
    call(&link).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_hint_it_goes_to_another_address_of_the_name() {
    let world = World::new(402);
    let (old, new) = (world.server(), world.server_at(other_address(), None));
    // The name leads to the old one alone when the session begins.
    let (names, resolver) = names(&[server_address()]);
    let (link, _incoming) = world.link_that_moves(1, Some((resolver, NAME)));
    online(&link, s(2)).await;
    *names.0.lock().unwrap() = vec![server_address(), other_address()];
    old.acceptor.drain(s(60), Vec::new());
    moves_to(&link, other_address(), s(5)).await;
    call(&link).await;
    assert_eq!(sessions(&new), 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_slow_to_come_up_is_found_before_the_deadline() {
    let world = World::new(403);
    let old = world.server();
    let (link, _incoming) = world.link_that_moves(1, None);
    online(&link, s(2)).await;
    old.acceptor.drain(s(60), vec!["nonsense".to_owned(), String::new(), other_address().to_string()]);
    sleep(s(20)).await;
    // It is served where it was in the meantime.
    assert_eq!(rides_on(&link).peer(), server_address());
    call(&link).await;
    let _new = world.server_at(other_address(), None);
    moves_to(&link, other_address(), s(12)).await;
    call(&link).await;
}

#[tokio::test(start_paused = true)]
async fn who_has_nowhere_to_go_comes_back_as_soon_as_there_is_somebody() {
    let world = World::new(404);
    let old = world.server();
    let (link, _incoming) = world.link_that_moves(1, None);
    online(&link, s(2)).await;
    let mut running = link.open(stream_open::Kind::Log(v1::LogOpen::default())).await.unwrap();
    assert!(old.acceptor.shutdown("upgraded", s(1), s(3)).await);
    offline(&link, s(1)).await;
    assert!(running.recv.next::<v1::LogBatch>().await.is_err());
    old.kill(&world);
    sleep(s(1)).await;
    let again = world.server();
    let began = Instant::now();
    arrived(&again, 1, s(10)).await;
    assert!(began.elapsed() < s(5), "{:?}", began.elapsed());
    call(&link).await;
}

/// The packet that closes the connection may be lost; the goodbye is not.
#[tokio::test(start_paused = true)]
async fn a_goodbye_is_enough() {
    let world = World::new(405);
    let (link, _incoming) = {
        let old = world.server();
        let (link, incoming) = world.link_that_moves(1, None);
        online(&link, s(2)).await;
        let closing = old.acceptor.clone();
        let closing = tokio::spawn(async move { closing.shutdown("upgraded", s(1), s(3)).await });
        // It has heard the goodbye; what comes after is lost.
        offline(&link, s(2)).await;
        old.kill(&world);
        closing.abort();
        (link, incoming)
    };
    let again = world.server();
    arrived(&again, 1, s(6)).await;
    call(&link).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_home_that_dies_leaves_the_old_one_until_there_is_another() {
    let world = World::new(406);
    let (old, new) = (world.server(), world.server_at(other_address(), None));
    let third: SocketAddr = "10.0.0.3:443".parse().unwrap();
    let (names, resolver) = names(&[server_address()]);
    let (link, _incoming) = world.link_that_moves(1, Some((resolver, NAME)));
    online(&link, s(2)).await;
    *names.0.lock().unwrap() = vec![server_address(), other_address(), third];
    old.acceptor.drain(s(300), Vec::new());
    moves_to(&link, other_address(), s(5)).await;
    world.network.unplug(other_address());
    drop(new);
    // Nothing comes from it any more: 45 s later it is given up.
    moves_to(&link, server_address(), s(50)).await;
    call(&link).await;
    let _third = world.server_at(third, None);
    moves_to(&link, third, s(15)).await;
    call(&link).await;
}

/// What runs on either of two carriers may end there.
#[tokio::test(start_paused = true)]
async fn a_session_on_two_carriers_leaves_both_where_they_are() {
    let world = World::new(409);
    world.network.set(Conditions { black_hole: true, ..Conditions::default() });
    let (old, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(2)).await;
    let echo = || stream_open::Kind::Log(v1::LogOpen::default());
    let over_tcp = link.open(echo()).await.unwrap();
    world.network.set(links::rack());
    let mut status = link.status();
    let on_quic =
        |status: &Status| matches!(status, Status::Online { carrier, .. } if !carrier.kind().is_fallback());
    timeout(s(20), status.wait_for(on_quic)).await.expect("it moves to QUIC").unwrap();
    let over_quic = link.open(echo()).await.unwrap();
    let new = world.server_at(other_address(), None);
    old.acceptor.drain(s(60), vec![other_address().to_string()]);
    moves_to(&link, other_address(), s(5)).await;
    sleep(s(30)).await;
    for stream in [over_tcp, over_quic] {
        let (mut send, (_, mut recv)) = (stream.send.into_raw().await.unwrap(), stream.recv.into_raw());
        send.write_all(Bytes::from_static(b"goes on")).await.unwrap();
        assert_eq!(recv.read(100).await.unwrap().unwrap(), "goes on");
    }
    call(&link).await;
    assert!(old.acceptor.shutdown("replaced", Duration::ZERO, s(3)).await);
    sleep(s(10)).await;
    assert_eq!((sessions(&old), sessions(&new)), (0, 1));
    call(&link).await;
}

#[tokio::test(start_paused = true)]
async fn many_do_not_come_together_and_none_is_lost() {
    let world = World::new(407);
    world.network.set(links::wan());
    let (old, new) = (world.server(), world.server_at(other_address(), None));
    let links: Vec<_> = (0..250).map(|number| world.link_that_moves(number, None)).collect();
    for (link, _) in &links {
        online(link, s(20)).await;
    }
    // Hello anew, so that all know how many they are.
    old.acceptor.drain(s(60), vec![other_address().to_string()]);
    for (link, _) in &links {
        moves_to(link, other_address(), s(30)).await;
        call(link).await;
    }
    let arrivals = new.gate.arrivals.lock().unwrap().clone();
    assert_eq!((arrivals.len(), sessions(&new)), (250, 250));
    sleep(s(1)).await;
    assert_eq!((old.acceptor.staying(), sessions(&old)), (0, 250), "all have said so");
    assert!(old.acceptor.shutdown("replaced", Duration::ZERO, s(3)).await);
    sleep(s(60)).await;
    assert_eq!(new.gate.arrivals.lock().unwrap().len(), 250);
    assert_eq!(sessions(&old), 0);
}

/// A peer that comes while a controlplane stops is not let in there; one that
/// knows no other place is told of it.
#[tokio::test(start_paused = true)]
async fn nobody_comes_to_one_that_stops() {
    let world = World::new(408);
    let (old, new) = (world.server(), world.server_at(other_address(), None));
    old.acceptor.drain(s(60), Vec::new());
    let (names, resolver) = names(&[server_address(), other_address()]);
    let (link, _incoming) = world.link_that_moves(1, Some((resolver, NAME)));
    online(&link, s(2)).await;
    assert_eq!(rides_on(&link).peer(), other_address());
    assert_eq!((sessions(&old), sessions(&new)), (0, 1));
    old.acceptor.drain(s(60), vec![other_address().to_string()]);
    let (other, _incoming) = world.link_that_moves(3, None);
    online(&other, s(2)).await;
    assert_eq!(rides_on(&other).peer(), other_address());
    call(&other).await;
    old.acceptor.drain(s(60), Vec::new());
    *names.0.lock().unwrap() = vec![server_address()];
    let (alone, _incoming) = world.link_that_moves(2, Some((names, NAME)));
    let why = why(&alone, s(5)).await;
    assert_eq!(why.to_string(), "this controlplane is about to stop");
}
