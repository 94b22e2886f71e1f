//! The life of one container as a pure state machine: it is told what
//! happened and what time it is, and says what to do. The shell around it
//! starts, signals, and waits; it decides nothing.
//!
//! The end is told last: after the command's exit the log is read to its end
//! first, so that whoever knows of the end can have all of the log.

use std::time::Duration;

use levers9_wire::quantity::show_duration;
use levers9_wire::v1::{Outcome, RunEnded, StopReason};
use tokio::time::Instant;

use crate::runtime::{End, How, StartFailure};

/// How long the log may still come after nothing of the container is left.
const DRAIN: Duration = Duration::from_secs(5);

/// Why a container is being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// It ran for as long as it may.
    TimedOut(Duration),
    /// Somebody wants it stopped.
    Ordered {
        /// For what reason.
        reason: StopReason,
        /// More words; may be empty.
        text: String,
    },
}

/// An order to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// Why.
    pub why: Why,
    /// When SIGKILL follows SIGTERM.
    pub deadline: Instant,
}

/// What happens to a container.
#[derive(Debug)]
pub enum Input {
    /// Its process runs.
    Started {
        /// The process.
        pid: u32,
    },
    /// It did not start.
    StartFailed(StartFailure),
    /// It is to stop.
    Stop(Stop),
    /// Nothing of it is left.
    Exited(End),
    /// Its log is complete.
    Drained {
        /// How many records it has.
        records: u64,
    },
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Tell that it runs.
    TellStarted {
        /// The process.
        pid: u32,
    },
    /// Ask it to end: SIGTERM.
    Terminate,
    /// End it: SIGKILL to everything.
    Kill,
    /// Read no more of its output.
    CutLog,
    /// Tell how it ended. Nothing follows.
    TellEnded(RunEnded),
}

/// Where a container is in its life.
#[derive(Debug)]
enum State {
    Starting { stop: Option<Stop> },
    Running { since: Instant, timeout_at: Option<Instant> },
    Stopping { since: Instant, why: Why, deadline: Instant, killed: bool },
    Draining { ended: RunEnded, cut_at: Option<Instant> },
    Ended,
}

/// The life of one container.
#[derive(Debug)]
pub struct Life {
    state: State,
    timeout: Option<Duration>,
    timeout_grace: Duration,
}

impl Life {
    /// A container that is about to start. `timeout` counts from its process
    /// start; `timeout_grace` passes between SIGTERM and SIGKILL then.
    #[must_use]
    pub fn new(timeout: Option<Duration>, timeout_grace: Duration) -> Self {
        Self { state: State::Starting { stop: None }, timeout, timeout_grace }
    }

