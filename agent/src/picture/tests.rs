//! The picture as the sum of what the watches saw, event by event.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::books::Books;
use super::facts::Eye;
use super::lent::Lent;
use super::*;
use crate::capacity::{self, CARD, Node, NodeReport, Pod, Terms};

const WORKER: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";

fn eye() -> Eye {
    Eye { lent: Lent::read(["lent"]), terms: Terms::new("levers9", "c1") }
}

/// What may happen, as the API server's objects.
#[derive(Debug, Clone)]
enum Happening {
    Put(Kind, serde_json::Value),
    Remove(Kind, serde_json::Value),
    /// The watch is lost, and everything is listed again.
    List(Kind),
    Settle,
}

fn node() -> impl Strategy<Value = serde_json::Value> {
    let allocatable = (select(&["8", "16", "lots"][..]), prop::option::of(select(&["0", "2", "8"][..])));
    (select(&["a", "b", "c"][..]), any::<bool>(), 0..2_u8, any::<bool>(), any::<bool>(), allocatable)
        .prop_map(|(name, lent, uid, ready, cordoned, (cpu, cards))| {
            let mut allocatable =
                json!({"cpu": cpu, "memory": "32Gi", "pods": "3", "nvidia.com/mig-1g.5gb": "7"});
            if let Some(cards) = cards {
                allocatable[CARD] = json!(cards);
            }
            let labels =
                if lent { json!({"lent": "", "nvidia.com/gpu.product": "Tesla-T4"}) } else { json!({}) };
            json!({
                "metadata": {"name": name, "uid": uid.to_string(), "labels": labels},
                "spec": {"unschedulable": cordoned},
                "status": {
                    "allocatable": allocatable,
                    "conditions": [{"type": "Ready", "status": if ready { "True" } else { "Unknown" }}],
                },
            })
        })
}

fn pod() -> impl Strategy<Value = serde_json::Value> {
    let whose = (select(&["levers9", "tenant"][..]), select(&["p", "q", "r", "s"][..]), any::<bool>());
    let place = (select(&["a", "a", "b", "c", "gone", ""][..]), select(&["a", ""][..]), -1..2_i32);
    let how = (
        select(&["Pending", "Running", "Running", "Succeeded"][..]),
        select(&["1", "500m", "x"][..]),
        0..3_u8,
    );
    (whose, place, how).prop_map(
        |((namespace, name, ours), (node, nominated, priority), (phase, cpu, cards))| {
            let labels =
                if ours { json!({"levers9/cluster": "c1", "levers9/worker": WORKER}) } else { json!({}) };
            let cards = cards.to_string();
            json!({
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {
                    "nodeName": node, "priority": priority,
                    "containers": [{"resources": {"requests": {"cpu": cpu}, "limits": {CARD: cards}}}],
                },
                "status": {"phase": phase, "nominatedNodeName": nominated},
            })
        },
    )
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => node().prop_map(|node| Happening::Put(Kind::Nodes, node)),
        2 => node().prop_map(|node| Happening::Remove(Kind::Nodes, node)),
        8 => pod().prop_map(|pod| Happening::Put(Kind::Pods, pod)),
        3 => pod().prop_map(|pod| Happening::Remove(Kind::Pods, pod)),
        1 => select(&[Kind::Nodes, Kind::Pods][..]).prop_map(Happening::List),
        2 => Just(Happening::Settle),
    ]
}

type Objects = BTreeMap<(Kind, String), serde_json::Value>;

fn key(kind: Kind, object: &serde_json::Value) -> (Kind, String) {
    let metadata = &object["metadata"];
    (kind, format!("{}/{}", metadata["namespace"].as_str().unwrap_or_default(), metadata["name"]))
}

fn read(kind: Kind, object: &serde_json::Value) -> Fact {
    eye().read(kind, &object.to_string()).unwrap()
}

/// Every node counted from nothing, by the core itself.
fn counted(objects: &Objects) -> BTreeMap<String, NodeReport> {
    let of =
        |kind: Kind| objects.iter().filter(move |((k, _), _)| *k == kind).map(|(_, object)| object.clone());
    let terms = Terms::new("levers9", "c1");
    let pods: Vec<Pod> = of(Kind::Pods).map(|pod| serde_json::from_value(pod).unwrap()).collect();
    of(Kind::Nodes)
        .map(|node| serde_json::from_value::<Node>(node).unwrap())
        .filter(|node| node.metadata.labels.contains_key("lent"))
        .map(|node| {
            let totals = capacity::count(&node, &pods, &terms).ok();
            (node.metadata.name.clone(), NodeReport::new(&node, totals, &terms))
        })
        .collect()
}

