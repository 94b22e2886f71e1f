//! A worker's network fails.

use std::path::{Path, PathBuf};
use std::time::Duration;

use levers9_tests::{Backend, Relay, Worker, World, wait};

use crate::support::{
    LONG, SOON, STOPPED, assert_counts, content, counting, last_number, numbered, text, unique,
    wait_no_process,
};

/// A world whose only worker is behind a relay.
fn behind_a_relay() -> (World, Relay, Worker) {
    let world = World::start(Backend::Sqlite);
    let relay = world.relay();
    let worker = world.worker_via("one", &relay);
    (world, relay, worker)
}

/// A job that prints numbers and also writes them, with its process id, to a
/// file: whoever writes there can be counted.
fn writing(world: &World, count: u32, per_second: u32) -> (String, PathBuf) {
    let file = world.home.path().join("written");
    let each = format!("echo $i; echo $$.$(cut -d' ' -f22 /proc/self/stat).$i >> {};", file.display());
    (counting(count, per_second).replace("echo $i;", &each), file)
}

/// Fails unless every number was written once and in order (B85).
fn assert_one_writer(file: &Path, count: u32) {
    let text = content(file);
    let numbers: String =
        text.lines().filter_map(|line| Some(format!("{}\n", line.rsplit('.').next()?))).collect();
    assert_counts(&numbers, count, "the file that the job writes");
}

/// Waits until the job has written some more.
fn wait_written(file: &Path, more: u32) {
    let now = || {
        last_number(
            &content(file)
                .lines()
                .fold(String::new(), |_, line| format!("{}\n", line.rsplit('.').next().unwrap_or_default())),
        )
    };
    let before = now();
    wait::until("the job goes on", LONG, || {
        if now() >= before + more { Ok(()) } else { Err(format!("{} after {before}", now())) }
    });
}

#[test]
fn five_seconds_without_a_network_cost_nothing() {
    const COUNT: u32 = 200;
    let (world, relay, _worker) = behind_a_relay();
    let (script, file) = writing(&world, COUNT, 20);
    let mut run = world.cli_spawn(&["run", "--name", "job", "--", "sh", "-c", &script]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 10);
    relay.cut();
    wait_written(&file, 90);
    let seen = last_number(&run.text());
    assert!(seen < 40, "the relay is cut: {}", run.shown());
    relay.restore();
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "run");
    assert_one_writer(&file, COUNT);
    let list = world.cli(&["task", "list", "--format", "json"]).ok().json();
    assert_eq!(list[0]["attempts"], 1, "{list:#}");
}

/// A NAT forgets the worker several times.
#[test]
fn other_ports_cost_nothing() {
    const COUNT: u32 = 120;
    let (world, relay, worker) = behind_a_relay();
    let (script, file) = writing(&world, COUNT, 20);
    let mut run = world.cli_spawn(&["run", "--name", "job", "--", "sh", "-c", &script]);
    for at in [10, 40, 70] {
        run.wait_text("numbers", SOON, |text| last_number(text) >= at);
        relay.rebind();
    }
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "run");
    assert_one_writer(&file, COUNT);
    assert_eq!(worker.log().matches("online").count(), 1, "one session goes through: {}", worker.log());
}

/// The cut is shorter than anything notices; the cancel arrives after it.
#[test]
fn a_job_cancelled_during_a_short_cut_is_stopped_after_it() {
    let (world, relay, worker) = behind_a_relay();
    let id = world.submit(&format!(": {}; echo up; sleep 3600", unique("shortcut")));
    world.wait_status(&id, "RUNNING", SOON);
    relay.cut();
    let _told = world.cli(&["task", "stop", &id]);
    relay.restore();
    wait_no_process(&unique("shortcut"), STOPPED);
    world.wait_status(&id, "CANCELLED", SOON);
    let again = world.cli(&["run", "--", "echo", "next"]).ok();
    assert_eq!(again.text(), "next\n");
    assert_eq!(worker.poll(), None);
}

/// Longer than the 90 s after which another worker would get the task, but
/// there is none.
pub(crate) fn alone_a_worker_keeps_its_attempt_through_any_cut() {
    // For longer than the worker is lost after and may take to come back: 135 s and 30 s.
    const COUNT: u32 = 1700;
    let (world, relay, worker) = behind_a_relay();
    let (script, file) = writing(&world, COUNT, 10);
    let mut run = world.cli_spawn(&["run", "--name", "job", "--", "sh", "-c", &script]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 10);
    relay.cut();
    // 45 s until the session is given up, 90 s until the task could move.
    world.wait_worker(&worker, "lost", Duration::from_secs(150));
    relay.restore();
    world.wait_worker(&worker, "ready", LONG);
    let list = world.cli(&["task", "list", "--format", "json"]).ok().json();
    assert_eq!((&list[0]["attempts"], &list[0]["status"]), (&1.into(), &"RUNNING".into()), "{list:#}");
    assert_eq!(run.wait(Duration::from_secs(120)), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "run");
    assert_one_writer(&file, COUNT);
    let id = text(&list[0], "id");
    assert_eq!(
        numbered(&world, id).iter().filter(|(_, stream, _)| stream == "stdout").count(),
        COUNT as usize
    );
}

/// B86: cut, cancelled meanwhile, back: the leftover goes and the worker is free.
pub(crate) fn a_job_cancelled_during_a_long_cut_is_stopped_after_it() {
    let (world, relay, worker) = behind_a_relay();
    let id = world.submit(&format!(": {}; echo up; sleep 3600", unique("longcut")));
    world.wait_status(&id, "RUNNING", SOON);
    relay.cut();
    world.wait_worker(&worker, "away", LONG);
    let _told = world.cli(&["task", "stop", &id]);
    relay.restore();
    world.wait_worker(&worker, "ready", LONG);
    wait_no_process(&unique("longcut"), STOPPED);
    world.wait_status(&id, "CANCELLED", SOON);
    // All of the worker is free again: a job as large as it is fits.
    let list = world.cli(&["worker", "list", "--format", "json"]).ok().json();
    let cpu = format!("{}m", list[0]["cpu_millis"]);
    let again = world.cli(&["run", "--cpu", &cpu, "--", "echo", "next"]).ok();
    assert_eq!(again.text(), "next\n");
}
