//! The inner supervisor: runs the command, passes signals on, reaps orphans,
//! starts the execs, and when the command has ended or the worker is gone kills
//! everything that is left, then writes the outcome.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::unistd::{Pid, setsid};
use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::channel::{self, LineRecv, LineSend};
use super::execs::Execs;
use super::launch;
use super::protocol::{Command, Ending, Order, Outcome, Report};
use crate::proc;

/// How long processes may resist SIGKILL before the supervisor gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the last reports may take.
const LAST_REPORTS: Duration = Duration::from_millis(200);
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
    let (mut reports, mut orders) = channel::split(socket)?;
    let command = match orders.next().await? {
        Some(Order::Run(command)) => command,
        Some(_) => return Err(io::Error::other("the first order is not to run a command")),
        None => return Ok(None),
    };
    let children = signal(SignalKind::child())?;
    let forwarded = Forwarded::catch()?;
    let pid = match join_and_start(&command) {
        Ok(pid) => pid,
        Err(outcome) => return Ok(Some(Ending { outcome, stuck: kill_everything(mode) })),
    };
    reports.queue(&Report::Started { pid: pid.as_raw() }, Vec::new())?;
    let container = Container { pid, children, forwarded, orders, reports, execs: Execs::new() };
    let outcome = container.keep().await?;
    // The group first: it is known without looking.
    let _gone = killpg(pid, Signal::SIGKILL);
    let outcome = outcome.unwrap_or_else(|| await_killed(pid));
    Ok(Some(Ending { outcome, stuck: kill_everything(mode) }))
}

/// What runs, and who is to be listened to meanwhile.
struct Container {
    pid: Pid,
    children: tokio::signal::unix::Signal,
    forwarded: Forwarded,
    orders: LineRecv,
    reports: LineSend,
    execs: Execs,
}

impl Container {
    /// Serves the container until its command has ended, or it is to be
    /// killed (`None`). The reports in line are bounded by the execs there are.
    async fn keep(mut self) -> io::Result<Option<Outcome>> {
        loop {
            let dead = reap();
            let reports: Vec<_> =
                dead.iter().filter_map(|(pid, outcome)| self.execs.ended(*pid, outcome)).collect();
            reports.into_iter().try_for_each(|report| self.reports.queue(&report, Vec::new()))?;
            if let Some((_, outcome)) = dead.into_iter().find(|(pid, _)| *pid == self.pid) {
                // How the execs ended is still to be told, if it can be at once.
                let _late = tokio::time::timeout(LAST_REPORTS, self.reports.flush()).await;
                return Ok(Some(named(outcome)));
            }
            let due = self.execs.due();
            let look = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.children.recv() => {}
                caught = self.forwarded.next() => { let _gone = killpg(self.pid, caught); }
                flushed = self.reports.flush(), if self.reports.has_pending() => if flushed.is_err() {
                    // The worker is gone: the orders end, too.
                    self.reports.clear();
                },
                // One that talks nonsense is as good as gone.
                order = self.orders.next() => match order.ok().flatten() {
                    Some(Order::Kill) | None => return Ok(None),
                    Some(order) => self.obey(order)?,
                },
                () = look => self.execs.look(Instant::now()),
            }
        }
    }

    fn obey(&mut self, order: Order) -> io::Result<()> {
        match order {
            Order::Terminate => {
                let _gone = killpg(self.pid, Signal::SIGTERM);
            }
            Order::Exec { id } => {
                if let Some(report) = self.execs.start(id, self.orders.descriptor()) {
                    self.reports.queue(&report, Vec::new())?;
                }
            }
            Order::ExecSignal { id, signal } => self.execs.signal(id, signal),
            Order::ExecHangUp { id } => self.execs.hang_up(id, Instant::now()),
            Order::ExecForget { id } => self.execs.forget(id),
            Order::Run(_) | Order::Kill => {}
        }
        Ok(())
    }
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

/// Reaps everything that is dead.
fn reap() -> Vec<(Pid, Outcome)> {
    let mut dead = Vec::new();
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        let outcome = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Outcome::Exited { code },
            (None, Some(signal)) => Outcome::Signaled { signal },
            (None, None) => continue,
        };
        dead.push((Pid::from_raw(pid.as_raw_nonzero().get()), outcome));
    }
    dead
}

/// A real-time signal has no name that could be told.
fn named(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Signaled { signal } if Signal::try_from(signal).is_err() => {
            Outcome::Lost { words: "killed by a real-time signal".to_owned() }
        }
        other => other,
    }
}

/// Kills the command itself, which may have left its group, and waits for it.
fn await_killed(command: Pid) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Not reaped yet, so the number is still its own.
        let _dead = kill(command, Signal::SIGKILL);
        if let Some((_, outcome)) = reap().into_iter().find(|(pid, _)| *pid == command) {
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
    let reap_all = || drop(reap());
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
