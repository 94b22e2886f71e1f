//! Every field of every object, and that none grants more than it should.

use levers9_wire::token::Secret;
use serde_json::json;

use super::*;

const ID: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";
const ADDRESS: &str =
    "levers9://cp.example:443#sha256:a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";

fn manifest() -> v1::ClusterManifest {
    let item = |key: &str, operator: &str, values: &[&str]| v1::LabelRequirement {
        key: key.into(),
        operator: operator.into(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let settings = v1::ClusterSettings {
        name: "my-gke".into(),
        gpu_type: "L40S".into(),
        selector: vec![
            item("pool", "In", &["a", "b"]),
            item("zone", "In", &["on"]),
            item("gpu", "Exists", &[]),
        ],
        namespace: "gpus".into(),
        flavor: "gke".into(),
        worker_image: "r.example:5000/levers9/worker:1.2".into(),
        pull_secret: "pull".into(),
    };
    let cluster: ClusterId = ID.parse().unwrap();
    v1::ClusterManifest {
        cluster: cluster.to_wire(),
        settings: Some(settings),
        address: ADDRESS.into(),
        runtime: "runc".into(),
    }
}

fn changed(change: impl FnOnce(&mut v1::ClusterManifest)) -> v1::ClusterManifest {
    let mut manifest = manifest();
    change(&mut manifest);
    manifest
}

fn settings(change: impl FnOnce(&mut v1::ClusterSettings)) -> v1::ClusterManifest {
    changed(|manifest| change(manifest.settings.as_mut().unwrap()))
}

fn token() -> Secret {
    Secret::new(format!("l9_cluster_{}", "t".repeat(64)))
}

fn all() -> Vec<Object> {
    objects(&manifest(), Some(&token())).unwrap()
}

fn labels() -> Value {
    json!({
        "app.kubernetes.io/managed-by": "levers9",
        "app.kubernetes.io/name": "levers9-agent",
        "levers9/cluster": ID,
    })
}

fn subjects() -> Value {
    json!([{ "kind": "ServiceAccount", "name": "levers9-agent", "namespace": "gpus" }])
}

#[test]
fn these_objects_and_no_others_in_this_order() {
    let titles: Vec<String> = all().iter().map(Object::title).collect();
    let expected = [
        "Namespace gpus",
        "ServiceAccount gpus/levers9-agent",
        "ClusterRole levers9-agent-observe",
        "ClusterRoleBinding levers9-agent-observe-gpus",
        "Role gpus/levers9-agent-launch",
        "RoleBinding gpus/levers9-agent-launch",
        "Secret gpus/levers9-agent",
        "Deployment gpus/levers9-agent",
    ];
    assert_eq!(titles, expected);
    let without: Vec<String> = objects(&manifest(), None).unwrap().iter().map(Object::title).collect();
    assert_eq!(without, expected.iter().filter(|t| !t.starts_with("Secret")).copied().collect::<Vec<_>>());
    let paths: Vec<_> = all().iter().map(|o| (o.group, o.version, o.plural)).collect();
    let rbac = "rbac.authorization.k8s.io";
    assert_eq!(
        paths,
        [
            ("", "v1", "namespaces"),
            ("", "v1", "serviceaccounts"),
            (rbac, "v1", "clusterroles"),
            (rbac, "v1", "clusterrolebindings"),
            (rbac, "v1", "roles"),
            (rbac, "v1", "rolebindings"),
            ("", "v1", "secrets"),
            ("apps", "v1", "deployments"),
        ]
    );
}

#[test]
fn every_object_carries_the_clusters_id() {
    for object in all() {
        assert_eq!(object.value["metadata"]["labels"]["levers9/cluster"], ID, "{object:?}");
    }
}

#[test]
fn the_namespace_lets_in_what_workers_need() {
    let labels = |runtime: &str| {
        let manifest = changed(|m| m.runtime = runtime.into());
        objects(&manifest, None).unwrap().remove(0).value["metadata"]["labels"].clone()
    };
    for (runtime, level) in [("runc", "privileged"), ("runsc", "privileged"), ("process", "baseline")] {
        assert_eq!(
            labels(runtime),
            json!({
                "app.kubernetes.io/managed-by": "levers9",
                "levers9/cluster": ID,
                "pod-security.kubernetes.io/enforce": level,
            })
        );
    }
}

#[test]
fn the_agent_sees_nodes_and_pods_and_starts_jobs_in_its_namespace_and_nothing_else() {
    let rbac = "rbac.authorization.k8s.io/v1";
    let of = |kind: &str| all().into_iter().find(|o| o.kind == kind).unwrap().value;
    let meta = |name: &str| json!({ "name": name, "labels": labels() });
    let inside = |name: &str| json!({ "name": name, "namespace": "gpus", "labels": labels() });
    assert_eq!(
        of("ServiceAccount"),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": inside("levers9-agent"),
            "automountServiceAccountToken": false,
        })
    );
    assert_eq!(
        of("ClusterRole"),
        json!({
            "apiVersion": rbac, "kind": "ClusterRole", "metadata": meta("levers9-agent-observe"),
            "rules": [{ "apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"] }],
        })
    );
    assert_eq!(
        of("ClusterRoleBinding"),
        json!({
            "apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": meta("levers9-agent-observe-gpus"),
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "levers9-agent-observe",
            },
            "subjects": subjects(),
        })
    );
    assert_eq!(
        of("Role"),
        json!({
            "apiVersion": rbac, "kind": "Role", "metadata": inside("levers9-agent-launch"),
            "rules": [
                {
                    "apiGroups": ["batch"], "resources": ["jobs"],
                    "verbs": ["create", "delete", "get", "list", "watch"],
                },
                { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"] },
            ],
        })
    );
    assert_eq!(
        of("RoleBinding"),
        json!({
            "apiVersion": rbac, "kind": "RoleBinding", "metadata": inside("levers9-agent-launch"),
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "levers9-agent-launch",
            },
            "subjects": subjects(),
        })
    );
}

