//! What `/proc` says about processes: parents, start times, environment
//! marks; and killing what it shows until nothing is left.
//!
//! The supervisor uses it to find descendants, the runtime to find leftovers
//! after a crash. It never signals a process whose identity it has not just
//! read.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Pause between two looks at processes that are being killed.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The fields of `/proc/PID/stat` used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The process.
    pub(crate) pid: i32,
    /// Its parent.
    pub(crate) parent: i32,
    /// Its session.
    pub(crate) session: i32,
    /// `Z` and `X` are dead already.
    pub(crate) state: u8,
    /// When it started, in clock ticks since boot.
    pub(crate) start_ticks: u64,
}

impl Stat {
    fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// A process that is not mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The process number.
    pub(crate) pid: i32,
    /// When it started, in clock ticks since boot.
    pub(crate) start_ticks: u64,
}

impl Identity {
    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        stat(pid).map(|stat| Self { pid, start_ticks: stat.start_ticks })
    }

    /// Whether it still runs; a zombie does not.
    pub(crate) fn is_alive(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.start_ticks == self.start_ticks && stat.is_alive())
    }
}

/// Which boot this is: process identities of another one mean nothing.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// One process, if it exists.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    // The name stands in parentheses and may hold anything, parentheses included.
    let open = bytes.iter().position(|b| *b == b'(')?;
    let close = bytes.iter().rposition(|b| *b == b')')?;
    let pid = std::str::from_utf8(bytes.get(..open)?).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        pid,
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The children of a process, oldest first.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    if let Ok(text) = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        return text.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect();
    }
    // A kernel without that file, or a process that is gone.
    let mut found: Vec<Stat> = pids().filter_map(stat).filter(|stat| stat.parent == pid).collect();
    found.sort_by_key(|stat| (stat.start_ticks, stat.pid));
    found.into_iter().map(|stat| stat.pid).collect()
}

/// Every living descendant of a process, itself left out.
pub(crate) fn descendants(root: i32) -> Vec<i32> {
    let all: Vec<Stat> = pids().filter_map(stat).collect();
    let mut family = HashSet::from([root]);
    loop {
        let before = family.len();
        family.extend(
            all.iter().filter(|stat| family.contains(&stat.parent)).map(|s| s.pid).collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    all.iter().filter(|s| s.pid != root && s.is_alive() && family.contains(&s.pid)).map(|s| s.pid).collect()
}

/// The living processes of these sessions, each with its session.
pub(crate) fn in_sessions(sessions: &[i32]) -> Vec<(i32, i32)> {
    let member = |stat: Stat| (stat.is_alive() && sessions.contains(&stat.session)).then_some(stat);
    pids().filter_map(stat).filter_map(member).map(|stat| (stat.pid, stat.session)).collect()
}

/// Whether `/proc` numbers processes as this one sees them: it may be that of
/// another PID namespace.
pub(crate) fn is_own() -> bool {
    fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == std::process::id().to_string().as_str())
}

/// Every living process whose environment at its start held `NAME=value`.
pub(crate) fn marked(name: &str, value: &str) -> Vec<i32> {
    let wanted = format!("{name}={value}");
    let holds = |pid: &i32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| environ.split(|b| *b == 0).any(|entry| entry == wanted.as_bytes()))
    };
    pids().filter(holds).filter(|pid| stat(*pid).is_some_and(|stat| stat.is_alive())).collect()
}

/// Kills all that `find` shows, until it shows nothing or `patience` is over.
/// They are stopped first, so that a process that forks faster than it can be
/// killed cannot get away. Returns those that are still there.
pub(crate) fn kill_until_gone(
    find: impl Fn() -> Vec<i32>,
    after_round: impl Fn(),
    patience: Duration,
) -> Vec<i32> {
    let deadline = Instant::now() + patience;
    loop {
        let mut stopped = HashSet::new();
        loop {
            let new: Vec<i32> = find().into_iter().filter(|pid| !stopped.contains(pid)).collect();
            if new.is_empty() || Instant::now() > deadline {
                break;
            }
            for pid in new {
                signal(pid, Signal::SIGSTOP);
                stopped.insert(pid);
            }
        }
        for pid in &stopped {
            signal(*pid, Signal::SIGKILL);
        }
        after_round();
        let left = find();
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn signal(pid: i32, signal: Signal) {
    match kill(Pid::from_raw(pid), signal) {
        // Gone already, or not ours to signal: the next look tells.
        Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => {}
        Err(errno) => tracing::debug!(pid, %signal, %errno, "cannot signal"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_stat_whose_name_holds_parentheses() {
        let line = b"42 (a) b (c)) S 7 42 43 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 9981 1 1";
        assert_eq!(
            parse_stat(line),
            Some(Stat { pid: 42, parent: 7, session: 43, state: b'S', start_ticks: 9981 })
        );
        assert_eq!(parse_stat(b"42 (short) S 7"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn knows_itself_and_not_an_earlier_process_with_its_number() {
        let pid = i32::try_from(std::process::id()).expect("pids are small");
        let me = Identity::of(pid).expect("this process exists");
        assert!(me.is_alive());
        let earlier = Identity { start_ticks: me.start_ticks - 1, ..me };
        assert!(!earlier.is_alive());
    }

    #[test]
    fn finds_and_kills_descendants_by_parent_and_by_mark() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 1000 & sleep 1000; true"])
            .env("LEVERS9_PROC_TEST", "finds_and_kills")
            .spawn()
            .expect("sh runs");
        let root = i32::try_from(child.id()).expect("pids are small");
        while descendants(root).len() < 2 {
            std::thread::yield_now();
        }
        let found = || marked("LEVERS9_PROC_TEST", "finds_and_kills");
        while found().len() < 3 {
            std::thread::yield_now();
        }
        assert_eq!(children(root).len(), 2);
        assert_eq!(kill_until_gone(found, || {}, Duration::from_secs(10)), Vec::<i32>::new());
        child.wait().expect("the shell was killed");
    }
}
