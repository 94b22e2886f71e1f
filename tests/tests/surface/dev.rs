//! `levers9 dev`: what it prints, what it keeps, and how it stops.

use std::time::Duration;

use levers9_tests::live::Signal;
use levers9_tests::{Home, Live};
use serde_json::json;

use crate::support::{PATIENCE, ends, normal, says, wait_lines};

const PORTS: [&str; 7] = ["dev", "--quic", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
/// Jobs have 10 s to end, and what runs them a moment after that.
const STOPS: Duration = Duration::from_secs(20);
const READY: &str = "levers9 dev is ready: a controlplane and one local worker on this machine.\n\n\
    QUIC     127.0.0.1:[PORT] (UDP)\n\
    gRPC     127.0.0.1:[PORT]\n\
    HTTP     http://127.0.0.1:[PORT]/healthz\n\
    address  levers9://127.0.0.1:[PORT]#sha256:[PIN]\n\n";
const TRY: &str = "In another terminal, try:\n  \
    levers9 run -- echo hello\n  \
    levers9 task list\n  \
    levers9 run --timeout 1m -- sh -c 'for i in 1 2 3; do echo $i; sleep 1; done'\n\n\
    Ctrl-C stops it. Jobs run as plain processes of this machine, without isolation.\n";
const STOPPING: &str = "levers9: stopping: running jobs have 10 s; interrupt again to leave at once";

/// A `levers9 dev` that has said it is ready.
fn dev(home: &Home) -> Live {
    let live = home.cli_spawn(&PORTS);
    live.wait_text("its last line", PATIENCE, |text| text.contains("Ctrl-C stops it."));
    live
}

#[test]
fn it_greets_runs_stops_and_finds_its_data_again() {
    let home = Home::new();
    let mut first = dev(&home);
    assert_eq!(normal(&first.text()), format!("{READY}{TRY}"));
    // Its context is the default one now.
    says(&home.cli(&["run", "--", "echo", "hello"]), 0, "hello", "");
    let done = home.cli(&["run", "--detach", "--", "echo", "kept"]).ok().text();
    let script = "trap 'echo cleaned up; exit 0' TERM; sleep 300 & echo on; wait";
    let mut run = home.cli_spawn(&["run", "--", "sh", "-c", script]);
    wait_lines(&run, 1);
    first.signal(Signal::SIGINT);
    assert_eq!((first.wait(STOPS), normal(&first.errors()).trim_end()), (0, STOPPING));
    // Who waited is told why; it may also have seen the controlplane go first.
    run.signal(Signal::SIGTERM);
    let _left = run.wait(PATIENCE);
    let mut second = dev(&home);
    let tasks = home.cli(&["task", "list", "--format", "json"]).ok().json();
    let ends: Vec<_> = tasks.as_array().expect("a list").iter().map(|task| task["status"].clone()).collect();
    assert_eq!(ends.len(), 3, "{tasks:#}");
    assert!(
        ends.iter().all(|status| *status == json!("COMPLETE") || *status == json!("CANCELLED")),
        "{tasks:#}"
    );
    assert_eq!(home.cli(&["logs", done.trim()]).ok().text(), "kept\n");
    let workers = home.cli(&["worker", "list", "--format", "json"]).ok().json();
    assert_eq!(workers.as_array().map(Vec::len), Some(1), "the worker is another one: {workers:#}");
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait(STOPS), 143, "{}", second.shown());
}

#[test]
fn jobs_it_stops_are_cancelled_and_say_why() {
    let home = Home::new();
    let mut live = dev(&home);
    let task = home.cli(&["run", "--detach", "--", "sleep", "300"]).ok().text().trim().to_owned();
    let shown = |id: &str| home.cli(&["task", "show", id, "--format", "json"]).ok().json();
    levers9_tests::wait::until("the job runs", PATIENCE, || match shown(&task) {
        task if task["status"] == "RUNNING" => Ok(()),
        other => Err(format!("{other:#}")),
    });
    live.signal(Signal::SIGINT);
    assert_eq!(live.wait(STOPS), 0, "{}", live.shown());
    let again = dev(&home);
    let task = shown(&task);
    assert_eq!((&task["status"], &task["reason"]), (&json!("CANCELLED"), &json!("levers9 dev is stopping")));
    drop(again);
}

#[test]
fn a_second_interrupt_leaves_at_once() {
    let home = Home::new();
    let mut live = dev(&home);
    let script = "trap '' TERM; echo on; while :; do sleep 0.05; done";
    let run = home.cli_spawn(&["run", "--", "sh", "-c", script]);
    wait_lines(&run, 1);
    live.signal(Signal::SIGINT);
    live.wait_errors(STOPPING, PATIENCE);
    live.signal(Signal::SIGINT);
    assert_eq!(live.wait(Duration::from_secs(3)), 130, "{}", live.shown());
}

#[test]
fn another_default_context_is_left_alone() {
    let home = Home::new();
    let mut login = home.command("levers9", &["config", "create", "default", "levers9://prod.example"]);
    login.env("LEVERS9_TOKEN", crate::support::unknown_token());
    let _stored = levers9_tests::Output::of(login).ok();
    let live = dev(&home);
    let export = "Your default context is another one. To use this one in a shell:\n  \
                  export CONFIG_PATH=[HOME]/home/.local/share/levers9/dev/cli/config\n\n";
    assert_eq!(normal(&live.text()), format!("{READY}{export}{TRY}"));
    let list = home.cli(&["config", "list"]).ok().text();
    assert!(list.contains("levers9://prod.example:443") && list.lines().count() == 2, "{list}");
    let path = home.path().join("home/.local/share/levers9/dev/cli/config");
    let mut run = home.command("levers9", &["run", "--", "echo", "here"]);
    run.env("CONFIG_PATH", path);
    says(&levers9_tests::Output::of(run), 0, "here", "");
}

#[test]
fn a_second_one_on_the_same_data_says_so() {
    let home = Home::new();
    let _first = dev(&home);
    let mut second = home.cli_spawn(&PORTS);
    ends(
        &mut second,
        1,
        "",
        "error: the data folder [HOME]/home/.local/share/levers9/dev is in use by another controlplane\n\
         hint: stop that one, or give this one a data folder of its own",
    );
}
