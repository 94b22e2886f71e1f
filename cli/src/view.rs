//! What listings show: the fields scripts read from `--format json`, and the
//! columns people see. Field names stay. Ids are text, empty where there is
//! none; times are milliseconds since the Unix epoch (`*_unix_ms`), `null`
//! where the thing has not happened; sizes are bytes, CPU is thousandths of a
//! core, durations are milliseconds.

mod clusters;

use std::time::Duration;

use levers9_wire::quantity::{show_cpu, show_duration, show_memory};
use levers9_wire::{TaskId, v1};
use serde::Serialize;

pub use clusters::{ClusterView, NodeView, NodeWhyView, NodesView, OrphanView, WhyPlaceView, WhyView};

use crate::printer::Listing;

/// An id as text; empty when there is none.
#[must_use]
pub fn id_text(id: &[u8]) -> String {
    // Every kind of id has the same form.
    TaskId::try_from(id).map(|id| id.to_string()).unwrap_or_default()
}

fn age(since_unix_ms: u64, now_unix_ms: u64) -> String {
    show_duration(Duration::from_secs(now_unix_ms.saturating_sub(since_unix_ms) / 1000))
}

/// What a task or container asked for.
#[derive(Debug, Serialize)]
pub struct ResourcesView {
    /// Thousandths of a core.
    pub cpu_millis: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Empty for none.
    pub gpu_type: String,
    /// Cards.
    pub gpu_count: u32,
}

impl From<Option<v1::Resources>> for ResourcesView {
    fn from(resources: Option<v1::Resources>) -> Self {
        let v1::Resources { cpu_millis, memory_bytes, gpu_type, gpu_count, .. } =
            resources.unwrap_or_default();
        Self { cpu_millis, memory_bytes, gpu_type, gpu_count }
    }
}

impl ResourcesView {
    /// For people: `500m CPU, 1Gi, 2 × T4`.
    #[must_use]
    pub fn words(&self) -> String {
        let mut words = Vec::new();
        if self.cpu_millis > 0 {
            words.push(format!("{} CPU", show_cpu(self.cpu_millis)));
        }
        if self.memory_bytes > 0 {
            words.push(show_memory(self.memory_bytes));
        }
        if self.gpu_count > 0 {
            words.push(format!("{} × {}", self.gpu_count, self.gpu_type));
        }
        words.join(", ")
    }
}

/// One task.
#[derive(Debug, Serialize)]
pub struct TaskView {
    /// Its id.
    pub id: String,
    /// Its name; may be empty.
    pub name: String,
    /// PENDING, RUNNING, COMPLETE, ERROR, CANCELLED, TIMEOUT, RETRY or EXPIRED.
    pub status: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// When it was submitted.
    pub created_unix_ms: u64,
    /// When its last attempt started.
    pub started_unix_ms: Option<u64>,
    /// When it ended.
    pub ended_unix_ms: Option<u64>,
    /// The command's own code.
    pub exit_code: Option<i32>,
    /// Why it ended as it did; may be empty.
    pub reason: String,
    /// Attempts so far.
    pub attempts: u32,
    /// Retries it may have after a lost container.
    pub max_retries: u32,
    /// The container of its last attempt.
    pub container: String,
    /// The worker of its last attempt.
    pub worker: String,
    /// The pool it must run in, or runs in.
    pub pool: String,
    /// What it asked for.
    pub resources: ResourcesView,
    /// Whether it runs on without a caller.
    pub detached: bool,
    /// The limit of each attempt; 0 for none.
    pub timeout_ms: u64,
    /// TCP ports that HTTP requests may reach.
    pub ports: Vec<u32>,
    /// Whether they need no token.
    pub public: bool,
    /// Where each of the ports is reached, in their order.
    pub urls: Vec<String>,
}

