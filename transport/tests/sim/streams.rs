//! Streams: abandoned, stopped, paused, huge. What one does costs no other anything.

use std::time::Duration;

use bytes::Bytes;
use levers9_transport::Stream;
use levers9_transport::link::Status;
use levers9_transport::quic::Settings;
use levers9_transport::sim::links;
use levers9_wire::limits;
use levers9_wire::v1::{self, stream_open};
use prost::Message as _;
use tokio::time::{Instant, sleep, timeout};

use crate::raw::{BOTH, link};
use crate::world::{World, call, download, drain, echo, online, s};

/// Reads to the end; how long the longest pause between two reads was.
async fn longest_pause(stream: Stream) -> (u64, Duration) {
    let (first, mut recv) = stream.recv.into_raw();
    let (mut count, mut longest, mut last) = (first.len() as u64, Duration::ZERO, Instant::now());
    while let Some(bytes) = recv.read(32 * 1024).await.unwrap() {
        count += bytes.len() as u64;
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    (count, longest)
}

/// B5: a reader that resumes wakes its sender at once, not with the next ping
/// or keep-alive, whether the stream's or the connection's limit blocks it.
#[tokio::test(start_paused = true)]
async fn resuming_a_reader_on_a_quiet_connection_wakes_the_sender() {
    let soon = Duration::from_millis(200);
    for over in BOTH {
        for (pings, quiet) in [(true, 14), (true, 17), (true, 29), (false, 40)] {
            let mut world = World::new(53);
            world.settings = Settings {
                stream_window: 256 << 10,
                window: 384 << 10,
                window_max: 384 << 10,
                ..Settings::default()
            };
            if !pings {
                let never = s(3600);
                world.settings.keep_alive = never;
                world.settings.idle_timeout = 4 * never;
                world.ping_every = Some(never);
            }
            let (_server, pipes) = world.server_over_tcp();
            let (link, _incoming) = link(&world, &pipes, 1, over);
            online(&link, s(10)).await;
            // The first is held by its own limit, the second by what that left of the connection's.
            let first = download(&link, 4 << 20).await;
            sleep(Duration::from_millis(100)).await;
            let second = download(&link, 4 << 20).await;
            sleep(s(quiet)).await;
            let (read, pause) = longest_pause(second).await;
            assert_eq!(read, 4 << 20);
            assert!(pause < soon, "{over:?}, pings {pings}, quiet {quiet} s: the second paused {pause:?}");
            let (read, pause) = longest_pause(first).await;
            assert_eq!(read, 4 << 20);
            assert!(pause < soon, "{over:?}, pings {pings}, quiet {quiet} s: the first paused {pause:?}");
        }
    }
}

/// B2: a reader that stops reading pauses its own stream only.
#[tokio::test(start_paused = true)]
async fn eight_stalled_readers_stall_nobody_else() {
    for over in BOTH {
        let world = World::new(54);
        world.network.set(links::rack());
        let (_server, pipes) = world.server_over_tcp();
        let (link, _incoming) = link(&world, &pipes, 1, over);
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
}

/// B6: one frame larger than any window is read whole.
#[tokio::test(start_paused = true)]
async fn a_frame_larger_than_the_window_is_read_whole() {
    for over in BOTH {
        let mut world = World::new(55);
        world.settings = Settings {
            stream_window: 256 << 10,
            window: 256 << 10,
            window_max: 256 << 10,
            ..Settings::default()
        };
        let (_server, pipes) = world.server_over_tcp();
        let (link, _incoming) = link(&world, &pipes, 1, over);
        online(&link, s(10)).await;
        let node = v1::NodeState { name: "n".repeat(800), ..v1::NodeState::default() };
        let report = v1::NodeReport { nodes: vec![node; 5_100], ..v1::NodeReport::default() };
        assert!((4_000_000..limits::NODE_REPORT).contains(&report.encoded_len()));
        let log = stream_open::Kind::Log(v1::LogOpen::default());
        let Stream { send, recv } = link.open(log).await.unwrap();
        // There and back through the same small windows.
        let (mut send, mut recv) =
            (send.with_limit(limits::NODE_REPORT), recv.with_limit(limits::NODE_REPORT));
        let there_and_back = async { tokio::join!(send.send(&report), recv.expect::<v1::NodeReport>()) };
        let (sent, read) = timeout(s(2), there_and_back).await.expect("in time");
        sent.unwrap();
        assert!(read.unwrap() == report, "over {over:?}");
        // A piece of a log too, beside another stream that is not read.
        let _unread = download(&link, 1 << 30).await;
        let records =
            vec![v1::LogRecord { data: Bytes::from(vec![5; limits::LOG_PIECE]), ..Default::default() }];
        let batch = v1::LogBatch { records, ..Default::default() };
        let mut stream = link.open(stream_open::Kind::Log(v1::LogOpen::default())).await.unwrap();
        let there_and_back =
            async { tokio::join!(stream.send.send(&batch), stream.recv.expect::<v1::LogBatch>()) };
        let (sent, read) = timeout(s(5), there_and_back).await.expect("in time");
        sent.unwrap();
        assert!(read.unwrap() == batch, "over {over:?}");
    }
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
