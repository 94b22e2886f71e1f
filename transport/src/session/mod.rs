//! The rules of a session, without I/O: when a peer counts as gone, when to
//! ping it, how long to wait before dialing again, when to move to a better
//! carrier. Time and randomness are
//! arguments; [`crate::link`] and [`crate::accept`] are the shells around it.

mod backoff;
mod liveness;
mod moves;
mod silence;

use std::time::Duration;

pub use backoff::{Backoff, Outage};
pub use liveness::{Due, Liveness};
pub use moves::{Moves, PROBES, SETTLED, Task};
pub use silence::{Quiet, Silence, Unanswered};

/// How often the controlplane pings each session.
pub const PING_EVERY: Duration = Duration::from_secs(15);

/// Says so when pings come more often than they have to on most networks.
pub(crate) fn warn_of_short_pings(every: Duration) {
    if every < PING_EVERY {
        tracing::warn!(
            ?every,
            "pings come more often than every 15 s: the idle timeout of one side is short"
        );
    }
}
/// A carrier on which nothing was heard for this long is given up, by either side.
pub const DEAD_AFTER: Duration = Duration::from_secs(45);
/// How long a peer has to answer after this process was asleep.
pub const PROBE: Duration = Duration::from_secs(5);
/// The shortest and longest pause between two attempts.
pub const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// The pause after a refusal.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// Sessions that may come back each second after a restart. With it the first
/// retries of n sessions are spread over n / 50 seconds, so that no second
/// sees a tenth of a thousand of them.
pub const RECONNECTS_PER_SECOND: u32 = 50;

/// The span over which the first retries of this many sessions are spread.
#[must_use]
pub fn reconnect_spread(sessions: usize) -> Duration {
    Duration::from_secs(1) * u32::try_from(sessions).unwrap_or(u32::MAX / 60) / RECONNECTS_PER_SECOND
}
