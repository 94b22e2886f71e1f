//! What the HTTP and gRPC ports ask: who somebody is, whether all is well, and
//! the figures for a monitoring system.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use levers9_transport::accept::Gauges;
use levers9_transport::cert::CertResolver;
use levers9_wire::ContainerId;
use levers9_wire::token::{Secret, TokenKind};
use tokio::time::Instant;

use crate::calls::{self, Denied};
use crate::ports::{Asked, AuthorizeError, Authorized, Front, Health};
use crate::reach::What;
use crate::state::{Shared, now_ms};
use crate::store::{PoolWorkerState, TaskStatus, Token, TokenHash};

/// Answers for the shared state.
#[derive(Debug)]
pub struct FrontDesk {
    state: Shared,
    gauges: Arc<Gauges>,
    certificate: Arc<CertResolver>,
}

impl FrontDesk {
    /// A desk over the shared state.
    #[must_use]
    pub fn new(state: Shared, gauges: Arc<Gauges>, certificate: Arc<CertResolver>) -> Self {
        Self { state, gauges, certificate }
    }

    /// The row of a token that is good now.
    async fn token(&self, token: &Secret) -> Result<Option<Token>, AuthorizeError> {
        let found = self.state.store.token_by_hash(TokenHash::of(token)).await;
        let found = found.map_err(|error| AuthorizeError::Unavailable(error.to_string()))?;
        let now = now_ms();
        Ok(found.filter(|t| t.revoked_ms.is_none() && t.expires_ms.is_none_or(|end| end > now)))
    }
}

/// Less than this free in the data folder is trouble, in bytes.
const ROOM: u64 = 16 << 20;

/// Whether there is room in the data folder.
fn room(data: &Path) -> Result<(), String> {
    let free = nix::sys::statvfs::statvfs(data).map_err(|errno| format!("{}: {errno}", data.display()))?;
    let bytes = free.blocks_available().saturating_mul(free.fragment_size());
    if bytes >= ROOM {
        return Ok(());
    }
    let left = levers9_wire::quantity::show_memory(bytes);
    Err(format!("{left} left in the data folder"))
}

impl Front for FrontDesk {
    async fn authorize(&self, asked: Asked) -> Result<Authorized, AuthorizeError> {
        let from = asked.peer.ip().to_canonical();
        if self.state.failures.must_wait(from, Instant::now()) {
            return Err(AuthorizeError::TooMany(
                "too many failures from this address; wait a minute".to_owned(),
            ));
        }
        if let Some(token) = &asked.token {
            let Some(row) = self.token(token).await? else {
                self.state.failures.failed(from, Instant::now());
                return Err(AuthorizeError::Unauthenticated("the token is not valid".to_owned()));
            };
            let person =
                matches!(row.kind, TokenKind::Admin | TokenKind::Workspace | TokenKind::WorkspaceRestricted);
            let (true, Some(workspace)) = (person, row.workspace) else {
                return Err(AuthorizeError::Denied(format!(
                    "a token of kind {} is not for people",
                    row.kind.word()
                )));
            };
            let found = self.state.store.workspace(workspace).await;
            let name = found.map_err(|error| AuthorizeError::Unavailable(error.to_string()))?;
            let workspace_name = name.map(|w| w.name).unwrap_or_default();
            return Ok(Authorized { workspace, workspace_name, new_token: None });
        }
        let Some(secret) = &asked.bootstrap_secret else {
            return Err(AuthorizeError::Unauthenticated(
                "there is neither a token nor a bootstrap secret".to_owned(),
            ));
        };
        let first =
            calls::authorize_first(&self.state, secret, from, None).await.map_err(|denied| match denied {
                Denied::TooMany => AuthorizeError::TooMany(denied.to_string()),
                Denied::Store(_) => AuthorizeError::Unavailable(denied.to_string()),
                Denied::Wrong => AuthorizeError::Unauthenticated(denied.to_string()),
                Denied::Off | Denied::Inert => AuthorizeError::Denied(denied.to_string()),
            })?;
        Ok(Authorized {
            workspace: first.workspace,
            workspace_name: first.workspace_name,
            new_token: Some(first.token),
        })
    }

