//! Calls about who and where: workspaces, tokens, workers.

use levers9_transport::accept::SessionHandle;
use levers9_wire::token::TokenKind;
use levers9_wire::v1::{self, FailureCode, call_answer};
use levers9_wire::{ContainerId, TokenId, WorkerId, WorkspaceId, name};
use tokio::time::Instant;

use super::{Answered, Refused, Request, allowed};
use crate::auth::{Action, Identity, authorize, mint};
use crate::clusters::view::is_own;
use crate::scheduler::{candidates, free_on, held_by};
use crate::sessions::WorkerNow;
use crate::sessions::riding;
use crate::state::{Shared, now_ms, unsigned};
use crate::store::{Once, Scope, StoreError, Token, Workspace};

/// How long an enrolment token is good, in milliseconds.
pub const ENROLMENT_MS: i64 = 30 * 60 * 1_000;

fn denied(text: &str) -> Refused {
    Refused::new(FailureCode::Denied, text)
}

async fn workspace_name(state: &Shared, id: Option<WorkspaceId>) -> Result<String, StoreError> {
    match id {
        Some(id) => Ok(state.store.workspace(id).await?.map(|w| w.name).unwrap_or_default()),
        None => Ok(String::new()),
    }
}

pub(super) async fn who_am_i(state: &Shared, who: &Identity) -> Answered {
    Ok(call_answer::Answer::WhoAmI(v1::WhoAmIAnswer {
        workspace: who.workspace.map(WorkspaceId::to_wire).unwrap_or_default(),
        workspace_name: workspace_name(state, who.workspace).await?,
        token_kind: who.kind.word().to_owned(),
        build: levers9_wire::BUILD.to_owned(),
    }))
}

pub(super) async fn worker_list(state: &Shared, who: &Identity) -> Answered {
    allowed(who, Action::ReadWorkers)?;
    let candidates = candidates(state).await?;
    let mut workers = Vec::new();
    for worker in state.sessions.workers() {
        let mine =
            who.kind == TokenKind::Admin || worker.serves().is_none_or(|own| Some(own) == who.workspace);
        if mine {
            let containers = held_by(state, worker.id).await?.len();
            let shown = to_worker(state, &worker, free_on(&candidates, worker.id), containers);
            workers.push(if is_at_home(state, who, &worker) { shown } else { without_place(shown) });
        }
    }
    Ok(call_answer::Answer::WorkerList(v1::WorkerListAnswer { workers }))
}

/// Whether somebody may know on which machine a worker is: not in a shared
/// cluster of another workspace, which a worker of theirs may be in.
fn is_at_home(state: &Shared, who: &Identity, worker: &WorkerNow) -> bool {
    let Some(cluster) = worker.cluster else { return true };
    state.clusters.get(cluster).map_or(who.kind == TokenKind::Admin, |of| is_own(who, &of))
}

/// A host's name may be its node's.
fn without_place(worker: v1::Worker) -> v1::Worker {
    v1::Worker { hostname: String::new(), node: String::new(), ..worker }
}

fn to_worker(
    state: &Shared,
    worker: &WorkerNow,
    free: crate::scheduler::core::Amounts,
    containers: usize,
) -> v1::Worker {
    let fighting = state.sessions.fighting(worker.id, Instant::now());
    let (word, note) = match (&worker.session, worker.away_since) {
        _ if !fighting.is_empty() => {
            let both: Vec<_> = fighting.iter().map(ToString::to_string).collect();
            ("paused", format!("two processes use its identity: {}", both.join(", ")))
        }
        (Some(_), _) if !worker.takes_more() => ("draining", String::new()),
        (Some(_), _) => ("ready", String::new()),
        (None, Some(since)) => {
            let away = levers9_wire::quantity::show_duration(since.elapsed());
            (if worker.given_up { "lost" } else { "away" }, format!("no session for {away}"))
        }
        (None, None) => ("away", String::new()),
    };
    let rtt = worker.session.as_ref().and_then(SessionHandle::rtt);
    let (carrier, carrier_why) = riding(worker.session.as_ref());
    v1::Worker {
        id: worker.id.to_wire(),
        pool: worker.pool.clone(),
        state: word.to_owned(),
        hostname: worker.facts.hostname.clone(),
        cpu_millis: worker.facts.cpu_millis,
        memory_bytes: worker.facts.memory_bytes,
        cpu_free_millis: free.cpu_millis,
        memory_free_bytes: free.memory_bytes,
        gpu_type: worker.facts.gpu_type.clone(),
        gpu_count: worker.facts.gpu_count,
        gpu_free: free.gpus,
        runtime: worker.facts.runtime.clone(),
        containers: u32::try_from(containers).unwrap_or(u32::MAX),
        shared: worker.workspace.is_none(),
        build: worker.build.clone(),
        rtt_us: rtt.map_or(0, |rtt| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX)),
        created_unix_ms: unsigned(worker.created_ms),
        note,
        node: worker.facts.node.clone(),
        carrier,
        carrier_why,
    }
}

