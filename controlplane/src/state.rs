//! What the rooms of the controlplane share: the store, the keys, who is
//! connected, the live logs, and the bells that wake the scheduler. It holds
//! no decision of its own.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use levers9_transport::cert::CertResolver;
use levers9_transport::{Address, Trust};
use levers9_wire::InstanceId;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clusters::Clusters;
use crate::config::WorkerDefaults;
use crate::ingress::Serving;
use crate::limiter::FailureLimiter;
use crate::logs::Logs;
use crate::places::Places;
use crate::ports::Doors;
use crate::reach::{Benches, Counts};
use crate::recover::Refreshes;
use crate::runs::Runs;
use crate::seal::Keyring;
use crate::sessions::Sessions;
use crate::store::Store;

/// A caller's grace, from when the last one's session is given up.
pub const CALLER_GRACE: Duration = Duration::from_secs(120);
/// A worker without a session for this long is lost.
pub const WORKER_LOST: Duration = Duration::from_secs(90);

/// What an operator can set of it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whom clients and workers are told to dial.
    pub host: String,
    /// On which port.
    pub port: u16,
    /// What is shown there, and so whom to trust.
    pub certificate: Arc<CertResolver>,
    /// Hands out the first token while there is no workspace.
    pub bootstrap_secret: Option<levers9_wire::token::Secret>,
    /// Where HTTP requests to containers come in.
    pub serving: Serving,
    /// The most all logs may take, in bytes.
    pub log_bytes_max: u64,
    /// How long logs are kept.
    pub log_age_max: Duration,
    /// How workers on attached clusters are started.
    pub worker: WorkerDefaults,
}

impl Options {
    /// What clients and workers are told to dial, with the pins of now.
    #[must_use]
    pub fn address(&self) -> Address {
        Address { host: self.host.clone(), port: self.port, trust: trust_of(&self.certificate) }
    }
}

/// A chain with a CA can be pinned; one without is the platform's to judge.
#[must_use]
pub fn trust_of(certificate: &CertResolver) -> Trust {
    let pins = certificate.pins();
    if pins.is_empty() { Trust::System } else { Trust::Pins(pins) }
}

/// What keeps the controlplane from storing things now; said once per change
/// and shown by `/healthz`.
#[derive(Debug, Default)]
pub struct Trouble(Mutex<Option<String>>);

impl Trouble {
    /// Something cannot be stored.
    pub fn is(&self, problem: &str) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.as_deref() != Some(problem) {
            tracing::error!(%problem, "storage trouble; what cannot be stored is kept by its sender");
            *now = Some(problem.to_owned());
        }
    }

    /// Something could be stored.
    pub fn over(&self) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.take().is_some() {
            tracing::info!("storage works again");
        }
    }

    /// What the matter is.
    #[must_use]
    pub fn now(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Everything, shared.
#[derive(Debug)]
pub struct State {
    /// What must not be forgotten.
    pub store: Store,
    /// Seals secrets.
    pub keyring: Keyring,
    /// This process.
    pub instance: InstanceId,
    /// What an operator set.
    pub options: Options,
    /// Who is connected.
    pub sessions: Sessions,
    /// Attached clusters.
    pub clusters: Clusters,
    /// What is being said by running jobs.
    pub logs: Logs,
    /// The containers that are being driven.
    pub runs: Runs,
    /// Where containers can be reached.
    pub places: Places,
    /// Where sessions live. What only moves bytes between two of them does so
    /// there: it costs no change of thread.
    pub transport: Handle,
    /// What is open into containers.
    pub open: Arc<Counts>,
    /// Streams that are being measured.
    pub benches: Benches,
    /// What containers find behind their doors, once the ports are served.
    pub(crate) doors: OnceLock<Arc<Doors>>,
    /// Slows down who guesses.
    pub failures: FailureLimiter,
    /// What cannot be stored.
    pub trouble: Trouble,
    /// The data folder.
    pub data: PathBuf,
    /// Rung when something may be placed.
    pub placeable: Notify,
    /// Tasks that belong to nobody else.
    pub tasks: TaskTracker,
    /// Whether this process is the one that schedules.
    pub leading: AtomicBool,
    /// When memory was brought in line with the database.
    pub refreshes: Refreshes,
    /// Set when another process is to take over: nothing is placed or ordered
    /// any more, and who goes from here goes there.
    pub draining: CancellationToken,
    /// Set when the controlplane stops.
    pub stopping: CancellationToken,
}

/// Shared by all rooms.
pub type Shared = Arc<State>;

/// A time of the store's as messages carry it.
#[must_use]
pub fn unsigned(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}

/// Now, as the store counts.
#[must_use]
pub fn now_ms() -> i64 {
    i64::try_from(levers9_wire::clock::unix_millis()).unwrap_or(i64::MAX)
}