fn assert_same(picture: &Picture, objects: &Objects) -> Result<(), TestCaseError> {
    let counted = counted(objects);
    let names: Vec<&str> = picture.books.states().map(|state| state.name.as_str()).collect();
    prop_assert_eq!(names, counted.keys().map(String::as_str).collect::<Vec<_>>());
    for state in picture.books.states() {
        let report = &counted[&state.name];
        prop_assert_eq!(state.free.is_some(), report.totals.is_some());
        prop_assert_eq!(state.withheld == 0, report.withheld.is_none(), "{:?}", report);
        let Some(totals) = &report.totals else { continue };
        for (said, amounts) in [
            (&state.allocatable, &totals.allocatable),
            (&state.free, &totals.free),
            (&state.levers9, &totals.levers9),
            (&state.others, &totals.others),
            (&state.reserved, &totals.reserved),
        ] {
            let said = said.as_ref().unwrap();
            prop_assert_eq!(i64::try_from(said.cpu_millis).unwrap(), amounts.cpu_millis);
            prop_assert_eq!(i64::from(said.cards), amounts.extended.get(CARD).copied().unwrap_or(0).max(0));
            prop_assert_eq!(i64::from(said.pods), amounts.pods);
        }
        prop_assert_eq!(
            state.other.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(),
            ["nvidia.com/mig-1g.5gb"]
        );
        prop_assert_eq!(state.gpu_label.as_str(), "T4");
    }
    Ok(())
}

proptest! {
    #[test]
    fn books_kept_event_by_event_are_those_counted_from_nothing(
        happenings in prop::collection::vec(happening(), 0..60)
    ) {
        let (mut picture, mut objects) = (Picture::default(), Objects::new());
        let mut told = BTreeMap::new();
        for happening in happenings {
            match happening {
                Happening::Put(kind, object) => {
                    picture.put(read(kind, &object));
                    objects.insert(key(kind, &object), object);
                }
                Happening::Remove(kind, object) => {
                    picture.remove(&read(kind, &object));
                    objects.remove(&key(kind, &object));
                }
                Happening::List(kind) => {
                    // Half of it went away while nobody watched.
                    let mut nth = 0;
                    objects.retain(|(k, _), _| { nth += 1; *k != kind || nth % 2 == 0 });
                    let listed = objects.iter().filter(|((k, _), _)| *k == kind);
                    let facts = listed.map(|(_, object)| read(kind, object)).collect();
                    picture.replace(kind, facts, Instant::now());
                }
                Happening::Settle => {}
            }
            let before = picture.revision();
            picture.settle();
            assert_same(&picture, &objects)?;
            let now: BTreeMap<_, _> = picture.books.states().map(|s| (s.name.clone(), s.clone())).collect();
            prop_assert!(picture.revision() != before || now == told, "a change was not noticed");
            told = now;
            prop_assert!(picture.settle().is_empty());
        }
    }

    #[test]
    fn what_is_counted_once_for_all_is_what_is_counted_at_each_step(
        happenings in prop::collection::vec(happening(), 0..60)
    ) {
        let (mut picture, mut objects) = (Picture::default(), Objects::new());
        for happening in happenings {
            match happening {
                Happening::Put(kind, object) => {
                    picture.put(read(kind, &object));
                    objects.insert(key(kind, &object), object);
                }
                Happening::Remove(kind, object) => {
                    picture.remove(&read(kind, &object));
                    objects.remove(&key(kind, &object));
                }
                Happening::List(_) => {}
                Happening::Settle => { picture.settle(); }
            }
        }
        picture.settle();
        assert_same(&picture, &objects)?;
    }
}

