//! Where the binaries under test are: beside the test executable.

use std::path::PathBuf;

/// The path of `levers9`, `levers9-controlplane` or `levers9-worker`.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own path");
    // target/debug/deps/faults-0123456789abcdef
    let folder = test.ancestors().nth(2).expect("the test is in target/<profile>/deps");
    let binary = folder.join(name);
    assert!(binary.is_file(), "{} is not there: run `cargo build --workspace` first", binary.display());
    binary
}
