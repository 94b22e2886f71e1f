//! What the controlplane is told of a node, and why a node is not offered.
//!
//! The shell makes a report of every node the selector names, every ten
//! seconds and when something changes. A report carries totals and one
//! reason, never what another tenant runs.

use super::books::{Terms, Totals};
use super::objects::Node;
use super::site::Site;
use super::taints;

/// The extended resource that stands for whole cards. MIG slices, shared
/// cards and other vendors' have names of their own and never count as one.
pub const CARD: &str = "nvidia.com/gpu";

/// One node as the controlplane sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The node's name.
    pub name: String,
    /// Its totals, with `free` at least zero; none when they cannot be read.
    pub totals: Option<Totals>,
    /// Whether one card is handed out several times under [`CARD`], so that
    /// two of them may be the same.
    pub shared_cards: bool,
    /// Why it is not offered; none when it is.
    pub withheld: Option<Withheld>,
}

/// Why a node is not offered, the most lasting reason first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Withheld {
    /// It is being deleted.
    Deleting,
    /// Its kubelet does not report it ready, or never reported.
    NotReady,
    /// It is cordoned, whatever a worker tolerates.
    Cordoned,
    /// It has a taint that workers do not tolerate.
    Tainted,
    /// An amount of it or of a pod on it cannot be read.
    Unreadable,
    /// It takes no further pod.
    NoPodSlot,
    /// It has cards and none is free; it is not offered for CPU work either.
    NoFreeCard,
}

impl NodeReport {
    /// Reports a node; without totals it is withheld.
    #[must_use]
    pub fn new(node: &Node, totals: Option<Totals>, terms: &Terms) -> Self {
        Self::of(&Site::of(node, terms), totals)
    }

    /// Reports a site; without totals it is withheld.
    #[must_use]
    pub fn of(site: &Site, totals: Option<Totals>) -> Self {
        Self {
            name: site.name.clone(),
            shared_cards: site.shared_cards,
            withheld: site.closed.or_else(|| full(totals.as_ref())),
            totals: totals.map(|totals| Totals { free: totals.free.at_least_zero(), ..totals }),
        }
    }
}

/// Why the node's own state lets no worker in.
pub(super) fn closed(node: &Node, terms: &Terms) -> Option<Withheld> {
    let ready = node.status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True");
    if node.metadata.deletion_timestamp.is_some() {
        Some(Withheld::Deleting)
    } else if !ready {
        Some(Withheld::NotReady)
    } else if node.spec.unschedulable {
        Some(Withheld::Cordoned)
    } else if node.spec.taints.iter().any(|taint| taints::closes(taint, &terms.tolerations)) {
        Some(Withheld::Tainted)
    } else {
        None
    }
}

/// Why what is left lets no worker in. A node that names cards without having
/// one, after a driver fault for instance, is a GPU node with none free.
fn full(totals: Option<&Totals>) -> Option<Withheld> {
    let Some(Totals { free, .. }) = totals else {
        return Some(Withheld::Unreadable);
    };
    if free.pods < 1 {
        Some(Withheld::NoPodSlot)
    } else if free.extended.get(CARD).is_some_and(|cards| *cards < 1) {
        Some(Withheld::NoFreeCard)
    } else {
        None
    }
}

/// Whether labels say that cards are time-sliced. Labels are asked for this
/// and for nothing that is counted.
pub(super) fn shares_cards(node: &Node) -> bool {
    let labels = &node.metadata.labels;
    labels.contains_key("cloud.google.com/gke-gpu-sharing-strategy")
        || labels.get("nvidia.com/gpu.product").is_some_and(|product| product.ends_with("-SHARED"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(json: &str) -> Node {
        serde_json::from_str(json).unwrap()
    }

    fn totals(pods: i64, cards: Option<i64>) -> Totals {
        let mut totals = Totals::default();
        totals.free.pods = pods;
        totals.free.extended.extend(cards.map(|cards| (CARD.to_owned(), cards)));
        totals
    }

    #[test]
    fn the_first_reason_is_given() {
        let terms = Terms::new("levers9", "c1");
        let reason = |node: &Node, totals| NodeReport::new(node, totals, &terms).withheld;
        let ready = node(r#"{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}"#);
        assert_eq!(reason(&ready, Some(totals(1, None))), None);
        assert_eq!(reason(&ready, Some(totals(1, Some(1)))), None);
        assert_eq!(reason(&ready, Some(totals(1, Some(0)))), Some(Withheld::NoFreeCard));
        assert_eq!(reason(&ready, Some(totals(1, Some(-4)))), Some(Withheld::NoFreeCard));
        assert_eq!(reason(&ready, Some(totals(0, Some(0)))), Some(Withheld::NoPodSlot));
        assert_eq!(reason(&ready, None), Some(Withheld::Unreadable));

        let mut node = ready;
        node.spec.taints =
            vec![super::super::Taint { effect: "NoSchedule".to_owned(), ..Default::default() }];
        assert_eq!(reason(&node, None), Some(Withheld::Tainted));
        node.spec.unschedulable = true;
        assert_eq!(reason(&node, None), Some(Withheld::Cordoned));
        node.status.conditions[0].status = "Unknown".to_owned();
        assert_eq!(reason(&node, None), Some(Withheld::NotReady));
        node.metadata.deletion_timestamp = Some("2030-05-01T10:00:00Z".to_owned());
        assert_eq!(reason(&node, None), Some(Withheld::Deleting));
    }

    #[test]
    fn a_report_never_shows_less_than_nothing() {
        let terms = Terms::new("levers9", "c1");
        let mut books = totals(-1, Some(-4));
        books.free.cpu_millis = -1_000;
        let report = NodeReport::new(&Node::default(), Some(books), &terms);
        assert_eq!(report.totals, Some(totals(0, Some(0))));
    }

    #[test]
    fn shared_cards_are_told_by_label() {
        let labelled = |key: &str, value: &str| {
            let json = format!(r#"{{"metadata": {{"labels": {{"{key}": "{value}"}}}}}}"#);
            NodeReport::new(&node(&json), None, &Terms::new("levers9", "c1")).shared_cards
        };
        assert!(labelled("nvidia.com/gpu.product", "NVIDIA-A10G-SHARED"));
        assert!(labelled("cloud.google.com/gke-gpu-sharing-strategy", "time-sharing"));
        assert!(!labelled("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"));
    }
}
