//! Clusters and their nodes as the calls show them. Somebody else's shared
//! cluster shows its card, its state and what is free on each node: no node's
//! name, no namespace, no image.

use std::time::Duration;

use levers9_wire::token::TokenKind;
use levers9_wire::v1;
use levers9_wire::{gpu, quantity};
use tokio::time::Instant;

use super::{ClusterNow, Ordered, orders};
use crate::auth::Identity;
use crate::scheduler::pools::{STALE, Withheld};
use crate::sessions::riding;
use crate::state::{Shared, now_ms, unsigned};
use crate::store::{PoolWorkerState, StoreError};

/// Whether somebody sees all of a cluster: its workspace, and an admin.
#[must_use]
pub fn is_own(who: &Identity, cluster: &ClusterNow) -> bool {
    who.kind == TokenKind::Admin || who.workspace == Some(cluster.row.workspace)
}

/// Whether somebody sees that there is a cluster.
#[must_use]
pub fn may_see(who: &Identity, cluster: &ClusterNow) -> bool {
    cluster.row.shared || is_own(who, cluster)
}

/// How old the newest picture of a cluster is.
#[must_use]
pub fn age(cluster: &ClusterNow, now: Instant) -> Option<Duration> {
    cluster.arrived.as_ref().map(|arrived| now.saturating_duration_since(arrived.taken))
}

/// The word for how a cluster is, and what there is to say about it.
fn state_of(cluster: &ClusterNow, now: Instant) -> (&'static str, String) {
    let fighting = cluster.fighting(now);
    if !fighting.is_empty() {
        let both: Vec<_> = fighting.iter().map(ToString::to_string).collect();
        return ("paused", format!("two agents use its token: {}", both.join(", ")));
    }
    let problem = cluster.arrived.as_ref().map(|a| a.report.problem.clone()).unwrap_or_default();
    match (&cluster.session, age(cluster, now)) {
        (Some(_), Some(age)) if age < STALE => ("ready", problem),
        (Some(_), Some(age)) => {
            let old = format!("its agent has not seen the cluster for {}", quantity::show_duration(age));
            ("stale", if problem.is_empty() { old } else { format!("{old}: {problem}") })
        }
        (Some(_), None) => ("waiting", "its agent is here and has not reported yet".to_owned()),
        (None, _) if cluster.row.last_seen_ms.is_none() && cluster.since.is_none() => {
            ("waiting", "its agent has never come".to_owned())
        }
        (None, _) => ("away", "its agent is not connected".to_owned()),
    }
}

/// Whom a cluster serves, in words for `who`.
async fn serves(state: &Shared, who: &Identity, cluster: &ClusterNow) -> Result<String, StoreError> {
    if cluster.row.shared {
        return Ok("every workspace".to_owned());
    }
    if who.workspace == Some(cluster.row.workspace) {
        return Ok("own".to_owned());
    }
    Ok(state.store.workspace(cluster.row.workspace).await?.map(|w| w.name).unwrap_or_default())
}

/// A cluster as somebody may see it.
///
/// # Errors
/// When the database fails.
pub async fn cluster(state: &Shared, who: &Identity, now: &ClusterNow) -> Result<v1::Cluster, StoreError> {
    let clock = Instant::now();
    let (word, note) = state_of(now, clock);
    let own = is_own(who, now);
    let nodes = now.arrived.as_ref().map(|a| a.report.nodes.as_slice()).unwrap_or_default();
    let cards = |pick: fn(&v1::NodeState) -> &Option<v1::NodeAmounts>| {
        nodes.iter().filter_map(|node| pick(node).as_ref()).map(|a| a.cards).sum()
    };
    let ready = nodes.iter().filter(|node| is_ready(node)).count();
    let free = |node: &&v1::NodeState| offers(node);
    let cards_free = nodes.iter().filter(free).filter_map(|n| n.free.as_ref()).map(|a| a.cards).sum();
    let workers = workers_on(state, now);
    let pending = workers.iter().filter(|w| w.row.state == PoolWorkerState::Pending).count();
    let uptime = match (&now.session, now.since) {
        (Some(_), Some(since)) => {
            now.facts.uptime_ms.saturating_add(millis(clock.saturating_duration_since(since)))
        }
        _ => 0,
    };
    let row = &now.row;
    let mut shown = v1::Cluster {
        id: row.id.to_wire(),
        name: row.name.clone(),
        state: word.to_owned(),
        gpu_type: row.settings.gpu_type.clone(),
        serves: serves(state, who, now).await?,
        shared: row.shared,
        own,
        nodes: count(nodes.len()),
        nodes_ready: count(ready),
        cards: cards(|node| &node.allocatable),
        cards_free,
        last_seen_unix_ms: row.last_seen_ms.map_or(0, unsigned),
        created_unix_ms: unsigned(row.created_ms),
        workers: count(workers.len()),
        workers_pending: count(pending),
        runtime: orders::RUNTIME.to_owned(),
        ..v1::Cluster::default()
    };
    if let Some(age) = age(now, clock) {
        shown.last_seen_unix_ms = unsigned(now_ms()).saturating_sub(millis(age));
    }
    if own {
        shown.note = note;
        (shown.carrier, shown.carrier_why) = riding(now.session.as_ref());
        shown.agent_build.clone_from(&row.agent_build);
        shown.agent_uptime_ms = uptime;
        shown.kubernetes.clone_from(&row.kubernetes);
        shown.namespace.clone_from(&row.settings.namespace);
        shown.worker_image = orders::image(state, &now.row);
        shown.flavor.clone_from(&row.settings.flavor);
        shown.selector.clone_from(&row.settings.selector);
    }
    Ok(shown)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The workers ordered on a cluster.
#[must_use]
pub fn workers_on(state: &Shared, cluster: &ClusterNow) -> Vec<Ordered> {
    state.clusters.workers().into_iter().filter(|w| w.row.cluster == cluster.row.id).collect()
}

/// Whether a node counts as one that could take a worker some time soon.
#[must_use]
pub fn is_ready(node: &v1::NodeState) -> bool {
    use Withheld as W;
    !matches!(Withheld::of(node.withheld), Some(W::Deleting | W::NotReady | W::Cordoned | W::Tainted))
}

fn offers(node: &v1::NodeState) -> bool {
    Withheld::of(node.withheld).is_none()
}

/// Why a node is not offered, in words; empty when it is.
#[must_use]
pub fn why_withheld(node: &v1::NodeState) -> &'static str {
    match Withheld::of(node.withheld) {
        None => "",
        Some(Withheld::Deleting) => "it is being deleted",
        Some(Withheld::NotReady) => "it is not ready",
        Some(Withheld::Cordoned) => "it is cordoned",
        Some(Withheld::Tainted) => "it has a taint that workers do not tolerate",
        Some(Withheld::Unreadable) => "an amount of it, or of a pod on it, cannot be read",
        Some(Withheld::NoPodSlot) => "it takes no further pod",
        Some(Withheld::NoFreeCard) => "none of its cards is free",
    }
}

