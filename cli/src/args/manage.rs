//! The commands that list, show and change what a controlplane has, and the
//! contexts on this machine.

use clap::{Args, Subcommand, ValueEnum};

use super::OutputArgs;

/// `levers9 task`
#[derive(Debug, Args)]
pub struct TaskArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TaskCommand,
}

/// What can be done with tasks.
#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List tasks, newest first
    List {
        /// Only tasks of this status: pending, running, complete, error, cancelled, timeout, retry, expired
        #[arg(long, value_name = "STATUS", value_delimiter = ',')]
        status: Vec<String>,
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
        /// Only tasks older than this one, for the next page
        #[arg(long, value_name = "TASK")]
        before: Option<String>,
        /// How to print the list
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show one task and its attempts
    Show {
        /// The id of the task
        task: String,
        /// How to print the task
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Cancel a task
    Stop {
        /// The id of the task
        task: String,
    },
}

/// `levers9 container`
#[derive(Debug, Args)]
pub struct ContainerArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ContainerCommand,
}

/// What can be done with containers.
#[derive(Debug, Subcommand)]
pub enum ContainerCommand {
    /// List the containers there are
    List {
        /// Those that have ended, too
        #[arg(short, long)]
        all: bool,
        /// How to print the list
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Take over a container's task: print its output, end with its exit code
    Attach(ContainerAttachArgs),
    /// Stop a container
    Stop {
        /// The id of the container
        container: String,
    },
}

/// `levers9 container attach`
#[derive(Debug, Args)]
pub struct ContainerAttachArgs {
    /// The id of the container
    pub container: String,
    /// Print only what comes after this line number
    #[arg(long, value_name = "N")]
    pub since_line: Option<u64>,
    /// How to print the output; json prints one object per line
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `levers9 worker`
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: WorkerCommand,
}

/// What can be done with workers.
#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// List workers and what is free on them
    List {
        /// How to print the list
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Print the line that starts a new worker
    Enroll {
        /// The pool it joins
        #[arg(long)]
        pool: Option<String>,
        /// Let it run the jobs of every workspace (admin)
        #[arg(long)]
        shared: bool,
        /// Let it run jobs without isolation where the machine has no container runtime
        #[arg(long)]
        allow_unisolated: bool,
        /// How to print it
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// `levers9 workspace`
#[derive(Debug, Args)]
pub struct WorkspaceArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: WorkspaceCommand,
}

/// What can be done with workspaces.
#[derive(Debug, Subcommand)]
pub enum WorkspaceCommand {
    /// List workspaces (admin)
    List {
        /// How to print the list
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Create a workspace and print its first token (admin)
    Create {
        /// Its name: a-z, 0-9 and '-'
        name: String,
        /// How to print it
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// `levers9 token`
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// List tokens, without their secrets
    List {
        /// How to print the list
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Create a token and print it, this once
    Create {
        /// What its holder may do
        #[arg(long, value_enum, default_value = "workspace")]
        kind: NewTokenKind,
        /// How to print it
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Revoke a token
    Delete {
        /// The id of the token, as listed
        token: String,
    },
}

/// Kinds of tokens that are made by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NewTokenKind {
    /// Everything, in every workspace
    Admin,
    /// Everything in this workspace
    Workspace,
    /// What code in a container may do
    #[value(name = "workspace_restricted")]
    WorkspaceRestricted,
}

/// Where the Python SDK finds the same controlplane.
#[derive(Debug, Clone, Default, Args)]
pub struct EndpointArgs {
    /// The host of its gRPC port, for the Python SDK [default: the address's host]
    #[arg(long, value_name = "HOST")]
    pub controlplane_host: Option<String>,
    /// Its gRPC port, for the Python SDK [default: 1993]
    #[arg(long, value_name = "PORT")]
    pub controlplane_port: Option<u16>,
    /// The URL of its REST API, for the Python SDK
    #[arg(long, value_name = "URL")]
    pub controlplane_http_url: Option<String>,
    /// Whether its gRPC port speaks TLS, for the Python SDK
    #[arg(long, value_name = "BOOL")]
    pub tls: Option<bool>,
}

/// `levers9 login`
#[derive(Debug, Args)]
pub struct LoginArgs {
    /// The controlplane: levers9://host:443#sha256:… [default: the context's]
    pub address: Option<String>,
    /// Read the token from standard input instead of asking for it
    #[arg(long)]
    pub token_stdin: bool,
    /// For the Python SDK.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

/// `levers9 config`
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What can be done with contexts.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// List contexts
    List {
        /// How to print the list
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Store a context without contacting its controlplane
    Create(ConfigCreateArgs),
    /// Make a context the default
    Select {
        /// Its name
        name: String,
    },
    /// Forget a context and its token
    Delete {
        /// Its name
        name: String,
    },
}

/// `levers9 config create`
#[derive(Debug, Args)]
pub struct ConfigCreateArgs {
    /// Its name: a-z, 0-9 and '-'
    pub name: String,
    /// The controlplane: levers9://host:443#sha256:…
    pub address: String,
    /// Read the token from standard input instead of asking for it
    #[arg(long)]
    pub token_stdin: bool,
    /// Replace a context of this name
    #[arg(long)]
    pub overwrite: bool,
    /// For the Python SDK.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}
