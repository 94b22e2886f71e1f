//! Jobs that are left, taken over and stopped.

use std::time::Duration;

use levers9_tests::live::Signal;

use crate::support::{PATIENCE, ends, fails, normal, running, says, shared, wait_lines};

#[test]
fn detached_prints_the_id_and_nothing_else() {
    let world = &shared().world;
    let did = world.cli(&["run", "--detach", "--name", "later", "--", "sh", "-c", "echo done"]);
    says(&did, 0, "[ID]", "");
    let task = world.wait_status(did.text().trim(), "COMPLETE", PATIENCE);
    assert_eq!((&task["name"], &task["exit_code"]), (&"later".into(), &0.into()));
}

#[test]
fn attach_shows_all_and_ends_with_the_jobs_code() {
    let world = &shared().world;
    let flag = world.home.path().join("attached");
    let script =
        format!("echo one; while ! [ -e '{}' ]; do sleep 0.05; done; echo two; exit 9", flag.display());
    let task = world.submit(&script);
    let mut attach = world.cli_spawn(&["attach", &task]);
    wait_lines(&attach, 1);
    std::fs::write(&flag, "").expect("a file");
    ends(&mut attach, 9, "one\ntwo", "");
    // Also when it is over already, and from a line on.
    says(&world.cli(&["attach", &task]), 9, "one\ntwo", "");
    says(&world.cli(&["attach", &task, "--since-line", "1"]), 9, "two", "");
}

#[test]
fn an_interrupt_of_attach_cancels() {
    let world = &shared().world;
    let task = world.submit("echo on; exec sleep 300");
    let mut attach = world.cli_spawn(&["attach", &task]);
    wait_lines(&attach, 1);
    attach.signal(Signal::SIGINT);
    ends(&mut attach, 130, "on", "levers9: cancelling the task; press Ctrl-C again to leave at once");
    let task = world.wait_status(&task, "CANCELLED", PATIENCE);
    assert_eq!(task["reason"], "stopped by a user");
}

#[test]
fn stopping_a_task_ends_it_and_tells_who_waits() {
    let world = &shared().world;
    let mut run = world.cli_spawn(&["run", "--format", "json", "--", "sh", "-c", "echo on; exec sleep 300"]);
    wait_lines(&run, 2);
    let first: serde_json::Value =
        serde_json::from_str(run.text().lines().next().expect("a line")).expect("JSON");
    let task = first["task"].as_str().expect("an id").to_owned();
    let did = world.cli(&["task", "stop", &task]);
    assert_eq!((did.code, did.text().as_str()), (0, ""));
    let said = normal(&did.stderr);
    // It may have ended before the answer is written.
    assert!(
        ["levers9: task [ID] is RUNNING\n", "levers9: task [ID] is CANCELLED\n"].contains(&said.as_str()),
        "{said}"
    );
    assert_eq!(run.wait(PATIENCE), 125, "{}", run.shown());
    assert_eq!(run.errors(), "levers9: stopped by a user\n");
    let _cancelled = world.wait_status(&task, "CANCELLED", PATIENCE);
    fails(&world.cli(&["task", "stop", &task]), 0, "levers9: task [ID] is CANCELLED");
}

#[test]
fn stopping_what_has_ended_changes_nothing() {
    let world = &shared().world;
    let task = world.submit("exit 5");
    let _ended = world.wait_status(&task, "ERROR", PATIENCE);
    fails(&world.cli(&["task", "stop", &task]), 0, "levers9: task [ID] is ERROR");
    let after = world.task(&task);
    assert_eq!((&after["status"], &after["exit_code"]), (&"ERROR".into(), &5.into()));
}

#[test]
fn stopping_a_container_ends_its_task() {
    let world = &shared().world;
    let task = world.submit("exec sleep 300");
    running(world, &task);
    let container = world.task(&task)["container"].as_str().expect("a container").to_owned();
    let did = world.cli(&["container", "stop", &container]);
    assert_eq!((did.code, did.text().as_str()), (0, ""), "{}", did.stderr);
    assert!(normal(&did.stderr).starts_with("levers9: container [ID] is "), "{}", did.stderr);
    let task = world.wait_status(&task, "CANCELLED", PATIENCE);
    assert_eq!(task["reason"], "its container was stopped by a user");
}

