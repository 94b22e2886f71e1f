//! Somebody with a token and an address of their own and nothing stored: who
//! comes to a controlplane beside the admin that a [`World`] is logged in as.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::{Home, Live, Output, World, wait};

/// A person at a home of their own.
#[derive(Debug)]
pub struct Person {
    /// From where their commands are run.
    pub home: Home,
    address: String,
    token: String,
    kubeconfig: Option<PathBuf>,
}

impl Person {
    /// Somebody who dials an address with a token.
    #[must_use]
    pub fn new(address: impl Into<String>, token: impl Into<String>) -> Self {
        Self { home: Home::new(), address: address.into(), token: token.into(), kubeconfig: None }
    }

    /// Somebody with a token for a world.
    #[must_use]
    pub fn of(world: &World, token: impl Into<String>) -> Self {
        Self::new(world.controlplane.address(), token)
    }

    /// Somebody in the first workspace, with a new token of a kind.
    #[must_use]
    pub fn of_kind(world: &World, kind: &str) -> Self {
        Self::of(world, world.new_token(kind).1)
    }

    /// Somebody in a new workspace, who is no admin of the platform.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn in_workspace(world: &World, name: &str) -> Self {
        let made = world.cli(&["workspace", "create", name, "--format", "json"]).ok().json();
        Self::of(world, made["token"].as_str().expect("a token"))
    }

    /// The same with a kubeconfig as well.
    #[must_use]
    pub fn with_kubeconfig(mut self, kubeconfig: PathBuf) -> Self {
        self.kubeconfig = Some(kubeconfig);
        self
    }

    /// What they dial.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// `levers9` with arguments, to be started.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command("levers9", args);
        command.env("LEVERS9_ADDRESS", &self.address).env("LEVERS9_TOKEN", &self.token);
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        command
    }

    /// Runs `levers9` with arguments to its end.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> Output {
        Output::of(self.command(args))
    }

    /// Starts `levers9` with arguments.
    #[must_use]
    pub fn cli_spawn(&self, args: &[&str]) -> Live {
        Live::spawn(self.command(args))
    }

    /// What `levers9 … --format json` prints.
    #[must_use]
    pub fn json(&self, args: &[&str]) -> Value {
        self.cli(&[args, &["--format", "json"]].concat()).ok().json()
    }

    /// Submits a shell script as a detached task, with options of `run`, and
    /// returns its id.
    #[must_use]
    pub fn submit_with(&self, options: &[&str], script: &str) -> String {
        let args = [&["run", "--detach"], options, &["--", "sh", "-c", script]].concat();
        self.cli(&args).ok().text().trim().to_owned()
    }

    /// Waits until a task has a status as they see it.
    ///
    /// # Panics
    /// When it does not within that time, or they do not see it.
    pub fn wait_status(&self, task: &str, status: &str, within: Duration) {
        wait::until(&format!("task {task} is {status}"), within, || {
            let shown = self.json(&["task", "show", task]);
            if shown["status"] == status { Ok(()) } else { Err(format!("{shown:#}")) }
        });
    }
}
