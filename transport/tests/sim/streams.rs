//! Streams: abandoned, stopped, paused, huge. What one does costs no other anything.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use levers9_transport::link::Status;
use levers9_transport::quic::Settings;
use levers9_transport::sim::links;
use levers9_wire::v1::{self, ResetCode, stream_open};
use tokio::time::{Instant, sleep, timeout};

use crate::world::{World, call, download, drain, echo, online, s};

/// B1: what was not read of an abandoned stream must not be missing afterwards.
#[tokio::test(start_paused = true)]
async fn two_thousand_abandoned_streams_cost_no_window() {
    let mut world = World::new(51);
    world.settings = Settings { window: 1 << 20, window_max: 1 << 20, ..Settings::default() };
    world.network.set(links::rack());
    let server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    for round in 0..2_000u32 {
        let stream = download(&link, 256 * 1024).await;
        let (_, mut recv) = stream.recv.into_raw();
        recv.read(1024).await.unwrap();
        match round % 3 {
            0 => drop(recv),
            1 => recv.stop(ResetCode::Cancelled),
            _ => {
                let task = tokio::spawn(async move { recv.read(usize::MAX).await.map(drop) });
                task.abort();
            }
        }
    }
    let began = Instant::now();
    assert_eq!(timeout(s(3), drain(download(&link, 10 << 20).await)).await.unwrap().unwrap(), 10 << 20);
    assert!(began.elapsed() < s(3));
    sleep(s(1)).await;
    assert_eq!(server.gate.serving.load(Ordering::Relaxed), 0, "the server still serves abandoned streams");
}

/// B3: whatever the order of finish, stop and reset, the slot is given back.
#[tokio::test(start_paused = true)]
async fn short_streams_never_use_up_the_limit() {
    let mut world = World::new(52);
    world.settings.max_streams = 100;
    let server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    for round in 0..1_000u64 {
        let stream = timeout(s(1), download(&link, 8 * 1024)).await.expect("a stream can be opened");
        let (_, mut recv) = stream.recv.into_raw();
        let _first = recv.read(1).await;
        sleep(Duration::from_millis(round % 6)).await;
    }
    sleep(s(1)).await;
    assert_eq!(server.gate.serving.load(Ordering::Relaxed), 0);
}

/// B5: a reader that resumes wakes its sender at once, not with the next ping.
#[tokio::test(start_paused = true)]
async fn resuming_a_reader_on_a_quiet_connection_wakes_the_sender() {
    let mut world = World::new(53);
    world.settings = Settings {
        stream_window: 256 << 10,
        window: 384 << 10,
        window_max: 384 << 10,
        ..Settings::default()
    };
    let _server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    // Two streams, so that the stream's and the connection's limit block in turn.
    let first = download(&link, 8 << 20).await;
    let second = download(&link, 8 << 20).await;
    sleep(s(14)).await;
    let began = Instant::now();
    let (a, b) = tokio::join!(drain(first), drain(second));
    assert_eq!((a.unwrap(), b.unwrap()), (8 << 20, 8 << 20));
    assert!(began.elapsed() < s(2), "took {:?}", began.elapsed());
}

/// B2: a reader that stops reading pauses its own stream only.
#[tokio::test(start_paused = true)]
async fn eight_stalled_readers_stall_nobody_else() {
    let world = World::new(54);
    world.network.set(links::rack());
    let _server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    let mut stalled = Vec::new();
    for _ in 0..8 {
        stalled.push(download(&link, 1 << 40).await);
    }
    // What they hold at first is found out and made up for.
    sleep(s(3)).await;
    for _ in 0..200 {
        let began = Instant::now();
        timeout(s(1), call(&link)).await.expect("calls go on");
        assert!(began.elapsed() < Duration::from_millis(100));
        sleep(Duration::from_millis(500)).await;
    }
    assert!(matches!(*link.status().borrow(), Status::Online { .. }));
    // Speed is back, too, not only a trickle.
    let began = Instant::now();
    timeout(s(10), drain(download(&link, 10 << 20).await)).await.expect("in time").unwrap();
    assert!(began.elapsed() < s(2), "took {:?}", began.elapsed());
    drop(stalled);
}

/// B6: a frame larger than the window arrives all the same.
#[tokio::test(start_paused = true)]
async fn a_message_larger_than_the_window_arrives() {
    let mut world = World::new(55);
    world.settings = Settings {
        stream_window: 256 << 10,
        window: 256 << 10,
        window_max: 256 << 10,
        ..Settings::default()
    };
    let _server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    // A report of several MiB, echoed back through the same small window.
    let report = vec![3u8; 5 << 20];
    timeout(s(5), echo(&link, &report)).await.expect("in time");
}

/// B42: what was written before a close arrives before it.
#[tokio::test(start_paused = true)]
async fn the_tail_of_a_stream_outlives_an_orderly_goodbye() {
    for seed in 0..40 {
        let world = World::new(600 + seed);
        world.network.set(links::train());
        let _server = world.server();
        let (link, _incoming) = world.link(1);
        online(&link, s(60)).await;
        echo(&link, &vec![9u8; 200_000]).await;
        link.shutdown(s(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_send_loses_nothing_and_mixes_nothing() {
    let mut world = World::new(56);
    world.settings =
        Settings { stream_window: 64 << 10, window: 64 << 10, window_max: 64 << 10, ..Settings::default() };
    let _server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    let mut stream = link.open(stream_open::Kind::Log(v1::LogOpen::default())).await.unwrap();
    let record = |index: u64| v1::LogBatch {
        records: vec![v1::LogRecord { index, data: Bytes::from(vec![5u8; 10_000]), ..Default::default() }],
        ..Default::default()
    };
    let reader = async {
        let mut next = 0;
        while next < 200 {
            let batch: v1::LogBatch = stream.recv.expect().await.unwrap();
            assert_eq!(batch.records[0].index, next);
            assert_eq!(batch.records[0].data.len(), 10_000);
            next += 1;
            sleep(Duration::from_millis(3)).await;
        }
    };
    let writer = async {
        for index in 0..200 {
            // Each send is dropped after a moment; the frame must still go out whole, once.
            let _cut = timeout(Duration::from_millis(1), stream.send.send(&record(index))).await;
            sleep(Duration::from_millis(2)).await;
        }
        stream.send.flush().await.unwrap();
    };
    timeout(s(60), async { tokio::join!(reader, writer) }).await.expect("in time");
}
