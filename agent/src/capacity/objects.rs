//! The few fields of Kubernetes nodes and pods that capacity depends on.
//!
//! The shell decodes watch events straight into these, so nothing else of
//! another tenant's objects stays in memory. They are shaped as the API sends
//! them and decide nothing; a missing field, or a null list, is an empty one.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// The label that carries the cluster's id on every object levers9 creates.
pub const CLUSTER_LABEL: &str = "levers9/cluster";

/// Resource name to Kubernetes quantity, unread: `"memory": "1.5Gi"`.
pub type Quantities = BTreeMap<String, String>;

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name, labels and deletion.
    pub metadata: NodeMetadata,
    /// What its owner set.
    pub spec: NodeSpec,
    /// What its kubelet reported.
    pub status: NodeStatus,
}

/// Metadata of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeMetadata {
    /// Its name, unique in the cluster.
    pub name: String,
    /// Its labels, for the selector.
    #[serde(deserialize_with = "null_as_empty")]
    pub labels: BTreeMap<String, String>,
    /// Which object of that name it is.
    pub uid: String,
    /// Set while the node is being deleted.
    pub deletion_timestamp: Option<String>,
}

/// Spec of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Set by a cordon.
    pub unschedulable: bool,
    /// What keeps pods away that do not tolerate it.
    #[serde(deserialize_with = "null_as_empty")]
    pub taints: Vec<Taint>,
}

/// A taint of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value, often empty.
    pub value: String,
    /// `NoSchedule`, `NoExecute` or `PreferNoSchedule`.
    pub effect: String,
}

/// Status of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Everything the machine has; stands in for a missing `allocatable`.
    #[serde(deserialize_with = "null_as_empty")]
    pub capacity: Quantities,
    /// What pods may use of it.
    pub allocatable: Option<Quantities>,
    /// `Ready` and others.
    #[serde(deserialize_with = "null_as_empty")]
    pub conditions: Vec<Condition>,
}

/// A condition of a node or pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Which condition it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word on why.
    pub reason: String,
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Its name, namespace and levers9 label.
    pub metadata: PodMetadata,
    /// What it asks for and where it is bound.
    pub spec: PodSpec,
    /// Its phase and what the kubelet granted.
    pub status: PodStatus,
}

/// Metadata of a pod; its name is for the agent's own log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodMetadata {
    /// Its name, unique in its namespace.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The one label that is read.
    pub labels: PodLabels,
}

/// Of a pod's labels only [`CLUSTER_LABEL`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodLabels {
    /// The id of the cluster whose agent created the pod.
    #[serde(rename = "levers9/cluster")]
    pub cluster: Option<String>,
}

/// Spec of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The node it is bound to; empty while it is bound nowhere.
    pub node_name: String,
    /// Its scheduling priority.
    pub priority: i32,
    /// The containers that run side by side.
    #[serde(deserialize_with = "null_as_empty")]
    pub containers: Vec<Container>,
    /// The containers that run before them, in order; sidecars stay.
    #[serde(deserialize_with = "null_as_empty")]
    pub init_containers: Vec<Container>,
    /// What its runtime class costs on top.
    #[serde(deserialize_with = "null_as_empty")]
    pub overhead: Quantities,
    /// Pod-level resources, which stand above the containers' sum.
    pub resources: Resources,
}

/// A container of a pod's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// Its name, unique in its pod.
    pub name: String,
    /// What it asks for.
    pub resources: Resources,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: String,
}

/// What a container or pod asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// What is held for it.
    #[serde(deserialize_with = "null_as_empty")]
    pub requests: Quantities,
    /// What it may reach; stands in for a missing request.
    #[serde(deserialize_with = "null_as_empty")]
    pub limits: Quantities,
}

/// Status of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
    /// The node it waits for after a preemption; empty without one.
    pub nominated_node_name: String,
    /// Among others the state of an in-place resize.
    #[serde(deserialize_with = "null_as_empty")]
    pub conditions: Vec<Condition>,
    /// Statuses of the containers, in any order.
    #[serde(deserialize_with = "null_as_empty")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Statuses of the init containers, in any order.
    #[serde(deserialize_with = "null_as_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// What the pod as a whole has now, where pod-level resources are in use.
    pub resources: Option<StatusResources>,
    /// What the kubelet granted the pod as a whole.
    #[serde(deserialize_with = "null_as_empty")]
    pub allocated_resources: Quantities,
}

/// Status of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    /// The container's name.
    pub name: String,
    /// What it has now; an empty block is a report too, a missing one is not.
    pub resources: Option<StatusResources>,
    /// What the kubelet granted it.
    #[serde(deserialize_with = "null_as_empty")]
    pub allocated_resources: Quantities,
}

/// What a container or pod has now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatusResources {
    /// The requests in force.
    #[serde(deserialize_with = "null_as_empty")]
    pub requests: Quantities,
}

/// Go writes an empty list or map as null when the field may not be left out.
fn null_as_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_pods_labels_only_ours_is_kept() {
        let json = format!(r#"{{"metadata": {{"labels": {{"team": "secret", "{CLUSTER_LABEL}": "c1"}}}}}}"#);
        let pod: Pod = serde_json::from_str(&json).unwrap();
        assert_eq!(pod.metadata.labels.cluster.as_deref(), Some("c1"));
        assert!(!format!("{pod:?}").contains("secret"));
    }

    #[test]
    fn a_null_list_is_an_empty_one_and_a_null_allocatable_a_missing_one() {
        let pod: Pod = serde_json::from_str(r#"{"spec": {"containers": null, "overhead": null}}"#).unwrap();
        assert_eq!(pod, Pod::default());
        let node: Node =
            serde_json::from_str(r#"{"spec": {"taints": null}, "status": {"allocatable": null}}"#).unwrap();
        assert_eq!(node, Node::default());
    }
}
