//! The records of one attempt that are shown already and not durable yet.
//! Pure: it checks that they follow on each other, numbers them, and says what
//! is to be sealed. Time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

use levers9_wire::v1::{FollowLine, LogRecord};
use tokio::time::Instant;

use crate::store::Fence;

/// A segment is sealed at this size, in bytes of log data.
pub const SEGMENT_BYTES: usize = 1 << 20;
/// Or when its oldest record is this old.
pub const SEGMENT_AGE: Duration = Duration::from_secs(5);
/// What a record costs beside its data, in bytes.
const OVERHEAD: usize = 48;

/// Why a record is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutOfOrder {
    /// It does not follow on the last one.
    #[error("record {got} came where {expected} was expected")]
    Gap {
        /// What came.
        got: u64,
        /// What should have.
        expected: u64,
    },
}

/// One attempt's unsealed records.
#[derive(Debug)]
pub struct Live {
    fence: Fence,
    base_line: u64,
    /// Records below this are in segments.
    durable: u64,
    /// Lines below this are given out.
    reserved: u64,
    records: VecDeque<LogRecord>,
    bytes: usize,
    oldest: Option<Instant>,
    next: u64,
    total: Option<u64>,
    /// The streams it comes in on.
    intakes: u32,
}

impl Live {
    /// An attempt whose records below `durable` are in segments.
    #[must_use]
    pub fn new(fence: Fence, base_line: u64, durable: u64, reserved: u64) -> Self {
        Self {
            fence,
            base_line,
            durable,
            reserved,
            records: VecDeque::new(),
            bytes: 0,
            oldest: None,
            next: durable,
            total: None,
            intakes: 0,
        }
    }

    /// A stream brings it in from now on.
    pub fn opened(&mut self) {
        self.intakes += 1;
    }

    /// One that did brings nothing more.
    pub fn closed(&mut self) {
        self.intakes -= 1;
    }

    /// The same attempt as it was found elsewhere: what is durable and given
    /// out there is so here, and who brings it in there does so here.
    pub fn catch_up(&mut self, newer: &Self) {
        self.sealed(newer.durable);
        self.reserved(newer.reserved);
        self.intakes += newer.intakes;
    }

    /// Whether it comes in here: what another process seals is not told here.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.intakes > 0
    }

    /// Whose records.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The index of the next record.
    #[must_use]
    pub fn next_index(&self) -> u64 {
        self.next
    }

    /// Records below this are in segments.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The line a record has.
    #[must_use]
    pub fn line_of(&self, index: u64) -> u64 {
        self.base_line + index
    }

    /// The first line that is not in a segment.
    #[must_use]
    pub fn first_line(&self) -> u64 {
        self.line_of(self.durable)
    }

    /// The line after the last.
    #[must_use]
    pub fn next_line(&self) -> u64 {
        self.line_of(self.next)
    }

    /// Up to which line numbers must be given out before records up to
    /// `next_index` may be shown; `None` when they are.
    #[must_use]
    pub fn to_reserve(&self, next_index: u64, block: u64) -> Option<u64> {
        let needed = self.line_of(next_index);
        (needed > self.reserved).then(|| needed.next_multiple_of(block) + block + 1)
    }

    /// Line numbers below this are given out.
    pub fn reserved(&mut self, upto: u64) {
        self.reserved = self.reserved.max(upto);
    }

    /// Takes a record in. One that is known already is skipped.
    ///
    /// # Errors
    /// When it leaves a gap that it does not account for.
    pub fn push(&mut self, record: LogRecord, now: Instant) -> Result<(), OutOfOrder> {
        if record.index < self.next {
            return Ok(());
        }
        if record.index != self.next + record.dropped_records {
            return Err(OutOfOrder::Gap { got: record.index, expected: self.next + record.dropped_records });
        }
        self.next = record.index + 1;
        self.bytes += record.data.len() + OVERHEAD;
        self.oldest.get_or_insert(now);
        self.records.push_back(record);
        Ok(())
    }

    /// The number of all records is known.
    pub fn set_total(&mut self, total: u64) {
        self.total = Some(total);
    }

    /// Whether every record has come.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.total.is_some_and(|total| self.next >= total)
    }

    /// Whether what has come is durable.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.records.is_empty()
    }

    /// When a segment is to be sealed, if nothing more comes.
    #[must_use]
    pub fn seal_at(&self) -> Option<Instant> {
        self.oldest.map(|oldest| oldest + SEGMENT_AGE)
    }

    /// Whether a segment is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.bytes >= SEGMENT_BYTES
    }

    /// The records to seal, and the index the first one stands for: with it,
    /// records dropped before it count.
    #[must_use]
    pub fn unsealed(&self) -> (u64, Vec<LogRecord>) {
        (self.durable, self.records.iter().cloned().collect())
    }

    /// Records below this are durable, whoever sealed them.
    pub fn sealed(&mut self, next_index: u64) {
        while self.records.front().is_some_and(|record| record.index < next_index) {
            if let Some(record) = self.records.pop_front() {
                self.bytes -= record.data.len() + OVERHEAD;
            }
        }
        self.durable = self.durable.max(next_index);
        self.next = self.next.max(next_index);
        self.oldest = if self.records.is_empty() { None } else { self.oldest };
    }

    /// Lines after `since`, at most `max_bytes` of data but at least one.
    #[must_use]
    pub fn lines_after(&self, since: u64, max_bytes: usize) -> Vec<FollowLine> {
        let start = self.records.partition_point(|record| self.line_of(record.index) <= since);
        let mut bytes = 0;
        let mut lines = Vec::new();
        for record in self.records.range(start..) {
            if bytes > 0 && bytes + record.data.len() > max_bytes {
                break;
            }
            bytes += record.data.len() + OVERHEAD;
            lines.push(to_line(self.base_line, record));
        }
        lines
    }
}

