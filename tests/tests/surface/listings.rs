//! `--format json` of everything that lists or makes something: the names of
//! the fields stay, because scripts read them.

use serde_json::{Value, json};

use levers9_tests::{Output, Person};

use crate::support::{PATIENCE, shared};

/// The names of an object's fields, in alphabetical order.
#[track_caller]
fn keys(value: &Value) -> Vec<&str> {
    let object = value.as_object().unwrap_or_else(|| panic!("{value:#} is no object"));
    let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[track_caller]
fn fields(value: &Value, expected: &str) {
    assert_eq!(keys(value).join(" "), expected);
}

/// The row of a list whose field has this value.
#[track_caller]
fn row(list: &Output, field: &str, wanted: &str) -> Value {
    let list = list.json();
    let rows = list.as_array().unwrap_or_else(|| panic!("{list:#} is no list"));
    let found = rows.iter().find(|row| row[field] == wanted);
    found.unwrap_or_else(|| panic!("no {field} {wanted} in {list:#}")).clone()
}

const RESOURCES: &str = "cpu_millis gpu_count gpu_type memory_bytes";
const TASK: &str = "attempts command container created_unix_ms detached ended_unix_ms exit_code id max_retries name \
                    pool ports public reason resources started_unix_ms status timeout_ms urls worker";

#[test]
fn tasks_and_containers() {
    let world = &shared().world;
    let options = ["--name", "a name", "--cpu", "250m", "--memory", "64Mi", "--timeout", "5m"];
    let task = world.submit_with(&options, "exit 3");
    let _ended = world.wait_status(&task, "ERROR", PATIENCE);
    let list = world.cli(&["task", "list", "--limit", "1000", "--format", "json"]).ok();
    let listed = row(&list, "id", &task);
    fields(&listed, TASK);
    fields(&listed["resources"], RESOURCES);
    assert_eq!(
        listed["resources"],
        json!({"cpu_millis": 250, "memory_bytes": 64 << 20, "gpu_type": "", "gpu_count": 0})
    );
    let told =
        ["name", "status", "exit_code", "command", "detached", "timeout_ms", "max_retries", "attempts"];
    let told: Vec<&Value> = told.iter().map(|field| &listed[*field]).collect();
    assert_eq!(json!(told), json!(["a name", "ERROR", 3, ["sh", "-c", "exit 3"], true, 300_000, 3, 1]));
    let shown = world.task(&task);
    fields(
        &shown,
        "attempt_list attempts command container created_unix_ms detached ended_unix_ms exit_code id max_retries \
         name pool ports public reason resources started_unix_ms status timeout_ms urls worker",
    );
    fields(
        &shown["attempt_list"][0],
        "container created_unix_ms ended_unix_ms generation number reason state worker",
    );
    let container = shown["container"].as_str().expect("a container").to_owned();
    let live = world.cli(&["container", "list", "--format", "json"]).ok();
    assert!(!live.text().contains(&container), "a container that has ended is listed without --all");
    let all = world.cli(&["container", "list", "--all", "--format", "json"]).ok();
    let listed = row(&all, "id", &container);
    fields(&listed, "created_unix_ms generation id name resources state task worker");
    fields(&listed["resources"], RESOURCES);
    assert_eq!(listed["task"], task.as_str());
}

#[test]
fn task_lists_are_cut_and_filtered() {
    let world = &shared().world;
    let tasks: Vec<String> =
        (0..3).map(|n| world.submit_with(&["--name", "paged"], &format!("exit {n}"))).collect();
    for (task, status) in tasks.iter().zip(["COMPLETE", "ERROR", "ERROR"]) {
        let _ended = world.wait_status(task, status, PATIENCE);
    }
    let ids = |args: &[&str]| -> Vec<String> {
        let list = world.cli(&[&["task", "list", "--format", "json"], args].concat()).ok().json();
        let rows = list.as_array().expect("a list").iter();
        rows.map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
    };
    let before = ids(&["--before", &tasks[2], "--limit", "1000"]);
    let place = |id: &String| before.iter().position(|b| b == id);
    assert_eq!(place(&tasks[2]), None);
    assert!(
        place(&tasks[1]).is_some() && place(&tasks[1]) < place(&tasks[0]),
        "not newest first: {before:?}"
    );
    assert_eq!(ids(&["--limit", "1"]).len(), 1);
    let complete = ids(&["--status", "complete", "--limit", "1000"]);
    assert!(complete.contains(&tasks[0]) && !complete.contains(&tasks[1]), "{complete:?}");
    let both = ids(&["--status", "complete,error", "--limit", "1000"]);
    assert!(tasks.iter().all(|task| both.contains(task)), "{both:?}");
}

#[test]
fn workers() {
    let shared = shared();
    let list = shared.world.cli(&["worker", "list", "--format", "json"]).ok();
    let listed = row(&list, "id", &shared.worker.id);
    fields(
        &listed,
        "build carrier carrier_why containers cpu_free_millis cpu_millis created_unix_ms gpu_count gpu_free gpu_type hostname id \
         memory_bytes memory_free_bytes node note pool rtt_us runtime shared state",
    );
    let told = ["state", "pool", "runtime", "shared", "build", "note", "gpu_type", "gpu_count"];
    let told: Vec<&Value> = told.iter().map(|field| &listed[*field]).collect();
    assert_eq!(json!(told), json!(["ready", "default", "process", false, levers9_wire::BUILD, "", "", 0]));
}

#[test]
fn an_enrolment() {
    let world = &shared().world;
    let made =
        world.cli(&["worker", "enroll", "--pool", "gpu", "--allow-unisolated", "--format", "json"]).ok();
    let made = made.json();
    fields(&made, "address expires_unix_ms pool shared start token worker");
    assert_eq!((&made["pool"], &made["shared"]), (&json!("gpu"), &json!(false)));
    assert_eq!(made["address"], world.controlplane.address());
}

#[test]
fn workspaces_and_tokens() {
    let world = &shared().world;
    let made = world.cli(&["workspace", "create", "listed", "--format", "json"]).ok().json();
    fields(&made, "created_unix_ms id name token");
    let list = world.cli(&["workspace", "list", "--format", "json"]).ok();
    let listed = row(&list, "name", "listed");
    fields(&listed, "created_unix_ms id name");
    assert_eq!(listed["id"], made["id"]);
    let made = world.cli(&["token", "create", "--format", "json"]).ok().json();
    let token = "created_unix_ms expires_unix_ms hint id kind last_used_unix_ms workspace";
    fields(&made, "created_unix_ms expires_unix_ms hint id key kind last_used_unix_ms workspace");
    let list = world.cli(&["token", "list", "--format", "json"]).ok();
    let listed = row(&list, "id", made["id"].as_str().expect("an id"));
    fields(&listed, token);
    let told = ["kind", "workspace", "last_used_unix_ms", "expires_unix_ms"].map(|field| &listed[field]);
    assert_eq!(json!(told), json!(["workspace", "default", null, null]));
    assert!(!list.text().contains(made["key"].as_str().expect("a key")), "a list shows a secret");
}

#[test]
fn contexts_and_version() {
    let world = &shared().world;
    let list = world.cli(&["config", "list", "--format", "json"]).ok();
    fields(
        &list.json()[0],
        "address controlplane_host controlplane_http_url controlplane_port default name tls token_kind",
    );
    let version = world.cli(&["version", "--format", "json"]).ok().json();
    assert_eq!(
        version,
        json!({"client": levers9_wire::BUILD, "protocol": 1, "controlplane": levers9_wire::BUILD, "problem": null})
    );
}

#[test]
fn a_run_is_one_object_per_line() {
    let world = &shared().world;
    let run = world.cli(&["run", "--format", "json", "--", "sh", "-c", "echo out; exit 4"]).with_code(4);
    let lines = run.json_lines();
    assert_eq!(lines.len(), 3, "{}", run.text());
    fields(&lines[0], "note task urls");
    fields(&lines[1], "line stream text unix_ms");
    assert_eq!((&lines[1]["stream"], &lines[1]["text"]), (&json!("stdout"), &json!("out\n")));
    assert_eq!(lines[2], json!({"status": "ERROR", "exit_code": 4, "reason": ""}));
    let detached = world.cli(&["run", "--detach", "--format", "json", "--", "true"]).ok();
    let detached = detached.json_lines();
    assert_eq!(detached.len(), 1);
    fields(&detached[0], "note task urls");
    let logs = world.cli(&["logs", "--format", "json", lines[0]["task"].as_str().expect("an id")]).ok();
    assert_eq!(logs.json_lines(), lines[1..2]);
}

#[test]
fn empty_lists_are_empty() {
    let person = Person::in_workspace(&shared().world, "empty");
    for args in [&["task", "list"][..], &["container", "list", "--all"], &["worker", "list"]] {
        let list = person.cli(&[args, &["--format", "json"]].concat()).ok();
        assert_eq!(list.json(), json!([]), "{args:?}");
        assert_eq!(person.cli(args).ok().text().lines().count(), 1, "{args:?} shows more than its heads");
    }
}
