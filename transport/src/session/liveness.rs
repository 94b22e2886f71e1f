//! Whether a peer is still there. It is heard by any control frame; silence of
//! 45 s ends the carrier. A process that was asleep (stopped, or its laptop
//! suspended) first asks and waits a little, since what the peer sent may
//! still be on its way in.

use std::time::Duration;

use tokio::time::Instant;

use super::PROBE;

/// A timer this late means that the process did not run.
const ASLEEP: Duration = Duration::from_secs(3);

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing before [`Liveness::next`].
    Nothing,
    /// Send a ping with this nonce.
    Ping(u64),
    /// Give the carrier up.
    Dead,
}

/// The state of one carrier.
#[derive(Debug, Clone)]
pub struct Liveness {
    ping_every: Option<Duration>,
    dead_after: Duration,
    last_heard: Instant,
    next_ping: Option<Instant>,
    probe_ends: Option<Instant>,
    nonce: u64,
    asked: Option<(u64, Instant)>,
}

impl Liveness {
    /// A carrier that was heard now. A side that pings does so at once.
    #[must_use]
    pub fn new(now: Instant, ping_every: Option<Duration>, dead_after: Duration) -> Self {
        Self {
            ping_every,
            dead_after,
            last_heard: now,
            next_ping: ping_every.map(|_| now),
            probe_ends: None,
            nonce: 0,
            asked: None,
        }
    }

    /// When [`Liveness::poll`] has something to say, unless something is heard before.
    #[must_use]
    pub fn next(&self) -> Instant {
        let dead = self.probe_ends.unwrap_or(self.last_heard + self.dead_after);
        self.next_ping.map_or(dead, |ping| ping.min(dead))
    }

    /// What is to be done at `now`.
    pub fn poll(&mut self, now: Instant) -> Due {
        if self.probe_ends.is_none() && now > self.next() + ASLEEP {
            return self.woke(now);
        }
        if now >= self.probe_ends.unwrap_or(self.last_heard + self.dead_after) {
            return Due::Dead;
        }
        match self.next_ping {
            Some(due) if now >= due => {
                self.next_ping = self.ping_every.map(|every| now + every);
                self.ask(now)
            }
            _ => Due::Nothing,
        }
    }

    /// The process was asleep until now: ask, and wait a little for any sign.
    pub fn woke(&mut self, now: Instant) -> Due {
        self.probe_ends = Some(now + PROBE);
        self.ask(now)
    }

    /// A control frame came.
    pub fn heard(&mut self, now: Instant) {
        self.last_heard = now;
        self.probe_ends = None;
    }

    /// An answer came: the round-trip time, when it answers the last ping.
    pub fn pong(&mut self, nonce: u64, now: Instant) -> Option<Duration> {
        let (asked, at) = self.asked.take_if(|(asked, _)| *asked == nonce)?;
        debug_assert_eq!(asked, nonce);
        Some(now - at)
    }

    fn ask(&mut self, now: Instant) -> Due {
        self.nonce += 1;
        self.asked = Some((self.nonce, now));
        Due::Ping(self.nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{DEAD_AFTER, PING_EVERY};
    use proptest::prelude::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn pings_at_once_and_then_every_fifteen_seconds() {
        let start = Instant::now();
        let mut side = Liveness::new(start, Some(PING_EVERY), DEAD_AFTER);
        assert_eq!(side.poll(start), Due::Ping(1));
        assert_eq!(side.pong(1, start + s(1)), Some(s(1)));
        side.heard(start + s(1));
        assert_eq!(side.poll(start + s(14)), Due::Nothing);
        assert_eq!(side.poll(start + s(15)), Due::Ping(2));
        assert_eq!(side.pong(1, start + s(15)), None);
    }

    #[test]
    fn silence_of_forty_five_seconds_is_death() {
        let start = Instant::now();
        let mut side = Liveness::new(start, None, DEAD_AFTER);
        assert_eq!(side.next(), start + s(45));
        assert_eq!(side.poll(start + s(44)), Due::Nothing);
        assert_eq!(side.poll(start + s(45)), Due::Dead);
    }

    #[test]
    fn after_sleep_it_asks_before_it_gives_up() {
        let start = Instant::now();
        let mut side = Liveness::new(start, None, DEAD_AFTER);
        let woken = start + s(600);
        assert!(matches!(side.poll(woken), Due::Ping(_)));
        assert_eq!(side.poll(woken + s(4)), Due::Nothing);
        assert_eq!(side.clone().poll(woken + s(5)), Due::Dead);
        side.heard(woken + s(4));
        assert_eq!(side.poll(woken + s(10)), Due::Nothing);
    }

    proptest! {
        #[test]
        fn a_peer_that_answers_is_never_given_up_and_one_that_does_not_always_is(
            gaps in prop::collection::vec(1..12_000u64, 1..300), answers in any::<bool>()
        ) {
            let mut now = Instant::now();
            let mut side = Liveness::new(now, Some(PING_EVERY), DEAD_AFTER);
            let started = now;
            let mut dead = false;
            for gap in gaps {
                // The shell never polls later than asked, but may poll earlier.
                now = (now + Duration::from_millis(gap)).min(side.next().max(now));
                match side.poll(now) {
                    Due::Ping(nonce) if answers => {
                        prop_assert!(side.pong(nonce, now).is_some());
                        side.heard(now);
                    }
                    Due::Dead => { dead = true; break }
                    Due::Ping(_) | Due::Nothing => {}
                }
            }
            prop_assert!(!(answers && dead));
            if !answers && now - started > DEAD_AFTER {
                prop_assert!(dead);
            }
        }
    }
}
