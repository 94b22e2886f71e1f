//! What waits for the product's own long timers: 45 s until a session is given
//! up, 90 s until a worker is lost, 120 s for a caller. All of them run beside
//! each other and beside the other tests, begun by [`crate::begin`], or else by
//! the first of them; together they take as long as the longest.

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

type Running = Mutex<HashMap<&'static str, JoinHandle<()>>>;

/// Those that were asked for, running.
fn running() -> &'static Running {
    static RUNNING: OnceLock<Running> = OnceLock::new();
    RUNNING.get_or_init(|| {
        let start = |(name, run): (&'static str, fn())| {
            let thread = std::thread::Builder::new().name(format!("slow::{name}"));
            (name, thread.spawn(run).expect("a thread"))
        };
        Mutex::new(
            ALL.into_iter().filter(|(name, _)| is_asked_for(&format!("slow::{name}"))).map(start).collect(),
        )
    })
}

/// Whether the command line of the test binary asks for a test.
fn is_asked_for(name: &str) -> bool {
    let (mut filters, mut skip) = (Vec::new(), Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--skip" => skip.extend(args.next()),
            "--test-threads" | "--format" | "--color" | "--logfile" | "--shuffle-seed" => drop(args.next()),
            option if option.starts_with('-') => {}
            _ => filters.push(arg),
        }
    }
    let matches = |parts: &[String]| parts.iter().any(|part| name.contains(part.as_str()));
    (filters.is_empty() || matches(&filters)) && !matches(&skip)
}

/// Begins all that were asked for and does not wait.
pub(crate) fn begin() {
    let _running = running();
}

/// How one of them went.
fn verdict(name: &str) {
    let mine = running().lock().unwrap_or_else(PoisonError::into_inner).remove(name).expect("it was started");
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
