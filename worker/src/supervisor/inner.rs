//! The inner supervisor: runs the command, passes signals on, reaps orphans,
//! and when the command has ended or the worker is gone kills everything
//! that is left, then writes the outcome.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::launch;
use super::protocol::{self, Command, Ending, Order, Outcome, Report};
use crate::proc;

/// How long processes may resist SIGKILL before the supervisor gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Signals sent to the supervisor that are passed on to the command.
const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// What the inner supervisor can count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// It is process 1 of a namespace and has mounts of its own.
    PidAndMounts,
    /// It is process 1 of a namespace.
    Pid,
    /// It is an ordinary process that inherits its descendants' orphans.
    Plain,
}

impl Mode {
    /// The argument that stands for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::PidAndMounts => "inner-pid-mounts",
            Self::Pid => "inner-pid",
            Self::Plain => "inner-plain",
        }
    }

    /// The mode an argument stands for.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        [Self::PidAndMounts, Self::Pid, Self::Plain].into_iter().find(|mode| mode.word() == word)
    }
}

/// Runs the command of one container; returns the exit code.
pub(super) fn run(folder: &Path, mode: Mode) -> i32 {
    let outcome = prepare(mode).and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(supervise(mode))
    });
    let ending = match outcome {
        Ok(Some(ending)) => ending,
        // The worker left before it said what to run.
        Ok(None) => return 0,
        Err(error) => {
            let words = format!("the supervisor cannot work: {error}");
            Ending { outcome: Outcome::StartFailed { words }, stuck: kill_everything(mode) }
        }
    };
    i32::from(ending.write(folder).is_err())
}

fn prepare(mode: Mode) -> io::Result<()> {
    SigSet::empty().thread_set_mask()?;
    setsid()?;
    match mode {
        Mode::PidAndMounts => {
            // Without a /proc of its own the command sees the machine's. Never
            // mount before the machine is shielded from it.
            let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
            if mount(None::<&str>, "/", None::<&str>, slave, None::<&str>).is_ok() {
                let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
                let _machines = mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>);
            }
        }
        Mode::Pid => {}
        Mode::Plain => set_child_subreaper(true)?,
    }
    Ok(())
}

async fn supervise(mode: Mode) -> io::Result<Option<Ending>> {
    let socket = std::os::unix::net::UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let (orders, mut reports) = UnixStream::from_std(socket)?.into_split();
    let mut orders = BufReader::new(orders).lines();
    let Some(line) = orders.next_line().await? else { return Ok(None) };
    let Order::Run(command) = serde_json::from_str(&line)? else {
        return Err(io::Error::other("the first order is not to run a command"));
    };
    let mut children = signal(SignalKind::child())?;
    let mut forwarded = Forwarded::catch()?;
    let pid = match join_and_start(&command) {
        Ok(pid) => pid,
        Err(outcome) => return Ok(Some(Ending { outcome, stuck: kill_everything(mode) })),
    };
    // When the worker is gone the loop below learns it from the same socket.
    let _gone = reports.write_all(&protocol::line(&Report::Started { pid: pid.as_raw() })?).await;

    let outcome = loop {
        if let Some(outcome) = reap(pid) {
            break Some(outcome);
        }
        tokio::select! {
            _ = children.recv() => {}
            caught = forwarded.next() => { let _gone = killpg(pid, caught); }
            order = next_order(&mut orders) => match order {
                Some(Order::Terminate) => { let _gone = killpg(pid, Signal::SIGTERM); }
                Some(Order::Run(_)) => {}
                Some(Order::Kill) | None => break None,
            },
        }
    };
    // The group first: it is known without looking.
    let _gone = killpg(pid, Signal::SIGKILL);
    let outcome = outcome.unwrap_or_else(|| await_killed(pid));
    Ok(Some(Ending { outcome, stuck: kill_everything(mode) }))
}

