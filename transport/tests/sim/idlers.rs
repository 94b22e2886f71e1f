//! Peers that are slow, mute or deaf, on both carriers: what they hold is
//! bounded, comes back in time, and costs nobody else anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use levers9_transport::Carrier;
use levers9_transport::carrier::{RecvHalf, SendHalf};
use levers9_transport::link::open_on;
use levers9_transport::quic::HalfError;
use levers9_wire::v1::{self, ResetCode, control_frame, stream_open};
use tokio::time::{Instant, sleep, timeout};

use crate::cuts::kinds;
use crate::pipes::{Cable, Flow, Pipes};
use crate::raw::{BOTH, Over, Rude, control, dial, hello, let_in, link, opening, welcome};
use crate::world::{Server, World, call, client_address, hole, online, s, server_address};

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn arriving(server: &Server) -> usize {
    server.acceptor.gauges().arriving.load(Ordering::Relaxed)
}

fn sessions(server: &Server) -> usize {
    server.acceptor.gauges().sessions.load(Ordering::Relaxed)
}

/// As many streams as may be open beside those there are, which never say what
/// they are.
async fn mute_streams(carrier: &Carrier) -> Vec<(SendHalf, RecvHalf)> {
    let mut mute = Vec::new();
    while let Ok(halves) = timeout(ms(100), carrier.open()).await {
        let (mut send, recv) = halves.unwrap();
        // The first byte of two that are a length: on QUIC a stream is seen once something comes.
        send.write_all(Bytes::from_static(&[0x80])).await.unwrap();
        mute.push((send, recv));
        assert!(mute.len() < 1_000, "there is no end to them");
    }
    mute
}

