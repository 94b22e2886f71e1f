//! Every decoder of the wire, fed with anything: it answers or refuses, it
//! never panics and never allocates what a length merely claims.

#![cfg(test)]

use levers9_wire::frame::{self, Decoder};
use levers9_wire::{limits, v1, valid};
use proptest::prelude::*;
use prost::Message;

/// Feeds bytes cut at arbitrary places and reads frames until they end.
fn drain<M: Message + Default>(bytes: &[u8], cut: usize, limit: usize) -> Vec<M> {
    let mut decoder = Decoder::new();
    let mut out = Vec::new();
    for piece in bytes.chunks(cut.max(1)) {
        decoder.feed(piece);
        while let Ok(Some(message)) = decoder.next::<M>(limit) {
            out.push(message);
        }
    }
    out
}

fn record() -> impl Strategy<Value = v1::LogRecord> {
    (any::<u64>(), any::<u64>(), 0..5i32, prop::collection::vec(any::<u8>(), 0..200), any::<u64>()).prop_map(
        |(index, unix_ms, stream, data, dropped_records)| v1::LogRecord {
            index,
            unix_ms,
            stream,
            data: data.into(),
            dropped_records,
            dropped_bytes: 0,
        },
    )
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2_000), cut in 1..64usize) {
        drain::<v1::StreamOpen>(&bytes, cut, limits::STREAM_OPEN);
        drain::<v1::ControlFrame>(&bytes, cut, limits::CONTROL);
        drain::<v1::RunEvent>(&bytes, cut, limits::FRAME);
        drain::<v1::RunOrder>(&bytes, cut, limits::FRAME);
        drain::<v1::LogBatch>(&bytes, cut, limits::FRAME);
        drain::<v1::TunnelAnswer>(&bytes, cut, limits::FRAME);
        drain::<v1::ExecInput>(&bytes, cut, limits::FRAME);
        drain::<v1::ExecOutput>(&bytes, cut, limits::FRAME);
        drain::<v1::BenchAnswer>(&bytes, cut, limits::FRAME);
        drain::<v1::LogAck>(&bytes, cut, limits::FRAME);
        drain::<v1::CallAnswer>(&bytes, cut, limits::FRAME);
        drain::<v1::FollowEvent>(&bytes, cut, limits::FRAME);
    }

    #[test]
    fn frames_come_out_as_they_went_in_wherever_they_are_cut(
        records in prop::collection::vec(record(), 0..20), cut in 1..300usize
    ) {
        let batches: Vec<_> = records
            .chunks(3)
            .map(|some| v1::LogBatch { records: some.to_vec(), attempt: 1, ..Default::default() })
            .collect();
        let mut bytes = bytes::BytesMut::new();
        for batch in &batches {
            frame::encode(batch, limits::FRAME, &mut bytes).unwrap();
        }
        prop_assert_eq!(drain::<v1::LogBatch>(&bytes, cut, limits::FRAME), batches);
    }

    #[test]
    fn mutated_frames_never_panic_and_never_pass_validation_with_nonsense(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)
    ) {
        let hello = v1::Hello {
            version_min: 1, version_max: 1, role: 2, token: "t".repeat(70), instance: vec![1; 16],
            build: "0.1.0".into(),
            worker: Some(v1::WorkerFacts { hostname: "h".into(), cpu_millis: 4_000, ..Default::default() }),
            inventory: vec![v1::RunningContainer { container: vec![2; 16], generation: 1, last_event: 3 }],
            ..Default::default()
        };
        let mut bytes = hello.encode_to_vec();
        for (at, with) in flips {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        if let Ok(hello) = v1::Hello::decode(bytes.as_slice())
            && let Ok(hello) = valid::Hello::try_from(hello)
        {
            prop_assert!(hello.inventory.len() <= limits::INVENTORY);
            prop_assert!(!hello.build.chars().any(char::is_control));
        }
    }

    #[test]
    fn a_submitted_job_is_refused_or_fits_the_limits(
        command in prop::collection::vec(".{0,20}", 0..4),
        name in ".{0,80}",
        gpu in ".{0,40}",
        gpu_count in 0..2_000u32,
        cpu in any::<u64>(),
    ) {
        let request = v1::SubmitRequest {
            name, command,
            resources: Some(v1::Resources { gpu_type: gpu, gpu_count, cpu_millis: cpu, ..Default::default() }),
            ..Default::default()
        };
        if let Ok(job) = valid::Submit::try_from(request) {
            prop_assert!(!job.command.is_empty() && !job.command[0].is_empty());
            prop_assert!(job.command.iter().all(|word| !word.contains('\0')));
            prop_assert_eq!(job.resources.gpu_type.is_empty(), job.resources.gpu_count == 0);
            prop_assert!(i64::try_from(job.resources.cpu_millis).is_ok());
        }
    }
}

#[test]
fn a_length_cut_anywhere_is_incomplete_and_never_an_error() {
    let frame = frame::to_bytes(&v1::LogAck { next_index: u64::MAX }, limits::FRAME).unwrap();
    for end in 0..frame.len() {
        let mut decoder = Decoder::new();
        decoder.feed(&frame[..end]);
        assert_eq!(decoder.next::<v1::LogAck>(limits::FRAME), Ok(None));
        assert_eq!(decoder.finish().is_err(), end > 0);
    }
}
