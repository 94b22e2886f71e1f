//! `levers9 dev`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

/// `levers9 dev`
#[derive(Debug, Args)]
pub struct DevArgs {
    /// Where workers and commands connect (UDP, and TCP where that is blocked); port 0 is any free one [default: 127.0.0.1:4433, with CMD any free port]
    #[arg(long, value_name = "ADDRESS")]
    pub quic: Option<SocketAddr>,
    /// Where REST, health and metrics are served [default: 127.0.0.1:1994, with CMD any free port]
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
    /// Where the Python SDK connects [default: 127.0.0.1:1993, with CMD any free port]
    #[arg(long, value_name = "ADDRESS")]
    pub grpc: Option<SocketAddr>,
    /// Where to keep the data [default: ~/.local/share/levers9/dev]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Run this command as one job, end with its exit code, and stop
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}
