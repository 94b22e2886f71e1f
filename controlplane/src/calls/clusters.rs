//! Calls about attached clusters. Attaching and detaching is a person's to do;
//! what is of another workspace is not there, unless it is shared.

use levers9_wire::token::TokenKind;
use levers9_wire::v1::{self, FailureCode, call_answer};
use levers9_wire::{ClusterId, name, valid};
use tokio::time::Instant;

use super::{Answered, Refused, Request, allowed};
use crate::auth::{Action, Identity, authorize, mint};
use crate::clusters::{ClusterNow, orders, view};
use crate::recover;
use crate::state::{Shared, now_ms, unsigned};
use crate::store::{Attached, Cluster, Once, Token};

/// How long an agent's token is good once there is a newer one, in milliseconds.
const ROTATION_MS: i64 = 24 * 60 * 60 * 1_000;

fn invalid(error: impl ToString) -> Refused {
    Refused::new(FailureCode::Invalid, error.to_string())
}

/// A cluster somebody may see. Another workspace's is not there.
async fn find(state: &Shared, who: &Identity, name: &str) -> Result<ClusterNow, Refused> {
    let missing = || {
        let text = format!("there is no cluster {:?}", name::printable(name, 80));
        Refused::new(FailureCode::NotFound, text).hint("levers9 cluster list shows them")
    };
    let look = || {
        let named = state.clusters.named(name, who.workspace, who.kind == TokenKind::Admin);
        named.filter(|found| view::may_see(who, found))
    };
    if let Some(found) = look() {
        return Ok(found);
    }
    // Another process may have attached it.
    recover::refresh(state).await?;
    look().ok_or_else(missing)
}

/// A cluster somebody may change: their workspace's own, or any for an admin.
/// A shared one is an admin's.
async fn find_own(state: &Shared, who: &Identity, name: &str) -> Result<ClusterNow, Refused> {
    allowed(who, Action::Clusters)?;
    let found = find(state, who, name).await?;
    if !view::is_own(who, &found) {
        let text = format!("the cluster {:?} is another workspace's", found.row.name);
        return Err(Refused::new(FailureCode::Denied, text));
    }
    if found.row.shared && !authorize(who, Action::ShareClusters, None) {
        let text =
            format!("the cluster {:?} serves every workspace; only an admin may change it", found.row.name);
        return Err(
            Refused::new(FailureCode::Denied, text).hint("ask an admin: levers9 cluster share NAME --off")
        );
    }
    Ok(found)
}

fn clusters(count: u32) -> String {
    match count {
        1 => "1 cluster".to_owned(),
        count => format!("{count} clusters"),
    }
}

fn manifest(state: &Shared, row: &Cluster) -> v1::ClusterManifest {
    v1::ClusterManifest {
        cluster: row.id.to_wire(),
        settings: Some(v1::ClusterSettings {
            name: row.name.clone(),
            worker_image: orders::image(state, row),
            ..row.settings.clone()
        }),
        address: state.options.address().to_string(),
        runtime: orders::RUNTIME.to_owned(),
    }
}

pub(super) async fn join(
    state: &Shared,
    who: &Identity,
    once: Request<'_>,
    asked: v1::ClusterJoinRequest,
) -> Answered {
    let workspace = allowed(who, Action::Clusters)?;
    let settings = valid::cluster_settings(asked.settings.unwrap_or_default()).map_err(invalid)?;
    let name = settings.name.clone();
    name::label("cluster", &name).map_err(invalid)?;
    if settings.worker_image.is_empty() && state.options.worker.image.is_none() {
        let text = "there is no worker image: neither the controlplane nor you named one";
        return Err(Refused::new(FailureCode::Invalid, text)
            .hint("name one the cluster can pull: --worker-image registry.example.org/levers9/worker:TAG"));
    }
    let shared = state.clusters.all().into_iter().find(|c| c.row.shared && c.row.name == name);
    if shared.is_some_and(|c| c.row.workspace != workspace) {
        let text = format!("the name {name:?} is taken by a cluster that serves every workspace");
        return Err(Refused::new(FailureCode::Conflict, text).hint("choose another name"));
    }
    let now = now_ms();
    let id = ClusterId::generate();
    let (secret, row) = mint(TokenKind::Cluster, Some(workspace), now, &mut rand::rng());
    let token = Token { cluster: Some(id), ..row };
    let cluster = Cluster {
        id,
        workspace,
        name: name.clone(),
        settings,
        shared: false,
        created_ms: now,
        last_seen_ms: None,
        agent_build: String::new(),
        kubernetes: String::new(),
    };
    let quota = Some(state.options.worker.clusters_per_workspace).filter(|quota| *quota > 0);
    let answer = call_answer::Answer::ClusterJoin(v1::ClusterJoinAnswer {
        cluster: id.to_wire(),
        token: secret.expose().to_owned(),
        manifest: Some(manifest(state, &cluster)),
    });
    match state.store.attach_cluster_once(cluster.clone(), token, quota, once.keep(&answer)?).await? {
        Once::Done(Attached::Yes) => {}
        Once::Before(kept) => return once.reopen(&kept),
        Once::Done(Attached::NameTaken) => {
            let text = format!("this workspace has a cluster {name:?} already");
            return Err(Refused::new(FailureCode::Conflict, text)
                .hint("levers9 cluster manifest NAME | kubectl apply -f - installs it again; levers9 cluster leave NAME detaches it"));
        }
        Once::Done(Attached::QuotaFull(have)) => {
            let (have, may) = (clusters(have), quota.unwrap_or_default());
            let text = format!("this workspace has {have}, and may have {may}");
            return Err(Refused::new(FailureCode::Denied, text)
                .hint("detach one: levers9 cluster leave NAME; or have an admin raise worker.attachedClusters.quotaPerWorkspace"));
        }
    }
    state.clusters.put(cluster);
    tracing::info!(cluster = %id, %name, "a cluster is attached");
    Ok(answer)
}

