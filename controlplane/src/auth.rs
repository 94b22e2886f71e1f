//! Who may do what. One function, [`authorize`], default deny; everything that
//! acts for somebody asks it. Where a refusal would confirm that something of
//! another workspace exists, callers answer "not found" instead.

use levers9_wire::token::{Secret, TokenKind};
use levers9_wire::{ContainerId, TokenId, WorkerId, WorkspaceId};
use rand::RngCore;

use crate::store::{Scope, Token, TokenHash};

/// Somebody, as their token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The token.
    pub token: TokenId,
    /// Its kind.
    pub kind: TokenKind,
    /// Whom it speaks for.
    pub workspace: Option<WorkspaceId>,
    /// The container a restricted token is bound to.
    pub container: Option<ContainerId>,
    /// The worker a worker token is for.
    pub worker: Option<WorkerId>,
}

impl From<&Token> for Identity {
    fn from(token: &Token) -> Self {
        Self {
            token: token.id,
            kind: token.kind,
            workspace: token.workspace,
            container: token.container,
            worker: token.worker,
        }
    }
}

impl Identity {
    /// The rows it may see.
    #[must_use]
    pub fn scope(&self) -> Scope {
        match (self.kind, self.workspace) {
            (TokenKind::Admin, _) => Scope::All,
            (_, Some(workspace)) => Scope::Workspace(workspace),
            // Without a workspace there is nothing to see; no workspace has this id.
            (_, None) => Scope::Workspace(nobody()),
        }
    }
}

/// The workspace nobody is in.
fn nobody() -> WorkspaceId {
    WorkspaceId::from_bytes([0; 16])
}

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start tasks.
    Submit,
    /// See tasks, containers and logs.
    Read,
    /// End tasks and containers.
    Stop,
    /// Run commands in containers, and reach any of their ports.
    Reach,
    /// Send HTTP requests to what a task exposes.
    Invoke,
    /// See workers.
    ReadWorkers,
    /// Let a machine become a worker of the workspace.
    EnrollWorker,
    /// Let a machine become a worker for every workspace.
    EnrollShared,
    /// See, make and revoke tokens of the workspace.
    Tokens,
    /// Make tokens of kind admin.
    AdminTokens,
    /// See and make workspaces.
    Workspaces,
    /// See clusters.
    ReadClusters,
    /// Attach and detach the workspace's clusters. A person's to do, never a container's.
    Clusters,
    /// Let a cluster serve every workspace, and take back what serves them.
    ShareClusters,
}

/// Whether an identity may do something in a workspace (`None`: in none, or in all).
#[must_use]
pub fn authorize(identity: &Identity, action: Action, object: Option<WorkspaceId>) -> bool {
    let own = object.is_none() || (identity.workspace.is_some() && identity.workspace == object);
    match identity.kind {
        TokenKind::Admin => true,
        TokenKind::Workspace => {
            own && matches!(
                action,
                Action::Submit
                    | Action::Read
                    | Action::Stop
                    | Action::Reach
                    | Action::Invoke
                    | Action::ReadWorkers
                    | Action::EnrollWorker
                    | Action::Tokens
                    | Action::ReadClusters
                    | Action::Clusters
            )
        }
        TokenKind::WorkspaceRestricted => {
            own && matches!(action, Action::Submit | Action::Read | Action::Invoke)
        }
        TokenKind::Cluster | TokenKind::Worker | TokenKind::Enrolment | TokenKind::MachineJoin => false,
    }
}

/// A fresh token and its row.
#[must_use]
pub fn mint(
    kind: TokenKind,
    workspace: Option<WorkspaceId>,
    now_ms: i64,
    rng: &mut dyn RngCore,
) -> (Secret, Token) {
    let secret = levers9_wire::token::generate(kind, rng);
    let token = Token {
        id: TokenId::new(u64::try_from(now_ms).unwrap_or(0), rng),
        workspace,
        kind,
        hash: TokenHash::of(&secret),
        hint: levers9_wire::token::hint(&secret),
        created_ms: now_ms,
        last_used_ms: None,
        expires_ms: None,
        revoked_ms: None,
        container: None,
        worker: None,
        pool: None,
        shared: false,
        claimed_instance: None,
        confirmed: false,
        cluster: None,
        node: None,
    };
    (secret, token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::StdRng};

    fn workspace(n: u64) -> WorkspaceId {
        WorkspaceId::new(n, &mut StdRng::seed_from_u64(n))
    }

    fn identity(kind: TokenKind, of: Option<WorkspaceId>) -> Identity {
        Identity { token: TokenId::generate(), kind, workspace: of, container: None, worker: None }
    }

    /// The whole table: every kind, every action, own and another's workspace.
    #[test]
    fn the_table_of_who_may_do_what() {
        use Action::*;
        const ALL: [Action; 11] = [
            Submit,
            Read,
            Stop,
            Reach,
            Invoke,
            ReadWorkers,
            EnrollWorker,
            EnrollShared,
            Tokens,
            AdminTokens,
            Workspaces,
        ];
        let (mine, theirs) = (workspace(1), workspace(2));
        for kind in TokenKind::ALL {
            let who = identity(kind, Some(mine));
            let allowed: Vec<_> = ALL.into_iter().filter(|a| authorize(&who, *a, Some(mine))).collect();
            let expected: &[Action] = match kind {
                TokenKind::Admin => &ALL,
                TokenKind::Workspace => {
                    &[Submit, Read, Stop, Reach, Invoke, ReadWorkers, EnrollWorker, Tokens]
                }
                TokenKind::WorkspaceRestricted => &[Submit, Read, Invoke],
                _ => &[],
            };
            assert_eq!(allowed, expected, "{kind:?} in its own workspace");
            let elsewhere = ALL.into_iter().filter(|a| authorize(&who, *a, Some(theirs))).count();
            assert_eq!(elsewhere, if kind == TokenKind::Admin { ALL.len() } else { 0 }, "{kind:?} elsewhere");
        }
    }

    #[test]
    fn an_identity_without_a_workspace_sees_nothing() {
        let nobody = identity(TokenKind::Workspace, None);
        assert_ne!(nobody.scope(), Scope::All);
        assert!(!authorize(&nobody, Action::Read, Some(workspace(1))));
    }
}
