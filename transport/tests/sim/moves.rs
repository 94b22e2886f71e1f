//! Sessions that fall back to TCP and come back: from the start, in the
//! middle, with streams that go on where they are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use levers9_transport::accept::Ending;
use levers9_transport::dial::DialError;
use levers9_transport::link::{Link, Status};
use levers9_transport::quic::HalfError;
use levers9_transport::sim::{Conditions, links};
use levers9_transport::{CarrierKind, Lost, Stream};
use levers9_wire::v1::{self, RefuseCode, ResetCode, stream_open};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, timeout};

use crate::world::{
    World, call, client_address, download, drain, echo, hole, moves_to, online, rides_on, s, server_address,
    session_of,
};

async fn open_echo(link: &Link) -> Stream {
    link.open(stream_open::Kind::Log(v1::LogOpen::default())).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn where_udp_gets_through_no_tcp_is_tried() {
    let world = World::new(201);
    world.network.set(links::wan());
    let (_server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(2)).await;
    assert_eq!((rides_on(&link).kind(), rides_on(&link).why().as_str()), (CarrierKind::Quic, ""));
    sleep(s(120)).await;
    assert_eq!(pipes.made.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn where_udp_is_dropped_the_session_is_on_tcp_after_the_head_start() {
    let world = World::new(202);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let began = Instant::now();
    let (link, mut incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(2)).await;
    assert!(began.elapsed() < Duration::from_millis(300), "{:?}", began.elapsed());
    let carrier = rides_on(&link);
    assert_eq!((carrier.kind(), carrier.why().as_str()), (CarrierKind::Tcp, "UDP was not answered"));
    let seen = session_of(&server).carrier();
    assert_eq!((seen.kind(), seen.why().as_str()), (CarrierKind::Tcp, "UDP was not answered"));
    call(&link).await;
    echo(&link, &vec![5; 3 << 20]).await;
    assert_eq!(drain(download(&link, 20 << 20).await).await.unwrap(), 20 << 20);
    // What the server opens arrives too.
    let run = stream_open::Kind::Run(v1::RunOpen::default());
    let _opened = session_of(&server).open(run).await.unwrap();
    assert!(matches!(incoming.recv().await.unwrap().kind, stream_open::Kind::Run(_)));
    // Ten idle minutes.
    sleep(s(600)).await;
    call(&link).await;
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1);
    link.shutdown(s(1)).await;
    sleep(s(1)).await;
    assert_eq!(*server.gate.endings.lock().unwrap(), [Ending::Bye("closing".to_owned())]);
}

/// A process that may open no UDP socket goes by TCP at once, and says why.
#[tokio::test(start_paused = true)]
async fn without_any_udp_socket_it_goes_by_tcp() {
    let world = World::new(217);
    let (_server, pipes) = world.server_over_tcp();
    let began = Instant::now();
    let (link, _incoming) = world.link_without_udp(1, &pipes);
    online(&link, s(2)).await;
    assert!(began.elapsed() < Duration::from_millis(50), "{:?}", began.elapsed());
    let carrier = rides_on(&link);
    assert_eq!(
        (carrier.kind(), carrier.why().as_str()),
        (CarrierKind::Tcp, "cannot open a UDP socket: permission denied")
    );
    call(&link).await;
    sleep(s(600)).await;
    call(&link).await;
    assert_eq!(rides_on(&link).kind(), CarrierKind::Tcp);
}

#[tokio::test(start_paused = true)]
async fn when_udp_is_back_the_session_moves_and_old_streams_end_where_they_are() {
    let world = World::new(203);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let (link, mut incoming) = world.link_with_tcp(1, "token", &pipes);
    let session = online(&link, s(2)).await;
    let old = rides_on(&link);
    let echoing = open_echo(&link).await;
    let (mut send, (_, mut recv)) = (echoing.send.into_raw().await.unwrap(), echoing.recv.into_raw());
    send.write_all(Bytes::from_static(b"before ")).await.unwrap();
    assert_eq!(recv.read(100).await.unwrap().unwrap(), "before ");

    world.network.set(links::wan());
    let took = moves_to(&link, CarrierKind::Quic, s(14)).await;
    assert!(took > s(9), "{took:?}");
    assert_eq!(online(&link, s(1)).await, session);
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1, "it is the same session there");
    assert_eq!(server.gate.joined.load(Ordering::Relaxed), 1);
    assert_eq!(session_of(&server).carrier().kind(), CarrierKind::Quic);
    assert_eq!(session_of(&server).carriers().len(), 2);
    call(&link).await;
    // What the server opens comes on the newer one, and arrives at the same place.
    let run = stream_open::Kind::Run(v1::RunOpen::default());
    let _opened = session_of(&server).open(run).await.unwrap();
    assert!(matches!(incoming.recv().await.unwrap().kind, stream_open::Kind::Run(_)));

    sleep(s(30)).await;
    send.write_all(Bytes::from_static(b"after")).await.unwrap();
    send.finish();
    let mut rest = Vec::new();
    while let Some(bytes) = recv.read(100).await.unwrap() {
        rest.extend_from_slice(&bytes);
    }
    assert_eq!(rest, b"after");
    drop((send, recv));
    assert_eq!(old.lost(), None);
    timeout(s(4), old.closed()).await.expect("it is closed once nothing runs on it");
    sleep(s(300)).await;
    call(&link).await;
    assert_eq!(session_of(&server).carriers().len(), 1);
    assert!(server.gate.endings.lock().unwrap().is_empty());
    assert_eq!(server.acceptor.gauges().sessions.load(Ordering::Relaxed), 1);
}

/// A shell that was begun over TCP is not ended because UDP is back.
#[tokio::test(start_paused = true)]
async fn a_stream_that_does_not_end_keeps_the_old_carrier() {
    let world = World::new(204);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(2)).await;
    let (old, echoing) = (rides_on(&link), open_echo(&link).await);
    world.network.set(links::rack());
    moves_to(&link, CarrierKind::Quic, s(14)).await;
    let (mut send, (_, mut recv)) = (echoing.send.into_raw().await.unwrap(), echoing.recv.into_raw());
    for _ in 0..6 {
        sleep(s(1_800)).await;
        call(&link).await;
        send.write_all(Bytes::from_static(b"still here")).await.unwrap();
        assert_eq!(recv.read(100).await.unwrap().unwrap(), "still here");
    }
    assert_eq!(
        (rides_on(&link).kind(), session_of(&server).carrier().kind()),
        (CarrierKind::Quic, CarrierKind::Quic)
    );
    send.finish();
    assert_eq!(recv.read(100).await.unwrap(), None);
    drop((send, recv));
    timeout(s(5), old.closed()).await.expect("it is closed once nothing runs on it");
    call(&link).await;
}