pub(super) async fn worker_enroll(
    state: &Shared,
    who: &Identity,
    once: Request<'_>,
    asked: v1::WorkerEnrollRequest,
) -> Answered {
    let workspace = allowed(who, Action::EnrollWorker)?;
    if asked.shared && !authorize(who, Action::EnrollShared, None) {
        return Err(denied("only an admin may enroll a worker that serves every workspace"));
    }
    let pool = if asked.pool.is_empty() { "default".to_owned() } else { asked.pool };
    name::label("pool", &pool).map_err(|bad| Refused::new(FailureCode::Invalid, bad.to_string()))?;
    let now = now_ms();
    let worker = WorkerId::generate();
    let (secret, row) = mint(TokenKind::Enrolment, Some(workspace), now, &mut rand::rng());
    let expires = now + ENROLMENT_MS;
    let row = Token {
        worker: Some(worker),
        pool: Some(pool.clone()),
        shared: asked.shared,
        expires_ms: Some(expires),
        ..row
    };
    let answer = call_answer::Answer::WorkerEnroll(v1::WorkerEnrollAnswer {
        worker: worker.to_wire(),
        token: secret.expose().to_owned(),
        expires_unix_ms: unsigned(expires),
        address: state.options.address().to_string(),
        pool,
    });
    insert_token(state, &once, row, answer).await
}

/// Adds a token together with the answer that holds it.
async fn insert_token(
    state: &Shared,
    once: &Request<'_>,
    token: Token,
    answer: call_answer::Answer,
) -> Answered {
    match state.store.insert_token_once(token, once.keep(&answer)?).await? {
        Once::Done(()) => Ok(answer),
        Once::Before(kept) => once.reopen(&kept),
    }
}

pub(super) async fn workspace_list(state: &Shared, who: &Identity) -> Answered {
    let all = state.store.workspaces().await?;
    let sees_all = authorize(who, Action::Workspaces, None);
    if !sees_all {
        allowed(who, Action::Read)?;
    }
    let workspaces =
        all.iter().filter(|w| sees_all || Some(w.id) == who.workspace).map(to_workspace).collect();
    Ok(call_answer::Answer::WorkspaceList(v1::WorkspaceListAnswer { workspaces }))
}

fn to_workspace(workspace: &Workspace) -> v1::Workspace {
    v1::Workspace {
        id: workspace.id.to_wire(),
        name: workspace.name.clone(),
        created_unix_ms: unsigned(workspace.created_ms),
    }
}

