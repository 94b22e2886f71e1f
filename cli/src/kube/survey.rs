//! What the nodes and the namespace of a cluster say about attaching it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use levers9_agent::manifest::pod_security;
use levers9_agent::selector::{Operator, Selector};
use levers9_wire::gpu;
use levers9_wire::name::printable;

/// Labels by which the clouds' nodes are known.
const CLOUDS: [(&str, &str); 3] = [
    ("cloud.google.com/gke-nodepool", "gke"),
    ("eks.amazonaws.com/nodegroup", "eks"),
    ("kubernetes.azure.com/agentpool", "aks"),
];
/// How the nodes of GKE Autopilot are called. (Its label
/// `cloud.google.com/gke-provisioning` is on other GKE nodes as well.)
const AUTOPILOT: &str = "gk3-";
/// How many keys or values are listed in a message.
const LISTED: usize = 40;

/// What of a node counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    /// Its name.
    pub(crate) name: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
}

/// Whose cloud it is, by the labels of its nodes.
pub(crate) fn flavor(nodes: &[NodeFacts]) -> Option<&'static str> {
    let of = |label: &str| nodes.iter().any(|node| node.labels.contains_key(label));
    CLOUDS.iter().find(|(label, _)| of(label)).map(|(_, flavor)| *flavor)
}

/// Whether it is GKE Autopilot, which lets no privileged pod in.
pub(crate) fn autopilot(nodes: &[NodeFacts]) -> bool {
    nodes.iter().any(|node| node.name.starts_with(AUTOPILOT))
}

/// The nodes a selector names.
pub(crate) fn selected<'a>(selector: &Selector, nodes: &'a [NodeFacts]) -> Vec<&'a NodeFacts> {
    nodes.iter().filter(|node| selector.matches(&node.labels)).collect()
}

/// What to say of a selector that names no node: how many there are, and what
/// they could be named by. It may be right all the same: a node pool may have
/// no nodes at the moment.
pub(crate) fn selector_warning(selector: &Selector, nodes: &[NodeFacts]) -> Option<String> {
    if selector.requirements().is_empty() || !selected(selector, nodes).is_empty() {
        return None;
    }
    let items: Vec<String> = selector.requirements().iter().map(ToString::to_string).collect();
    let items = items.join(" and ");
    Some(match nodes.len() {
        0 => format!("the selector {items} names no node: the cluster has none"),
        1 => format!(
            "the selector {items} does not name the cluster's only node, so nothing is lent now: {}",
            what_there_is(selector, nodes)
        ),
        count => format!(
            "the selector {items} names none of the cluster's {count} nodes, so nothing is lent now: {}",
            what_there_is(selector, nodes)
        ),
    })
}

/// The values of a key that some node has, or else the keys there are.
fn what_there_is(selector: &Selector, nodes: &[NodeFacts]) -> String {
    let mut hints = Vec::new();
    for item in selector.requirements() {
        let values: BTreeSet<&str> =
            nodes.iter().filter_map(|node| node.labels.get(item.key())).map(String::as_str).collect();
        let fits = |value: &&str| item.values().iter().any(|wanted| wanted == value);
        if item.operator() == Operator::In && !values.is_empty() && !values.iter().any(fits) {
            hints.push(format!("{} is {}", item.key(), listed(values, " or ")));
        }
    }
    let keys: BTreeSet<&str> = nodes.iter().flat_map(|node| node.labels.keys()).map(String::as_str).collect();
    hints.push(match keys.is_empty() {
        true => "the nodes have no labels".to_owned(),
        false => format!("the nodes have labels of these keys: {}", listed(keys, ", ")),
    });
    hints.join("; ")
}

/// Texts from elsewhere as a list of bounded length.
fn listed(texts: BTreeSet<&str>, between: &str) -> String {
    let more = texts.len().saturating_sub(LISTED);
    let mut words: Vec<String> = texts.into_iter().take(LISTED).map(|text| printable(text, 80)).collect();
    if more > 0 {
        words.push(format!("{more} more"));
    }
    words.join(between)
}

/// What the labels of nodes call their cards.
fn cards(nodes: &[&NodeFacts]) -> BTreeSet<String> {
    let of = |node: &NodeFacts| {
        let label = gpu::LABELS.iter().find_map(|label| node.labels.get(*label))?;
        Some(gpu::name_of(label)).filter(|name| !name.is_empty())
    };
    nodes.iter().filter_map(|node| of(node)).collect()
}