/// A record as a follower sees it.
#[must_use]
pub fn to_line(base_line: u64, record: &LogRecord) -> FollowLine {
    FollowLine {
        line: base_line + record.index,
        unix_ms: record.unix_ms,
        stream: record.stream,
        data: record.data.clone(),
        dropped_records: record.dropped_records,
        dropped_bytes: record.dropped_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use levers9_wire::{AttemptNumber, ContainerId, Generation, TaskId};
    use proptest::prelude::*;

    fn live() -> Live {
        let fence = Fence {
            task: TaskId::from_bytes([1; 16]),
            number: AttemptNumber(1),
            container: ContainerId::from_bytes([2; 16]),
            generation: Generation(1),
        };
        Live::new(fence, 1, 0, 1_001)
    }

    fn record(index: u64, dropped_records: u64) -> LogRecord {
        LogRecord { index, dropped_records, data: vec![b'x'; 10].into(), ..LogRecord::default() }
    }

    #[test]
    fn records_follow_on_each_other_or_account_for_the_gap() {
        let (mut live, now) = (live(), Instant::now());
        assert_eq!(live.push(record(0, 0), now), Ok(()));
        assert_eq!(live.push(record(2, 0), now), Err(OutOfOrder::Gap { got: 2, expected: 1 }));
        assert_eq!(live.push(record(6, 5), now), Ok(()));
        assert_eq!(live.push(record(0, 0), now), Ok(()), "one that is known is skipped");
        let lines: Vec<_> =
            live.lines_after(0, 1 << 20).iter().map(|l| (l.line, l.dropped_records)).collect();
        assert_eq!(lines, [(1, 0), (7, 5)]);
    }

    #[test]
    fn nothing_is_shown_before_its_number_is_given_out() {
        let mut live = live();
        assert_eq!(live.to_reserve(1_000, 1_000), None);
        let upto = live.to_reserve(1_001, 1_000).unwrap();
        assert_eq!(upto % 1_000, 1, "blocks end before a first line");
        live.reserved(upto);
        assert_eq!(live.to_reserve(1_001, 1_000), None);
    }

    proptest! {
        /// However sealing and following interleave, a follower that reads
        /// durable lines elsewhere sees each line once and in order.
        #[test]
        fn lines_only_grow(steps in prop::collection::vec((0..3u8, 1..20u64), 1..100)) {
            let (mut live, now) = (live(), Instant::now());
            let (mut cursor, mut pushed, mut durable) = (0, 0u64, 0u64);
            for (step, amount) in steps {
                match step {
                    0 => for _ in 0..amount { live.push(record(pushed, 0), now).unwrap(); pushed += 1; },
                    1 => { durable = (durable + amount).min(pushed); live.sealed(durable); }
                    _ => {
                        cursor = cursor.max(durable);
                        for line in live.lines_after(cursor, 64) {
                            prop_assert_eq!(line.line, cursor + 1);
                            cursor = line.line;
                        }
                    }
                }
                prop_assert_eq!(live.next_line(), pushed + 1);
                prop_assert_eq!(live.records.len() as u64, pushed - durable);
            }
        }
    }
}
