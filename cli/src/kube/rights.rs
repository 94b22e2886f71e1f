//! What a person needs to be allowed in a cluster to attach it. Pure: the API
//! server is asked one by one, and the first right that is missing is named.

use levers9_agent::manifest::rbac::{LAUNCHES, OBSERVES, Right};

/// One right: a verb on a resource, in a namespace or everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Need {
    /// What is done.
    pub(crate) verb: &'static str,
    /// The API group; empty for the core one.
    pub(crate) group: &'static str,
    /// The resource's plural name.
    pub(crate) resource: &'static str,
    /// Where; everywhere without one.
    pub(crate) namespace: Option<String>,
}

impl Need {
    fn new(verb: &'static str, group: &'static str, resource: &'static str, namespace: Option<&str>) -> Self {
        Self { verb, group, resource, namespace: namespace.map(ToOwned::to_owned) }
    }

    /// For people: `create deployments.apps in namespace "levers9"`.
    pub(crate) fn words(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        let place = match &self.namespace {
            Some(namespace) => format!(" in namespace {namespace:?}"),
            None => " in the whole cluster".to_owned(),
        };
        format!("{} {}{dot}{}{place}", self.verb, self.resource, self.group)
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";

/// What joining does with the API itself.
pub(crate) fn to_join(namespace: &str) -> Vec<Need> {
    let mut needs = vec![Need::new("list", "", "nodes", None)];
    let beside = [("", "namespaces"), (RBAC, "clusterroles"), (RBAC, "clusterrolebindings")];
    let inside = [
        ("", "serviceaccounts"),
        ("", "secrets"),
        (RBAC, "roles"),
        (RBAC, "rolebindings"),
        ("apps", "deployments"),
    ];
    // Applying an object that is not there yet takes both, and a look at it before.
    for verb in ["get", "create", "patch"] {
        needs.extend(beside.iter().map(|(group, resource)| Need::new(verb, group, resource, None)));
        needs
            .extend(inside.iter().map(|(group, resource)| Need::new(verb, group, resource, Some(namespace))));
    }
    needs.push(Need::new("list", "", "pods", Some(namespace)));
    needs
}

/// What the agent is given. Kubernetes lets nobody give what they do not have.
pub(crate) fn to_give(namespace: &str) -> Vec<Need> {
    let each = |rights: &[Right], namespace: Option<&str>| {
        let mut needs = Vec::new();
        for right in rights {
            for resource in right.resources {
                needs
                    .extend(right.verbs.iter().map(|verb| Need::new(verb, right.group, resource, namespace)));
            }
        }
        needs
    };
    [each(&OBSERVES, None), each(&LAUNCHES, Some(namespace))].concat()
}

/// What putting a new token into the agent's Secret takes.
pub(crate) fn to_rotate(namespace: &str, there: bool) -> Vec<Need> {
    let verbs: &[&'static str] = if there { &["patch"] } else { &["create", "patch"] };
    verbs.iter().map(|verb| Need::new(verb, "", "secrets", Some(namespace))).collect()
}

/// What lets somebody give rights without having them.
pub(crate) fn instead_of_having(namespace: &str) -> Vec<Need> {
    let mut needs = Vec::new();
    for verb in ["escalate", "bind"] {
        needs.push(Need::new(verb, RBAC, "clusterroles", None));
        needs.push(Need::new(verb, RBAC, "roles", Some(namespace)));
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_is_named_as_kubectl_names_it() {
        let words: Vec<String> = to_join("gpus").iter().map(Need::words).collect();
        assert_eq!(words[0], "list nodes in the whole cluster");
        assert!(words.contains(&"create namespaces in the whole cluster".to_owned()));
        assert!(words.contains(&"patch deployments.apps in namespace \"gpus\"".to_owned()));
        let clusterwide = "create clusterroles.rbac.authorization.k8s.io in the whole cluster";
        assert!(words.contains(&clusterwide.to_owned()));
        assert_eq!(words.len(), 1 + 3 * 8 + 1);
    }

    #[test]
    fn what_is_given_is_what_the_manifest_grants() {
        let words: Vec<String> = to_give("gpus").iter().map(Need::words).collect();
        assert_eq!(words.len(), 6 + 5 + 3);
        assert_eq!(words[0], "get nodes in the whole cluster");
        assert!(words.contains(&"delete jobs.batch in namespace \"gpus\"".to_owned()));
    }
}
