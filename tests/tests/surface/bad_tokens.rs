//! Tokens that are no good, shown by people and by workers, before and after
//! they were good.

use std::time::Duration;

use levers9_tests::{Home, Person};

use crate::support::{
    PATIENCE, ends, fails, normal, running, shared, sql, start_worker, terminate, text, unknown_token,
    wait_lines,
};

/// A revoked token's sessions end within this.
const REVOKED: Duration = Duration::from_secs(5);

#[test]
fn a_malformed_token_is_refused_before_anybody_is_asked() {
    let bad = "hunter2-hunter2-hunter2";
    let person = Person::of(&shared().world, bad);
    let did = person.cli(&["task", "list"]);
    fails(
        &did,
        1,
        "error: the token in LEVERS9_TOKEN cannot be used: the token is malformed: a levers9 token starts with l9_ \
         and has at least 64 letters, digits, '-' or '_'\n\
         hint: log in again: levers9 login levers9://127.0.0.1:[PORT]#sha256:[PIN]",
    );
    assert!(!did.stderr.contains(bad), "the error shows the token");
    assert_eq!(person.cli(&["run", "--", "true"]).code, 125);
}

#[test]
fn an_unknown_token() {
    let person = Person::of(&shared().world, unknown_token());
    let said = "error: the controlplane at 127.0.0.1:[PORT] refuses: the controlplane does not know this token\n\
                hint: log in again: levers9 login";
    let did = person.cli(&["task", "list"]);
    fails(&did, 1, said);
    assert!(!did.stderr.contains(&unknown_token()), "the error shows the token");
    fails(&person.cli(&["run", "--", "true"]), 125, said);
}

#[test]
fn a_revoked_token() {
    let world = &shared().world;
    let (id, key) = world.new_token("workspace");
    let person = Person::of(world, key);
    let _works = person.cli(&["task", "list"]).ok();
    let deleted = world.cli(&["token", "delete", &id]);
    fails(&deleted, 0, "levers9: token [ID] is revoked");
    let said = "error: the controlplane at 127.0.0.1:[PORT] refuses: the token was revoked\n\
                hint: log in again: levers9 login";
    fails(&person.cli(&["task", "list"]), 1, said);
    fails(&person.cli(&["run", "--", "true"]), 125, said);
    // Again is no mistake; what never was is one.
    fails(&world.cli(&["token", "delete", &id]), 0, "levers9: token [ID] is revoked");
    let never = world.cli(&["token", "delete", "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a"]);
    fails(&never, 1, "error: no such token\nhint: levers9 token list shows them");
}

#[test]
fn a_token_revoked_while_its_sessions_live() {
    let world = &shared().world;
    let (id, key) = world.new_token("workspace");
    let person = Person::of(world, key);
    let mut run = person.cli_spawn(&["run", "--", "sh", "-c", "echo on; exec sleep 300"]);
    wait_lines(&run, 1);
    let task = world.submit("echo on; exec sleep 300");
    running(world, &task);
    let mut follow = person.cli_spawn(&["logs", "-f", &task]);
    wait_lines(&follow, 1);
    let _revoked = world.cli(&["token", "delete", &id]).ok();
    let said = "error: the controlplane at 127.0.0.1:[PORT] has ended the session: the token was revoked\n\
                hint: log in again: levers9 login";
    for (live, code) in [(&mut follow, 1), (&mut run, 125)] {
        assert_eq!(live.wait(REVOKED), code, "{}", live.shown());
        let errors = normal(&live.errors());
        assert!(errors.trim_end().ends_with(said), "{errors}");
    }
    let _stopped = world.cli(&["task", "stop", &task]).ok();
}

#[test]
fn tokens_of_the_wrong_kind() {
    let shared = shared();
    let enrolment = shared.world.cli(&["worker", "enroll", "--format", "json"]).ok().json();
    let kept = shared.world.home.path().join("worker-one-state/worker.token");
    let worker = std::fs::read_to_string(&kept).expect("the worker keeps its token");
    for (token, kind) in [(text(&enrolment["token"]), "enrolment"), (worker.trim(), "worker")] {
        let did = Person::of(&shared.world, token).cli(&["task", "list"]);
        let said = format!(
            "error: the controlplane at 127.0.0.1:[PORT] refuses: a token of kind {kind} is not for people; log in \
             with another: levers9 login"
        );
        fails(&did, 1, &said);
        assert!(!did.stderr.contains(token), "the error shows the token");
    }
}

