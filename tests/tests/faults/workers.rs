//! Workers die.

use std::path::PathBuf;
use std::time::Duration;

use levers9_tests::live::Signal;
use levers9_tests::{Backend, Worker, World, wait};

use crate::support::{
    LONG, SOON, content, numbered, processes_with, text, unique, wait_file, wait_no_process,
};

/// A job that says which attempt it is and goes on until the file is there. The
/// word makes its processes known.
fn patient(world: &World, word: &str) -> (String, PathBuf) {
    let folder = world.home.path().to_owned();
    let (tries, end) = (folder.join(format!("{word}.tries")), folder.join(format!("{word}.end")));
    let script = format!(
        ": {word}; echo try >> {tries}; n=$(wc -l < {tries}); i=0; \
         while [ ! -e {end} ]; do i=$((i+1)); echo $n.$i; sleep 0.05; done; echo $n.end",
        tries = tries.display(),
        end = end.display()
    );
    (script, end)
}

fn wait_tries(world: &World, word: &str, tries: usize) {
    let file = world.home.path().join(format!("{word}.tries"));
    wait::until(&format!("attempt {tries} of {word} runs"), LONG, || {
        let now = content(&file).lines().count();
        if now == tries {
            return Ok(());
        }
        let list = world.cli(&["task", "list", "--format", "json"]).text();
        Err(format!("{now} so far; {list}"))
    });
}

/// Each attempt's lines, whole and in order, one attempt after the other.
fn assert_attempts(lines: &[(u64, String, String)], attempts: u32) {
    let mut expected = (1, 1);
    for (number, _, text) in lines.iter().filter(|(_, stream, _)| stream == "stdout") {
        let (attempt, rest) = text.trim_end().split_once('.').expect("attempt.count");
        let attempt: u32 = attempt.parse().expect("a number");
        if attempt == expected.0 + 1 {
            expected = (attempt, 1);
        }
        assert_eq!(attempt, expected.0, "line {number}: {text}");
        if rest != "end" {
            assert_eq!(rest, expected.1.to_string(), "line {number}: {text}");
            expected.1 += 1;
        }
    }
    assert_eq!(expected.0, attempts, "the log has all attempts");
}

/// What somebody has been shown is still there later.
fn assert_kept(lines: &[(u64, String, String)], shown: &str) {
    let kept: std::collections::BTreeSet<_> = lines.iter().map(|(_, _, text)| text.as_str()).collect();
    let lost: Vec<_> = shown.split_inclusive('\n').filter(|line| !kept.contains(line)).collect();
    assert!(lost.is_empty(), "{} lines were shown and are not in the log any more: {lost:?}", lost.len());
}

#[test]
fn a_killed_worker_that_comes_back_starts_its_task_over_and_leaves_nothing() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let (script, end) = patient(&world, &unique("comesback"));
    let mut run = world.cli_spawn(&["run", "--name", "job", "--", "sh", "-c", &script]);
    run.wait_text("the first attempt prints", SOON, |text| text.contains("1.20\n"));
    worker.kill9();
    wait_no_process(&unique("comesback"), Duration::from_secs(10));
    worker.start();
    wait_tries(&world, &unique("comesback"), 2);
    run.wait_text("the second attempt prints", SOON, |text| text.contains("2.20\n"));
    std::fs::write(end, "x").expect("a file");
    assert_eq!(run.wait(SOON), 0, "{}", run.shown());
    assert!(run.text().ends_with("2.end\n"), "{}", run.shown());
    assert!(run.errors().contains("attempt 2"), "the user is told of the second attempt: {}", run.shown());
    let id = text(&world.cli(&["task", "list", "--format", "json"]).ok().json()[0], "id").to_owned();
    let task = world.task(&id);
    assert_eq!((&task["attempts"], &task["status"]), (&2.into(), &"COMPLETE".into()), "{task:#}");
    assert_ne!(text(&task["attempt_list"][0], "reason"), "", "the lost attempt says why: {task:#}");
    let lines = numbered(&world, &id);
    assert_attempts(&lines, 2);
    assert_kept(&lines, &run.text());
    let first_of_second = lines.iter().find(|(_, _, text)| text.starts_with("2.")).expect("there is one");
    assert_eq!(first_of_second.0 % 1000, 1, "an attempt begins at a block of its own: {first_of_second:?}");
    wait_no_process(&unique("comesback"), Duration::from_secs(10));
}

/// Killed at once after many starts, the next start clears up (B106).
#[test]
fn killed_in_the_middle_of_starts_a_worker_starts_again_on_clean_ground() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker_with("one", &["--cpu", "16"]);
    let word = unique("midstart");
    let ids: Vec<_> = (0..12).map(|_| world.submit(&format!(": {word}; sleep 3; echo done"))).collect();
    worker.kill9();
    worker.start();
    for id in &ids {
        let task = world.wait_status(id, "COMPLETE", LONG);
        assert!(task["attempts"].as_u64() <= Some(2), "{task:#}");
        assert_eq!(world.cli(&["logs", id]).ok().text(), "done\n", "{id}");
    }
    wait_no_process(&word, Duration::from_secs(10));
    let left = std::fs::read_dir(worker.data().join("containers")).expect("its folder").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "nothing is kept of containers that ended: {left:?}");
}