/// What to say about cards that no node's labels speak of.
pub(crate) fn card_warning(wanted: &str, nodes: &[&NodeFacts]) -> Option<String> {
    let cards = cards(nodes);
    if nodes.is_empty() || cards.iter().any(|card| gpu::fits(wanted, card)) {
        return None;
    }
    Some(if cards.is_empty() {
        format!("no node says by its labels what its cards are; they are taken for {wanted}")
    } else {
        let cards = listed(cards.iter().map(String::as_str).collect(), ", ");
        format!(
            "no node says that it has {wanted}: by their labels they have {cards}; those serve CPU jobs only"
        )
    })
}

/// Whether a namespace that enforces a level keeps out workers of a runtime.
pub(crate) fn keeps_out(level: &str, runtime: &str) -> bool {
    pod_security(runtime) == "privileged" && level != "privileged"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, labels: &[(&str, &str)]) -> NodeFacts {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        NodeFacts { name: name.to_owned(), labels }
    }

    #[test]
    fn clouds_are_known_by_their_nodes() {
        for (label, _) in CLOUDS {
            let nodes = [node("a", &[]), node("b", &[(label, "x")])];
            assert_eq!(flavor(&nodes), CLOUDS.iter().find(|(known, _)| *known == label).map(|(_, f)| *f));
        }
        assert_eq!(flavor(&[node("a", &[("gke", "x")])]), None);
        assert!(autopilot(&[node("gk3-x-pool-1", &[])]));
        let standard = node("gke-x", &[("cloud.google.com/gke-provisioning", "standard")]);
        assert!(!autopilot(&[standard]));
    }

    #[test]
    fn a_selector_that_names_nothing_says_what_there_is() {
        let nodes = [node("a", &[("pool", "x"), ("zone", "1")]), node("b", &[("pool", "y")])];
        let named = |items: &[&str]| selected(&Selector::parse(items).unwrap(), &nodes).len();
        let warned = |items: &[&str]| selector_warning(&Selector::parse(items).unwrap(), &nodes);
        assert_eq!((named(&[]), named(&["pool=y"]), named(&["pool=z"])), (2, 1, 0));
        assert_eq!((warned(&[]), warned(&["pool=y"])), (None, None));
        let none = "names none of the cluster's 2 nodes, so nothing is lent now";
        assert_eq!(
            warned(&["pool=z"]).unwrap(),
            format!(
                "the selector pool=z {none}: pool is x or y; the nodes have labels of these keys: pool, zone"
            )
        );
        assert_eq!(
            warned(&["gpu", "pool=x"]).unwrap(),
            format!("the selector gpu and pool=x {none}: the nodes have labels of these keys: pool, zone")
        );
        let gpu = Selector::parse(["gpu"]).unwrap();
        let empty = selector_warning(&gpu, &[]).unwrap();
        assert_eq!(empty, "the selector gpu names no node: the cluster has none");
        assert!(
            selector_warning(&gpu, &nodes[..1]).unwrap().contains("does not name the cluster's only node")
        );
        assert_eq!(selector_warning(&Selector::default(), &[]), None);
    }

    #[test]
    fn labels_of_any_length_and_number_make_a_short_message() {
        let labels: Vec<(String, String)> =
            (0..500).map(|n| (format!("{n}{}", "k".repeat(10_000)), String::new())).collect();
        let labels: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let warning = selector_warning(&Selector::parse(["gpu"]).unwrap(), &[node("a", &labels)]).unwrap();
        assert!(warning.len() < 5_000 && warning.ends_with("460 more"), "{}", warning.len());
    }

    #[test]
    fn a_card_nobody_has_is_warned_of_with_those_there_are() {
        let l4 = node("a", &[("cloud.google.com/gke-accelerator", "nvidia-l4")]);
        let t4 = node("b", &[("nvidia.com/gpu.product", "Tesla-T4")]);
        let none = node("c", &[]);
        assert_eq!(card_warning("T4", &[&l4, &t4]), None);
        assert_eq!(card_warning("T4", &[]), None);
        let warning = card_warning("H100", &[&l4, &t4, &none]).unwrap();
        assert!(warning.starts_with("no node says that it has H100: by their labels they have L4, T4"));
        assert!(card_warning("H100", &[&none]).unwrap().contains("taken for H100"));
    }

    #[test]
    fn only_privileged_workers_are_kept_out() {
        assert!(keeps_out("baseline", "runc") && keeps_out("restricted", "runsc"));
        assert!(!keeps_out("privileged", "runc"));
        assert!(!keeps_out("restricted", "process") && !keeps_out("baseline", "process"));
    }
}
