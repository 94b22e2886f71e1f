//! What the agent may do in a cluster, as the cluster itself decides it, and
//! what it has really asked for.

use std::collections::BTreeSet;

use http::Method;
use levers9_tests::kube::Api;
use levers9_tests::wait;
use serde_json::json;

use crate::support::{NAMESPACE, SOON, Site};

const ACCOUNT: &str = "system:serviceaccount:levers9:levers9-agent";

/// Whether somebody may do something, by the cluster's own authorizer.
fn may(api: &Api, verb: &str, what: &str, namespace: &str, name: &str) -> bool {
    let (group, resource) = what.split_once('/').expect("group/resource");
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let asked = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": {
            "verb": verb, "group": group, "resource": resource, "subresource": subresource,
            "namespace": namespace, "name": name,
        } },
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = api.request(Method::POST, path, "application/json", Some(&asked)).expect("an answer");
    answer["status"]["allowed"] == true
}

#[test]
fn the_agent_may_do_what_it_needs_and_has_asked_for_nothing_else() {
    let site = Site::joined(&[("cpu-1", 0, ""), ("gpu-1", 1, "NVIDIA-L40S")], "L40S");
    let other = site.cluster.namespace();
    let groups = ["system:serviceaccounts", "system:serviceaccounts:levers9", "system:authenticated"];
    let agent = site.cluster.api_as(ACCOUNT, &groups);
    let rbac = "rbac.authorization.k8s.io";
    let table = [
        // F62: Jobs in its own namespace, and in no other.
        ("create", "batch/jobs", NAMESPACE, "", true),
        ("delete", "batch/jobs", NAMESPACE, "", true),
        ("watch", "batch/jobs", NAMESPACE, "", true),
        ("create", "batch/jobs", &other, "", false),
        ("delete", "batch/jobs", &other, "", false),
        ("list", "batch/jobs", "", "", false),
        // F63: nodes and pods anywhere, to look at.
        ("list", "/nodes", "", "", true),
        ("watch", "/nodes", "", "", true),
        ("list", "/pods", "", "", true),
        ("watch", "/pods", &other, "", true),
        ("update", "/nodes", "", "gpu-1", false),
        ("patch", "/nodes", "", "gpu-1", false),
        ("create", "/pods", NAMESPACE, "", false),
        ("delete", "/pods", NAMESPACE, "", false),
        // F64: no Secret, its own included.
        ("get", "/secrets", NAMESPACE, "levers9-agent", false),
        ("list", "/secrets", NAMESPACE, "", false),
        ("get", "/configmaps", NAMESPACE, "kube-root-ca.crt", false),
        // F65: nothing inside a pod.
        ("create", "/pods/exec", NAMESPACE, "", false),
        ("create", "/pods/attach", NAMESPACE, "", false),
        ("create", "/pods/portforward", NAMESPACE, "", false),
        ("get", "/pods/log", NAMESPACE, "", false),
        ("create", "/pods/ephemeralcontainers", NAMESPACE, "", false),
        // F66: nothing outside, and no more than it has.
        ("delete", "/pods", &other, "", false),
        ("delete", "/namespaces", "", NAMESPACE, false),
        ("update", "apps/deployments", NAMESPACE, "levers9-agent", false),
        ("update", &format!("{rbac}/roles"), NAMESPACE, "levers9-agent-launch", false),
        ("escalate", &format!("{rbac}/roles"), NAMESPACE, "", false),
        ("bind", &format!("{rbac}/clusterroles"), "", "cluster-admin", false),
        ("create", &format!("{rbac}/clusterrolebindings"), "", "", false),
        ("create", &format!("{rbac}/rolebindings"), NAMESPACE, "", false),
        ("create", "/serviceaccounts/token", NAMESPACE, "levers9-agent", false),
        ("impersonate", "/serviceaccounts", NAMESPACE, "default", false),
    ];
    let wrong: Vec<_> = table
        .iter()
        .filter(|(verb, what, namespace, name, allowed)| may(&agent, verb, what, namespace, name) != *allowed)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");

    // A life with all that it does: a job comes, an agent is killed, a worker is stopped.
    let ran = site.world.cli(&["run", "--gpu", "L40S", "--", "echo", "ran"]).ok();
    assert_eq!(ran.text(), "ran\n");
    site.kubelet.kill9(&site.agent_pod());
    site.wait_cluster("lab", "is ready again", |row| row["state"] == "ready");
    let asked: BTreeSet<String> = site
        .cluster
        .audit(ACCOUNT)
        .iter()
        .map(|event| {
            let about = &event["objectRef"];
            let word = |field: &str| about[field].as_str().unwrap_or("").to_owned();
            let verb = event["verb"].as_str().unwrap_or("");
            match about.is_object() {
                true => format!("{verb} {} in {:?}", word("resource"), word("namespace")),
                false => format!("{verb} {}", event["requestURI"].as_str().unwrap_or("")),
            }
        })
        .collect();
    let known = [
        "get /version",
        "list nodes in \"\"",
        "watch nodes in \"\"",
        "list pods in \"\"",
        "watch pods in \"\"",
        "list pods in \"levers9\"",
        "get pods in \"levers9\"",
        "list jobs in \"levers9\"",
        "watch jobs in \"levers9\"",
        "get jobs in \"levers9\"",
        "create jobs in \"levers9\"",
        "delete jobs in \"levers9\"",
    ];
    let strange: Vec<_> = asked.iter().filter(|asked| !known.contains(&asked.as_str())).collect();
    assert!(strange.is_empty(), "{strange:#?}");
    for needed in ["list nodes in \"\"", "watch pods in \"\"", "create jobs in \"levers9\""] {
        assert!(asked.contains(needed), "{needed}: {asked:#?}");
    }
    let refused: Vec<_> = site
        .cluster
        .audit(ACCOUNT)
        .into_iter()
        .filter(|event| event["responseStatus"]["code"] == 403)
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    // Nothing of it listens.
    let inodes = wait::until("the agent that was started again has sockets", SOON, || {
        let agent = site.kubelet.process(&site.agent_pod());
        let fds = std::fs::read_dir(format!("/proc/{}/fd", agent.pid)).map_err(|error| error.to_string())?;
        let links =
            fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()?.to_str().map(str::to_owned));
        let inodes =
            links.filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()));
        let inodes: Vec<String> = inodes.collect();
        if inodes.is_empty() { Err("none".to_owned()) } else { Ok(inodes) }
    });
    for table in ["tcp", "tcp6"] {
        let lines = std::fs::read_to_string(format!("/proc/net/{table}")).expect("the table of sockets");
        let listening = lines.lines().skip(1).filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        let own = listening.filter(|line| {
            line.split_whitespace().nth(9).is_some_and(|inode| inodes.iter().any(|own| own == inode))
        });
        assert_eq!(own.count(), 0, "it listens on {table}");
    }
}
