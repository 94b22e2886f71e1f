//! Processes that sleep, as on a laptop whose lid is shut, and wake (B124); and
//! a worker that wakes when another process has its identity (B22).

use std::time::Duration;

use levers9_tests::live::{Signal, tail};
use levers9_tests::{Backend, Live, World, wait};
use tokio::time::Instant;

use crate::support::{LONG, SOON, assert_counts, counting, id_of, last_number};

/// Longer than the 45 s until a session is given up, and shorter than the 90 s
/// after that until what a worker runs may go elsewhere.
const SLEEP: Duration = Duration::from_secs(75);
/// Who wakes goes on within this.
const AWAKE: Duration = Duration::from_secs(5);

/// Commands that wake when the controlplane has given them up: what can go on
/// does, at once and without a gap, what cannot says so.
pub(crate) fn commands_that_sleep() {
    const COUNT: u32 = 1000;
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker_with("one", &["--cpu", "16"]);
    let mut run = world.cli_spawn(&["run", "--name", "numbers", "--", "sh", "-c", &counting(COUNT, 10)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let id = id_of(&world, "numbers");
    let mut logs = world.cli_spawn(&["logs", "-f", &id]);
    let mark = world.home.path().join("exec-lives");
    let script = format!("echo on; while :; do touch {}; sleep 0.1; done", mark.display());
    let mut exec = world.cli_spawn(&["exec", &id, "--", "sh", "-c", &script]);
    exec.wait_text("it runs", SOON, |text| text == "on\n");
    logs.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    for live in [&mut run, &mut logs, &mut exec] {
        live.signal(Signal::SIGSTOP);
    }
    let asleep = last_number(&run.text());
    std::thread::sleep(SLEEP);
    let counted = world.cli(&["logs", &id]).ok().text();
    let meanwhile = last_number(&counted);
    assert!(meanwhile > asleep + 400, "the job goes on: {asleep}, {meanwhile}");
    // Whoever called it is gone, and the command with them.
    let _removed = std::fs::remove_file(&mark);
    wait::stays("the command has ended", Duration::from_secs(1), || {
        if mark.exists() { Err("it lives".to_owned()) } else { Ok(()) }
    });
    for live in [&mut run, &mut logs, &mut exec] {
        live.signal(Signal::SIGCONT);
    }
    let woke = Instant::now();
    for live in [&run, &logs] {
        live.wait_text("what came meanwhile", AWAKE, |text| last_number(text) >= meanwhile);
    }
    assert_eq!(exec.wait(AWAKE), 125, "{}", exec.shown());
    assert!(exec.errors().contains("lost") || exec.errors().contains("ended"), "{}", exec.errors());
    assert!(woke.elapsed() < AWAKE, "{:?}", woke.elapsed());
    for live in [&mut run, &mut logs] {
        assert_eq!(live.wait(LONG), 0, "{}", live.shown());
        assert_counts(&live.text(), COUNT, "who slept");
    }
    let task = world.task(&id);
    assert_eq!((&task["attempts"], &task["status"]), (&1.into(), &"COMPLETE".into()), "{task:#}");
}

/// A worker that wakes has its attempt still, and all of its output.
pub(crate) fn a_worker_that_sleeps() {
    const COUNT: u32 = 1000;
    let world = World::start(Backend::Sqlite);
    let worker = world.worker_with("one", &["--cpu", "16"]);
    let mut run = world.cli_spawn(&["run", "--name", "numbers", "--", "sh", "-c", &counting(COUNT, 10)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let id = id_of(&world, "numbers");
    let mut exec = world.cli_spawn(&["exec", &id, "--", "sh", "-c", "echo on; sleep 1000"]);
    exec.wait_text("it runs", SOON, |text| text == "on\n");
    worker.signal(Signal::SIGSTOP);
    let asleep = Instant::now();
    world.wait_worker(&worker, "away", Duration::from_secs(45 + 5));
    assert_eq!(exec.wait(AWAKE), 125, "{}", exec.shown());
    std::thread::sleep(SLEEP.saturating_sub(asleep.elapsed()));
    let seen = last_number(&run.text());
    worker.signal(Signal::SIGCONT);
    // It asks whether anybody is there, and waits a little for an answer.
    world.wait_worker(&worker, "ready", 2 * AWAKE);
    run.wait_text("what was said meanwhile", AWAKE, |text| last_number(text) > seen + 400);
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "run");
    let task = world.task(&id);
    assert_eq!((&task["attempts"], &task["status"]), (&1.into(), &"COMPLETE".into()), "{task:#}");
}

/// B22: of two processes of one worker the newer wins at once, also when the
/// older cannot be told; that one is refused when it wakes, and says so.
#[test]
fn a_frozen_worker_is_superseded() {
    let world = World::start(Backend::Sqlite);
    let older = world.worker("one");
    let path = world.home.path();
    let copied = path.join("copied-state");
    std::fs::create_dir(&copied).expect("a folder");
    std::fs::copy(path.join("worker-one-state/worker.token"), copied.join("worker.token")).expect("a token");
    older.signal(Signal::SIGSTOP);
    let mut command = world.home.command("levers9-worker", &["--allow-unisolated"]);
    command.args(["--controlplane", &world.controlplane.address()]).arg("--state").arg(&copied);
    command.arg("--data").arg(path.join("copied-data"));
    let begun = Instant::now();
    let newer = Live::spawn(command);
    newer.wait_errors("online", SOON);
    let online = begun.elapsed();
    // What comes now is its to run.
    let file = path.join("ran-by");
    let ordered = Instant::now();
    let task = world.submit(&format!("cut -d. -f1 /proc/uptime > {}; exec sleep 3", file.display()));
    crate::support::wait_file(&file, SOON);
    let took = ordered.elapsed();
    assert!(took < Duration::from_secs(2), "its first job took {took:?}, online after {online:?}");
    assert!(newer.errors().contains("online"), "{}", newer.errors());
    let ready = || {
        let list = world.cli(&["worker", "list", "--format", "json"]).ok().json();
        match list.as_array().map(Vec::as_slice) {
            Some([row]) if row["state"] == "ready" && row["id"] == older.id.as_str() => Ok(()),
            _ => Err(format!("{list:#}\n{}", tail(&older.log(), 1000))),
        }
    };
    ready().expect("it is ready");
    older.signal(Signal::SIGCONT);
    wait::stays("the worker is there", Duration::from_secs(8), ready);
    older.wait_log("superseded", SOON);
    let said = older.log().matches("superseded: a newer process uses this worker's identity").count();
    assert_eq!(said, 1, "it is refused, and says so once: {}", older.log());
    assert_eq!(older.poll(), None, "it waits, and may be wanted again");
    let shown = world.wait_status(&task, "COMPLETE", SOON);
    assert_eq!(shown["attempts"], 1, "{shown:#}");
    let again = world.cli(&["run", "--", "echo", "next"]).ok();
    assert_eq!(again.text(), "next\n");
    drop(newer);
}
