//! A carrier dies under something of every kind: a follow and a job go on, a
//! call is made once, a tunnel, a command, a request and a door end with words
//! and can be had again. Each way to die for each carrier, with the worker and
//! the person behind relays.

use std::ops::RangeInclusive;
use std::time::Duration;

use levers9_tests::{Way, wait};

use crate::scene::{Everything, Scene};

/// A dead carrier is given up within this; the rest is for the way to another.
const GIVEN_UP: Duration = Duration::from_secs(45 + 10);
/// Where the system can tell that a carrier is dead, everybody is back within this.
const TOLD: Duration = Duration::from_secs(12);

fn killed(scene: &Scene) {
    scene.world.controlplane.kill9();
    scene.world.controlplane.start();
}

#[test]
fn a_killed_controlplane_under_quic() {
    let scene = Scene::new(true);
    Everything::start(&scene).judge(&scene, TOLD, killed);
    scene.wait_carrier("quic", TOLD);
}

#[test]
fn a_killed_controlplane_under_tcp() {
    let scene = Scene::new(false);
    Everything::start(&scene).judge(&scene, TOLD, killed);
    scene.wait_carrier("tcp", TOLD);
}

#[test]
fn a_reset_connection() {
    let scene = Scene::new(false);
    Everything::start(&scene).judge(&scene, TOLD, |scene| {
        scene.near.break_tcp();
        scene.far.break_tcp();
    });
    scene.wait_carrier("tcp", TOLD);
}

/// UDP is cut for good; TCP passes.
pub(crate) fn udp_that_is_cut() {
    moves_to_tcp(1..=1, |scene| {
        scene.near.cut_udp();
        scene.far.cut_udp();
    });
}

/// Nothing that peers send gets through any more; what is sent to them does.
/// They hear pings, and what is sent again and again: they may see that nothing
/// answers them; at the latest the controlplane gives their sessions up.
pub(crate) fn udp_that_is_eaten_forth() {
    moves_to_tcp(1..=2, |scene| {
        scene.near.cut_udp_way(Way::Forth);
        scene.far.cut_udp_way(Way::Forth);
    });
}

/// The other direction.
pub(crate) fn udp_that_is_eaten_back() {
    moves_to_tcp(1..=1, |scene| {
        scene.near.cut_udp_way(Way::Back);
        scene.far.cut_udp_way(Way::Back);
    });
}

/// `sessions`: how many of the worker there may be until it is over.
fn moves_to_tcp(sessions: RangeInclusive<usize>, happen: impl FnOnce(&Scene)) {
    let scene = Scene::new(true);
    Everything::start(&scene).judge(&scene, GIVEN_UP, happen);
    scene.wait_carrier("tcp", Duration::from_secs(5));
    let log = scene.world.controlplane.log();
    let begun = log.matches("a worker connects").count();
    assert!(sessions.contains(&begun), "{begun}: {log}");
}

/// Half of the only way there is: nobody is told, and both notice in time.
pub(crate) fn a_half_open_path(way: Way) {
    let scene = Scene::new(true);
    let task = scene.world.submit("while sleep 1; do echo up; done");
    scene.world.wait_status(&task, "RUNNING", Duration::from_secs(20));
    scene.far.cut_way(way);
    // One look of the listing, and of the clocks of both sides, beside the 45 s.
    scene.world.wait_worker(&scene.worker, "away", Duration::from_secs(45 + 5));
    scene.worker.wait_log("no session with the controlplane", Duration::from_secs(30));
    scene.far.restore();
    scene.world.wait_worker(&scene.worker, "ready", Duration::from_secs(35));
    let shown = scene.world.task(&task);
    assert_eq!((&shown["attempts"], &shown["status"]), (&1.into(), &"RUNNING".into()), "{shown:#}");
    wait::until("its log goes on", Duration::from_secs(20), || {
        let text = scene.world.cli(&["logs", &task]).ok().text();
        if text.lines().count() > 45 { Ok(()) } else { Err(text.lines().count().to_string()) }
    });
}
