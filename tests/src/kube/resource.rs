//! Where the API has what: the resources the tests name, and their paths.

use serde_json::Value;

/// A kind of objects and where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resource {
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    /// `v1`, or `group/version`.
    pub(super) version: &'static str,
    pub(super) namespaced: bool,
}

const fn inside(plural: &'static str, kind: &'static str, version: &'static str) -> Resource {
    Resource { plural, kind, version, namespaced: true }
}

const fn global(plural: &'static str, kind: &'static str, version: &'static str) -> Resource {
    Resource { plural, kind, version, namespaced: false }
}

const ALL: &[Resource] = &[
    inside("configmaps", "ConfigMap", "v1"),
    inside("events", "Event", "v1"),
    inside("limitranges", "LimitRange", "v1"),
    inside("pods", "Pod", "v1"),
    inside("resourcequotas", "ResourceQuota", "v1"),
    inside("secrets", "Secret", "v1"),
    inside("serviceaccounts", "ServiceAccount", "v1"),
    inside("services", "Service", "v1"),
    inside("daemonsets", "DaemonSet", "apps/v1"),
    inside("deployments", "Deployment", "apps/v1"),
    inside("replicasets", "ReplicaSet", "apps/v1"),
    inside("statefulsets", "StatefulSet", "apps/v1"),
    inside("cronjobs", "CronJob", "batch/v1"),
    inside("jobs", "Job", "batch/v1"),
    inside("leases", "Lease", "coordination.k8s.io/v1"),
    inside("networkpolicies", "NetworkPolicy", "networking.k8s.io/v1"),
    inside("poddisruptionbudgets", "PodDisruptionBudget", "policy/v1"),
    inside("rolebindings", "RoleBinding", "rbac.authorization.k8s.io/v1"),
    inside("roles", "Role", "rbac.authorization.k8s.io/v1"),
    global("namespaces", "Namespace", "v1"),
    global("nodes", "Node", "v1"),
    global("customresourcedefinitions", "CustomResourceDefinition", "apiextensions.k8s.io/v1"),
    global("runtimeclasses", "RuntimeClass", "node.k8s.io/v1"),
    global("clusterrolebindings", "ClusterRoleBinding", "rbac.authorization.k8s.io/v1"),
    global("clusterroles", "ClusterRole", "rbac.authorization.k8s.io/v1"),
    global("priorityclasses", "PriorityClass", "scheduling.k8s.io/v1"),
    global("validatingadmissionpolicies", "ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1"),
    global(
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        "admissionregistration.k8s.io/v1",
    ),
];

impl Resource {
    /// By its plural: `pods`.
    pub(super) fn named(plural: &str) -> Self {
        let found = ALL.iter().find(|resource| resource.plural == plural);
        *found.unwrap_or_else(|| panic!("{plural} is not in tests/src/kube/resource.rs: add it"))
    }

    /// That of an object.
    pub(super) fn of(object: &Value) -> Self {
        let (kind, version) = (&object["kind"], &object["apiVersion"]);
        let found = ALL.iter().find(|it| *kind == it.kind && *version == it.version);
        *found.unwrap_or_else(|| panic!("{version} {kind} is not in tests/src/kube/resource.rs: add it"))
    }

    /// The path of all of them in a namespace; in all namespaces when it is empty.
    pub(super) fn all(self, namespace: &str) -> String {
        let root = if self.version.contains('/') { "apis" } else { "api" };
        let within = match namespace {
            namespace if self.namespaced && !namespace.is_empty() => format!("namespaces/{namespace}/"),
            _ => String::new(),
        };
        format!("/{root}/{}/{within}{}", self.version, self.plural)
    }

    /// The path of one of them.
    pub(super) fn one(self, namespace: &str, name: &str) -> String {
        assert!(!self.namespaced || !namespace.is_empty(), "one of {} is in a namespace", self.plural);
        format!("{}/{name}", self.all(namespace))
    }
}
