//! How long to wait before the next attempt. Counts from the start of an
//! outage, never gives up, and starts over only once a carrier has proved
//! itself with an answered ping.

use std::time::Duration;

use rand::Rng;

use super::{BACKOFF, REFUSED_PAUSE};

/// What ended the last attempt or carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// A working carrier was lost; the peer said over which span to spread the first retry.
    Lost {
        /// The span.
        spread: Duration,
    },
    /// The peer said when it means to be back, and over which span to come.
    Told {
        /// From now.
        back_in: Duration,
        /// The span.
        spread: Duration,
    },
    /// An attempt got no answer or a passing error.
    Failed,
    /// The peer refuses this process and will until something changes.
    Refused,
}

/// The state of one link's retries.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause before the next attempt.
    pub fn pause(&mut self, outage: Outage, rng: &mut impl Rng) -> Duration {
        let (shortest, longest) = BACKOFF;
        match outage {
            Outage::Refused => REFUSED_PAUSE,
            Outage::Told { back_in, spread } => {
                self.failures = self.failures.max(1);
                back_in.min(longest) + up_to(spread.clamp(shortest, longest), rng)
            }
            Outage::Lost { spread } if self.failures == 0 => {
                self.failures = 1;
                up_to(spread.clamp(shortest / 5, longest), rng)
            }
            Outage::Lost { .. } | Outage::Failed => {
                let ceiling = shortest.saturating_mul(1 << self.failures.min(16)).min(longest);
                self.failures = self.failures.saturating_add(1);
                up_to(ceiling, rng)
            }
        }
    }

    /// A carrier has answered a ping: the outage is over.
    pub fn proved(&mut self) {
        self.failures = 0;
    }
}

/// Full jitter: anything up to the ceiling.
fn up_to(ceiling: Duration, rng: &mut impl Rng) -> Duration {
    ceiling.mul_f64(rng.random_range(0.0..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::StdRng};

    #[test]
    fn grows_to_thirty_seconds_and_stays_there() {
        let mut rng = StdRng::seed_from_u64(3);
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..400).map(|_| backoff.pause(Outage::Failed, &mut rng)).collect();
        assert!(pauses[0] <= BACKOFF.0);
        assert!(pauses.iter().all(|p| *p <= BACKOFF.1));
        let late: Duration = pauses[100..].iter().sum::<Duration>() / 300;
        assert!((12..18).contains(&late.as_secs()), "mean {late:?}");
    }

    #[test]
    fn the_first_retry_after_a_loss_is_anywhere_in_the_spread() {
        let mut rng = StdRng::seed_from_u64(3);
        let spread = Duration::from_secs(20);
        let first: Vec<_> = (0..1_000)
            .map(|_| Backoff::default().pause(Outage::Lost { spread }, &mut rng).as_secs())
            .collect();
        for second in 0..20 {
            let share = first.iter().filter(|s| **s == second).count();
            assert!((20..100).contains(&share), "second {second} has {share} of 1000");
        }
    }

    #[test]
    fn a_carrier_that_never_proved_itself_does_not_reset_it() {
        let mut rng = StdRng::seed_from_u64(3);
        let mut backoff = Backoff::default();
        for _ in 0..20 {
            backoff.pause(Outage::Failed, &mut rng);
        }
        let lost = Outage::Lost { spread: Duration::ZERO };
        let longest = (0..100).map(|_| backoff.clone().pause(lost, &mut rng)).max().unwrap();
        assert!(longest > Duration::from_secs(20));
        backoff.proved();
        assert!(backoff.pause(lost, &mut rng) <= BACKOFF.0);
    }

    proptest! {
        #[test]
        fn never_waits_longer_than_thirty_seconds(
            outages in prop::collection::vec(0..4u8, 1..200), spread in 0..600_000u64, seed in any::<u64>()
        ) {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut backoff = Backoff::default();
            for kind in outages {
                let outage = match kind {
                    0 => Outage::Lost { spread: Duration::from_millis(spread) },
                    1 => Outage::Refused,
                    2 => { backoff.proved(); continue }
                    _ => Outage::Failed,
                };
                prop_assert!(backoff.pause(outage, &mut rng) <= BACKOFF.1);
            }
        }
    }
}
