//! The receiving side of measurements.

use crate::world::*;
use bytes::Bytes;
use levers9_transport::stream::Stream;
use levers9_wire::v1::{self, BenchKind, FailureCode, stream_open};

async fn begin(world: &World, kind: BenchKind, duration_ms: u64) -> (Stream, v1::BenchAnswer) {
    let open = v1::BenchOpen { kind: kind.into(), duration_ms, ..v1::BenchOpen::default() };
    let mut stream = world.open(stream_open::Kind::Bench(open)).await;
    let answer = within("an answer", stream.recv.expect::<v1::BenchAnswer>()).await.expect("an answer");
    (stream, answer)
}

#[tokio::test]
async fn bytes_are_counted_up_and_sent_down() {
    let world = World::new(true).await;
    let (mut stream, answer) = begin(&world, BenchKind::Open, 0).await;
    assert!(answer.failure.is_none() && answer.cpu_us.len() == 1 && answer.cpu_us[0] > 0, "{answer:?}");
    assert_eq!(within("the end", stream.recv.next::<v1::BenchAnswer>()).await, Ok(None));

    let (mut stream, first) = begin(&world, BenchKind::Up, 1000).await;
    let mut send = stream.send.into_raw().await.expect("whole");
    for _ in 0..100 {
        send.write_all(Bytes::from(vec![1; 100_000])).await.expect("sent");
    }
    send.finish();
    let second: v1::BenchAnswer = within("an answer", stream.recv.expect()).await.expect("an answer");
    assert_eq!(second.bytes, 10_000_000);
    assert!(second.cpu_us >= first.cpu_us);

    let (mut stream, _) = begin(&world, BenchKind::Down, 100).await;
    stream.send.finish();
    let (first, mut recv) = stream.recv.into_raw();
    let mut bytes = first.len();
    while let Some(more) = within("bytes", recv.read(1 << 20)).await.expect("whole") {
        bytes += more.len();
    }
    assert!(bytes > 1 << 20, "{bytes}");
}

#[tokio::test]
async fn there_are_not_more_than_may_be_and_no_nonsense() {
    let world = World::new(true).await;
    let (_, answer) = begin(&world, BenchKind::Down, 61_000).await;
    assert_eq!(answer.failure.expect("refused").code(), FailureCode::Invalid);
    let mut all = Vec::new();
    for _ in 0..64 {
        let (stream, answer) = begin(&world, BenchKind::Up, 1000).await;
        assert_eq!(answer.failure, None);
        all.push(stream);
    }
    let (_, answer) = begin(&world, BenchKind::Open, 0).await;
    assert_eq!(answer.failure.expect("refused").code(), FailureCode::Busy);
    drop(all);
    let works = async || begin(&world, BenchKind::Open, 0).await.1.failure.is_none();
    Box::pin(within("room again", async { while !works().await {} })).await;
}