/// A worker that is told to stop says goodbye; its task moves on at once.
#[test]
fn a_worker_that_leaves_gives_its_tasks_to_another() {
    let world = World::start(Backend::Sqlite);
    let workers = [world.worker("one"), world.worker("two")];
    let (script, _end) = patient(&world, &unique("movesup"));
    let mut run = world.cli_spawn(&["run", "--name", "job", "--retries", "2", "--", "sh", "-c", &script]);
    let holder = |attempt: usize| -> &Worker {
        wait_tries(&world, &unique("movesup"), attempt);
        let list = world.cli(&["task", "list", "--format", "json"]).ok().json();
        let at = text(&list[0], "worker").to_owned();
        workers.iter().find(|worker| worker.id == at).unwrap_or_else(|| panic!("on none of ours: {list:#}"))
    };
    for attempt in 1..=3 {
        let worker = holder(attempt);
        run.wait_text("this attempt prints", SOON, |text| text.contains(&format!("{attempt}.5\n")));
        assert_eq!(worker.terminate(), 0);
        worker.start();
    }
    assert_eq!(run.wait(LONG), 125, "an error that is not the job's own: {}", run.shown());
    assert!(run.errors().contains("lost 3 times"), "the reason is told: {}", run.shown());
    let id = text(&world.cli(&["task", "list", "--format", "json"]).ok().json()[0], "id").to_owned();
    let task = world.task(&id);
    assert_eq!((&task["attempts"], &task["status"]), (&3.into(), &"ERROR".into()), "{task:#}");
    assert!(text(&task, "reason").contains("lost 3 times"), "{task:#}");
    let lines = numbered(&world, &id);
    assert_attempts(&lines, 3);
    assert_kept(&lines, &run.text());
    wait_no_process(&unique("movesup"), Duration::from_secs(10));
}

/// The last of 90 s: nobody comes back, another worker takes over.
pub(crate) fn another_worker_takes_over_after_ninety_seconds() {
    let world = World::start(Backend::Sqlite);
    let first = world.worker("one");
    let (script, end) = patient(&world, &unique("takesover"));
    let mut run = world.cli_spawn(&["run", "--name", "job", "--", "sh", "-c", &script]);
    run.wait_text("the first attempt prints", SOON, |text| text.contains("1.20\n"));
    let _second = world.worker("two");
    first.kill9();
    wait_no_process(&unique("takesover"), Duration::from_secs(10));
    // 45 s until the session is given up, 90 s more.
    run.wait_text("the second attempt prints", Duration::from_secs(155), |text| text.contains("2.5\n"));
    std::fs::write(end, "x").expect("a file");
    assert_eq!(run.wait(SOON), 0, "{}", run.shown());
    let id = text(&world.cli(&["task", "list", "--format", "json"]).ok().json()[0], "id").to_owned();
    let task = world.task(&id);
    assert_eq!((&task["attempts"], &task["status"]), (&2.into(), &"COMPLETE".into()), "{task:#}");
    let lines = numbered(&world, &id);
    assert_attempts(&lines, 2);
    assert_kept(&lines, &run.text());
    // The dead one comes back after all: it is welcome, and changes nothing.
    first.start();
    world.wait_worker(&first, "ready", LONG);
    assert_eq!(world.task(&id)["attempts"], 2);
}

/// A worker that was frozen comes back with a job that goes on elsewhere, and
/// with the result of another.
pub(crate) fn a_late_result_is_refused() {
    let world = World::start(Backend::Sqlite);
    let first = world.worker("one");
    let (script, end) = patient(&world, &unique("frozen"));
    let going = world.submit(&script);
    let marks = world.home.path().join("late");
    // The first attempt ends with 7 while its worker is frozen; the second says
    // something else and ends with 0.
    let two_ways = format!(
        "if [ -e {marks}.tried ]; then echo second; while [ ! -e {marks}.end ]; do sleep 0.1; done; exit 0; fi; \
         touch {marks}.tried; echo first; while [ ! -e {marks}.go ]; do sleep 0.1; done; \
         echo late; echo x > {marks}.done; exit 7",
        marks = marks.display()
    );
    let ended = world.submit(&two_ways);
    let mut follower = world.cli_spawn(&["logs", "-f", &ended]);
    follower.wait_text("the first attempt", SOON, |text| text == "first\n");
    wait_tries(&world, &unique("frozen"), 1);
    let second = world.worker("two");
    first.signal(Signal::SIGSTOP);
    let mark = |name: &str| marks.with_extension(name);
    std::fs::write(mark("go"), "x").expect("a file");
    wait_file(&mark("done"), SOON);
    world.wait_task(&going, "moves to the other worker", Duration::from_secs(155), |task| {
        task["attempts"] == 2 && task["worker"] == second.id.as_str()
    });
    wait_tries(&world, &unique("frozen"), 2);
    follower.wait_text("the second attempt", SOON, |text| text.ends_with("second\n"));
    let jobs = || processes_with(&unique("frozen")).iter().filter(|line| line.contains("sh -c")).count();
    assert_eq!(jobs(), 2, "the frozen worker's job lives on: that is why its word must not count");
    first.signal(Signal::SIGCONT);
    // It first has to see that its session is over; then it has 10 s.
    wait::until("the worker is back", LONG, || {
        let online = first.log().matches("online").count();
        if online >= 2 { Ok(()) } else { Err(first.log()) }
    });
    wait::until("the old attempt is stopped", Duration::from_secs(10), || {
        if jobs() == 1 { Ok(()) } else { Err(format!("{:#?}", processes_with(&unique("frozen")))) }
    });
    std::fs::write(mark("end"), "x").expect("a file");
    std::fs::write(end, "x").expect("a file");
    for id in [&going, &ended] {
        let task = world.wait_status(id, "COMPLETE", SOON);
        assert_eq!((&task["attempts"], &task["exit_code"]), (&2.into(), &0.into()), "{task:#}");
    }
    assert_attempts(&numbered(&world, &going), 2);
    assert_eq!(follower.wait(SOON), 0, "{}", follower.shown());
    for said in [follower.text(), world.cli(&["logs", &ended]).ok().text()] {
        assert_eq!(said, "first\nsecond\n", "what the old attempt said late is refused");
    }
}
