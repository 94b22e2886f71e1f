//! What the end of a container means for its task. Pure: the worker's last
//! event and what is known of the task come in, the task's next status comes
//! out. The store applies it, fenced.

use levers9_wire::v1::{Outcome, RunEnded};

use crate::store::{AttemptState, TaskStatus, Then};

/// What is known of a task when an attempt of it ends.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Why it was asked to end, when it was.
    pub cancel_reason: Option<&'a str>,
    /// How many attempts were lost before this one.
    pub lost_before: u32,
    /// How many may be lost in all.
    pub max_retries: u32,
    /// Which try this was.
    pub number: u32,
}

/// Refusals by workers that do not count as losses; more than these do, so
/// that a task nobody takes comes to an end.
const FREE_REFUSALS: u32 = 10;

/// The attempt's last state, and what it means for the task.
#[must_use]
pub fn of_event(ended: &RunEnded, known: Known<'_>) -> (AttemptState, Then) {
    let end = |status, exit_code, reason: &str| Then::End { status, exit_code, reason: reason.to_owned() };
    match ended.outcome() {
        Outcome::Exited if ended.exit_code == 0 => {
            (AttemptState::Complete, end(TaskStatus::Complete, Some(0), &ended.reason))
        }
        Outcome::Exited => {
            (AttemptState::Failed, end(TaskStatus::Error, Some(ended.exit_code), &ended.reason))
        }
        Outcome::Signaled => {
            let reason = if ended.reason.is_empty() {
                format!("killed by signal {}", ended.signal)
            } else {
                ended.reason.clone()
            };
            (AttemptState::Failed, end(TaskStatus::Error, Some(128 + ended.signal), &reason))
        }
        Outcome::TimedOut => (AttemptState::TimedOut, end(TaskStatus::Timeout, Some(124), &ended.reason)),
        Outcome::StartFailed => {
            (AttemptState::Failed, end(TaskStatus::Error, Some(ended.exit_code), &ended.reason))
        }
        Outcome::OutOfMemory => (AttemptState::Failed, end(TaskStatus::Error, Some(137), &ended.reason)),
        Outcome::Stopped => match known.cancel_reason {
            Some(reason) => (AttemptState::Cancelled, end(TaskStatus::Cancelled, None, reason)),
            // Stopped for the worker's own reasons: the task did nothing wrong.
            None => lost(&ended.reason, known),
        },
        Outcome::Refused
            if known.cancel_reason.is_none() && known.number <= known.max_retries + FREE_REFUSALS =>
        {
            // It never ran: the task has lost nothing.
            (AttemptState::Failed, Then::Retry { reason: ended.reason.clone() })
        }
        Outcome::UnknownContainer | Outcome::Refused | Outcome::WorkerFailed | Outcome::Unspecified => {
            lost(&ended.reason, known)
        }
    }
}

/// An attempt whose container is gone: another try, while there are tries left.
#[must_use]
pub fn lost(reason: &str, known: Known<'_>) -> (AttemptState, Then) {
    if let Some(cancelled) = known.cancel_reason {
        let reason = cancelled.to_owned();
        return (
            AttemptState::Cancelled,
            Then::End { status: TaskStatus::Cancelled, exit_code: None, reason },
        );
    }
    if known.lost_before < known.max_retries {
        return (AttemptState::Lost, Then::Retry { reason: reason.to_owned() });
    }
    let tries = known.lost_before + 1;
    let reason = match tries {
        1 => format!("its container was lost: {reason}"),
        n => format!("its container was lost {n} times, the last time: {reason}"),
    };
    (AttemptState::Lost, Then::End { status: TaskStatus::Error, exit_code: None, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Known<'static> = Known { cancel_reason: None, lost_before: 0, max_retries: 3, number: 1 };

    fn ended(outcome: Outcome) -> RunEnded {
        RunEnded { outcome: outcome.into(), reason: "so".into(), ..RunEnded::default() }
    }

    fn status(then: &Then) -> (TaskStatus, Option<i32>) {
        match then {
            Then::End { status, exit_code, .. } => (*status, *exit_code),
            Then::Retry { .. } => (TaskStatus::Retry, None),
        }
    }

    #[test]
    fn every_outcome_has_its_status_and_code() {
        let of = |ended: RunEnded| status(&of_event(&ended, FRESH).1);
        assert_eq!(of(ended(Outcome::Exited)), (TaskStatus::Complete, Some(0)));
        assert_eq!(of(RunEnded { exit_code: 7, ..ended(Outcome::Exited) }), (TaskStatus::Error, Some(7)));
        assert_eq!(of(RunEnded { signal: 9, ..ended(Outcome::Signaled) }), (TaskStatus::Error, Some(137)));
        assert_eq!(
            of(RunEnded { exit_code: 127, ..ended(Outcome::StartFailed) }),
            (TaskStatus::Error, Some(127))
        );
        assert_eq!(of(ended(Outcome::TimedOut)), (TaskStatus::Timeout, Some(124)));
        assert_eq!(of(ended(Outcome::OutOfMemory)), (TaskStatus::Error, Some(137)));
        for retried in [Outcome::UnknownContainer, Outcome::Refused, Outcome::WorkerFailed, Outcome::Stopped]
        {
            assert_eq!(of(ended(retried)), (TaskStatus::Retry, None), "{retried:?}");
        }
        // A worker of a later version may say what this build does not know.
        assert_eq!(of(RunEnded { outcome: 77, ..RunEnded::default() }), (TaskStatus::Retry, None));
    }

    #[test]
    fn a_cancelled_task_is_never_tried_again() {
        let known = Known { cancel_reason: Some("asked"), ..FRESH };
        for outcome in [Outcome::Stopped, Outcome::UnknownContainer, Outcome::WorkerFailed] {
            let then = of_event(&ended(outcome), known).1;
            assert_eq!(
                then,
                Then::End { status: TaskStatus::Cancelled, exit_code: None, reason: "asked".into() }
            );
        }
        // One that had finished all the same, has.
        assert_eq!(status(&of_event(&ended(Outcome::Exited), known).1).0, TaskStatus::Complete);
    }

    #[test]
    fn a_refusal_costs_no_retry_but_not_for_ever() {
        let refused = |number| of_event(&ended(Outcome::Refused), Known { lost_before: 3, number, ..FRESH });
        assert_eq!(refused(4).0, AttemptState::Failed);
        assert_eq!(status(&refused(4).1).0, TaskStatus::Retry);
        assert_eq!(status(&refused(14).1).0, TaskStatus::Error);
    }

    #[test]
    fn three_retries_are_four_tries() {
        let tries: Vec<_> =
            (0..5).map(|lost_before| status(&lost("gone", Known { lost_before, ..FRESH }).1).0).collect();
        use TaskStatus::{Error, Retry};
        assert_eq!(tries, [Retry, Retry, Retry, Error, Error]);
        let (_, then) = lost("gone", Known { lost_before: 3, ..FRESH });
        let Then::End { reason, .. } = then else { panic!("ends") };
        assert_eq!(reason, "its container was lost 4 times, the last time: gone");
    }
}
