//! What must hold for any text and any pods: reading never panics and is
//! stable, and the books of a node only ever lose by another pod.

#![cfg(test)]

use std::collections::BTreeMap;

use levers9_agent::capacity::{
    self, Amounts, CLUSTER_LABEL, Condition, Container, ContainerStatus, Node, NodeReport, Pod, PodLabels,
    Quantities, Resources, StatusResources, Terms, Totals,
};
use levers9_agent::quantity::{self, Quantity};
use levers9_agent::selector::Selector;
use proptest::prelude::*;
use proptest::sample::select;

const CARD: &str = "nvidia.com/gpu";
const SUFFIXES: [(&str, i128, i128); 16] = [
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("", 1, 1),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("e3", 1_000, 1),
    ("E-2", 1, 100),
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
];

fn quantity_text() -> impl Strategy<Value = String> {
    "[+-]?[0-9]{0,22}\\.?[0-9]{0,22}(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,3})?"
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = text.parse::<Quantity>();
        let _ = Selector::parse([text]);
    }

    #[test]
    fn a_quantity_reads_back_as_it_is_shown(text in quantity_text()) {
        if let Ok(quantity) = text.parse::<Quantity>() {
            let shown = quantity.to_string();
            prop_assert_eq!(shown.parse(), Ok(quantity), "{} shown as {}", text, shown);
            prop_assert_eq!(shown.parse::<Quantity>().map(|q| q.to_string()), Ok(shown));
        }
    }

    #[test]
    fn quantities_are_the_rounded_product_of_number_and_suffix(
        number in 0..9_000_000_i128, decimals in 0..7_usize, (suffix, times, over) in select(&SUFFIXES[..])
    ) {
        let divisor = 10_i128.pow(u32::try_from(decimals).unwrap());
        let text = format!("{}.{:0decimals$}{suffix}", number / divisor, number % divisor);
        let text = if decimals == 0 { format!("{number}{suffix}") } else { text };
        let up = |product: i128| (product + divisor * over - 1) / (divisor * over);
        let largest = i128::from(i64::MAX) * 1_000;
        prop_assert_eq!(
            text.parse::<Quantity>().map(Quantity::millis).ok(),
            Some(up(number * times * 1_000)).map(|m| m.min(largest)),
            "{}", text
        );
        prop_assert_eq!(
            quantity::memory_bytes(&format!("-{text}")).map(i128::from).ok(),
            Some(-up(number * times)).map(|b| b.max(-i128::from(i64::MAX))),
            "{}", text
        );
    }
}

fn item() -> impl Strategy<Value = String> {
    let value = "[ab]?";
    prop_oneof![
        3 => "[xyz]",
        3 => ("[xyz]", value).prop_map(|(key, value)| format!("{key}={value}")),
        3 => ("[xyz]", prop::collection::vec(value, 0..4))
            .prop_map(|(key, values)| format!("{key} = in ( {} )", values.join(" ,"))),
        1 => "[xyz=(), !ab]{0,8}",
    ]
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[xyz]", "[ab]?", 0..3)
}

proptest! {
    #[test]
    fn a_requirement_reads_back_as_it_is_shown(item in item()) {
        if let Ok(selector) = Selector::parse([&item]) {
            let shown: Vec<String> = selector.requirements().iter().map(ToString::to_string).collect();
            prop_assert_eq!(Selector::parse(&shown), Ok(selector), "{} shown as {:?}", item, shown);
        }
    }

    #[test]
    fn another_item_never_lends_another_node(
        items in prop::collection::vec(item(), 0..4), more in item(), labels in labels()
    ) {
        let fewer = Selector::parse(&items);
        let all = Selector::parse(items.iter().chain([&more]));
        prop_assert!(fewer.is_ok() || all.is_err());
        if let (Ok(fewer), Ok(all)) = (fewer, all) {
            prop_assert!(fewer.matches(&labels) || !all.matches(&labels));
        }
    }
}

