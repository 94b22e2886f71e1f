//! Settings of the commands that run and follow jobs.

use levers9_wire::{TaskId, quantity, v1, valid};

use super::{Target, id};
use crate::args::{AttachArgs, Format, LogsArgs, RunArgs};
use crate::env::Env;
use crate::error::Error;

/// `levers9 run`
#[derive(Debug, Clone, PartialEq)]
pub struct RunSettings {
    /// Whom to ask.
    pub target: Target,
    /// The job, checked.
    pub job: v1::SubmitRequest,
    /// How to print.
    pub format: Format,
}

/// `levers9 logs`
#[derive(Debug, Clone, PartialEq)]
pub struct LogsSettings {
    /// Whom to ask.
    pub target: Target,
    /// What to read from where on.
    pub open: v1::FollowOpen,
    /// How to print.
    pub format: Format,
}

/// `levers9 attach`
#[derive(Debug, Clone, PartialEq)]
pub struct AttachSettings {
    /// Whom to ask.
    pub target: Target,
    /// Which task.
    pub task: TaskId,
    /// Print what comes after this line.
    pub since_line: u64,
    /// How to print.
    pub format: Format,
}

pub(super) fn run(
    args: RunArgs,
    env: &Env,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<RunSettings, Error> {
    let format = args.output.format;
    let job = job(args, env)?;
    Ok(RunSettings { target: target()?, job, format })
}

pub(super) fn logs(
    args: &LogsArgs,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<LogsSettings, Error> {
    // Tasks and containers have ids of one form; the controlplane knows which it is.
    let id: TaskId = id(&args.id, "TASK|CONTAINER")?;
    let open = v1::FollowOpen {
        id: id.to_wire(),
        since_line: args.since_line.unwrap_or_default(),
        tail: args.tail,
        follow: args.follow,
        caller: false,
        skip_stdout: args.stderr,
        skip_stderr: args.stdout,
    };
    Ok(LogsSettings { target: target()?, open, format: args.output.format })
}

pub(super) fn attach(
    args: &AttachArgs,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<AttachSettings, Error> {
    let task = id(&args.task, "TASK")?;
    let since_line = args.since_line.unwrap_or_default();
    Ok(AttachSettings { target: target()?, task, since_line, format: args.output.format })
}

fn job(args: RunArgs, env: &Env) -> Result<v1::SubmitRequest, Error> {
    let cpu = args.cpu.as_deref().map(|text| amount("--cpu", quantity::cpu_millis(text))).transpose()?;
    let memory =
        args.memory.as_deref().map(|text| amount("--memory", quantity::memory_bytes(text))).transpose()?;
    let timeout = args.timeout.as_deref().map(|text| amount("--timeout", limit(text))).transpose()?;
    let job = v1::SubmitRequest {
        name: args.name.unwrap_or_default(),
        command: args.command,
        env: args.env.iter().map(|pair| variable(pair, env)).collect::<Result<_, _>>()?,
        resources: Some(v1::Resources {
            cpu_millis: cpu.unwrap_or_default(),
            memory_bytes: memory.unwrap_or_default(),
            gpu_type: args.gpu.unwrap_or_default(),
            gpu_count: args.gpu_count.unwrap_or_default(),
            cpu_given: cpu.is_some(),
            memory_given: memory.is_some(),
        }),
        timeout_ms: timeout.map_or(0, |t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX)),
        detached: args.detach,
        max_retries: args.retries,
        pool: args.pool.unwrap_or_default(),
        ports: once_each(args.ports),
        public: args.public,
    };
    // The controlplane checks by the same rules; here the answer costs nothing.
    valid::Submit::try_from(job.clone()).map_err(|e| Error::usage("the job is refused").because(e))?;
    Ok(job)
}

/// Without what was said before: each has one URL in the answer.
fn once_each(mut ports: Vec<u32>) -> Vec<u32> {
    let mut seen = std::collections::BTreeSet::new();
    ports.retain(|port| seen.insert(*port));
    ports
}

fn amount<T>(flag: &str, read: Result<T, quantity::BadAmount>) -> Result<T, Error> {
    read.map_err(|problem| Error::usage(flag).because(problem))
}

/// `K=V`, or `K` for the value it has here. The error quotes no value.
pub(super) fn variable(pair: &str, env: &Env) -> Result<v1::EnvVar, Error> {
    let (name, value) = match pair.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (pair, env.get_even_empty(pair)),
    };
    match value {
        Some(value) if !name.is_empty() => {
            Ok(v1::EnvVar { name: name.to_owned(), value: value.as_bytes().to_vec() })
        }
        Some(_) => Err(Error::usage("--env: a value without a name").hint("write --env NAME=VALUE")),
        None => Err(Error::usage(format!("--env {name}: this variable is not set here"))
            .hint(format!("set it, or write --env {name}=VALUE"))),
    }
}

/// A duration that limits something: zero would mean none.
fn limit(text: &str) -> Result<std::time::Duration, quantity::BadAmount> {
    match quantity::duration(text)? {
        zero if zero.is_zero() => Err(quantity::BadAmount::Zero(text.to_owned())),
        limit => Ok(limit),
    }
}
