//! How old the picture is: the time since the API server last proved it, by
//! the watch that was proved longest ago. A pure count of moments.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::facts::Kind;

/// When each watch was last proved, and what is wrong with it.
#[derive(Debug, Default)]
pub struct Freshness {
    proved: BTreeMap<Kind, Instant>,
    problems: BTreeMap<Kind, String>,
}

impl Freshness {
    /// The API server has proved what is known of a kind. Returns whether that
    /// is news: the first proof, or the end of a problem.
    pub fn proved(&mut self, kind: Kind, at: Instant) -> bool {
        let before = self.proved.insert(kind, at);
        // A list proves the moment it was asked for, which an event may have passed.
        if let Some(before) = before.filter(|before| *before > at) {
            self.proved.insert(kind, before);
        }
        self.problems.remove(&kind).is_some() || before.is_none()
    }

    /// A watch cannot be kept. Returns whether that is news.
    pub fn failed(&mut self, kind: Kind, problem: &str) -> bool {
        let before = self.problems.insert(kind, problem.to_owned());
        before.as_deref() != Some(problem)
    }

    /// Whether everything was listed at least once.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.proved.len() == Kind::ALL.len()
    }

    /// How long ago everything was last proved; none while something was not listed yet.
    #[must_use]
    pub fn age(&self, now: Instant) -> Option<Duration> {
        let oldest = self.proved.values().min().filter(|_| self.complete())?;
        Some(now.saturating_duration_since(*oldest))
    }

    /// The same of the Jobs and their pods alone.
    #[must_use]
    pub fn jobs_age(&self, now: Instant) -> Option<Duration> {
        let proved = |kind: Kind| self.proved.get(&kind).copied();
        let older = proved(Kind::Jobs)?.min(proved(Kind::Pods)?);
        Some(now.saturating_duration_since(older))
    }

    /// What is wrong, kind by kind.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.problems.values().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_watch_counts_and_nothing_is_fresh_before_all_were_listed() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut freshness = Freshness::default();
        assert!(freshness.proved(Kind::Nodes, start));
        assert!(freshness.proved(Kind::Jobs, start + 5 * second));
        assert_eq!(freshness.age(start + 10 * second), None);
        assert!(freshness.proved(Kind::Pods, start + 2 * second));
        assert!(!freshness.proved(Kind::Nodes, start + 9 * second));
        assert_eq!(freshness.age(start + 10 * second), Some(8 * second));
        // What is proved stays proved.
        freshness.proved(Kind::Pods, start);
        assert_eq!(freshness.age(start + 10 * second), Some(8 * second));
        // Jobs do not grow old with the nodes.
        freshness.proved(Kind::Pods, start + 10 * second);
        assert_eq!(freshness.jobs_age(start + 20 * second), Some(15 * second));
        assert_eq!(freshness.age(start + 20 * second), Some(15 * second));
        freshness.proved(Kind::Jobs, start + 18 * second);
        assert_eq!(freshness.jobs_age(start + 20 * second), Some(10 * second));
        assert_eq!(freshness.age(start + 20 * second), Some(11 * second));
    }

    #[test]
    fn a_problem_is_news_once_and_ends_with_a_proof() {
        let now = Instant::now();
        let mut freshness = Freshness::default();
        freshness.proved(Kind::Pods, now);
        assert!(freshness.failed(Kind::Pods, "403"));
        assert!(!freshness.failed(Kind::Pods, "403"));
        assert!(freshness.failed(Kind::Pods, "401"));
        assert_eq!(freshness.problems().collect::<Vec<_>>(), ["401"]);
        assert!(freshness.proved(Kind::Pods, now));
        assert_eq!(freshness.problems().count(), 0);
    }
}
