//! What a job prints is what people get: all of it, once, as it was, in time.

use std::fmt::Write as _;
use std::time::Duration;

use levers9_tests::live::Signal;
use levers9_tests::{Backend, World, wait};
use tokio::time::Instant;

use crate::support::{LONG, SOON, assert_counts, id_of, numbered, text, wait_file};

/// B42: the tail is not thrown away by a quick end.
#[test]
fn ten_thousand_lines_and_an_immediate_end_thirty_times() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    for round in 1..=30 {
        let run = world.cli(&["run", "--", "sh", "-c", "seq 10000; exit 9"]).with_code(9);
        assert_counts(&run.text(), 10_000, &format!("round {round}"));
    }
}

/// B42 over a bad link, with a worker that leaves as soon as it can.
#[test]
fn the_tail_survives_a_lossy_link_and_a_worker_that_leaves() {
    let world = World::start(Backend::Sqlite);
    let relay = world.relay();
    for round in 1..=3 {
        relay.lose_one_of(0);
        let worker = world.worker_via(&format!("w{round}"), &relay);
        relay.lose_one_of(30);
        let id = world.submit("seq 10000; exit 9");
        let task = world.wait_task(&id, "has ended", LONG, |task| task["exit_code"] == 9);
        assert_eq!(worker.terminate(), 0, "{}", worker.log());
        assert_eq!(task["attempts"], 1, "{task:#}");
        assert_counts(&world.cli(&["logs", &id]).ok().text(), 10_000, &format!("round {round}"));
    }
}

/// B48: neither a line without an end nor a progress bar stops the log.
#[test]
fn a_ten_megabyte_line_and_a_progress_bar_come_through() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let script = "head -c 10485760 /dev/zero | tr '\\0' a; i=0; \
                  while [ $i -lt 20000 ]; do i=$((i+1)); printf '%d%%\\r' $i; done; echo done";
    let mut expected = "a".repeat(10 << 20);
    for i in 1..=20_000 {
        let _infallible = write!(expected, "{i}%\r");
    }
    expected.push_str("done\n");
    let mut run = world.cli_spawn(&["run", "--name", "long", "--", "sh", "-c", script]);
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_same(&run.stdout(), expected.as_bytes(), "run");
    let id = id_of(&world, "long");
    assert_same(&world.cli(&["logs", &id]).ok().stdout, expected.as_bytes(), "logs");
    let joined: String = numbered(&world, &id).into_iter().map(|(_, _, text)| text).collect();
    assert_same(joined.as_bytes(), expected.as_bytes(), "logs --format json");
}

/// B51: bytes are bytes.
#[test]
fn random_bytes_come_through_as_they_are() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let file = world.home.path().join("random");
    let make = format!("head -c 1048576 /dev/urandom > {}", file.display());
    assert!(std::process::Command::new("sh").args(["-c", &make]).status().expect("sh starts").success());
    let bytes = std::fs::read(&file).expect("it was made");
    let cat = format!("cat {}", file.display());
    let mut run = world.cli_spawn(&["run", "--name", "random", "--", "sh", "-c", &cat]);
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_same(&run.stdout(), &bytes, "run");
    let id = id_of(&world, "random");
    assert_same(&world.cli(&["logs", &id]).ok().stdout, &bytes, "logs");
    assert!(!numbered(&world, &id).is_empty(), "JSON of any bytes is JSON");

    // A character of three bytes across every border there may be: JSON loses none.
    let euros = "€".repeat(700_000);
    std::fs::write(&file, format!("x{euros}\n")).expect("a file");
    let id =
        text(&world.cli(&["run", "--format", "json", "--", "sh", "-c", &cat]).ok().json_lines()[0], "task")
            .to_owned();
    assert_same(&world.cli(&["logs", &id]).ok().stdout, format!("x{euros}\n").as_bytes(), "logs");
    let joined: String = numbered(&world, &id).into_iter().map(|(_, _, text)| text).collect();
    assert_same(joined.as_bytes(), format!("x{euros}\n").as_bytes(), "characters on piece borders, in JSON");
}

/// B50: a prompt is seen while its job waits, and a last line needs no newline.
#[test]
fn what_has_no_newline_is_seen_within_half_a_second() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    assert_eq!(world.cli(&["run", "--", "printf", "very"]).ok().stdout, b"very");
    // This machine may be busy with other things: the best of three counts.
    let delay = |round: u32| {
        let mark = world.home.path().join(format!("printed-{round}"));
        let script = format!("sleep 0.2; printf 'name? '; echo x > {}; sleep 3600", mark.display());
        let run = world.cli_spawn(&["run", "--", "sh", "-c", &script]);
        wait_file(&mark, SOON);
        let printed = Instant::now();
        run.wait_text("the prompt", SOON, |text| text == "name? ");
        printed.elapsed()
    };
    let best = (1..=3).map(delay).min().expect("three");
    assert!(best < Duration::from_millis(500), "the prompt was seen after {best:?} at best");
}

