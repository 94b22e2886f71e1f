//! What the ports ask of the controlplane behind them, and nothing more: who
//! somebody is, whether all is well, what the numbers are. The controlplane
//! implements [`Front`]; the routes of both ports call it. It knows
//! neither HTTP nor gRPC.

use std::future::Future;
use std::net::SocketAddr;

use levers9_wire::token::Secret;
use levers9_wire::{ContainerId, WorkspaceId};

/// The controlplane as its ports see it.
///
/// A caller that goes away drops the future it waits on, so whatever must be
/// done whole runs in a task of its own.
pub trait Front: Send + Sync + 'static {
    /// Says who a caller is, or trades the bootstrap secret for the first token.
    fn authorize(&self, asked: Asked) -> impl Future<Output = Result<Authorized, AuthorizeError>> + Send;

    /// Says whether work can be taken now. Shown to everyone.
    fn health(&self) -> impl Future<Output = Health> + Send;

    /// All metrics in Prometheus' text format.
    fn metrics(&self) -> impl Future<Output = String> + Send;

    /// Whether this is the token that a container shows at its doors.
    fn is_token_of(&self, token: Secret, container: ContainerId) -> impl Future<Output = bool> + Send;

    /// Whether this is an admin's token.
    fn is_admin(&self, token: Secret) -> impl Future<Output = bool> + Send;
}

/// What a caller showed.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The bearer token.
    pub token: Option<Secret>,
    /// The bootstrap secret; it may come next to a token.
    pub bootstrap_secret: Option<Secret>,
    /// Where the call came from: the balancer, where there is one.
    pub peer: SocketAddr,
    /// What the caller says it is (`levers9/0.15.1 python/3.11 linux`); safe to print.
    pub client: String,
}

/// Who the caller is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorized {
    /// The token's workspace.
    pub workspace: WorkspaceId,
    /// Its name, for people.
    pub workspace_name: String,
    /// The first token, when the bootstrap secret has just been traded for it.
    pub new_token: Option<Secret>,
}

/// Why a caller is not let in. The words are shown to the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorizeError {
    /// The token is missing or not good.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller is known, or its secret is understood, and the answer is no.
    #[error("{0}")]
    Denied(String),
    /// Too many attempts; later ones may succeed.
    #[error("{0}")]
    TooMany(String),
    /// It cannot be told now.
    #[error("{0}")]
    Unavailable(String),
}

/// How the controlplane is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether it can take work.
    pub ready: bool,
    /// Each part by name, with what is wrong with it. Without secrets.
    pub parts: Vec<(String, Result<(), String>)>,
}
