//! `levers9 dev`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

/// `levers9 dev`
#[derive(Debug, Args)]
pub struct DevArgs {
    /// Where workers and this command connect (UDP); port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4433")]
    pub quic: SocketAddr,
    /// Where REST, health and metrics are served
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:1994")]
    pub http: SocketAddr,
    /// Where the Python SDK connects
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:1993")]
    pub grpc: SocketAddr,
    /// Where to keep the data [default: ~/.local/share/levers9/dev]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Run this command as one job, end with its exit code, and stop
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}
