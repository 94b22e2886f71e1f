//! Settings of `cluster` and `why`. Everything about a new cluster that can be
//! wrong by itself is found here, before anything is asked of anybody.

use std::path::PathBuf;
use std::time::Duration;

use levers9_agent::selector::{Operator, Requirement, Selector};
use levers9_wire::{ClusterId, TaskId, quantity, v1, valid};

use super::manage::label;
use super::selector::{parse, to_wire};
use super::{Target, id};
use crate::args::{ClusterCommand, Format, JoinArgs, LeaveArgs, WhyArgs};
use crate::contexts::Store;
use crate::env::Env;
use crate::error::Error;

/// `levers9 cluster`
#[derive(Debug, Clone)]
pub struct ClusterSettings {
    /// Whom to ask.
    pub target: Target,
    /// What to do.
    pub action: ClusterAction,
}

/// What to do with clusters. They are named by name or id.
#[derive(Debug, Clone)]
pub enum ClusterAction {
    /// Attach one.
    Join(JoinSettings),
    /// List them.
    List {
        /// How to print.
        format: Format,
    },
    /// List the nodes of one.
    Nodes {
        /// Which.
        cluster: String,
        /// With what is taken by whom.
        why: bool,
        /// How to print.
        format: Format,
    },
    /// Print the objects of its agent.
    Manifest {
        /// Which.
        cluster: String,
        /// How to print.
        format: Format,
    },
    /// Share it with every workspace, or no longer.
    Share {
        /// Which.
        cluster: String,
        /// Whether it is to be shared.
        shared: bool,
        /// How to print.
        format: Format,
    },
    /// Detach one.
    Leave(LeaveSettings),
    /// Give its agent a new token.
    RotateToken(RotateSettings),
}

/// A cluster whose token is replaced.
#[derive(Debug, Clone)]
pub struct RotateSettings {
    /// Which.
    pub cluster: String,
    /// The kube context; none for the current one.
    pub kube_context: Option<String>,
    /// Where to put the new token when it cannot be put where it belongs.
    pub fallback: PathBuf,
    /// How to print.
    pub format: Format,
}

/// A cluster to attach, checked.
#[derive(Debug, Clone)]
pub struct JoinSettings {
    /// As it is registered; the flavor may be empty still.
    pub settings: v1::ClusterSettings,
    /// Its selector.
    pub selector: Selector,
    /// Print the objects instead of applying them.
    pub manifest_only: bool,
    /// The kube context; none for the current one.
    pub kube_context: Option<String>,
    /// How long to wait for the agent.
    pub timeout: Duration,
    /// How to print.
    pub format: Format,
}

/// A cluster to detach.
#[derive(Debug, Clone)]
pub struct LeaveSettings {
    /// Which.
    pub cluster: String,
    /// Do not ask.
    pub yes: bool,
    /// Leave the agent's objects.
    pub keep_agent: bool,
    /// The kube context; none for the current one.
    pub kube_context: Option<String>,
    /// How to print.
    pub format: Format,
}

/// `levers9 why`
#[derive(Debug, Clone)]
pub struct WhySettings {
    /// Whom to ask.
    pub target: Target,
    /// About which task.
    pub task: TaskId,
    /// How to print.
    pub format: Format,
}

pub(super) fn cluster(
    command: ClusterCommand,
    env: &Env,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<ClusterSettings, Error> {
    let action = match command {
        ClusterCommand::Join(args) => ClusterAction::Join(join(args)?),
        ClusterCommand::List { output } => ClusterAction::List { format: output.format },
        ClusterCommand::Nodes { cluster, why, output } => {
            ClusterAction::Nodes { cluster: named(cluster)?, why, format: output.format }
        }
        ClusterCommand::Manifest { cluster, output } => {
            ClusterAction::Manifest { cluster: named(cluster)?, format: output.format }
        }
        ClusterCommand::Share { cluster, off, output } => {
            ClusterAction::Share { cluster: named(cluster)?, shared: !off, format: output.format }
        }
        ClusterCommand::Leave(args) => ClusterAction::Leave(leave(args)?),
        ClusterCommand::RotateToken { cluster, kube, output } => {
            let cluster = named(cluster)?;
            let store = Store::of_env(env)?;
            let fallback = store.path().with_file_name(format!("{cluster}.token-patch.json"));
            let (kube_context, format) = (kube.kube_context, output.format);
            ClusterAction::RotateToken(RotateSettings { cluster, kube_context, fallback, format })
        }
    };
    Ok(ClusterSettings { target: target()?, action })
}

pub(super) fn why(args: &WhyArgs, target: impl Fn() -> Result<Target, Error>) -> Result<WhySettings, Error> {
    let task = id(&args.task, "TASK")?;
    Ok(WhySettings { target: target()?, task, format: args.output.format })
}

/// A cluster's name, or its id.
fn named(text: String) -> Result<String, Error> {
    if text.parse::<ClusterId>().is_ok() { Ok(text) } else { label("cluster", text) }
}

fn join(args: JoinArgs) -> Result<JoinSettings, Error> {
    let name = label("cluster", args.name)?;
    let selector = parse(&args.selector)?;
    can_hold(&selector)?;
    let settings = v1::ClusterSettings {
        name,
        gpu_type: args.gpu,
        selector: to_wire(&selector),
        namespace: args.namespace,
        flavor: args.flavor.map(|flavor| flavor.word().to_owned()).unwrap_or_default(),
        worker_image: args.worker_image.unwrap_or_default(),
        pull_secret: args.pull_secret.unwrap_or_default(),
    };
    let settings = valid::cluster_settings(settings)
        .map_err(|problem| Error::usage("the cluster is refused").because(problem))?;
    let timeout = patience(&args.timeout)?;
    Ok(JoinSettings {
        settings,
        selector,
        manifest_only: args.manifest_only,
        kube_context: args.kube.kube_context,
        timeout,
        format: args.output.format,
    })
}

/// How long to wait for the agent. An agent that is there at once is there by accident.
fn patience(text: &str) -> Result<Duration, Error> {
    let timeout = quantity::duration(text).map_err(|problem| Error::usage("--timeout").because(problem))?;
    if timeout.is_zero() {
        return Err(Error::usage(format!(
            "--timeout: {text:?} is zero, and an agent takes a moment to come"
        ))
        .hint("say how long to wait: --timeout 60; to leave it to others to apply: --manifest-only"));
    }
    Ok(timeout)
}

/// Two items about one label may contradict each other. Nobody means that.
fn can_hold(selector: &Selector) -> Result<(), Error> {
    let listed: Vec<&Requirement> =
        selector.requirements().iter().filter(|item| item.operator() == Operator::In).collect();
    for (at, one) in listed.iter().enumerate() {
        let contradicts = |other: &&&Requirement| {
            other.key() == one.key() && !other.values().iter().any(|value| one.values().contains(value))
        };
        if let Some(other) = listed[at + 1..].iter().find(contradicts) {
            let values = [one.values(), other.values()].concat().join(",");
            return Err(Error::usage(format!(
                "--selector: no node fulfils both \"{one}\" and \"{other}\": all items must hold"
            ))
            .hint(format!("to lend nodes with either: --selector '{}=in ({values})'", one.key())));
        }
    }
    Ok(())
}

fn leave(args: LeaveArgs) -> Result<LeaveSettings, Error> {
    Ok(LeaveSettings {
        cluster: named(args.cluster)?,
        yes: args.yes,
        keep_agent: args.keep_agent,
        kube_context: args.kube.kube_context,
        format: args.output.format,
    })
}