fn simple_node(name: &str) -> serde_json::Value {
    json!({
        "metadata": {"name": name, "uid": "u", "labels": {"lent": ""}},
        "status": {
            "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

fn complete(nodes: usize) -> Picture {
    let mut picture = Picture::default();
    let now = Instant::now();
    let nodes = (0..nodes).map(|i| read(Kind::Nodes, &simple_node(&format!("node-{i:05}")))).collect();
    picture.replace(Kind::Nodes, nodes, now);
    picture.replace(Kind::Pods, Vec::new(), now);
    picture.replace(Kind::Jobs, Vec::new(), now);
    picture.settle();
    picture
}

fn report(picture: &Picture) -> v1::NodeReport {
    picture.report(Instant::now(), 0, Duration::from_secs(7))
}

#[test]
fn a_heartbeat_changes_nothing_that_matters() {
    let mut picture = complete(2);
    let before = picture.revision();
    let mut node = simple_node("node-00000");
    node["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-11-29T20:00:00Z");
    node["metadata"]["resourceVersion"] = json!("8");
    picture.put(read(Kind::Nodes, &node));
    picture.settle();
    assert_eq!(picture.revision(), before);
    node["spec"] = json!({"unschedulable": true});
    picture.put(read(Kind::Nodes, &node));
    picture.settle();
    assert_ne!(picture.revision(), before);
}

#[test]
fn a_node_of_the_same_name_is_another_one() {
    let mut picture = complete(1);
    let before = picture.revision();
    let mut node = simple_node("node-00000");
    picture.remove(&read(Kind::Nodes, &node));
    node["metadata"]["uid"] = json!("u2");
    picture.put(read(Kind::Nodes, &node));
    picture.settle();
    assert_ne!(picture.revision(), before);
    assert_eq!(report(&picture).nodes[0].uid, "u2");
}

#[test]
fn before_everything_was_listed_nothing_is_said_of_nodes() {
    let mut picture = Picture::default();
    picture.replace(Kind::Nodes, vec![read(Kind::Nodes, &simple_node("a"))], Instant::now());
    picture.settle();
    assert!(!picture.says_something());
    let said = report(&picture);
    assert_eq!((said.nodes.len(), said.age_ms), (0, 7_000));
    assert!(said.problem.contains("not listed"), "{}", said.problem);
    picture.failed(Kind::Pods, "cannot watch pods: 403 no");
    assert!(picture.says_something());
    assert_eq!(report(&picture).problem, "cannot watch pods: 403 no");
}

#[test]
fn a_selector_that_cannot_be_read_is_said_in_every_report() {
    let lent = Lent::read(["a,b"]);
    let eye = Eye { lent: lent.clone(), terms: Terms::new("levers9", "c1") };
    let mut picture = Picture::new(lent.problem());
    let node = eye.read(Kind::Nodes, &simple_node("a").to_string()).unwrap();
    for kind in Kind::ALL {
        let facts = if kind == Kind::Nodes { vec![node.clone()] } else { Vec::new() };
        picture.replace(kind, facts, Instant::now());
    }
    picture.settle();
    let said = report(&picture);
    assert_eq!((said.nodes.len(), said.nodes_in_cluster), (0, 1));
    assert!(said.problem.contains("selector"), "{}", said.problem);
}

#[test]
fn what_does_not_fit_a_report_is_said() {
    let said = report(&complete(limits::NODES + 1));
    assert_eq!(said.nodes.len(), limits::NODES);
    assert!(said.problem.contains("10001 nodes are lent"), "{}", said.problem);
    assert!(said.encoded_len() <= limits::NODE_REPORT);
    assert_eq!(report(&complete(limits::NODES)).problem, "");
}

#[test]
fn a_report_of_long_names_fits_its_frame() {
    let mut picture = complete(0);
    for index in 0..limits::NODES {
        let mut node = simple_node(&format!("{}-{index:05}", "n".repeat(240)));
        for slice in 0..limits::SELECTOR {
            node["status"]["allocatable"][format!("example.com/{}-{slice}", "s".repeat(50))] = json!("1");
        }
        picture.put(read(Kind::Nodes, &node));
    }
    picture.settle();
    let said = report(&picture);
    assert!(said.encoded_len() <= limits::NODE_REPORT);
    assert!(
        !said.nodes.is_empty() && said.problem.contains("more than a report can hold"),
        "{}",
        said.problem
    );
}

#[test]
fn a_report_is_taken_by_the_edge_of_the_wire() {
    let mut picture = complete(3);
    let job = json!({"metadata": {
        "name": "j", "uid": "u", "creationTimestamp": "2026-11-29T20:00:00Z",
        "labels": {"levers9/worker": WORKER}, "annotations": {"levers9/node": "node-00001"},
    }});
    picture.put(read(Kind::Jobs, &job));
    picture.settle();
    let said = picture.report(Instant::now(), 1_795_982_460_000, Duration::ZERO);
    let taken = levers9_wire::valid::Report::try_from(said.clone()).unwrap().0;
    assert_eq!(taken, said);
    assert_eq!((taken.jobs[0].phase(), taken.jobs[0].age_ms), (v1::JobPhase::Pending, 60_000));
}

#[test]
fn books_of_a_large_cluster_hold_little() {
    // What is kept per pod must not grow: 50,000 of them have to fit beside all else.
    assert!(size_of::<capacity::Held>() <= 64, "{}", size_of::<capacity::Held>());
    assert!(size_of::<Books>() < 1_024);
}
