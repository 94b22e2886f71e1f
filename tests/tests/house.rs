#![cfg(test)]
//! The rules of the house, checked by reading the sources: which crate may
//! know which, what may be named where, and how a file looks. Each check says
//! how much it has looked at, so that none passes by looking at nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The crates beside each other at the top, by package name and folder.
const ROOMS: [(&str, &str); 4] = [
    ("levers9-controlplane", "controlplane"),
    ("levers9-agent", "agent"),
    ("levers9-worker", "worker"),
    ("levers9", "cli"),
];
/// The folders whose crates may know several of them.
const ABOVE: [&str; 3] = ["cli", "bench", "tests"];
/// No file is longer.
const LINES: usize = 800;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above this crate")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file that is or will be part of the repository, relative to its root.
fn files() -> Vec<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = git.output().expect("git starts");
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let text = String::from_utf8(listed.stdout).expect("file names are UTF-8");
    let there = |path: &&str| !path.is_empty() && root().join(path).is_file();
    let files: Vec<String> = text.split('\0').filter(there).map(str::to_owned).collect();
    assert!(files.len() > 200, "git lists only {} files in {}", files.len(), root().display());
    files
}

/// Sources people write.
fn sources() -> Vec<String> {
    let written = |path: &String| path.ends_with(".rs") && !path.starts_with("wire/src/gen/");
    let sources: Vec<String> = files().into_iter().filter(written).collect();
    assert!(sources.len() > 200, "there are only {} sources", sources.len());
    sources
}

/// Fails with every place that breaks a rule.
fn none(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

/// Lines of some files for which `bad` holds, as `path:line: text`.
fn lines_where(paths: &[String], bad: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for path in paths {
        // What is not text has no lines to read.
        let Ok(text) = std::fs::read_to_string(root().join(path)) else { continue };
        let lines = text.lines().zip(1..).filter(|(line, _)| bad(line));
        found.extend(lines.map(|(line, number)| format!("{path}:{number}: {}", line.trim())));
    }
    found
}

/// The code of a line, without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Every crate of the workspace: its folder and its manifest.
fn manifests() -> BTreeMap<String, toml::Table> {
    let workspace: toml::Table = read("Cargo.toml").parse().expect("Cargo.toml is TOML");
    let members = workspace["workspace"]["members"].as_array().expect("members is a list");
    let folder = |member: &toml::Value| member.as_str().expect("members are folders").to_owned();
    let manifests: BTreeMap<String, toml::Table> = members
        .iter()
        .map(folder)
        .map(|folder| (folder.clone(), read(&format!("{folder}/Cargo.toml")).parse().expect("TOML")))
        .collect();
    assert!(manifests.len() >= 8, "the workspace has only {} crates", manifests.len());
    manifests
}

/// What a manifest depends on, in any section: package names.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let sections = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = std::iter::once(manifest)
        .chain(targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table)));
    let mut names = Vec::new();
    for table in tables {
        for (key, value) in sections.iter().filter_map(|s| table.get(*s)?.as_table()).flatten() {
            let package = value.get("package").and_then(toml::Value::as_str);
            names.push(package.unwrap_or(key).to_owned());
        }
    }
    names
}

/// What one section of a manifest depends on, by key.
fn names_in(manifest: &toml::Table, section: &str) -> Vec<String> {
    let table = manifest.get(section).and_then(toml::Value::as_table);
    table.map(|table| table.keys().cloned().collect()).unwrap_or_default()
}

/// The package with the harness for suites that start real parts.
const HARNESS: &str = "levers9-tests";

/// How high a crate stands: wire 0, transport 1, the rooms 2, what is above them 3.
fn height(package: &str) -> Option<u8> {
    match package {
        "levers9-wire" => Some(0),
        "levers9-transport" => Some(1),
        "levers9-bench" | "levers9-tests" => Some(3),
        package if ROOMS.iter().any(|(name, _)| *name == package) => Some(2),
        _ => None,
    }
}

#[test]
fn crates_know_only_those_below_them() {
    let mut arrows = 0;
    let mut broken = Vec::new();
    for (folder, manifest) in manifests() {
        let package = manifest["package"]["name"].as_str().expect("a package has a name").to_owned();
        let own = height(&package).unwrap_or_else(|| panic!("{package} has no place in the arrow rule"));
        let known = dependencies(&manifest).into_iter().filter(|name| *name != package);
        // A suite may stand on the harness, which knows no crate of ours itself.
        let known =
            known.filter(|name| name != HARNESS || names_in(&manifest, "dependencies").contains(name));
        for (name, other) in known.filter_map(|name| height(&name).map(|other| (name, other))) {
            arrows += 1;
            if other >= own && !ABOVE.contains(&folder.as_str()) {
                broken.push(format!("{folder}/Cargo.toml depends on {name}"));
            }
        }
    }
    assert!(arrows > 8, "only {arrows} arrows were found");
    none("wire <- transport <- { controlplane, agent, worker, cli }", &broken);
}

#[test]
fn the_harness_knows_no_crate_of_ours() {
    let (_, harness) =
        manifests().into_iter().find(|(folder, _)| folder == "tests").expect("the tests crate");
    let names = names_in(&harness, "dependencies");
    assert!(names.len() > 2, "the harness depends on {} crates only", names.len());
    let ours: Vec<_> = names.into_iter().filter(|name| height(name).is_some()).collect();
    none("tests/src stands on no crate of ours", &ours);
}