#[tokio::test(start_paused = true)]
async fn a_newer_carrier_that_fails_gives_the_session_back_to_the_older() {
    let world = World::new(205);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    let session = online(&link, s(2)).await;
    let _held = open_echo(&link).await;
    world.network.set(links::rack());
    moves_to(&link, CarrierKind::Quic, s(14)).await;
    world.network.set(hole());
    let took = moves_to(&link, CarrierKind::Tcp, s(50)).await;
    assert!(took <= s(27), "{took:?}");
    sleep(s(10)).await;
    assert_eq!(session_of(&server).carrier().kind(), CarrierKind::Tcp, "both sides see it");
    sleep(s(50)).await;
    assert_eq!(online(&link, s(1)).await, session);
    call(&link).await;
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1);
    // Then it comes back again.
    world.network.set(links::rack());
    moves_to(&link, CarrierKind::Quic, s(120)).await;
}

#[tokio::test(start_paused = true)]
async fn udp_that_is_cut_in_the_middle_ends_on_tcp_and_comes_back() {
    let world = World::new(206);
    let (server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    let session = online(&link, s(2)).await;
    sleep(s(1)).await;
    let mut running = open_echo(&link).await;
    world.network.set(hole());
    let took = moves_to(&link, CarrierKind::Tcp, s(60)).await;
    // It is noticed by the ping that does not come, long before the carrier counts as dead.
    assert!(took < s(27), "{took:?}");
    assert_eq!(online(&link, s(1)).await, session);
    call(&link).await;
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1, "it is the same session there");
    assert!(matches!(
        running.recv.next::<v1::LogBatch>().await,
        Err(levers9_transport::StreamError::Lost(_))
    ));
    world.network.set(Conditions::default());
    moves_to(&link, CarrierKind::Quic, s(14)).await;
    call(&link).await;
    assert_eq!(online(&link, s(1)).await, session);
    sleep(s(120)).await;
    assert_eq!(server.acceptor.gauges().sessions.load(Ordering::Relaxed), 1);
}

