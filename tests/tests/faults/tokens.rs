//! A token is revoked while it is in use (B111).

use std::time::Duration;

use levers9_tests::{Backend, Live, World, wait};

use crate::support::{SOON, id_of, text, wait_file};

/// Revocation has this long.
const REVOKED: Duration = Duration::from_secs(5);

#[test]
fn everything_of_a_revoked_token_ends() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let id = world.submit("while :; do echo tick; sleep 0.1; done");
    let token = world.cli(&["token", "create", "--kind", "workspace", "--format", "json"]).ok().json();
    let with_it = |args: &[&str]| {
        let mut command = world.home.command("levers9", args);
        command.env("LEVERS9_TOKEN", text(&token, "key"));
        command
    };
    let mut logs = Live::spawn(with_it(&["logs", "-f", &id]));
    let mut run = Live::spawn(with_it(&["run", "--name", "theirs", "--", "sh", "-c", "echo up; sleep 3600"]));
    let mut ours = world.cli_spawn(&["logs", "-f", &id]);
    for live in [&logs, &run, &ours] {
        live.wait_text("it has begun", SOON, |text| !text.is_empty());
    }
    let theirs = id_of(&world, "theirs");
    let _deleted = world.cli(&["token", "delete", text(&token, "id")]).ok();
    for (live, code) in [(&mut logs, 1), (&mut run, 125)] {
        assert_eq!(live.wait(REVOKED), code, "{}", live.shown());
        assert!(live.errors().contains("revoked"), "it says why: {}", live.shown());
    }
    assert_eq!(ours.poll(), None, "the other's log goes on");
    let seen = ours.stdout_len();
    ours.wait_text("more", SOON, |text| text.len() > seen);
    let again = levers9_tests::Output::of(with_it(&["task", "list"]));
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.stderr.contains("revoked"), "{again:?}");
    assert_eq!(world.task(&theirs)["status"], "RUNNING", "a task outlives its maker's token, for its 120 s");
}

#[test]
fn a_worker_whose_token_is_revoked_is_out() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let up = world.home.path().join("up");
    let id = world.submit(&format!("echo up > {}; sleep 3600", up.display()));
    wait_file(&up, SOON);
    let tokens = world.cli(&["token", "list", "--format", "json"]).ok().json();
    let rows = tokens.as_array().expect("a list");
    let row =
        rows.iter().find(|row| row["kind"] == "worker").unwrap_or_else(|| panic!("no worker's: {tokens:#}"));
    let _deleted = world.cli(&["token", "delete", text(row, "id")]).ok();
    worker.wait_log("revoked", REVOKED);
    world.wait_worker(&worker, "away", REVOKED);
    // It tries again every 30 s, and says so once.
    wait::stays("one line about it, and no session", Duration::from_secs(3), || {
        let said = worker.log().lines().filter(|line| line.contains("revoked")).count();
        if said <= 2 && worker.poll().is_none() { Ok(()) } else { Err(worker.log()) }
    });
    let waiting = world.cli(&["run", "--detach", "--", "echo", "hi"]).ok();
    assert!(waiting.stderr.contains("no worker"), "nothing is placed there: {waiting:?}");
    assert_eq!(world.task(&id)["attempts"], 1);
}
