//! When to report: at once where a session begins, then every ten seconds,
//! and within a second when something that matters has changed. Pure; the
//! session asks it what is due and tells it what it did.

use std::time::Duration;

use tokio::time::Instant;

/// A report is never older than this when the next one goes.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Changes within this time are reported together.
pub const GAP: Duration = Duration::from_secs(1);

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// A report, whether or not anything changed.
    Report,
    /// A report if anything that matters has changed.
    Look,
}

/// The pace of one session's reports.
#[derive(Debug)]
pub struct Pace {
    begun: Instant,
    /// When the last report began.
    reported: Option<Instant>,
    /// When it was last looked for changes.
    looked: Option<Instant>,
    touched: bool,
    /// The last report is not through yet.
    under_way: bool,
}

impl Pace {
    /// The pace of a session that begins.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { begun: now, reported: None, looked: None, touched: false, under_way: false }
    }

    /// Something may have changed.
    pub fn touched(&mut self) {
        self.touched = true;
    }

    /// What is due. `ready` says whether there is anything to report yet; the
    /// first report waits for that, but not for ever.
    #[must_use]
    pub fn due(&self, now: Instant, ready: bool) -> Option<Due> {
        let Some(reported) = self.reported else {
            return (ready || now >= self.begun + INTERVAL).then_some(Due::Report);
        };
        if now >= reported + INTERVAL {
            return Some(Due::Report);
        }
        // What is on its way is not cut off for a change.
        (self.touched && !self.under_way && now >= self.next_look()).then_some(Due::Look)
    }

    /// When to ask again, if nothing else happens.
    #[must_use]
    pub fn next(&self) -> Instant {
        let Some(reported) = self.reported else { return self.begun + INTERVAL };
        let regular = reported + INTERVAL;
        if self.touched && !self.under_way { self.next_look().min(regular) } else { regular }
    }

    /// It was looked, and nothing that matters has changed.
    pub fn looked(&mut self, now: Instant) {
        self.looked = Some(now);
        self.touched = false;
    }

    /// A report begins.
    pub fn began(&mut self, now: Instant) {
        self.looked(now);
        self.reported = Some(now);
        self.under_way = true;
    }

    /// It is through, or has failed.
    pub fn ended(&mut self) {
        self.under_way = false;
    }

    fn next_look(&self) -> Instant {
        self.looked.map_or(self.begun, |looked| looked + GAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_report_waits_for_something_to_say_and_not_for_ever() {
        let start = Instant::now();
        let pace = Pace::new(start);
        assert_eq!(pace.due(start, true), Some(Due::Report));
        assert_eq!(pace.due(start, false), None);
        assert_eq!(pace.due(start + INTERVAL, false), Some(Due::Report));
    }

    #[test]
    fn a_change_waits_for_the_report_under_way() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.began(start);
        pace.touched();
        assert_eq!(pace.due(start + 5 * GAP, true), None);
        assert_eq!(pace.next(), start + INTERVAL);
        pace.ended();
        assert_eq!(pace.due(start + 5 * GAP, true), Some(Due::Look));
    }

    proptest! {
        /// Changes come whenever they like, reports take as long as they like.
        #[test]
        fn reports_are_neither_rare_nor_frequent(
            steps in prop::collection::vec((0..3_000_u64, any::<bool>(), any::<bool>(), any::<bool>()), 1..200)
        ) {
            let mut now = Instant::now();
            let mut pace = Pace::new(now);
            let (mut last, mut waiting): (Option<Instant>, Option<Instant>) = (None, None);
            for (pause, change, matters, through) in steps {
                // The shell is woken by a change or by the time it asked for.
                let until = now + Duration::from_millis(pause);
                while pace.next() < until && pace.due(pace.next().max(now), true).is_some() {
                    now = pace.next().max(now);
                    act(&mut pace, now, matters, &mut last, &mut waiting)?;
                }
                now = until;
                if change {
                    pace.touched();
                    waiting = waiting.or(Some(now));
                }
                if through {
                    pace.ended();
                }
                act(&mut pace, now, matters, &mut last, &mut waiting)?;
                prop_assert!(last.is_some_and(|last| now < last + INTERVAL));
            }
        }
    }

    fn act(
        pace: &mut Pace,
        now: Instant,
        matters: bool,
        last: &mut Option<Instant>,
        waiting: &mut Option<Instant>,
    ) -> Result<(), TestCaseError> {
        match pace.due(now, true) {
            Some(due) if due == Due::Report || matters => {
                prop_assert!(last.is_none_or(|last| now >= last + GAP));
                pace.began(now);
                (*last, *waiting) = (Some(now), None);
            }
            Some(_) => {
                pace.looked(now);
                *waiting = None;
            }
            None => {}
        }
        Ok(())
    }
}