/// The nodes of a cluster as somebody may see them.
#[must_use]
pub fn nodes(state: &Shared, who: &Identity, now: &ClusterNow) -> Vec<v1::ClusterNode> {
    let (own, clock) = (is_own(who, now), Instant::now());
    let stale = age(now, clock).is_none_or(|age| age >= STALE) || now.session.is_none();
    let workers = workers_on(state, now);
    let Some(arrived) = &now.arrived else { return Vec::new() };
    let node = |node: &v1::NodeState| {
        let here = |state| {
            let of = workers.iter().filter(|w| w.row.node == node.name && w.row.state == state);
            count(of.count())
        };
        let pending = here(PoolWorkerState::Pending);
        let why = why_not(now, node, stale, &workers, clock);
        let state = v1::NodeState { uid: String::new(), ..node.clone() };
        let shown = if own { state } else { redacted(&state) };
        v1::ClusterNode {
            state: Some(shown),
            offered: why.is_empty(),
            why: if own { notes(now, node, why) } else { String::new() },
            workers_pending: pending,
            workers: here(PoolWorkerState::Running),
            gpu_type: if card(node) > 0 { now.row.settings.gpu_type.clone() } else { String::new() },
        }
    };
    arrived.report.nodes.iter().map(node).collect()
}

fn card(node: &v1::NodeState) -> u32 {
    node.allocatable.as_ref().map_or(0, |a| a.cards)
}

/// Why no worker may be started on a node now; empty when one may.
fn why_not(
    cluster: &ClusterNow,
    node: &v1::NodeState,
    stale: bool,
    workers: &[Ordered],
    clock: Instant,
) -> String {
    if stale {
        return "the last report is too old".to_owned();
    }
    // Before what it takes: a worker's pod that does not start holds its node's cards.
    let coming = |w: &&Ordered| w.row.node == node.name && w.row.state == PoolWorkerState::Pending;
    if let Some(worker) = workers.iter().find(coming) {
        let told = if worker.reason.is_empty() { String::new() } else { format!(": {}", worker.reason) };
        return format!("a worker is on its way there{told}");
    }
    let closed = why_withheld(node);
    if !closed.is_empty() {
        return closed.to_owned();
    }
    match cluster.resting.get(&node.name).filter(|rest| rest.until > clock) {
        Some(rest) => {
            let left = quantity::show_duration(rest.until.saturating_duration_since(clock));
            format!("left alone for {left}: {}", rest.reason)
        }
        None => String::new(),
    }
}

/// What else there is to say of a node.
fn notes(cluster: &ClusterNow, node: &v1::NodeState, why: String) -> String {
    let mut notes = if why.is_empty() { Vec::new() } else { vec![why] };
    let (wanted, label) = (&cluster.row.settings.gpu_type, &node.gpu_label);
    if card(node) > 0 && !label.is_empty() && !gpu::fits(wanted, label) {
        notes.push(format!(
            "offered for CPU work only: its labels say {label}, the cluster was joined as {wanted}"
        ));
    }
    if node.shared_cards {
        notes.push("its cards are time-sliced: no job gets two of them".to_owned());
    }
    notes.join("; ")
}

/// Of somebody else's node only what is free.
fn redacted(node: &v1::NodeState) -> v1::NodeState {
    v1::NodeState {
        withheld: node.withheld,
        allocatable: node.allocatable,
        free: node.free,
        shared_cards: node.shared_cards,
        ..v1::NodeState::default()
    }
}

/// Worker Jobs of a cluster that nobody here knows of.
#[must_use]
pub fn orphans(state: &Shared, cluster: &ClusterNow) -> Vec<v1::WorkerJob> {
    let Some(arrived) = &cluster.arrived else { return Vec::new() };
    let known = |job: &&v1::WorkerJob| {
        levers9_wire::WorkerId::from_wire(&job.worker)
            .ok()
            .flatten()
            .is_none_or(|id| state.clusters.worker(id).is_none())
    };
    let mut orphans: Vec<_> =
        arrived.jobs.values().filter(known).filter(|job| !job.deleting).cloned().collect();
    orphans.sort_by(|a, b| a.worker.cmp(&b.worker));
    orphans
}