#[test]
fn a_persons_token_starts_no_worker() {
    let world = &shared().world;
    for kind in ["workspace", "admin"] {
        let (_, key) = world.new_token(kind);
        let home = Home::new();
        let mut worker = start_worker(&home, &world.controlplane.address(), &key, "worker", &[]);
        let words = format!("a token of kind {kind} cannot start a worker; make one: levers9 worker enroll");
        worker.wait_errors(&words, PATIENCE);
        assert!(!worker.errors().contains(&key), "the log shows the token");
        // It says so once and tries on: the operator may mend it on the other side.
        assert_eq!(worker.poll(), None, "{}", worker.errors());
        assert_eq!(terminate(&mut worker), 0);
        assert_eq!(worker.errors().matches(&words).count(), 1, "{}", worker.errors());
    }
}

#[test]
fn an_enrolment_token_is_good_for_one_process() {
    let world = &shared().world;
    let owner = Person::in_workspace(world, "enrols");
    let enrolment = owner.cli(&["worker", "enroll", "--format", "json"]).ok().json();
    let (token, address) = (text(&enrolment["token"]), world.controlplane.address());
    let (home, other) = (Home::new(), Home::new());
    let mut first = start_worker(&home, &address, token, "worker", &[]);
    first.wait_errors("online", PATIENCE);
    let mut second = start_worker(&other, &address, token, "worker", &[]);
    let words = "this enrolment token was used already; make another: levers9 worker enroll";
    second.wait_errors(words, PATIENCE);
    let reported = || world.controlplane.log();
    levers9_tests::wait::until("a report of the second use", PATIENCE, || {
        let log = reported();
        let words = "an enrolment token was used a second time by another process";
        if log.contains(words) { Ok(()) } else { Err(levers9_tests::live::tail(&log, 1000).to_owned()) }
    });
    assert!(!reported().contains(token) && !second.errors().contains(token), "a log shows the token");
    assert_eq!((terminate(&mut second), terminate(&mut first)), (0, 0));
}

#[test]
fn an_enrolment_token_that_has_expired() {
    // Half an hour is not waited for: the row is changed while the controlplane is down.
    let world = levers9_tests::World::start(levers9_tests::Backend::Sqlite);
    let enrolment = world.cli(&["worker", "enroll", "--format", "json"]).ok().json();
    let shown = i64::try_from(enrolment["expires_unix_ms"].as_u64().expect("a time")).expect("a time");
    let now = i64::try_from(levers9_wire::clock::unix_millis()).expect("a time");
    let left = Duration::from_millis(u64::try_from(shown - now).expect("in the future"));
    assert!((1_700..=1_800).contains(&left.as_secs()), "{left:?} is not half an hour");
    assert_eq!(world.controlplane.terminate(), 0);
    let file = world.controlplane.data().join("levers9.db");
    let changed =
        sql(&file, "UPDATE tokens SET expires_ms = 1 WHERE kind = 'enrolment' RETURNING expires_ms");
    assert_eq!(changed, 1);
    world.controlplane.start();
    let home = Home::new();
    let token = text(&enrolment["token"]);
    let mut worker = start_worker(&home, &world.controlplane.address(), token, "worker", &[]);
    worker.wait_errors("this enrolment token has expired; make another: levers9 worker enroll", PATIENCE);
    assert_eq!(terminate(&mut worker), 0);
}

#[test]
fn a_restricted_token_submits_and_reads_and_nothing_else() {
    let world = &shared().world;
    let restricted = Person::of_kind(world, "workspace_restricted");
    let task = restricted.submit_with(&[], "echo mine");
    let _done = world.wait_status(&task, "COMPLETE", PATIENCE);
    assert_eq!(restricted.cli(&["logs", &task]).ok().text(), "mine\n");
    for reads in [
        &["task", "list"][..],
        &["task", "show", &task],
        &["container", "list"],
        &["workspace", "list"],
        &["version"],
    ] {
        let _reads = restricted.cli(reads).ok();
    }
    let other = world.submit("exec sleep 300");
    running(world, &other);
    let container = world.task(&other)["container"].as_str().expect("a container").to_owned();
    let may_not = "error: a token of kind workspace_restricted may not do this";
    for (args, said) in [
        (&["task", "stop", &other][..], "error: this token may not stop tasks"),
        (&["container", "stop", &container], "error: this token may not stop containers"),
        (&["worker", "list"], may_not),
        (&["worker", "enroll"], may_not),
        (&["token", "list"], may_not),
        (&["token", "create"], may_not),
        (&["token", "delete", &other], may_not),
        (&["workspace", "create", "mine"], "error: only an admin may create workspaces"),
    ] {
        fails(&restricted.cli(args), 1, said);
    }
    assert_eq!(world.task(&other)["status"], "RUNNING");
    let _stopped = world.cli(&["task", "stop", &other]).ok();
}

