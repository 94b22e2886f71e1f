//! Two workspaces on one controlplane: neither sees, reaches or uses anything
//! of the other, and cannot tell whether it is there.

use levers9_tests::{Backend, Person, World};
use serde_json::json;

use crate::support::{PATIENCE, fails, says, text, worker_of};

/// Every id in a JSON list.
fn ids(list: &serde_json::Value) -> Vec<String> {
    list.as_array().expect("a list").iter().map(|row| text(&row["id"]).to_owned()).collect()
}

#[test]
fn neither_sees_or_reaches_the_other() {
    let world = World::start(Backend::Sqlite);
    let (red, blue) = (Person::in_workspace(&world, "red"), Person::in_workspace(&world, "blue"));
    let (_red_worker, _blue_worker) = (worker_of(&red, "red-worker"), worker_of(&blue, "blue-worker"));
    let task = red.submit_with(&[], "echo of red; exec sleep 300");
    red.wait_status(&task, "RUNNING", PATIENCE);
    for args in [&["task", "list"][..], &["container", "list", "--all"]] {
        assert_eq!(blue.json(args), json!([]), "{args:?}");
        assert_eq!(ids(&red.json(args)).len(), 1, "{args:?}");
    }
    let (reds, blues) = (ids(&red.json(&["worker", "list"])), ids(&blue.json(&["worker", "list"])));
    assert!(reds.len() == 1 && blues.len() == 1 && reds != blues, "{reds:?} {blues:?}");
    let own: Vec<_> = [&red, &blue].iter().map(|person| person.json(&["workspace", "list"])).collect();
    assert_eq!((own[0][0]["name"].clone(), own[0].as_array().map(Vec::len)), (json!("red"), Some(1)));
    assert_eq!((own[1][0]["name"].clone(), own[1].as_array().map(Vec::len)), (json!("blue"), Some(1)));
    let tokens = blue.json(&["token", "list"]);
    let foreign = tokens.as_array().expect("a list").iter().find(|token| token["workspace"] != "blue");
    assert!(foreign.is_none(), "{tokens:#}");
    let reds_token = ids(&red.json(&["token", "list"])).remove(0);
    fails(
        &blue.cli(&["token", "delete", &reds_token]),
        1,
        "error: no such token\nhint: levers9 token list shows them",
    );
    for (args, code) in [
        (&["task", "show", &task][..], 1),
        (&["task", "stop", &task], 1),
        (&["logs", &task], 1),
        (&["attach", &task], 125),
    ] {
        assert_eq!(blue.cli(args).code, code, "{args:?}");
    }
    assert_eq!(red.json(&["task", "list"])[0]["status"], "RUNNING");
    // A page that starts after a foreign task tells nothing of it.
    assert_eq!(blue.json(&["task", "list", "--before", &task]), json!([]));
    let admin = world.cli(&["task", "list", "--format", "json"]).ok().json();
    assert_eq!(ids(&admin), [task], "an admin sees every workspace's");
}

#[test]
fn neither_runs_on_the_others_workers() {
    let world = World::start(Backend::Sqlite);
    let (red, blue) = (Person::in_workspace(&world, "red"), Person::in_workspace(&world, "blue"));
    let worker = worker_of(&red, "red-worker");
    let mut waiting = blue.cli_spawn(&["run", "--", "echo", "ran"]);
    waiting.wait_errors("levers9: no worker is connected; waiting for one\n", PATIENCE);
    // Its own goes past, so the scheduler has looked at both.
    says(&red.cli(&["run", "--", "echo", "mine"]), 0, "mine", "");
    assert_eq!(waiting.poll(), None, "{}", waiting.shown());
    assert_eq!(waiting.text(), "");
    // What the other could have tells nothing either.
    let did = blue.cli(&["run", "--detach", "--memory", "1000Ti", "--", "true"]);
    assert_eq!((did.code, did.stderr.as_str()), (0, "levers9: no worker is connected; waiting for one\n"));
    let _own = worker_of(&blue, "blue-worker");
    assert_eq!(waiting.wait(PATIENCE), 0, "{}", waiting.shown());
    assert_eq!(waiting.text(), "ran\n");
    drop(worker);
}

#[test]
fn a_shared_process_worker_serves_one_workspace() {
    let world = World::start(Backend::Sqlite);
    let (red, blue) = (Person::in_workspace(&world, "red"), Person::in_workspace(&world, "blue"));
    let enrolment = world.cli(&["worker", "enroll", "--shared", "--format", "json"]).ok().json();
    let address = world.controlplane.address();
    let worker =
        crate::support::start_worker(&world.home, &address, text(&enrolment["token"]), "shared", &[]);
    worker.wait_errors("online", PATIENCE);
    assert_eq!(ids(&blue.json(&["worker", "list"])), [text(&enrolment["worker"])]);
    says(&red.cli(&["run", "--", "echo", "first"]), 0, "first", "");
    // Without isolation it is bound to the first it served.
    let mut waiting = blue.cli_spawn(&["run", "--", "true"]);
    waiting.wait_errors("waiting", PATIENCE);
    assert_eq!(blue.json(&["worker", "list"]), json!([]), "another workspace's worker is shown");
    assert_eq!(waiting.poll(), None, "{}", waiting.shown());
}

#[test]
fn a_new_workspace_and_its_token() {
    let world = World::start(Backend::Sqlite);
    let did = world.cli(&["workspace", "create", "team-7"]);
    says(
        &did,
        0,
        "[TOKEN]",
        "levers9: workspace \"team-7\" is there; its token above is shown only this once",
    );
    let member = Person::of(&world, did.text().trim());
    assert_eq!(member.json(&["workspace", "list"])[0]["name"], "team-7");
    fails(
        &world.cli(&["workspace", "create", "team-7"]),
        1,
        "error: there is a workspace \"team-7\" already",
    );
    fails(&member.cli(&["workspace", "create", "team-8"]), 1, "error: only an admin may create workspaces");
    assert_eq!(ids(&world.cli(&["workspace", "list", "--format", "json"]).ok().json()).len(), 2);
}
