//! The edge between bytes and meaning: generated messages become types that
//! cannot hold nonsense, once, here. Nothing behind this edge checks again.

use std::num::NonZeroU16;
use std::time::Duration;

use crate::id::{AttemptNumber, BadId, ContainerId, Generation, InstanceId, SessionId, TaskId, WorkspaceId};
use crate::token::Secret;
use crate::{limits, name, v1};

mod clusters;
mod reach;

pub use clusters::{
    Agent, Create, Report, WORKER_ENV, cluster_settings, image, job, node_name, repository, runtime,
};
pub use reach::{Bench, Door, Exec, Size, Tunnel, port};

/// Why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A field that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// An identifier is not one.
    #[error("{what}: {source}")]
    Id {
        /// Which field.
        what: &'static str,
        /// What is wrong with it.
        source: BadId,
    },
    /// A field is longer or larger than allowed.
    #[error("{what} is too long: {length}, the limit is {limit}")]
    TooLong {
        /// Which field.
        what: &'static str,
        /// What came.
        length: usize,
        /// What is allowed.
        limit: usize,
    },
    /// A field holds a value that means nothing.
    #[error("{what} is {value:?}, which is not allowed: {rule}")]
    Value {
        /// Which field.
        what: &'static str,
        /// What came, made printable.
        value: String,
        /// What would be allowed.
        rule: &'static str,
    },
}

fn required_id<T>(what: &'static str, read: Result<Option<T>, BadId>) -> Result<T, Invalid> {
    read.map_err(|source| Invalid::Id { what, source })?.ok_or(Invalid::Missing(what))
}

fn at_most(what: &'static str, length: usize, limit: usize) -> Result<(), Invalid> {
    if length > limit { Err(Invalid::TooLong { what, length, limit }) } else { Ok(()) }
}

/// What a dialer says first.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    /// The versions it speaks, lowest and highest.
    pub versions: (u32, u32),
    /// What it is.
    pub role: v1::Role,
    /// Its token; empty when it has none yet.
    pub token: Secret,
    /// Its process start.
    pub instance: InstanceId,
    /// The session it had.
    pub session: Option<SessionId>,
    /// Whether its carrier is to join that session.
    pub moving: bool,
    /// Its build, printable.
    pub build: String,
    /// What a worker brings.
    pub worker: Option<v1::WorkerFacts>,
    /// What a worker runs.
    pub inventory: Vec<Running>,
    /// What an agent brings.
    pub agent: Option<Agent>,
}

/// One container a worker says it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// Which container.
    pub container: ContainerId,
    /// Which incarnation.
    pub generation: Generation,
    /// The newest event it holds.
    pub last_event: u64,
}

impl TryFrom<v1::Hello> for Hello {
    type Error = Invalid;

    fn try_from(hello: v1::Hello) -> Result<Self, Invalid> {
        at_most("the token", hello.token.len(), limits::TOKEN)?;
        at_most("the inventory", hello.inventory.len(), limits::INVENTORY)?;
        let role = v1::Role::try_from(hello.role).unwrap_or(v1::Role::Unspecified);
        if role == v1::Role::Unspecified {
            let value = hello.role.to_string();
            return Err(Invalid::Value { what: "role", value, rule: "1 cli, 2 worker, 3 agent, 4 replica" });
        }
        let worker = hello.worker.map(clean_facts).transpose()?;
        let agent = hello.agent.map(Agent::try_from).transpose()?;
        let inventory = hello.inventory.iter().map(Running::try_from).collect::<Result<_, _>>()?;
        Ok(Self {
            versions: (hello.version_min, hello.version_max),
            role,
            instance: required_id("instance", InstanceId::from_wire(&hello.instance))?,
            session: SessionId::from_wire(&hello.session)
                .map_err(|source| Invalid::Id { what: "session", source })?,
            moving: hello.moving,
            token: Secret::new(hello.token),
            build: name::printable(&hello.build, 64),
            worker,
            inventory,
            agent,
        })
    }
}

