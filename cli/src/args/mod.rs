//! The command line as clap types: names, help texts and shapes, no logic.
//! [`crate::settings`] makes settings of them.

mod cluster;
mod dev;
mod inspect;
mod manage;
mod reach;
mod run;

use clap::{ArgMatches, Args, Parser, Subcommand, ValueEnum};

pub use cluster::{ClusterArgs, ClusterCommand, JoinArgs, KubeArgs, LeaveArgs, WhyArgs};
pub use dev::DevArgs;
pub use inspect::{BenchArgs, Direction, DoctorArgs, SessionArgs, SessionCommand};
pub use manage::{
    ConfigArgs, ConfigCommand, ConfigCreateArgs, ContainerArgs, ContainerAttachArgs, ContainerCommand,
    EndpointArgs, LoginArgs, NewTokenKind, TaskArgs, TaskCommand, TokenArgs, TokenCommand, WorkerArgs,
    WorkerCommand, WorkspaceArgs, WorkspaceCommand,
};
pub use reach::{ExecArgs, InsideArgs, PortForwardArgs, ShellArgs};
pub use run::{AttachArgs, LogsArgs, RunArgs};

/// Runs jobs on machines and clusters that dial out to a controlplane.
#[derive(Debug, Parser)]
#[command(name = "levers9", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// The context to use [env: LEVERS9_CONTEXT]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub context: Option<String>,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Everything the command can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command on a worker and print its output as it comes
    Run(RunArgs),
    /// Print what a task has written
    Logs(LogsArgs),
    /// Take over a task: print its output, end with its exit code
    Attach(AttachArgs),
    /// Run a command in a running container
    Exec(ExecArgs),
    /// Open a shell in a running container
    Shell(ShellArgs),
    /// Make ports of a container reachable on this machine
    PortForward(PortForwardArgs),
    /// List, show and stop tasks
    Task(TaskArgs),
    /// List, attach to and stop containers
    Container(ContainerArgs),
    /// List workers and enroll new ones
    Worker(WorkerArgs),
    /// Attach Kubernetes clusters, list and detach them
    Cluster(ClusterArgs),
    /// Say why a task is not running, place by place
    Why(WhyArgs),
    /// List and create workspaces
    Workspace(WorkspaceArgs),
    /// Log in to a controlplane and store a context for it
    Login(LoginArgs),
    /// List, create and delete tokens
    Token(TokenArgs),
    /// List, create, select and delete contexts
    Config(ConfigArgs),
    /// Run a controlplane and a worker on this machine
    Dev(DevArgs),
    /// Find out where the way to a controlplane and its workers breaks
    Doctor(DoctorArgs),
    /// Show how this machine is connected to the controlplane
    Session(SessionArgs),
    /// Measure what fits through streams, and what they take to open
    Bench(BenchArgs),
    /// Print the version of this command and of the controlplane
    Version(OutputArgs),
    /// Print the script that completes commands in a shell
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether the command ends with the exit code of a job or command.
    #[must_use]
    pub fn runs_job(&self) -> bool {
        match self {
            Self::Run(_) | Self::Attach(_) | Self::Exec(_) | Self::Shell(_) => true,
            Self::Container(container) => matches!(container.command, ContainerCommand::Attach(_)),
            Self::Dev(dev) => !dev.command.is_empty(),
            _ => false,
        }
    }
}

/// Whether what could be understood of a command line is of a command that
/// ends with the exit code of a job or command.
#[must_use]
pub fn runs_job(understood: &ArgMatches) -> bool {
    match understood.subcommand() {
        Some(("run" | "attach" | "exec" | "shell", _)) => true,
        Some(("container", more)) => more.subcommand_name() == Some("attach"),
        _ => false,
    }
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For scripts, with field names that stay
    Json,
}

/// How results are printed.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// How to print: text for people, json for scripts
    #[arg(long, value_enum, default_value = "text", hide_possible_values = true)]
    pub format: Format,
}
