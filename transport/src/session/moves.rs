//! When a session moves from one carrier to another, without I/O. A session
//! that rides on a fallback looks for QUIC again: first after 10 s, then twice
//! as late each time up to 5 min, and at once when the network has changed. It
//! moves by itself once QUIC answers; what runs on the carrier it leaves goes on
//! there, and it is closed once it is unused. A path that works only now and then is
//! asked as seldom as one that never does. A controlplane that stops sends its
//! sessions elsewhere: there, too, what runs may end where it is, until the
//! controlplane closes. [`crate::link`] is the shell.

use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

/// The first and the longest pause between two looks for something better.
pub const PROBES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// How long a carrier without streams is kept, for what is still on its way.
pub const SETTLED: Duration = Duration::from_secs(2);
/// How often to look whether it has any.
const LOOK: Duration = Duration::from_millis(500);
/// The first and the longest pause between two attempts to get elsewhere.
const ELSEWHERE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// How much longer than it said a controlplane that stops may take to close.
const SLACK: Duration = Duration::from_secs(5);

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Nothing before [`Moves::next`].
    Nothing,
    /// Look whether a better carrier can be had, and say so with
    /// [`Moves::failed`] or [`Moves::moved`].
    Probe,
    /// Look for another controlplane, and say as after a probe.
    Elsewhere,
    /// Say with [`Moves::looked`] whether the carrier that was left is used.
    Look,
    /// Close the carrier that was left.
    Leave,
}

/// The state of one session's carriers, on the side that dialed.
#[derive(Debug, Clone)]
pub struct Moves {
    /// Whether there may be a better one.
    fallback: bool,
    pause: Duration,
    probe_at: Option<Instant>,
    probing: bool,
    since: Instant,
    left: Option<Left>,
    evicted: Option<Evicted>,
}

/// The controlplane stops.
#[derive(Debug, Clone, Copy)]
struct Evicted {
    until: Instant,
    at: Instant,
    pause: Duration,
}

/// The carrier that was left.
#[derive(Debug, Clone, Copy)]
struct Left {
    look_at: Instant,
    unused_since: Option<Instant>,
    /// Until when its controlplane stops; it closes the carrier itself.
    evicted: Option<Instant>,
}

impl Left {
    /// When it is closed, unless it is used again before.
    fn ends(&self) -> Option<Instant> {
        match self.evicted {
            Some(until) => Some(until + SLACK),
            None => self.unused_since.map(|since| since + SETTLED),
        }
    }

    /// When there is something to do about it.
    fn next(&self) -> Instant {
        self.ends().map_or(self.look_at, |ends| ends.min(self.look_at))
    }
}

impl Moves {
    /// A session that begins, on a fallback or not.
    #[must_use]
    pub fn new(now: Instant, fallback: bool, rng: &mut impl Rng) -> Self {
        let mut moves = Self {
            fallback,
            pause: PROBES.0,
            probe_at: None,
            probing: false,
            since: now,
            left: None,
            evicted: None,
        };
        moves.schedule(now, rng);
        moves
    }

