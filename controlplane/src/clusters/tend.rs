//! What is to be done about one worker on a cluster: order it again, give its
//! order up, remove its Job, forget it. Pure: what is known comes as arguments,
//! one decision comes back. A Job is believed gone only by a picture that is
//! newer than what made it.

use std::time::Duration;

use levers9_wire::v1::JobPhase;
use tokio::time::Instant;

use crate::store::PoolWorkerState;

/// A Job that has not led to a worker by then never will: its agent removes it
/// after 20 min, and this much later it is given up without its agent as well.
const PENDING_MAX: Duration = Duration::from_secs(25 * 60);
/// A picture this much newer than an order shows what became of it.
const SETTLED: Duration = Duration::from_secs(3);
/// The pause between orders that were not taken.
pub const AGAIN: Duration = Duration::from_secs(5);

/// How the order that is due for a worker is doing: to start it, or to remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// To be sent from then on.
    Due(Instant),
    /// Sent; its answer is awaited.
    UnderWay,
    /// The agent did it, then.
    Done(Instant),
}

/// A Job in the newest report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// How far its pod is.
    pub phase: JobPhase,
}

/// What is known of a worker.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// How far it is.
    pub state: PoolWorkerState,
    /// How its order is doing.
    pub delivery: Delivery,
    /// Since when it is in this state.
    pub since: Instant,
    /// Whether its agent is here.
    pub agent: bool,
    /// When the newest picture of Jobs was taken, and its Job there.
    pub picture: Option<(Instant, Option<Job>)>,
    /// Since when the worker has no session; `None` while it has one, or never
    /// had one.
    pub away_since: Option<Instant>,
    /// Whether the worker has a session.
    pub connected: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing now.
    Wait,
    /// Send the order to start it.
    Create,
    /// It will not come: remove it, and leave its node alone for a while.
    Fail(&'static str),
    /// Its pod is gone: what it ran is lost.
    Lost(&'static str),
    /// Send the order to remove it.
    Delete,
    /// It is gone for certain.
    Forget,
}

/// Decides about one worker.
#[must_use]
pub fn tend(view: &View, now: Instant) -> Act {
    match view.state {
        PoolWorkerState::Pending => pending(view, now),
        PoolWorkerState::Running => running(view),
        PoolWorkerState::Stopping => stopping(view, now),
    }
}

fn due(view: &View, now: Instant) -> bool {
    view.agent && matches!(view.delivery, Delivery::Due(at) if at <= now)
}

fn pending(view: &View, now: Instant) -> Act {
    match (view.picture, view.delivery) {
        // What a Job has come to is so for good, however old the picture.
        (Some((_, Some(Job { phase: JobPhase::Failed, .. }))), _) => {
            return Act::Fail("its pod failed before it connected");
        }
        (Some((_, Some(Job { phase: JobPhase::Succeeded, .. }))), _) => {
            return Act::Fail("its pod ended before it connected");
        }
        (Some((taken, None)), Delivery::Done(at)) if taken >= at + SETTLED => {
            return Act::Fail("its Job was removed before it started");
        }
        _ => {}
    }
    if now.saturating_duration_since(view.since) >= PENDING_MAX {
        return Act::Fail("it did not start in time");
    }
    if due(view, now) { Act::Create } else { Act::Wait }
}

fn running(view: &View) -> Act {
    let Some((taken, job)) = view.picture else { return Act::Wait };
    match job {
        // A pod that has ended says no more, also where its session is not missed yet.
        Some(Job { phase: JobPhase::Failed, .. }) => Act::Lost("its pod failed"),
        Some(Job { phase: JobPhase::Succeeded, .. }) => Act::Lost("its pod ended"),
        // It may come back; after 90 s its tasks go elsewhere all the same.
        Some(_) => Act::Wait,
        None if view.connected => Act::Wait,
        None => match view.away_since {
            Some(away) if taken >= away => Act::Lost("its pod was removed"),
            _ => Act::Wait,
        },
    }
}

fn stopping(view: &View, now: Instant) -> Act {
    // An agent says that it is done when the Job and its pods are gone.
    if matches!(view.delivery, Delivery::Done(_)) {
        return Act::Forget;
    }
    let gone = view.picture.is_some_and(|(taken, job)| job.is_none() && taken >= view.since + SETTLED);
    if gone && !view.connected {
        return Act::Forget;
    }
    if due(view, now) { Act::Delete } else { Act::Wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(state: PoolWorkerState, since: Instant) -> View {
        View {
            state,
            delivery: Delivery::Due(since),
            since,
            agent: true,
            picture: None,
            away_since: None,
            connected: false,
        }
    }

    const fn job(phase: JobPhase) -> Option<Job> {
        Some(Job { phase })
    }

    #[test]
    fn an_order_is_sent_while_its_agent_is_here_and_given_up_by_a_newer_picture_only() {
        let start = Instant::now();
        let later = |s| start + Duration::from_secs(s);
        let mut v = view(PoolWorkerState::Pending, start);
        assert_eq!(tend(&v, start), Act::Create);
        v.agent = false;
        assert_eq!(tend(&v, start), Act::Wait);
        assert_eq!(tend(&v, later(25 * 60)), Act::Fail("it did not start in time"));
        v.agent = true;
        v.delivery = Delivery::Done(later(1));
        v.picture = Some((later(2), None));
        assert_eq!(tend(&v, later(2)), Act::Wait, "the picture may be from before");
        v.picture = Some((later(2), job(JobPhase::Failed)));
        assert!(matches!(tend(&v, later(2)), Act::Fail(_)), "what has failed has failed");
        v.picture = Some((later(4), None));
        assert!(matches!(tend(&v, later(4)), Act::Fail(_)));
        v.picture = Some((later(4), job(JobPhase::Pending)));
        assert_eq!(tend(&v, later(4)), Act::Wait);
        v.picture = Some((later(4), job(JobPhase::Failed)));
        assert!(matches!(tend(&v, later(4)), Act::Fail(_)));
    }

    #[test]
    fn a_worker_is_lost_when_it_is_away_and_its_pod_is_gone() {
        let start = Instant::now();
        let later = |s| start + Duration::from_secs(s);
        let mut v = view(PoolWorkerState::Running, start);
        v.delivery = Delivery::Done(start);
        v.picture = Some((later(20), None));
        v.connected = true;
        assert_eq!(tend(&v, later(20)), Act::Wait, "whoever speaks is not lost");
        (v.connected, v.away_since) = (false, Some(later(21)));
        assert_eq!(tend(&v, later(22)), Act::Wait, "the picture is older than its going");
        v.picture = Some((later(23), job(JobPhase::Running)));
        assert_eq!(tend(&v, later(23)), Act::Wait);
        v.picture = Some((later(23), None));
        assert!(matches!(tend(&v, later(23)), Act::Lost(_)));
        (v.connected, v.away_since) = (true, None);
        v.picture = Some((later(23), job(JobPhase::Failed)));
        assert!(matches!(tend(&v, later(23)), Act::Lost(_)), "its session is not missed yet");
    }

    #[test]
    fn what_stops_is_removed_until_it_is_gone() {
        let start = Instant::now();
        let later = |s| start + Duration::from_secs(s);
        let mut v = view(PoolWorkerState::Stopping, start);
        v.picture = Some((later(1), job(JobPhase::Running)));
        assert_eq!(tend(&v, later(1)), Act::Delete);
        v.delivery = Delivery::UnderWay;
        assert_eq!(tend(&v, later(1)), Act::Wait);
        v.picture = Some((later(9), None));
        v.connected = true;
        assert_eq!(tend(&v, later(9)), Act::Wait);
        v.connected = false;
        assert_eq!(tend(&v, later(9)), Act::Forget);
        (v.connected, v.picture) = (true, None);
        v.delivery = Delivery::Done(later(9));
        assert_eq!(tend(&v, later(9)), Act::Forget, "its agent has seen it go");
    }
}
