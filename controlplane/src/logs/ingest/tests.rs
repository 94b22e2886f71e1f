//! Two processes take in one attempt's log while its worker moves.

use levers9_wire::v1::{FollowLine, LogBatch, LogRecord};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tempfile::TempDir;

use super::*;
use crate::logs::reader::{self, Cache};
use crate::testing::{placed, process};

struct Pair {
    processes: [Shared; 2],
    worker: WorkerId,
    fence: Fence,
    _folder: TempDir,
}

impl Pair {
    async fn start() -> Self {
        let (folder, worker) = (tempfile::tempdir().unwrap(), WorkerId::generate());
        let url = levers9_tests::postgres::fresh_database();
        let processes = [process(&url, folder.path()).await, process(&url, folder.path()).await];
        let fence = placed(&processes[0], worker).await;
        Self { processes, worker, fence, _folder: folder }
    }

    async fn intake(&self, at: usize) -> Intake<'_> {
        let (container, generation) = (self.fence.container, self.fence.generation);
        Intake::begin(&self.processes[at], self.worker, container, generation).await.unwrap()
    }

    /// All that can be read after a line at a process.
    async fn lines(&self, at: usize, mut since: u64) -> Vec<u64> {
        let (state, task) = (&self.processes[at], self.fence.task);
        let (log, mut cache, mut lines) = (state.logs.of(task), Cache::default(), Vec::new());
        loop {
            let next: Vec<FollowLine> = reader::next(state, task, &log, since, &mut cache).await.unwrap();
            let Some(last) = next.last() else { return lines };
            since = last.line;
            lines.extend(next.iter().map(|line| line.line));
        }
    }
}

fn batch(records: std::ops::Range<u64>) -> LogBatch {
    let record = |index| LogRecord { index, data: format!("{index}\n").into(), ..LogRecord::default() };
    LogBatch { records: records.map(record).collect(), ..LogBatch::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_sees_what_another_process_sealed_and_then_what_comes_in_here() {
    let pair = Pair::start().await;
    let mut a = pair.intake(0).await;
    a.take(batch(0..10)).await.unwrap();
    a.seal_all().await.unwrap();
    assert_eq!(pair.lines(1, 0).await, (1..=10).collect::<Vec<_>>(), "without anything in memory");
    // As B knows it when it becomes the one that schedules.
    crate::recover::take_over(&pair.processes[1]).await.unwrap();
    a.take(batch(10..20)).await.unwrap();
    assert!(pair.lines(1, 10).await.is_empty(), "it is not sealed, and not here");
    a.seal_all().await.unwrap();
    assert_eq!(pair.lines(1, 10).await, (11..=20).collect::<Vec<_>>(), "memory does not hide it");
    assert!(!pair.processes[1].logs.of(pair.fence.task).comes_in());
    drop(a);
    let mut b = pair.intake(1).await;
    assert!(b.log.comes_in());
    b.take(batch(20..30)).await.unwrap();
    assert_eq!(pair.lines(1, 15).await, (16..=30).collect::<Vec<_>>(), "segments, then memory");
    b.seal_all().await.unwrap();
    drop(b);
    assert_eq!(pair.lines(0, 0).await, (1..=30).collect::<Vec<_>>(), "and the same at the other");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_seal_elsewhere_leaves_no_gap_and_doubles_nothing() {
    let pair = Pair::start().await;
    let mut a = pair.intake(0).await;
    a.take(batch(0..10)).await.unwrap();
    // The worker sends again what nobody has sealed.
    let mut b = pair.intake(1).await;
    b.take(batch(0..5)).await.unwrap();
    a.seal_all().await.unwrap();
    b.seal_all().await.unwrap();
    assert_eq!(b.with(|live| (live.durable(), live.next_index())).unwrap(), (10, 10));
    b.take(batch(5..15)).await.unwrap();
    b.seal_all().await.unwrap();
    drop((a, b));
    for at in [0, 1] {
        assert_eq!(pair.lines(at, 0).await, (1..=15).collect::<Vec<_>>());
    }
}

/// However two intakes take turns, lines are numbered once and none is left out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_intakes_at_once_never_leave_a_gap() {
    for seed in 0..6 {
        let mut rng = StdRng::seed_from_u64(seed);
        let pair = Pair::start().await;
        let mut intakes = [pair.intake(0).await, pair.intake(1).await];
        let (mut sent, mut seen) = ([0u64; 2], [0u64; 2]);
        for _ in 0..40 {
            let at = rng.random_range(0..2);
            match rng.random_range(0..3) {
                0 => {
                    // A worker sends from what was acknowledged, in order.
                    let upto = sent[at] + rng.random_range(1..8);
                    intakes[at].take(batch(sent[at]..upto)).await.unwrap();
                    sent[at] = upto;
                }
                1 => intakes[at].seal_all().await.unwrap(),
                _ => {
                    let lines = pair.lines(at, seen[at]).await;
                    let wanted: Vec<_> = (seen[at] + 1..).take(lines.len()).collect();
                    assert_eq!(lines, wanted, "seed {seed}, process {at}");
                    seen[at] += lines.len() as u64;
                }
            }
        }
        for intake in &mut intakes {
            intake.seal_all().await.unwrap();
        }
        let all: Vec<_> = (1..=sent[0].max(sent[1])).collect();
        drop(intakes);
        for at in [0, 1] {
            assert_eq!(pair.lines(at, 0).await, all, "seed {seed}, process {at}");
        }
    }
}
