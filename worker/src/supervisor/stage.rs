//! The stage of an exec: this binary, executed once more by the inner
//! supervisor, for the few calls that stand between a new process and its
//! command: a session of its own, its terminal, its descriptors. It hears over
//! its stdin, a socket, what to become, becomes it, and says so when it cannot.
//! The socket's end is what tells the worker that the command runs.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::SigSet;
use nix::unistd::setsid;
use rustix::process::ioctl_tiocsctty;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::protocol::{self, Exec, Outcome, StageReport};
use super::{channel, launch};

/// Becomes the command; returns an exit code only when that fails.
pub(super) fn run() -> i32 {
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return 1 };
    // Otherwise the worker is gone.
    let Ok(Some((exec, descriptors))) = channel::receive::<Exec>(&socket) else { return 1 };
    let mut worker = File::from(socket);
    let mut say = |report: &StageReport| {
        // Nobody hears it when the worker is gone; this process ends then.
        let _gone = protocol::line(report).and_then(|line| worker.write_all(&line));
    };
    let outcome = match enter(descriptors, exec.terminal) {
        Ok(()) => launch::become_it(&exec.command, || say(&StageReport::Ready)),
        Err(error) => {
            let words = format!("cannot prepare the command's session: {error}");
            Outcome::StartFailed { words }
        }
    };
    say(&StageReport::Failed { outcome });
    1
}

fn enter(descriptors: Vec<OwnedFd>, terminal: bool) -> io::Result<()> {
    let [stdin, stdout, stderr] = &descriptors[..] else {
        return Err(io::Error::other("its descriptors did not come"));
    };
    SigSet::empty().thread_set_mask()?;
    setsid()?;
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    if terminal {
        ioctl_tiocsctty(io::stdin())?;
    }
    Ok(())
}
