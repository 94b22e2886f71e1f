//! Nodes as objects: what a kubelet would say of itself, said by the test.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Cluster;
use crate::wait;

/// The longest the control plane may take over a change of a node.
const SETTLED: Duration = Duration::from_secs(20);

/// A node to be made; ready and large, unless told otherwise.
#[derive(Debug)]
#[must_use = "`create` makes it"]
pub struct NodeMaker<'c> {
    cluster: &'c Cluster,
    name: String,
    labels: Map<String, Value>,
    amounts: Map<String, Value>,
    taints: Vec<Value>,
}

impl Cluster {
    /// A node to be made.
    pub fn node(&self, name: &str) -> NodeMaker<'_> {
        let amounts = [("cpu", "64"), ("memory", "256Gi"), ("ephemeral-storage", "1Ti"), ("pods", "110")];
        let labels = [
            ("kubernetes.io/hostname", name),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
        ];
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect()
        };
        NodeMaker {
            cluster: self,
            name: name.to_owned(),
            labels: map(&labels),
            amounts: map(&amounts),
            taints: Vec::new(),
        }
    }

    /// Says that a node is ready, or is not; the control plane taints it accordingly.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn set_ready(&self, node: &str, ready: bool) {
        let condition = condition("Ready", if ready { "True" } else { "False" });
        let patch = json!({ "status": { "conditions": [condition] } });
        self.api().strategic("nodes", "", &format!("{node}/status"), &patch).expect("a condition is set");
        if !self.has_controllers() {
            return;
        }
        wait::until(&format!("the taints of {node} say whether it is ready"), SETTLED, || {
            let object = self.api().get("nodes", "", node).map_err(|refused| refused.to_string())?;
            let tainted = taints(&object).iter().any(|taint| taint["key"] == "node.kubernetes.io/not-ready");
            if tainted == ready { Err(format!("{:#}", object["spec"])) } else { Ok(()) }
        });
    }

    /// Lets no further pods onto a node, or lets them again.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn cordon(&self, node: &str, cordoned: bool) {
        let patch = json!({ "spec": { "unschedulable": cordoned } });
        self.api().strategic("nodes", "", node, &patch).expect("a node is cordoned");
    }

    /// Taints a node; `effect` is `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn taint(&self, node: &str, key: &str, value: &str, effect: &str) {
        let taint = json!({ "key": key, "value": value, "effect": effect });
        self.change_taints(node, |taints| taints.push(taint.clone()));
    }

    /// Takes all taints of a key away.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn untaint(&self, node: &str, key: &str) {
        self.change_taints(node, |taints| taints.retain(|taint| taint["key"] != key));
    }

    /// Sets how much of a resource a node has, to whom it is allocatable.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn set_allocatable(&self, node: &str, resource: &str, amount: impl ToString) {
        let amounts = json!({ resource: amount.to_string() });
        let patch = json!({ "status": { "capacity": amounts, "allocatable": amounts } });
        self.api().strategic("nodes", "", &format!("{node}/status"), &patch).expect("amounts are set");
    }

    /// Deletes a node's object.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn delete_node(&self, node: &str) {
        self.api().delete("nodes", "", node).expect("a node is deleted");
    }

    /// The control plane changes taints as well: a change meets the version it was made from, or is made again.
    fn change_taints(&self, node: &str, change: impl Fn(&mut Vec<Value>)) {
        wait::until(&format!("the taints of {node} are changed"), SETTLED, || {
            let object = self.api().get("nodes", "", node).expect("the node is there");
            let mut taints = taints(&object);
            change(&mut taints);
            let version = &object["metadata"]["resourceVersion"];
            let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
            self.api().merge("nodes", "", node, &patch).map(drop).map_err(|refused| refused.to_string())
        });
    }
}

impl NodeMaker<'_> {
    /// Labels it.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), Value::from(value));
        self
    }

    /// How much of a resource it has and gives: `("nvidia.com/gpu", 8)`, `("cpu", "3500m")`.
    pub fn allocatable(mut self, resource: &str, amount: impl ToString) -> Self {
        self.amounts.insert(resource.to_owned(), Value::from(amount.to_string()));
        self
    }

    /// Taints it.
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.taints.push(json!({ "key": key, "value": value, "effect": effect }));
        self
    }

    /// Makes it, and waits until the control plane has seen that it is ready.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn create(self) {
        let api = self.cluster.api();
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": self.name, "labels": self.labels },
            "spec": { "taints": self.taints },
        });
        api.create(&node).expect("a node is made");
        let status = json!({
            "capacity": self.amounts,
            "allocatable": self.amounts,
            "conditions": [
                condition("Ready", "True"),
                condition("MemoryPressure", "False"),
                condition("DiskPressure", "False"),
                condition("PIDPressure", "False"),
            ],
            "addresses": [
                { "type": "InternalIP", "address": "127.0.0.1" },
                { "type": "Hostname", "address": self.name },
            ],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "levers9 tests",
                "kernelVersion": "6", "kubeletVersion": "v1.37.2", "kubeProxyVersion": "",
                "containerRuntimeVersion": "processes://1", "machineID": "", "systemUUID": "", "bootID": "",
            },
        });
        let path = format!("{}/status", self.name);
        api.strategic("nodes", "", &path, &json!({ "status": status })).expect("a node has a status");
        if !self.cluster.has_controllers() {
            // Admission taints each new node; the controllers that take it away are not here.
            self.cluster.untaint(&self.name, "node.kubernetes.io/not-ready");
        }
        self.cluster.set_ready(&self.name, true);
    }
}

fn taints(node: &Value) -> Vec<Value> {
    node["spec"]["taints"].as_array().cloned().unwrap_or_default()
}

pub(super) fn condition(kind: &str, status: &str) -> Value {
    let now = Timestamp::now().to_string();
    json!({
        "type": kind, "status": status, "reason": "Tests", "message": "",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    })
}
