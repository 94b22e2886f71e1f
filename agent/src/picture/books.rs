//! The books of every lent node, kept up to date event by event: pods are
//! indexed by the node they hold something of, and only nodes that something
//! happened to are counted again. Owns what is reported of nodes; [`super`]
//! feeds it and asks. It never sees an object, only facts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use levers9_wire::{limits, v1};

use super::facts::{LentNode, NodeFacts, PodFacts};
use crate::capacity::{Amounts, CARD, Held, NodeReport, Totals, Withheld};

/// All nodes of a cluster and what is held of them.
#[derive(Debug, Default)]
pub struct Books {
    nodes: BTreeMap<Arc<str>, Entry>,
    /// Where each pod that holds something holds it.
    places: HashMap<Arc<str>, Arc<str>>,
    /// What is held of each node, whether or not there is one of that name.
    held: HashMap<Arc<str>, BTreeMap<Arc<str>, Held>>,
    dirty: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
struct Entry {
    lent: Option<LentNode>,
    /// What was counted last; none before the first time and when not lent.
    state: Option<v1::NodeState>,
}

/// What counting brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Whether anything differs from before that is reported.
    pub changed: bool,
    /// What could not be read, for the agent's own log: it may name pods.
    pub unreadable: Vec<(String, String)>,
}

impl Books {
    /// A node came or changed.
    pub fn put_node(&mut self, facts: NodeFacts) {
        let name = self.name_of(&facts.name);
        let entry = self.nodes.entry(Arc::clone(&name)).or_default();
        if entry.lent != facts.lent || (entry.lent.is_some() && entry.state.is_none()) {
            entry.lent = facts.lent;
            self.dirty.insert(name);
        }
    }

    /// A node is gone. Pods that are still bound to its name stay entered,
    /// should another node of that name come.
    pub fn remove_node(&mut self, name: &str) {
        if let Some((name, _)) = self.nodes.remove_entry(name) {
            self.dirty.insert(name);
        }
    }

    /// The nodes are these and no others.
    pub fn replace_nodes(&mut self, nodes: Vec<NodeFacts>) {
        let there: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let gone = |name: &&Arc<str>| !there.contains(&***name);
        let gone: Vec<Arc<str>> = self.nodes.keys().filter(gone).cloned().collect();
        gone.iter().for_each(|name| self.remove_node(name));
        nodes.into_iter().for_each(|node| self.put_node(node));
    }

    /// A pod came or changed.
    pub fn put_pod(&mut self, facts: PodFacts) {
        let Some((node, held)) = facts.held else { return self.remove_pod(&facts.key) };
        if self.places.get(&*facts.key).is_some_and(|place| **place != *node) {
            self.remove_pod(&facts.key);
        }
        let node = self.name_of(&node);
        let key = self.places.get_key_value(&*facts.key).map(|(key, _)| Arc::clone(key));
        let key = key.unwrap_or_else(|| Arc::from(facts.key));
        let before = self.held.entry(Arc::clone(&node)).or_default().insert(Arc::clone(&key), held);
        let after = self.held.get(&node).and_then(|pods| pods.get(&key));
        if before.as_ref() != after {
            self.touch(&node);
        }
        self.places.insert(key, node);
    }

    /// A pod is gone, or holds nothing any more.
    pub fn remove_pod(&mut self, key: &str) {
        let Some(node) = self.places.remove(key) else { return };
        if let Some(pods) = self.held.get_mut(&node) {
            pods.remove(key);
            if pods.is_empty() {
                self.held.remove(&node);
            }
        }
        self.touch(&node);
    }

    /// The pods are these and no others.
    pub fn replace_pods(&mut self, pods: Vec<PodFacts>) {
        let there: BTreeSet<&str> = pods.iter().map(|pod| &*pod.key).collect();
        let gone: Vec<Arc<str>> =
            self.places.keys().filter(|key| !there.contains(&***key)).cloned().collect();
        gone.iter().for_each(|key| self.remove_pod(key));
        pods.into_iter().for_each(|pod| self.put_pod(pod));
    }

