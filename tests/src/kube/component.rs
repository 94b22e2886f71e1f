//! One process of the control plane, with a log of its own for each start.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::assets;
use crate::Live;
use crate::controlplane::{logged, read};
use crate::live::tail;

/// A component that can be stopped and started again.
#[derive(Debug)]
pub(super) struct Component {
    name: &'static str,
    folder: PathBuf,
    live: Option<Live>,
    starts: u32,
}

impl Component {
    /// One that has its logs in a folder; not started yet.
    pub(super) fn new(name: &'static str, folder: &Path) -> Self {
        Self { name, folder: folder.to_owned(), live: None, starts: 0 }
    }

    /// Starts it.
    pub(super) fn start(&mut self, args: &[String]) {
        assert!(self.live.is_none(), "{} runs already", self.name);
        self.starts += 1;
        let mut command = Command::new(assets::path(self.name));
        command.args(args).stdin(Stdio::null()).current_dir(&self.folder).env_clear();
        self.live = Some(logged(command, &self.log_of(self.starts)));
    }

    /// Kills it at once; one that does not run is left alone.
    pub(super) fn kill9(&mut self) {
        if let Some(mut live) = self.live.take() {
            live.kill9();
        }
    }

    /// How it ended by itself, with the end of its log.
    pub(super) fn ended(&mut self) -> Option<String> {
        let code = self.live.as_mut()?.poll()?;
        Some(format!("{} has ended with {code}: {}", self.name, self.said()))
    }

    /// The end of what it has logged since its last start.
    pub(super) fn said(&self) -> String {
        tail(&read(&self.log_of(self.starts)), 3000).to_owned()
    }

    fn log_of(&self, start: u32) -> PathBuf {
        self.folder.join(format!("{}-{start}.log", self.name))
    }
}
