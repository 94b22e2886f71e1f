//! What the API server was asked, as its audit log says: who, what, and the
//! answer's code. The requests of the control plane itself, of accounts in
//! `kube-system` and of the test kubelets are left out.

use serde_json::{Value, json};

use super::Cluster;
use super::cluster::KUBELET;
use crate::controlplane::read;

/// The policy of the log.
pub(super) fn policy() -> Value {
    let silent = ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", KUBELET];
    // The controllers act as accounts of that namespace.
    let group = "system:serviceaccounts:kube-system";
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "None", "users": silent },
            { "level": "None", "userGroups": [group] },
            { "level": "Metadata" },
        ],
    })
}

impl Cluster {
    /// What a user has asked, oldest first. A service account is
    /// `system:serviceaccount:NAMESPACE:NAME`; a watch is told of when it
    /// begins (`stage` is `ResponseStarted`) and when it ends.
    #[must_use]
    pub fn audit(&self, user: &str) -> Vec<Value> {
        // The last line may be half written.
        let events = read(&self.folder().join("audit.log"));
        let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["user"]["username"] == user).collect()
    }
}
