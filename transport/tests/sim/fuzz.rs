//! Peers that got as far as a connection and then say nearly the right thing:
//! openings, greetings, control frames and first frames of every kind with
//! bytes changed, left out, doubled and cut, in any order. Each conversation
//! follows from its seed.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use levers9_transport::Carrier;
use levers9_transport::carrier::{RecvHalf, SendHalf};
use levers9_wire::v1::{self, ResetCode, control_frame};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::cuts::kinds;
use crate::pipes::Pipes;
use crate::raw::{BOTH, Over, Rude, control, dial, framed, hello, link, opening, welcome};
use crate::world::{Server, World, call, online, read_frames, s};

thread_local! {
    /// Panics on this thread, where a test has its whole runtime.
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Counts panics from now on, those of tasks too, which nobody would see.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with(|count| count.set(count.get() + 1));
            before(info);
        }));
    });
}

fn assert_no_panic(seed: u64, over: Over) {
    assert_eq!(PANICS.with(Cell::get), 0, "seed {seed} over {over:?}");
}

/// Changes a few things.
fn mutate(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(0..4) {
        if bytes.is_empty() {
            bytes.push(rng.random());
        }
        let at = rng.random_range(0..bytes.len());
        let to = rng.random_range(at..bytes.len().min(at + 40)) + 1;
        match rng.random_range(0..9) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = [0, 0x7f, 0x80, 0xff][rng.random_range(0..4)],
            2 => drop(bytes.drain(at..to)),
            3 => bytes.truncate(at),
            4 => {
                let again = bytes[at..to].to_vec();
                drop(bytes.splice(at..at, again));
            }
            5 => {
                let mut noise = vec![0; rng.random_range(1..40)];
                rng.fill_bytes(&mut noise);
                drop(bytes.splice(at..at, noise));
            }
            // A length out of all measure, where one stands most often.
            6 => drop(bytes.splice(0..1, [0xff, 0xff, 0xff, 0xff, 0x0f])),
            7 => drop(bytes.splice(at..at, [0xff; 10])),
            _ => bytes[at] = bytes[at].wrapping_add(1),
        }
    }
}

/// Control frames, those of the other side and those of no side included.
fn some_control(rng: &mut StdRng) -> Vec<u8> {
    let words = || "x".repeat(300);
    let mut bytes = Vec::new();
    for _ in 0..rng.random_range(0..6) {
        bytes.extend(match rng.random_range(0..9) {
            0 => control(control_frame::Kind::Ping(v1::Ping { nonce: rng.random() })),
            1 => control(control_frame::Kind::Pong(v1::Pong { nonce: rng.random_range(0..4) })),
            2 => control(control_frame::Kind::Drain(v1::Drain {
                deadline_ms: if rng.random() { u64::MAX } else { rng.random_range(0..90_000) },
                alternatives: vec![":".into(), "[::1]:x".into(), words(), "10.9.9.9:1".into()],
            })),
            3 => control(control_frame::Kind::Bye(v1::Bye { reason: words(), back_in_ms: rng.random() })),
            4 => control(control_frame::Kind::Hello(hello())),
            5 => control(control_frame::Kind::Welcome(v1::Welcome {
                reconnect_spread_ms: rng.random(),
                ping_interval_ms: rng.random_range(0..3),
                ..welcome()
            })),
            6 => control(control_frame::Kind::Refused(v1::Refused {
                code: rng.random(),
                text: words(),
                alternatives: vec![words()],
            })),
            7 => framed(&v1::ControlFrame { kind: None }),
            _ => vec![4, 0xfa, 0xf0, 0x04, 0x00],
        });
    }
    bytes
}

