//! What waits for the product's own long timers: 45 s until a session is given
//! up, 90 s until a worker is lost, 120 s for a caller. All of them run beside
//! each other, begun by the first that is asked for; together they take as
//! long as the longest.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use crate::{callers, network, workers};

/// The name of each test here, and what it runs.
const ALL: [(&str, fn()); 5] = [
    ("deserted", callers::a_deserted_task_is_cancelled_and_others_are_not),
    ("takeover", workers::another_worker_takes_over_after_ninety_seconds),
    ("late_result", workers::a_late_result_is_refused),
    ("long_cut", network::alone_a_worker_keeps_its_attempt_through_any_cut),
    ("cancelled_while_cut", network::a_job_cancelled_during_a_long_cut_is_stopped_after_it),
];

/// How one of them went; the first that asks starts all that were asked for.
fn verdict(name: &str) {
    static RUNNING: OnceLock<Mutex<HashMap<&str, JoinHandle<()>>>> = OnceLock::new();
    let running = RUNNING.get_or_init(|| {
        let filters: Vec<_> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
        let asked = |name: &str| {
            let full = format!("slow::{name}");
            filters.is_empty() || filters.iter().any(|filter| full.contains(filter.as_str()))
        };
        let start = |(name, run): (&'static str, fn())| {
            let thread = std::thread::Builder::new().name(format!("slow::{name}"));
            (name, thread.spawn(run).expect("a thread"))
        };
        Mutex::new(ALL.into_iter().filter(|(name, _)| asked(name)).map(start).collect())
    });
    let mine = running.lock().unwrap_or_else(PoisonError::into_inner).remove(name).expect("it was started");
    if let Err(panic) = mine.join() {
        let words = panic.downcast_ref::<String>().cloned();
        panic!(
            "{}",
            words.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        );
    }
}

#[test]
fn deserted() {
    verdict("deserted");
}

#[test]
fn takeover() {
    verdict("takeover");
}

#[test]
fn late_result() {
    verdict("late_result");
}

#[test]
fn long_cut() {
    verdict("long_cut");
}

#[test]
fn cancelled_while_cut() {
    verdict("cancelled_while_cut");
}