/// B52: following begins before there is anything to follow.
#[test]
fn a_follow_that_begins_before_any_worker_shows_everything() {
    let world = World::start(Backend::Sqlite);
    let mut run = world.cli_spawn(&["run", "--name", "early", "--", "sh", "-c", "seq 100; exit 3"]);
    run.wait_errors("no worker is connected; waiting for one", SOON);
    let id = id_of(&world, "early");
    let mut logs = world.cli_spawn(&["logs", "-f", &id]);
    logs.wait_errors("no worker is connected; waiting for one", SOON);
    assert_eq!((run.poll(), logs.poll()), (None, None), "both wait");
    let _worker = world.worker("one");
    assert_eq!(run.wait(LONG), 3, "{}", run.shown());
    assert_eq!(logs.wait(SOON), 0, "{}", logs.shown());
    assert_counts(&run.text(), 100, "run");
    assert_counts(&logs.text(), 100, "logs -f");
    let unknown = world.cli(&["logs", "-f", "01a00000-0000-7000-8000-000000000000"]);
    assert_eq!(unknown.code, 1, "an unknown task is an error: {unknown:?}");
}

/// B2: who does not read holds up nobody else, and misses nothing.
#[test]
fn a_reader_that_stands_still_slows_nobody() {
    const COUNT: u32 = 400_000;
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let go = world.home.path().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done; seq -f '%.0f' {COUNT}", go.display());
    let id = world.submit(&script);
    let mut slow = world.cli_spawn(&["logs", "-f", &id]);
    let mut run_beside = world.cli_spawn(&["logs", "-f", &id]);
    world.wait_status(&id, "RUNNING", SOON);
    slow.signal(Signal::SIGSTOP);
    std::fs::write(&go, "x").expect("a file");
    assert_eq!(run_beside.wait(Duration::from_secs(45)), 0, "{}", run_beside.shown());
    assert_counts(&run_beside.text(), COUNT, "the reader beside it");
    world.wait_status(&id, "COMPLETE", SOON);
    let other = world.cli(&["run", "--", "echo", "quick"]).ok();
    assert_eq!(other.text(), "quick\n");
    slow.signal(Signal::SIGCONT);
    assert_eq!(slow.wait(LONG), 0, "{}", slow.shown());
    assert_counts(&slow.text(), COUNT, "the slow reader");
}

#[test]
fn standard_output_and_error_stay_apart_and_in_order() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i; echo e$i >&2; done";
    let mut run = world.cli_spawn(&["run", "--name", "both", "--", "sh", "-c", script]);
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), 300, "stdout");
    assert_counts(&run.errors().replace('e', ""), 300, "stderr");
    let id = id_of(&world, "both");
    assert_counts(&world.cli(&["logs", "--stdout", &id]).ok().text(), 300, "logs --stdout");
    let errors = world.cli(&["logs", "--stderr", &id]).ok();
    assert_counts(&errors.stderr.replace('e', ""), 300, "logs --stderr");
    assert_eq!(errors.text(), "");
    let last = world.cli(&["logs", "--stdout", "--tail", "600", &id]).ok();
    assert_counts(&last.text(), 300, "logs --tail");
    let since = numbered(&world, &id)[0].0;
    let after =
        world.cli(&["logs", "--since-line", &since.to_string(), &id, "--format", "json"]).ok().json_lines();
    wait::until("it begins after that line", Duration::ZERO, || {
        let first = after.first().and_then(|line| line["line"].as_u64());
        if first == Some(since + 1) { Ok(()) } else { Err(format!("{first:?}, not {}", since + 1)) }
    });
}

/// Compares by length and checksum-sized excerpts: megabytes help nobody.
#[track_caller]
fn assert_same(got: &[u8], expected: &[u8], who: &str) {
    if got == expected {
        return;
    }
    let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
    let around = |bytes: &[u8]| {
        let part = bytes.get(at.saturating_sub(20)..bytes.len().min(at + 20)).unwrap_or_default();
        String::from_utf8_lossy(part).into_owned()
    };
    panic!(
        "{who}: {} bytes, not {}; they differ at {at}: {:?} for {:?}",
        got.len(),
        expected.len(),
        around(got),
        around(expected)
    );
}
