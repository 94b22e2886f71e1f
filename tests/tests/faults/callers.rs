//! The command that started a task goes away.

use std::time::Duration;

use levers9_tests::live::Signal;
use levers9_tests::{Backend, Home, Live, World, wait};

use crate::support::{LONG, SOON, assert_counts, counting, id_of, last_number, text};

/// The command from another machine: another home, the same controlplane.
fn elsewhere(world: &World, home: &Home, args: &[&str]) -> Live {
    let token = world.cli(&["token", "create", "--kind", "workspace", "--format", "json"]).ok().json();
    let mut command = home.command("levers9", args);
    command.env("LEVERS9_ADDRESS", world.controlplane.address()).env("LEVERS9_TOKEN", text(&token, "key"));
    Live::spawn(command)
}

#[test]
fn a_task_whose_command_was_killed_runs_on_and_can_be_taken_over() {
    const COUNT: u32 = 150;
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let script = format!("{}; exit 7", counting(COUNT, 20));
    let mut run = world.cli_spawn(&["run", "--name", "left", "--", "sh", "-c", &script]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    run.kill9();
    let id = id_of(&world, "left");
    let other = Home::new();
    let mut attach = elsewhere(&world, &other, &["attach", &id]);
    assert_eq!(attach.wait(LONG), 7, "attach ends with the job's code: {}", attach.shown());
    assert_counts(&attach.text(), COUNT, "attach");
    assert_eq!(world.task(&id)["attempts"], 1);
}

#[test]
fn sigterm_leaves_without_cancelling_and_sigint_cancels() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let start = |name: &str| {
        let run = world.cli_spawn(&["run", "--name", name, "--", "sh", "-c", "echo up; sleep 3600"]);
        run.wait_text("the job is up", SOON, |text| text == "up\n");
        (run, id_of(&world, name))
    };
    for (name, signal, code) in [("term", Signal::SIGTERM, 143), ("hup", Signal::SIGHUP, 129)] {
        let (mut run, id) = start(name);
        run.signal(signal);
        assert_eq!(run.wait(SOON), code, "{}", run.shown());
        assert!(run.errors().contains(&format!("levers9 attach {id}")), "{}", run.shown());
        assert_eq!(world.task(&id)["status"], "RUNNING");
    }
    let (mut run, id) = start("int");
    run.signal(Signal::SIGINT);
    assert_eq!(run.wait(SOON), 130, "{}", run.shown());
    assert_eq!(world.task(&id)["status"], "CANCELLED");
}

/// Ctrl-C while the controlplane is dead: the cancel waits for it, the second
/// one leaves at once.
#[test]
fn ctrl_c_reaches_a_controlplane_that_comes_back() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let mut run = world.cli_spawn(&["run", "--name", "job", "--", "sh", "-c", "echo up; sleep 3600"]);
    run.wait_text("the job is up", SOON, |text| text == "up\n");
    let id = id_of(&world, "job");
    world.controlplane.kill9();
    run.signal(Signal::SIGINT);
    run.wait_errors("press Ctrl-C again", SOON);
    world.controlplane.start();
    assert_eq!(run.wait(LONG), 130, "{}", run.shown());
    world.wait_status(&id, "CANCELLED", SOON);

    let mut run = world.cli_spawn(&["run", "--name", "job2", "--", "sh", "-c", "echo up; sleep 3600"]);
    run.wait_text("the job is up", SOON, |text| text == "up\n");
    world.controlplane.kill9();
    run.signal(Signal::SIGINT);
    run.wait_errors("press Ctrl-C again", SOON);
    run.signal(Signal::SIGINT);
    assert_eq!(run.wait(Duration::from_secs(3)), 130, "{}", run.shown());
}

/// Two callers: one going does not end the task, nor does the other's log stop.
#[test]
fn one_of_two_callers_may_go() {
    const COUNT: u32 = 100;
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let mut run = world.cli_spawn(&["run", "--name", "two", "--", "sh", "-c", &counting(COUNT, 20)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let id = id_of(&world, "two");
    let mut attach = world.cli_spawn(&["attach", &id, "--since-line", "3"]);
    wait::until(
        "attach prints",
        SOON,
        || if attach.text().is_empty() { Err(attach.shown()) } else { Ok(()) },
    );
    run.kill9();
    assert_eq!(attach.wait(LONG), 0, "{}", attach.shown());
    assert_counts(&format!("1\n2\n3\n{}", attach.text()), COUNT, "attach --since-line 3");
}

/// What its caller has left is cancelled, 120 s after the caller's session was
/// given up: 120 s to 165 s after the kill. What was taken over or detached is not.
pub(crate) fn a_deserted_task_is_cancelled_and_others_are_not() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker_with("one", &["--cpu", "16"]);
    let detached = world.submit("echo up; sleep 3600");
    let start = |name: &str| {
        let run = world.cli_spawn(&["run", "--name", name, "--", "sh", "-c", "echo up; sleep 3600"]);
        run.wait_text("the job is up", SOON, |text| text == "up\n");
        (run, id_of(&world, name))
    };
    let (mut deserted, deserted_id) = start("deserted");
    let (mut taken, taken_id) = start("taken");
    let killed_at = unix_millis();
    deserted.kill9();
    taken.kill9();
    let attach = world.cli_spawn(&["attach", &taken_id]);
    attach.wait_text("attach prints", SOON, |text| text == "up\n");
    let task = world.wait_task(&deserted_id, "has ended", Duration::from_secs(180), |task| {
        !task["ended_unix_ms"].is_null()
    });
    assert_eq!(task["status"], "CANCELLED", "{task:#}");
    assert_eq!(text(&task, "reason"), "no caller for 120 s", "{task:#}");
    let after = task["ended_unix_ms"].as_u64().expect("a time") - killed_at;
    // The scheduler looks once a second, and the job has to end.
    assert!((120_000..168_000).contains(&after), "cancelled {after} ms after the kill");
    for id in [&detached, &taken_id] {
        assert_eq!(world.task(id)["status"], "RUNNING", "{id}");
    }
    assert_eq!(world.task(&detached)["detached"], true);
}

fn unix_millis() -> u64 {
    levers9_wire::clock::unix_millis()
}
