//! A worker that is gone, or not there yet. These run first, by their name, and
//! begin what is slow.

use std::time::Duration;

use levers9_tests::{Backend, World, wait};
use tokio::time::Instant;

use crate::support::{ENDED, PATIENCE, Site, in_time, mark};

/// Runs first.
#[test]
fn a_beginning_of_what_is_slow() {
    crate::slow::SLOW.begin();
}

/// A worker that is gone: those that wait learn it, new ones are told.
pub(crate) fn a_killed_worker_is_named() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let (site, id) = (Site::start(&world, &["--public"]), mark());
    let mut waiting = site.connect();
    waiting.send(&site.head("GET", &format!("/hang?id={id}"), "")).expect("it is sent");
    site.wait_event(&format!("hanging {id}"), PATIENCE);
    worker.kill9();
    // Its containers end with it. The controlplane learns it by its 45 s at the latest;
    // a request meanwhile waits for an answer of the tunnel 15 s at most.
    let begun = Instant::now();
    let answer = site.get("/x");
    in_time(begun, Duration::from_secs(16), "the answer of a dead worker's container");
    let status = answer.status();
    assert!(matches!(status, 503 | 504), "{status}: {}", answer.text());
    // From then on each waits 10 s for it to come back.
    wait::until("the worker is known to be away", Duration::from_secs(80), || {
        let answer = site.get("/x");
        let reason = answer.head.text("x-levers9-reason");
        if (answer.status(), reason.as_str()) == (503, "worker-away") {
            return Ok(());
        }
        Err(format!("{} {reason} {}", answer.status(), answer.text()))
    });
    waiting.limit(Some(Duration::from_secs(80)));
    let answer = waiting.answer("GET").expect("whoever waited learns it as well");
    assert_eq!(answer.status(), 502, "{}", answer.text());
}

/// One that stops in order is known to be away at once.
#[test]
fn a_worker_that_says_goodbye_is_named_at_once() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let site = Site::start(&world, &["--public"]);
    assert_eq!(site.get("/x").with(200).text(), "ok /x");
    assert_eq!(worker.terminate(), 0, "{}", worker.log());
    let begun = Instant::now();
    let answer = site.get("/x").with(503);
    in_time(begun, ENDED, "the answer of a stopped worker's container");
    let reason = answer.head.text("x-levers9-reason");
    assert!(["worker-away", "not-running"].contains(&reason.as_str()), "{reason}: {}", answer.text());
    // Whoever comes in its place serves the task from then on, under the same URL.
    let _next = world.worker("two");
    wait::until("the next attempt answers", PATIENCE, || {
        let answer = site.get("/x");
        if answer.status() == 200 { Ok(()) } else { Err(format!("{} {}", answer.status(), answer.text())) }
    });
}

/// Whoever asks before the worker is back after a restart is answered, not refused.
#[test]
fn a_request_waits_for_a_worker_that_is_on_its_way() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let site = Site::start(&world, &["--public"]);
    for _ in 0..3 {
        assert_eq!(world.controlplane.terminate(), 0);
        world.controlplane.start();
        assert_eq!(site.get("/x").with(200).text(), "ok /x");
        assert_eq!(world.cli(&["exec", &site.task, "--", "echo", "on"]).ok().text(), "on\n");
    }
}

/// A task that waits for a worker says so, to those who may know of it.
#[test]
fn a_task_that_has_not_begun_says_so() {
    let world = World::start(Backend::Sqlite);
    let (public, private) = (Site::submit(&world, &["--public"]), Site::submit(&world, &[]));
    let answer = public.get("/x").with(503);
    assert_eq!(answer.head.text("x-levers9-reason"), "not-running");
    assert_eq!(answer.head.text("retry-after"), "2");
    assert!(answer.text().contains("waits for a worker"), "{}", answer.text());
    assert_eq!(private.get("/x").with(401).head.text("x-levers9-reason"), "token");
    let _worker = world.worker("one");
    wait::until("it answers once there is one", PATIENCE, || {
        let answer = public.get("/x");
        if answer.status() == 200 { Ok(()) } else { Err(format!("{} {}", answer.status(), answer.text())) }
    });
}
