//! What a task, an attempt and a container look like outside the database,
//! and the closed sets of words for where each is in its life. The statements
//! are in `tasks`, `calls`, `placement` and `events`.

use levers9_wire::id::StubId;
use levers9_wire::v1::Resources;
use levers9_wire::{AttemptNumber, ContainerId, Generation, TaskId, WorkerId, WorkspaceId};

use super::Scope;
use crate::seal::Sealed;

macro_rules! words_of {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word in listings and in the database.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The value of a word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.word() == word)
            }
        }
    };
}

words_of! {
    /// Where a task is in its life.
    TaskStatus {
        /// Never ran yet.
        Pending = "PENDING",
        /// An attempt runs.
        Running = "RUNNING",
        /// Ended well.
        Complete = "COMPLETE",
        /// Ended with an error of its own or of the system.
        Error = "ERROR",
        /// Ended because somebody wanted it to.
        Cancelled = "CANCELLED",
        /// Ended because an attempt ran too long.
        Timeout = "TIMEOUT",
        /// An attempt was lost; another will follow.
        Retry = "RETRY",
        /// Ended before it ever ran: nobody took it in time.
        Expired = "EXPIRED",
    }
}

impl TaskStatus {
    /// Those a task leaves again.
    pub const LIVE: [Self; 3] = [Self::Pending, Self::Running, Self::Retry];

    /// Whether nothing follows.
    #[must_use]
    pub fn is_final(self) -> bool {
        !Self::LIVE.contains(&self)
    }

    /// Whether the task wants a place.
    #[must_use]
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::Pending | Self::Retry)
    }
}

words_of! {
    /// Where an attempt is in its life.
    AttemptState {
        /// Given to a worker that has not started it yet.
        Placed = "placed",
        /// Its process runs.
        Running = "running",
        /// Its worker is away. It counts again when the worker returns before
        /// another attempt is placed.
        Unreachable = "unreachable",
        /// Ended by itself with exit code 0.
        Complete = "complete",
        /// Ended with an error, or never started.
        Failed = "failed",
        /// Stopped because somebody wanted it.
        Cancelled = "cancelled",
        /// Stopped because it ran too long.
        TimedOut = "timed_out",
        /// Its container is gone and nobody knows how it ended.
        Lost = "lost",
    }
}

impl AttemptState {
    /// Whether the attempt has ended.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Placed | Self::Running | Self::Unreachable)
    }

    /// Whether a worker that is there has it.
    #[must_use]
    pub fn is_held(self) -> bool {
        matches!(self, Self::Placed | Self::Running)
    }
}

words_of! {
    /// Where a container is in its life.
    ContainerState {
        /// Given to a worker that has not started it yet.
        Placed = "placed",
        /// It runs.
        Running = "running",
        /// Its worker is away.
        Unreachable = "unreachable",
        /// It is no more.
        Ended = "ended",
    }
}

/// A function, command or box to register, or to find registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewStub {
    /// Its identity, unless the same one is registered already.
    pub id: StubId,
    /// The kind of stub: `command`, `function`, `endpoint`…
    pub kind: String,
    /// What people call it; may be empty.
    pub name: String,
    /// Its configuration as received.
    pub config: Vec<u8>,
    /// The SHA-256 of that; with workspace, kind and name it tells stubs apart.
    pub config_hash: [u8; 32],
    /// The code it runs.
    pub object: Option<Vec<u8>>,
    /// The image it runs in.
    pub image: Option<Vec<u8>>,
}

/// A task to submit.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// Its identity.
    pub id: TaskId,
    /// Whose it is.
    pub workspace: WorkspaceId,
    /// A label for people.
    pub name: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The environment, sealed.
    pub env: Sealed,
    /// What it needs.
    pub resources: Resources,
    /// How long each attempt may run.
    pub timeout_ms: Option<i64>,
    /// Retries after a lost container.
    pub max_retries: u32,
    /// Runs on without a caller.
    pub detached: bool,
    /// Only this pool.
    pub pool: Option<String>,
    /// What HTTP requests may reach of it.
    pub exposed: Option<Exposed>,
    /// When it was submitted.
    pub created_ms: i64,
}

