//! What streams borrow of their carrier they give back: window, places and
//! halves, in whichever way and order they end, from either end, on both carriers.

use std::time::Duration;

use bytes::Bytes;
use levers9_transport::Carrier;
use levers9_transport::carrier::{RecvHalf, SendHalf};
use levers9_transport::quic::{HalfError, Settings};
use levers9_transport::sim::links;
use levers9_wire::v1::ResetCode;
use tokio::time::{sleep, timeout};

use crate::raw::{BOTH, pair};
use crate::world::{World, s};

/// Opens a stream that has said something, so that the other side sees it.
async fn open(from: &Carrier, to: &Carrier) -> ((SendHalf, RecvHalf), (SendHalf, RecvHalf)) {
    let opening = async {
        let (mut send, recv) = timeout(s(1), from.open()).await.expect("a place is free").unwrap();
        send.write_all(Bytes::from_static(b"x")).await.unwrap();
        (send, recv)
    };
    let (opened, accepted) = tokio::join!(opening, to.accept());
    (opened, accepted.unwrap())
}

async fn transfer(from: &Carrier, to: &Carrier, bytes: usize) {
    let ((mut send, recv), (back, mut taken)) = open(from, to).await;
    drop((recv, back));
    let writing = async {
        send.write_all(vec![3; bytes - 1].into()).await.unwrap();
        send.finish();
    };
    let reading = async {
        let mut read = 0;
        while let Some(piece) = taken.read(usize::MAX).await.unwrap() {
            read += piece.len();
        }
        read
    };
    let ((), read) = tokio::join!(writing, reading);
    assert_eq!(read, bytes);
}

/// B1: what was not read of an abandoned stream must not be missing afterwards,
/// whoever opened it and whoever was to read.
#[tokio::test(start_paused = true)]
async fn two_thousand_abandoned_streams_cost_no_window() {
    for over in BOTH {
        let mut world = World::new(51);
        world.settings = Settings { window: 1 << 20, window_max: 1 << 20, ..Settings::default() };
        world.network.set(links::rack());
        let (near, far) = pair(&world, over).await;
        for round in 0..2_000u32 {
            let (from, to) = if round % 2 == 0 { (&near, &far) } else { (&far, &near) };
            let ((opened_send, opened_recv), (accepted_send, accepted_recv)) = open(from, to).await;
            // The opener reads, or the other one.
            let (mut send, mut recv, _others) = if round % 4 < 2 {
                (opened_send, accepted_recv, (accepted_send, opened_recv))
            } else {
                (accepted_send, opened_recv, (opened_send, accepted_recv))
            };
            let writing = tokio::spawn(async move {
                let _stopped = send.write_all(vec![7; 256 * 1024].into()).await;
                send.finish();
            });
            recv.read(1024).await.unwrap();
            match round % 5 {
                0 => drop(recv),
                1 => recv.stop(ResetCode::Cancelled),
                2 => {
                    // Everything has come that fits, before it is dropped.
                    sleep(Duration::from_millis(5)).await;
                    drop(recv);
                }
                3 => {
                    recv.read(200 * 1024).await.unwrap();
                    drop(recv);
                }
                _ => {
                    let task = tokio::spawn(async move { recv.read(usize::MAX).await.map(drop) });
                    task.abort();
                }
            }
            timeout(s(1), writing).await.expect("the writer is told").unwrap();
        }
        for (from, to) in [(&near, &far), (&far, &near)] {
            timeout(s(3), transfer(from, to, 10 << 20)).await.expect("at full speed");
        }
        sleep(s(1)).await;
        assert_eq!((near.halves(), far.halves()), (0, 0), "over {over:?}");
    }
}

/// What the writing side does.
#[derive(Debug, Clone, Copy)]
enum Writes {
    Finishes,
    FinishesAfterALot,
    Resets,
    Drops,
    DropsAtOnce,
}

/// What the reading side does.
#[derive(Debug, Clone, Copy)]
enum Reads {
    All,
    OneAndDrops,
    Stops,
    StopsTwice,
    Drops,
}

async fn write(mut send: SendHalf, writes: Writes) {
    let some = Bytes::from(vec![1; 8 * 1024]);
    match writes {
        Writes::Finishes => {
            let _stopped = send.write_all(some).await;
            send.finish();
        }
        Writes::FinishesAfterALot => {
            let _stopped = send.write_all(vec![1; 400 * 1024].into()).await;
            send.finish();
            let _stopped = send.delivered().await;
        }
        Writes::Resets => {
            let _stopped = send.write_all(some).await;
            send.reset(ResetCode::Aborted);
        }
        Writes::Drops => drop(send.write_all(some).await),
        Writes::DropsAtOnce => {}
    }
}

