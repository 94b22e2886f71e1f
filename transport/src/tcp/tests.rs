//! Two ends of a TCP carrier over memory, on a paused clock: what streams do,
//! and what a peer that keeps no rules can do.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use levers9_wire::v1::ResetCode;
use levers9_wire::{Reset, Side};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use super::code::{Frame, put_frame};
use super::core::{Bounds, Core, Outgoing};
use super::{End, TcpCarrier};
use crate::carrier::{Carrier, CarrierKind, HalfError, Lost, RecvHalf, SendHalf, priority};
use crate::quic::Settings;

const PIPE: usize = 256 * 1024;

fn carrier(io: DuplexStream, end: End) -> Carrier {
    let peer = "192.0.2.1:443".parse().unwrap();
    Carrier::from(TcpCarrier::start(io, end, peer, &Settings::default(), &TaskTracker::new()))
}

fn dialer() -> End {
    End::Dialer(CarrierKind::Tcp, "UDP was not answered".to_owned())
}

/// Both ends.
fn pair() -> (Carrier, Carrier) {
    let (one, other) = duplex(PIPE);
    (carrier(one, dialer()), carrier(other, End::Acceptor))
}

/// One end, and the bytes of the other.
fn against_bytes() -> (Carrier, DuplexStream) {
    let (one, other) = duplex(PIPE);
    (carrier(one, End::Acceptor), other)
}

async fn both(one: &Carrier, other: &Carrier) -> ((SendHalf, RecvHalf), (SendHalf, RecvHalf)) {
    let opened = one.open().await.unwrap();
    (opened, other.accept().await.unwrap())
}