#[test]
fn only_those_above_know_several_rooms() {
    let mut rooms = 0;
    let mut broken = Vec::new();
    for (folder, manifest) in manifests() {
        let known = dependencies(&manifest);
        let known = ROOMS.iter().filter(|(name, own)| *own != folder && known.iter().any(|k| k == name));
        let count = known.count();
        rooms += count;
        if count > 0 && !ABOVE.contains(&folder.as_str()) {
            broken.push(format!("{folder}/Cargo.toml knows {count} of the rooms beside it"));
        }
    }
    assert!(rooms >= 2, "not even the command knows the controlplane and the worker");
    none("only cli, bench and tests know several of controlplane, agent, worker and cli", &broken);
}

#[test]
fn the_pure_and_the_poor_stay_so() {
    let manifests = manifests();
    let named = |folder: &str| dependencies(&manifests[folder]);
    assert!(named("controlplane").iter().any(|d| d == "sqlx"), "the controlplane no longer uses sqlx");
    let banned = [
        ("wire", &["tokio", "sqlx", "kube", "socket2", "nix"][..]),
        ("worker", &["sqlx", "kube", "axum", "hyper", "tonic"]),
        ("agent", &["sqlx", "axum", "hyper", "tonic"]),
        ("transport", &["sqlx", "axum", "tonic", "clap"]),
        ("cli", &["sqlx", "axum", "tonic"]),
    ];
    let mut broken = Vec::new();
    for (folder, banned) in banned {
        let known = named(folder);
        assert!(!known.is_empty(), "{folder} depends on nothing");
        broken.extend(
            banned.iter().filter(|b| known.iter().any(|k| k == **b)).map(|b| format!("{folder}: {b}")),
        );
    }
    none("a worker listens on nothing and opens no database, wire does no I/O", &broken);
}

#[test]
fn every_crate_has_the_lints_of_the_workspace() {
    let without = |(folder, manifest): (String, toml::Table)| {
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace")?.as_bool());
        (lints != Some(true)).then_some(folder)
    };
    let broken: Vec<String> = manifests().into_iter().filter_map(without).collect();
    none("every Cargo.toml says [lints] workspace = true", &broken);
}

#[test]
fn the_quic_library_is_named_behind_the_seam_only() {
    let library = concat!("qui", "nn");
    let allowed = ["transport/src/quic/", "transport/src/sim/", "transport/tests/", "bench/"];
    let names = |path: &String| read(path).to_lowercase().contains(library);
    let named: Vec<String> = sources().into_iter().filter(names).collect();
    assert!(named.len() > 4, "only {} files name {library}", named.len());
    let outside = |path: &String| !allowed.iter().any(|folder| path.starts_with(folder));
    let broken: Vec<String> = named.into_iter().filter(outside).collect();
    none("no type of the QUIC library above transport/src/quic", &broken);
}

#[test]
fn every_file_says_what_it_is_for() {
    let mut looked_at = 0;
    let mut broken = Vec::new();
    for path in sources().into_iter().filter(|path| path.split('/').nth(1) == Some("src")) {
        let text = read(&path);
        let only_names = text.lines().all(|line| {
            let line = line.trim();
            line.is_empty()
                || line.starts_with("mod ")
                || line.starts_with("pub mod ")
                || line.starts_with("use ")
        });
        looked_at += 1;
        // A test binary's modules may be switched off as a whole first.
        let first = text.lines().find(|line| !line.starts_with("#!["));
        if !only_names && !first.is_some_and(|line| line.starts_with("//!")) {
            broken.push(path);
        }
    }
    assert!(looked_at > 150, "only {looked_at} files were looked at");
    none("every source opens with what it owns, as //!", &broken);
}

#[test]
fn no_file_is_too_long() {
    let length = |path: &String| read(path).lines().count();
    let lengths: Vec<(String, usize)> =
        sources().into_iter().map(|path| (path.clone(), length(&path))).collect();
    let all: usize = lengths.iter().map(|(_, lines)| lines).sum();
    assert!(all > 20_000, "only {all} lines were counted");
    let long = lengths.into_iter().filter(|(_, lines)| *lines > LINES);
    let broken: Vec<String> = long.map(|(path, lines)| format!("{path}: {lines} lines")).collect();
    none(&format!("no source has more than {LINES} lines"), &broken);
}

#[test]
fn nothing_is_left_to_be_done_in_the_sources() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let macros = [concat!("to", "do!"), concat!("unimpl", "emented!")];
    let unfinished =
        |line: &str| words(line).any(|word| marks.contains(&word)) || macros.iter().any(|m| line.contains(m));
    none("what is to be done stands in an issue", &lines_where(&sources(), unfinished));
}

#[test]
fn no_file_names_a_place_on_one_machine() {
    let places =
        [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/us"), concat!("/Us", "ers/")];
    let found = lines_where(&files(), |line| places.iter().any(|place| line.contains(place)));
    none("no path of one machine in the repository", &found);
}

#[test]
fn nothing_is_unsafe() {
    let sources = sources();
    let lines: usize = sources.iter().map(|path| read(path).lines().count()).sum();
    assert!(lines > 20_000, "only {lines} lines were read");
    let word = concat!("un", "safe");
    let named = |line: &str| words(code(line)).any(|found| found == word);
    none(&format!("no {word} code"), &lines_where(&sources, named));
    let manifest: toml::Table = read("Cargo.toml").parse().expect("Cargo.toml is TOML");
    let lint = &manifest["workspace"]["lints"]["rust"][format!("{word}_code")];
    assert_eq!(lint.as_str(), Some("forbid"), "the workspace no longer forbids it");
}
