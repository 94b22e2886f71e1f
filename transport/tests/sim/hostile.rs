//! Peers that do not keep the protocol: garbage, half-open connections, frames
//! of 4 GiB, kinds nobody knows. They end themselves and nobody else.

use std::net::SocketAddr;

use bytes::Bytes;
use levers9_transport::dial::Dialer;
use levers9_transport::link::{Status, open_on};
use levers9_transport::quic::{HalfError, Lost};
use levers9_transport::sim::as_socket;
use levers9_transport::{Carrier, Stream, StreamError};
use levers9_wire::v1::{self, ResetCode, control_frame, stream_open};
use levers9_wire::{Side, limits};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use crate::raw::hello;
use crate::world::{Server, World, call, online, s, server_address};

async fn carrier(world: &World, number: u16) -> Carrier {
    let endpoint = world.endpoint(number);
    let mut dialer = Dialer::new(world.address()).without_probe();
    dialer.dial(&endpoint, s(10)).await.unwrap()
}

async fn greet(carrier: &Carrier, hello: v1::Hello) -> Result<v1::ControlFrame, StreamError> {
    let mut control = open_on(carrier, stream_open::Kind::Control(v1::ControlOpen {})).await?;
    control.send.send(&v1::ControlFrame { kind: Some(control_frame::Kind::Hello(hello)) }).await?;
    let answer = control.recv.expect().await;
    // The stream stays open for the session that may have begun.
    std::mem::forget(control);
    answer
}

/// A peer that behaves, to see that the server still does.
async fn still_serves(world: &World, server: &Server) {
    let (link, _incoming) = world.link(900);
    online(&link, s(10)).await;
    call(&link).await;
    link.shutdown(s(1)).await;
    sleep(s(30)).await;
    let gauges = server.acceptor.gauges();
    assert_eq!(gauges.arriving.load(std::sync::atomic::Ordering::Relaxed), 0, "a permit is held");
}

#[tokio::test(start_paused = true)]
async fn garbage_datagrams_are_ignored() {
    let world = World::new(71);
    let server = world.server();
    let socket = as_socket(&world.network.socket("10.7.7.7:777".parse::<SocketAddr>().unwrap()));
    let mut rng = StdRng::seed_from_u64(71);
    for _ in 0..5_000 {
        let mut bytes = vec![0u8; rng.random_range(1..1_500)];
        rng.fill_bytes(&mut bytes);
        if rng.random_bool(0.5) {
            bytes[0] |= 0xc0; // looks like a QUIC long header
        }
        let datagram = quinn::udp::Transmit {
            destination: server_address(),
            ecn: None,
            contents: &bytes,
            segment_size: None,
            src_ip: None,
        };
        socket.try_send(&datagram).unwrap();
        tokio::task::yield_now().await;
    }
    still_serves(&world, &server).await;
}

/// B18: failing at every stage leaves no permit behind.
#[tokio::test(start_paused = true)]
async fn peers_that_stop_half_way_are_given_up_at_every_stage() {
    let world = World::new(72);
    let server = world.server();
    for number in 0..40u16 {
        let carrier = carrier(&world, number).await;
        match number % 5 {
            // Nothing at all after the handshake.
            0 => std::mem::forget(carrier),
            // A stream that never says what it is.
            1 => {
                let (mut send, recv) = carrier.open().await.unwrap();
                send.write_all(Bytes::from_static(&[0x80])).await.unwrap();
                std::mem::forget((send, recv, carrier));
            }
            // A control stream without a Hello.
            2 => {
                let control =
                    open_on(&carrier, stream_open::Kind::Control(v1::ControlOpen {})).await.unwrap();
                std::mem::forget((control, carrier));
            }
            // Gone in the middle.
            3 => carrier.close(ResetCode::Cancelled, ""),
            // Another stream first.
            _ => {
                let stream = open_on(&carrier, stream_open::Kind::Log(v1::LogOpen::default())).await.unwrap();
                std::mem::forget((stream, carrier));
            }
        }
    }
    sleep(s(60)).await;
    still_serves(&world, &server).await;
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_claims_four_gibibytes_ends_its_stream_at_once() {
    let world = World::new(73);
    let server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    let Status::Online { carrier, .. } = link.status().borrow().clone() else { panic!("online") };
    let (mut send, mut recv) = carrier.open().await.unwrap();
    send.write_all(Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3])).await.unwrap();
    let began = Instant::now();
    let error = timeout(s(1), recv.read(10)).await.expect("at once").unwrap_err();
    assert!(matches!(error, HalfError::Reset(reset) if reset.side == Side::Remote), "{error}");
    assert!(began.elapsed() < s(1));
    call(&link).await;
    still_serves(&world, &server).await;
}