impl From<v1::Task> for TaskView {
    fn from(task: v1::Task) -> Self {
        Self {
            id: id_text(&task.id),
            name: task.name,
            status: task.status,
            command: task.command,
            created_unix_ms: task.created_unix_ms,
            started_unix_ms: task.started_unix_ms,
            ended_unix_ms: task.ended_unix_ms,
            exit_code: task.exit_code,
            reason: task.reason,
            attempts: task.attempts,
            max_retries: task.max_retries,
            container: id_text(&task.container),
            worker: id_text(&task.worker),
            pool: task.pool,
            resources: task.resources.into(),
            detached: task.detached,
            timeout_ms: task.timeout_ms,
            ports: task.ports,
            public: task.public,
            urls: task.urls,
        }
    }
}

impl Listing for TaskView {
    const HEADS: &'static [&'static str] = &["TASK", "NAME", "STATUS", "EXIT", "AGE", "TOOK", "COMMAND"];

    fn cells(&self, now: u64) -> Vec<String> {
        let took = self.started_unix_ms.map(|started| age(started, self.ended_unix_ms.unwrap_or(now)));
        vec![
            self.id.clone(),
            self.name.clone(),
            self.status.clone(),
            self.exit_code.map(|code| code.to_string()).unwrap_or_default(),
            age(self.created_unix_ms, now),
            took.unwrap_or_default(),
            self.command.join(" "),
        ]
    }
}

/// One attempt of a task.
#[derive(Debug, Serialize)]
pub struct AttemptView {
    /// From 1.
    pub number: u32,
    /// The container it ran in.
    pub container: String,
    /// Which incarnation of it.
    pub generation: u64,
    /// The worker it ran on.
    pub worker: String,
    /// How far it is.
    pub state: String,
    /// When it was placed.
    pub created_unix_ms: u64,
    /// When it ended.
    pub ended_unix_ms: Option<u64>,
    /// Why it ended as it did; may be empty.
    pub reason: String,
}

impl From<v1::Attempt> for AttemptView {
    fn from(attempt: v1::Attempt) -> Self {
        Self {
            number: attempt.number,
            container: id_text(&attempt.container),
            generation: attempt.generation,
            worker: id_text(&attempt.worker),
            state: attempt.state,
            created_unix_ms: attempt.created_unix_ms,
            ended_unix_ms: attempt.ended_unix_ms,
            reason: attempt.reason,
        }
    }
}

impl Listing for AttemptView {
    const HEADS: &'static [&'static str] = &["ATTEMPT", "STATE", "CONTAINER", "WORKER", "AGE", "REASON"];

    fn cells(&self, now: u64) -> Vec<String> {
        vec![
            self.number.to_string(),
            self.state.clone(),
            self.container.clone(),
            self.worker.clone(),
            age(self.created_unix_ms, now),
            self.reason.clone(),
        ]
    }
}

/// `task show`: the task's own fields, and its attempts.
#[derive(Debug, Serialize)]
pub struct TaskDetails {
    /// The task.
    #[serde(flatten)]
    pub task: TaskView,
    /// Its attempts, first to last.
    pub attempt_list: Vec<AttemptView>,
}

/// One container.
#[derive(Debug, Serialize)]
pub struct ContainerView {
    /// Its id.
    pub id: String,
    /// Which incarnation.
    pub generation: u64,
    /// How far it is.
    pub state: String,
    /// The worker it is on.
    pub worker: String,
    /// The task it serves.
    pub task: String,
    /// The name of what it runs; may be empty.
    pub name: String,
    /// What it was given.
    pub resources: ResourcesView,
    /// When it was placed.
    pub created_unix_ms: u64,
}

impl From<v1::Container> for ContainerView {
    fn from(container: v1::Container) -> Self {
        Self {
            id: id_text(&container.id),
            generation: container.generation,
            state: container.state,
            worker: id_text(&container.worker),
            task: id_text(&container.task),
            name: container.name,
            resources: container.resources.into(),
            created_unix_ms: container.created_unix_ms,
        }
    }
}