async fn all_reset_for_lateness(mute: Vec<(SendHalf, RecvHalf)>) {
    for (send, mut recv) in mute {
        for error in [recv.read(1).await.unwrap_err(), send.stopped().await] {
            let HalfError::Reset(reset) = error else { panic!("{error}") };
            assert_eq!(reset.code, ResetCode::Timeout);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn mute_streams_are_reset_after_ten_seconds_and_their_places_come_back() {
    for over in BOTH {
        let world = World::new(901);
        let (server, pipes) = world.server_over_tcp();
        let (carrier, _send, _recv) = let_in(&world, &pipes, 1, over).await;
        let (other, _incoming) = link(&world, &pipes, 2, Over::Tcp);
        online(&other, s(5)).await;
        world.network.set(levers9_transport::sim::Conditions::default());
        let began = Instant::now();
        for round in 0..2 {
            let mute = mute_streams(&carrier).await;
            assert!((32..=256).contains(&mute.len()), "{} places in round {round}", mute.len());
            call(&other).await;
            let late = timeout(s(11), all_reset_for_lateness(mute)).await;
            assert!(late.is_ok(), "not reset in time, round {round} over {over:?}");
        }
        assert!(began.elapsed() > s(19), "they had their time");
        call(&other).await;
        carrier.close(ResetCode::Done, "");
        sleep(s(1)).await;
        assert_eq!(sessions(&server), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dialer_resets_mute_streams_too() {
    for over in BOTH {
        let world = World::new(902);
        let (rude, pipes) = Rude::new(&world);
        let (link, _incoming) = link(&world, &pipes, 1, over);
        let carrier = rude.accept(over).await;
        let (mut send, _recv) = carrier.accept().await.unwrap();
        send.write_all(control(control_frame::Kind::Welcome(welcome())).into()).await.unwrap();
        online(&link, s(1)).await;
        for _ in 0..2 {
            let mute = mute_streams(&carrier).await;
            assert!((32..=256).contains(&mute.len()), "{} places", mute.len());
            timeout(s(11), all_reset_for_lateness(mute)).await.expect("reset in time");
        }
        assert_eq!(carrier.lost(), None);
    }
}

/// Pings without end from a peer that reads no answer: what waits for it is
/// bounded, and it is given up as any that is not heard.
async fn flood(carrier: &Carrier, mut send: SendHalf) -> usize {
    let ping = control(control_frame::Kind::Ping(v1::Ping { nonce: u64::MAX }));
    let pings = Bytes::from(ping.repeat(64 * 1024 / ping.len()));
    let mut sent = 0;
    let flooding = async {
        while send.write_all(pings.clone()).await.is_ok() {
            sent += pings.len();
            assert!(sent < 64 << 20, "{sent} bytes of pings were taken without an answer being read");
        }
    };
    timeout(s(46), flooding).await.expect("it is given up");
    timeout(s(1), carrier.closed()).await.expect("and gone");
    sent
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_pings_and_never_reads_is_given_up_and_holds_little() {
    for over in BOTH {
        let world = World::new(903);
        let (server, pipes) = world.server_over_tcp();
        let (carrier, send, _unread) = let_in(&world, &pipes, 1, over).await;
        flood(&carrier, send).await;
        sleep(s(3)).await;
        assert_eq!((sessions(&server), arriving(&server)), (0, 0), "over {over:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_pings_and_never_reads_is_given_up_and_holds_little() {
    for over in BOTH {
        let world = World::new(904);
        let (rude, pipes) = Rude::new(&world);
        let (link, _incoming) = link(&world, &pipes, 1, over);
        let carrier = rude.accept(over).await;
        let (mut send, _unread) = carrier.accept().await.unwrap();
        send.write_all(control(control_frame::Kind::Welcome(welcome())).into()).await.unwrap();
        online(&link, s(1)).await;
        flood(&carrier, send).await;
    }
}

/// A peer whose way back is gone gets its refusal never, and is not waited for.
#[tokio::test(start_paused = true)]
async fn a_refused_peer_that_does_not_read_is_left_after_two_seconds() {
    for over in BOTH {
        let world = World::new(905);
        let (server, pipes) = world.server_over_tcp();
        for number in 0..10 {
            let carrier = dial(&world, &pipes, number, over).await;
            let (mut send, recv) = carrier.open().await.unwrap();
            send.write_all(opening(stream_open::Kind::Control(v1::ControlOpen {})).into()).await.unwrap();
            sleep(ms(10)).await;
            world.network.set_path(server_address(), client_address(number), hole());
            pipes.set(Cable::down(Flow::Stall));
            let refused = v1::Hello { token: "refused".into(), ..hello() };
            send.write_all(control(control_frame::Kind::Hello(refused)).into()).await.unwrap();
            sleep(ms(100)).await;
            assert_eq!(arriving(&server), 1, "over {over:?}");
            std::mem::forget((carrier, send, recv));
            sleep(ms(2_100)).await;
            assert_eq!(arriving(&server), 0, "over {over:?}");
            pipes.set(Cable::default());
        }
        assert_eq!(server.acceptor.gauges().refused.load(Ordering::Relaxed), 10);
    }
}

/// Whatever a stream is for, one that was opened and says nothing more costs
/// nobody anything, and ends with its carrier.
#[tokio::test(start_paused = true)]
async fn silence_after_an_opening_is_nobodys_business() {
    for over in BOTH {
        let world = World::new(906);
        let (server, pipes) = world.server_over_tcp();
        let (silent, _incoming) = link(&world, &pipes, 1, over);
        online(&silent, s(5)).await;
        let mut streams = Vec::new();
        for kind in kinds().into_iter().filter(|kind| !matches!(kind, stream_open::Kind::Tunnel(_))) {
            streams.push(silent.open(kind).await.unwrap());
        }
        sleep(s(600)).await;
        call(&silent).await;
        assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1, "over {over:?}");
        silent.shutdown(s(1)).await;
        sleep(s(1)).await;
        assert_eq!(server.gate.serving.load(Ordering::Relaxed), 0, "over {over:?}");
        drop(streams);
    }
}

/// Writes byte by byte.
async fn dribble(send: &mut SendHalf, bytes: &[u8], every: Duration) -> Result<(), HalfError> {
    for byte in bytes {
        send.write_all(vec![*byte].into()).await?;
        sleep(every).await;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_greeting_that_comes_byte_by_byte_is_heard_if_it_comes_in_time() {
    let mut greeting = opening(stream_open::Kind::Control(v1::ControlOpen {}));
    greeting.extend(control(control_frame::Kind::Hello(hello())));
    let length = u32::try_from(greeting.len()).unwrap();
    for over in BOTH {
        for (all_in, in_time) in [(s(9), true), (s(20), false)] {
            let world = World::new(907);
            let (server, pipes) = world.server_over_tcp();
            let carrier = dial(&world, &pipes, 1, over).await;
            let (mut send, mut recv) = carrier.open().await.unwrap();
            let said = dribble(&mut send, &greeting, all_in / length).await;
            if in_time {
                said.unwrap();
                recv.read(1000).await.unwrap().expect("a welcome");
                assert_eq!((sessions(&server), arriving(&server)), (1, 0), "over {over:?}");
            } else {
                assert!(said.is_err(), "it is given up over {over:?}");
                assert_eq!((sessions(&server), arriving(&server)), (0, 0), "over {over:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_comes_byte_by_byte_is_heard_if_it_comes_in_time() {
    for over in BOTH {
        let world = World::new(908);
        let (server, pipes) = world.server_over_tcp();
        let (carrier, _send, _recv) = let_in(&world, &pipes, 1, over).await;
        let call = v1::CallOpen { request_id: vec![1; 16], request: None };
        let bytes = opening(stream_open::Kind::Call(call));
        let length = u32::try_from(bytes.len()).unwrap();
        let (mut send, mut recv) = carrier.open().await.unwrap();
        dribble(&mut send, &bytes, s(9) / length).await.unwrap();
        recv.read(1000).await.unwrap().expect("an answer");
        let (mut send, mut recv) = carrier.open().await.unwrap();
        let began = Instant::now();
        let _stopped = dribble(&mut send, &bytes, s(30) / length).await;
        assert!(began.elapsed() < s(13), "over {over:?}");
        let HalfError::Reset(reset) = recv.read(1000).await.unwrap_err() else { panic!("over {over:?}") };
        assert_eq!(reset.code, ResetCode::Timeout);
        // The session is unharmed.
        let mut answered = open_on(&carrier, stream_open::Kind::Call(v1::CallOpen::default())).await.unwrap();
        answered.recv.expect::<v1::CallAnswer>().await.unwrap();
        assert_eq!(sessions(&server), 1);
    }
}

/// The handshake itself, byte by byte.
#[tokio::test(start_paused = true)]
async fn a_handshake_that_comes_byte_by_byte_is_completed_if_it_comes_in_time() {
    let world = World::new(909);
    let (server, pipes): (Server, Arc<Pipes>) = world.server_over_tcp();
    pipes.set(Cable::up(Flow::Dribble(ms(2))));
    let (carrier, _send, _recv) = let_in(&world, &pipes, 1, Over::Tcp).await;
    assert_eq!((sessions(&server), arriving(&server)), (1, 0));
    carrier.close(ResetCode::Done, "");
    sleep(s(5)).await;
    pipes.set(Cable::up(Flow::Dribble(ms(20))));
    let mut slow = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let pipes = Arc::clone(&pipes);
        let address = world.address();
        let endpoint = world.endpoint(2);
        slow.spawn(async move {
            let via: Arc<dyn levers9_transport::tcp::Via> = pipes;
            let fallback = levers9_transport::tcp::Fallback::default().with_via(via);
            let dialer =
                levers9_transport::dial::Dialer::new(address).without_probe().with_fallback(fallback);
            dialer.examine_tcp(&endpoint, server_address()).await.1
        });
    }
    sleep(s(5)).await;
    assert_eq!(arriving(&server), 20);
    sleep(ms(5_100)).await;
    assert_eq!(arriving(&server), 0, "they are given up");
    for dialed in timeout(s(60), slow.join_all()).await.expect("they are told") {
        assert!(dialed.is_err());
    }
    assert_eq!(sessions(&server), 0);
}
