//! Tunnels: an end is passed on as an end, a cut as a cut, at once and in both
//! directions, and what waits is bounded.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use levers9_transport::link::{Link, Opened};
use levers9_transport::quic::{HalfError, RecvHalf};
use levers9_transport::sim::links;
use levers9_transport::tunnel::Raw;
use levers9_wire::v1::{self, ResetCode, stream_open};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::raw::{self, BOTH, Over};
use crate::world::{Server, World, online};

const SOON: Duration = Duration::from_secs(1);

/// Both ends of a tunnel through the server.
async fn tunnel(link: &Link, incoming: &mut mpsc::Receiver<Box<Opened>>) -> (Raw, Raw) {
    let open = stream_open::Kind::Tunnel(v1::TunnelOpen { port: 8000, ..v1::TunnelOpen::default() });
    let near = link.open(open).await.unwrap();
    let far = incoming.recv().await.unwrap();
    assert!(matches!(&far.kind, stream_open::Kind::Tunnel(open) if open.port == 8000));
    (Raw::of(near).await.unwrap(), Raw::of(far.stream).await.unwrap())
}

async fn world(seed: u64, over: Over) -> (World, Server, Link, mpsc::Receiver<Box<Opened>>) {
    let world = World::new(seed);
    world.network.set(links::rack());
    let (server, pipes) = world.server_over_tcp();
    let (link, incoming) = raw::link(&world, &pipes, 1, over);
    online(&link, Duration::from_secs(10)).await;
    (world, server, link, incoming)
}

async fn read_all(recv: &mut RecvHalf) -> Result<usize, HalfError> {
    let mut length = 0;
    while let Some(bytes) = recv.read(usize::MAX).await? {
        length += bytes.len();
    }
    Ok(length)
}

fn code(result: Result<usize, HalfError>) -> ResetCode {
    match result {
        Err(HalfError::Reset(reset)) => reset.code,
        other => panic!("not a reset: {other:?}"),
    }
}

/// B25: who ends one direction still gets the other, whichever side ends first.
#[tokio::test(start_paused = true)]
async fn the_end_of_one_direction_leaves_the_other() {
    for over in BOTH {
        let (_world, server, link, mut incoming) = world(71, over).await;
        for near_first in [true, false] {
            let (near, far) = tunnel(&link, &mut incoming).await;
            let (mut one, mut other) = if near_first { (near, far) } else { (far, near) };
            one.send.write_all(Bytes::from_static(b"question")).await.unwrap();
            one.send.finish();
            assert_eq!(read_all(&mut other.recv).await.unwrap(), 8);
            sleep(Duration::from_secs(120)).await;
            let answering = async {
                other.send.write_all(Bytes::from(vec![7; 1 << 20])).await.unwrap();
                other.send.finish();
            };
            let ((), read) = tokio::join!(answering, read_all(&mut one.recv));
            assert_eq!(read.unwrap(), 1 << 20);
        }
        sleep(SOON).await;
        assert_eq!(server.gate.serving.load(Ordering::Relaxed), 0);
    }
}

/// B27: a cut in one direction is a cut in both, within a second, never an end.
#[tokio::test(start_paused = true)]
async fn a_cut_is_passed_on_both_ways() {
    for over in BOTH {
        let (_world, server, link, mut incoming) = world(72, over).await;
        let cuts: [fn(&mut Raw); 3] = [
            |end| end.send.reset(ResetCode::Aborted),
            |end| end.recv.stop(ResetCode::Aborted),
            |end| end.abort(ResetCode::Aborted),
        ];
        for cut in cuts {
            for at_near in [true, false] {
                let (near, far) = tunnel(&link, &mut incoming).await;
                let (mut one, mut other) = if at_near { (near, far) } else { (far, near) };
                other.send.write_all(Bytes::from_static(b"under way")).await.unwrap();
                cut(&mut one);
                let began = Instant::now();
                let stopped = timeout(SOON, other.send.stopped()).await.expect("writing fails in time");
                assert_eq!(code(Err(stopped)), ResetCode::Aborted);
                let read = timeout(SOON, read_all(&mut other.recv)).await.expect("reading fails in time");
                assert_eq!(code(read), ResetCode::Aborted);
                assert!(began.elapsed() < SOON);
            }
        }
        sleep(SOON).await;
        assert_eq!(server.gate.serving.load(Ordering::Relaxed), 0);
    }
}

