//! The outer supervisor: makes namespaces where it may, starts the inner
//! one, waits, kills what is left and sees that there is an outcome. It uses
//! no thread and no runtime: after `unshare` of the PID namespace a process
//! may not start threads any more.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::SigSet;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use super::WORD;
use super::inner::Mode;
use super::protocol::{self, Ending, Outcome, Report};
use crate::proc;

/// How long what is left after the inner supervisor may resist SIGKILL.
const PATIENCE: Duration = Duration::from_secs(10);

/// Supervises one container; returns the exit code.
pub(super) fn run(folder: &Path, namespaces: bool) -> i32 {
    close_inherited();
    // Signals are the worker's business: it says over stdin what is to end.
    // The inner supervisor clears the mask it inherits.
    let _kept = SigSet::all().thread_block();
    let _unsupported = set_child_subreaper(true);
    let mode = if namespaces { enter_namespaces() } else { Mode::Plain };
    let ending = match start_inner(folder, mode) {
        Err(error) => Some(Outcome::StartFailed { words: format!("cannot start the supervisor: {error}") }),
        Ok(mut inner) => {
            report(&inner);
            inner.wait().map_or_else(|error| Some(lost(&error.to_string())), unexpected)
        }
    };
    // A PID namespace is empty once its first process is gone.
    let stuck = if mode == Mode::Plain {
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        proc::kill_until_gone(|| proc::descendants(own), reap, PATIENCE)
    } else {
        Vec::new()
    };
    match (Ending::read(folder), ending) {
        (Ok(Some(_)), _) => 0,
        (_, outcome) => {
            let outcome = outcome.unwrap_or_else(|| lost("the inner supervisor left no outcome"));
            i32::from(Ending { outcome, stuck }.write(folder).is_err())
        }
    }
}

/// Closes whatever the process that started the worker leaked into it.
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // The folder's own descriptor was among them and is closed already.
        let _gone = nix::unistd::close(fd);
    }
}

fn enter_namespaces() -> Mode {
    if unshare(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS).is_ok() {
        Mode::PidAndMounts
    } else if unshare(CloneFlags::CLONE_NEWPID).is_ok() {
        Mode::Pid
    } else {
        Mode::Plain
    }
}

fn start_inner(folder: &Path, mode: Mode) -> std::io::Result<Child> {
    std::process::Command::new("/proc/self/exe")
        .arg0("levers9-init")
        .args([WORD, mode.word()])
        .arg(folder)
        .env_clear()
        .spawn()
}

fn report(inner: &Child) {
    let Ok(pid) = i32::try_from(inner.id()) else { return };
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { return };
    if let Ok(line) = protocol::line(&Report::Inner { pid }) {
        // A worker that is gone does not read it, and the inner one ends then.
        let _gone = UnixStream::from(socket).write_all(&line);
    }
}

/// The outcome to write when the inner supervisor has written none.
fn unexpected(status: ExitStatus) -> Option<Outcome> {
    match (status.signal(), status.code()) {
        (Some(signal), _) => Some(lost(&format!("the container's init was killed by signal {signal}"))),
        (None, Some(0)) => None,
        (None, code) => Some(lost(&format!("the container's init failed with code {}", code.unwrap_or(-1)))),
    }
}

fn lost(words: &str) -> Outcome {
    Outcome::Lost { words: words.to_owned() }
}

fn reap() {
    while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(status) if status != WaitStatus::StillAlive)
    {
    }
}