impl Listing for ContainerView {
    const HEADS: &'static [&'static str] =
        &["CONTAINER", "STATE", "TASK", "WORKER", "RESOURCES", "AGE", "NAME"];

    fn cells(&self, now: u64) -> Vec<String> {
        vec![
            self.id.clone(),
            self.state.clone(),
            self.task.clone(),
            self.worker.clone(),
            self.resources.words(),
            age(self.created_unix_ms, now),
            self.name.clone(),
        ]
    }
}

/// One worker.
#[derive(Debug, Serialize)]
pub struct WorkerView {
    /// Its id.
    pub id: String,
    /// Its pool.
    pub pool: String,
    /// Whether it is connected.
    pub state: String,
    /// The machine's name.
    pub hostname: String,
    /// Thousandths of a core in all.
    pub cpu_millis: u64,
    /// Of those, not reserved.
    pub cpu_free_millis: u64,
    /// Bytes in all.
    pub memory_bytes: u64,
    /// Of those, not reserved.
    pub memory_free_bytes: u64,
    /// Empty for none.
    pub gpu_type: String,
    /// Cards in all.
    pub gpu_count: u32,
    /// Of those, free.
    pub gpu_free: u32,
    /// How it runs containers.
    pub runtime: String,
    /// Containers on it.
    pub containers: u32,
    /// Whether it serves every workspace.
    pub shared: bool,
    /// Its version.
    pub build: String,
    /// Round-trip time of the last ping in microseconds; `null` when unknown.
    pub rtt_us: Option<u64>,
    /// When it enrolled.
    pub created_unix_ms: u64,
    /// What an operator should know; may be empty.
    pub note: String,
    /// The node it is on; empty outside Kubernetes.
    pub node: String,
    /// What its session rides on: quic, tcp or proxy; empty without one.
    pub carrier: String,
    /// Why it is no better one; empty for quic.
    pub carrier_why: String,
}

/// A round trip of so many microseconds.
pub(crate) fn rtt(us: u64) -> String {
    format!("{}.{}ms", us / 1000, us % 1000 / 100)
}

/// A note, and what a session rides on where that is not as it should be.
pub(crate) fn with_carrier(note: &str, carrier: &str, why: &str) -> String {
    let fallback = match carrier {
        "" | "quic" => return note.to_owned(),
        _ if why.is_empty() => format!("over {carrier}"),
        _ => format!("over {carrier}: {why}"),
    };
    if note.is_empty() { fallback } else { format!("{note}; {fallback}") }
}

impl From<v1::Worker> for WorkerView {
    fn from(worker: v1::Worker) -> Self {
        Self {
            id: id_text(&worker.id),
            pool: worker.pool,
            state: worker.state,
            hostname: worker.hostname,
            cpu_millis: worker.cpu_millis,
            cpu_free_millis: worker.cpu_free_millis,
            memory_bytes: worker.memory_bytes,
            memory_free_bytes: worker.memory_free_bytes,
            gpu_type: worker.gpu_type,
            gpu_count: worker.gpu_count,
            gpu_free: worker.gpu_free,
            runtime: worker.runtime,
            containers: worker.containers,
            shared: worker.shared,
            build: worker.build,
            rtt_us: Some(worker.rtt_us).filter(|rtt| *rtt > 0),
            created_unix_ms: worker.created_unix_ms,
            note: worker.note,
            node: worker.node,
            carrier: worker.carrier,
            carrier_why: worker.carrier_why,
        }
    }
}

impl Listing for WorkerView {
    const HEADS: &'static [&'static str] = &[
        "WORKER",
        "POOL",
        "STATE",
        "HOST",
        "NODE",
        "CPU FREE",
        "MEMORY FREE",
        "GPU FREE",
        "JOBS",
        "RTT",
        "NOTE",
    ];
    const OPTIONAL: &'static [&'static str] = &["NODE"];

    fn cells(&self, _now: u64) -> Vec<String> {
        let gpus = format!("{}/{} {}", self.gpu_free, self.gpu_count, self.gpu_type);
        vec![
            self.id.clone(),
            self.pool.clone(),
            self.state.clone(),
            self.hostname.clone(),
            self.node.clone(),
            format!("{}/{}", show_cpu(self.cpu_free_millis), show_cpu(self.cpu_millis)),
            format!("{}/{}", show_memory(self.memory_free_bytes), show_memory(self.memory_bytes)),
            if self.gpu_count > 0 { gpus } else { String::new() },
            self.containers.to_string(),
            self.rtt_us.map(rtt).unwrap_or_default(),
            with_carrier(&self.note, &self.carrier, &self.carrier_why),
        ]
    }
}

