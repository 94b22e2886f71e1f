//! What these tests share: jobs whose output can be judged, and the judging.

use std::path::Path;
use std::time::Duration;

use levers9_tests::live::tail;
use levers9_tests::{World, wait};
use serde_json::Value;

/// Long enough for anything that needs no timer of the product.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Long enough for what needs several processes to find each other again.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// What is not wanted any more is stopped within this, once it can be told.
pub(crate) const STOPPED: Duration = Duration::from_secs(10);

/// A script that prints 1 to `count`, `per_second` a second.
pub(crate) fn counting(count: u32, per_second: u32) -> String {
    let pause = 1.0 / f64::from(per_second);
    format!("i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo $i; sleep {pause}; done")
}

/// The last whole number that was printed; 0 for none.
pub(crate) fn last_number(text: &str) -> u32 {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().last().and_then(|line| line.parse().ok()).unwrap_or(0)
}

/// Fails unless the text is exactly the numbers from 1 to `count`, a line each.
#[track_caller]
pub(crate) fn assert_counts(text: &str, count: u32, who: &str) {
    let mut expected = 1;
    for line in text.lines() {
        assert!(
            line == expected.to_string(),
            "{who}: line {line:?} where {expected} was to come; around it:\n{}",
            around(text, expected)
        );
        expected += 1;
    }
    assert!(expected == count + 1, "{who}: ends after {} of {count}:\n{}", expected - 1, tail(text, 200));
}

fn around(text: &str, line: u32) -> String {
    let at = usize::try_from(line).unwrap_or(0);
    text.lines().skip(at.saturating_sub(5)).take(10).collect::<Vec<_>>().join("\n")
}

/// A text field of a JSON object.
#[track_caller]
pub(crate) fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("no text {key:?} in {value:#}"))
}

/// The id of the task with a name, once there is one.
pub(crate) fn id_of(world: &World, name: &str) -> String {
    wait::until(&format!("a task named {name}"), SOON, || {
        let list = world.cli(&["task", "list", "--format", "json"]).ok().json();
        let rows = list.as_array().map(Vec::as_slice).unwrap_or_default();
        let row = rows.iter().find(|row| row["name"] == name);
        row.map(|row| text(row, "id").to_owned()).ok_or_else(|| list.to_string())
    })
}

/// What a file holds now; nothing when it is not there.
pub(crate) fn content(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Waits until a file is there and not empty.
pub(crate) fn wait_file(file: &Path, within: Duration) -> String {
    wait::until(&format!("{} is written", file.display()), within, || {
        Some(content(file)).filter(|text| !text.is_empty()).ok_or_else(|| "nothing".to_owned())
    })
}

/// A word for a command line that no other run of these tests uses.
pub(crate) fn unique(word: &str) -> String {
    format!("{word}-{}", std::process::id())
}

/// The processes of this machine with a word on their command line.
pub(crate) fn processes_with(word: &str) -> Vec<String> {
    let folders = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let found = folders.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let ours = line.starts_with("sh -c") || line.starts_with("sleep");
        (ours && line.contains(word)).then(|| format!("{pid}: {line}"))
    });
    found.collect()
}

/// Waits until no process has the word on its command line.
pub(crate) fn wait_no_process(word: &str, within: Duration) {
    wait::until(&format!("no process of {word} is left"), within, || {
        let left = processes_with(word);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
    });
}

/// The lines of `logs --format json` as (number, stream, text). Fails when the
/// numbers do not grow.
#[track_caller]
pub(crate) fn numbered(world: &World, id: &str) -> Vec<(u64, String, String)> {
    let lines = world.cli(&["logs", id, "--format", "json"]).ok().json_lines();
    let mut last = 0;
    let line = |value: &Value| {
        let number = value["line"].as_u64().unwrap_or_else(|| panic!("no line number: {value}"));
        assert!(number > last, "line {number} comes after {last}: {value}");
        last = number;
        (number, text(value, "stream").to_owned(), text(value, "text").to_owned())
    };
    lines.iter().filter(|value| value.get("line").is_some()).map(line).collect()
}