/// Amounts of some resources, now and then one that nobody can read.
fn quantities() -> impl Strategy<Value = Quantities> {
    let amount = |texts: &'static [&'static str]| prop::option::of(select(texts));
    let cpu = amount(&["0", "5n", "100m", "1", "1.5", "1e1", "60"]);
    let memory = amount(&["0", "100m", "0.1Gi", "1G", "1Gi", "3e9", "9Ei"]);
    let cards = amount(&["0", "1", "2000m", "4"]);
    let odd = prop::option::weighted(0.005, Just("lots"));
    (cpu, memory, cards, odd).prop_map(|(cpu, memory, cards, odd)| {
        let named = [("cpu", cpu), ("memory", memory), (CARD, cards), ("example.com/odd", odd)];
        named.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.to_owned()))).collect()
    })
}

fn requirements() -> impl Strategy<Value = Resources> {
    (quantities(), quantities()).prop_map(|(requests, limits)| Resources { requests, limits })
}

fn status_resources() -> impl Strategy<Value = Option<StatusResources>> {
    prop::option::of(quantities().prop_map(|requests| StatusResources { requests }))
}

fn containers() -> impl Strategy<Value = Vec<Container>> {
    let container = ("[a-c]", requirements(), select(&["", "Always"][..])).prop_map(
        |(name, resources, restart_policy)| Container {
            name,
            resources,
            restart_policy: restart_policy.to_owned(),
        },
    );
    prop::collection::vec(container, 0..4)
}

fn statuses() -> impl Strategy<Value = Vec<ContainerStatus>> {
    let status =
        ("[a-c]", status_resources(), quantities()).prop_map(|(name, resources, allocated_resources)| {
            ContainerStatus { name, resources, allocated_resources }
        });
    prop::collection::vec(status, 0..3)
}

fn pod() -> impl Strategy<Value = Pod> {
    let spec = (containers(), containers(), prop::option::of(requirements()), quantities());
    let status = (statuses(), statuses(), status_resources(), quantities(), any::<bool>());
    let place = (
        select(&["node-a", "node-a", "node-a", "node-b", ""][..]),
        select(&["node-a", ""][..]),
        select(&["Pending", "Running", "Running", "Unknown", "Succeeded", "Failed"][..]),
        -1..2_i32,
        any::<bool>(),
    );
    (spec, status, place).prop_map(|(spec, status, (node, nominated, phase, priority, ours))| {
        let mut pod = Pod::default();
        "levers9".clone_into(&mut pod.metadata.namespace);
        pod.metadata.labels = PodLabels { cluster: ours.then(|| "c1".to_owned()) };
        node.clone_into(&mut pod.spec.node_name);
        nominated.clone_into(&mut pod.status.nominated_node_name);
        phase.clone_into(&mut pod.status.phase);
        pod.spec.priority = priority;
        (pod.spec.containers, pod.spec.init_containers) = (spec.0, spec.1);
        (pod.spec.resources, pod.spec.overhead) = (spec.2.unwrap_or_default(), spec.3);
        (pod.status.container_statuses, pod.status.init_container_statuses) = (status.0, status.1);
        (pod.status.resources, pod.status.allocated_resources) = (status.2, status.3);
        if status.4 {
            let [kind, reason] = ["PodResizePending", "Infeasible"].map(str::to_owned);
            pod.status.conditions.push(Condition { kind, reason, ..Condition::default() });
        }
        pod
    })
}

fn pods() -> impl Strategy<Value = Vec<Pod>> {
    prop::collection::vec(pod(), 0..8)
}

fn node() -> Node {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "node-a"},
        "status": {
            "allocatable": {"cpu": "12", "memory": "48Gi", "pods": "4", CARD: "8", "example.com/odd": "1"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }))
    .unwrap()
}

fn count(pods: &[Pod]) -> Option<Totals> {
    capacity::count(&node(), pods, &Terms::new("levers9", "c1")).ok()
}

fn report(pods: &[Pod]) -> NodeReport {
    NodeReport::new(&node(), count(pods), &Terms::new("levers9", "c1"))
}

