//! What the images say of themselves, and what is in them and what is not.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use levers9_tests::{Output, binaries};

use crate::engine::{CANARY, Image, SOURCE, has};
use crate::images;

/// Files of an image may take this much, in MB: deploy/docker/README.md says so.
const WORKER_MB: u64 = 150;
/// The worker's, where it begins with the public Debian image for want of mmdebstrap.
const PUBLIC_MB: u64 = 250;
const CONTROLPLANE_MB: u64 = 60;
/// What builds programs or fetches them.
const TOOLS: [&str; 16] = [
    "as", "c++", "cargo", "cc", "clang", "cmake", "cpp", "g++", "gcc", "git", "go", "ld", "make", "pip",
    "pip3", "rustc",
];
/// Where programs are.
const PATHS: [&str; 6] = ["bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin"];

/// Everything in an image, by path from its root.
fn everything(image: &Image) -> Vec<(PathBuf, fs::Metadata)> {
    let mut found = Vec::new();
    let mut folders = vec![image.root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the image").flatten() {
            let meta = entry.path().symlink_metadata().expect("what is there");
            if meta.is_dir() {
                folders.push(entry.path());
            }
            found.push((entry.path().strip_prefix(&image.root).expect("in the root").to_owned(), meta));
        }
    }
    found
}

fn names(folder: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeSet::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn megabytes(image: &Image) -> u64 {
    let mut seen = BTreeSet::new();
    let all = everything(image);
    let files = all.iter().filter(|(_, meta)| meta.is_file() && seen.insert(meta.ino()));
    files.map(|(_, meta)| meta.len()).sum::<u64>() / 1_000_000
}

/// Binaries of ours: all of them, whole, anybody's to run, without debug information.
fn holds_binaries(image: &Image, binaries: &[&str]) {
    let folder = image.root.join("usr/local/bin");
    assert_eq!(names(&folder), binaries.iter().map(|name| (*name).to_owned()).collect());
    for name in binaries {
        let meta = fs::metadata(folder.join(name)).expect("a binary");
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o755, 0, 0), "{name}");
        let built = fs::metadata(binaries::path(name)).expect("the binary under test");
        assert!(meta.len() < built.len(), "{name} holds what only debuggers want");
    }
}

#[test]
fn their_configuration_says_who_what_and_from_where() {
    let images = images();
    for (image, title, binary) in [
        (&images.worker, "levers9 worker", "levers9-worker"),
        (&images.controlplane, "levers9 controlplane", "levers9-controlplane"),
    ] {
        let config = &image.config;
        assert_eq!(config.user, "65532:65532", "a number, so that a kubelet can tell that it is not root");
        assert_eq!(config.entrypoint, [binary]);
        let label = |name: &str| {
            let name = format!("org.opencontainers.image.{name}");
            config
                .labels
                .get(&name)
                .unwrap_or_else(|| panic!("{name} is not among {:?}", config.labels))
                .as_str()
        };
        assert_eq!(label("title"), title);
        assert_eq!(label("version"), env!("CARGO_PKG_VERSION"));
        assert_eq!(label("licenses"), "Apache-2.0");
        assert_eq!(label("source"), SOURCE);
        let revision = label("revision");
        let hash = revision.strip_suffix("-dirty").unwrap_or(revision);
        assert!(hash.len() == 40 && hash.bytes().all(|c| c.is_ascii_hexdigit()), "{revision}");
        let variables: Vec<_> = config.env.iter().filter_map(|line| line.split('=').next()).collect();
        assert!(variables.iter().all(|name| ["PATH", "LEVERS9_CONFIG"].contains(name)), "{variables:?}");
        assert!(config.env.iter().any(|line| line.starts_with("PATH=/usr/local/bin")), "{:?}", config.env);
    }
}

#[test]
fn nothing_that_is_secret_where_they_are_built_gets_in() {
    let images = images();
    for image in [&images.worker, &images.controlplane] {
        assert!(!image.config.whole.to_string().contains(CANARY), "{}", image.config.whole);
        let mut grep = Command::new("grep");
        grep.args(["--recursive", "--files-with-matches", "--fixed-strings", CANARY]).arg(&image.root);
        let found = Output::of(grep).with_code(1);
        assert_eq!(found.text(), "");
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("this machine has a name");
        let named = fs::read_to_string(image.root.join("etc/hostname")).unwrap_or_default();
        assert!(named.is_empty() || named != host, "the name of the machine that built it");
    }
}

