//! A person's home: where the command keeps its contexts, and from where it is
//! started. Nothing of the real environment but `PATH` is passed on.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::live::tail;
use crate::{Live, binaries, watchdog};

/// The longest a command may take that is waited for.
const COMMAND: Duration = Duration::from_secs(60);

/// A temporary folder to live in, removed at the end.
#[derive(Debug)]
pub struct Home {
    folder: Option<TempDir>,
    path: PathBuf,
    /// What the programs started from here take for `/etc/hosts`.
    hosts: Option<PathBuf>,
}

/// Runs a program in a mount namespace where a file is `/etc/hosts`.
const WITH_HOSTS: &str = r#"mount --bind "$0" /etc/hosts && exec "$@""#;

impl Home {
    /// A new one.
    ///
    /// # Panics
    /// When there is no room for it.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("levers9-test-").tempdir().expect("a temporary folder");
        watchdog::watch_folder(folder.path());
        let path = folder.path().to_owned();
        std::fs::create_dir(path.join("home")).expect("a home folder");
        Self { folder: Some(folder), path, hosts: None }
    }

    /// A new one whose programs know the names of [`Home::resolve`], and no others.
    ///
    /// # Panics
    /// When there is no room for it.
    #[must_use]
    pub fn with_names() -> Self {
        let mut home = Self::new();
        let hosts = home.path.join("hosts");
        std::fs::write(&hosts, "127.0.0.1 localhost\n").expect("a hosts file");
        home.hosts = Some(hosts);
        home
    }

    /// From now on a name leads to these addresses, also for what runs.
    ///
    /// # Panics
    /// When this home has no names of its own.
    pub fn resolve(&self, name: &str, addresses: &[IpAddr]) {
        let hosts = self.hosts();
        let lines: String = addresses.iter().map(|address| format!("{address} {name}\n")).collect();
        // In place: the file itself is what others have mounted.
        std::fs::write(hosts, format!("127.0.0.1 localhost\n{lines}")).expect("the hosts file");
    }

    /// Its folder; the home folder is `home` in it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file with the names of [`Home::resolve`].
    ///
    /// # Panics
    /// When this home has no names of its own.
    #[must_use]
    pub fn hosts(&self) -> &Path {
        self.hosts.as_ref().expect("a home with names")
    }

    /// One of the binaries, to be started from here.
    #[must_use]
    pub fn command(&self, binary: &str, args: &[&str]) -> Command {
        let binary = binaries::path(binary);
        let mut command = match &self.hosts {
            None => Command::new(binary),
            Some(hosts) => {
                let mut command = Command::new("unshare");
                if !nix::unistd::geteuid().is_root() {
                    command.arg("--map-root-user");
                }
                command.args(["--mount", "--", "sh", "-c", WITH_HOSTS]).arg(hosts).arg(binary);
                command
            }
        };
        command.args(args).stdin(Stdio::null()).current_dir(&self.path);
        command.env_clear().env("HOME", self.path.join("home")).env("TMPDIR", &self.path);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// Runs `levers9` with arguments to its end.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> Output {
        Output::of(self.command("levers9", args))
    }

    /// Starts `levers9` with arguments.
    #[must_use]
    pub fn cli_spawn(&self, args: &[&str]) -> Live {
        Live::spawn(self.command("levers9", args))
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let Some(folder) = self.folder.take() else { return };
        // Supervisors of killed workers clear up while this removes.
        let path = folder.keep();
        for _ in 0..20 {
            if std::fs::remove_dir_all(&path).is_ok() || !path.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// What a command that has ended left.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command line, for failures.
    pub what: String,
    /// Its exit code, or 128 + the signal that ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Runs a command to its end.
    ///
    /// # Panics
    /// When it does not end within a minute.
    #[must_use]
    pub fn of(command: Command) -> Self {
        let what = format!("{:?}", command.get_args().collect::<Vec<_>>());
        let mut live = Live::spawn(command);
        let code = live.wait(COMMAND);
        Self { what, code, stdout: live.stdout(), stderr: live.errors() }
    }

    /// Itself, when the exit code is 0.
    ///
    /// # Panics
    /// When it is another.
    #[must_use]
    #[track_caller]
    pub fn ok(self) -> Self {
        self.with_code(0)
    }

    /// Itself, when the exit code is this one.
    ///
    /// # Panics
    /// When it is another.
    #[must_use]
    #[track_caller]
    pub fn with_code(self, code: i32) -> Self {
        assert!(
            self.code == code,
            "{} ended with {}, not {code}\n--- stdout:\n{}\n--- stderr:\n{}",
            self.what,
            self.code,
            tail(&self.text(), 1500),
            self.stderr
        );
        self
    }

    /// Standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard output as one JSON value.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| {
            panic!("{} printed no JSON ({error}):\n{}\n{}", self.what, self.text(), self.stderr)
        })
    }

    /// Standard output as one JSON value per line.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        let parse = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error}: {line}", self.what))
        };
        self.text().lines().map(parse).collect()
    }
}
