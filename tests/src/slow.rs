//! Tests that wait for the product's own long timers. All of a test program's
//! run beside each other and beside its other tests: a test whose name comes
//! first begins them, and one for each says how it went.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// The slow tests of a test program.
#[derive(Debug)]
pub struct Slow {
    all: &'static [(&'static str, fn())],
    running: OnceLock<Mutex<HashMap<&'static str, JoinHandle<()>>>>,
}

impl Slow {
    /// Those of a program: the name of each, `slow::` left out, and what it runs.
    #[must_use]
    pub const fn new(all: &'static [(&'static str, fn())]) -> Self {
        Self { all, running: OnceLock::new() }
    }

    /// Begins all that were asked for and does not wait.
    pub fn begin(&self) {
        let _running = self.running();
    }

    fn running(&self) -> &Mutex<HashMap<&'static str, JoinHandle<()>>> {
        self.running.get_or_init(|| {
            let start = |(name, run): &(&'static str, fn())| {
                let thread = std::thread::Builder::new().name(format!("slow::{name}"));
                (*name, thread.spawn(*run).expect("a thread"))
            };
            let asked_for = |(name, _): &&(&'static str, fn())| is_asked_for(&format!("slow::{name}"));
            Mutex::new(self.all.iter().filter(asked_for).map(start).collect())
        })
    }

    /// Waits for one of them.
    ///
    /// # Panics
    /// When it failed, with its words.
    pub fn verdict(&self, name: &str) {
        let mut running = self.running().lock().unwrap_or_else(PoisonError::into_inner);
        let mine = running.remove(name).expect("it was started");
        drop(running);
        if let Err(panic) = mine.join() {
            let words = panic.downcast_ref::<String>().cloned();
            panic!(
                "{}",
                words.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
            );
        }
    }
}

/// Whether the command line of the test program asks for a test.
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
