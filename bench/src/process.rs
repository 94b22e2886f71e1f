//! Processes of a measurement: this program started again with other
//! arguments, held to one core, asked over its standard input and answering on
//! its standard output, one JSON value a line. Also what a process has used.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::time::ClockId;
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A process that answers; killed when dropped.
#[derive(Debug)]
pub(crate) struct Helper {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts this program again.
    pub(crate) fn start(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Self> {
        let program = std::env::current_exe().context("where is this program?")?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a helper")?;
        let questions = child.stdin.take().context("a helper without stdin")?;
        let answers = BufReader::new(child.stdout.take().context("a helper without stdout")?);
        Ok(Self { child, questions, answers })
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks and waits for the answer.
    pub(crate) fn ask<A: DeserializeOwned>(&mut self, question: &impl Serialize) -> Result<A> {
        let mut line = serde_json::to_vec(question)?;
        line.push(b'\n');
        self.questions.write_all(&line).context("a helper is gone")?;
        self.listen()
    }

    /// Waits for what it says unasked.
    pub(crate) fn listen<A: DeserializeOwned>(&mut self) -> Result<A> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("a helper ended ({})", self.child.wait()?);
        }
        serde_json::from_str(&line).with_context(|| format!("a helper said {line:?}"))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Two cores to hold two processes to, or `None` where there is but one.
pub(crate) fn two_cores() -> Option<(usize, usize)> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let mut cores = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
    Some((cores.next()?, cores.next()?))
}

/// Holds this thread, and those it starts, to one core.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &only).with_context(|| format!("holding a helper to core {core}"))
}

/// What a process has used until now.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// User and system time of all its threads.
    pub(crate) cpu_us: u64,
    /// Memory it has in RAM.
    pub(crate) rss_kib: u64,
}

impl Usage {
    /// Of this process.
    pub(crate) fn now() -> Result<Self> {
        let used = getrusage(UsageWho::RUSAGE_SELF)?;
        let cpu_us = micros(used.user_time()) + micros(used.system_time());
        Ok(Self { cpu_us, rss_kib: memory_of(std::process::id(), "VmRSS:")? })
    }

    /// Of another process.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let process = Pid::from_raw(i32::try_from(pid)?);
        let clock = ClockId::pid_cpu_clock_id(process).with_context(|| format!("process {pid} is gone"))?;
        let used: Duration = clock.now()?.into();
        let cpu_us = u64::try_from(used.as_micros()).unwrap_or(u64::MAX);
        Ok(Self { cpu_us, rss_kib: memory_of(pid, "VmRSS:")? })
    }
}

/// The most memory a process ever had in RAM, in KiB.
pub(crate) fn peak_kib(pid: u32) -> Result<u64> {
    memory_of(pid, "VmHWM:")
}

fn memory_of(pid: u32, what: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    kib_in(&status, what).with_context(|| format!("no {what} in {path}"))
}

fn micros(time: TimeVal) -> u64 {
    let micros = i128::from(time.tv_sec()) * 1_000_000 + i128::from(time.tv_usec());
    u64::try_from(micros).unwrap_or_default()
}

fn kib_in(status: &str, what: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(what))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_resident_size() {
        let status = "VmHWM:\t   12 kB\nVmRSS:\t    2184 kB\nRssAnon:\t 1 kB\n";
        assert_eq!(kib_in(status, "VmRSS:"), Some(2184));
        assert_eq!(kib_in(status, "VmHWM:"), Some(12));
        assert_eq!(kib_in("VmSwap:\t 0 kB\n", "VmRSS:"), None);
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(Usage::now().unwrap().rss_kib > 0);
        let seen = Usage::of(std::process::id()).unwrap();
        assert!(seen.rss_kib > 0 && seen.cpu_us > 0, "{seen:?}");
        assert!(peak_kib(std::process::id()).unwrap() >= seen.rss_kib);
    }
}
