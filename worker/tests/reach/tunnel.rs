//! Connections to ports of a container.

use std::net::TcpListener;
use std::time::Duration;

use crate::helper::{self, BE, answer, checksum::digest};
use crate::world::*;
use bytes::Bytes;
use levers9_transport::quic::HalfError;
use levers9_transport::stream::Stream;
use levers9_transport::tunnel::Raw;
use levers9_wire::ContainerId;
use levers9_wire::v1::{self, FailureCode, ResetCode, stream_open};

/// A container that listens as a helper of this kind, and its port.
async fn listening(world: &World, kind: &str) -> (Container, u32) {
    let _old = std::fs::remove_file(world.work.join("port"));
    let container = world.run_with(&helper::command(), &[(BE, kind)], "").await;
    let port = world.written("port").await.parse().expect("a port");
    (container, port)
}

async fn open(world: &World, container: ContainerId, generation: u64, port: u32) -> Stream {
    let open = v1::TunnelOpen { container: container.to_wire(), generation, port };
    world.open(stream_open::Kind::Tunnel(open)).await
}

async fn refused(mut stream: Stream) -> v1::Failure {
    let answer = within("an answer", stream.recv.expect::<v1::TunnelAnswer>()).await.expect("an answer");
    stream.send.finish();
    let end = within("the end", stream.recv.next::<v1::TunnelAnswer>()).await.expect("whole");
    assert_eq!(end, None);
    answer.failure.expect("refused")
}

async fn connected(mut stream: Stream) -> Raw {
    let answer = within("an answer", stream.recv.expect::<v1::TunnelAnswer>()).await.expect("an answer");
    assert_eq!(answer.failure, None);
    Raw::of(stream).await.expect("whole")
}

async fn connect(world: &World, container: &Container, port: u32) -> Raw {
    connected(open(world, container.id, 1, port).await).await
}

