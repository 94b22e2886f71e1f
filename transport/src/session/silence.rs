//! Whether a carrier on which pings should come has gone quiet, long before it
//! counts as dead: then something better is looked for while it still may
//! recover. Asks once before it says so.

use std::time::Duration;

use tokio::time::Instant;

/// How much later than expected a ping may come, and an answer.
const LATE: Duration = Duration::from_secs(5);
/// How often to say so again.
const AGAIN: Duration = Duration::from_secs(10);

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quiet {
    /// Nothing before [`Silence::next`].
    No,
    /// Ask for a sign.
    Ask,
    /// There was none.
    Yes,
}

/// The silence on one carrier.
#[derive(Debug, Clone)]
pub struct Silence {
    expected: Duration,
    asked: bool,
    next: Instant,
}

impl Silence {
    /// A carrier that was heard now, and on which a ping comes this often.
    #[must_use]
    pub fn new(now: Instant, every: Duration) -> Self {
        let expected = every + LATE;
        Self { expected, asked: false, next: now + expected }
    }

    /// When [`Silence::poll`] has something to say, unless something is heard before.
    #[must_use]
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Something came.
    pub fn heard(&mut self, now: Instant) {
        (self.asked, self.next) = (false, now + self.expected);
    }

    /// What is to be done at `now`.
    pub fn poll(&mut self, now: Instant) -> Quiet {
        if now < self.next {
            return Quiet::No;
        }
        if std::mem::replace(&mut self.asked, true) {
            self.next = now + AGAIN;
            Quiet::Yes
        } else {
            self.next = now + LATE;
            Quiet::Ask
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_before_it_says_so() {
        let s = Duration::from_secs;
        let start = Instant::now();
        let mut silence = Silence::new(start, s(15));
        assert_eq!(silence.poll(start + s(19)), Quiet::No);
        silence.heard(start + s(19));
        assert_eq!(silence.next(), start + s(39));
        assert_eq!(silence.poll(start + s(39)), Quiet::Ask);
        assert_eq!(silence.poll(start + s(43)), Quiet::No);
        assert_eq!(silence.poll(start + s(44)), Quiet::Yes);
        assert_eq!(silence.next(), start + s(54));
        silence.heard(start + s(50));
        assert_eq!(silence.poll(start + s(70)), Quiet::Ask, "it asks anew");
        // A process that was asleep asks first too.
        let mut slept = Silence::new(start, s(15));
        assert_eq!(slept.poll(start + s(600)), Quiet::Ask);
    }
}
