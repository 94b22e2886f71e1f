//! What is kept of the API server's objects. A raw object comes in, a few
//! facts go out, and the rest is forgotten at once: of another tenant's pod
//! only where it is and how much it holds stays.

use serde::Deserialize;
use serde::de::Error as _;

use super::lent::Lent;
use super::own::{self, OwnPod, WorkerJob};
use crate::capacity::{self, Held, Node, Pod, Site, Terms};
use levers9_wire::gpu;

/// What the API server is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The cluster's nodes.
    Nodes,
    /// The cluster's pods.
    Pods,
    /// The worker Jobs of the own namespace.
    Jobs,
}

impl Kind {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Nodes, Self::Pods, Self::Jobs];

    /// How people call it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::Jobs => "worker Jobs",
        }
    }
}

/// What is kept of one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    /// Of a node.
    Node(NodeFacts),
    /// Of a pod.
    Pod(PodFacts),
    /// Of a worker Job; none when it is a Job of nobody's worker.
    Job(Option<WorkerJob>),
}

/// What is kept of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// The rest, when it is lent.
    pub lent: Option<LentNode>,
}

/// What is kept of a node that is lent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LentNode {
    /// Which object of its name it is.
    pub uid: String,
    /// Its size and state.
    pub site: Site,
    /// What its labels call its cards; empty when they say nothing.
    pub gpu_label: String,
}

/// What is kept of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodFacts {
    /// Namespace and name, unique in the cluster.
    pub key: Box<str>,
    /// The node it holds something of, and what.
    pub held: Option<(Box<str>, Held)>,
    /// What else is kept when it is a worker of this agent.
    pub own: Option<Box<OwnPod>>,
}

/// What an agent knows about itself that decides what is kept.
#[derive(Debug, Clone)]
pub struct Eye {
    /// Which nodes are lent.
    pub lent: Lent,
    /// What its workers are like.
    pub terms: Terms,
}

impl Eye {
    /// Takes the facts from an object.
    ///
    /// # Errors
    /// When it is not an object of that kind.
    pub fn read(&self, kind: Kind, object: &str) -> Result<Fact, serde_json::Error> {
        // A list would be read as an object with all its fields left out.
        if !object.trim_start().starts_with('{') {
            return Err(serde_json::Error::custom("this is not an object"));
        }
        let (fact, named) = match kind {
            Kind::Nodes => {
                let node = self.node(&serde_json::from_str(object)?);
                let named = !node.name.is_empty();
                (Fact::Node(node), named)
            }
            Kind::Pods => {
                let pod = self.pod(object)?;
                let named = !pod.key.ends_with('/');
                (Fact::Pod(pod), named)
            }
            Kind::Jobs => {
                let job = own::read_job(object)?;
                let named = job.as_ref().is_none_or(|job| !job.name.is_empty());
                (Fact::Job(job), named)
            }
        };
        if named { Ok(fact) } else { Err(serde_json::Error::custom("this object has no name")) }
    }

    fn node(&self, node: &Node) -> NodeFacts {
        let labels = &node.metadata.labels;
        let lent = self.lent.matches(labels).then(|| LentNode {
            uid: node.metadata.uid.clone(),
            site: Site::of(node, &self.terms),
            gpu_label: gpu::LABELS
                .iter()
                .filter_map(|label| labels.get(*label))
                .map(|value| gpu::name_of(value))
                .find(|name| !name.is_empty())
                .unwrap_or_default(),
        });
        NodeFacts { name: node.metadata.name.clone(), lent }
    }

    fn pod(&self, object: &str) -> Result<PodFacts, serde_json::Error> {
        let pod: Pod = serde_json::from_str(object)?;
        let metadata = &pod.metadata;
        let ours = metadata.namespace == self.terms.namespace
            && metadata.labels.cluster.as_ref() == Some(&self.terms.cluster);
        let held = capacity::place(&pod)
            .and_then(|place| Some((Box::from(place.node()), Held::of(&pod, &self.terms)?)));
        Ok(PodFacts {
            key: format!("{}/{}", metadata.namespace, metadata.name).into_boxed_str(),
            held,
            own: if ours { own::read_pod(object)?.map(Box::new) } else { None },
        })
    }
}

/// One page of a list.
#[derive(Debug, Deserialize)]
pub struct Page<'a> {
    /// Where the next page begins, and of which version this is.
    #[serde(default)]
    pub metadata: PageMetadata,
    /// The objects, unread.
    #[serde(borrow, default)]
    pub items: Option<Vec<&'a serde_json::value::RawValue>>,
}

/// Metadata of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PageMetadata {
    /// What a watch begins at.
    pub resource_version: String,
    /// What the next page is asked for with; empty on the last one.
    #[serde(rename = "continue")]
    pub go_on: String,
}

/// One event of a watch.
#[derive(Debug, Deserialize)]
pub struct Event<'a> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    #[serde(rename = "type")]
    pub what: &'a str,
    /// The object, unread.
    #[serde(borrow)]
    pub object: &'a serde_json::value::RawValue,
}

/// The version an object is of, which a watch goes on from.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Versioned {
    /// Its metadata.
    pub metadata: PageMetadata,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eye() -> Eye {
        Eye { lent: Lent::read(["pool=a"]), terms: Terms::new("levers9", "c1") }
    }

    #[test]
    fn of_a_node_that_is_not_lent_only_the_name_stays() {
        let Fact::Node(node) = eye()
            .read(Kind::Nodes, r#"{"metadata": {"name": "n", "uid": "u", "labels": {"pool": "b"}}}"#)
            .unwrap()
        else {
            panic!("a node is a node")
        };
        assert_eq!(node, NodeFacts { name: "n".to_owned(), lent: None });
    }

    #[test]
    fn the_first_label_that_says_something_names_the_cards() {
        let json = r#"{"metadata": {"name": "n", "uid": "u", "labels": {
            "pool": "a", "nvidia.com/gpu.product": "", "k8s.amazonaws.com/accelerator": "nvidia-l4",
            "cloud.google.com/gke-accelerator": "nvidia-tesla-t4"
        }}}"#;
        let Fact::Node(node) = eye().read(Kind::Nodes, json).unwrap() else { panic!("a node is a node") };
        let lent = node.lent.unwrap();
        assert_eq!((lent.gpu_label.as_str(), lent.uid.as_str()), ("T4", "u"));
    }

    #[test]
    fn of_another_tenants_pod_only_its_place_and_size_stay() {
        let json = r#"{
            "metadata": {"name": "p", "namespace": "tenant", "labels": {"levers9/cluster": "c1", "a": "secret"}},
            "spec": {"nodeName": "n", "containers": [{"resources": {"requests": {"cpu": "1"}}}]}
        }"#;
        let Fact::Pod(pod) = eye().read(Kind::Pods, json).unwrap() else { panic!("a pod is a pod") };
        assert!(pod.own.is_none());
        assert_eq!(pod.held.as_ref().map(|(node, _)| &**node), Some("n"));
        assert!(!format!("{pod:?}").contains("secret"));
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for garbage in ["", "[]", "{", "{}", r#"{"metadata": 7}"#, r#"{"spec": {"containers": "x"}}"#] {
            assert!(eye().read(Kind::Pods, garbage).is_err(), "{garbage}");
            assert!(eye().read(Kind::Nodes, garbage).is_err() || garbage.contains("spec"), "{garbage}");
        }
    }
}