/// That something comes on the carrier that was fled from does not say that
/// anything gets there.
#[tokio::test(start_paused = true)]
async fn a_path_that_is_back_one_way_only_is_not_gone_back_to() {
    let world = World::new(216);
    world.network.set(links::wan());
    let (server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(2)).await;
    let (there, here) = (server_address(), rides_on(&link));
    let mine = client_address(1);
    world.network.set(hole());
    let _held = open_echo(&link).await;
    moves_to(&link, CarrierKind::Tcp, s(30)).await;
    // What the server sends comes again, what is sent to it does not.
    world.network.set_path(there, mine, links::wan());
    for _ in 0..20 {
        sleep(s(1)).await;
        assert_eq!(rides_on(&link).kind(), CarrierKind::Tcp);
        call(&link).await;
    }
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1);
    assert_eq!(here.lost(), None, "it is there still");
    world.network.set_path(mine, there, links::wan());
    world.network.set(links::wan());
    moves_to(&link, CarrierKind::Quic, s(60)).await;
    call(&link).await;
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1, "it is the same session all along");
}

/// Where UDP did not get through a moment ago, TCP does not wait for it.
#[tokio::test(start_paused = true)]
async fn a_lost_fallback_is_made_again_without_a_head_start() {
    let world = World::new(215);
    world.network.set(hole());
    let (_server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(2)).await;
    call(&link).await;
    for head_start in [Duration::ZERO, Duration::ZERO, Duration::from_millis(250)] {
        if !head_start.is_zero() {
            // By then it is to be tried first again.
            sleep(s(601)).await;
        }
        let mut status = link.status();
        pipes.cut();
        let waits = status.wait_for(|status| matches!(status, Status::Waiting { .. }));
        let waits = timeout(s(5), waits).await.expect("it is lost").unwrap().clone();
        let Status::Waiting { until: began, .. } = waits else { unreachable!() };
        online(&link, s(5)).await;
        let took = began.elapsed();
        assert!(took >= head_start && took < head_start + Duration::from_millis(50), "{took:?}");
        call(&link).await;
    }
}

/// Who sends notices in seconds that nothing comes, and what can be begun
/// again elsewhere is told to.
#[tokio::test(start_paused = true)]
async fn udp_that_is_cut_under_traffic_is_noticed_in_seconds() {
    let world = World::new(214);
    world.network.set(links::wan());
    let (server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(2)).await;
    let log = stream_open::Kind::Log(v1::LogOpen::default());
    let (echoing, mut moved) = link.open_until_moved(log).await.unwrap();
    sleep(s(40)).await;
    assert!(!moved.has_moved(), "idle it is well");
    world.network.set(hole());
    let mut send = echoing.send.into_raw().await.unwrap();
    send.write_all(Bytes::from_static(b"is anybody there?")).await.unwrap();
    let took = moves_to(&link, CarrierKind::Tcp, s(10)).await;
    assert!(took > s(3) && took < s(6), "{took:?}");
    timeout(s(1), moved.wait()).await.expect("its owner is told");
    call(&link).await;
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1, "it is the same session there");
    assert!(!session_of(&server).is_draining(), "it takes on new work");
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_lets_nothing_join_gets_a_new_session() {
    let world = World::new(207);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "stranger", &pipes);
    online(&link, s(2)).await;
    world.network.set(Conditions::default());
    moves_to(&link, CarrierKind::Quic, s(14)).await;
    call(&link).await;
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 2);
    sleep(s(60)).await;
    assert_eq!(server.gate.endings.lock().unwrap().len(), 1, "the first ends with its carrier");
    call(&link).await;
}

/// What is revoked while a carrier is about to join takes that carrier along.
#[tokio::test(start_paused = true)]
async fn nothing_joins_a_session_that_is_being_closed() {
    let world = World::new(213);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "revoked meanwhile", &pipes);
    online(&link, s(2)).await;
    let first = session_of(&server);
    world.network.set(Conditions::default());
    timeout(s(30), first.ended()).await.expect("it is closed");
    assert!(first.carriers().is_empty(), "{:?}", first.carriers());
    // Whoever comes next comes as anybody does.
    online(&link, s(60)).await;
    call(&link).await;
    assert!(!session_of(&server).is_same(&first));
}