#[test]
fn no_right_reaches_secrets_exec_or_other_rights() {
    let kinds = ["Role", "ClusterRole"];
    let mut rules = 0;
    for object in all().into_iter().filter(|o| kinds.contains(&o.kind)) {
        for rule in object.value["rules"].as_array().unwrap() {
            rules += 1;
            let text = rule.to_string();
            for word in ["*", "secrets", "exec", "attach", "log", "role", "token", "update", "patch", "bind"]
            {
                assert!(!text.contains(word), "{object:?} grants {word}: {text}");
            }
            // What changes something is in the namespace and about Jobs alone.
            if text.contains("create") || text.contains("delete") {
                assert_eq!((object.kind, &rule["resources"]), ("Role", &json!(["jobs"])));
            }
        }
    }
    assert_eq!(rules, 3);
}

#[test]
fn the_secret_holds_the_token_and_nobody_sees_it_by_accident() {
    let secret = all().into_iter().find(|o| o.kind == "Secret").unwrap();
    let encoded = secret.value["data"]["token"].as_str().unwrap().to_owned();
    assert_eq!(
        secret.value,
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": { "name": "levers9-agent", "namespace": "gpus", "labels": labels() },
            "data": { "token": encoded },
        })
    );
    let ByteString(decoded) = serde_json::from_value(json!(encoded)).unwrap();
    assert_eq!(decoded, token().expose().as_bytes());
    let shown = format!("{:?}", all());
    assert!(!shown.contains(&encoded) && !shown.contains("tttt"), "{shown}");
    let without = yaml(&objects(&manifest(), None).unwrap()).unwrap();
    assert!(!without.contains(&encoded) && !without.contains("kind: Secret"), "{without}");
}