    async fn health(&self) -> Health {
        let database = self.state.store.ping().await.map_err(|error| error.to_string());
        let certificate = if self.certificate.expires() > now_ms() / 1_000 {
            Ok(())
        } else {
            Err("the certificate has expired".to_owned())
        };
        let stopping = if self.state.stopping.is_cancelled() {
            Err("shutting down".to_owned())
        } else if self.state.draining.is_cancelled() {
            Err("another controlplane takes over".to_owned())
        } else {
            Ok(())
        };
        let storage = match self.state.trouble.now() {
            Some(problem) => Err(problem),
            None => room(&self.state.data),
        };
        let parts = vec![
            ("database".to_owned(), database),
            ("storage".to_owned(), storage),
            ("certificate".to_owned(), certificate),
            ("running".to_owned(), stopping),
        ];
        Health { ready: parts.iter().all(|(_, part)| part.is_ok()), parts }
    }

    async fn metrics(&self) -> String {
        let (sessions, workers) = self.state.sessions.count();
        let pool = self.state.store.stats();
        let live = self.state.store.live_tasks().await.unwrap_or_default();
        let with = |status| live.iter().filter(|now| now.task.status == status).count();
        let segments = self.state.store.segment_totals().await.unwrap_or_default();
        let clusters = self.state.clusters.all();
        let connected = clusters.iter().filter(|cluster| cluster.session.is_some()).count();
        let ordered = self.state.clusters.workers();
        let coming = ordered.iter().filter(|w| w.row.state == PoolWorkerState::Pending).count();
        let open = |name, help, what| (name, help, self.state.open.open(what).to_string());
        let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let gauges = [
            ("levers9_sessions", "Sessions there are.", sessions.to_string()),
            ("levers9_workers_connected", "Workers with a session.", workers.to_string()),
            (
                "levers9_peers_arriving",
                "Handshakes and greetings under way.",
                self.gauges.arriving.load(Ordering::Relaxed).to_string(),
            ),
            (
                "levers9_carriers_tcp",
                "Carriers over TCP, of sessions that UDP does not reach.",
                self.gauges.over_tcp.load(Ordering::Relaxed).to_string(),
            ),
            (
                "levers9_tasks_pending",
                "Tasks waiting for a first place.",
                with(TaskStatus::Pending).to_string(),
            ),
            ("levers9_tasks_running", "Tasks running.", with(TaskStatus::Running).to_string()),
            (
                "levers9_tasks_retrying",
                "Tasks waiting for another place.",
                with(TaskStatus::Retry).to_string(),
            ),
            open("levers9_tunnels", "Tunnels of people open.", What::Tunnel),
            open("levers9_execs", "Commands running in containers for people.", What::Exec),
            open("levers9_benches", "Streams being measured.", What::Bench),
            open("levers9_doors", "Connections of containers to this controlplane.", What::Door),
            open("levers9_ingress_connections", "HTTP connections to containers.", What::Connection),
            open("levers9_ingress_requests", "HTTP requests to containers under way.", What::Request),
            ("levers9_runtime_tasks", "Tasks of the runtime that have not ended.", alive.to_string()),
            ("levers9_clusters", "Clusters attached.", clusters.len().to_string()),
            ("levers9_clusters_connected", "Clusters whose agent has a session.", connected.to_string()),
            ("levers9_pool_workers_pending", "Workers ordered that have not connected.", coming.to_string()),
            ("levers9_log_segments", "Log segments kept.", segments.segments.to_string()),
            ("levers9_log_bytes", "Bytes of log segments kept.", segments.bytes.to_string()),
            ("levers9_database_connections", "Database connections open.", pool.open.to_string()),
            ("levers9_database_connections_idle", "Database connections nobody uses.", pool.idle.to_string()),
            (
                "levers9_certificate_expiry_seconds",
                "When the certificate in force ends, in Unix seconds.",
                self.certificate.expires().to_string(),
            ),
        ];
        let counters = [
            ("levers9_ingress_requests_total", "HTTP requests to containers.", self.state.open.requests()),
            ("levers9_peers_admitted_total", "Peers let in.", self.gauges.admitted.load(Ordering::Relaxed)),
            ("levers9_peers_refused_total", "Peers refused.", self.gauges.refused.load(Ordering::Relaxed)),
            (
                "levers9_carriers_joined_total",
                "Carriers that joined a session that moved.",
                self.gauges.joined.load(Ordering::Relaxed),
            ),
        ];
        let mut text = String::new();
        for (name, help, value) in gauges {
            let _infallible = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
        }
        for (name, help, value) in counters {
            let _infallible = write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}\n");
        }
        text
    }

    async fn is_token_of(&self, token: Secret, container: ContainerId) -> bool {
        self.token(&token).await.is_ok_and(|row| row.is_some_and(|row| row.container == Some(container)))
    }

    async fn is_admin(&self, token: Secret) -> bool {
        self.token(&token).await.is_ok_and(|row| row.is_some_and(|row| row.kind == TokenKind::Admin))
    }
}
