//! The commands that reach into a running container.

use std::net::IpAddr;

use clap::Args;

use super::OutputArgs;

/// `levers9 exec`
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The id of a container, or of the task it serves
    pub container: String,
    /// Pass standard input on to the command
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Give the command a terminal, with this terminal's keys and size
    #[arg(short, long)]
    pub tty: bool,
    /// Where and with what it runs.
    #[command(flatten)]
    pub inside: InsideArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// `levers9 shell`
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// The id of a container, or of the task it serves
    pub container: String,
    /// Where and with what it runs.
    #[command(flatten)]
    pub inside: InsideArgs,
}

/// Where and with what a command runs in a container.
#[derive(Debug, Args)]
pub struct InsideArgs {
    /// Set an environment variable; K alone passes this shell's value on. Can be repeated
    #[arg(short, long, value_name = "K=V")]
    pub env: Vec<String>,
    /// Run it in this folder of the container
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
}

/// `levers9 port-forward`
#[derive(Debug, Args)]
pub struct PortForwardArgs {
    /// The id of a container, or of the task it serves
    pub container: String,
    /// A port here and the container's: 8080:8000; 8000 for both; :8000 for any free one here
    #[arg(required = true, value_name = "[LOCAL:]REMOTE")]
    pub ports: Vec<String>,
    /// The address here to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub address: IpAddr,
    /// How to print what is forwarded; json prints one object per line
    #[command(flatten)]
    pub output: OutputArgs,
}
