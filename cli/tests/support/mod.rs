//! Runs the real binary with an environment of its own, and shows what it did
//! in a form that is the same on every machine.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A home folder and nothing else in the environment.
pub(crate) struct Home {
    folder: TempDir,
}

/// What a finished command did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Did {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_levers9"));
        command.args(args).env_clear().env("HOME", self.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Did {
        self.did(&self.command(args).output().unwrap())
    }

    /// Runs with variables set and a text on standard input.
    pub(crate) fn run_with(&self, args: &[&str], env: &[(&str, &str)], stdin: &str) -> Did {
        let mut command = self.command(args);
        command.envs(env.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The command may have ended without reading.
        let _unread = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        self.did(&child.wait_with_output().unwrap())
    }

    /// Stores a context for an address.
    pub(crate) fn with_context(self, name: &str, address: &str) -> Self {
        let did = self.run_with(&["config", "create", name, address, "--token-stdin"], &[], &token('a'));
        assert_eq!(did.code, 0, "{}", did.err);
        self
    }

    pub(crate) fn did(&self, output: &Output) -> Did {
        let text = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes)
                .replace(self.path().to_str().unwrap(), "[HOME]")
                .trim_end()
                .to_owned()
        };
        Did { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

/// A token that looks like one.
pub(crate) fn token(letter: char) -> String {
    format!("l9_ws_{}", letter.to_string().repeat(64))
}
