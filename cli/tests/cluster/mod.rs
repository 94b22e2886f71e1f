//! Commands about clusters, with the controlplane and the API server played by
//! the test.

mod api;
mod join;
mod leave;
mod look;

use levers9_wire::ClusterId;
use levers9_wire::v1::{self, call_answer::Answer, call_open::Request, stream_open::Kind};

use crate::fake::{Fake, Step};
use crate::support::token;

/// The id of the only cluster there is.
pub(crate) const ID: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6c";

fn id() -> Vec<u8> {
    ID.parse::<ClusterId>().unwrap().to_wire()
}

/// The token of its agent.
fn agents_token() -> String {
    token('c')
}

fn settings() -> v1::ClusterSettings {
    v1::ClusterSettings {
        name: "gpus".to_owned(),
        gpu_type: "L40S".to_owned(),
        namespace: "levers9".to_owned(),
        worker_image: "registry.example/levers9/worker:1".to_owned(),
        ..v1::ClusterSettings::default()
    }
}

fn manifest(runtime: &str, settings: v1::ClusterSettings) -> v1::ClusterManifest {
    v1::ClusterManifest {
        cluster: id(),
        settings: Some(settings),
        address: "levers9://cp.example:443".to_owned(),
        runtime: runtime.to_owned(),
    }
}

fn amounts(cpu_millis: u64, gigabytes: u64, cards: u32) -> Option<v1::NodeAmounts> {
    Some(v1::NodeAmounts { cpu_millis, memory_bytes: gigabytes << 30, cards, pods: 100 })
}

fn cluster() -> v1::Cluster {
    v1::Cluster {
        id: id(),
        name: "gpus".to_owned(),
        state: "ready".to_owned(),
        gpu_type: "L40S".to_owned(),
        serves: "own".to_owned(),
        own: true,
        nodes: 2,
        nodes_ready: 1,
        cards: 8,
        cards_free: 3,
        last_seen_unix_ms: levers9_wire::clock::unix_millis(),
        agent_build: "0.1.0".to_owned(),
        agent_uptime_ms: 7_200_000,
        workers: 1,
        workers_pending: 1,
        runtime: "process".to_owned(),
        ..v1::Cluster::default()
    }
}

fn node(name: &str, free: Option<v1::NodeAmounts>, withheld: v1::WithheldReason) -> v1::NodeState {
    v1::NodeState {
        name: name.to_owned(),
        withheld: withheld.into(),
        allocatable: amounts(16_000, 64, 4),
        free,
        gpu_label: "L40S".to_owned(),
        ..v1::NodeState::default()
    }
}

/// The nodes of the cluster: one with room and one that is not ready.
fn nodes() -> v1::ClusterNodesAnswer {
    let shown = |state: v1::NodeState, why: &str| v1::ClusterNode {
        state: Some(state),
        offered: why.is_empty(),
        why: why.to_owned(),
        gpu_type: "L40S".to_owned(),
        ..v1::ClusterNode::default()
    };
    let mut busy = node("gpu-1", amounts(8_000, 32, 3), v1::WithheldReason::Unspecified);
    busy.levers9 = amounts(2_000, 8, 1);
    busy.others = amounts(6_000, 24, 0);
    let mut busy = shown(busy, "");
    busy.workers = 1;
    let gone = node("gpu-2", amounts(0, 0, 0), v1::WithheldReason::NotReady);
    v1::ClusterNodesAnswer {
        cluster: Some(cluster()),
        age_ms: Some(2_000),
        nodes: vec![busy, shown(gone, "it is not ready")],
        orphans: Vec::new(),
    }
}

/// A controlplane that answers calls, each by what is asked and how many calls
/// there were before.
fn answering(answer: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static) -> Fake {
    Fake::start(move |kind, before| match kind {
        Kind::Call(v1::CallOpen { request: Some(request), .. }) => {
            vec![Step::Answer(answer(request, before))]
        }
        _ => vec![],
    })
}

/// What it was asked to do, in words.
fn did(fake: &Fake) -> Vec<&'static str> {
    let word = |call: v1::CallOpen| match call.request {
        Some(Request::ClusterJoin(_)) => "join",
        Some(Request::ClusterLeave(asked)) if asked.dry_run => "ask about leaving",
        Some(Request::ClusterLeave(_)) => "leave",
        Some(Request::ClusterShow(_)) => "show",
        Some(Request::ClusterRotateToken(_)) => "rotate",
        Some(Request::ClusterNodes(_)) => "nodes",
        _ => "other",
    };
    fake.calls().into_iter().map(word).collect()
}
