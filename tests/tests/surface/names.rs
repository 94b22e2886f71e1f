//! Names in other scripts, of other lengths and with signs (B116): refused
//! with the rule where a name becomes a label, kept as they are elsewhere, and
//! never folded into one another.

use levers9_tests::{Backend, Person, World};
use serde_json::json;

use crate::support::{PATIENCE, fails, shared, worker_of};

const COMPOSED: &str = "Caf\u{e9}";
const DECOMPOSED: &str = "Cafe\u{301}";

#[test]
fn what_is_no_label_is_refused_with_the_rule() {
    let world = &shared().world;
    let rule = "is refused: use 1 to 63 of the characters a-z, 0-9 and '-', starting with a letter and not ending in \
                '-'";
    let long = "a".repeat(200);
    let shown = format!("{}…", "a".repeat(80));
    for (name, shown) in [
        ("研究", "研究"),
        ("исследование", "исследование"),
        ("🚀", "🚀"),
        (COMPOSED, COMPOSED),
        (DECOMPOSED, DECOMPOSED),
        (&long, &shown),
        ("a/b", "a/b"),
        ("A", "A"),
        ("7up", "7up"),
        ("a-", "a-"),
        ("", ""),
        ("a\u{1b}b", "a\\\\u{1b}b"),
    ] {
        let did = world.cli(&["workspace", "create", "--", name]);
        let quoted = if shown.contains('\\') { format!("\"{shown}\"") } else { format!("{shown:?}") };
        fails(&did, 2, &format!("error: workspace name {quoted} {rule}"));
        let did = world.cli(&["worker", "enroll", &format!("--pool={name}")]);
        // An empty pool is the default one.
        if !name.is_empty() {
            fails(&did, 2, &format!("error: pool name {quoted} {rule}"));
        }
        let args = ["config", "create", "--", name, "levers9://127.0.0.1:1"];
        fails(&world.cli(&args), 2, &format!("error: context name {quoted} {rule}"));
    }
    let list = world.cli(&["workspace", "list"]).ok().text();
    assert!(!list.contains("Caf"), "{list}");
}

#[test]
fn a_label_may_have_63_characters() {
    let world = &shared().world;
    let longest = format!("a{}", "9".repeat(62));
    let member = Person::in_workspace(world, &longest);
    let list = member.cli(&["workspace", "list", "--format", "json"]).ok().json();
    assert_eq!(list[0]["name"], longest);
    assert!(member.cli(&["workspace", "list"]).ok().text().contains(&longest), "a table cuts the name");
}

#[test]
fn names_that_look_alike_stay_apart() {
    let world = World::start(Backend::Sqlite);
    let (one, other) = (Person::in_workspace(&world, "cafe"), Person::in_workspace(&world, "caf-e"));
    let (_one_worker, _other_worker) = (worker_of(&one, "one"), worker_of(&other, "other"));
    for (person, word) in [(&one, "one"), (&other, "other")] {
        let task = person.submit_with(&[], &format!("echo {word}"));
        person.wait_status(&task, "COMPLETE", PATIENCE);
        assert_eq!(person.cli(&["logs", &task]).ok().text(), format!("{word}\n"));
        let tasks = person.cli(&["task", "list", "--format", "json"]).ok().json();
        assert_eq!(tasks.as_array().map(Vec::len), Some(1), "{tasks:#}");
        assert_eq!(tasks[0]["id"], task);
    }
}

#[test]
fn a_task_may_be_called_anything_that_fits() {
    let world = &shared().world;
    for name in ["研究", "🚀", COMPOSED, DECOMPOSED, "a/b", "two words"] {
        let task = world.submit_with(&["--name", name], "true");
        let shown = world.wait_status(&task, "COMPLETE", PATIENCE);
        assert_eq!(shown["name"], name);
    }
    let long = "a".repeat(200);
    fails(
        &world.cli(&["run", "--name", &long, "--", "true"]),
        125,
        "error: the job is refused: the name is too long: 200, the limit is 63",
    );
    let names = world.cli(&["task", "list", "--limit", "1000", "--format", "json"]).ok().json();
    let kept =
        |name: &str| names.as_array().expect("a list").iter().filter(|row| row["name"] == name).count();
    assert_eq!(json!([kept(COMPOSED), kept(DECOMPOSED)]), json!([1, 1]));
}