fn clean_facts(facts: v1::WorkerFacts) -> Result<v1::WorkerFacts, Invalid> {
    for (what, amount) in [("cpu", facts.cpu_millis), ("memory", facts.memory_bytes)] {
        if i64::try_from(amount).is_err() {
            return Err(Invalid::Value { what, value: amount.to_string(), rule: "at most 2^63 - 1" });
        }
    }
    Ok(v1::WorkerFacts {
        hostname: name::printable(&facts.hostname, 253),
        gpu_type: gpu_type(&facts.gpu_type)?,
        runtime: name::printable(&facts.runtime, 32),
        node: name::printable(&facts.node, 253),
        gpu_count: facts.gpu_count.min(1024),
        ..facts
    })
}

/// The canonical form of a GPU type: upper case, as `T4` or `A100-80`.
///
/// # Errors
/// When it holds anything but letters, digits and '-', or is too long.
pub fn gpu_type(text: &str) -> Result<String, Invalid> {
    if text.len() > 32 || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        let value = name::printable(text, 40);
        return Err(Invalid::Value {
            what: "gpu type",
            value,
            rule: "letters, digits and '-', as in T4 or A100-80",
        });
    }
    Ok(text.to_ascii_uppercase())
}

impl TryFrom<&v1::RunningContainer> for Running {
    type Error = Invalid;

    fn try_from(running: &v1::RunningContainer) -> Result<Self, Invalid> {
        Ok(Self {
            container: required_id("container", ContainerId::from_wire(&running.container))?,
            generation: Generation(running.generation),
            last_event: running.last_event,
        })
    }
}

/// Environment variables in order. Values may be secrets: `Debug` shows names only.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Env(pub Vec<(String, Vec<u8>)>);

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// A container to run, or to be attached to again.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Which container.
    pub container: ContainerId,
    /// Which incarnation.
    pub generation: Generation,
    /// Events up to this are known.
    pub since_event: u64,
    /// What to run; absent when reattaching.
    pub spec: Option<Spec>,
}

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Whose it is.
    pub workspace: WorkspaceId,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Environment variables, in order.
    pub env: Env,
    /// What it needs.
    pub resources: v1::Resources,
    /// The task it serves.
    pub task: TaskId,
    /// Which try of it.
    pub attempt: AttemptNumber,
    /// How long it may run, from process start.
    pub timeout: Option<Duration>,
    /// A label for people.
    pub name: String,
    /// What the container shows at its doors; empty for none.
    pub token: Secret,
}

impl TryFrom<v1::RunOpen> for Run {
    type Error = Invalid;

    fn try_from(open: v1::RunOpen) -> Result<Self, Invalid> {
        Ok(Self {
            container: required_id("container", ContainerId::from_wire(&open.container))?,
            generation: Generation(open.generation),
            since_event: open.since_event,
            spec: open.spec.map(Spec::try_from).transpose()?,
        })
    }
}

impl TryFrom<v1::ContainerSpec> for Spec {
    type Error = Invalid;

    fn try_from(spec: v1::ContainerSpec) -> Result<Self, Invalid> {
        check_size(&spec.command, &spec.env)?;
        check_command(&spec.command)?;
        Ok(Self {
            workspace: required_id("workspace", WorkspaceId::from_wire(&spec.workspace))?,
            command: spec.command,
            env: check_env(spec.env)?,
            resources: check_resources(spec.resources.unwrap_or_default())?,
            task: required_id("task", TaskId::from_wire(&spec.task))?,
            attempt: AttemptNumber(spec.attempt),
            timeout: (spec.timeout_ms > 0).then(|| Duration::from_millis(spec.timeout_ms)),
            name: name::printable(&spec.name, limits::NAME),
            token: Secret::new(spec.token),
        })
    }
}

/// A job as a user submits it.
#[derive(Debug, Clone, PartialEq)]
pub struct Submit {
    /// A label for people; empty for none.
    pub name: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Environment variables, in order.
    pub env: Env,
    /// What it needs.
    pub resources: v1::Resources,
    /// How long each attempt may run.
    pub timeout: Option<Duration>,
    /// Run on without a caller.
    pub detached: bool,
    /// Retries after a lost container.
    pub max_retries: u32,
    /// Only this pool.
    pub pool: Option<String>,
    /// TCP ports that HTTP requests may reach, each once.
    pub ports: Vec<NonZeroU16>,
    /// Requests need no token.
    pub public: bool,
}

