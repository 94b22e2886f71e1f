//! Settings of the commands that list, show and change what a controlplane has.

use levers9_wire::{ContainerId, TaskId, TokenId, name, token::TokenKind};

use super::{Target, id};
use crate::args::{
    ContainerCommand, Format, NewTokenKind, TaskCommand, TokenCommand, WorkerCommand, WorkspaceCommand,
};
use crate::error::Error;

/// `levers9 task`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSettings {
    /// Whom to ask.
    pub target: Target,
    /// What to do.
    pub action: TaskAction,
}

/// What to do with tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskAction {
    /// List them, newest first.
    List {
        /// Only these status words; empty for all.
        status: Vec<String>,
        /// At most this many.
        limit: u32,
        /// Only those older than this one.
        before: Option<TaskId>,
        /// How to print.
        format: Format,
    },
    /// Show one and its attempts.
    Show {
        /// Which.
        task: TaskId,
        /// How to print.
        format: Format,
    },
    /// Cancel one.
    Stop(TaskId),
}

/// `levers9 container`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSettings {
    /// Whom to ask.
    pub target: Target,
    /// What to do.
    pub action: ContainerAction,
}

/// What to do with containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerAction {
    /// List them.
    List {
        /// Those that have ended, too.
        all: bool,
        /// How to print.
        format: Format,
    },
    /// Become a caller of its task and follow it.
    Attach {
        /// Which.
        container: ContainerId,
        /// Print what comes after this line.
        since_line: u64,
        /// How to print.
        format: Format,
    },
    /// Stop one.
    Stop(ContainerId),
}

/// `levers9 worker`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Whom to ask.
    pub target: Target,
    /// What to do.
    pub action: WorkerAction,
}

/// What to do with workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerAction {
    /// List them.
    List {
        /// How to print.
        format: Format,
    },
    /// Make an enrolment token and print the line that starts a worker with it.
    Enroll {
        /// The pool; empty for the controlplane's choice.
        pool: String,
        /// For every workspace.
        shared: bool,
        /// Say in the line that jobs may run without isolation.
        allow_unisolated: bool,
        /// How to print.
        format: Format,
    },
}

/// `levers9 workspace`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceSettings {
    /// Whom to ask.
    pub target: Target,
    /// What to do.
    pub action: WorkspaceAction,
}

/// What to do with workspaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkspaceAction {
    /// List them.
    List {
        /// How to print.
        format: Format,
    },
    /// Create one.
    Create {
        /// Its name, checked.
        name: String,
        /// How to print.
        format: Format,
    },
}

/// `levers9 token`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSettings {
    /// Whom to ask.
    pub target: Target,
    /// What to do.
    pub action: TokenAction,
}

/// What to do with tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenAction {
    /// List them.
    List {
        /// How to print.
        format: Format,
    },
    /// Create one.
    Create {
        /// What its holder may do.
        kind: TokenKind,
        /// How to print.
        format: Format,
    },
    /// Revoke one.
    Delete(TokenId),
}

pub(super) fn task(
    command: TaskCommand,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<TaskSettings, Error> {
    let action = match command {
        TaskCommand::List { status, limit, before, output } => TaskAction::List {
            status: status.iter().map(|word| status_word(word)).collect::<Result<_, _>>()?,
            limit,
            before: before.map(|text| id(&text, "--before")).transpose()?,
            format: output.format,
        },
        TaskCommand::Show { task, output } => {
            TaskAction::Show { task: id(&task, "TASK")?, format: output.format }
        }
        TaskCommand::Stop { task } => TaskAction::Stop(id(&task, "TASK")?),
    };
    Ok(TaskSettings { target: target()?, action })
}

/// A status as the controlplane writes it.
fn status_word(word: &str) -> Result<String, Error> {
    const WORDS: [&str; 8] =
        ["PENDING", "RUNNING", "COMPLETE", "ERROR", "CANCELLED", "TIMEOUT", "RETRY", "EXPIRED"];
    let upper = word.trim().to_ascii_uppercase();
    if WORDS.contains(&upper.as_str()) {
        Ok(upper)
    } else {
        let known = WORDS.join(", ").to_lowercase();
        Err(Error::usage(format!("--status: {word:?} is no status")).hint(format!("there are {known}")))
    }
}

pub(super) fn container(
    command: ContainerCommand,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<ContainerSettings, Error> {
    let action = match command {
        ContainerCommand::List { all, output } => ContainerAction::List { all, format: output.format },
        ContainerCommand::Attach(args) => ContainerAction::Attach {
            container: id(&args.container, "CONTAINER")?,
            since_line: args.since_line.unwrap_or_default(),
            format: args.output.format,
        },
        ContainerCommand::Stop { container } => ContainerAction::Stop(id(&container, "CONTAINER")?),
    };
    Ok(ContainerSettings { target: target()?, action })
}

pub(super) fn worker(
    command: WorkerCommand,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<WorkerSettings, Error> {
    let action = match command {
        WorkerCommand::List { output } => WorkerAction::List { format: output.format },
        WorkerCommand::Enroll { pool, shared, allow_unisolated, output } => {
            let pool = pool.map(|pool| label("pool", pool)).transpose()?.unwrap_or_default();
            WorkerAction::Enroll { pool, shared, allow_unisolated, format: output.format }
        }
    };
    Ok(WorkerSettings { target: target()?, action })
}

pub(super) fn workspace(
    command: WorkspaceCommand,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<WorkspaceSettings, Error> {
    let action = match command {
        WorkspaceCommand::List { output } => WorkspaceAction::List { format: output.format },
        WorkspaceCommand::Create { name, output } => {
            WorkspaceAction::Create { name: label("workspace", name)?, format: output.format }
        }
    };
    Ok(WorkspaceSettings { target: target()?, action })
}

pub(super) fn token(
    command: TokenCommand,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<TokenSettings, Error> {
    let action = match command {
        TokenCommand::List { output } => TokenAction::List { format: output.format },
        TokenCommand::Create { kind, output } => {
            let kind = match kind {
                NewTokenKind::Admin => TokenKind::Admin,
                NewTokenKind::Workspace => TokenKind::Workspace,
                NewTokenKind::WorkspaceRestricted => TokenKind::WorkspaceRestricted,
            };
            TokenAction::Create { kind, format: output.format }
        }
        TokenCommand::Delete { token } => TokenAction::Delete(id(&token, "TOKEN")?),
    };
    Ok(TokenSettings { target: target()?, action })
}

/// A name by the one rule there is for them.
pub(super) fn label(what: &'static str, text: String) -> Result<String, Error> {
    match name::label(what, &text) {
        Ok(_) => Ok(text),
        Err(problem) => Err(Error::usage(problem.to_string())),
    }
}
