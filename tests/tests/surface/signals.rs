//! What Ctrl-C, a closed terminal, a shutdown and a sleeping laptop do to a
//! command that follows a job.

use std::time::Duration;

use levers9_tests::live::Signal;
use levers9_tests::{Live, World, wait};
use tokio::time::Instant;

use crate::support::{PATIENCE, ends, normal, shared, wait_lines};

const CANCELLING: &str = "levers9: cancelling the task; press Ctrl-C again to leave at once";

/// A run whose first line is out, and the id of its task.
fn run(world: &World, name: &str, script: &str) -> (Live, String) {
    let live = world.cli_spawn(&["run", "--name", name, "--", "sh", "-c", script]);
    wait_lines(&live, 1);
    let list = world.cli(&["task", "list", "--limit", "1000", "--format", "json"]).ok().json();
    let rows = list.as_array().expect("a list");
    let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no task {name}"));
    (live, row["id"].as_str().expect("an id").to_owned())
}

#[test]
fn one_interrupt_cancels_and_waits_for_the_end() {
    let world = &shared().world;
    let script = "trap 'echo cleaned up; exit 0' TERM; sleep 300 & echo on; wait";
    let (mut live, task) = run(world, "interrupted", script);
    live.signal(Signal::SIGINT);
    ends(&mut live, 130, "on\ncleaned up", CANCELLING);
    let shown = world.task(&task);
    assert_ne!(shown["status"], "RUNNING", "{shown:#}");
}

#[test]
fn a_second_interrupt_leaves_at_once() {
    let world = &shared().world;
    let (mut live, task) = run(world, "impatient", "trap '' TERM; echo on; while :; do sleep 0.05; done");
    live.signal(Signal::SIGINT);
    live.wait_errors(CANCELLING, PATIENCE);
    let pressed = Instant::now();
    live.signal(Signal::SIGINT);
    ends(&mut live, 130, "on", CANCELLING);
    assert!(pressed.elapsed() < Duration::from_secs(3), "it took {:?}", pressed.elapsed());
    // It was asked to end all the same, and is killed when its grace is over.
    let _cancelled = world.wait_status(&task, "CANCELLED", PATIENCE);
}

#[test]
fn terminate_and_hang_up_leave_without_cancelling() {
    let world = &shared().world;
    for (signal, name, code) in [(Signal::SIGTERM, "terminated", 143), (Signal::SIGHUP, "hung-up", 129)] {
        let (mut live, task) = run(world, name, "echo on; exec sleep 300");
        live.signal(signal);
        ends(
            &mut live,
            code,
            "on",
            "levers9: leaving; task [ID] waits 120 s for a caller unless it is detached: levers9 attach [ID]",
        );
        let still = || match world.task(&task)["status"].as_str() {
            Some("RUNNING") => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait::stays("the task runs on", Duration::from_secs(1), still);
        let _stopped = world.cli(&["task", "stop", &task]).ok();
    }
}

#[test]
fn an_interrupted_log_leaves_the_task_alone() {
    let world = &shared().world;
    let task = world.submit("echo on; exec sleep 300");
    let mut follow = world.cli_spawn(&["logs", "-f", &task]);
    wait_lines(&follow, 1);
    follow.signal(Signal::SIGINT);
    ends(&mut follow, 130, "on", "");
    assert_eq!(world.task(&task)["status"], "RUNNING");
    let _stopped = world.cli(&["task", "stop", &task]).ok();
}

#[test]
fn a_hang_up_that_nohup_ignores_is_ignored() {
    let world = &shared().world;
    let command = world.home.command("levers9", &[]);
    let levers9 = command.get_program().to_string_lossy().into_owned();
    let mut shell = world.home.command("levers9", &[]);
    // The shell gives its ignored signals on.
    shell = {
        let mut with_trap = std::process::Command::new("sh");
        with_trap.arg("-c").arg("trap '' HUP; exec \"$0\" \"$@\"").arg(levers9);
        with_trap.args(["run", "--", "sh", "-c", "echo on; sleep 1.5; echo done"]);
        with_trap.env_clear().envs(shell.get_envs().filter_map(|(key, value)| Some((key, value?))));
        with_trap.stdin(std::process::Stdio::null());
        with_trap
    };
    let mut live = Live::spawn(shell);
    wait_lines(&live, 1);
    live.signal(Signal::SIGHUP);
    ends(&mut live, 0, "on\ndone", "");
}

#[test]
fn a_laptop_that_sleeps_misses_nothing() {
    let world = &shared().world;
    const LAST: usize = 300;
    let script = format!("i=1; while [ $i -le {LAST} ]; do echo $i; i=$((i+1)); sleep 0.1; done");
    let mut live = world.cli_spawn(&["run", "--", "sh", "-c", &script]);
    wait_lines(&live, 20);
    live.signal(Signal::SIGSTOP);
    // The sleep itself is what is tested.
    std::thread::sleep(Duration::from_secs(20));
    let before = live.text().lines().count();
    live.signal(Signal::SIGCONT);
    live.wait_text("what it missed, within 5 s", Duration::from_secs(5), |text| {
        text.lines().count() > before + 100
    });
    assert_eq!(live.wait(Duration::from_secs(60)), 0, "{}", live.shown());
    let numbers: Vec<usize> = live.text().lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(numbers, (1..=LAST).collect::<Vec<_>>());
    let errors = normal(&live.errors());
    assert!(!errors.contains("error"), "{errors}");
}
