//! What waits for the product's own long timers: 45 s until a session is given
//! up, 90 s until a worker is lost, 120 s for a caller. All of them run beside
//! each other and beside the other tests, begun by [`crate::begin`], or else by
//! the first of them; together they take as long as the longest.

use levers9_tests::Way;
use levers9_tests::slow::Slow;

use crate::{blocked, callers, carriers, nat, network, rotation, sleep, workers};

/// The name of each test here, and what it runs.
pub(crate) static SLOW: Slow = Slow::new(&[
    ("other_ca", rotation::a_ca_is_replaced_under_what_runs),
    ("deserted", callers::a_deserted_task_is_cancelled_and_others_are_not),
    ("takeover", workers::another_worker_takes_over_after_ninety_seconds),
    ("late_result", workers::a_late_result_is_refused),
    ("long_cut", network::alone_a_worker_keeps_its_attempt_through_any_cut),
    ("cancelled_while_cut", network::a_job_cancelled_during_a_long_cut_is_stopped_after_it),
    ("udp_cut", carriers::udp_that_is_cut),
    ("udp_eaten_forth", carriers::udp_that_is_eaten_forth),
    ("udp_eaten_back", carriers::udp_that_is_eaten_back),
    ("half_open_forth", || carriers::a_half_open_path(Way::Forth)),
    ("half_open_back", || carriers::a_half_open_path(Way::Back)),
    ("walled_dropped", blocked::udp_that_is_dropped_in_the_middle),
    ("walled_rejected", blocked::udp_that_is_rejected_in_the_middle),
    ("walled_without_icmp", blocked::udp_that_is_rejected_and_icmp_that_is_lost),
    ("walled_refused", blocked::sending_that_is_refused),
    ("walled_refused_udp", blocked::sending_over_udp_that_is_refused),
    ("walled_all", blocked::everything_that_is_dropped),
    ("sleeping_commands", sleep::commands_that_sleep),
    ("sleeping_worker", sleep::a_worker_that_sleeps),
    ("forgetful_nat", nat::ports_and_addresses_that_change_now_and_then_cost_nothing),
]);

#[test]
fn deserted() {
    SLOW.verdict("deserted");
}

#[test]
fn takeover() {
    SLOW.verdict("takeover");
}

#[test]
fn late_result() {
    SLOW.verdict("late_result");
}

#[test]
fn long_cut() {
    SLOW.verdict("long_cut");
}

#[test]
fn cancelled_while_cut() {
    SLOW.verdict("cancelled_while_cut");
}

#[test]
fn udp_cut() {
    SLOW.verdict("udp_cut");
}

#[test]
fn udp_eaten_forth() {
    SLOW.verdict("udp_eaten_forth");
}

#[test]
fn udp_eaten_back() {
    SLOW.verdict("udp_eaten_back");
}

#[test]
fn half_open_forth() {
    SLOW.verdict("half_open_forth");
}

#[test]
fn half_open_back() {
    SLOW.verdict("half_open_back");
}

#[test]
fn other_ca() {
    SLOW.verdict("other_ca");
}

#[test]
fn walled_dropped() {
    SLOW.verdict("walled_dropped");
}

#[test]
fn walled_rejected() {
    SLOW.verdict("walled_rejected");
}

#[test]
fn walled_without_icmp() {
    SLOW.verdict("walled_without_icmp");
}

#[test]
fn walled_refused() {
    SLOW.verdict("walled_refused");
}

#[test]
fn walled_refused_udp() {
    SLOW.verdict("walled_refused_udp");
}

#[test]
fn walled_all() {
    SLOW.verdict("walled_all");
}

#[test]
fn sleeping_commands() {
    SLOW.verdict("sleeping_commands");
}

#[test]
fn sleeping_worker() {
    SLOW.verdict("sleeping_worker");
}

#[test]
fn forgetful_nat() {
    SLOW.verdict("forgetful_nat");
}
