//! The command line as clap types: names, help texts and shapes, no logic.
//! [`crate::settings`] makes settings of them.

mod dev;
mod manage;
mod run;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use dev::DevArgs;
pub use manage::{
    ConfigArgs, ConfigCommand, ConfigCreateArgs, ContainerArgs, ContainerCommand, EndpointArgs, LoginArgs,
    NewTokenKind, TaskArgs, TaskCommand, TokenArgs, TokenCommand, WorkerArgs, WorkerCommand, WorkspaceArgs,
    WorkspaceCommand,
};
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
    /// List, show and stop tasks
    Task(TaskArgs),
    /// List and stop containers
    Container(ContainerArgs),
    /// List workers and enroll new ones
    Worker(WorkerArgs),
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
    /// Print the version of this command and of the controlplane
    Version(OutputArgs),
}

impl Command {
    /// Whether the command ends with the exit code of a job.
    #[must_use]
    pub fn runs_job(&self) -> bool {
        match self {
            Self::Run(_) | Self::Attach(_) => true,
            Self::Dev(dev) => !dev.command.is_empty(),
            _ => false,
        }
    }
}

/// Whether the command of this name ends with the exit code of a job.
#[must_use]
pub fn runs_job(name: &str) -> bool {
    matches!(name, "run" | "attach")
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
