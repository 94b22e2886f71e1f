//! `levers9-bench`: measures levers9 beside its peers, in one run, alternating.
//!
//! Each subcommand is a module that returns [`report::Measure`]s; how they are
//! printed, what a spread is and how processes are started and pinned is
//! shared. To add a subcommand, add a module, an arm of [`Command`] and one of
//! `main`.

mod agent;
mod job;
mod moves;
mod process;
mod reach;
mod report;
mod stats;
mod transport;

use std::io::{self, Write as _};

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

#[derive(Debug, Parser)]
#[command(name = "levers9-bench", version, about = "Measures levers9 beside its peers")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// levers9's transport beside bare quinn, HTTP/2 and TLS over TCP.
    Transport {
        /// Fewer and shorter rounds, within 40 seconds.
        #[arg(long)]
        quick: bool,
        /// How to print the result.
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
    },
    /// The whole way of a job: `levers9 run -- true` beside starting `true` directly
    Run {
        /// The `levers9` binary
        #[arg(long, value_name = "FILE")]
        cli: std::path::PathBuf,
        /// Fewer repetitions
        #[arg(long)]
        quick: bool,
        /// How to print
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
    },
    /// Into a container and back: tunnels, HTTP beside nginx, keystrokes beside bulk
    Reach {
        /// The `levers9` binary
        #[arg(long, value_name = "FILE")]
        cli: std::path::PathBuf,
        /// The `nginx` binary
        #[arg(long, value_name = "FILE", default_value = "nginx")]
        nginx: std::path::PathBuf,
        /// Fewer and shorter rounds
        #[arg(long)]
        quick: bool,
        /// How to print
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
    },
    /// How long service is away, and what is lost, when UDP is cut or a server is killed, drained or restarted
    Moves {
        /// Fewer rounds, within 90 seconds
        #[arg(long)]
        quick: bool,
        /// How to print
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
    },
    /// The agent in a large cluster beside a plain controller: time, memory and CPU
    Agent(agent::AgentArgs),
    /// A plain controller; started by this program itself.
    #[command(hide = true)]
    Reflector(agent::reflector::ReflectorArgs),
    /// What a container serves; started by this program itself.
    #[command(hide = true)]
    Target {
        /// The port to listen on.
        #[arg(long)]
        port: u16,
    },
    /// One side of a bare tunnel; started by this program itself.
    #[command(hide = true)]
    Tunnel(reach::tunnel::TunnelArgs),
    /// A server that is moved; started by this program itself.
    #[command(hide = true)]
    Moved(moves::server::ServerArgs),
    /// One side of a measurement; started by this program itself.
    #[command(hide = true)]
    Peer(transport::peer::PeerArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// The goals alone, for programs.
    Json,
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Transport { quick, format } => print(&transport::measure(quick)?, format),
        Command::Run { cli, quick, format } => print(&job::measure(&cli, quick)?, format),
        Command::Reach { cli, nginx, quick, format } => print(&reach::measure(&cli, &nginx, quick)?, format),
        Command::Moves { quick, format } => print(&moves::measure(quick)?, format),
        Command::Agent(args) => print(&agent::measure(&args)?, args.format),
        Command::Reflector(args) => agent::reflector::run(&args),
        Command::Target { port } => reach::target::run(port),
        Command::Tunnel(args) => reach::tunnel::run(args),
        Command::Moved(args) => moves::server::run(args),
        Command::Peer(args) => transport::peer::run(args),
    }
}

fn print(measures: &[report::Measure], format: Format) -> Result<()> {
    let text = match format {
        Format::Table => report::table(measures),
        Format::Json => report::json(measures)?,
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}