/// One workspace.
#[derive(Debug, Serialize)]
pub struct WorkspaceView {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created_unix_ms: u64,
}

impl From<v1::Workspace> for WorkspaceView {
    fn from(workspace: v1::Workspace) -> Self {
        let v1::Workspace { id, name, created_unix_ms } = workspace;
        Self { id: id_text(&id), name, created_unix_ms }
    }
}

impl Listing for WorkspaceView {
    const HEADS: &'static [&'static str] = &["WORKSPACE", "NAME", "AGE"];

    fn cells(&self, now: u64) -> Vec<String> {
        vec![self.id.clone(), self.name.clone(), age(self.created_unix_ms, now)]
    }
}

/// One token, without its secret.
#[derive(Debug, Serialize)]
pub struct TokenView {
    /// Its id.
    pub id: String,
    /// What its holder may do.
    pub kind: String,
    /// Its first and last characters.
    pub hint: String,
    /// The workspace it is of.
    pub workspace: String,
    /// When it was created.
    pub created_unix_ms: u64,
    /// When it was last used.
    pub last_used_unix_ms: Option<u64>,
    /// When it ends by itself.
    pub expires_unix_ms: Option<u64>,
}

impl From<v1::Token> for TokenView {
    fn from(token: v1::Token) -> Self {
        Self {
            id: id_text(&token.id),
            kind: token.kind,
            hint: token.hint,
            workspace: token.workspace_name,
            created_unix_ms: token.created_unix_ms,
            last_used_unix_ms: token.last_used_unix_ms,
            expires_unix_ms: token.expires_unix_ms,
        }
    }
}

impl Listing for TokenView {
    const HEADS: &'static [&'static str] = &["TOKEN", "KIND", "WORKSPACE", "HINT", "AGE", "LAST USED"];

    fn cells(&self, now: u64) -> Vec<String> {
        let used = self.last_used_unix_ms.map(|at| format!("{} ago", age(at, now)));
        vec![
            self.id.clone(),
            self.kind.clone(),
            self.workspace.clone(),
            self.hint.clone(),
            age(self.created_unix_ms, now),
            used.unwrap_or_else(|| "never".to_owned()),
        ]
    }
}

/// One context on this machine, without its token.
#[derive(Debug, Serialize)]
pub struct ContextView {
    /// Its name.
    pub name: String,
    /// Whether it counts when none is named.
    pub default: bool,
    /// Where to dial and whom to trust; `null` when not known.
    pub address: Option<String>,
    /// What kind its token is: `none`, `malformed`, or a kind.
    pub token_kind: &'static str,
    /// The SDK's host; may be empty.
    pub controlplane_host: String,
    /// The SDK's port; may be empty.
    pub controlplane_port: String,
    /// The SDK's URL for REST; may be empty.
    pub controlplane_http_url: String,
    /// The SDK's choice of TLS: `true`, `false` or empty.
    pub tls: String,
}

impl Listing for ContextView {
    const HEADS: &'static [&'static str] = &["", "CONTEXT", "TOKEN", "SDK", "ADDRESS"];

    fn cells(&self, _now: u64) -> Vec<String> {
        vec![
            if self.default { "*" } else { "" }.to_owned(),
            self.name.clone(),
            self.token_kind.to_owned(),
            format!("{}:{}", self.controlplane_host, self.controlplane_port),
            self.address.clone().unwrap_or_default(),
        ]
    }
}