async fn read(mut recv: RecvHalf, reads: Reads) {
    match reads {
        Reads::All => while let Ok(Some(_)) = recv.read(usize::MAX).await {},
        Reads::OneAndDrops => drop(recv.read(1).await),
        Reads::Stops => recv.stop(ResetCode::Done),
        Reads::StopsTwice => {
            recv.stop(ResetCode::Done);
            sleep(Duration::from_millis(2)).await;
            recv.stop(ResetCode::Cancelled);
        }
        Reads::Drops => {}
    }
}

/// B3: whatever the order of finish, stop and reset, the place is given back.
#[tokio::test(start_paused = true)]
async fn places_come_back_whatever_the_order_of_finish_stop_and_reset() {
    let writes =
        [Writes::Finishes, Writes::FinishesAfterALot, Writes::Resets, Writes::Drops, Writes::DropsAtOnce];
    let reads = [Reads::All, Reads::OneAndDrops, Reads::Stops, Reads::StopsTwice, Reads::Drops];
    for over in BOTH {
        let mut world = World::new(52);
        world.settings.max_streams = 20;
        let (near, far) = pair(&world, over).await;
        for (from, to) in [(&near, &far), (&far, &near)] {
            for (one, other) in writes.into_iter().flat_map(|w| reads.map(|r| (w, r))) {
                // Who comes first, and by how much.
                for (write_after, read_after) in [(0, 0), (0, 3), (3, 0), (0, 1), (1, 0), (5, 5)] {
                    let ms = Duration::from_millis;
                    let (opened, accepted) = open(from, to).await;
                    let halves = [
                        (opened.0, accepted.1, write_after, read_after),
                        (accepted.0, opened.1, read_after, write_after),
                    ];
                    let mut both = tokio::task::JoinSet::new();
                    for (send, recv, write_after, read_after) in halves {
                        both.spawn(async move {
                            sleep(ms(write_after)).await;
                            write(send, one).await;
                        });
                        both.spawn(async move {
                            sleep(ms(read_after)).await;
                            read(recv, other).await;
                        });
                    }
                    let ended = timeout(s(5), both.join_all()).await;
                    assert!(ended.is_ok(), "{one:?} against {other:?} hangs over {over:?}");
                }
            }
            sleep(s(1)).await;
            assert_eq!((near.halves(), far.halves()), (0, 0), "over {over:?}");
            // All places at once, and not one more.
            let mut held = Vec::new();
            for _ in 0..20 {
                held.push(open(from, to).await);
            }
            assert!(timeout(s(5), from.open()).await.is_err(), "over {over:?} there are too many");
            drop(held);
            sleep(s(1)).await;
        }
    }
}

/// A writer that is held up by the stream's window and the connection's at once
/// is told of a stop as any other, however it writes.
#[tokio::test(start_paused = true)]
async fn a_writer_that_waits_for_both_windows_is_told_of_a_stop() {
    for over in BOTH {
        for polled in [false, true] {
            let mut world = World::new(57);
            world.settings = Settings {
                stream_window: 128 << 10,
                window: 256 << 10,
                window_max: 256 << 10,
                ..Settings::default()
            };
            let (near, far) = pair(&world, over).await;
            // Two fill the connection's window, each its own.
            let mut writing = tokio::task::JoinSet::new();
            let mut unread = Vec::new();
            for _ in 0..2 {
                let ((mut send, recv), (back, taken)) = open(&near, &far).await;
                unread.push((taken, recv, back));
                writing.spawn(async move {
                    let bytes = vec![7; 1 << 20];
                    if polled {
                        write_polled(&mut send, &bytes).await
                    } else {
                        send.write_all(bytes.into()).await.unwrap_err()
                    }
                });
            }
            sleep(s(1)).await;
            for (mut taken, ..) in unread {
                taken.stop(ResetCode::Done);
                let told = timeout(s(1), writing.join_next()).await;
                let error = told.expect("it is told").unwrap().unwrap();
                assert!(matches!(error, HalfError::Reset(reset) if reset.code == ResetCode::Done), "{error}");
            }
        }
    }
}

/// Writing as those do who know only of `AsyncWrite`.
async fn write_polled(send: &mut SendHalf, bytes: &[u8]) -> HalfError {
    let error = tokio::io::AsyncWriteExt::write_all(send, bytes).await.unwrap_err();
    error.get_ref().and_then(|inner| inner.downcast_ref::<HalfError>()).expect("one of ours").clone()
}
