//! The vector files beside this test, all of them: figures worked out from
//! the rules of Kubernetes and confirmed on a real API server and scheduler.

#![cfg(test)]

use std::collections::BTreeMap;

use levers9_agent::capacity::{self, Node, NodeReport, Pod, Terms, Toleration, Withheld};
use levers9_agent::quantity;
use levers9_agent::selector::Selector;
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn load<T: DeserializeOwned>(json: &str) -> Vec<T> {
    serde_json::from_str(json).unwrap()
}

#[derive(Deserialize)]
struct QuantityCase {
    id: String,
    #[serde(rename = "in")]
    text: String,
    kind: String,
    value: Option<i64>,
    error: bool,
}

#[test]
fn quantities() {
    let cases: Vec<QuantityCase> = load(include_str!("vectors/quantity.json"));
    for QuantityCase { id, text, kind, value, error } in &cases {
        let read = match kind.as_str() {
            "cpu" => quantity::cpu_millis(text),
            "memory" => quantity::memory_bytes(text),
            other => panic!("{id}: unknown kind {other}"),
        };
        assert_eq!(read.is_err(), *error, "{id}: {text:?} read as {read:?}");
        assert_eq!(read.ok(), *value, "{id}: {text:?}");
    }
    assert_eq!(cases.len(), 88);
}

#[derive(Deserialize)]
struct SelectorCase {
    id: String,
    selector: Vec<String>,
    labels: BTreeMap<String, String>,
    #[serde(rename = "match")]
    matches: Option<bool>,
    error: Option<String>,
}

#[test]
fn selectors() {
    let cases: Vec<SelectorCase> = load(include_str!("vectors/selector.json"));
    for SelectorCase { id, selector, labels, matches, error } in &cases {
        let parsed = Selector::parse(selector);
        assert_eq!(
            parsed.is_err(),
            error.is_some(),
            "{id}: {selector:?} parsed as {parsed:?}, not {error:?}"
        );
        assert_eq!(parsed.ok().map(|s| s.matches(labels)), *matches, "{id}: {selector:?} on {labels:?}");
    }
    assert_eq!(cases.len(), 69);
}

#[derive(Deserialize)]
struct CapacityCase {
    id: String,
    title: String,
    node: Node,
    pods: Vec<Pod>,
    tolerations: Option<Vec<Toleration>>,
    free: Option<Free>,
    pod_slots: Option<i64>,
    offered: bool,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Free {
    cpu_millis: i64,
    memory_bytes: i64,
    extended: BTreeMap<String, i64>,
}

#[test]
fn capacities() {
    let cases: Vec<CapacityCase> = load(include_str!("vectors/capacity.json"));
    let count = cases.len();
    for CapacityCase { id, title, node, pods, tolerations, free, pod_slots, offered } in cases {
        let mut terms = Terms::new("levers9", "c1");
        terms.tolerations = tolerations.unwrap_or(terms.tolerations);
        let totals = capacity::count(&node, &pods, &terms).ok();
        let found = totals.as_ref().map(|t| Free {
            cpu_millis: t.free.cpu_millis,
            memory_bytes: t.free.memory_bytes,
            extended: t.free.extended.clone(),
        });
        assert_eq!(found, free, "{id}: {title}");
        assert_eq!(totals.as_ref().map(|t| t.free.pods), pod_slots, "{id}: {title}");

        let unreadable = totals.is_none();
        let withheld = NodeReport::new(&node, totals, &terms).withheld;
        // The vectors leave out the rule for GPU nodes without a free card, which comes last.
        assert_eq!(
            matches!(withheld, None | Some(Withheld::NoFreeCard)),
            offered,
            "{id}: {title}: {withheld:?}"
        );
        assert_eq!(withheld == Some(Withheld::Unreadable), unreadable, "{id}: {title}: {withheld:?}");
    }
    assert_eq!(count, 85);
}
