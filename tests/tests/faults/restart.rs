//! The controlplane dies and comes back.

use std::time::Duration;

use levers9_tests::live::Signal;
use levers9_tests::{Backend, World, wait};

use crate::support::{LONG, SOON, assert_counts, counting, id_of, last_number, wait_file};

/// Kills the controlplane twice in one job. `run` and `logs -f` go on.
fn dies_twice(backend: Backend) {
    const COUNT: u32 = 240;
    let world = World::start(backend);
    let worker = world.worker("one");
    let beat = world.home.path().join("beat");
    let script = counting(COUNT, 20).replace("echo $i;", &format!("echo $i; echo $i > {};", beat.display()));
    let mut run = world.cli_spawn(&["run", "--name", "numbers", "--", "sh", "-c", &script]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let id = id_of(&world, "numbers");
    let mut logs = world.cli_spawn(&["logs", "-f", &id]);
    logs.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    for round in 1..=2 {
        let before = last_number(&run.text());
        world.controlplane.kill9();
        wait::until("the job goes on while the controlplane is dead", SOON, || {
            let now = last_number(&std::fs::read_to_string(&beat).unwrap_or_default());
            if now > before + 20 { Ok(()) } else { Err(format!("{now} after {before}")) }
        });
        world.controlplane.start();
        let resumed = Duration::from_secs(12);
        let more = |text: &str| last_number(text) > before + 10;
        run.wait_text(&format!("numbers again after kill {round}"), resumed, more);
        logs.wait_text(&format!("numbers again after kill {round}"), resumed, more);
    }
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_eq!(logs.wait(SOON), 0, "{}", logs.shown());
    assert_counts(&run.text(), COUNT, "run");
    assert_counts(&logs.text(), COUNT, "logs -f");
    let later = world.cli(&["logs", &id]).ok();
    assert_counts(&later.text(), COUNT, "logs afterwards");
    let task = world.task(&id);
    assert_eq!((&task["attempts"], &task["status"]), (&1.into(), &"COMPLETE".into()), "{task:#}");
    assert_eq!(worker.poll(), None, "the worker ran through");
}

#[test]
fn a_job_its_run_and_its_log_survive_two_kills_of_the_controlplane() {
    dies_twice(Backend::Sqlite);
}

#[test]
fn a_job_its_run_and_its_log_survive_two_kills_of_the_controlplane_on_postgres() {
    dies_twice(Backend::Postgres);
}

/// B20: nobody waits out a timer after a quick restart.
#[test]
fn twenty_followers_are_back_within_ten_seconds() {
    const COUNT: u32 = 250;
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker_with("one", &["--cpu", "16"]);
    let ids: Vec<_> = (0..20).map(|_| world.submit(&counting(COUNT, 10))).collect();
    let mut logs: Vec<_> = ids.iter().map(|id| world.cli_spawn(&["logs", "-f", id])).collect();
    for live in &logs {
        live.wait_text("the first numbers", LONG, |text| last_number(text) >= 3);
    }
    world.controlplane.kill9();
    world.controlplane.start();
    let seen: Vec<_> = logs.iter().map(|live| last_number(&live.text())).collect();
    wait::until("all 20 followers go on", Duration::from_secs(10), || {
        let now = logs.iter().map(|live| last_number(&live.text()));
        let stuck: Vec<_> = now.zip(&seen).enumerate().filter(|(_, (now, seen))| now <= seen).collect();
        if stuck.is_empty() { Ok(()) } else { Err(format!("(index, (now, before)): {stuck:?}")) }
    });
    for (live, id) in logs.iter_mut().zip(&ids) {
        assert_eq!(live.wait(LONG), 0, "{}", live.shown());
        assert_counts(&live.text(), COUNT, id);
        assert_eq!(world.task(id)["attempts"], 1);
    }
}

/// A stopped controlplane tells its peers; they come back as after a kill.
#[test]
fn an_orderly_restart_loses_nothing() {
    const COUNT: u32 = 120;
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let mut run = world.cli_spawn(&["run", "--", "sh", "-c", &counting(COUNT, 20)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    assert_eq!(world.controlplane.terminate(), 0, "SIGTERM is an orderly stop");
    world.controlplane.start();
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "run");
}

/// B124: the laptop sleeps for a while.
#[test]
fn a_stopped_run_goes_on_where_it_was() {
    const COUNT: u32 = 300;
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let mut run = world.cli_spawn(&["run", "--", "sh", "-c", &counting(COUNT, 20)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let id =
        world.cli(&["task", "list", "--format", "json"]).ok().json()[0]["id"].as_str().map(str::to_owned);
    let mut beside = world.cli_spawn(&["logs", "-f", &id.expect("an id")]);
    run.signal(Signal::SIGSTOP);
    let asleep = last_number(&run.text());
    beside.wait_text("the job goes on meanwhile", LONG, |text| last_number(text) > asleep + 100);
    run.signal(Signal::SIGCONT);
    run.wait_text("what came meanwhile", Duration::from_secs(5), |text| last_number(text) > asleep + 100);
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "run");
    assert_eq!(beside.wait(SOON), 0);
}

/// What ends while nobody can be told is told later.
#[test]
fn a_job_that_ends_while_the_controlplane_is_dead_has_ended_well() {
    const COUNT: u32 = 60;
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let ended = world.home.path().join("ended");
    let script = format!("{}; echo x > {}; exit 5", counting(COUNT, 20), ended.display());
    let mut run = world.cli_spawn(&["run", "--name", "ends", "--", "sh", "-c", &script]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    world.controlplane.kill9();
    wait_file(&ended, SOON);
    world.controlplane.start();
    assert_eq!(run.wait(LONG), 5, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "run");
    let task = world.task(&id_of(&world, "ends"));
    assert_eq!((&task["attempts"], &task["exit_code"]), (&1.into(), &5.into()), "{task:#}");
    wait::until("the worker keeps nothing of it", SOON, || {
        let left = std::fs::read_dir(worker.data().join("containers")).map(Iterator::count);
        if matches!(left, Ok(0)) { Ok(()) } else { Err(format!("{left:?}")) }
    });
}