    /// Counts the nodes that something happened to.
    pub fn settle(&mut self) -> Settled {
        let mut settled = Settled::default();
        for name in std::mem::take(&mut self.dirty) {
            let Some(entry) = self.nodes.get_mut(&name) else {
                settled.changed = true;
                continue;
            };
            let state = entry.lent.as_ref().map(|lent| {
                let held = self.held.get(&name).into_iter().flat_map(BTreeMap::values);
                let totals = lent.site.tally(held);
                if let Err(unreadable) = &totals {
                    settled.unreadable.push((name.to_string(), unreadable.to_string()));
                }
                state(lent, NodeReport::of(&lent.site, totals.ok()))
            });
            settled.changed |= entry.state != state;
            entry.state = state;
        }
        settled
    }

    /// What is reported of each lent node as of the last [`Books::settle`], by name.
    pub fn states(&self) -> impl Iterator<Item = &v1::NodeState> {
        self.nodes.values().filter_map(|entry| entry.state.as_ref())
    }

    /// How many nodes the cluster has, lent or not.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Whether a node is there, and lent.
    #[must_use]
    pub fn is_lent(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|entry| entry.lent.is_some())
    }

    /// How many lent nodes are ready for a worker as far as their own state goes.
    #[must_use]
    pub fn ready(&self) -> usize {
        let away = [Withheld::Deleting, Withheld::NotReady, Withheld::Cordoned];
        let ready = |lent: &LentNode| lent.site.closed.is_none_or(|why| !away.contains(&why));
        self.nodes.values().filter_map(|entry| entry.lent.as_ref()).filter(|lent| ready(lent)).count()
    }

    /// The one copy of a node's name.
    fn name_of(&self, name: &str) -> Arc<str> {
        let known = self.nodes.get_key_value(name).map(|(name, _)| name);
        let known = known.or_else(|| self.held.get_key_value(name).map(|(name, _)| name));
        known.cloned().unwrap_or_else(|| Arc::from(name))
    }

    fn touch(&mut self, node: &Arc<str>) {
        if self.nodes.get(node).is_some_and(|entry| entry.lent.is_some()) {
            self.dirty.insert(Arc::clone(node));
        }
    }
}

/// A report in the words of the wire.
fn state(lent: &LentNode, report: NodeReport) -> v1::NodeState {
    let mut state = v1::NodeState {
        name: report.name,
        withheld: withheld(report.withheld).into(),
        gpu_label: lent.gpu_label.clone(),
        shared_cards: report.shared_cards,
        uid: lent.uid.clone(),
        ..v1::NodeState::default()
    };
    if let Some(Totals { allocatable, free, levers9, others, reserved }) = report.totals {
        let others_than_cards = allocatable.extended.iter().filter(|(name, _)| *name != CARD);
        state.other = others_than_cards
            .take(limits::SELECTOR)
            .map(|(name, amount)| v1::NamedAmount {
                name: name.clone(),
                allocatable: positive(*amount),
                free: positive(free.extended.get(name).copied().unwrap_or_default()),
            })
            .collect();
        state.allocatable = Some(amounts(&allocatable));
        state.free = Some(amounts(&free));
        state.levers9 = Some(amounts(&levers9));
        state.others = Some(amounts(&others));
        state.reserved = Some(amounts(&reserved));
    }
    state
}

fn amounts(amounts: &Amounts) -> v1::NodeAmounts {
    let small = |amount: i64| u32::try_from(amount.max(0)).unwrap_or(u32::MAX);
    v1::NodeAmounts {
        cpu_millis: positive(amounts.cpu_millis),
        memory_bytes: positive(amounts.memory_bytes),
        cards: small(amounts.extended.get(CARD).copied().unwrap_or_default()),
        pods: small(amounts.pods),
    }
}

fn positive(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or_default()
}

fn withheld(why: Option<Withheld>) -> v1::WithheldReason {
    match why {
        None => v1::WithheldReason::Unspecified,
        Some(Withheld::Deleting) => v1::WithheldReason::Deleting,
        Some(Withheld::NotReady) => v1::WithheldReason::NotReady,
        Some(Withheld::Cordoned) => v1::WithheldReason::Cordoned,
        Some(Withheld::Tainted) => v1::WithheldReason::Tainted,
        Some(Withheld::Unreadable) => v1::WithheldReason::Unreadable,
        Some(Withheld::NoPodSlot) => v1::WithheldReason::NoPodSlot,
        Some(Withheld::NoFreeCard) => v1::WithheldReason::NoFreeCard,
    }
}
