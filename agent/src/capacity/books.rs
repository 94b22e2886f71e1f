//! A node's books: what it has, who holds how much of it, what is left.
//!
//! The shell keeps a [`Site`] of each node and a [`Held`] of each pod, tallies
//! them where something changed and logs what could not be read;
//! [`super::NodeReport`] is made from the result. The books decide nothing
//! about offering the node.

use super::amounts::{Amounts, BadResource};
use super::objects::{Node, Pod};
use super::pod::{self, Place};
use super::report::CARD;
use super::site::Site;
use super::taints::{Comparison, Toleration};

/// What counting has to know of the workers this agent starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The namespace they are created in.
    pub namespace: String,
    /// The cluster's id, which they carry as [`super::CLUSTER_LABEL`].
    pub cluster: String,
    /// Their scheduling priority.
    pub priority: i32,
    /// Their tolerations.
    pub tolerations: Vec<Toleration>,
}

impl Terms {
    /// Terms of workers with priority 0 that tolerate the taint of GPU nodes.
    #[must_use]
    pub fn new(namespace: &str, cluster: &str) -> Self {
        let cards =
            Toleration { key: CARD.to_owned(), operator: Comparison::Exists, ..Toleration::default() };
        Self {
            namespace: namespace.to_owned(),
            cluster: cluster.to_owned(),
            priority: 0,
            tolerations: vec![cards],
        }
    }

    /// The label alone proves nothing: anybody may write it elsewhere.
    fn made(&self, pod: &Pod) -> bool {
        pod.metadata.namespace == self.namespace
            && pod.metadata.labels.cluster.as_ref() == Some(&self.cluster)
    }
}

/// The books of one node: `free` is `allocatable` less the other three.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// What pods may use.
    pub allocatable: Amounts,
    /// What is left of it; below zero where pods hold more than there is.
    pub free: Amounts,
    /// Held by what levers9 started for this cluster.
    pub levers9: Amounts,
    /// Held by everybody else.
    pub others: Amounts,
    /// Kept for pods that wait for room here and come before a new worker.
    pub reserved: Amounts,
}

/// Why the node that was asked for cannot be counted. The text may name
/// another tenant's pod: it is for the agent's own log and never leaves the
/// cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Its own size.
    #[error("the size of the node cannot be read")]
    Node {
        /// Which amount and why.
        source: BadResource,
    },
    /// The request of a pod on it.
    #[error("what pod {namespace}/{name} holds cannot be read")]
    Pod {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
        /// Which amount and why.
        source: BadResource,
    },
}

/// Counts a node. The pods may be all of the cluster's, in any order; those
/// that hold nothing here are passed over.
///
/// # Errors
/// When an amount of the node, or of a pod that counts, cannot be read. The
/// node must then be withheld.
pub fn count<'a>(
    node: &Node,
    pods: impl IntoIterator<Item = &'a Pod>,
    terms: &Terms,
) -> Result<Totals, Unreadable> {
    let here = |pod: &&Pod| pod::place(pod).is_some_and(|place| place.node() == node.metadata.name);
    let held: Vec<Held> = pods.into_iter().filter(here).filter_map(|pod| Held::of(pod, terms)).collect();
    Site::of(node, terms).tally(&held)
}

/// What one pod holds of the node it is placed on: all that is kept of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    share: Share,
    amounts: Result<Amounts, Box<Unreadable>>,
}

/// In whose column a pod is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    Levers9,
    Others,
    Reserved,
}

impl Held {
    /// What a pod holds of the node that [`pod::place`] names; none when it
    /// holds nothing.
    #[must_use]
    pub fn of(pod: &Pod, terms: &Terms) -> Option<Self> {
        let share = match pod::place(pod)? {
            Place::Bound(_) if terms.made(pod) => Share::Levers9,
            Place::Bound(_) => Share::Others,
            Place::Nominated(_) if pod.spec.priority >= terms.priority => Share::Reserved,
            Place::Nominated(_) => return None,
        };
        let amounts = pod::request(pod).map_err(|source| {
            Box::new(Unreadable::Pod {
                namespace: pod.metadata.namespace.clone(),
                name: pod.metadata.name.clone(),
                source,
            })
        });
        Some(Self { share, amounts })
    }
}

impl Site {
    /// Counts the site with what pods hold of it.
    ///
    /// # Errors
    /// When an amount of the node, or of one of the pods, cannot be read.
    pub fn tally<'a>(&self, held: impl IntoIterator<Item = &'a Held>) -> Result<Totals, Unreadable> {
        let allocatable = self.allocatable.clone().map_err(|source| Unreadable::Node { source })?;
        let mut totals = Totals { allocatable, ..Totals::default() };
        for Held { share, amounts } in held {
            let column = match share {
                Share::Levers9 => &mut totals.levers9,
                Share::Others => &mut totals.others,
                Share::Reserved => &mut totals.reserved,
            };
            column.add(amounts.as_ref().map_err(|unreadable| (**unreadable).clone())?);
        }
        totals.free = totals.allocatable.clone();
        for taken in [&totals.levers9, &totals.others, &totals.reserved] {
            totals.free.subtract(taken);
        }
        Ok(totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        let json = r#"{"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8", "pods": "10"}}}"#;
        serde_json::from_str(json).unwrap()
    }

    fn pod(namespace: &str, cluster: &str, requests: &str) -> Pod {
        serde_json::from_str(&format!(
            r#"{{
                "metadata": {{
                    "name": "p", "namespace": "{namespace}", "labels": {{"levers9/cluster": "{cluster}"}}
                }},
                "spec": {{"nodeName": "n", "containers": [{{"resources": {{"requests": {requests}}}}}]}}
            }}"#
        ))
        .unwrap()
    }

    #[test]
    fn a_worker_is_told_by_namespace_and_cluster_together() {
        let pods = [
            pod("levers9", "c1", r#"{"cpu": "1"}"#),
            pod("levers9", "c2", r#"{"cpu": "2"}"#),
            pod("tenant", "c1", r#"{"cpu": "3"}"#),
        ];
        let totals = count(&node(), &pods, &Terms::new("levers9", "c1")).unwrap();
        assert_eq!(
            (totals.levers9.cpu_millis, totals.others.cpu_millis, totals.free.cpu_millis),
            (1_000, 5_000, 2_000)
        );
    }

    #[test]
    fn asking_for_no_card_does_not_make_a_gpu_node() {
        let pods = [pod("tenant", "", r#"{"nvidia.com/gpu": "0"}"#)];
        let totals = count(&node(), &pods, &Terms::new("levers9", "c1")).unwrap();
        assert!(totals.free.extended.is_empty());
    }

    #[test]
    fn an_amount_below_zero_withholds_the_node_and_frees_nothing() {
        let pods = [pod("tenant", "", r#"{"cpu": "-1"}"#)];
        let error = count(&node(), &pods, &Terms::new("levers9", "c1")).unwrap_err();
        assert_eq!(error.to_string(), "what pod tenant/p holds cannot be read");
        let Unreadable::Pod { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.to_string(), "the amount of cpu cannot be counted");
    }
}