    /// When [`Input::Tick`] is to be given, if nothing comes before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Running { timeout_at, .. } => *timeout_at,
            State::Stopping { deadline, killed: false, .. } => Some(*deadline),
            State::Draining { cut_at, .. } => *cut_at,
            State::Starting { .. } | State::Stopping { .. } | State::Ended => None,
        }
    }

    /// Whether the end was told.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Takes what happened and says what to do, in order.
    pub fn on(&mut self, input: Input, now: Instant) -> Vec<Action> {
        match input {
            Input::Started { pid } => self.started(pid, now),
            Input::StartFailed(failure) => self.start_failed(failure, now),
            Input::Stop(stop) => self.stop(stop, now),
            Input::Exited(end) => self.exited(end, now),
            Input::Drained { records } => self.drained(records),
            Input::Tick => self.tick(now),
        }
    }

    fn started(&mut self, pid: u32, now: Instant) -> Vec<Action> {
        let State::Starting { stop } = &mut self.state else { return Vec::new() };
        let stop = stop.take();
        self.state = State::Running { since: now, timeout_at: self.timeout.and_then(|t| now.checked_add(t)) };
        let mut actions = vec![Action::TellStarted { pid }];
        actions.extend(stop.into_iter().flat_map(|stop| self.stop(stop, now)));
        actions
    }

    fn start_failed(&mut self, failure: StartFailure, now: Instant) -> Vec<Action> {
        let State::Starting { stop } = &mut self.state else { return Vec::new() };
        let ended = match (stop.take(), failure) {
            // Whether it could have started no longer matters to anybody.
            (Some(Stop { why: Why::Ordered { reason, text }, .. }), _) => {
                RunEnded { reason: stop_words(reason, &text), ..ended(Outcome::Stopped) }
            }
            (_, StartFailure { exit_code, words }) => {
                RunEnded { exit_code, reason: words, ..ended(Outcome::StartFailed) }
            }
        };
        self.state = State::Draining { ended, cut_at: Some(now + DRAIN) };
        Vec::new()
    }

    fn stop(&mut self, stop: Stop, now: Instant) -> Vec<Action> {
        match &mut self.state {
            State::Starting { stop: earlier } => {
                match earlier {
                    Some(earlier) => earlier.deadline = earlier.deadline.min(stop.deadline),
                    None => *earlier = Some(stop),
                }
                Vec::new()
            }
            State::Running { since, .. } => {
                let since = *since;
                self.state = State::Stopping { since, why: stop.why, deadline: stop.deadline, killed: false };
                let mut actions = vec![Action::Terminate];
                actions.extend(self.tick(now));
                actions
            }
            // The first reason stays, the earliest deadline counts.
            State::Stopping { deadline, .. } => {
                *deadline = (*deadline).min(stop.deadline);
                self.tick(now)
            }
            State::Draining { .. } | State::Ended => Vec::new(),
        }
    }

    fn exited(&mut self, end: End, now: Instant) -> Vec<Action> {
        let since = match &self.state {
            State::Starting { .. } => now,
            State::Running { since, .. } | State::Stopping { since, .. } => *since,
            State::Draining { .. } | State::Ended => return Vec::new(),
        };
        let stopping = match &self.state {
            State::Stopping { why, killed, .. } => Some((why, *killed)),
            _ => None,
        };
        let duration_ms = u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX);
        let ended = RunEnded { duration_ms, ..self.tell(end, stopping) };
        self.state = State::Draining { ended, cut_at: Some(now + DRAIN) };
        Vec::new()
    }

    fn tick(&mut self, now: Instant) -> Vec<Action> {
        match &mut self.state {
            State::Running { timeout_at: Some(at), .. } if *at <= now => {
                let why = Why::TimedOut(self.timeout.unwrap_or_default());
                let deadline = now + self.timeout_grace;
                self.stop(Stop { why, deadline }, now)
            }
            State::Stopping { deadline, killed, .. } if *deadline <= now && !*killed => {
                *killed = true;
                vec![Action::Kill]
            }
            State::Draining { cut_at, .. } if cut_at.is_some_and(|at| at <= now) => {
                *cut_at = None;
                vec![Action::CutLog]
            }
            _ => Vec::new(),
        }
    }

    fn drained(&mut self, records: u64) -> Vec<Action> {
        let State::Draining { ended, .. } = &self.state else { return Vec::new() };
        let ended = RunEnded { log_records: records, ..ended.clone() };
        self.state = State::Ended;
        vec![Action::TellEnded(ended)]
    }

    fn tell(&self, end: End, stopping: Option<(&Why, bool)>) -> RunEnded {
        let (outcome, exit_code, signal, words) = match end.how {
            How::Exited(code) => (Outcome::Exited, code, 0, String::new()),
            How::Signaled(signal) => (Outcome::Signaled, 0, signal, signal_words(signal)),
            How::OutOfMemory(words) => (Outcome::OutOfMemory, 137, 0, words),
            How::Lost(words) => (Outcome::WorkerFailed, 0, 0, words),
        };
        let (outcome, words) = match stopping {
            // It was the limit that ended it, not the order.
            Some((_, false)) | None if outcome == Outcome::OutOfMemory => (outcome, words),
            Some((why, killed)) => {
                let late = if killed && signal == 9 { self.late_words(why) } else { String::new() };
                match why {
                    Why::TimedOut(limit) => {
                        (Outcome::TimedOut, format!("timed out after {}{late}", show_duration(*limit)))
                    }
                    Why::Ordered { reason, text } => {
                        (Outcome::Stopped, format!("{}{late}", stop_words(*reason, text)))
                    }
                }
            }
            None => (outcome, words),
        };
        RunEnded { exit_code, signal, reason: joined(words, &end.note), ..ended(outcome) }
    }

    fn late_words(&self, why: &Why) -> String {
        match why {
            Why::TimedOut(_) => {
                format!(
                    "; it did not end within {} of SIGTERM and was killed",
                    show_duration(self.timeout_grace)
                )
            }
            Why::Ordered { .. } => "; it did not end after SIGTERM and was killed".to_owned(),
        }
    }
}

fn ended(outcome: Outcome) -> RunEnded {
    RunEnded { outcome: outcome.into(), ..RunEnded::default() }
}

fn joined(words: String, note: &str) -> String {
    match (words.is_empty(), note.is_empty()) {
        (_, true) => words,
        (true, false) => note.to_owned(),
        (false, false) => format!("{words}; {note}"),
    }
}

fn stop_words(reason: StopReason, text: &str) -> String {
    let words = match reason {
        StopReason::Unspecified => "stopped",
        StopReason::Cancelled => "cancelled",
        StopReason::NotWanted => "no longer wanted by the controlplane",
        StopReason::Shutdown => "the worker is shutting down",
        StopReason::Deadline => "its deadline has passed",
    };
    if text.is_empty() { words.to_owned() } else { format!("{words}: {text}") }
}

/// Words for the signal that ended a command.
pub(crate) fn signal_words(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(known) => format!("killed by signal {signal} ({known})"),
        Err(_) => format!("killed by signal {signal}"),
    }
}

#[cfg(test)]
mod tests;
