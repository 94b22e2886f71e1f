//! What people and scripts see of clusters, and of a task that waits.

use levers9_wire::v1::{self, call_answer::Answer, call_open::Request};

use super::{amounts, answering, cluster, manifest, node, nodes, settings};
use crate::fake::Fake;
use crate::support::Did;
use crate::{home, task};

fn run(fake: &Fake, args: &[&str]) -> Did {
    home(fake).run(args)
}

/// Somebody else's cluster that serves everybody.
fn shared() -> v1::Cluster {
    v1::Cluster {
        name: "lab".to_owned(),
        state: "stale".to_owned(),
        serves: "every workspace".to_owned(),
        shared: true,
        own: false,
        nodes: 1,
        nodes_ready: 0,
        cards: 4,
        cards_free: 0,
        workers: 0,
        workers_pending: 0,
        agent_build: String::new(),
        agent_uptime_ms: 0,
        last_seen_unix_ms: 0,
        ..cluster()
    }
}

#[test]
fn clusters_are_listed_with_whom_they_serve() {
    let fake = answering(|_, _| {
        let clusters = vec![cluster(), shared()];
        Answer::ClusterList(v1::ClusterListAnswer { clusters })
    });
    let did = run(&fake, &["cluster", "list"]);
    let expected = "\
CLUSTER  STATE  GPU   NODES READY  CARDS FREE  WORKERS  SEEN    AGENT  UPTIME  SERVES
gpus     ready  L40S  1/2          3/8         1+1      0s ago  0.1.0  2h      own
lab      stale  L40S  0/1          0/4         0        never                  every workspace";
    assert_eq!((did.code, did.out.as_str(), did.err.as_str()), (0, expected, ""));
    let did = run(&fake, &["cluster", "list", "--format", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&did.out).unwrap();
    assert_eq!(listed[0]["cards_free"], 3);
    assert_eq!(listed[0]["agent_uptime_ms"], 7_200_000);
    assert_eq!((&listed[1]["own"], &listed[1]["agent_uptime_ms"]), (&false.into(), &serde_json::Value::Null));
}

#[test]
fn no_cluster_is_an_empty_list() {
    let fake = answering(|_, _| Answer::ClusterList(v1::ClusterListAnswer::default()));
    assert!(run(&fake, &["cluster", "list"]).out.starts_with("CLUSTER  STATE"));
    assert_eq!(run(&fake, &["cluster", "list", "--format", "json"]).out, "[]");
}

#[test]
fn nodes_are_listed_with_what_is_free_and_why_not() {
    let fake = answering(|_, _| Answer::ClusterNodes(nodes()));
    let did = run(&fake, &["cluster", "nodes", "gpus"]);
    let expected = "\
NODE   READY  OFFERED  CARDS FREE  CPU FREE  MEMORY FREE  WORKERS
gpu-1  yes    yes      3/4 L40S    8/16      32Gi/64Gi    1
gpu-2  no     no       0/4 L40S    0/16      0B/64Gi      0";
    let note =
        "levers9: workers there are unprivileged pods that run jobs as plain processes, one workspace each";
    assert_eq!((did.code, did.out.as_str(), did.err.as_str()), (0, expected, note));
    let did = run(&fake, &["cluster", "nodes", "gpus", "--why"]);
    let expected = "\
NODE   READY  OFFERED  CARDS FREE  CPU FREE  MEMORY FREE  WORKERS  LEVERS9             OTHERS       RESERVED  WHY
gpu-1  yes    yes      3/4 L40S    8/16      32Gi/64Gi    1        2 CPU, 8Gi, 1 card  6 CPU, 24Gi
gpu-2  no     no       0/4 L40S    0/16      0B/64Gi      0                                                   it is not ready";
    assert_eq!(did.out, expected);
    let did = run(&fake, &["cluster", "nodes", "gpus", "--format", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&did.out).unwrap();
    assert_eq!(shown["cluster"]["name"], "gpus");
    assert_eq!(shown["nodes"][0]["free"]["cards"], 3);
    assert_eq!(
        (&shown["nodes"][1]["withheld"], &shown["nodes"][1]["ready"]),
        (&"not-ready".into(), &false.into())
    );
    assert_eq!(shown["orphans"], serde_json::json!([]));
}

#[test]
fn of_somebody_elses_nodes_only_what_is_free_is_shown() {
    let state = v1::NodeState {
        gpu_label: String::new(),
        ..node("", amounts(1_000, 1, 0), v1::WithheldReason::NoFreeCard)
    };
    let node =
        v1::ClusterNode { state: Some(state), gpu_type: "L40S".to_owned(), ..v1::ClusterNode::default() };
    let answer = v1::ClusterNodesAnswer {
        cluster: Some(shared()),
        age_ms: Some(100_000),
        nodes: vec![node],
        orphans: Vec::new(),
    };
    let fake = answering(move |_, _| Answer::ClusterNodes(answer.clone()));
    let did = run(&fake, &["cluster", "nodes", "lab", "--why"]);
    let expected = "\
READY  OFFERED  CARDS FREE  CPU FREE  MEMORY FREE  WORKERS  LEVERS9  OTHERS  RESERVED  WHY
yes    no       0/4 L40S    1/16      1Gi/64Gi     0                                   no-free-card";
    assert_eq!((did.code, did.out.as_str()), (0, expected));
    assert!(did.err.starts_with("levers9: cluster \"lab\" is stale: what follows may be old"), "{}", did.err);
}

#[test]
fn everything_taken_and_nothing_there_are_zeros() {
    let full = node("a", amounts(0, 0, 0), v1::WithheldReason::NoFreeCard);
    let full = v1::ClusterNode { state: Some(full), ..v1::ClusterNode::default() };
    let answer = |nodes| v1::ClusterNodesAnswer {
        cluster: Some(v1::Cluster { runtime: String::new(), ..cluster() }),
        age_ms: Some(1),
        nodes,
        orphans: Vec::new(),
    };
    let (one, none) = (answer(vec![full]), answer(Vec::new()));
    let fake = answering(move |request, _| {
        let empty = matches!(request, Request::ClusterNodes(asked) if asked.cluster == "empty");
        Answer::ClusterNodes(if empty { none.clone() } else { one.clone() })
    });
    let did = run(&fake, &["cluster", "nodes", "full"]);
    let expected = "\
NODE  READY  OFFERED  CARDS FREE  CPU FREE  MEMORY FREE  WORKERS
a     yes    no       0/4 L40S    0/16      0B/64Gi      0";
    assert_eq!((did.code, did.out.as_str(), did.err.as_str()), (0, expected, ""));
    let did = run(&fake, &["cluster", "nodes", "empty"]);
    assert_eq!((did.code, did.out.lines().count(), did.err.as_str()), (0, 1, ""));
}

#[test]
fn a_manifest_is_printed_without_the_token() {
    let fake = answering(|_, _| {
        Answer::ClusterShow(v1::ClusterShowAnswer { manifest: Some(manifest("process", settings())) })
    });
    let did = run(&fake, &["cluster", "manifest", "gpus"]);
    let kinds: Vec<&str> = did.out.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
    let expected = [
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Deployment",
    ];
    assert_eq!((did.code, did.err.as_str()), (0, ""));
    assert_eq!(kinds, expected);
    let did = run(&fake, &["cluster", "manifest", "gpus", "--format", "json"]);
    let list: serde_json::Value = serde_json::from_str(&did.out).unwrap();
    assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&"List".into(), Some(7)));
}

