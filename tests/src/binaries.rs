//! Where the binaries under test are: beside the test executable, or above it.

use std::path::PathBuf;

/// The path of `levers9`, `levers9-controlplane` or `levers9-worker`.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    let binary = folder().join(name);
    assert!(binary.is_file(), "{} is not there: run `cargo build --workspace` first", binary.display());
    binary
}

/// The paths of all that are there.
///
/// # Panics
/// When their folder cannot be read.
#[must_use]
pub fn all() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).expect("the folder of the binaries can be read");
    let ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        path.is_file() && name.starts_with("levers9") && !name.contains('.')
    };
    entries.flatten().map(|entry| entry.path()).filter(ours).collect()
}

fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own path");
    // target/debug/deps/faults-0123456789abcdef, or a binary of the tests, target/debug/levers9-test-lab.
    let folder = test.parent().expect("a file is in a folder");
    let above = folder.parent().filter(|_| folder.ends_with("deps"));
    above.unwrap_or(folder).to_owned()
}