/// Every amount by name, so that two of them can be compared one by one.
fn each(amounts: &Amounts) -> BTreeMap<&str, i64> {
    let plain = [("cpu", amounts.cpu_millis), ("memory", amounts.memory_bytes), ("pods", amounts.pods)];
    plain.into_iter().chain(amounts.extended.iter().map(|(name, amount)| (name.as_str(), *amount))).collect()
}

fn at_most(less: &Amounts, more: &Amounts) -> bool {
    let more = each(more);
    each(less).iter().all(|(name, amount)| *amount <= more.get(name).copied().unwrap_or(0))
}

proptest! {
    #[test]
    fn free_is_at_most_allocatable_and_the_books_balance(pods in pods()) {
        if let Some(Totals { allocatable, free, levers9, others, reserved }) = count(&pods) {
            prop_assert!(at_most(&free, &allocatable));
            for (name, left) in each(&free) {
                let of = |amounts| i128::from(each(amounts).get(name).copied().unwrap_or(0));
                let taken: i128 = [&levers9, &others, &reserved].map(of).iter().sum();
                // Sums stop at the 64-bit limit instead of wrapping.
                let expected = (of(&allocatable) - taken).max(i64::MIN.into());
                let stopped = taken >= i64::MAX.into();
                let right = i128::from(left) == expected || stopped;
                prop_assert!(right, "{}: {} is not {}", name, left, expected);
                prop_assert!(!stopped || left <= 0 || name == "memory");
            }
        }
    }

    #[test]
    fn the_order_of_pods_does_not_matter((pods, shuffled) in pods().prop_flat_map(|pods| {
        (Just(pods.clone()), Just(pods).prop_shuffle())
    })) {
        prop_assert_eq!(count(&pods), count(&shuffled));
    }

    #[test]
    fn another_pod_never_frees_anything(pods in pods(), more in pod()) {
        let before = count(&pods);
        let before_report = report(&pods);
        let with: Vec<Pod> = pods.into_iter().chain([more]).collect();
        let after = count(&with);
        prop_assert!(before.is_some() || after.is_none());
        if let (Some(before), Some(after)) = (before, after) {
            prop_assert!(at_most(&after.free, &before.free));
        }
        prop_assert!(before_report.withheld.is_none() || report(&with).withheld.is_some());
    }

    #[test]
    fn pods_that_hold_nothing_here_change_nothing(pods in pods()) {
        let here: Vec<Pod> = pods
            .iter()
            .filter(|pod| match capacity::place(pod) {
                Some(capacity::Place::Bound(node)) => node == "node-a",
                Some(capacity::Place::Nominated(node)) => node == "node-a" && pod.spec.priority >= 0,
                None => false,
            })
            .cloned()
            .collect();
        prop_assert_eq!(count(&pods), count(&here));
    }

    #[test]
    fn a_report_stays_between_nothing_and_allocatable(pods in pods()) {
        let report = report(&pods);
        prop_assert!(report.totals.is_some() || report.withheld.is_some());
        if let Some(totals) = report.totals {
            prop_assert!(at_most(&totals.free, &totals.allocatable));
            prop_assert!(each(&totals.free).values().all(|amount| *amount >= 0));
        }
    }

    #[test]
    fn what_levers9_holds_is_told_by_namespace_and_label(pods in pods()) {
        let moved: Vec<Pod> = pods
            .iter()
            .cloned()
            .map(|mut pod| {
                pod.metadata.namespace.push_str("-not");
                pod
            })
            .collect();
        if let (Some(ours), Some(theirs)) = (count(&pods), count(&moved)) {
            prop_assert_eq!(theirs.levers9, Amounts::default(), "{} alone proves nothing", CLUSTER_LABEL);
            prop_assert_eq!(ours.reserved, theirs.reserved);
            prop_assert_eq!(ours.levers9.pods + ours.others.pods, theirs.others.pods);
        }
    }
}