#[test]
fn sharing_says_who_is_trusted() {
    let fake = answering(|request, _| {
        let shared = matches!(request, Request::ClusterShare(asked) if asked.shared);
        let serves = if shared { "every workspace" } else { "own" }.to_owned();
        let note = if shared { "Whoever owns it sees every job there." } else { "" }.to_owned();
        let cluster = Some(v1::Cluster { shared, serves, ..cluster() });
        Answer::ClusterShare(v1::ClusterShareAnswer { cluster, note })
    });
    let did = run(&fake, &["cluster", "share", "gpus"]);
    assert_eq!(
        (did.code, did.out.as_str(), did.err.as_str()),
        (0, "cluster \"gpus\" serves: every workspace", "levers9: Whoever owns it sees every job there.")
    );
    let did = run(&fake, &["cluster", "share", "gpus", "--off"]);
    assert_eq!((did.out.as_str(), did.err.as_str()), ("cluster \"gpus\" serves: own", ""));
    let did = run(&fake, &["cluster", "share", "gpus", "--format", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&did.out).unwrap();
    assert_eq!((&shown["shared"], shown["warning"].as_str().is_some()), (&true.into(), true));
}

#[test]
fn why_says_place_by_place_what_is_in_the_way() {
    let place = |pool: &str, node: &str, reason: &str, text: &str, frees: &str| v1::WhyPlace {
        pool: pool.to_owned(),
        node: node.to_owned(),
        reason: reason.to_owned(),
        text: text.to_owned(),
        frees: frees.to_owned(),
    };
    let places = vec![
        place("local", "", "wrong-card", "it has no L40S", ""),
        place("gpus", "gpu-1", "taken-by-others", "4 of 4 cards are taken by others", "when they end"),
    ];
    let fake = answering(move |_, _| {
        let (status, summary) = ("PENDING".to_owned(), "it waits for a card".to_owned());
        Answer::TaskWhy(v1::TaskWhyAnswer { status, summary, places: places.clone() })
    });
    let task = task().to_string();
    let did = run(&fake, &["why", &task]);
    let expected = "\
POOL   NODE   REASON           WHY                               FREES
local         wrong-card       it has no L40S
gpus   gpu-1  taken-by-others  4 of 4 cards are taken by others  when they end

PENDING: it waits for a card";
    assert_eq!((did.code, did.out.as_str(), did.err.as_str()), (0, expected, ""));
    let did = run(&fake, &["why", &task, "--format", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&did.out).unwrap();
    assert_eq!(shown["task"], task);
    assert_eq!((&shown["status"], &shown["places"][1]["node"]), (&"PENDING".into(), &"gpu-1".into()));
}

#[test]
fn workers_are_listed_with_their_node_where_there_are_clusters() {
    let worker = |node: &str| v1::Worker { node: node.to_owned(), ..v1::Worker::default() };
    let fake = answering(move |_, before| {
        let nodes = if before == 0 { vec![worker("gpu-1"), worker("")] } else { vec![worker("")] };
        Answer::WorkerList(v1::WorkerListAnswer { workers: nodes })
    });
    let head = |did: Did| did.out.lines().next().unwrap_or_default().to_owned();
    assert!(head(run(&fake, &["worker", "list"])).contains("HOST  NODE   CPU FREE"));
    assert!(head(run(&fake, &["worker", "list"])).contains("HOST  CPU FREE"));
}
