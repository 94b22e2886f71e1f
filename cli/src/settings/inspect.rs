//! Settings of `doctor`, `session` and `bench`.

use std::time::Duration;

use levers9_wire::{ContainerId, limits, quantity};

use super::{Target, id};
use crate::args::{BenchArgs, Direction, DoctorArgs, Format, SessionArgs, SessionCommand};
use crate::error::Error;

/// `levers9 doctor`
#[derive(Debug, Clone)]
pub struct DoctorSettings {
    /// Where to, and as whom.
    pub target: Target,
    /// How to print.
    pub format: Format,
}

/// `levers9 session`
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// Where to, and as whom.
    pub target: Target,
    /// How to print.
    pub format: Format,
}

/// `levers9 bench`
#[derive(Debug, Clone)]
pub struct BenchSettings {
    /// Where to, and as whom.
    pub target: Target,
    /// On to the worker that has this container.
    pub to: Option<ContainerId>,
    /// Which way.
    pub direction: Direction,
    /// How many streams side by side.
    pub streams: u32,
    /// How long each direction.
    pub duration: Duration,
    /// How to print.
    pub format: Format,
}

pub(super) fn doctor(
    args: &DoctorArgs,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<DoctorSettings, Error> {
    Ok(DoctorSettings { target: target()?, format: args.output.format })
}

pub(super) fn session(
    args: &SessionArgs,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<SessionSettings, Error> {
    let SessionCommand::Show { output } = &args.command;
    Ok(SessionSettings { target: target()?, format: output.format })
}

pub(super) fn bench(
    args: &BenchArgs,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<BenchSettings, Error> {
    let to = match args.to.as_str() {
        "controlplane" => None,
        container => Some(id(container, "--to")?),
    };
    let duration =
        quantity::duration(&args.duration).map_err(|problem| Error::usage("--duration").because(problem))?;
    if duration.is_zero() || duration > limits::BENCH {
        let most = limits::BENCH.as_secs();
        return Err(Error::usage(format!(
            "--duration {}: it is more than 0 and at most {most}s",
            args.duration
        )));
    }
    let (direction, streams, format) = (args.direction, args.streams, args.output.format);
    Ok(BenchSettings { target: target()?, to, direction, streams, duration, format })
}