/// The opening of some kind and what may come first on it.
fn some_stream(rng: &mut StdRng) -> Vec<u8> {
    let which = rng.random_range(0..11);
    let Some(kind) = kinds().into_iter().nth(which) else {
        // A second control stream.
        let mut bytes = opening(v1::stream_open::Kind::Control(v1::ControlOpen {}));
        bytes.extend(some_control(rng));
        return bytes;
    };
    let mut bytes = opening(kind);
    let records = vec![v1::LogRecord { data: Bytes::from(vec![7; 500]), ..Default::default() }];
    bytes.extend(match which {
        0 => framed(&v1::NodeReport { nodes: vec![v1::NodeState::default(); 20], ..Default::default() }),
        1 => framed(&v1::LogBatch { records, ..Default::default() }),
        3 => framed(&v1::RunEvent { sequence: 1, task: vec![1; 16], ..Default::default() }),
        5 => framed(&v1::ExecInput::default()),
        _ => framed(&v1::Ping { nonce: rng.random() }),
    });
    bytes
}

/// Says something on a stream, ends it somehow, and hears the other out or not.
async fn say(rng: &mut StdRng, (mut send, mut recv): (SendHalf, RecvHalf), mut bytes: Vec<u8>) {
    mutate(rng, &mut bytes);
    let at = rng.random_range(0..=bytes.len());
    let rest = Bytes::from(bytes.split_off(at));
    let _stopped = timeout(s(1), send.write_all(bytes.into())).await;
    if rng.random_bool(0.3) {
        sleep(Duration::from_millis(rng.random_range(0..3_000))).await;
    }
    let _stopped = timeout(s(1), send.write_all(rest)).await;
    match rng.random_range(0..6) {
        0 => send.finish(),
        1 => send.reset(ResetCode::Aborted),
        2 => recv.stop(ResetCode::Cancelled),
        3 => return,
        _ => {}
    }
    if rng.random() {
        let hearing = async { while let Ok(Some(_)) = recv.read(1 << 20).await {} };
        let _enough = timeout(Duration::from_millis(rng.random_range(0..20_000)), hearing).await;
    }
}

/// One rude dialer.
async fn rude_dialer(carrier: Carrier, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut all = vec![opening(v1::stream_open::Kind::Control(v1::ControlOpen {}))];
    if rng.random_bool(0.8) {
        let instance = vec![rng.random_range(1..4); 16];
        let session = if rng.random() { vec![7; 16] } else { Vec::new() };
        let greeting = v1::Hello { instance, session, moving: rng.random(), ..hello() };
        all[0].extend(control(control_frame::Kind::Hello(greeting)));
    }
    all[0].extend(some_control(&mut rng));
    all.extend((0..rng.random_range(0..6)).map(|_| some_stream(&mut rng)));
    if rng.random_bool(0.2) {
        let other = rng.random_range(0..all.len());
        all.swap(0, other);
    }
    converse(&carrier, &mut rng, all, Vec::new()).await;
    end(carrier, &mut rng).await;
}

/// One rude acceptor, which has heard the Hello or not.
async fn rude_acceptor(carrier: Carrier, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut answered = Vec::new();
    if rng.random_bool(0.9)
        && let Ok(Ok(halves)) = timeout(s(5), carrier.accept()).await
    {
        let mut bytes = if rng.random_bool(0.3) { some_control(&mut rng) } else { Vec::new() };
        bytes.extend(control(control_frame::Kind::Welcome(welcome())));
        bytes.extend(some_control(&mut rng));
        answered.push((halves, bytes));
    }
    let streams = (0..rng.random_range(0..6)).map(|_| some_stream(&mut rng)).collect();
    converse(&carrier, &mut rng, streams, answered).await;
    end(carrier, &mut rng).await;
}