pub(super) async fn workspace_create(
    state: &Shared,
    who: &Identity,
    once: Request<'_>,
    asked: v1::WorkspaceCreateRequest,
) -> Answered {
    if !authorize(who, Action::Workspaces, None) {
        return Err(denied("only an admin may create workspaces"));
    }
    name::label("workspace", &asked.name)
        .map_err(|bad| Refused::new(FailureCode::Invalid, bad.to_string()))?;
    let now = now_ms();
    let workspace = Workspace { id: WorkspaceId::generate(), name: asked.name, created_ms: now };
    let (secret, row) = mint(TokenKind::Workspace, Some(workspace.id), now, &mut rand::rng());
    let answer = call_answer::Answer::WorkspaceCreate(v1::WorkspaceCreateAnswer {
        workspace: Some(to_workspace(&workspace)),
        token: secret.expose().to_owned(),
    });
    match state.store.create_workspace_once(workspace.clone(), row, once.keep(&answer)?).await {
        Ok(Once::Done(())) => Ok(answer),
        Ok(Once::Before(kept)) => once.reopen(&kept),
        Err(StoreError::Conflict(_)) => Err(Refused::new(
            FailureCode::Conflict,
            format!("there is a workspace {:?} already", workspace.name),
        )),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn token_list(state: &Shared, who: &Identity) -> Answered {
    let workspace = allowed(who, Action::Tokens)?;
    // An admin sees every workspace's, others their own.
    let scope = if who.kind == TokenKind::Admin { Scope::All } else { Scope::Workspace(workspace) };
    let mut tokens = Vec::new();
    for token in state.store.tokens(scope, false, now_ms()).await? {
        let name = workspace_name(state, token.workspace).await?;
        tokens.push(to_token(&token, name));
    }
    Ok(call_answer::Answer::TokenList(v1::TokenListAnswer { tokens }))
}

fn to_token(token: &Token, workspace_name: String) -> v1::Token {
    v1::Token {
        id: token.id.to_wire(),
        kind: token.kind.word().to_owned(),
        hint: token.hint.clone(),
        created_unix_ms: unsigned(token.created_ms),
        last_used_unix_ms: token.last_used_ms.map(unsigned),
        expires_unix_ms: token.expires_ms.map(unsigned),
        workspace_name,
    }
}

pub(super) async fn token_create(
    state: &Shared,
    who: &Identity,
    once: Request<'_>,
    asked: v1::TokenCreateRequest,
) -> Answered {
    let workspace = allowed(who, Action::Tokens)?;
    let kind = match TokenKind::from_word(if asked.kind.is_empty() { "workspace" } else { &asked.kind }) {
        Some(kind @ (TokenKind::Workspace | TokenKind::WorkspaceRestricted)) => kind,
        Some(TokenKind::Admin) if authorize(who, Action::AdminTokens, None) => TokenKind::Admin,
        Some(TokenKind::Admin) => return Err(denied("only an admin may create admin tokens")),
        _ => {
            let kind = name::printable(&asked.kind, 40);
            let text = format!(
                "{kind:?} is no kind of token that can be made; they are workspace, workspace_restricted and admin"
            );
            return Err(Refused::new(FailureCode::Invalid, text));
        }
    };
    let container = ContainerId::from_wire(&asked.container)
        .map_err(|e| Refused::new(FailureCode::Invalid, e.to_string()))?;
    let (secret, row) = mint(kind, Some(workspace), now_ms(), &mut rand::rng());
    let row = Token { container, ..row };
    let name = workspace_name(state, Some(workspace)).await?;
    let answer = call_answer::Answer::TokenCreate(v1::TokenCreateAnswer {
        token: Some(to_token(&row, name)),
        key: secret.expose().to_owned(),
    });
    insert_token(state, &once, row, answer).await
}

pub(super) async fn token_delete(state: &Shared, who: &Identity, asked: v1::TokenDeleteRequest) -> Answered {
    let workspace = allowed(who, Action::Tokens)?;
    let missing = || Refused::not_found("token").hint("levers9 token list shows them");
    let id = TokenId::from_wire(&asked.token).ok().flatten().ok_or_else(missing)?;
    let scope = if who.kind == TokenKind::Admin { Scope::All } else { Scope::Workspace(workspace) };
    // An admin's token is above its workspace: nobody in it may lock the admin out.
    let known = state.store.tokens(scope, true, now_ms()).await?.into_iter().find(|token| token.id == id);
    if known.ok_or_else(missing)?.kind == TokenKind::Admin && !authorize(who, Action::AdminTokens, None) {
        return Err(denied("only an admin may revoke admin tokens"));
    }
    let revoked = state.store.revoke_token(id, scope, now_ms()).await?.ok_or_else(missing)?;
    let ended = state.sessions.revoke(revoked.id);
    tracing::info!(token = %revoked.hint, sessions = ended, "a token was revoked");
    Ok(call_answer::Answer::TokenDelete(v1::TokenDeleteAnswer {}))
}
