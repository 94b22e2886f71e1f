//! Jobs that cannot be, and things that are not there or not yours.

use levers9_tests::live::tail;
use levers9_tests::{Backend, Person, World};

use crate::support::{PATIENCE, fails, normal, says, shared};

const UNKNOWN: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";

#[test]
fn amounts_that_are_none() {
    let world = &shared().world;
    let cpu = "is not an amount of CPU; write cores (2, 0.5) or thousandths of one (500m)";
    let memory = "is not an amount of memory; write a number with a unit: 512Mi, 2Gi, 500M or 1G";
    let time = "is not a duration; write 90s, 10m, 2h, 1d, or seconds as a bare number";
    let zero = "is zero; leave the option out for no limit";
    for (flag, value, said) in [
        ("--memory", "1X", memory),
        ("--memory", "512", memory),
        ("--memory", "-1Gi", memory),
        ("--memory", "0Mi", zero),
        ("--memory", "9999999999Ti", "is more than can be counted"),
        ("--cpu", "lots", cpu),
        ("--cpu", "0", zero),
        ("--cpu", "-1", cpu),
        ("--timeout", "soon", time),
        ("--timeout", "10 m", time),
        ("--timeout", "0", zero),
        ("--timeout", "99999999d", "is more than can be counted"),
    ] {
        let flag_value = format!("{flag}={value}");
        let did = world.cli(&["run", &flag_value, "--", "true"]);
        fails(&did, 125, &format!("error: {flag}: \"{value}\" {said}"));
    }
}

#[test]
fn gpus_that_make_no_sense() {
    let world = &shared().world;
    fails(
        &world.cli(&["run", "--gpu", "T 4", "--", "true"]),
        125,
        "error: the job is refused: gpu type is \"T 4\", which is not allowed: letters, digits and '-', as in T4 or \
         A100-80",
    );
    fails(
        &world.cli(&["run", "--gpu", "T4", "--gpu-count", "2000", "--", "true"]),
        125,
        "error: the job is refused: gpu count is \"2000\", which is not allowed: at most 1024",
    );
    for count in ["0", "-1", "two", "1.5"] {
        let count = format!("--gpu-count={count}");
        let did = world.cli(&["run", "--gpu", "T4", &count, "--", "true"]);
        assert_eq!((did.code, did.text().as_str()), (125, ""), "{}", did.stderr);
        assert!(did.stderr.contains("--gpu-count"), "the flag is not named: {}", did.stderr);
    }
    let alone = world.cli(&["run", "--gpu-count", "2", "--", "true"]);
    assert!(alone.code == 125 && alone.stderr.contains("--gpu <TYPE>"), "{}: {}", alone.code, alone.stderr);
}

#[test]
fn jobs_that_no_worker_could_ever_run() {
    let world = World::start(Backend::Sqlite);
    let _small = world.worker_with("small", &["--cpu", "2", "--memory", "1Gi"]);
    let _large =
        world.worker_with("large", &["--cpu", "4", "--memory", "3Gi", "--gpu-type", "L4", "--gpus", "2"]);
    let hint = "hint: ask for less, or see what there is: levers9 worker list";
    for (args, said) in [
        (&["--memory", "64Gi"][..], "64Gi of memory is more than any worker has; the largest has 3Gi"),
        (&["--cpu", "64"], "64 CPU is more than any worker has; the largest has 4"),
        (&["--gpu", "h100"], "no worker has H100 GPUs"),
        (&["--gpu", "L4", "--gpu-count", "3"], "3 L4 GPUs are more than any one worker has; the most are 2"),
        (&["--pool", "nowhere"], "there is no pool \"nowhere\""),
    ] {
        let args = [&["run"], args, &["--", "true"]].concat();
        fails(&world.cli(&args), 125, &format!("error: {said}\n{hint}"));
    }
    let tasks = world.cli(&["task", "list", "--format", "json"]).ok().json();
    assert_eq!(tasks, serde_json::json!([]), "a refused job left a task");
}

#[test]
fn a_job_that_waits_for_a_worker_says_so() {
    let world = World::start(Backend::Sqlite);
    let mut run = world.cli_spawn(&["run", "--", "echo", "at last"]);
    run.wait_errors("levers9: no worker is connected; waiting for one\n", PATIENCE);
    let worker = world.worker("late");
    assert_eq!(run.wait(PATIENCE), 0, "{}", run.shown());
    let said = (run.text(), run.errors());
    assert_eq!(said.0, "at last\n");
    assert_eq!(said.1, "levers9: no worker is connected; waiting for one\n");
    drop(worker);
}

#[test]
fn a_command_that_is_not_there_or_no_program() {
    let world = &shared().world;
    fails(
        &world.cli(&["run", "--env", "PATH=/bin:/usr/bin", "--", "no-such-command-anywhere"]),
        127,
        "levers9: command not found: \"no-such-command-anywhere\" is in no folder of PATH \"/bin:/usr/bin\"",
    );
    fails(&world.cli(&["run", "--", "/no/such/file"]), 127, "levers9: command not found: \"/no/such/file\"");
    fails(
        &world.cli(&["run", "--", "/etc/passwd"]),
        126,
        "levers9: not executable: \"/etc/passwd\": Permission denied",
    );
    fails(&world.cli(&["run", "--", "/etc"]), 126, "levers9: not executable: \"/etc\": Is a directory");
}

