//! The commands that look at the way to a controlplane and beyond.

use clap::{Args, Subcommand, ValueEnum};

use super::OutputArgs;

/// `levers9 doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// How to print the result
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `levers9 session`
#[derive(Debug, Args)]
pub struct SessionArgs {
    /// What to do
    #[command(subcommand)]
    pub command: SessionCommand,
}

/// What can be done with this machine's session.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Connect, and say by which way: QUIC, TCP where UDP is blocked, or a proxy
    Show {
        /// How to print the result
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// From here
    Up,
    /// To here
    Down,
    /// One after the other
    Both,
}

/// `levers9 bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The other end: the controlplane, or a container, which stands for its worker
    #[arg(long, default_value = "controlplane", value_name = "controlplane|CONTAINER")]
    pub to: String,
    /// Which way bytes go
    #[arg(long, value_enum, default_value = "both")]
    pub direction: Direction,
    /// Streams side by side, at most 64
    #[arg(long, default_value = "4", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: u32,
    /// How long each direction is measured, at most 60s
    #[arg(long, default_value = "10s", value_name = "TIME")]
    pub duration: String,
    /// How to print the result
    #[command(flatten)]
    pub output: OutputArgs,
}