#[tokio::test(start_paused = true)]
async fn this_side_refuses_a_frame_that_claims_four_gibibytes_too() {
    let world = World::new(74);
    let _server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    let mut stream = link.open(stream_open::Kind::Log(v1::LogOpen::default())).await.unwrap();
    let claim = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
    let mut raw = stream.send.into_raw().await.unwrap();
    raw.write_all(claim).await.unwrap();
    let error = stream.recv.next::<v1::LogBatch>().await.unwrap_err();
    let limit = limits::FRAME;
    assert_eq!(error.to_string(), format!("a frame claims 4294967295 bytes; the limit here is {limit}"));
}

/// B23: a newer peer's kinds, values and fields.
#[tokio::test(start_paused = true)]
async fn unknown_kinds_are_answered_unsupported_and_the_session_lives() {
    let world = World::new(75);
    let _server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    let Status::Online { carrier, .. } = link.status().borrow().clone() else { panic!("online") };
    let (send, recv) = carrier.open().await.unwrap();
    let mut stream = Stream::new(send, recv);
    let mut raw = stream.send.into_raw().await.unwrap();
    // A StreamOpen of kind 9999: field 9999, length 0.
    raw.write_all(Bytes::from_static(&[4, 0xfa, 0xf0, 0x04, 0x00])).await.unwrap();
    let error = stream.recv.next::<v1::CallAnswer>().await.unwrap_err();
    let StreamError::Reset(reset) = error else { panic!("{error}") };
    assert_eq!(reset.code, ResetCode::Unsupported);
    sleep(s(40)).await;
    call(&link).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_control_frames_are_skipped_and_pings_still_answered() {
    let world = World::new(76);
    let server = world.server();
    let carrier = carrier(&world, 1).await;
    let mut control = open_on(&carrier, stream_open::Kind::Control(v1::ControlOpen {})).await.unwrap();
    control.send.send(&v1::ControlFrame { kind: Some(control_frame::Kind::Hello(hello())) }).await.unwrap();
    let mut raw = control.send.into_raw().await.unwrap();
    // A control frame of kind 9999, then a ping with nonce 5.
    raw.write_all(Bytes::from_static(&[4, 0xfa, 0xf0, 0x04, 0x00, 4, 0x22, 2, 8, 5])).await.unwrap();
    let pong = timeout(s(5), async {
        loop {
            match control.recv.expect::<v1::ControlFrame>().await.unwrap().kind {
                Some(control_frame::Kind::Pong(v1::Pong { nonce })) => return nonce,
                _ => continue,
            }
        }
    });
    assert_eq!(pong.await.expect("answered"), 5);
    assert!(server.gate.endings.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_old_version_is_told_so_in_words() {
    let world = World::new(77);
    let _server = world.server();
    let carrier = carrier(&world, 1).await;
    let old = v1::Hello { version_min: 0, version_max: 0, build: "0.0.1".into(), ..hello() };
    let answer = greet(&carrier, old).await.unwrap();
    let Some(control_frame::Kind::Refused(refused)) = answer.kind else { panic!("{answer:?}") };
    assert_eq!(refused.code(), v1::RefuseCode::Version);
    assert_eq!(
        refused.text,
        format!(
            "levers9 0.0.1 speaks protocol 0 to 0, this controlplane ({}) speaks 1 to 1",
            levers9_wire::BUILD
        )
    );
    let lost = timeout(s(5), carrier.closed()).await.expect("closed");
    assert!(matches!(lost, Lost::Closed(..)), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_hello_that_is_nonsense_is_refused_in_words() {
    let world = World::new(78);
    let _server = world.server();
    for (number, hello) in [
        v1::Hello { role: 77, ..hello() },
        v1::Hello { instance: vec![1; 3], ..hello() },
        v1::Hello { token: "t".repeat(300), ..hello() },
    ]
    .into_iter()
    .enumerate()
    {
        let carrier = carrier(&world, u16::try_from(number).unwrap()).await;
        let answer = greet(&carrier, hello).await.unwrap();
        let Some(control_frame::Kind::Refused(refused)) = answer.kind else { panic!("{answer:?}") };
        assert_eq!(refused.code(), v1::RefuseCode::BadHello, "{}", refused.text);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_pin_is_named_with_the_one_seen() {
    let world = World::new(79);
    let _server = world.server();
    let mut address = world.address();
    address.trust = levers9_transport::Trust::Pins(vec![levers9_transport::address::Pin([1; 32])]);
    let endpoint = world.endpoint(1);
    let error = Dialer::new(address).without_probe().dial(&endpoint, s(10)).await.unwrap_err();
    let seen = match world.address().trust {
        levers9_transport::Trust::Pins(pins) => pins[0].to_string(),
        levers9_transport::Trust::System => unreachable!(),
    };
    assert!(error.to_string().contains("is not the pinned one"), "{error}");
    assert!(error.to_string().contains(&seen), "{error}");
}
