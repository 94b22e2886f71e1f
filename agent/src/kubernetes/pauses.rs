//! How long to wait before asking the API server again. Pure: the random
//! source is an argument.

use std::time::Duration;

use rand::Rng;

/// The first pause at most, and every one after many at most.
const SPAN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The failures in a row of one thing.
#[derive(Debug, Clone, Default)]
pub struct Pauses {
    failures: u32,
}

impl Pauses {
    /// It failed once more. Returns how long to wait: between half of the
    /// ceiling, which doubles, and all of it.
    pub fn failed(&mut self, rng: &mut impl Rng) -> Duration {
        let ceiling = SPAN.0.saturating_mul(1 << self.failures.min(8)).min(SPAN.1);
        self.failures = self.failures.saturating_add(1);
        ceiling.mul_f64(rng.random_range(0.5..=1.0))
    }

    /// Whether it fails for more than a moment, so that it is worth a word.
    #[must_use]
    pub fn lasts(&self) -> bool {
        self.failures > 1
    }

    /// Whether it failed the last time.
    #[must_use]
    pub fn any(&self) -> bool {
        self.failures > 0
    }

    /// It worked.
    pub fn worked(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    #[test]
    fn pauses_grow_to_ten_seconds_and_start_over_when_it_worked() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut pauses = Pauses::default();
        let first = pauses.failed(&mut rng);
        assert!(first >= SPAN.0 / 2 && first <= SPAN.0 && !pauses.lasts());
        for _ in 0..100 {
            assert!(pauses.failed(&mut rng) <= SPAN.1);
        }
        assert!(pauses.lasts() && pauses.failed(&mut rng) >= SPAN.1 / 2);
        pauses.worked();
        assert!(pauses.failed(&mut rng) <= SPAN.0);
    }
}
