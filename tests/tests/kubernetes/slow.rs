//! What waits for long timers, the product's 90 s and the cluster's own: begun
//! by [`crate::a_begin`], beside the other tests.

use levers9_tests::slow::Slow;

use crate::{failures, workers};

/// The name of each test here, and what it runs.
pub(crate) static SLOW: Slow = Slow::new(&[
    ("a_lost_node", failures::a_node_that_is_lost_has_its_task_run_again_elsewhere_and_the_caller_follows),
    ("an_old_picture", workers::a_picture_that_is_too_old_places_nothing),
]);

#[test]
fn a_lost_node() {
    SLOW.verdict("a_lost_node");
}

#[test]
fn an_old_picture() {
    SLOW.verdict("an_old_picture");
}