/// Retries after a lost container when the user says nothing.
pub const DEFAULT_RETRIES: u32 = 3;

impl TryFrom<v1::SubmitRequest> for Submit {
    type Error = Invalid;

    fn try_from(submit: v1::SubmitRequest) -> Result<Self, Invalid> {
        check_size(&submit.command, &submit.env)?;
        check_command(&submit.command)?;
        at_most("the name", submit.name.len(), limits::NAME)?;
        let max_retries = submit.max_retries.unwrap_or(DEFAULT_RETRIES);
        if max_retries > 100 {
            let value = max_retries.to_string();
            return Err(Invalid::Value { what: "retries", value, rule: "at most 100" });
        }
        at_most("the list of ports", submit.ports.len(), limits::PORTS)?;
        let mut ports = submit.ports.iter().map(|n| port(*n)).collect::<Result<Vec<_>, _>>()?;
        let mut seen = std::collections::BTreeSet::new();
        ports.retain(|port| seen.insert(*port));
        Ok(Self {
            name: name::printable(&submit.name, limits::NAME),
            command: submit.command,
            env: check_env(submit.env)?,
            resources: check_resources(submit.resources.unwrap_or_default())?,
            timeout: (submit.timeout_ms > 0).then(|| Duration::from_millis(submit.timeout_ms)),
            detached: submit.detached,
            max_retries,
            pool: (!submit.pool.is_empty()).then_some(submit.pool),
            public: submit.public && !ports.is_empty(),
            ports,
        })
    }
}

/// Both travel in one frame.
fn check_size(command: &[String], env: &[v1::EnvVar]) -> Result<(), Invalid> {
    let words = command.iter().map(String::len).chain(env.iter().map(|v| v.name.len() + v.value.len()));
    let bytes = words.map(|length| length + limits::WORD_OVERHEAD).sum();
    at_most("the command with its environment", bytes, limits::COMMAND_BYTES)
}

fn check_command(command: &[String]) -> Result<(), Invalid> {
    let Some(program) = command.first() else { return Err(Invalid::Missing("the command")) };
    if program.is_empty() {
        return Err(Invalid::Missing("the command's name"));
    }
    at_most("the command", command.len(), limits::COMMAND_WORDS)?;
    match command.iter().find(|word| word.contains('\0')) {
        None => Ok(()),
        Some(word) => {
            let value = name::printable(word, 40);
            Err(Invalid::Value { what: "the command", value, rule: "no word may hold a NUL" })
        }
    }
}

fn check_env(env: Vec<v1::EnvVar>) -> Result<Env, Invalid> {
    at_most("the environment", env.len(), limits::ENV_VARS)?;
    let check = |var: v1::EnvVar| {
        let good = !var.name.is_empty() && !var.name.contains(['=', '\0']) && !var.value.contains(&0);
        if good {
            Ok((var.name, var.value))
        } else {
            let value = name::printable(&var.name, 40);
            Err(Invalid::Value { what: "environment variable", value, rule: "a name without '=' and no NUL" })
        }
    };
    env.into_iter().map(check).collect::<Result<_, _>>().map(Env)
}

fn check_resources(resources: v1::Resources) -> Result<v1::Resources, Invalid> {
    for (what, amount) in [("cpu", resources.cpu_millis), ("memory", resources.memory_bytes)] {
        if i64::try_from(amount).is_err() {
            return Err(Invalid::Value { what, value: amount.to_string(), rule: "at most 2^63 - 1" });
        }
    }
    let gpu_type = gpu_type(&resources.gpu_type)?;
    // A type without a count means one card.
    let gpu_count = match (gpu_type.is_empty(), resources.gpu_count) {
        (true, n) if n > 0 => return Err(Invalid::Missing("the type of the GPUs asked for")),
        (false, 0) => 1,
        (_, n) if n > 1024 => {
            return Err(Invalid::Value { what: "gpu count", value: n.to_string(), rule: "at most 1024" });
        }
        (_, n) => n,
    };
    Ok(v1::Resources { gpu_type, gpu_count, ..resources })
}
