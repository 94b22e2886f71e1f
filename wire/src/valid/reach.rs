//! What reaches into a container, or out of one: tunnels, commands, doors and
//! the streams that measure.

use std::num::NonZeroU16;
use std::time::Duration;

use super::{Env, Invalid, at_most, check_command, check_env, check_size, required_id};
use crate::id::{ContainerId, Generation};
use crate::{limits, name, v1};

/// A connection to a container's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// Which container.
    pub container: ContainerId,
    /// Which incarnation; `None` for whichever there is.
    pub generation: Option<Generation>,
    /// The TCP port.
    pub port: NonZeroU16,
}

impl TryFrom<v1::TunnelOpen> for Tunnel {
    type Error = Invalid;

    fn try_from(open: v1::TunnelOpen) -> Result<Self, Invalid> {
        Ok(Self {
            container: required_id("container", ContainerId::from_wire(&open.container))?,
            generation: some_generation(open.generation),
            port: port(open.port)?,
        })
    }
}

/// Generations start with 1; 0 stands for none.
fn some_generation(generation: u64) -> Option<Generation> {
    (generation > 0).then_some(Generation(generation))
}

/// A TCP port.
///
/// # Errors
/// When it is none.
pub fn port(port: u32) -> Result<NonZeroU16, Invalid> {
    let good = u16::try_from(port).ok().and_then(NonZeroU16::new);
    good.ok_or_else(|| Invalid::Value { what: "port", value: port.to_string(), rule: "1 to 65535" })
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// From top to bottom.
    pub rows: u16,
    /// From left to right.
    pub columns: u16,
}

impl From<v1::TerminalSize> for Size {
    /// A size nobody knows is the one of old; what is too large is the largest.
    fn from(size: v1::TerminalSize) -> Self {
        let side = |given: u32, usual| match given {
            0 => usual,
            given => u16::try_from(given).unwrap_or(u16::MAX),
        };
        Self { rows: side(size.rows, 24), columns: side(size.columns, 80) }
    }
}

/// A command to run in a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Exec {
    /// Which container.
    pub container: ContainerId,
    /// Which incarnation; `None` for whichever there is.
    pub generation: Option<Generation>,
    /// The command and its arguments; empty for a shell.
    pub command: Vec<String>,
    /// Beside the container's own variables, and before them.
    pub env: Env,
    /// Where, when not in the container's own working directory.
    pub workdir: Option<String>,
    /// Its input comes from the caller.
    pub stdin: bool,
    /// The size of its terminal, when it gets one.
    pub terminal: Option<Size>,
}

impl TryFrom<v1::ExecOpen> for Exec {
    type Error = Invalid;

    fn try_from(open: v1::ExecOpen) -> Result<Self, Invalid> {
        check_size(&open.command, &open.env)?;
        if !open.command.is_empty() {
            check_command(&open.command)?;
        }
        at_most("the working directory", open.workdir.len(), limits::TEXT)?;
        if open.workdir.contains('\0') {
            let value = name::printable(&open.workdir, 40);
            return Err(Invalid::Value { what: "the working directory", value, rule: "no NUL" });
        }
        Ok(Self {
            container: required_id("container", ContainerId::from_wire(&open.container))?,
            generation: some_generation(open.generation),
            command: open.command,
            env: check_env(open.env)?,
            workdir: (!open.workdir.is_empty()).then_some(open.workdir),
            stdin: open.stdin,
            terminal: open.terminal.map(Size::from),
        })
    }
}

/// What something in a container dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Door {
    /// Which container.
    pub container: ContainerId,
    /// Which incarnation.
    pub generation: Generation,
    /// Of the controlplane.
    pub service: v1::DoorService,
}

impl TryFrom<v1::DoorOpen> for Door {
    type Error = Invalid;

    fn try_from(open: v1::DoorOpen) -> Result<Self, Invalid> {
        let service = v1::DoorService::try_from(open.service).unwrap_or_default();
        if service == v1::DoorService::Unspecified {
            let value = open.service.to_string();
            return Err(Invalid::Value { what: "service", value, rule: "1 for gRPC, 2 for HTTP" });
        }
        Ok(Self {
            container: required_id("container", ContainerId::from_wire(&open.container))?,
            generation: Generation(open.generation),
            service,
        })
    }
}

