//! From a command line, the environment and the files to plain settings. A
//! flag counts before a variable, a variable before a file; this is the only
//! place where that is decided. Nothing here talks to a controlplane.

mod cluster;
mod inspect;
mod job;
mod local;
mod manage;
mod reach;
mod selector;

use levers9_transport::Address;
use levers9_transport::tcp::Proxies;
use levers9_wire::token::{self, Secret};

pub use cluster::{ClusterAction, ClusterSettings, JoinSettings, LeaveSettings, RotateSettings, WhySettings};
pub use inspect::{BenchSettings, DoctorSettings, SessionSettings};
pub use job::{AttachSettings, LogsSettings, RunSettings};
pub use local::{
    ConfigAction, ConfigSettings, DevSettings, LoginSettings, NewContext, SdkEndpoint, TokenSource,
    VersionSettings,
};
pub use manage::{
    ContainerAction, ContainerSettings, TaskAction, TaskSettings, TokenAction, TokenSettings, WorkerAction,
    WorkerSettings, WorkspaceAction, WorkspaceSettings,
};
pub use reach::{ExecSettings, Forward, PortForwardSettings, TerminalWish};

use crate::args::{Cli, Command};
use crate::config::DEFAULT;
use crate::contexts::{Contexts, Store};
use crate::env::{self, Env};
use crate::error::Error;

/// One command with all it needs to know.
#[derive(Debug)]
pub enum Action {
    /// `run`
    Run(RunSettings),
    /// `logs`
    Logs(LogsSettings),
    /// `attach`
    Attach(AttachSettings),
    /// `exec` and `shell`
    Exec(ExecSettings),
    /// `port-forward`
    PortForward(PortForwardSettings),
    /// `task`
    Task(TaskSettings),
    /// `container`
    Container(ContainerSettings),
    /// `worker`
    Worker(WorkerSettings),
    /// `cluster`
    Cluster(ClusterSettings),
    /// `why`
    Why(WhySettings),
    /// `workspace`
    Workspace(WorkspaceSettings),
    /// `token`
    Token(TokenSettings),
    /// `login`
    Login(LoginSettings),
    /// `config`
    Config(ConfigSettings),
    /// `doctor`
    Doctor(DoctorSettings),
    /// `session`
    Session(SessionSettings),
    /// `bench`
    Bench(BenchSettings),
    /// `version`
    Version(VersionSettings),
    /// `dev`
    Dev(DevSettings),
    /// `completions`
    Completions(clap_complete::Shell),
}

/// Which controlplane to talk to, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where it is and whom to trust there.
    pub address: Address,
    /// The token to show; empty only for the one call that gets the first one.
    pub token: Secret,
    /// Which proxies lead there, where nothing else does.
    pub proxies: Proxies,
}

/// Makes settings of a command line.
///
/// # Errors
/// When a value makes no sense, or a file cannot be read or lacks what is needed.
pub fn resolve(cli: Cli, env: &Env) -> Result<Action, Error> {
    let context = cli.context.as_deref();
    let target = || target(context, env);
    // The arguments are checked before the files, so that a typing mistake is
    // reported as one wherever the command is typed.
    Ok(match cli.command {
        Command::Run(args) => Action::Run(job::run(args, env, target)?),
        Command::Logs(args) => Action::Logs(job::logs(&args, target)?),
        Command::Attach(args) => Action::Attach(job::attach(&args, target)?),
        Command::Exec(args) => Action::Exec(reach::exec(args, env, target)?),
        Command::Shell(args) => Action::Exec(reach::shell(args, env, target)?),
        Command::PortForward(args) => Action::PortForward(reach::port_forward(&args, target)?),
        Command::Task(args) => Action::Task(manage::task(args.command, target)?),
        Command::Container(args) => Action::Container(manage::container(args.command, target)?),
        Command::Worker(args) => Action::Worker(manage::worker(args.command, target)?),
        Command::Cluster(args) => Action::Cluster(cluster::cluster(args.command, env, target)?),
        Command::Why(args) => Action::Why(cluster::why(&args, target)?),
        Command::Workspace(args) => Action::Workspace(manage::workspace(args.command, target)?),
        Command::Token(args) => Action::Token(manage::token(args.command, target)?),
        Command::Login(args) => Action::Login(local::login(args, context, env)?),
        Command::Config(args) => Action::Config(local::config(args.command, env)?),
        Command::Doctor(args) => Action::Doctor(inspect::doctor(&args, target)?),
        Command::Session(args) => Action::Session(inspect::session(&args, target)?),
        Command::Bench(args) => Action::Bench(inspect::bench(&args, target)?),
        Command::Version(args) => Action::Version(VersionSettings {
            target: local::target_if_any(context, env)?,
            format: args.format,
        }),
        Command::Dev(args) => Action::Dev(local::dev(args, env)?),
        Command::Completions { shell } => Action::Completions(shell),
    })
}