#[test]
fn the_worker_image_holds_agent_and_worker_and_no_way_to_more_rights() {
    let image = &images().worker;
    holds_binaries(image, &["levers9-agent", "levers9-worker"]);
    for folder in PATHS {
        let programs = names(&image.root.join(folder));
        let tools: Vec<_> = TOOLS.iter().filter(|tool| programs.contains(**tool)).collect();
        assert!(tools.is_empty(), "/{folder} has {tools:?}");
    }
    let all = everything(image);
    assert!(all.len() > 1000, "only {} files were looked at", all.len());
    for (path, meta) in &all {
        let kind = meta.file_type();
        assert!(!meta.is_file() || meta.mode() & 0o6000 == 0, "{} is setuid or setgid", path.display());
        assert!(!kind.is_block_device() && !kind.is_char_device(), "{} is a device", path.display());
        let text = path.to_string_lossy();
        let kept =
            text.ends_with(".deb") || (text.starts_with("var/lib/apt/lists/") && text.contains("_Packages"));
        assert!(!kept, "{text} is of no use to anybody");
        let anybodys = meta.mode() & 0o002 != 0 && meta.mode() & 0o1000 == 0 && !meta.is_symlink();
        assert!(!anybodys, "{text} can be changed by anybody");
    }
}

#[test]
fn the_controlplane_image_holds_one_program() {
    let image = &images().controlplane;
    holds_binaries(image, &["levers9-controlplane"]);
    for folder in PATHS.iter().filter(|folder| **folder != "usr/local/bin") {
        assert_eq!(names(&image.root.join(folder)), BTreeSet::new(), "/{folder}");
    }
    for (path, meta) in everything(image) {
        let text = path.to_string_lossy();
        let known = ["dev", "etc", "lib", "proc", "run", "sys", "tmp", "usr", "var"];
        assert!(known.iter().any(|top| text.starts_with(top)), "{text}");
        // Empty files are what engines mount over.
        let program = meta.is_file()
            && meta.len() > 0
            && meta.mode() & 0o111 != 0
            && !text.starts_with("lib")
            && !text.contains("/lib");
        assert!(!program || text == "usr/local/bin/levers9-controlplane", "{text} can be run");
        let own = text == "var/lib/levers9";
        assert_eq!(meta.uid(), if own { 65532 } else { 0 }, "{text}");
    }
}

#[test]
fn they_trust_what_debian_trusts() {
    let images = images();
    for image in [&images.worker, &images.controlplane] {
        let bundle = image.root.join("etc/ssl/certs/ca-certificates.crt");
        let bundle = fs::read_to_string(bundle).expect("certificates of CAs");
        let count = bundle.matches("-----BEGIN CERTIFICATE-----").count();
        assert!(count > 100, "only {count} certificates");
    }
}

#[test]
fn they_are_as_small_as_is_promised() {
    let images = images();
    let (worker, controlplane) = (megabytes(&images.worker), megabytes(&images.controlplane));
    let most = if has("mmdebstrap") { WORKER_MB } else { PUBLIC_MB };
    assert!((30..=most).contains(&worker), "the worker image holds {worker} MB");
    assert!((10..=CONTROLPLANE_MB).contains(&controlplane), "the controlplane image holds {controlplane} MB");
}

#[test]
fn what_is_missing_is_said_before_anything_is_built() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/docker/build");
    let refused = |args: &[&str], engine: &str| {
        let mut build = Command::new(&script);
        build.args(args).env("ENGINE", engine);
        Output::of(build).with_code(1).stderr
    };
    let folder = tempfile::tempdir().expect("an empty folder");
    let folder = folder.path().to_str().expect("a path in UTF-8");
    assert!(refused(&[], "").contains("usage: deploy/docker/build FOLDER"));
    assert!(refused(&["/nowhere"], "").contains("usage: deploy/docker/build FOLDER"));
    assert!(refused(&[folder], "podman").contains("ENGINE=podman is neither docker nor buildah"));
    let none = refused(&[folder], "");
    assert!(none.contains("levers9-agent is not there") && none.contains("hint: build it first"), "{none}");
}