#[test]
fn the_ends_of_jobs_and_their_codes() {
    let world = &shared().world;
    let run =
        |args: &[&str], script: &str| world.cli(&[&["run"], args, &["--", "sh", "-c", script]].concat());
    says(&run(&[], "echo out; echo err >&2; exit 7"), 7, "out", "err");
    says(&run(&[], "true"), 0, "", "");
    says(&run(&[], "kill -TERM $$"), 143, "", "levers9: killed by signal 15 (SIGTERM)");
    says(&run(&[], "kill -KILL $$"), 137, "", "levers9: killed by signal 9 (SIGKILL)");
    says(&run(&["--timeout", "1"], "echo on; exec sleep 60"), 124, "on", "levers9: timed out after 1s");
    says(&run(&[], "exit 125"), 125, "", "");
}

/// Commands that name a thing by its id, with the words for one that is not there.
const BY_ID: [(&[&str], i32, &str); 6] = [
    (&["task", "show"], 1, "error: no such task\nhint: levers9 task list shows them"),
    (&["task", "stop"], 1, "error: no such task\nhint: levers9 task list shows them"),
    (&["container", "stop"], 1, "error: no such container\nhint: levers9 container list shows them"),
    (&["logs"], 1, "error: no such task or container\nhint: levers9 task list"),
    (&["logs", "-f"], 1, "error: no such task or container\nhint: levers9 task list"),
    (&["attach"], 125, "error: no such task or container\nhint: levers9 task list"),
];

#[test]
fn an_unknown_id_and_one_of_another_workspace_are_the_same() {
    let world = &shared().world;
    let stranger = Person::in_workspace(world, "stranger");
    let task = world.submit("echo secret; exec sleep 300");
    crate::support::running(world, &task);
    let container = world.task(&task)["container"].as_str().expect("a container").to_owned();
    for (command, code, said) in BY_ID {
        for id in [UNKNOWN, &task, &container] {
            let did = stranger.cli(&[command, &[id]].concat());
            // Byte for byte: not even the id is repeated.
            assert_eq!(
                (did.code, did.text().as_str(), did.stderr.trim_end()),
                (code, "", said),
                "{}: {id}",
                did.what
            );
        }
        if command != ["container", "stop"] {
            let admin = world.cli(&[command, &[UNKNOWN]].concat());
            assert_eq!((admin.code, admin.stderr.trim_end()), (code, said), "{}", admin.what);
        }
    }
    assert_eq!(world.task(&task)["status"], "RUNNING", "a stranger has stopped it");
    let _stopped = world.cli(&["task", "stop", &task]).ok();
}

#[test]
fn what_is_no_id_is_told_apart_before_anybody_is_asked() {
    let person = Person::new("levers9://127.0.0.1:1", crate::support::unknown_token());
    let rule = "is not an id; ids look like 019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";
    for (args, code, of) in [
        (&["task", "show", "abc"][..], 2, "TASK"),
        (&["task", "stop", "abc"], 2, "TASK"),
        (&["container", "stop", "abc"], 2, "CONTAINER"),
        (&["logs", "abc"], 2, "TASK|CONTAINER"),
        (&["attach", "abc"], 125, "TASK"),
        (&["token", "delete", "abc"], 2, "TOKEN"),
        (&["task", "list", "--before", "abc"], 2, "--before"),
    ] {
        let did = person.cli(args);
        // Its own example is an id, too: nothing is replaced here.
        let said = format!("error: {of}: \"abc\" {rule}");
        assert_eq!((did.code, did.stderr.trim_end()), (code, said.as_str()), "{args:?}");
    }
}

#[test]
fn an_error_shows_no_control_characters() {
    let did = shared().world.cli(&["run", "--memory", "1\u{1b}[2JX", "--", "true"]);
    assert_eq!(did.code, 125);
    assert!(!did.stderr.contains('\u{1b}') && !normal(&did.stderr).is_empty(), "{:?}", did.stderr);
}

#[test]
fn jobs_that_are_too_large() {
    let world = &shared().world;
    let long = |length: usize| "x".repeat(length);
    let env = |length: usize| format!("--env=E={}", long(length));
    let run = |args: &[&str]| world.cli(&[&["run"], args].concat());
    fails(
        &run(&[&env(60_000), "--", "true"]),
        125,
        "error: the job is refused: the command with its environment is too long: 60029, the limit is 57344",
    );
    fails(
        &run(&["--", "echo", &long(60_000)]),
        125,
        "error: the job is refused: the command with its environment is too long: 60028, the limit is 57344",
    );
    let words = [&["--", "echo"][..], &["w"; 2000]].concat();
    fails(&run(&words), 125, "error: the job is refused: the command is too long: 2001, the limit is 1024");
    fails(
        &run(&["--retries", "101", "--", "true"]),
        125,
        "error: the job is refused: retries is \"101\", which is not allowed: at most 100",
    );
}

#[test]
fn a_job_that_is_taken_runs_however_large_it_is() {
    let world = &shared().world;
    let env = format!("--env=E={}", "x".repeat(33_000));
    // Up to the limit, just beyond it, around 64 KiB where a frame ends, and far beyond.
    for length in [20_000, 24_263, 24_264, 30_000, 32_440, 32_480, 48_000] {
        let script = "echo ${#E} ${#0}";
        let mut run = world.cli_spawn(&["run", &env, "--", "sh", "-c", script, &"y".repeat(length)]);
        let code = run.wait(PATIENCE);
        let (out, err) = (run.text(), run.errors());
        let ran = code == 0 && out == format!("33000 {length}\n");
        let refused = code == 125 && err.starts_with("error: the job is refused: ");
        let good = if length <= 24_263 { ran } else { refused };
        assert!(good, "{length}: {code}: {out} {}", tail(&err, 300));
    }
}