#[test]
fn the_deployment_field_by_field() {
    let deployment = all().pop().unwrap().value;
    let profile = json!({ "type": "RuntimeDefault" });
    let leaves = |taint: &str| json!({ "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30 });
    let asks = |question: &str| {
        json!({
            "exec": { "command": ["levers9-agent", "probe", question, "--signs", "/run/levers9-signs"] },
            "initialDelaySeconds": 10, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3,
        })
    };
    let expected = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "levers9-agent", "namespace": "gpus", "labels": labels() },
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 2,
            "selector": { "matchLabels": { "app.kubernetes.io/name": "levers9-agent" } },
            "strategy": { "type": "Recreate" },
            "template": {
                "metadata": { "labels": labels() },
                "spec": {
                    "serviceAccountName": "levers9-agent",
                    "automountServiceAccountToken": true,
                    "enableServiceLinks": false,
                    "imagePullSecrets": [{ "name": "pull" }],
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                        "seccompProfile": profile,
                    },
                    "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 100,
                        "preference": { "matchExpressions": [
                            { "key": "nvidia.com/gpu.product", "operator": "DoesNotExist" },
                            { "key": "cloud.google.com/gke-accelerator", "operator": "DoesNotExist" },
                        ] },
                    }] } },
                    "tolerations": [
                        { "key": "nvidia.com/gpu", "operator": "Exists" },
                        leaves("node.kubernetes.io/not-ready"), leaves("node.kubernetes.io/unreachable"),
                    ],
                    "containers": [{
                        "name": "agent",
                        "image": "r.example:5000/levers9/worker:1.2",
                        "imagePullPolicy": "Always",
                        "command": ["levers9-agent"],
                        "args": [
                            "--controlplane", ADDRESS, "--cluster", ID, "--namespace", "gpus",
                            "--selector", "pool=in (a,b)", "--selector", "zone=on", "--selector", "gpu",
                            "--image-repository", "r.example:5000/levers9/worker", "--runtime", "runc",
                            "--signs", "/run/levers9-signs", "--flavor", "gke", "--pull-secret", "pull",
                        ],
                        "resources": {
                            "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "memory": "256Mi" },
                        },
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "capabilities": { "drop": ["ALL"] },
                            "privileged": false,
                            "readOnlyRootFilesystem": true,
                            "runAsNonRoot": true,
                            "seccompProfile": profile,
                        },
                        "livenessProbe": asks("alive"),
                        "readinessProbe": asks("ready"),
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "volumeMounts": [
                            { "name": "token", "mountPath": "/var/run/levers9", "readOnly": true },
                            { "name": "signs", "mountPath": "/run/levers9-signs" },
                        ],
                    }],
                    "volumes": [
                        { "name": "token", "secret": { "secretName": "levers9-agent", "defaultMode": 0o440 } },
                        { "name": "signs", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
                    ],
                },
            },
        },
    });
    assert_eq!(deployment, expected);
}

#[test]
fn what_is_not_set_is_not_there() {
    let plain = settings(|s| {
        s.selector.clear();
        s.flavor.clear();
        s.pull_secret.clear();
        s.namespace.clear();
        s.worker_image = "worker@sha256:00".into();
    });
    let deployment = objects(&plain, None).unwrap().pop().unwrap();
    assert_eq!(deployment.namespace.as_deref(), Some("levers9"));
    let pod = &deployment.value["spec"]["template"]["spec"];
    assert!(pod.get("imagePullSecrets").is_none(), "{pod}");
    assert_eq!(
        pod["containers"][0]["args"],
        json!([
            "--controlplane",
            ADDRESS,
            "--cluster",
            ID,
            "--namespace",
            "levers9",
            "--image-repository",
            "worker",
            "--runtime",
            "runc",
            "--signs",
            "/run/levers9-signs",
        ])
    );
}

#[test]
fn what_makes_no_sense_makes_no_manifest() {
    let item = |key: &str, operator: &str, value: &str| v1::LabelRequirement {
        key: key.into(),
        operator: operator.into(),
        values: vec![value.into()],
    };
    let bad = [
        changed(|m| m.cluster.clear()),
        changed(|m| m.settings = None),
        changed(|m| m.address.clear()),
        changed(|m| m.runtime = "docker".into()),
        settings(|s| s.worker_image.clear()),
        settings(|s| s.worker_image = "a b".into()),
        settings(|s| s.namespace = "Kube System".into()),
        settings(|s| s.pull_secret = "-x".into()),
        // A selector is never shortened to what can be understood of it.
        settings(|s| s.selector.push(item("pool", "NotIn", "a"))),
        settings(|s| s.selector.push(item("pool", "In", "a b"))),
        settings(|s| s.selector.push(item("po/o/l", "In", "a"))),
    ];
    for manifest in bad {
        assert!(objects(&manifest, None).is_err(), "{manifest:?}");
    }
}

