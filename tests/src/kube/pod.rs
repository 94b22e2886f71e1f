//! Pods that are only there: neighbours that ask for some of a node, bound or
//! not. No kubelet is needed for them.

use serde_json::{Map, Value, json};

use super::Cluster;

/// A pod to be made. It asks for nothing and is nowhere, unless told otherwise.
#[derive(Debug)]
#[must_use = "`create` makes it"]
pub struct PodMaker<'c> {
    cluster: &'c Cluster,
    pod: Value,
    requests: Map<String, Value>,
}

impl Cluster {
    /// A pod to be made.
    pub fn pod(&self, namespace: &str, name: &str) -> PodMaker<'_> {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
            "spec": {
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "main", "image": "example.com/neighbour:1" }],
            },
        });
        PodMaker { cluster: self, pod, requests: Map::new() }
    }
}

impl PodMaker<'_> {
    /// Asks for some of a resource.
    pub fn request(mut self, resource: &str, amount: impl ToString) -> Self {
        self.requests.insert(resource.to_owned(), Value::from(amount.to_string()));
        self
    }

    /// It is on a node already, whatever a scheduler would say.
    pub fn on(mut self, node: &str) -> Self {
        self.pod["spec"]["nodeName"] = Value::from(node);
        self
    }

    /// Sets a field of its spec: `("priorityClassName", ...)`.
    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.pod["spec"][field] = value;
        self
    }

    /// Makes it and returns it.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn create(mut self) -> Value {
        self.pod["spec"]["containers"][0]["resources"] =
            json!({ "requests": self.requests, "limits": self.requests });
        self.cluster.api().create(&self.pod).expect("a pod is made")
    }
}