async fn read_all(recv: &mut RecvHalf) -> Result<Vec<u8>, HalfError> {
    let mut all = Vec::new();
    while let Some(bytes) = recv.read(usize::MAX).await? {
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

fn remote(code: ResetCode) -> HalfError {
    HalfError::Reset(Reset { code, side: Side::Remote })
}

#[tokio::test(start_paused = true)]
async fn both_sides_open_streams_and_each_direction_ends_for_itself() {
    let (one, other) = pair();
    for (opener, taker) in [(&one, &other), (&other, &one)] {
        let ((mut send, mut recv), (mut back, mut taken)) = both(opener, taker).await;
        send.write_all(Bytes::from_static(b"question")).await.unwrap();
        send.finish();
        assert_eq!(read_all(&mut taken).await.unwrap(), b"question");
        send.delivered().await.unwrap();
        back.write_all(Bytes::from_static(b"answer")).await.unwrap();
        back.finish();
        assert_eq!(read_all(&mut recv).await.unwrap(), b"answer");
    }
    assert_eq!((one.kind(), one.why().as_str()), (CarrierKind::Tcp, "UDP was not answered"));
    assert_eq!(other.why(), "UDP was not answered", "the accepting side is told why");
}

#[tokio::test(start_paused = true)]
async fn resets_and_stops_carry_their_codes_both_ways() {
    let (one, other) = pair();
    for (opener, taker) in [(&one, &other), (&other, &one)] {
        let ((mut send, mut recv), (mut back, mut taken)) = both(opener, taker).await;
        let stopped = send.stopped();
        taken.stop(ResetCode::TooLarge);
        assert_eq!(stopped.await, remote(ResetCode::TooLarge));
        let error = send.write_all(Bytes::from_static(b"x")).await.unwrap_err();
        assert_eq!(error, remote(ResetCode::TooLarge));
        back.write_all(Bytes::from_static(b"never seen")).await.unwrap();
        back.reset(ResetCode::Aborted);
        assert_eq!(recv.broken().await, remote(ResetCode::Aborted));
        assert_eq!(recv.read(10).await.unwrap_err(), remote(ResetCode::Aborted));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_half_is_a_cut_and_a_finished_one_an_end() {
    let (one, other) = pair();
    let ((mut send, recv), (back, mut taken)) = both(&one, &other).await;
    send.write_all(Bytes::from_static(b"some")).await.unwrap();
    drop(send);
    drop(recv);
    assert_eq!(read_all(&mut taken).await.unwrap_err(), remote(ResetCode::Cancelled));
    assert_eq!(back.stopped().await, remote(ResetCode::Unspecified));
    let ((mut send, _recv), (_back, mut taken)) = both(&one, &other).await;
    send.write_all(Bytes::from_static(b"all")).await.unwrap();
    send.finish();
    drop(send);
    assert_eq!(read_all(&mut taken).await.unwrap(), b"all");
}

/// B2: memory per paused stream is bounded, and nobody else waits.
#[tokio::test(start_paused = true)]
async fn a_reader_that_pauses_stalls_itself_only() {
    let (one, other) = pair();
    let ((mut stuck, _recv), (_back, mut unread)) = both(&one, &other).await;
    let block = Bytes::from(vec![7u8; 64 * 1024]);
    let filler = tokio::spawn({
        let block = block.clone();
        async move {
            for _ in 0..160 {
                stuck.write_all(block.clone()).await.unwrap();
            }
            stuck.finish();
        }
    });
    for _ in 0..20 {
        let ((mut send, _recv), (_back, mut taken)) = both(&one, &other).await;
        let reading = tokio::spawn(async move { read_all(&mut taken).await.unwrap().len() });
        for _ in 0..16 {
            send.write_all(block.clone()).await.unwrap();
        }
        send.finish();
        let read = timeout(Duration::from_secs(1), reading).await.expect("nobody waits").unwrap();
        assert_eq!(read, 1 << 20);
    }
    assert!(!filler.is_finished());
    // B5: it goes on at once.
    let began = Instant::now();
    assert_eq!(read_all(&mut unread).await.unwrap().len(), 10 << 20);
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
    filler.await.unwrap();
}

/// B1, B3: streams that are dropped in any state give everything back.
#[tokio::test(start_paused = true)]
async fn a_thousand_streams_and_two_thousand_that_are_abandoned() {
    let (one, other) = pair();
    other.permit_streams(1_000);
    let mut held = Vec::new();
    for _ in 0..1_000 {
        held.push(timeout(Duration::from_secs(1), both(&one, &other)).await.expect("permitted"));
    }
    let more = timeout(Duration::from_secs(5), one.open()).await;
    assert!(more.is_err(), "the one above the limit waits");
    for ((send, _), (_, taken)) in &mut held {
        send.write_all(Bytes::from_static(b"hello")).await.unwrap();
        assert_eq!(taken.read(100).await.unwrap().unwrap(), "hello");
    }
    held.clear();
    let mut rng = StdRng::seed_from_u64(5);
    for _ in 0..2_000 {
        let opened = timeout(Duration::from_secs(1), both(&one, &other)).await;
        let ((mut send, recv), (back, mut taken)) = opened.expect("a place is given back");
        let writing = tokio::spawn(async move {
            let _stopped = send.write_all(vec![1; 48 * 1024].into()).await;
            send.finish();
            drop(recv);
        });
        match rng.random_range(0..4) {
            0 => drop(taken),
            1 => taken.stop(ResetCode::Done),
            2 => drop(taken.read(1).await),
            _ => drop(read_all(&mut taken).await),
        }
        drop(back);
        writing.await.unwrap();
    }
    let ((mut send, _recv), (_back, mut taken)) = both(&one, &other).await;
    let reading = tokio::spawn(async move { read_all(&mut taken).await.unwrap().len() });
    send.write_all(vec![1; 10 << 20].into()).await.unwrap();
    send.finish();
    assert_eq!(reading.await.unwrap(), 10 << 20);
    drop(send);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(one.halves(), 1, "only this test's own half is left");
}

/// The state of a TCP carrier.
fn core_of<T>(carrier: &TcpCarrier, look: impl FnOnce(&Core) -> T) -> T {
    carrier.shared().with(|core| look(core))
}

fn bare_pair(settings: &Settings) -> (TcpCarrier, TcpCarrier) {
    let (one, other) = duplex(PIPE);
    let peer = "192.0.2.1:443".parse().unwrap();
    let start = |io, end| TcpCarrier::start(io, end, peer, settings, &TaskTracker::new());
    (start(one, dialer()), start(other, End::Acceptor))
}

/// B1: what the windows of streams have grown by comes back, however those end.
#[tokio::test(start_paused = true)]
async fn abandoned_streams_give_back_what_their_windows_have_grown_by() {
    let settings = Settings { stream_window: 1 << 20, window_max: 4 << 20, ..Settings::default() };
    let (one, other) = bare_pair(&settings);
    let mut least = u64::MAX;
    for round in 0..400 {
        let (mut send, _recv) = one.open().await.unwrap();
        let (_back, mut taken) = other.accept().await.unwrap();
        let writing = tokio::spawn(async move {
            let _stopped = send.write_all(vec![7; 2 << 20].into()).await;
            send.finish();
        });
        // Enough for its window to grow.
        let mut read = 0;
        while read < 512 * 1024 {
            read += taken.read(usize::MAX).await.unwrap().unwrap().len();
        }
        least = least.min(core_of(&other, Core::budget));
        match round % 4 {
            0 => drop(taken),
            1 => taken.stop(ResetCode::Done),
            2 => while taken.read(usize::MAX).await.unwrap().is_some() {},
            _ => {
                sleep(Duration::from_millis(5)).await;
                drop(taken);
            }
        }
        writing.await.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    assert!(least < 4 << 20, "no window has grown");
    assert_eq!([&one, &other].map(|end| core_of(end, Core::budget)), [4 << 20; 2]);
    assert_eq!([&one, &other].map(|end| core_of(end, Core::count)), [0; 2]);
}

/// An end does not give back what was not read: what a peer can make this side
/// hold is bounded by the budget even when it ends every stream.
#[tokio::test(start_paused = true)]
async fn ended_streams_that_are_not_read_stay_within_the_budget() {
    let settings =
        Settings { max_streams: 40, stream_window: 1 << 20, window_max: 2 << 20, ..Settings::default() };
    let (one, other) = bare_pair(&settings);
    let mut unread = Vec::new();
    for _ in 0..40 {
        let (mut send, _recv) = one.open().await.unwrap();
        let (_back, mut taken) = other.accept().await.unwrap();
        let (go_on, paused) = tokio::sync::oneshot::channel::<()>();
        let writing = tokio::spawn(async move {
            send.write_all(vec![7; 2 << 20].into()).await.unwrap();
            let _now = paused.await;
            send.write_all(vec![7; 400 << 10].into()).await.unwrap();
            send.finish();
            let _carrier_ends = send.delivered().await;
        });
        let mut read = 0;
        while read < 2 << 20 {
            read += taken.read(usize::MAX).await.unwrap().unwrap().len();
        }
        go_on.send(()).unwrap();
        sleep(Duration::from_millis(50)).await;
        unread.push((taken, writing));
        let held = core_of(&other, Core::held).0;
        assert!(held <= unread.len() * 64 * 1024 + (2 << 20), "{held} unread in {} streams", unread.len());
    }
    // Once it is read, everything is there and the budget is back.
    for (mut taken, _writing) in unread {
        let mut read = 0;
        while let Some(bytes) = taken.read(usize::MAX).await.unwrap() {
            read += bytes.len();
        }
        assert_eq!(read, 400 << 10);
    }
    assert_eq!(core_of(&other, Core::budget), 2 << 20);
}

#[tokio::test(start_paused = true)]
async fn what_comes_out_is_what_went_in_whatever_the_pieces() {
    let (one, other) = pair();
    let mut tasks = JoinSet::new();
    for seed in 0..20u64 {
        let ((mut send, mut recv), (mut back, mut taken)) = both(&one, &other).await;
        tasks.spawn(async move {
            while let Some(bytes) = taken.read(10_000).await.unwrap() {
                back.write_all(bytes).await.unwrap();
            }
            back.finish();
            back.delivered().await.unwrap();
        });
        tasks.spawn(async move {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut bytes = vec![0u8; rng.random_range(0..600_000)];
            rng.fill_bytes(&mut bytes);
            let sent = Bytes::from(bytes);
            let mut left = sent.clone();
            let writing = async {
                while !left.is_empty() {
                    let most = if rng.random_bool(0.5) { 100 } else { 50_000 };
                    let piece = left.split_to(rng.random_range(1..=most).min(left.len()));
                    send.write_all(piece).await.unwrap();
                }
                send.finish();
            };
            let ((), read) = tokio::join!(writing, read_all(&mut recv));
            assert!(read.unwrap() == sent);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_says_its_code_and_words_to_everything() {
    for code in [ResetCode::Refused, ResetCode::Revoked, ResetCode::Superseded, ResetCode::Draining] {
        let (one, other) = pair();
        let ((mut send, _recv), (_back, mut taken)) = both(&one, &other).await;
        send.write_all(Bytes::from_static(b"before")).await.unwrap();
        assert_eq!(taken.read(100).await.unwrap().unwrap(), "before");
        one.close(code, "and why");
        one.close(ResetCode::Internal, "a second reason counts for nothing");
        let lost = Lost::Closed(Reset { code, side: Side::Remote }, "and why".to_owned());
        assert_eq!(other.closed().await, lost);
        assert_eq!(taken.read(100).await.unwrap_err(), HalfError::Lost(lost.clone()));
        assert_eq!(other.open().await.unwrap_err(), lost);
        assert_eq!(one.lost(), Some(Lost::Closed(Reset::local(code), String::new())));
        timeout(Duration::from_secs(3), one.told()).await.expect("it ends");
        timeout(Duration::from_secs(3), other.told()).await.expect("both do");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_is_seen_at_once_and_silence_after_the_idle_timeout() {
    let (one, bytes) = against_bytes();
    drop(bytes);
    assert!(matches!(one.closed().await, Lost::Cut(_)));
    let (one, _silent) = against_bytes();
    let began = Instant::now();
    assert_eq!(one.closed().await, Lost::TimedOut);
    assert!((60..62).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    timeout(Duration::from_secs(3), one.told()).await.expect("a peer that does not read holds nothing up");
    let (one, other) = pair();
    sleep(Duration::from_secs(600)).await;
    assert_eq!((one.lost(), other.lost()), (None, None), "two that are idle stay");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_of_it_closes_it() {
    let (one, other) = pair();
    let (halves, _theirs) = both(&one, &other).await;
    drop(one);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(other.lost(), None, "a stream is still held");
    drop(halves);
    let done = Lost::Closed(Reset { code: ResetCode::Done, side: Side::Remote }, String::new());
    assert_eq!(other.closed().await, done);
}

#[tokio::test(start_paused = true)]
async fn garbage_ends_the_connection_with_a_reason() {
    let mut rng = StdRng::seed_from_u64(9);
    for round in 0..400 {
        let (one, mut bytes) = duplex(PIPE);
        let one = carrier(one, if round % 2 == 0 { dialer() } else { End::Acceptor });
        let mut garbage = vec![0u8; rng.random_range(1..4_000)];
        rng.fill_bytes(&mut garbage);
        // A kind nobody knows, so that it is no valid beginning for ever.
        garbage.push(0xff);
        garbage.extend_from_slice(&[0xff; 16]);
        let _closed = bytes.write_all(&garbage).await;
        let _closed = bytes.shutdown().await;
        let lost = timeout(Duration::from_secs(1), one.closed()).await.expect("at once");
        assert!(matches!(lost, Lost::Protocol(_) | Lost::Cut(_) | Lost::Closed(..)), "{lost}");
    }
}

/// What one frame out of order is called.
async fn answer_to(frames: &[Frame]) -> String {
    let (one, mut bytes) = against_bytes();
    let mut wire = BytesMut::new();
    frames.iter().for_each(|frame| put_frame(frame, &mut wire));
    for byte in &wire {
        // Dribbled.
        bytes.write_all(&[*byte]).await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    let lost = timeout(Duration::from_secs(5), one.closed()).await.expect("a violation is not ignored");
    let mut said = Vec::new();
    bytes.read_to_end(&mut said).await.unwrap();
    assert!(said.windows(6).any(|six| six == &lost.to_string().as_bytes()[20..26]), "the peer is told");
    lost.to_string()
}

#[tokio::test(start_paused = true)]
async fn violations_are_named() {
    let data = |length: usize| Frame::Data(1, vec![0; length].into());
    for (frames, words) in [
        (vec![Frame::Open(3)], "a stream out of turn"),
        (vec![Frame::Open(2)], "a stream out of turn"),
        (vec![data(1)], "payload of a stream that is over"),
        (vec![Frame::Open(1), Frame::End(1), data(1)], "payload of a stream that is over"),
        (vec![Frame::Open(1), Frame::End(1), Frame::Reset(1, 1)], "the second end of a stream"),
        (vec![Frame::Open(1), Frame::Got(1)], "an end confirmed that was not sent"),
        (vec![Frame::Credit(1, 1)], "a stream that never was"),
        (vec![Frame::Stop(2, 1)], "a stream that never was"),
    ] {
        assert_eq!(answer_to(&frames).await, format!("protocol violation: {words}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_more_than_it_may_is_told_so() {
    let (one, mut bytes) = against_bytes();
    let mut wire = BytesMut::new();
    put_frame(&Frame::Open(1), &mut wire);
    put_frame(&Frame::Data(1, vec![0; 64 * 1024 + 1].into()), &mut wire);
    bytes.write_all(&wire).await.unwrap();
    assert_eq!(one.closed().await, Lost::Protocol("more payload than permitted".to_owned()));
    let (one, mut bytes) = against_bytes();
    let mut wire = BytesMut::new();
    (0..200).for_each(|number| put_frame(&Frame::Open(2 * number + 1), &mut wire));
    bytes.write_all(&wire).await.unwrap();
    assert_eq!(one.closed().await, Lost::Protocol("more streams than permitted".to_owned()));
}

/// A peer that opens streams, fills them and reads nothing of what it is told.
#[tokio::test(start_paused = true)]
async fn a_peer_that_never_reads_makes_nothing_grow() {
    let (one, mut bytes) = against_bytes();
    let mut taken = Vec::new();
    for number in 0..64u64 {
        let mut wire = BytesMut::new();
        put_frame(&Frame::Open(2 * number + 1), &mut wire);
        (0..1_000).for_each(|nonce| put_frame(&Frame::Ping(nonce), &mut wire));
        put_frame(&Frame::Data(2 * number + 1, vec![0; 64 * 1024].into()), &mut wire);
        bytes.write_all(&wire).await.unwrap();
        let (mut send, recv) = one.accept().await.unwrap();
        let (filled, _) = tokio::join!(
            timeout(Duration::from_millis(50), send.write_all(vec![0; 1 << 20].into())),
            sleep(Duration::from_millis(1)),
        );
        assert!(filled.is_err(), "it waits for the reader");
        taken.push((send, recv));
    }
    drop(taken);
    one.close(ResetCode::Busy, "enough");
    timeout(Duration::from_secs(3), one.told()).await.expect("and can be closed");
}

#[tokio::test(start_paused = true)]
async fn what_is_urgent_is_written_before_what_is_much() {
    // Nobody reads at first, so that everything waits.
    let (one, mut bytes) = duplex(1024);
    let one = carrier(one, dialer());
    let (mut bulk, _r1) = one.open().await.unwrap();
    let (mut control, _r2) = one.open().await.unwrap();
    sleep(Duration::from_millis(10)).await;
    bulk.set_priority(priority::BULK);
    control.set_priority(priority::CONTROL);
    bulk.write_all(vec![b'b'; 60 * 1024].into()).await.unwrap();
    sleep(Duration::from_millis(10)).await;
    control.write_all(vec![b'c'; 100].into()).await.unwrap();
    let mut read = vec![0u8; 200 * 1024];
    let mut length = 0;
    while length < 60 * 1024 + 100 {
        length += bytes.read(&mut read[length..]).await.unwrap();
    }
    let at = read.windows(50).position(|piece| piece == [b'c'; 50]).unwrap();
    assert!(at < 62 * 1024, "at {at}");
}

/// Two cores that exchange frames through lines that cut anywhere.
#[derive(Debug, Clone)]
enum Step {
    Open(bool),
    Write(bool, usize, usize),
    Finish(bool, usize),
    Reset(bool, usize),
    Stop(bool, usize),
    Read(bool, usize),
    Drop(bool, usize),
    Carry(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        any::<bool>().prop_map(Step::Open),
        (any::<bool>(), 0..8usize, 1..200_000usize).prop_map(|(s, w, n)| Step::Write(s, w, n)),
        (any::<bool>(), 0..8usize).prop_map(|(s, w)| Step::Finish(s, w)),
        (any::<bool>(), 0..8usize).prop_map(|(s, w)| Step::Reset(s, w)),
        (any::<bool>(), 0..8usize).prop_map(|(s, w)| Step::Stop(s, w)),
        (any::<bool>(), 0..8usize).prop_map(|(s, w)| Step::Read(s, w)),
        (any::<bool>(), 0..8usize).prop_map(|(s, w)| Step::Drop(s, w)),
        any::<bool>().prop_map(Step::Carry),
        any::<bool>().prop_map(Step::Carry),
    ];
    prop::collection::vec(step, 1..200)
}

struct Two {
    cores: [Core; 2],
    held: [Vec<u64>; 2],
    /// What came from each and is no whole frame yet.
    lines: [(super::code::Decoder, BytesMut); 2],
}

impl Two {
    fn new(now: Instant) -> Self {
        let bounds =
            Bounds { streams: 20, stream_window: 1 << 20, budget: 1 << 20, idle: Duration::from_secs(60) };
        let core = |dialer| Core::new(dialer, bounds, CarrierKind::Tcp, String::new(), now);
        Self { cores: [core(true), core(false)], held: [Vec::new(), Vec::new()], lines: Default::default() }
    }

    /// Moves what one side has to say to the other; whether there was anything.
    fn carry(&mut self, from: usize, now: Instant) -> bool {
        let mut out = Outgoing::new();
        let filled = self.cores[from].fill(&mut out, now);
        let mut wire: BytesMut = out.iter().flatten().copied().collect();
        let mut decoder = super::code::Decoder::default();
        while let Some(frame) = decoder.next(&mut wire).expect("frames of our own") {
            self.cores[1 - from].receive(frame, now).expect("which keep the rules");
        }
        while let Ok(Some((id, _))) = self.cores[1 - from].accept() {
            self.held[1 - from].push(id);
        }
        filled
    }

    /// The same over a line that changes bytes.
    fn carry_badly(&mut self, from: usize, noise: &mut StdRng, now: Instant) {
        let mut out = Outgoing::new();
        self.cores[from].fill(&mut out, now);
        let mut wire: Vec<u8> = out.iter().flatten().copied().collect();
        for _ in 0..noise.random_range(0..3).min(wire.len()) {
            let at = noise.random_range(0..wire.len());
            match noise.random_range(0..5) {
                0 => wire[at] ^= 1 << noise.random_range(0..8),
                1 => wire[at] = noise.random_range(0..13),
                2 => drop(wire.drain(at..wire.len().min(at + 3))),
                3 => wire.insert(at, 0xff),
                _ => drop(wire.splice(at..at, wire[at..wire.len().min(at + 5)].to_vec())),
            }
            if wire.is_empty() {
                break;
            }
        }
        let (decoder, left) = &mut self.lines[from];
        left.extend_from_slice(&wire);
        let core = &mut self.cores[1 - from];
        loop {
            match decoder.next(left).map_err(|bad| bad.to_string()) {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    if let Err(violation) = core.receive(frame, now) {
                        core.violated(violation.0.to_owned());
                    }
                }
                Err(bad) => return core.violated(bad),
            }
        }
        while let Ok(Some((id, _))) = core.accept() {
            self.held[1 - from].push(id);
        }
    }

    fn step(&mut self, step: Step, now: Instant) {
        let waker = futures_util::task::noop_waker();
        let context = &std::task::Context::from_waker(&waker);
        let (Step::Open(side)
        | Step::Write(side, ..)
        | Step::Finish(side, _)
        | Step::Reset(side, _)
        | Step::Stop(side, _)
        | Step::Read(side, _)
        | Step::Drop(side, _)
        | Step::Carry(side)) = step;
        let side = usize::from(side);
        let pick = |which: usize| self.held[side].get(which).copied().unwrap_or(u64::MAX);
        match step {
            Step::Open(_) => {
                if let Ok(Some((id, _))) = self.cores[side].open(now) {
                    self.held[side].push(id);
                }
            }
            Step::Write(_, which, length) => {
                let id = pick(which);
                let _room = self.cores[side].poll_write(id, &mut [vec![0; length].into()], context);
            }
            Step::Finish(_, which) => self.cores[side].finish(pick(which)),
            Step::Reset(_, which) => self.cores[side].reset(pick(which), ResetCode::Aborted),
            Step::Stop(_, which) => self.cores[side].stop(pick(which), ResetCode::Done),
            Step::Read(_, which) => {
                let id = pick(which);
                while self.cores[side].poll_read(id, 30_000, now, context).is_ready_with_bytes() {}
            }
            Step::Drop(_, which) => {
                if which < self.held[side].len() {
                    let id = self.held[side].remove(which);
                    self.cores[side].drop_sender(id, false);
                    self.cores[side].drop_receiver(id);
                }
            }
            Step::Carry(_) => {
                self.carry(side, now);
            }
        }
    }
}

trait HasBytes {
    fn is_ready_with_bytes(&self) -> bool;
}

impl HasBytes for std::task::Poll<Result<Option<Bytes>, HalfError>> {
    fn is_ready_with_bytes(&self) -> bool {
        matches!(self, std::task::Poll::Ready(Ok(Some(_))))
    }
}

proptest! {
    #[test]
    fn nothing_is_left_of_streams_that_are_gone_and_nothing_grows_without_bound(steps in steps()) {
        let now = Instant::now();
        let mut two = Two::new(now);
        for step in steps {
            two.step(step, now);
            for core in &two.cores {
                let (unread, queued) = core.held();
                prop_assert!(unread <= 40 * 64 * 1024 + (1 << 20), "{unread} unread");
                prop_assert!(queued <= 40 * 128 * 1024, "{queued} queued");
            }
        }
        for side in 0..2 {
            while !two.held[side].is_empty() {
                two.step(Step::Drop(side == 1, 0), now);
            }
        }
        for _ in 0..10_000 {
            let moved = (two.carry(0, now), two.carry(1, now));
            for side in 0..2 {
                while !two.held[side].is_empty() {
                    two.step(Step::Drop(side == 1, 0), now);
                }
            }
            if moved == (false, false) {
                break;
            }
        }
        prop_assert_eq!(two.cores.each_ref().map(Core::count), [0, 0]);
        // All places are back.
        for side in 0..2 {
            for _ in 0..20 {
                prop_assert!(matches!(two.cores[side].open(now), Ok(Some(_))));
            }
        }
    }

    /// Both ends of a conversation whose bytes are changed on the way end it
    /// or go on, and hold no more than they may.
    #[test]
    fn a_line_that_changes_bytes_panics_nobody_and_makes_nothing_grow(steps in steps(), seed in any::<u64>()) {
        let now = Instant::now();
        let (mut two, mut noise) = (Two::new(now), StdRng::seed_from_u64(seed));
        for step in steps {
            match step {
                Step::Carry(side) => two.carry_badly(usize::from(side), &mut noise, now),
                step => two.step(step, now),
            }
            for core in &two.cores {
                let (unread, queued) = core.held();
                prop_assert!(unread <= 40 * 64 * 1024 + (1 << 20), "{unread} unread");
                // What a peer seems to permit bounds nothing; the line of each stream does.
                prop_assert!(queued <= core.count() * 128 * 1024, "{queued} queued");
                prop_assert!(core.count() <= 200 + 40);
            }
        }
        for side in 0..2 {
            while !two.held[side].is_empty() {
                two.step(Step::Drop(side == 1, 0), now);
            }
            if two.cores[side].lost().is_none() {
                two.cores[side].violated("enough".to_owned());
            }
            let mut out = Outgoing::new();
            two.cores[side].fill(&mut out, now);
            prop_assert_eq!(two.cores[side].held(), (0, 0), "nothing is kept of what nobody holds");
        }
    }

    #[test]
    fn no_frame_of_a_peer_panics_or_makes_anything_grow(
        dialer in any::<bool>(), frames in prop::collection::vec((0..12u8, 0..8u64, any::<u64>()), 0..300)
    ) {
        let now = Instant::now();
        let waker = futures_util::task::noop_waker();
        let context = &std::task::Context::from_waker(&waker);
        let bounds =
            Bounds { streams: 4, stream_window: 1 << 20, budget: 1 << 20, idle: Duration::from_secs(60) };
        let mut core = Core::new(dialer, bounds, CarrierKind::Tcp, String::new(), now);
        let own = core.open(now).unwrap().unwrap().0;
        for (kind, id, number) in frames {
            let frame = match kind {
                0 => Frame::Data(id, vec![0; usize::try_from(number % 70_000 + 1).unwrap()].into()),
                1 => Frame::Open(id),
                2 => Frame::End(id),
                3 => Frame::Got(id),
                4 => Frame::Reset(id, number),
                5 => Frame::Stop(id, number),
                6 => Frame::Credit(id, number),
                7 => Frame::Streams(number),
                8 => Frame::Ping(number),
                9 => Frame::Pong(number),
                10 => Frame::Close(number, "x".into()),
                _ => Frame::Note(number, "x".into()),
            };
            if core.receive(frame, now).is_err() {
                break;
            }
            let _any = core.poll_write(own, &mut [vec![0; 300_000].into()], context);
            let mut out = Outgoing::new();
            if number % 3 == 0 {
                core.fill(&mut out, now);
            }
            if number % 5 == 0 {
                let _taken = core.accept();
            }
            prop_assert!(out.iter().map(Bytes::len).sum::<usize>() < 200 * 1024);
            prop_assert!(core.count() <= 17 + 1);
        }
    }
}