/// The context's name by flag or variable, and whether it was the flag.
fn named<'a>(flag: Option<&'a str>, env: &'a Env) -> (Option<&'a str>, bool) {
    (flag.or_else(|| env.get(env::CONTEXT)), flag.is_some())
}

fn proxies(env: &Env) -> Proxies {
    Proxies::of(|name| env.get(name).map(str::to_owned))
}

/// Whom to talk to: a context named by flag as it is stored; otherwise what
/// the variables say, and the rest from the context.
fn target(flag: Option<&str>, env: &Env) -> Result<Target, Error> {
    let (name, by_flag) = named(flag, env);
    let variable = |name| env.get(name).filter(|_| !by_flag);
    let address = variable(env::ADDRESS).map(|text| address(text, env::ADDRESS)).transpose()?;
    let given = variable(env::TOKEN).map(Secret::new);
    if address.is_some() && given.is_none() {
        return Err(Error::usage(format!("{} is set without {}", env::ADDRESS, env::TOKEN))
            .hint("set both: a stored token is sent only to the controlplane it was stored for"));
    }
    let (address, secret, whose) = match (address, given) {
        (Some(address), Some(given)) => (address, given, format!("the token in {}", env::TOKEN)),
        (_, given) => {
            let store = Store::of_env(env)?;
            let contexts = store.load()?;
            let name = known(name, &contexts, &store)?;
            let context = contexts.get(name).ok_or_else(|| unknown(name, &contexts, &store))?;
            let address = context.address.ok_or_else(|| no_address(name))?;
            match given {
                Some(given) => (address, given, format!("the token in {}", env::TOKEN)),
                None => (address, context.section.token, format!("the token of context {name:?}")),
            }
        }
    };
    token::kind_of(secret.expose()).map_err(|problem| {
        let hint = format!("log in again: levers9 login {address}");
        Error::failed(format!("{whose} cannot be used")).because(problem).hint(hint)
    })?;
    Ok(Target { address, token: secret, proxies: proxies(env) })
}

fn known<'a>(name: Option<&'a str>, contexts: &Contexts, store: &Store) -> Result<&'a str, Error> {
    match name {
        Some(name) => Ok(name),
        None if contexts.has_default() => Ok(DEFAULT),
        None => Err(no_default(contexts, store)),
    }
}

fn no_default(contexts: &Contexts, store: &Store) -> Error {
    let others: Vec<&str> = contexts.names().filter(|name| *name != DEFAULT).collect();
    let path = store.path().display();
    match others.first() {
        None => Error::failed(format!("no controlplane is configured: {path} holds no context")).hint(
            "start one on this machine: levers9 dev; or log in to one: levers9 login levers9://HOST:443#sha256:…",
        ),
        Some(first) => Error::failed(format!("no context is selected in {path}; it holds {}", others.join(", ")))
            .hint(format!("select one: levers9 config select {first}")),
    }
}

fn unknown(name: &str, contexts: &Contexts, store: &Store) -> Error {
    let names: Vec<&str> = contexts.names().collect();
    let error = Error::failed(format!("there is no context {name:?} in {}", store.path().display()));
    if names.is_empty() {
        error.hint(format!(
            "log in to a controlplane: levers9 login levers9://HOST:443#sha256:… --context {name}"
        ))
    } else {
        error.hint(format!("there are {}", names.join(", ")))
    }
}

fn no_address(name: &str) -> Error {
    Error::failed(format!(
        "the address of context {name:?} is not known: only the Python SDK's part of it is stored"
    ))
    .hint(format!("log in once with the address: levers9 login levers9://HOST:443#sha256:… --context {name}"))
}

/// An address from a flag, argument or variable of this name.
fn address(text: &str, of: &str) -> Result<Address, Error> {
    text.parse().map_err(|problem| Error::usage(of.to_owned()).because(problem))
}

/// An id from an argument of this name.
fn id<T: std::str::FromStr<Err = levers9_wire::id::BadId>>(text: &str, of: &str) -> Result<T, Error> {
    text.parse().map_err(|problem| Error::usage(of.to_owned()).because(problem))
}

#[cfg(test)]
mod tests;
