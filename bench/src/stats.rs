//! Spreads over rounds, percentiles within one, and ratios between variants
//! that were measured in the same round.

/// The least, middle and greatest of the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of some values, or `None` when there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { min, median: low.midpoint(high), max })
    }

    /// The spread of ours / peer, round by round: what disturbs a round
    /// disturbs both. `None` when a round lacks one of them.
    pub(crate) fn of_ratios(ours: &[f64], peer: &[f64]) -> Option<Self> {
        if ours.len() != peer.len() {
            return None;
        }
        let ratios: Vec<f64> = ours.iter().zip(peer).map(|(ours, peer)| ours / peer).collect();
        Self::of(&ratios)
    }
}

/// The value below which `percent` of the sorted values lie.
pub(crate) fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { min: 1.0, median: 2.5, max: 4.0 });
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The second round was three times slower for both.
        let ratio = Spread::of_ratios(&[90.0, 33.0, 110.0], &[100.0, 30.0, 100.0]).unwrap();
        assert_eq!(ratio, Spread { min: 0.9, median: 1.1, max: 1.1 });
        assert_eq!(Spread::of_ratios(&[1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!((percentile(&hundred, 50), percentile(&hundred, 99)), (50, 99));
        assert_eq!((percentile(&[7], 50), percentile(&[], 50)), (7, 0));
    }
}
