//! Everything the agent may do with the Kubernetes API: see nodes and pods,
//! and start and stop Jobs in its own namespace. It can read no Secret, run
//! nothing in a pod, and give nobody a right.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use k8s_openapi::api::rbac::v1::{RoleRef, Subject};

use super::{AGENT, BadManifest, LAUNCH, OBSERVE, Object, Parts, observe_binding};

/// One right: verbs on resources of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// The API group; empty for the core one.
    pub group: &'static str,
    /// The resources, by their plural names.
    pub resources: &'static [&'static str],
    /// What may be done with them.
    pub verbs: &'static [&'static str],
}

/// In the whole cluster, read-only.
pub const OBSERVES: [Right; 1] =
    [Right { group: "", resources: &["nodes", "pods"], verbs: &["get", "list", "watch"] }];

/// In the agent's own namespace.
pub const LAUNCHES: [Right; 2] = [
    Right { group: "batch", resources: &["jobs"], verbs: &["create", "delete", "get", "list", "watch"] },
    Right { group: "", resources: &["pods"], verbs: &["get", "list", "watch"] },
];

const GROUP: &str = "rbac.authorization.k8s.io";

fn rules(rights: &[Right]) -> Vec<PolicyRule> {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let rule = |right: &Right| PolicyRule {
        api_groups: Some(owned(&[right.group])),
        resources: Some(owned(right.resources)),
        verbs: owned(right.verbs),
        ..PolicyRule::default()
    };
    rights.iter().map(rule).collect()
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { api_group: GROUP.to_owned(), kind: kind.to_owned(), name: name.to_owned() }
}

fn subjects(parts: &Parts) -> Option<Vec<Subject>> {
    Some(vec![Subject {
        kind: "ServiceAccount".to_owned(),
        name: AGENT.to_owned(),
        namespace: Some(parts.settings.namespace.clone()),
        ..Subject::default()
    }])
}

/// The roles and their bindings. The ClusterRole is the same for every agent
/// in the cluster; each has a binding of its own to it.
pub(super) fn objects(parts: &Parts) -> Result<[Object; 4], BadManifest> {
    let observe = ClusterRole {
        metadata: parts.beside(OBSERVE),
        rules: Some(rules(&OBSERVES)),
        ..ClusterRole::default()
    };
    let observing = ClusterRoleBinding {
        metadata: parts.beside(&observe_binding(&parts.settings.namespace)),
        role_ref: role_ref("ClusterRole", OBSERVE),
        subjects: subjects(parts),
    };
    let launch = Role { metadata: parts.inside(LAUNCH), rules: Some(rules(&LAUNCHES)) };
    let launching = RoleBinding {
        metadata: parts.inside(LAUNCH),
        role_ref: role_ref("Role", LAUNCH),
        subjects: subjects(parts),
    };
    Ok([
        Object::of(&observe, &observe.metadata)?,
        Object::of(&observing, &observing.metadata)?,
        Object::of(&launch, &launch.metadata)?,
        Object::of(&launching, &launching.metadata)?,
    ])
}
