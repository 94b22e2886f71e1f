//! The execs of one container, as its inner supervisor keeps them: starts
//! their stages, signals them, says how they ended, and ends the sessions of
//! those whose caller has gone. What an exec leaves in the background when it
//! ends by itself is not touched: it lives until the container ends.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::time::Instant;

use super::protocol::{Outcome, Report};
use super::{STAGE, WORD};
use crate::proc;

/// How long a session has between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// How often a session that is to end is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long processes may resist SIGKILL before they are left alone.
const PATIENCE: Duration = Duration::from_secs(10);

/// All execs of a container.
#[derive(Debug)]
pub(super) struct Execs {
    /// By id: the command's process, which is its session's first.
    running: HashMap<u64, Pid>,
    /// Those whose command has ended, until the worker has heard it or says
    /// that the caller is gone.
    ended: HashMap<u64, Pid>,
    leaving: Vec<Leaving>,
    /// Processes are found by their session; otherwise only groups are known.
    sessions: bool,
}

/// A session that is to end.
#[derive(Debug)]
struct Leaving {
    session: Pid,
    /// Its first process has not been reaped.
    leader: bool,
    /// When SIGKILL follows.
    kill_at: Instant,
    look_at: Instant,
}

impl Execs {
    pub(super) fn new() -> Self {
        let (running, ended) = (HashMap::new(), HashMap::new());
        Self { running, ended, leaving: Vec::new(), sessions: proc::is_own() }
    }

    /// Starts a stage. What is wrong is a report.
    pub(super) fn start(&mut self, id: u64, socket: Option<OwnedFd>) -> Option<Report> {
        match stage(socket) {
            Ok(pid) => {
                self.running.insert(id, pid);
                None
            }
            Err(error) => {
                let words = format!("cannot start a process for the command: {error}");
                Some(Report::ExecEnded { id, outcome: Outcome::StartFailed { words } })
            }
        }
    }

    pub(super) fn signal(&self, id: u64, signal: i32) {
        if let (Some(pid), Ok(signal)) = (self.running.get(&id), Signal::try_from(signal)) {
            // Not reaped yet, so the number is its own.
            let _gone = killpg(*pid, signal);
        }
    }

    /// Ends the whole session of an exec.
    pub(super) fn hang_up(&mut self, id: u64, now: Instant) {
        let running = self.running.get(&id).copied();
        let Some(session) = running.or_else(|| self.ended.remove(&id)) else { return };
        let leader = running.is_some();
        let leaving = Leaving { session, leader, kill_at: now + GRACE, look_at: now + LOOK_AGAIN };
        // Those that are stopped take no signal before they go on.
        for signal in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGCONT] {
            self.to_all(&leaving, signal);
        }
        self.leaving.push(leaving);
    }

    /// Takes note of a dead process; the report when it was an exec's command.
    pub(super) fn ended(&mut self, pid: Pid, outcome: &Outcome) -> Option<Report> {
        let (id, _) = self.running.iter().find(|(_, running)| **running == pid)?;
        let id = *id;
        self.running.remove(&id);
        match self.leaving.iter_mut().find(|one| one.session == pid) {
            Some(leaving) => leaving.leader = false,
            None => drop(self.ended.insert(id, pid)),
        }
        Some(Report::ExecEnded { id, outcome: outcome.clone() })
    }

    /// Leaves alone what an exec that has ended has left.
    pub(super) fn forget(&mut self, id: u64) {
        self.ended.remove(&id);
    }

    /// When [`Self::look`] is to be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.leaving.iter().map(|one| one.look_at).min()
    }

    /// Kills what is late, and forgets the sessions that are empty.
    pub(super) fn look(&mut self, now: Instant) {
        let leaving = std::mem::take(&mut self.leaving);
        let alive = self.alive(&leaving);
        for mut one in leaving {
            // Its number is nobody else's while one process of it is left.
            let empty = !one.leader && !alive.contains(&one.session);
            if empty || now > one.kill_at + PATIENCE {
                continue;
            }
            if now >= one.kill_at {
                self.to_all(&one, Signal::SIGKILL);
            }
            one.look_at = now + LOOK_AGAIN;
            self.leaving.push(one);
        }
    }

    /// Which of these sessions have living processes.
    fn alive(&self, leaving: &[Leaving]) -> Vec<Pid> {
        if self.sessions {
            let numbers: Vec<i32> = leaving.iter().map(|one| one.session.as_raw()).collect();
            return proc::in_sessions(&numbers)
                .into_iter()
                .map(|(_, session)| Pid::from_raw(session))
                .collect();
        }
        leaving.iter().map(|one| one.session).filter(|group| killpg(*group, None).is_ok()).collect()
    }

    fn to_all(&self, leaving: &Leaving, signal: Signal) {
        if !self.sessions {
            let _gone = killpg(leaving.session, signal);
        } else {
            for (pid, _) in proc::in_sessions(&[leaving.session.as_raw()]) {
                let _gone = kill(Pid::from_raw(pid), signal);
            }
        }
        if leaving.leader {
            // A stage may not have its session yet.
            let _gone = kill(leaving.session, signal);
        }
    }
}

fn stage(socket: Option<OwnedFd>) -> io::Result<Pid> {
    let socket = socket.ok_or_else(|| io::Error::other("its socket did not come"))?;
    let child = Command::new("/proc/self/exe")
        .arg0("levers9-stage")
        .args([WORD, STAGE])
        .env_clear()
        .stdin(socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    i32::try_from(child.id()).map(Pid::from_raw).map_err(io::Error::other)
}