async fn read_all(raw: &mut Raw) -> Result<Vec<u8>, HalfError> {
    let mut all = std::mem::take(&mut raw.first).to_vec();
    while let Some(bytes) = within("bytes", raw.recv.read(1 << 20)).await? {
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

/// Reads what a helper says first.
async fn hello(raw: &mut Raw) {
    let mut said = std::mem::take(&mut raw.first).to_vec();
    while said.len() < 5 {
        said.extend(within("hello", raw.recv.read(100)).await.expect("whole").expect("more"));
    }
    assert_eq!(said, b"hello");
}

fn input(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

#[tokio::test]
async fn the_end_of_one_direction_leaves_the_other_open() {
    for namespaces in [true, false] {
        let world = World::new(namespaces).await;
        let (container, port) = listening(&world, "answer").await;
        for length in (0..40).map(|n| n * 7001) {
            let mut raw = connect(&world, &container, port).await;
            let bytes = input(length);
            raw.send.write_all(Bytes::from(bytes.clone())).await.expect("sent");
            raw.send.finish();
            assert!(read_all(&mut raw).await.expect("whole") == answer(&bytes), "{length} bytes");
        }
        // Without waiting for the answer.
        let mut stream = open(&world, container.id, 1, port).await;
        let (recv, send) = (&mut stream.recv, stream.send);
        let mut send = send.into_raw().await.expect("whole");
        send.write_all(Bytes::from_static(b"early")).await.expect("sent");
        send.finish();
        assert_eq!(recv.expect::<v1::TunnelAnswer>().await.expect("an answer").failure, None);
        let (first, recv) = stream.recv.into_raw();
        assert!(read_all(&mut Raw { send, first, recv }).await.expect("whole") == answer(b"early"));

        let (container, port) = listening(&world, "first").await;
        let mut raw = connect(&world, &container, port).await;
        assert!(read_all(&mut raw).await.expect("whole") == answer(b""));
        let bytes = input(3 << 20);
        raw.send.write_all(Bytes::from(bytes.clone())).await.expect("sent");
        raw.send.finish();
        assert_eq!(world.written("seen").await, format!("{} {}", bytes.len(), digest(&bytes)));
    }
}

#[tokio::test]
async fn a_reset_is_a_reset_on_the_other_side() {
    let world = World::new(true).await;
    let (container, port) = listening(&world, "break").await;
    let mut raw = connect(&world, &container, port).await;
    raw.send.write_all(Bytes::from_static(b"x")).await.expect("sent");
    let cut = within_time("the break", Duration::from_secs(1), read_all(&mut raw)).await;
    assert!(matches!(cut, Err(HalfError::Reset(reset)) if reset.code == ResetCode::Aborted), "{cut:?}");

    let (container, port) = listening(&world, "watch").await;
    let mut raw = connect(&world, &container, port).await;
    hello(&mut raw).await;
    raw.abort(ResetCode::Aborted);
    let how = within_time("the reset", Duration::from_secs(1), world.written("how")).await;
    assert_eq!(how, "ConnectionReset");
    drop(container);
}

#[tokio::test]
async fn every_kind_of_listener_is_reached() {
    let world = World::new(false).await;
    for address in ["127.0.0.1:0", "0.0.0.0:0", "127.0.0.9:0", "[::]:0", "[::1]:0"] {
        let bindable = TcpListener::bind(address).is_ok();
        if !bindable {
            println!("cannot listen on {address} here");
            continue;
        }
        let (container, port) = listening(&world, &format!("answer {address}")).await;
        let mut raw = connect(&world, &container, port).await;
        raw.send.finish();
        assert!(read_all(&mut raw).await.expect("whole") == answer(b""), "{address}");
    }
}

#[tokio::test]
async fn what_is_not_the_container_s_is_refused() {
    for namespaces in [true, false] {
        let world = World::new(namespaces).await;
        let (mut container, port) = listening(&world, "close").await;
        let free = TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("bound").port();
        let nobody = refused(open(&world, container.id, 1, free.into()).await).await;
        let text = format!("nothing in the container listens on port {free}");
        assert_eq!((nobody.code(), nobody.text), (FailureCode::NotListening, text));

        let own = TcpListener::bind("127.0.0.1:0").expect("bound");
        let foreign = own.local_addr().expect("bound").port();
        let refusal = refused(open(&world, container.id, 1, foreign.into()).await).await;
        let text = format!("what listens on port {foreign} is not the container's");
        assert_eq!((refusal.code(), refusal.text), (FailureCode::NotOwn, text));
        own.set_nonblocking(true).expect("set");
        assert!(own.accept().is_err(), "nothing was dialled");
        // Another container's is as foreign.
        let other = world.run("exec sleep 1000").await;
        assert_eq!(refused(open(&world, other.id, 1, port).await).await.code(), FailureCode::NotOwn);

        let unknown = open(&world, ContainerId::generate(), 1, port).await;
        assert_eq!(refused(unknown).await.code(), FailureCode::NotFound);
        assert_eq!(refused(open(&world, container.id, 7, port).await).await.code(), FailureCode::NotFound);
        assert_eq!(refused(open(&world, container.id, 0, port).await).await.code(), FailureCode::Invalid);
        assert_eq!(refused(open(&world, container.id, 1, 0).await).await.code(), FailureCode::Invalid);
        // One that closes at once is an end, again and again.
        for _ in 0..20 {
            let mut raw = connect(&world, &container, port).await;
            assert_eq!(read_all(&mut raw).await, Ok(Vec::new()));
            raw.send.finish();
        }
        container.stop(v1::StopReason::Cancelled).await;
        container.ended().await;
        let ended = refused(open(&world, container.id, 1, port).await).await.code();
        assert!([FailureCode::NotRunning, FailureCode::NotFound].contains(&ended), "{ended:?}");
    }
}

#[tokio::test]
async fn a_port_that_changes_hands_is_looked_at_again() {
    let world = World::new(true).await;
    let script = format!("({}) & echo $! > pid; exec sleep 1000", helper::command());
    let container = world.run_with(&script, &[(BE, "answer")], "").await;
    let port: u16 = world.written("port").await.parse().expect("a port");
    let mut raw = connect(&world, &container, port.into()).await;
    raw.send.finish();
    read_all(&mut raw).await.expect("whole");
    world.sh(&container, "kill -9 $(cat pid)").await;
    let mut own = None;
    until("the port is free", || {
        own = TcpListener::bind(("127.0.0.1", port)).ok();
        own.is_some()
    })
    .await;
    let refusal = refused(open(&world, container.id, 1, port.into()).await).await;
    assert_eq!(refusal.code(), FailureCode::NotOwn);
}

#[tokio::test]
async fn tunnels_end_with_their_container_and_their_worker() {
    let world = World::new(true).await;
    let (container, port) = listening(&world, "hold").await;
    let mut all = Vec::new();
    for _ in 0..20 {
        let mut raw = connect(&world, &container, port).await;
        hello(&mut raw).await;
        all.push(raw);
    }
    container.stop(v1::StopReason::Cancelled).await;
    within_time("the end", Duration::from_secs(2), async {
        for mut raw in all {
            // The system ends a dead process's connections as if it had.
            let _end = read_all(&mut raw).await;
            raw.send.stopped().await;
        }
    })
    .await;
    let (container, port) = listening(&world, "hold").await;
    let mut raw = connect(&world, &container, port).await;
    hello(&mut raw).await;
    within("the shutdown", world.worker.shutdown(Duration::ZERO)).await;
    let _end = read_all(&mut raw).await;
    within("the stop", raw.send.stopped()).await;
}

#[tokio::test]
async fn there_are_not_more_than_may_be() {
    let world = World::new(true).await;
    let (container, port) = listening(&world, "hold").await;
    let mut held = Vec::new();
    // No more at once than the helper has a backlog for.
    for _ in 0..32 {
        let mut some = Vec::new();
        for _ in 0..32 {
            some.push(open(&world, container.id, 1, port).await);
        }
        for stream in some {
            let mut raw = connected(stream).await;
            hello(&mut raw).await;
            held.push(raw);
        }
    }
    let refusal = refused(open(&world, container.id, 1, port).await).await;
    assert_eq!(refusal.code(), FailureCode::Busy);
    held.truncate(1000);
    drop(connected(open(&world, container.id, 1, port).await).await);
}

#[test]
fn dials_that_are_given_up_leave_nothing() {
    alone("tunnel::given_up", "LEVERS9_TEST_GIVEN_UP");
}

/// Not a test by itself: in a process of its own.
#[tokio::test]
async fn given_up() {
    if std::env::var_os("LEVERS9_TEST_GIVEN_UP").is_none() {
        return;
    }
    let world = World::new(true).await;
    // Nobody accepts, and the backlog is soon full: the rest is never answered.
    let script = "exec python3 -c '
import socket, time
s = socket.socket(); s.bind((\"127.0.0.1\", 0)); s.listen(0)
open(\"port\", \"w\").write(str(s.getsockname()[1]) + \"\\n\")
time.sleep(1000)'";
    let container = world.run(script).await;
    let port: u32 = world.written("port").await.parse().expect("a port");
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("readable").count();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = (descriptors(), tasks());
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let mut streams = Vec::new();
        for _ in 0..50 {
            streams.push(open(&world, container.id, 1, port).await);
        }
        waiting.push(streams.pop());
        drop(streams);
    }
    // Some were never answered, and that is a failure of its own in the end.
    let mut timed_out = 0;
    for mut stream in waiting.into_iter().flatten() {
        let answer = within("an answer", stream.recv.expect::<v1::TunnelAnswer>()).await.expect("an answer");
        timed_out += usize::from(answer.failure.is_some_and(|f| f.code() == FailureCode::Timeout));
    }
    assert!(timed_out > 0);
    until("nothing is left", || descriptors() <= before.0 && tasks() <= before.1).await;
}
