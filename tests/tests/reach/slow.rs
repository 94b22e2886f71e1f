//! What waits for the 45 s until a session is given up. Begun by
//! [`crate::away`], whose tests run first, or else by the first of these.

use levers9_tests::slow::Slow;

use crate::{away, exec};

/// The name of each test here, and what it runs.
pub(crate) static SLOW: Slow = Slow::new(&[
    ("killed_worker", away::a_killed_worker_is_named),
    ("killed_caller", exec::a_command_ends_with_a_caller_that_is_killed),
]);

#[test]
fn killed_worker() {
    SLOW.verdict("killed_worker");
}

#[test]
fn killed_caller() {
    SLOW.verdict("killed_caller");
}
