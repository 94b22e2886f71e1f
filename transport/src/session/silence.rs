//! Whether a carrier has gone quiet, long before it counts as dead: then
//! something better is looked for while it still may recover. [`Silence`]
//! waits for pings that should come, and asks once before it says so;
//! [`Unanswered`] looks at what is sent and not answered, if anything is.

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

/// How often to look.
const LOOK: Duration = Duration::from_secs(1);
/// How long nothing may come while this side sends.
const MUTE: Duration = Duration::from_secs(3);
/// How many packets count as sending: the last ones of a conversation are
/// answered by none.
const SENDS: u64 = 3;

/// Packets that are sent on one carrier while none comes.
#[derive(Debug, Clone)]
pub struct Unanswered {
    /// When the last ones came, how many had been sent and received.
    heard: (u64, u64),
    since: Option<Instant>,
    next: Instant,
}

impl Unanswered {
    /// A carrier on which this many have been sent and received.
    #[must_use]
    pub fn new(now: Instant, packets: (u64, u64)) -> Self {
        Self { heard: packets, since: None, next: now + LOOK }
    }

    /// When [`Unanswered::poll`] is to be asked.
    #[must_use]
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Whether nothing comes though enough is sent, by what has been sent and
    /// received until now.
    pub fn poll(&mut self, now: Instant, (sent, received): (u64, u64)) -> bool {
        self.next = now + LOOK;
        if received != self.heard.1 {
            (self.heard, self.since) = ((sent, received), None);
        }
        if sent < self.heard.0 + SENDS {
            return false;
        }
        if now < *self.since.get_or_insert(now) + MUTE {
            return false;
        }
        // Once it has been said, the look for something better takes a while.
        self.next = now + AGAIN;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_and_not_answered_is_noticed_in_seconds() {
        let s = Duration::from_secs;
        let start = Instant::now();
        let mut carrier = Unanswered::new(start, (10, 10));
        // Idle, or with an answer now and then, it is well.
        assert!(!carrier.poll(start + s(60), (10, 10)));
        assert!(!carrier.poll(start + s(61), (12, 10)), "the last ones are answered by none");
        assert!(!carrier.poll(start + s(90), (12, 10)));
        assert!(!carrier.poll(start + s(91), (400, 11)));
        // Then nothing comes any more.
        assert!(!carrier.poll(start + s(92), (404, 11)));
        assert!(!carrier.poll(start + s(94), (406, 11)));
        assert!(carrier.poll(start + s(95), (406, 11)));
        assert_eq!(carrier.next(), start + s(105));
        assert!(carrier.poll(start + s(105), (408, 11)), "it says so again");
        assert!(!carrier.poll(start + s(106), (409, 12)));
        assert!(!carrier.poll(start + s(160), (411, 12)));
    }

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