/// What to measure on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bench {
    /// To the worker that has this container; `None` for the controlplane.
    pub container: Option<(ContainerId, Option<Generation>)>,
    /// What.
    pub kind: v1::BenchKind,
    /// For how long.
    pub duration: Duration,
}

impl TryFrom<v1::BenchOpen> for Bench {
    type Error = Invalid;

    fn try_from(open: v1::BenchOpen) -> Result<Self, Invalid> {
        let container = ContainerId::from_wire(&open.container);
        let container = container.map_err(|source| Invalid::Id { what: "container", source })?;
        let kind = v1::BenchKind::try_from(open.kind).unwrap_or_default();
        if kind == v1::BenchKind::Unspecified {
            let value = open.kind.to_string();
            return Err(Invalid::Value { what: "kind", value, rule: "1 to 3" });
        }
        let duration = Duration::from_millis(open.duration_ms);
        if duration > limits::BENCH {
            let value = format!("{} ms", open.duration_ms);
            return Err(Invalid::Value { what: "duration", value, rule: "at most 60 s" });
        }
        Ok(Self { container: container.map(|id| (id, some_generation(open.generation))), kind, duration })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> Vec<u8> {
        ContainerId::generate().to_wire()
    }

    #[test]
    fn a_port_is_one_to_65535() {
        for bad in [0, 65_536, u32::MAX] {
            let open = v1::TunnelOpen { container: container(), generation: 1, port: bad };
            let refused = Tunnel::try_from(open).unwrap_err();
            assert_eq!(refused.to_string(), format!("port is \"{bad}\", which is not allowed: 1 to 65535"));
        }
        let open = v1::TunnelOpen { container: container(), generation: 0, port: 65_535 };
        let tunnel = Tunnel::try_from(open).unwrap();
        assert_eq!((tunnel.port.get(), tunnel.generation), (65_535, None));
        assert!(Tunnel::try_from(v1::TunnelOpen { container: vec![1], generation: 1, port: 1 }).is_err());
    }

    #[test]
    fn a_terminal_has_a_size_whatever_is_given() {
        let size = |rows, columns| Size::from(v1::TerminalSize { rows, columns });
        assert_eq!(size(0, 0), Size { rows: 24, columns: 80 });
        assert_eq!(size(40, 120), Size { rows: 40, columns: 120 });
        assert_eq!(size(u32::MAX, 1), Size { rows: u16::MAX, columns: 1 });
    }

    #[test]
    fn a_command_is_checked_like_a_jobs_and_may_be_missing() {
        let open = |command: &[&str], workdir: &str| v1::ExecOpen {
            container: container(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            workdir: workdir.to_owned(),
            ..v1::ExecOpen::default()
        };
        assert!(Exec::try_from(open(&[], "")).unwrap().command.is_empty(), "a shell");
        assert_eq!(Exec::try_from(open(&["ls"], "a/b")).unwrap().workdir.as_deref(), Some("a/b"));
        for (bad, workdir) in [(&["", "x"][..], ""), (&["a\0b"], ""), (&["ls"], "a\0b")] {
            assert!(Exec::try_from(open(bad, workdir)).is_err(), "{bad:?} in {workdir:?}");
        }
        assert!(Exec::try_from(open(&["x"; limits::COMMAND_WORDS + 1], "")).is_err());
        assert!(Exec::try_from(open(&["ls"], &"x".repeat(limits::TEXT + 1))).is_err());
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let door = |service| Door::try_from(v1::DoorOpen { container: container(), generation: 1, service });
        assert!(door(0).is_err() && door(3).is_err());
        assert_eq!(door(1).unwrap().service, v1::DoorService::Grpc);
        let bench = |container, kind, duration_ms| {
            Bench::try_from(v1::BenchOpen { container, generation: 0, kind, duration_ms })
        };
        assert!(bench(vec![], 0, 1).is_err() && bench(vec![], 4, 1).is_err());
        assert!(bench(vec![], 2, 60_001).is_err() && bench(vec![1], 2, 1).is_err());
        assert_eq!(bench(vec![], 2, 60_000).unwrap().container, None);
    }
}