#[test]
fn a_task_that_waits_can_be_stopped() {
    let world = levers9_tests::World::start(levers9_tests::Backend::Sqlite);
    let task = world.submit("true");
    fails(&world.cli(&["task", "stop", &task]), 0, "levers9: task [ID] is CANCELLED");
    assert_eq!(world.task(&task)["attempts"], 0);
}

#[test]
fn an_environment_of_its_own() {
    let world = &shared().world;
    let script = "echo $GREETING; echo ${HOME-no home}; echo ${LEVERS9_TOKEN-none}; pwd; ls -A; cat";
    let mut command = world.home.command("levers9", &["run", "-e", "GREETING=a=b", "-e", "PASSED", "--"]);
    command.args(["sh", "-c", &format!("echo $PASSED; {script}")]).env("PASSED", "passed on");
    let did = levers9_tests::Output::of(command).ok();
    let text = did.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["passed on", "a=b"]);
    assert!(lines[3].starts_with("l9_wsr_"), "a token of its container's own: {}", lines[3]);
    // An empty folder of its own, and nothing to read.
    assert_eq!(lines.len(), 5, "{text}");
}

#[test]
fn text_for_people_lines_up() {
    let world = &shared().world;
    let task = world.submit_with(&["--name", "shown"], "exit 2");
    let _ended = world.wait_status(&task, "ERROR", PATIENCE);
    let list = world.cli(&["task", "list", "--limit", "1000"]).ok().text();
    let heads = list.lines().next().expect("heads");
    assert_eq!(
        heads.split_whitespace().collect::<Vec<_>>(),
        ["TASK", "NAME", "STATUS", "EXIT", "AGE", "TOOK", "COMMAND"]
    );
    let row = list
        .lines()
        .find(|line| line.starts_with(&task))
        .unwrap_or_else(|| panic!("{task} is not in {list}"));
    for (head, cell) in [("NAME", "shown"), ("STATUS", "ERROR"), ("EXIT", "2"), ("COMMAND", "sh -c exit 2")] {
        let at = heads.find(head).expect("a head");
        assert!(row[at..].starts_with(cell), "{head}:\n{heads}\n{row}");
    }
    let shown = world.cli(&["task", "show", &task]).ok().text();
    assert!(shown.contains("\nstatus      ERROR\n") && shown.contains("\nexit code   2\n"), "{shown}");
}

#[test]
fn a_name_cannot_move_the_cursor() {
    let world = &shared().world;
    let task = world.submit_with(&["--name", "\u{1b}[2J\u{202e}evil\n"], "exit 0");
    let list = world.cli(&["task", "list", "--limit", "1000"]).ok().text();
    let row = list
        .lines()
        .find(|line| line.starts_with(&task))
        .unwrap_or_else(|| panic!("{task} is not in {list}"));
    assert!(row.contains("\\u{1b}[2J\\u{202e}evil"), "{row}");
    assert!(!list.contains('\u{1b}') && !list.contains('\u{202e}'), "{list:?}");
    let _done =
        world.wait_task(&task, "its end", Duration::from_secs(30), |task| task["status"] == "COMPLETE");
}

#[test]
fn a_worker_that_stops_takes_nothing_new() {
    let world = levers9_tests::World::start(levers9_tests::Backend::Sqlite);
    let stopping = world.worker("stopping");
    let held = world.submit("trap '' TERM; echo on; while :; do sleep 0.05; done");
    running(&world, &held);
    stopping.signal(Signal::SIGTERM);
    stopping.wait_log("stopping: running containers have 10 s", PATIENCE);
    let mut run = world.cli_spawn(&["run", "--", "echo", "elsewhere"]);
    // It has ten seconds in which it runs nothing new; another comes meanwhile.
    let _ready = world.worker("ready");
    ends(&mut run, 0, "elsewhere", "levers9: no worker is connected; waiting for one");
    let _stopped = world.cli(&["task", "stop", &held]).ok();
}