/// A carrier that claims another's session gets one of its own.
#[tokio::test(start_paused = true)]
async fn nobody_joins_the_session_of_another() {
    use levers9_transport::dial::Dialer;
    use levers9_transport::link::open_on;
    let world = World::new(208);
    let server = world.server();
    let (link, _incoming) = world.link(1);
    let session = online(&link, s(2)).await;
    let endpoint = world.endpoint(2);
    let carrier = Dialer::new(world.address()).without_probe().dial(&endpoint, s(5)).await.unwrap();
    let mut control = open_on(&carrier, stream_open::Kind::Control(v1::ControlOpen {})).await.unwrap();
    let hello = v1::Hello {
        version_min: 1,
        version_max: 1,
        role: 2,
        token: "t".into(),
        instance: vec![1; 16],
        session: session.to_wire(),
        moving: true,
        ..v1::Hello::default()
    };
    let kind = Some(v1::control_frame::Kind::Hello(hello));
    control.send.send(&v1::ControlFrame { kind }).await.unwrap();
    let answer = control.recv.expect::<v1::ControlFrame>().await.unwrap();
    let Some(v1::control_frame::Kind::Welcome(welcome)) = answer.kind else { panic!("{answer:?}") };
    assert_ne!(welcome.session, session.to_wire());
    assert_eq!(server.gate.joined.load(Ordering::Relaxed), 0);
    call(&link).await;
}

#[tokio::test(start_paused = true)]
async fn refusals_and_drains_read_the_same_over_tcp() {
    let world = World::new(209);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let (refused, _incoming) = world.link_with_tcp(1, "refused", &pipes);
    let mut status = refused.status();
    let waiting = status.wait_for(|s| matches!(s, Status::Waiting { .. }));
    let Status::Waiting { why, .. } = timeout(s(5), waiting).await.unwrap().unwrap().clone() else {
        panic!()
    };
    assert!(matches!(&*why, DialError::Refused { code: RefuseCode::TokenRevoked, .. }), "{why}");
    assert_eq!(why.to_string(), "the token was revoked");

    let (link, _incoming) = world.link_with_tcp(2, "token", &pipes);
    online(&link, s(2)).await;
    let carrier = rides_on(&link);
    session_of(&server).close(ResetCode::Revoked, "the token was revoked");
    let Lost::Closed(reset, words) = timeout(s(1), carrier.closed()).await.unwrap() else { panic!() };
    assert_eq!((reset.code, words.as_str()), (ResetCode::Revoked, "the token was revoked"));
    online(&link, s(2)).await;
    let carrier = rides_on(&link);
    assert!(server.acceptor.shutdown("back soon", s(1), s(5)).await);
    let Lost::Closed(reset, words) = timeout(s(1), carrier.closed()).await.unwrap() else { panic!() };
    assert_eq!((reset.code, words.as_str()), (ResetCode::Draining, "back soon"));
}

/// B12: what is wrong is said for each way.
#[tokio::test(start_paused = true)]
async fn when_nothing_gets_through_every_way_is_named() {
    let world = World::new(210);
    world.network.set(hole());
    let (_server, pipes) = world.server_over_tcp();
    pipes.blocked.store(true, Ordering::Relaxed);
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    let mut status = link.status();
    let waiting = status.wait_for(|s| matches!(s, Status::Waiting { .. }));
    let Status::Waiting { why, .. } = timeout(s(20), waiting).await.unwrap().unwrap().clone() else {
        panic!()
    };
    let (at, words) = ("10.0.0.1:443", why.to_string());
    assert_eq!(
        words,
        format!("no answer from UDP {at}: it is down, or UDP is blocked on the way; no answer from TCP {at}")
    );
    assert!(why.hint().unwrap().contains("UDP or TCP"));
    pipes.blocked.store(false, Ordering::Relaxed);
    online(&link, s(35)).await;
}

