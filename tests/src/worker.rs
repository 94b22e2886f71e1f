//! A `levers9-worker` process that can be killed, stopped and started again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::controlplane::{logged, read};
use crate::live::{Signal, tail};
use crate::{Home, Live, wait};

const STOP: Duration = Duration::from_secs(40);

/// A worker of a world, with a data folder of its own.
#[derive(Debug)]
pub struct Worker {
    /// Its id.
    pub id: String,
    home: Arc<Home>,
    name: String,
    address: String,
    token: String,
    extra: Vec<String>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    live: Option<Live>,
    starts: u32,
}

impl Worker {
    /// The worker of an enrolment; not started yet. `address` is where it dials.
    pub(crate) fn new(home: Arc<Home>, name: &str, enrolment: &Value, address: &str, extra: &[&str]) -> Self {
        let text = |key: &str| enrolment[key].as_str().expect("an enrolment has text fields").to_owned();
        Self {
            id: text("worker"),
            home,
            name: name.to_owned(),
            address: address.to_owned(),
            token: text("token"),
            extra: extra.iter().map(|arg| (*arg).to_owned()).collect(),
            inner: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it: as the same worker with the same data, when it ran before.
    /// It need not be connected yet; see [`crate::World::wait_worker`].
    ///
    /// # Panics
    /// When it runs already.
    pub fn start(&self) {
        let mut inner = self.inner();
        assert!(inner.live.is_none(), "the worker {} runs already", self.name);
        inner.starts += 1;
        let mut command = self.home.command("levers9-worker", &["--allow-unisolated", "--controlplane"]);
        command.arg(&self.address).arg("--data").arg(self.data()).arg("--state").arg(self.folder("state"));
        command.args(&self.extra).env("LEVERS9_WORKER_TOKEN", &self.token);
        inner.live = Some(logged(command, &self.log_of(inner.starts)));
    }

    /// Kills it at once.
    pub fn kill9(&self) {
        if let Some(mut live) = self.inner().live.take() {
            live.kill9();
        }
    }

    /// Stops it in order (SIGTERM) and returns its exit code.
    ///
    /// # Panics
    /// When it does not run or does not stop.
    pub fn terminate(&self) -> i32 {
        let mut live = self.inner().live.take().expect("the worker runs");
        live.signal(Signal::SIGTERM);
        live.wait(STOP)
    }

    /// Sends it a signal, such as `SIGSTOP`.
    pub fn signal(&self, signal: Signal) {
        if let Some(live) = &mut self.inner().live {
            live.signal(signal);
        }
    }

    /// How it ended, if it has by itself.
    #[must_use]
    pub fn poll(&self) -> Option<i32> {
        self.inner().live.as_mut().and_then(Live::poll)
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.inner().live.as_ref().expect("the worker runs").pid()
    }

    /// The folder of its containers.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder("data")
    }

    /// All it has logged, of all starts.
    #[must_use]
    pub fn log(&self) -> String {
        let starts = self.inner().starts;
        (1..=starts).map(|start| read(&self.log_of(start))).collect()
    }

    /// Waits until its log contains some words.
    ///
    /// # Panics
    /// When it does not within that time.
    pub fn wait_log(&self, words: &str, within: Duration) {
        wait::until(&format!("{words:?} in the log of worker {}", self.name), within, || {
            let log = self.log();
            if log.contains(words) { Ok(()) } else { Err(tail(&log, 2000).to_owned()) }
        });
    }

    fn folder(&self, what: &str) -> PathBuf {
        self.base().join(format!("worker-{}-{what}", self.name))
    }

    fn log_of(&self, start: u32) -> PathBuf {
        self.base().join(format!("worker-{}-{start}.log", self.name))
    }

    fn base(&self) -> &Path {
        self.home.path()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            crate::live::show(&format!(
                "--- the end of the log of worker {}:\n{}",
                self.name,
                tail(&self.log(), 3000)
            ));
        }
    }
}
