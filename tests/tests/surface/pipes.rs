//! Readers that go and disks that are full (B122): a closed pipe ends a command
//! quietly, its stream on the controlplane with it; what cannot be written is
//! an error.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::process::Stdio;
use std::time::Duration;

use levers9_tests::{Backend, Live, Output, World, wait};

use crate::support::{PATIENCE, normal, running, shared};

/// How soon a command is gone once nobody reads.
const GONE: Duration = Duration::from_secs(1);
/// What the machine may take on top while other tests run.
const LOADED: Duration = Duration::from_secs(2);

/// Starts a command whose output goes into a pipe.
fn piped(world: &World, args: &[&str]) -> (Live, PipeReader) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = world.home.command("levers9", args);
    command.stdout(writer).stderr(Stdio::piped());
    (Live::spawn_as_is(command), reader)
}

/// Reads one line and goes, as `head -1` does.
#[track_caller]
fn head(world: &World, args: &[&str]) {
    let (mut live, reader) = piped(world, args);
    let mut first = String::new();
    let read = BufReader::new(reader).read_line(&mut first).expect("it can be read");
    assert!(read > 0, "{args:?} printed nothing: {}", live.shown());
    let code = live.wait(GONE + LOADED);
    assert!([0, 141].contains(&code), "{args:?} ended with {code}: {}", live.shown());
    assert_eq!(live.errors(), "", "{args:?}");
}

#[test]
fn one_line_of_every_listing() {
    let world = &shared().world;
    let task = world.submit("for i in 1 2 3; do echo $i; done");
    let _done = world.wait_status(&task, "COMPLETE", PATIENCE);
    for args in [
        &["task", "list"][..],
        &["task", "show", &task],
        &["container", "list", "--all"],
        &["worker", "list"],
        &["workspace", "list"],
        &["token", "list"],
        &["config", "list"],
        &["version"],
        &["logs", &task],
        &["attach", &task],
    ] {
        head(world, args);
        if args[0] != "version" {
            head(world, &[args, &["--format", "json"]].concat());
        }
    }
    head(world, &["--help"]);
}

#[test]
fn a_listing_that_nobody_reads_at_all() {
    let world = &shared().world;
    for args in
        [&["task", "list"][..], &["task", "list", "--format", "json"], &["--help"], &["run", "--help"]]
    {
        let (mut live, reader) = piped(world, args);
        drop(reader);
        let code = live.wait(GONE + LOADED);
        assert!([0, 141].contains(&code), "{args:?} ended with {code}");
        assert_eq!(live.errors(), "", "{args:?}");
    }
}

/// The sessions the controlplane counts.
fn sessions(world: &World) -> Result<u32, String> {
    let (code, body) = world.get("/metrics");
    let line = body.lines().find_map(|line| line.strip_prefix("levers9_sessions "));
    line.and_then(|count| count.parse().ok()).ok_or(format!("{code}: {body}"))
}

#[test]
fn one_line_of_a_log_that_goes_on() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let busy = world.submit("while :; do echo line; sleep 0.02; done");
    let quiet = world.submit("echo line; exec sleep 300");
    for task in [&busy, &quiet] {
        running(&world, task);
        head(&world, &["logs", "-f", task]);
        head(&world, &["logs", "-f", "--format", "json", task]);
    }
    head(&world, &["run", "--", "sh", "-c", "while :; do echo line; sleep 0.02; done"]);
    wait::until("only the worker's session is left", PATIENCE, || match sessions(&world)? {
        1 => Ok(()),
        other => Err(format!("{other} sessions")),
    });
}

#[test]
fn a_full_disk_is_an_error() {
    let world = &shared().world;
    let task = world.submit("echo line");
    let _done = world.wait_status(&task, "COMPLETE", PATIENCE);
    for (args, code) in [
        (&["task", "list"][..], 1),
        (&["task", "list", "--format", "json"], 1),
        (&["worker", "list"], 1),
        (&["config", "list"], 1),
        (&["version"], 1),
        (&["logs", &task], 1),
        (&["logs", "-f", "--format", "json", &task], 1),
        (&["attach", &task], 125),
        (&["run", "--", "echo", "line"], 125),
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full is there");
        let mut command = world.home.command("levers9", args);
        command.stdout(full).stderr(Stdio::piped());
        let mut live = Live::spawn_as_is(command);
        let ended = live.wait(PATIENCE);
        let said = "error: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!((ended, live.errors().as_str()), (code, said), "{args:?}");
    }
}

#[test]
fn no_standard_streams_at_all() {
    let world = &shared().world;
    let levers9 = world.home.command("levers9", &[]);
    let program = levers9.get_program().to_string_lossy().into_owned();
    for redirect in [">&-", "2>&-", "<&-", "<&- >&- 2>&-"] {
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {redirect}")).arg(&program).args(["task", "list"]);
        shell.env_clear().envs(levers9.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let did = Output::of(shell);
        assert!([0, 1].contains(&did.code), "{redirect}: {}: {}", did.code, normal(&did.stderr));
        assert!(!did.stderr.contains("panicked"), "{redirect}: {}", did.stderr);
    }
}
