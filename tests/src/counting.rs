//! A job that counts until it is told to end, by which it is seen whether any
//! of its output is lost, doubled or late.

use std::time::Duration;

use crate::{Live, World};

/// The longest it may take to begin, and to end.
const SOON: Duration = Duration::from_secs(40);
const SCRIPT: &str = "i=0; while [ ! -e enough ]; do i=$((i+1)); echo $i; sleep 0.05; done; echo over";

/// A job that counts, and who follows it.
#[derive(Debug)]
pub struct Counting<'w> {
    world: &'w World,
    live: Live,
}

impl<'w> Counting<'w> {
    /// Starts it with options of `run`, and waits until it counts.
    #[must_use]
    pub fn start(world: &'w World, options: &[&str]) -> Self {
        let live = world.cli_spawn(&[&["run"], options, &["--", "sh", "-c", SCRIPT]].concat());
        live.wait_text("it counts", SOON, |text| text.contains("\n3\n"));
        Self { world, live }
    }

    /// Waits until it has counted on by so much.
    pub fn wait_more(&self, more: usize) {
        let before = self.live.text().lines().count();
        self.live.wait_text("it counts on", SOON, |text| text.lines().count() > before + more);
    }

    /// Ends it by a command in its container.
    ///
    /// # Panics
    /// When a number is missing or comes twice, or it does not end well.
    pub fn end(mut self) {
        let containers = self.world.cli(&["container", "list", "--format", "json"]).ok().json();
        let running = containers.as_array().into_iter().flatten().find(|c| c["state"] == "running");
        let id = running.and_then(|c| c["id"].as_str()).expect("its container runs").to_owned();
        // The container, and this command with it, may be gone before its end is told.
        let told = self.world.cli(&["exec", &id, "--", "touch", "enough"]);
        assert!(matches!(told.code, 0 | 137), "{}", told.stderr);
        assert_eq!(self.live.wait(SOON), 0, "{}", self.live.shown());
        let text = self.live.text();
        let lines: Vec<&str> = text.lines().collect();
        let (last, numbers) = lines.split_last().expect("lines");
        assert_eq!(*last, "over");
        for (at, line) in numbers.iter().enumerate() {
            assert_eq!(*line, (at + 1).to_string(), "line {at}");
        }
    }
}
