//! Waits until something is so.

use std::thread::sleep;
use std::time::Duration;

// The standard clock is banned in the workspace; outside a runtime this is the same.
use tokio::time::Instant;

/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Looks until `look` gives a value; its error says what there is instead.
///
/// # Panics
/// When that takes longer than `within`, with what was seen last.
pub fn until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() >= within => {
                panic!("not within {within:?}: {what}\nlast seen: {seen}")
            }
            Err(_) => sleep(LOOK),
        }
    }
}

/// Looks for `time` that something stays so: for what must not happen.
///
/// # Panics
/// As soon as `look` gives an error.
pub fn stays(what: &str, time: Duration, mut look: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    while start.elapsed() < time {
        if let Err(seen) = look() {
            panic!("for {:?} only: {what}\nthen: {seen}", start.elapsed());
        }
        sleep(LOOK);
    }
}
