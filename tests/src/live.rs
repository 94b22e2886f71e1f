//! A process that runs beside the test, with what it has written so far.

use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::{wait, watchdog};

/// A running process in a group of its own, killed when this is dropped.
#[derive(Debug)]
pub struct Live {
    what: String,
    child: Child,
    status: Option<ExitStatus>,
    stdout: Collected,
    stderr: Collected,
}

#[derive(Debug)]
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collected {
    fn from(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&bytes);
        let reader = pipe.map(|mut pipe| {
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                    to.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..n]);
                }
            })
        });
        Self { bytes, reader }
    }

    fn held(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    /// Starts a command; standard output and error are collected unless they
    /// were sent elsewhere by [`Live::spawn_as_is`].
    #[must_use]
    pub fn spawn(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn_as_is(command)
    }

    /// Starts a command with the outputs it was given.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn spawn_as_is(mut command: Command) -> Self {
        let program = command.get_program().to_string_lossy().into_owned();
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        let what = format!("{} {}", program.rsplit('/').next().unwrap_or(&program), args.join(" "));
        command.process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
        watchdog::watch(child.id());
        let (stdout, stderr) = (Collected::from(child.stdout.take()), Collected::from(child.stderr.take()));
        Self { what, child, status: None, stdout, stderr }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output so far.
    #[must_use]
    pub fn stdout(&self) -> Vec<u8> {
        self.stdout.held().clone()
    }

    /// How much it has written to standard output so far.
    #[must_use]
    pub fn stdout_len(&self) -> usize {
        self.stdout.held().len()
    }

    /// What it has written to standard output so far, as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout.held()).into_owned()
    }

    /// What it has written to standard error so far.
    #[must_use]
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr.held()).into_owned()
    }

    /// Sends a signal to the process alone. One that has ended is left alone.
    pub fn signal(&mut self, signal: Signal) {
        if self.poll().is_none() {
            // It may end at this moment.
            let _ended = kill(pid(&self.child), signal);
        }
    }

    /// Kills the process alone, at once, and waits for its end.
    ///
    /// # Panics
    /// When the system does not end it.
    pub fn kill9(&mut self) {
        self.signal(Signal::SIGKILL);
        if self.status.is_none() {
            let status = self.child.wait().expect("its end can be waited for");
            self.ended(status);
        }
    }

    /// How it ended, if it has: its exit code, or 128 + the signal.
    pub fn poll(&mut self) -> Option<i32> {
        if self.status.is_none()
            && let Some(status) = self.child.try_wait().expect("its state can be asked")
        {
            self.ended(status);
        }
        self.status.map(code)
    }

    fn ended(&mut self, status: ExitStatus) {
        self.status = Some(status);
        watchdog::forget(self.child.id());
    }

    /// Waits for its end and returns its exit code, or 128 + the signal. All
    /// it wrote has been read then.
    ///
    /// # Panics
    /// When it has not ended within that time, with what it wrote.
    pub fn wait(&mut self, within: Duration) -> i32 {
        let what = format!("the end of `{}`", self.what);
        let code = wait::until(&what, within, || self.poll().ok_or_else(|| self.shown()));
        for reader in [self.stdout.reader.take(), self.stderr.reader.take()].into_iter().flatten() {
            // A panic in it has nothing to say; what it read is there.
            let _read = reader.join();
        }
        code
    }

    /// Waits until its standard output, as text, is as wanted.
    ///
    /// # Panics
    /// When it is not within that time, with what it wrote.
    pub fn wait_text(&self, what: &str, within: Duration, mut wanted: impl FnMut(&str) -> bool) {
        wait::until(&format!("{what}, from `{}`", self.what), within, || {
            if wanted(&self.text()) { Ok(()) } else { Err(self.shown()) }
        });
    }

    /// Waits until its standard error contains some words.
    ///
    /// # Panics
    /// When it does not within that time, with what it wrote.
    pub fn wait_errors(&self, words: &str, within: Duration) {
        wait::until(&format!("{words:?} on standard error of `{}`", self.what), within, || {
            if self.errors().contains(words) { Ok(()) } else { Err(self.shown()) }
        });
    }

    /// What to show of it in a failure.
    #[must_use]
    pub fn shown(&self) -> String {
        let state = self.status.map_or("running".to_owned(), |status| status.to_string());
        format!(
            "`{}` ({state})\n--- stdout, the end of {} bytes:\n{}\n--- stderr:\n{}",
            self.what,
            self.stdout_len(),
            tail(&self.text(), 600),
            tail(&self.errors(), 1500)
        )
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a process id"))
}

fn code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).expect("an exit code or a signal")
}

/// The last part of a text.
#[must_use]
pub fn tail(text: &str, bytes: usize) -> &str {
    let start = (text.len().saturating_sub(bytes)..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[start.unwrap_or(0)..]
}

/// Shows something beside a failure, also from a thread that is no test's own.
pub(crate) fn show(text: &str) {
    use std::io::Write as _;
    let _closed = writeln!(std::io::stderr(), "{text}");
}