/// A server that closes after its answer cuts nothing off, though the other
/// side has not ended yet.
#[tokio::test(start_paused = true)]
async fn who_is_done_stops_reading_and_nothing_is_cut() {
    for over in BOTH {
        let (_world, server, link, mut incoming) = world(77, over).await;
        for near_first in [true, false] {
            let (near, far) = tunnel(&link, &mut incoming).await;
            let (mut one, mut other) = if near_first { (near, far) } else { (far, near) };
            // As much as fits before anything is read.
            let length = if over == Over::Quic { 1 << 20 } else { 60 << 10 };
            one.send.write_all(Bytes::from(vec![7; length])).await.unwrap();
            one.send.finish();
            one.recv.stop(ResetCode::Done);
            sleep(SOON).await;
            assert_eq!(read_all(&mut other.recv).await.unwrap(), length);
            let stopped = timeout(SOON, other.send.stopped()).await.expect("it is told");
            assert_eq!(code(Err(stopped)), ResetCode::Done);
        }
        sleep(SOON).await;
        assert_eq!(server.gate.serving.load(Ordering::Relaxed), 0);
    }
}

/// A side that is dropped in the middle has not ended well.
#[tokio::test(start_paused = true)]
async fn a_dropped_side_is_no_end() {
    for over in BOTH {
        let (_world, _server, link, mut incoming) = world(73, over).await;
        let (mut near, far) = tunnel(&link, &mut incoming).await;
        near.send.write_all(Bytes::from_static(b"half a mess")).await.unwrap();
        drop(far);
        let read = timeout(SOON, read_all(&mut near.recv)).await.expect("in time");
        assert_eq!(code(read), ResetCode::Cancelled);
    }
}

/// B27: also while nothing can be written on, because the reader stands still.
#[tokio::test(start_paused = true)]
async fn a_cut_gets_through_a_full_tunnel() {
    for over in BOTH {
        let (_world, server, link, mut incoming) = world(74, over).await;
        for at_near in [true, false] {
            let (near, far) = tunnel(&link, &mut incoming).await;
            let (mut one, other) = if at_near { (near, far) } else { (far, near) };
            let block = Bytes::from(vec![7; 64 * 1024]);
            let mut written = 0;
            // Nobody reads at the other end: at some point nothing more fits.
            while timeout(SOON, one.send.write_all(block.clone())).await.is_ok_and(|sent| sent.is_ok()) {
                written += block.len();
                assert!(written < 64 << 20, "the tunnel holds {written} bytes");
            }
            one.abort(ResetCode::Aborted);
            let stopped = timeout(SOON, other.send.stopped()).await.expect("the cut is seen in time");
            assert_eq!(code(Err(stopped)), ResetCode::Aborted);
            drop(other);
        }
        sleep(SOON).await;
        assert_eq!(server.gate.serving.load(Ordering::Relaxed), 0);
    }
}

/// B2, B5: a tunnel nobody reads stalls no other, and goes on when it is read.
#[tokio::test(start_paused = true)]
async fn a_full_tunnel_stalls_only_itself() {
    for over in BOTH {
        let (_world, _server, link, mut incoming) = world(75, over).await;
        let (mut full, mut unread) = tunnel(&link, &mut incoming).await;
        let sending = tokio::spawn(async move {
            full.send.write_all(Bytes::from(vec![7; 32 << 20])).await.unwrap();
            full.send.finish();
            full.send.delivered().await
        });
        sleep(Duration::from_secs(5)).await;
        for _ in 0..200 {
            let began = Instant::now();
            let (mut near, mut far) = tunnel(&link, &mut incoming).await;
            near.send.write_all(Bytes::from_static(b"x")).await.unwrap();
            near.send.finish();
            assert_eq!(read_all(&mut far.recv).await.unwrap(), 1);
            far.send.finish();
            assert_eq!(read_all(&mut near.recv).await.unwrap(), 0);
            assert!(began.elapsed() < SOON, "took {:?}", began.elapsed());
        }
        assert_eq!(
            timeout(Duration::from_secs(30), read_all(&mut unread.recv)).await.unwrap().unwrap(),
            32 << 20
        );
        unread.send.finish();
        timeout(SOON, sending).await.unwrap().unwrap().unwrap();
    }
}

/// When the carrier dies both sides are told so.
#[tokio::test(start_paused = true)]
async fn a_lost_carrier_is_a_cut() {
    let (world, server, link, mut incoming) = world(76, Over::Quic).await;
    let (mut near, _far) = tunnel(&link, &mut incoming).await;
    server.kill(&world);
    let read = timeout(Duration::from_secs(90), read_all(&mut near.recv)).await.expect("noticed in time");
    assert!(matches!(read, Err(HalfError::Lost(_))), "{read:?}");
}