/// B18, on the other carrier.
#[tokio::test(start_paused = true)]
async fn connections_that_stop_half_way_are_given_up_and_garbage_ends_itself() {
    let world = World::new(211);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(2)).await;
    let gauges = server.acceptor.gauges();
    let mut mute = Vec::new();
    for number in 0..20u8 {
        let mut pipe = pipes.pipe().await;
        match number % 4 {
            // Nothing at all.
            0 => {}
            1 => pipe.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap(),
            // The beginning of a record that never comes.
            2 => pipe.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap(),
            _ => pipe.write_all(&[number; 5_000]).await.unwrap(),
        }
        mute.push(pipe);
    }
    call(&link).await;
    sleep(s(11)).await;
    assert_eq!(gauges.arriving.load(Ordering::Relaxed), 0, "a permit is held");
    for mut pipe in mute {
        let mut rest = Vec::new();
        let _any = timeout(s(1), pipe.read_to_end(&mut rest)).await.expect("it was closed");
    }
    call(&link).await;
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_address_cannot_take_every_place() {
    let world = World::new(212);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(pipes.pipe().await);
    }
    sleep(s(1)).await;
    let gauges = server.acceptor.gauges();
    assert_eq!(gauges.arriving.load(Ordering::Relaxed), 256);
    assert_eq!(gauges.refused.load(Ordering::Relaxed), 44);
}

#[tokio::test(start_paused = true)]
async fn a_session_over_tcp_ends_with_a_cut_and_comes_back() {
    let world = World::new(213);
    world.network.set(hole());
    let (server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    let session = online(&link, s(2)).await;
    let mut held = download(&link, 1 << 40).await;
    session_of(&server).carrier().close(ResetCode::Internal, "as if cut");
    let (_, mut recv) = std::mem::replace(&mut held, open_echo(&link).await).recv.into_raw();
    let error = loop {
        match recv.read(1 << 20).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a cut is no end"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, HalfError::Lost(_)), "{error}");
    assert_eq!(online(&link, s(2)).await, session);
    call(&link).await;
    let _used = Arc::strong_count(&pipes);
}

/// A hole that ends before the carrier is dead costs no stream, fallback or not.
#[tokio::test(start_paused = true)]
async fn a_hole_of_half_a_minute_costs_no_stream() {
    let world = World::new(214);
    let (server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    let session = online(&link, s(2)).await;
    let echoing = open_echo(&link).await;
    let (mut send, (_, mut recv)) = (echoing.send.into_raw().await.unwrap(), echoing.recv.into_raw());
    sleep(s(1)).await;
    world.network.set(hole());
    sleep(s(30)).await;
    world.network.set(Conditions::default());
    send.write_all(Bytes::from_static(b"still there")).await.unwrap();
    assert_eq!(timeout(s(20), recv.read(100)).await.expect("in time").unwrap().unwrap(), "still there");
    moves_to(&link, CarrierKind::Quic, s(30)).await;
    assert_eq!(online(&link, s(1)).await, session);
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1);
}

/// B11, B12: dropped, refused by the system, only large packets dropped, one way only.
#[tokio::test(start_paused = true)]
async fn however_udp_is_blocked_tcp_carries_the_session() {
    let refused = |kind| Conditions { send_error: Some(kind), ..Conditions::default() };
    for (number, conditions) in [
        refused(std::io::ErrorKind::PermissionDenied),
        refused(std::io::ErrorKind::NetworkUnreachable),
        Conditions { mtu: 1_100, ..Conditions::default() },
    ]
    .into_iter()
    .enumerate()
    {
        let world = World::new(220 + number as u64);
        world.network.set(conditions);
        let (server, pipes) = world.server_over_tcp();
        let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
        online(&link, s(2)).await;
        assert_eq!(rides_on(&link).kind(), CarrierKind::Tcp);
        // It is asked now and then, and goes on meanwhile.
        sleep(s(900)).await;
        call(&link).await;
        assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1);
        world.network.set(Conditions::default());
        moves_to(&link, CarrierKind::Quic, s(376)).await;
        call(&link).await;
    }
    let world = World::new(230);
    let (_server, pipes) = world.server_over_tcp();
    world.network.set_path(server_address(), client_address(1), hole());
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(2)).await;
    assert_eq!(rides_on(&link).kind(), CarrierKind::Tcp, "what goes out is not enough");
}