#[test]
fn yaml_reads_back_as_the_same_objects() {
    let objects = all();
    let text = yaml(&objects).unwrap();
    let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let values: Vec<Value> = objects.into_iter().map(|object| object.value).collect();
    assert_eq!(read, values);
    assert!(text.starts_with("apiVersion: v1\nkind: Namespace\n"), "{text}");
}

#[test]
fn texts_that_yaml_would_take_for_something_else_are_quoted() {
    for tricky in ["on", "yes", "n", "null", "1e3", "0x10", "123", "1-1-1", "off", "true"] {
        let manifest = settings(|s| s.namespace = tricky.into());
        let text = yaml(&objects(&manifest, None).unwrap()).unwrap();
        let plain = format!("name: {tricky}\n");
        assert!(!text.contains(&plain) || tricky == "1-1-1", "{tricky} is bare in\n{text}");
    }
}

/// What the manifest writes, its agent reads: by the parser of the agent itself.
#[test]
fn the_agent_understands_its_arguments() {
    use clap::Parser as _;

    use crate::args::Args;
    use crate::template::{Flavor, Runtime};

    let parsed = |manifest: &v1::ClusterManifest| {
        let deployment = objects(manifest, None).unwrap().pop().unwrap();
        let container = &deployment.value["spec"]["template"]["spec"]["containers"][0];
        let words = ["command", "args"].map(|field| container[field].as_array().unwrap().clone()).concat();
        let words: Vec<String> = words.iter().map(|word| word.as_str().unwrap().to_owned()).collect();
        Args::try_parse_from(words).unwrap().settings().unwrap()
    };
    let full = parsed(&manifest());
    assert_eq!(full.address.to_string(), ADDRESS);
    assert_eq!(full.token_file, std::path::Path::new(TOKEN_FOLDER).join(TOKEN_KEY));
    assert_eq!(full.repository, "r.example:5000/levers9/worker");
    assert_eq!(full.signs.as_deref(), Some(std::path::Path::new("/run/levers9-signs")));
    let workers = full.workers;
    assert_eq!((workers.cluster.to_string().as_str(), workers.namespace.as_str()), (ID, "gpus"));
    assert_eq!((workers.flavor, workers.runtime), (Some(Flavor::Gke), Runtime::Runc));
    assert_eq!((workers.pull_secret.as_deref(), workers.controlplane.as_str()), (Some("pull"), ADDRESS));
    let node = |pool: &str, more: &[&str]| {
        let labels = [("pool", pool), ("zone", "on")].into_iter().chain(more.iter().map(|key| (*key, "")));
        labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
    };
    assert!(full.lent.matches(&node("a", &["gpu"])) && full.lent.matches(&node("b", &["gpu"])));
    assert!(!full.lent.matches(&node("c", &["gpu"])) && !full.lent.matches(&node("a", &[])));

    let least = parsed(&changed(|m| {
        let settings = m.settings.as_mut().unwrap();
        settings.selector.clear();
        settings.flavor.clear();
        settings.pull_secret.clear();
        m.runtime = "process".into();
    }));
    assert!(least.lent.matches(&BTreeMap::new()));
    assert_eq!((least.workers.flavor, least.workers.pull_secret), (None, None));
    for runtime in ["runc", "runsc", "process"] {
        assert_eq!(parsed(&changed(|m| m.runtime = runtime.into())).workers.runtime.word(), runtime);
    }
    for flavor in ["gke", "eks", "aks"] {
        let flavored = parsed(&settings(|s| s.flavor = flavor.into()));
        assert_eq!(flavored.workers.flavor.map(Flavor::word), Some(flavor));
    }
}