    /// When [`Moves::poll`] has something to say.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        let evicted = self.evicted.filter(|_| !self.probing).map(|evicted| evicted.at);
        // Who has just moved first leaves for good, unless it has to go again.
        let left = self.left.map(|left| left.next());
        evicted.into_iter().chain(left).min().or(self.probe_at.filter(|_| self.evicted.is_none()))
    }

    /// What is to be done at `now`.
    pub fn poll(&mut self, now: Instant) -> Task {
        if !self.probing && self.evicted.is_some_and(|evicted| now >= evicted.at) {
            self.probing = true;
            return Task::Elsewhere;
        }
        if self.left.is_none() && self.evicted.is_none() && self.probe_at.is_some_and(|at| now >= at) {
            (self.probe_at, self.probing) = (None, true);
            return Task::Probe;
        }
        match &mut self.left {
            Some(left) if left.ends().is_some_and(|ends| now >= ends) => {
                self.left = None;
                Task::Leave
            }
            Some(left) if now >= left.look_at => {
                left.look_at = now + LOOK;
                Task::Look
            }
            _ => Task::Nothing,
        }
    }

    /// The carrier has gone quiet, which is no fallback: whether to look for
    /// another, as after [`Task::Probe`].
    pub fn suspected(&mut self) -> bool {
        !self.fallback && !std::mem::replace(&mut self.probing, true)
    }

    /// The network of this machine is another, or was away: what was learnt of
    /// the old one counts no more.
    pub fn network_changed(&mut self, now: Instant) {
        self.pause = PROBES.0;
        if self.fallback && !self.probing {
            self.probe_at = Some(now);
        }
    }

    /// The controlplane stops within a time, and the session is to go elsewhere
    /// before: anywhere in a span, so that many do not come there together.
    pub fn evicted(&mut self, now: Instant, within: Duration, spread: Duration, rng: &mut impl Rng) {
        let at = now + spread.min(within / 4).mul_f64(rng.random_range(0.0..=1.0));
        self.evicted = Some(Evicted { until: now + within, at, pause: ELSEWHERE.0 });
    }

    /// Whether the session may go back to the carrier it has left.
    #[must_use]
    pub fn may_return(&self) -> bool {
        self.left.is_some_and(|left| left.evicted.is_none())
    }

    /// No better carrier can be had now.
    pub fn failed(&mut self, now: Instant, rng: &mut impl Rng) {
        self.probing = false;
        if let Some(evicted) = &mut self.evicted {
            evicted.at = now + evicted.pause.mul_f64(rng.random_range(0.5..=1.0));
            evicted.pause = (evicted.pause * 2).min(ELSEWHERE.1);
            return;
        }
        self.pause = (self.pause * 2).min(PROBES.1);
        self.schedule(now, rng);
    }

    /// The session rides on another carrier from now on, and the one it left
    /// is still there.
    pub fn moved(&mut self, now: Instant, fallback: bool, rng: &mut impl Rng) {
        (self.probing, self.fallback, self.since) = (false, fallback, now);
        let evicted = self.evicted.take().map(|evicted| evicted.until);
        let look_at = evicted.map_or(now + LOOK, |until| until + SLACK);
        self.left = Some(Left { look_at, unused_since: None, evicted });
        self.schedule(now, rng);
    }

    /// The newer carrier is lost, and the session is back on the one it had left.
    pub fn fell_back(&mut self, now: Instant, fallback: bool, rng: &mut impl Rng) {
        // One that did not last was no better.
        if now < self.since + PROBES.1 {
            self.pause = (self.pause * 2).min(PROBES.1);
        }
        // One that stops is to be left again.
        if let Some(until) = self.left.and_then(|left| left.evicted) {
            let at = now + ELSEWHERE.0.mul_f64(rng.random_range(0.0..=1.0));
            self.evicted = Some(Evicted { until, at, pause: ELSEWHERE.0 });
        }
        (self.left, self.fallback, self.since) = (None, fallback, now);
        self.schedule(now, rng);
    }

    /// The carrier that was left is gone by itself.
    pub fn gone(&mut self) {
        self.left = None;
    }

    /// Whether streams still run on the carrier that was left.
    pub fn looked(&mut self, now: Instant, used: bool) {
        let Some(left) = &mut self.left else { return };
        left.unused_since = if used { None } else { left.unused_since.or(Some(now)) };
    }

    /// Up to a quarter later than the pause, so that many do not ask together.
    fn schedule(&mut self, now: Instant, rng: &mut impl Rng) {
        let more = self.pause.mul_f64(rng.random_range(0.0..=0.25));
        self.probe_at = (self.fallback && !self.probing).then(|| now + self.pause + more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Runs until something is due, and says when.
    fn until_due(moves: &mut Moves) -> Option<(Instant, Task)> {
        loop {
            let at = moves.next()?;
            match moves.poll(at) {
                Task::Nothing => {}
                task => return Some((at, task)),
            }
        }
    }

    #[test]
    fn looks_after_ten_seconds_and_then_ever_later() {
        let (start, mut rng) = (Instant::now(), StdRng::seed_from_u64(1));
        let mut moves = Moves::new(start, true, &mut rng);
        let mut before = start;
        for pause in [10, 20, 40, 80, 160, 300, 300] {
            let (at, task) = until_due(&mut moves).unwrap();
            assert_eq!(task, Task::Probe);
            assert!(at - before >= s(pause) && at - before <= s(pause).mul_f64(1.25), "{:?}", at - before);
            assert_eq!(moves.next(), None, "one look at a time");
            moves.failed(at, &mut rng);
            before = at;
        }
        moves.network_changed(before + s(1));
        assert_eq!(until_due(&mut moves), Some((before + s(1), Task::Probe)));
    }

    #[test]
    fn one_on_quic_looks_for_nothing_unless_it_is_quiet() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut moves = Moves::new(Instant::now(), false, &mut rng);
        moves.network_changed(Instant::now());
        assert_eq!(moves.next(), None);
        assert!(moves.suspected());
        assert!(!moves.suspected(), "one look at a time");
        moves.failed(Instant::now(), &mut rng);
        assert_eq!(moves.next(), None);
        assert!(moves.suspected());
        assert!(!Moves::new(Instant::now(), true, &mut rng).suspected(), "a fallback has nothing to flee to");
    }

    #[test]
    fn what_was_left_is_closed_once_unused_and_not_before() {
        let (now, mut rng) = (Instant::now(), StdRng::seed_from_u64(1));
        let moved = |rng: &mut StdRng| {
            let mut moves = Moves::new(now, true, rng);
            moves.moved(now, false, rng);
            moves
        };
        let left_at = |mut moves: Moves, used_until: Instant| loop {
            match until_due(&mut moves).unwrap() {
                (at, Task::Look) => moves.looked(at, at < used_until),
                (at, Task::Leave) => return at - now,
                (_, other) => panic!("{other:?}"),
            }
        };
        let unused = left_at(moved(&mut rng), now);
        assert!(unused >= SETTLED && unused < SETTLED + s(1), "{unused:?}");
        let for_a_while = left_at(moved(&mut rng), now + s(20));
        assert!(for_a_while >= s(22) && for_a_while < s(23), "{for_a_while:?}");
        let for_hours = left_at(moved(&mut rng), now + s(7_200));
        assert!(for_hours >= s(7_202) && for_hours < s(7_203), "{for_hours:?}");
    }

    #[test]
    fn what_was_left_and_is_used_again_stays() {
        let (now, mut rng) = (Instant::now(), StdRng::seed_from_u64(1));
        let mut moves = Moves::new(now, true, &mut rng);
        moves.moved(now, false, &mut rng);
        // Used but for a moment.
        for look in 0..1_000 {
            let (at, task) = until_due(&mut moves).unwrap();
            assert_eq!(task, Task::Look);
            moves.looked(at, look != 1);
        }
    }

    #[test]
    fn one_that_is_sent_away_goes_on_trying_and_is_kept_where_it_was() {
        let (now, mut rng) = (Instant::now(), StdRng::seed_from_u64(1));
        let mut moves = Moves::new(now, true, &mut rng);
        moves.evicted(now, s(60), s(10), &mut rng);
        let (mut at, task) = until_due(&mut moves).unwrap();
        assert_eq!(task, Task::Elsewhere);
        assert!(at - now <= s(10));
        assert_eq!(moves.next(), None, "one attempt at a time");
        for pause in [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000].map(Duration::from_millis) {
            moves.failed(at, &mut rng);
            let (again, task) = until_due(&mut moves).unwrap();
            assert_eq!(task, Task::Elsewhere);
            assert!(again - at >= pause / 2 && again - at <= pause, "{:?}", again - at);
            at = again;
        }
        moves.moved(at, false, &mut rng);
        assert!(!moves.may_return());
        let (closed, task) = until_due(&mut moves).unwrap();
        assert_eq!((task, closed - now), (Task::Leave, s(60) + SLACK), "it is not closed for being unused");
    }

    #[test]
    fn one_that_is_back_where_it_was_sent_away_leaves_again() {
        let (now, mut rng) = (Instant::now(), StdRng::seed_from_u64(1));
        let mut moves = Moves::new(now, false, &mut rng);
        moves.evicted(now, s(60), Duration::ZERO, &mut rng);
        assert_eq!(until_due(&mut moves), Some((now, Task::Elsewhere)));
        moves.moved(now, false, &mut rng);
        moves.fell_back(now + s(1), false, &mut rng);
        let (at, task) = until_due(&mut moves).unwrap();
        assert_eq!(task, Task::Elsewhere);
        assert!(at <= now + s(1) + ELSEWHERE.0);
    }

    proptest! {
        /// However the paths behave, nobody is asked all the time, nothing is
        /// left open, and who is on a fallback always looks again.
        #[test]
        fn never_asks_too_often_and_never_stops(
            outcomes in prop::collection::vec((0..5u8, 0..120u64, any::<bool>()), 1..200), seed in any::<u64>()
        ) {
            let (start, mut rng) = (Instant::now(), StdRng::seed_from_u64(seed));
            let mut moves = Moves::new(start, true, &mut rng);
            let (mut fallback, mut left_since, mut probed): (bool, Option<Instant>, Vec<Instant>) =
                (true, None, Vec::new());
            let mut unused_since: Option<Instant> = None;
            let mut now = start;
            for (outcome, lives, used) in outcomes {
                let Some(at) = moves.next() else {
                    // On QUIC, with nothing left behind: it is lost after a while.
                    prop_assert!(!fallback && left_since.is_none());
                    now += s(lives);
                    moves.fell_back(now, true, &mut rng);
                    fallback = true;
                    continue;
                };
                now = now.max(at);
                match moves.poll(now) {
                    Task::Probe => {
                        prop_assert!(fallback);
                        probed.push(now);
                        if outcome == 0 {
                            moves.moved(now, false, &mut rng);
                            (fallback, left_since) = (false, Some(now));
                        } else {
                            moves.failed(now, &mut rng);
                        }
                    }
                    Task::Elsewhere if used => moves.failed(now, &mut rng),
                    Task::Elsewhere => {
                        moves.moved(now, fallback, &mut rng);
                        (left_since, unused_since) = (Some(now), None);
                    }
                    Task::Look => {
                        moves.looked(now, used);
                        unused_since = if used { None } else { unused_since.or(Some(now)) };
                        if outcome == 1 && lives < 3 {
                            moves.fell_back(now, true, &mut rng);
                            (fallback, left_since, unused_since) = (true, None, None);
                        }
                    }
                    Task::Leave => (left_since, unused_since) = (None, None),
                    Task::Nothing => {}
                }
                if outcome == 4 && left_since.is_none() {
                    moves.evicted(now, s(60), s(lives), &mut rng);
                }
                prop_assert!(unused_since.is_none_or(|since| now <= since + SETTLED + LOOK));
                prop_assert!(!fallback || moves.next().is_some());
            }
            for pair in probed.windows(2) {
                prop_assert!(pair[1] - pair[0] >= PROBES.0, "{:?}", pair[1] - pair[0]);
            }
        }
    }
}