pub(super) async fn list(state: &Shared, who: &Identity) -> Answered {
    allowed(who, Action::ReadClusters)?;
    let mut clusters = Vec::new();
    for cluster in state.clusters.all().iter().filter(|c| view::may_see(who, c)) {
        clusters.push(view::cluster(state, who, cluster).await?);
    }
    Ok(call_answer::Answer::ClusterList(v1::ClusterListAnswer { clusters }))
}

pub(super) async fn nodes(state: &Shared, who: &Identity, asked: v1::ClusterNodesRequest) -> Answered {
    allowed(who, Action::ReadClusters)?;
    let cluster = find(state, who, &asked.cluster).await?;
    let age = view::age(&cluster, Instant::now());
    Ok(call_answer::Answer::ClusterNodes(v1::ClusterNodesAnswer {
        cluster: Some(view::cluster(state, who, &cluster).await?),
        age_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        nodes: view::nodes(state, who, &cluster),
        orphans: if view::is_own(who, &cluster) { view::orphans(state, &cluster) } else { Vec::new() },
    }))
}

pub(super) async fn show(state: &Shared, who: &Identity, asked: &v1::ClusterShowRequest) -> Answered {
    allowed(who, Action::ReadClusters)?;
    let cluster = find(state, who, &asked.cluster).await?;
    if !view::is_own(who, &cluster) {
        let text =
            format!("the cluster {:?} is another workspace's; its manifest is not shown", cluster.row.name);
        return Err(Refused::new(FailureCode::Denied, text));
    }
    Ok(call_answer::Answer::ClusterShow(v1::ClusterShowAnswer {
        manifest: Some(manifest(state, &cluster.row)),
    }))
}

pub(super) async fn share(state: &Shared, who: &Identity, asked: v1::ClusterShareRequest) -> Answered {
    allowed(who, Action::ReadClusters)?;
    let cluster = find(state, who, &asked.cluster).await?;
    if !authorize(who, Action::ShareClusters, None) {
        return Err(Refused::new(FailureCode::Denied, "only an admin may share a cluster, or take it back"));
    }
    let row = cluster.row;
    if asked.shared {
        let other = |c: &ClusterNow| c.row.id != row.id && c.row.shared && c.row.name == row.name;
        if state.clusters.all().iter().any(other) {
            let text = format!("another shared cluster is called {:?} already", row.name);
            return Err(Refused::new(FailureCode::Conflict, text));
        }
    }
    state.store.share_cluster(row.id, asked.shared).await?;
    state.clusters.share(row.id, asked.shared);
    state.placeable.notify_one();
    tracing::info!(cluster = %row.id, shared = asked.shared, "a cluster is shared, or no longer");
    let note = if asked.shared {
        "Whoever owns this cluster can see and change every workspace's jobs there. Its workers run jobs as plain \
         processes, each worker for one workspace; workers that run now go on serving their own until they wind down."
    } else {
        "It serves its own workspace only, from the next job on; workers that serve others finish what they run."
    };
    let found = state.clusters.get(row.id).ok_or_else(|| Refused::not_found("cluster"))?;
    Ok(call_answer::Answer::ClusterShare(v1::ClusterShareAnswer {
        cluster: Some(view::cluster(state, who, &found).await?),
        note: note.to_owned(),
    }))
}

/// `once`: unless it is only asked what would be.
pub(super) async fn leave(
    state: &Shared,
    who: &Identity,
    once: Option<Request<'_>>,
    asked: v1::ClusterLeaveRequest,
) -> Answered {
    let cluster = find_own(state, who, &asked.cluster).await?;
    let workers = view::workers_on(state, &cluster);
    let live = state.store.live_tasks().await?;
    let held = live.iter().filter(|now| workers.iter().any(|w| now.is_on(w.row.worker))).count();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let answer = call_answer::Answer::ClusterLeave(v1::ClusterLeaveAnswer {
        manifest: Some(manifest(state, &cluster.row)),
        workers: count(workers.len()),
        tasks: count(held),
    });
    if let Some(once) = once {
        let id = cluster.row.id;
        let revoked = match state.store.detach_cluster_once(id, now_ms(), once.keep(&answer)?).await? {
            Once::Done(revoked) => revoked,
            Once::Before(kept) => return once.reopen(&kept),
        };
        for worker in state.clusters.remove(id) {
            orders::lost(state, worker, "its cluster was detached").await?;
        }
        for token in revoked {
            state.sessions.revoke(token);
        }
        tracing::info!(cluster = %id, name = %cluster.row.name, "a cluster is detached");
    }
    Ok(answer)
}

pub(super) async fn rotate_token(
    state: &Shared,
    who: &Identity,
    once: Request<'_>,
    asked: v1::ClusterRotateTokenRequest,
) -> Answered {
    let cluster = find_own(state, who, &asked.cluster).await?.row;
    let now = now_ms();
    let (secret, row) = mint(TokenKind::Cluster, Some(cluster.workspace), now, &mut rand::rng());
    let until = now + ROTATION_MS;
    let token = Token { cluster: Some(cluster.id), ..row };
    let answer = call_answer::Answer::ClusterRotateToken(v1::ClusterRotateTokenAnswer {
        cluster: cluster.id.to_wire(),
        token: secret.expose().to_owned(),
        namespace: cluster.settings.namespace,
        old_until_unix_ms: unsigned(until),
    });
    match state.store.rotate_cluster_token_once(cluster.id, token, until, once.keep(&answer)?).await? {
        Once::Done(()) => Ok(answer),
        Once::Before(kept) => once.reopen(&kept),
    }
}