#[test]
fn a_restricted_tokens_run_has_a_caller() {
    // Otherwise it is cancelled 120 s after its start, before the eyes of who waits for it.
    let world = levers9_tests::World::start(levers9_tests::Backend::Sqlite);
    let _worker = world.worker("one");
    let restricted = Person::of_kind(&world, "workspace_restricted");
    let mut run = restricted.cli_spawn(&["run", "--", "sh", "-c", "echo on; exec sleep 300"]);
    wait_lines(&run, 1);
    let database = world.controlplane.data().join("levers9.db");
    levers9_tests::wait::until("the task has a caller", Duration::from_secs(5), || {
        match sql(&database, "SELECT count(*) FROM tasks WHERE callers_gone_ms IS NOT NULL") {
            0 => Ok(()),
            alone => Err(format!("{alone} tasks wait for a caller")),
        }
    });
    run.signal(levers9_tests::live::Signal::SIGTERM);
    let _left = run.wait(PATIENCE);
}

#[test]
fn a_workspace_token_makes_no_admin_and_ends_none() {
    let world = levers9_tests::World::start(levers9_tests::Backend::Sqlite);
    let member = Person::of_kind(&world, "workspace");
    for (args, said) in [
        (&["token", "create", "--kind", "admin"][..], "error: only an admin may create admin tokens"),
        (&["workspace", "create", "mine"], "error: only an admin may create workspaces"),
        (
            &["worker", "enroll", "--shared"],
            "error: only an admin may enroll a worker that serves every workspace",
        ),
    ] {
        fails(&member.cli(args), 1, said);
    }
    let tokens = world.cli(&["token", "list", "--format", "json"]).ok().json();
    let admin = tokens.as_array().expect("a list").iter().find(|token| token["kind"] == "admin");
    let admin = text(&admin.expect("the admin's own token")["id"]).to_owned();
    let did = member.cli(&["token", "delete", &admin]);
    assert_eq!(did.code, 1, "a member of the workspace has revoked the admin's token: {}", did.stderr);
    let _still_in = world.cli(&["token", "list"]).ok();
}

#[test]
fn a_command_that_was_refused_ends_with_it() {
    // A refusal ends at once, also where a lost controlplane would be waited for.
    let person = Person::of(&shared().world, unknown_token());
    let id = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";
    let mut attach = person.cli_spawn(&["attach", id]);
    ends(
        &mut attach,
        125,
        "",
        "error: the controlplane at 127.0.0.1:[PORT] refuses: the controlplane does not know this token\n\
         hint: log in again: levers9 login",
    );
}

#[test]
fn an_interrupt_of_a_restricted_run_says_that_it_cancels_nothing() {
    let world = &shared().world;
    let restricted = Person::of_kind(world, "workspace_restricted");
    let mut run = restricted.cli_spawn(&["run", "--", "sh", "-c", "echo on; exec sleep 300"]);
    wait_lines(&run, 1);
    run.signal(levers9_tests::live::Signal::SIGINT);
    ends(
        &mut run,
        130,
        "on",
        "levers9: cancelling the task; press Ctrl-C again to leave at once\n\
         levers9: the task was not cancelled: this token may not stop tasks",
    );
}

#[test]
fn a_workers_token_revoked_while_it_works() {
    let world = levers9_tests::World::start(levers9_tests::Backend::Sqlite);
    let worker = world.worker("one");
    let tokens = world.cli(&["token", "list", "--format", "json"]).ok().json();
    let of_kind = |kind: &str| {
        let row = tokens.as_array().expect("a list").iter().find(|token| token["kind"] == kind);
        text(&row.unwrap_or_else(|| panic!("no {kind} in {tokens:#}"))["id"]).to_owned()
    };
    let _revoked = world.cli(&["token", "delete", &of_kind("worker")]).ok();
    world.wait_worker(&worker, "away", REVOKED);
    worker.wait_log("the token was revoked", PATIENCE);
    assert_eq!(worker.poll(), None, "{}", worker.log());
}