/// The next order; `None` when the worker is gone or talks nonsense.
async fn next_order(orders: &mut Lines<BufReader<OwnedReadHalf>>) -> Option<Order> {
    let line = orders.next_line().await.ok()??;
    serde_json::from_str(&line).ok()
}

fn join_and_start(command: &Command) -> Result<Pid, Outcome> {
    for procs in &command.cgroups {
        fs::write(procs, "0").map_err(|error| {
            let words = format!("cannot enter the control group {}: {error}", procs.display());
            Outcome::StartFailed { words }
        })?;
    }
    let child = launch::start(command)?;
    i32::try_from(child.id())
        .map(Pid::from_raw)
        .map_err(|_| Outcome::StartFailed { words: format!("process number {} is out of range", child.id()) })
}

/// The signals that are passed on, as they come.
struct Forwarded(Vec<(Signal, tokio::signal::unix::Signal)>);

impl Forwarded {
    /// Catches what is passed on, and what this process was told to ignore: a
    /// signal that is caught here is back to its default in the command, one
    /// that is ignored would stay ignored.
    fn catch() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for number in ignored_signals(&status) {
            // A few cannot be caught; those cannot be ignored by accident either.
            let _uncatchable = signal(SignalKind::from_raw(number));
        }
        let catch = |one: Signal| Ok((one, signal(SignalKind::from_raw(one as i32))?));
        FORWARDED.into_iter().map(catch).collect::<io::Result<_>>().map(Self)
    }

    async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let mut caught = self
                .0
                .iter_mut()
                .filter_map(|(signal, stream)| stream.poll_recv(context).is_ready().then_some(*signal));
            caught.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The signals below the real-time ones that a process ignores, SIGPIPE left
/// out: the standard library puts that back itself.
fn ignored_signals(status: &str) -> Vec<i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    (1..=31).filter(|number| mask >> (number - 1) & 1 == 1 && *number != Signal::SIGPIPE as i32).collect()
}

/// Reaps everything that is dead; the outcome when the command is among it.
fn reap(command: Pid) -> Option<Outcome> {
    let mut outcome = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => outcome = Some(Outcome::Exited { code }),
            Ok(WaitStatus::Signaled(pid, by, _)) if pid == command => {
                outcome = Some(Outcome::Signaled { signal: by as i32 });
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return outcome,
            // A real-time signal, which nix has no name for.
            Err(Errno::EINVAL) if kill(command, None) == Err(Errno::ESRCH) && outcome.is_none() => {
                outcome = Some(Outcome::Lost { words: "killed by a real-time signal".to_owned() });
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// Kills the command itself, which may have left its group, and waits for it.
fn await_killed(command: Pid) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Not reaped yet, so the number is still its own.
        let _dead = kill(command, Signal::SIGKILL);
        if let Some(outcome) = reap(command) {
            return outcome;
        }
        if Instant::now() > deadline {
            return Outcome::Lost { words: format!("process {command} does not die of SIGKILL") };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills every process of the container but this one. In a namespace that is
/// one call, and what it misses dies with process 1.
fn kill_everything(mode: Mode) -> Vec<i32> {
    let reap_all =
        || while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(s) if s != WaitStatus::StillAlive) {};
    if mode == Mode::Plain {
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        return proc::kill_until_gone(|| proc::descendants(own), reap_all, PATIENCE);
    }
    // No such process: there is nothing to kill.
    let _none = kill(Pid::from_raw(-1), Signal::SIGKILL);
    reap_all();
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_mask_of_ignored_signals() {
        let status = "Name:\tx\nSigIgn:\t0000000180001007\nSigCgt:\t0\n";
        assert_eq!(ignored_signals(status), [1, 2, 3]);
        assert_eq!(ignored_signals(""), Vec::<i32>::new());
    }

    #[test]
    fn modes_have_words() {
        for mode in [Mode::PidAndMounts, Mode::Pid, Mode::Plain] {
            assert_eq!(Mode::from_word(mode.word()), Some(mode));
        }
        assert_eq!(Mode::from_word("outer"), None);
    }
}
