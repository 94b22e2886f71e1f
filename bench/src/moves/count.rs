//! What came and what did not, counted without I/O: the lines of a log that is
//! read on where it broke, and the times without an answer.

use std::time::Duration;

use tokio::time::Instant;

/// How often there is another line, in milliseconds.
pub(super) const LINE_MS: u64 = 10;

/// The last line there is of a log that began at `epoch`. The log is the
/// clock's: every server process has the same one, a restarted one too.
pub(super) fn line_at(epoch: u64, unix_ms: u64) -> u64 {
    unix_ms.saturating_sub(epoch) / LINE_MS
}

/// What a reader has had of a log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lines {
    pub(super) last: u64,
    pub(super) came: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// The longest time without a line since [`Lines::mark`].
    pub(super) longest: Duration,
    last_at: Instant,
}

impl Lines {
    /// Reads on after a line.
    pub(super) fn after(last: u64, now: Instant) -> Self {
        Self { last, came: 0, lost: 0, doubled: 0, longest: Duration::ZERO, last_at: now }
    }

    /// Time without lines counts from now on.
    pub(super) fn mark(&mut self, now: Instant) {
        (self.longest, self.last_at) = (Duration::ZERO, now);
    }

    /// A line came.
    pub(super) fn take(&mut self, line: u64, now: Instant) {
        self.longest = self.longest.max(now - self.last_at);
        self.last_at = now;
        self.came += 1;
        if line <= self.last {
            self.doubled += 1;
            return;
        }
        self.lost += line - self.last - 1;
        self.last = line;
    }

    /// No more will come of a log that has so many lines.
    pub(super) fn end(&mut self, last: u64) {
        self.lost += last.saturating_sub(self.last);
        self.last = self.last.max(last);
    }
}

/// The times between two answers, and between one and either end.
pub(super) fn gaps(answers: impl Iterator<Item = Instant>, from: Instant, to: Instant) -> Vec<Duration> {
    let mut at: Vec<Instant> = answers.filter(|at| (from..to).contains(at)).chain([from, to]).collect();
    at.sort_unstable();
    at.windows(2).map(|two| two[1] - two[0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn lines_that_are_left_out_are_lost_and_those_that_come_again_are_doubled() {
        let now = Instant::now();
        let mut lines = Lines::after(10, now);
        for (line, at) in [(11, 10), (12, 20), (15, 90), (15, 95), (14, 96), (16, 100)] {
            lines.take(line, now + ms(at));
        }
        assert_eq!((lines.came, lines.lost, lines.doubled, lines.longest), (6, 2, 2, ms(70)));
        lines.mark(now + ms(120));
        lines.take(17, now + ms(130));
        lines.end(20);
        assert_eq!((lines.came, lines.lost, lines.longest), (7, 5, ms(10)));
    }

    #[test]
    fn there_is_a_line_for_each_hundredth_of_a_second() {
        assert_eq!([line_at(1_000, 900), line_at(1_000, 1_009), line_at(1_000, 1_010)], [0, 0, 1]);
    }

    #[test]
    fn a_gap_may_be_at_either_end() {
        let now = Instant::now();
        let of = |answers: &[u64]| gaps(answers.iter().map(|at| now + ms(*at)), now, now + ms(100));
        assert_eq!(of(&[]), [ms(100)]);
        assert_eq!(of(&[60, 20, 140]), [20, 40, 40].map(ms));
    }
}
