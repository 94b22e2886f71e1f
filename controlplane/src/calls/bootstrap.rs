//! The first token of an installation: handed out once, to who knows the
//! bootstrap secret, while there is no workspace. QUIC, gRPC and REST come
//! here alike.

use std::net::IpAddr;

use aws_lc_rs::constant_time;
use levers9_wire::token::{Secret, TokenKind};
use levers9_wire::v1::{self, FailureCode, call_answer};
use levers9_wire::{RequestId, WorkspaceId, limits};
use prost::Message as _;
use tokio::time::Instant;

use super::Refused;
use crate::auth::mint;
use crate::jobs::answer_aad;
use crate::state::{Shared, now_ms};
use crate::store::{Answer, StoreError, TokenHash, Workspace};

/// The first workspace's name.
const FIRST: &str = "default";
/// How long the answer may be asked for again.
const REPEATABLE_MS: i64 = 10 * 60 * 1_000;

/// A first token.
#[derive(Debug)]
pub struct Authorized {
    /// The workspace it is in.
    pub workspace: WorkspaceId,
    /// Its name.
    pub workspace_name: String,
    /// The admin token.
    pub token: Secret,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// There is no secret to know.
    #[error(
        "this controlplane was started without a bootstrap secret, so it hands out no first token; set LEVERS9_BOOTSTRAP_SECRET or controlplane.auth.bootstrapSecret and restart it"
    )]
    Off,
    /// There is a workspace already.
    #[error("a workspace exists already, so the bootstrap secret has no effect; ask an admin for a token")]
    Inert,
    /// The secret is another.
    #[error("the bootstrap secret is wrong")]
    Wrong,
    /// Too many tries.
    #[error("too many wrong secrets from this address; wait a minute")]
    TooMany,
    /// The database does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Hands out the first token. With a request id the answer may be asked for
/// again, for ten minutes and until the token has been used.
///
/// # Errors
/// When the secret is wrong or there is a workspace already.
pub async fn authorize_first(
    state: &Shared,
    secret: &Secret,
    from: IpAddr,
    request: Option<RequestId>,
) -> Result<Authorized, Denied> {
    let now = Instant::now();
    let from = from.to_canonical();
    if state.failures.must_wait(from, now) {
        return Err(Denied::TooMany);
    }
    let Some(expected) = &state.options.bootstrap_secret else { return Err(Denied::Off) };
    let given = secret.expose().get(..limits::TOKEN.min(secret.expose().len())).unwrap_or_default();
    if constant_time::verify_slices_are_equal(given.as_bytes(), expected.expose().as_bytes()).is_err() {
        state.failures.failed(from, now);
        return Err(Denied::Wrong);
    }
    if let Some(authorized) = create(state, request).await? {
        return Ok(authorized);
    }
    let kept = match request {
        Some(request) => kept(state, request).await?,
        None => None,
    };
    kept.ok_or(Denied::Inert)
}

/// An answer to be kept; none that cannot be sealed.
fn to_keep(state: &Shared, request: RequestId, authorized: &Authorized) -> Option<Answer> {
    let plain = to_message(authorized).encode_to_vec();
    let answer = state.keyring.seal(&answer_aad(request), &plain).ok()?;
    Some(Answer { workspace: None, request, answer, created_ms: now_ms() })
}

/// The answer given before to the same request, while it may be repeated.
async fn kept(state: &Shared, request: RequestId) -> Result<Option<Authorized>, StoreError> {
    let Some(sealed) = state.store.answer(None, request).await? else { return Ok(None) };
    let plain = state.keyring.open(&answer_aad(request), &sealed).ok();
    let Some(message) = plain.and_then(|p| v1::AuthorizeAnswer::decode(p.as_slice()).ok()) else {
        return Ok(None);
    };
    let token = Secret::new(message.token);
    let row = state.store.token_by_hash(TokenHash::of(&token)).await?;
    let fresh =
        row.is_some_and(|row| row.last_used_ms.is_none() && now_ms() - row.created_ms < REPEATABLE_MS);
    let workspace = WorkspaceId::from_wire(&message.workspace).ok().flatten();
    Ok(workspace.filter(|_| fresh).map(|workspace| Authorized {
        workspace,
        workspace_name: message.workspace_name,
        token,
    }))
}

fn to_message(authorized: &Authorized) -> v1::AuthorizeAnswer {
    v1::AuthorizeAnswer {
        workspace: authorized.workspace.to_wire(),
        workspace_name: authorized.workspace_name.clone(),
        token: authorized.token.expose().to_owned(),
    }
}

/// Makes the first workspace and its admin token; `None` when there is one.
///
/// # Errors
/// When the database fails.
pub async fn create_first(state: &Shared) -> Result<Option<Authorized>, StoreError> {
    create(state, None).await
}

async fn create(state: &Shared, request: Option<RequestId>) -> Result<Option<Authorized>, StoreError> {
    let now = now_ms();
    let workspace = Workspace { id: WorkspaceId::generate(), name: FIRST.to_owned(), created_ms: now };
    let (id, name) = (workspace.id, workspace.name.clone());
    let (token, row) = mint(TokenKind::Admin, Some(id), now, &mut rand::rng());
    let authorized = Authorized { workspace: id, workspace_name: name, token };
    let answer = request.and_then(|request| to_keep(state, request, &authorized));
    let made = state.store.first_workspace(workspace, row, answer).await?;
    Ok(made.then_some(authorized))
}

pub(super) fn to_answer(authorized: Authorized) -> call_answer::Answer {
    call_answer::Answer::Authorize(to_message(&authorized))
}

pub(super) fn to_refused(denied: Denied) -> Refused {
    match denied {
        Denied::Store(error) => error.into(),
        Denied::TooMany => Refused::new(FailureCode::Unavailable, denied.to_string()),
        denied => Refused::new(FailureCode::Denied, denied.to_string()),
    }
}