async fn converse(
    carrier: &Carrier,
    rng: &mut StdRng,
    opened: Vec<Vec<u8>>,
    answered: Vec<((SendHalf, RecvHalf), Vec<u8>)>,
) {
    let mut saying = JoinSet::new();
    for (halves, bytes) in answered {
        let mut own = StdRng::seed_from_u64(rng.random());
        saying.spawn(async move { say(&mut own, halves, bytes).await });
    }
    for bytes in opened {
        let Ok(Ok(halves)) = timeout(s(2), carrier.open()).await else { break };
        let mut own = StdRng::seed_from_u64(rng.random());
        saying.spawn(async move { say(&mut own, halves, bytes).await });
        if rng.random() {
            sleep(Duration::from_millis(rng.random_range(0..50))).await;
        }
    }
    if rng.random_bool(0.7) {
        while saying.join_next().await.is_some() {}
    }
}

async fn end(carrier: Carrier, rng: &mut StdRng) {
    match rng.random_range(0..3) {
        0 => carrier.close(ResetCode::Cancelled, "enough"),
        1 => sleep(Duration::from_millis(rng.random_range(0..60_000))).await,
        _ => {}
    }
}

/// Seeds that found something, or nearly did.
const FOUND: [u64; 0] = [];

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    FOUND.into_iter().chain(0..count)
}

/// Whoever behaves is served, and nothing is left of the others.
async fn nothing_is_left(world: &World, server: &Server, pipes: &Arc<Pipes>, over: Over) {
    let (healthy, _incoming) = link(world, pipes, 900, over);
    online(&healthy, s(10)).await;
    call(&healthy).await;
    healthy.shutdown(s(1)).await;
    sleep(s(70)).await;
    let gauges = server.acceptor.gauges();
    let counts = [&gauges.sessions, &gauges.arriving, &gauges.over_tcp].map(|g| g.load(Ordering::Relaxed));
    assert_eq!(counts, [0, 0, 0], "over {over:?}");
    assert_eq!(server.gate.serving.load(Ordering::Relaxed), 0, "over {over:?}");
}

#[tokio::test(start_paused = true)]
async fn an_acceptor_outlives_whatever_is_said_on_a_connection() {
    watch_panics();
    for over in BOTH {
        let world = World::new(800);
        let (server, pipes) = world.server_over_tcp();
        let mut rude = JoinSet::new();
        for seed in seeds(600) {
            let carrier = dial(&world, &pipes, u16::try_from(seed % 800).unwrap(), over).await;
            rude.spawn(rude_dialer(carrier, seed));
            if rude.len() > 20 {
                rude.join_next().await.unwrap().unwrap();
            }
            assert_no_panic(seed, over);
        }
        rude.join_all().await;
        assert!(server.acceptor.gauges().admitted.load(Ordering::Relaxed) > 100, "most got in");
        nothing_is_left(&world, &server, &pipes, over).await;
        assert_no_panic(u64::MAX, over);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dialer_outlives_whatever_is_said_on_a_connection() {
    watch_panics();
    for over in BOTH {
        let world = World::new(801);
        let (rude, pipes) = Rude::new(&world);
        let (link, mut incoming) = link(&world, &pipes, 1, over);
        let taking = tokio::spawn(async move {
            while let Some(opened) = incoming.recv().await {
                tokio::spawn(read_frames(opened.kind, opened.stream));
            }
        });
        for seed in seeds(200) {
            // Whatever it was told, it comes back.
            let next = timeout(s(75), rude.accept(over));
            let carrier = next.await.unwrap_or_else(|_| panic!("it gave up after seed {seed} over {over:?}"));
            rude_acceptor(carrier.clone(), seed).await;
            sleep(s(1)).await;
            carrier.close(ResetCode::Cancelled, "the next");
            assert_no_panic(seed, over);
        }
        let server = rude.reformed(&world);
        online(&link, s(45)).await;
        call(&link).await;
        link.shutdown(s(1)).await;
        timeout(s(10), taking).await.expect("nothing more comes").unwrap();
        sleep(s(30)).await;
        assert_eq!(server.acceptor.gauges().sessions.load(Ordering::Relaxed), 0, "over {over:?}");
        assert_no_panic(u64::MAX, over);
    }
}