/// What HTTP requests may reach of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposed {
    /// Names it everywhere; no other task has ever had it.
    pub slug: String,
    /// TCP ports of its container; never empty.
    pub ports: Vec<u16>,
    /// Requests need no token.
    pub public: bool,
}

/// What became of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// The task is stored.
    New,
    /// The request was answered before, with this.
    Repeated(Sealed),
}

/// A task, without its environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its identity.
    pub id: TaskId,
    /// Whose it is.
    pub workspace: WorkspaceId,
    /// What it is a call of.
    pub stub: StubId,
    /// A label for people.
    pub name: String,
    /// Where it is in its life.
    pub status: TaskStatus,
    /// When it was submitted.
    pub created_ms: i64,
    /// When its first process started.
    pub started_ms: Option<i64>,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// What its process returned.
    pub exit_code: Option<i32>,
    /// Why it is where it is, in words; may be empty.
    pub reason: String,
    /// How many attempts were placed: the number of the current one, or 0.
    pub attempts: u32,
    /// Retries after a lost container.
    pub max_retries: u32,
    /// How long each attempt may run.
    pub timeout_ms: Option<i64>,
    /// Runs on without a caller.
    pub detached: bool,
    /// Only this pool.
    pub pool: Option<String>,
    /// Since when nobody follows it; none while somebody does.
    pub callers_gone_ms: Option<i64>,
    /// Why somebody wants it to end.
    pub cancel_reason: Option<String>,
    /// Line numbers below this are given out.
    pub lines_reserved: u64,
    /// What HTTP requests may reach of it.
    pub exposed: Option<Exposed>,
    /// What it needs.
    pub resources: Resources,
    /// The command and its arguments.
    pub command: Vec<String>,
}

/// One try of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Of which task.
    pub task: TaskId,
    /// Which try, from 1.
    pub number: AttemptNumber,
    /// Where it runs.
    pub container: ContainerId,
    /// Which incarnation of that.
    pub generation: Generation,
    /// On which worker.
    pub worker: WorkerId,
    /// Where it is in its life.
    pub state: AttemptState,
    /// The line number of its record 0.
    pub base_line: u64,
    /// When it was placed.
    pub created_ms: i64,
    /// When its process started.
    pub started_ms: Option<i64>,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// Why, in words; may be empty.
    pub reason: String,
    /// Log records below this index are durable.
    pub log_next: u64,
    /// How many log records there are in all, once that is known.
    pub log_total: Option<u64>,
}

/// What a worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its identity.
    pub id: ContainerId,
    /// Which incarnation.
    pub generation: Generation,
    /// Whose it is.
    pub workspace: WorkspaceId,
    /// Who runs it.
    pub worker: WorkerId,
    /// What it runs.
    pub stub: StubId,
    /// Where it is in its life.
    pub state: ContainerState,
    /// CPU it holds, in thousandths of a core.
    pub cpu_millis: u64,
    /// Memory it holds.
    pub memory_bytes: u64,
    /// Which cards it holds.
    pub gpu_type: String,
    /// How many.
    pub gpu_count: u32,
    /// When it was placed.
    pub created_ms: i64,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// The newest of its events that is stored.
    pub last_event: u64,
}

/// A task with its current attempt and that attempt's container.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskNow {
    /// The task.
    pub task: Task,
    /// Its newest attempt, once one was placed.
    pub attempt: Option<Attempt>,
    /// Where that runs or ran.
    pub container: Option<Container>,
}

impl TaskNow {
    /// Whether a worker has its current attempt, and that has not ended.
    #[must_use]
    pub fn is_on(&self, worker: WorkerId) -> bool {
        self.attempt.as_ref().is_some_and(|a| a.worker == worker && !a.state.is_final())
    }
}

/// Which tasks a list holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFilter {
    /// Whose.
    pub scope: Scope,
    /// Only in these states; empty for any.
    pub statuses: Vec<TaskStatus>,
    /// Only older than this one: the next page.
    pub before: Option<TaskId>,
    /// At most so many, never above 1,000.
    pub limit: u32,
}
