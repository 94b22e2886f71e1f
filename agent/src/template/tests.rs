//! Every field of the worker Jobs, as the API server gets them.

use levers9_wire::token::Secret;
use levers9_wire::v1;
use levers9_wire::valid::Env;
use serde_json::{Value, json};

use super::*;

const CLUSTER: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";
const WORKER: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6b";
const NODE: &str = "ip-10-0-0-7.eu-central-1.compute.internal";
const ADDRESS: &str = "levers9://cp.example:443";
const GI: u64 = 1 << 30;

fn settings(runtime: Runtime) -> Settings {
    Settings {
        cluster: CLUSTER.parse().unwrap(),
        namespace: "gpus".to_owned(),
        flavor: None,
        runtime,
        pull_secret: Some("pull".to_owned()),
        controlplane: ADDRESS.to_owned(),
    }
}

fn create(runtime: Runtime) -> Create {
    Create {
        worker: WORKER.parse().unwrap(),
        namespace: "gpus".to_owned(),
        node: NODE.to_owned(),
        image: "r.example:5000/levers9/worker:1.2".to_owned(),
        amounts: v1::NodeAmounts { cpu_millis: 7_500, memory_bytes: 8 * GI, cards: 2, pods: 1 },
        gpu_type: "L40S".to_owned(),
        env: Env(vec![("LEVERS9_LOG".to_owned(), b"debug,$(LEVERS9_WORKER_TOKEN)".to_vec())]),
        enrolment: Secret::new("l9_enrolment_once"),
        runtime: runtime.word().to_owned(),
        host_network: true,
    }
}

fn rendered(create: &Create, settings: &Settings) -> Value {
    serde_json::to_value(job(create, settings)).unwrap()
}

fn pod(create: &Create, settings: &Settings) -> Value {
    rendered(create, settings)["spec"]["template"]["spec"].clone()
}

/// The Job around a pod: the same for both templates.
fn around(pod: &Value) -> Value {
    let labels = json!({
        "app.kubernetes.io/managed-by": "levers9-agent",
        "app.kubernetes.io/name": "levers9-worker",
        "levers9/cluster": CLUSTER,
        "levers9/worker": WORKER,
    });
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": format!("levers9-worker-{WORKER}"),
            "namespace": "gpus",
            "labels": labels,
            "annotations": { "levers9/node": NODE },
        },
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": 300,
            "template": {
                "metadata": { "labels": labels, "annotations": { "levers9/node": NODE } },
                "spec": pod,
            },
        },
    })
}

/// Bound to this node by its name, whatever its labels say, and by the
/// scheduler, which still looks at taints and at what is free.
fn affinity() -> Value {
    json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
        { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [NODE] }] },
    ]}}})
}

fn env() -> Value {
    json!([
        { "name": "LEVERS9_CONTROLPLANE", "value": ADDRESS },
        { "name": "LEVERS9_WORKER_TOKEN", "value": "l9_enrolment_once" },
        { "name": "LEVERS9_NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
        { "name": "LEVERS9_LOG", "value": "debug,$$(LEVERS9_WORKER_TOKEN)" },
    ])
}

fn resources() -> Value {
    let memory = (8 * GI).to_string();
    json!({
        "limits": { "memory": memory, "nvidia.com/gpu": "2" },
        "requests": { "cpu": "7500m", "memory": memory, "nvidia.com/gpu": "2" },
    })
}

/// What a worker is told to offer: its pod's memory less its own.
fn offered() -> Vec<String> {
    let memory = format!("{}Ki", (8 * GI - limits::WORKER_MEMORY) / 1024);
    ["--cpu", "7500m", "--memory", &memory, "--gpu-type", "L40S", "--gpus", "2"].map(str::to_owned).to_vec()
}

#[test]
fn the_unprivileged_worker_is_what_the_level_restricted_lets_in() {
    let mut args = vec!["--allow-unisolated".to_owned()];
    args.extend(offered());
    args.extend(["--data", "/var/lib/levers9/worker", "--exit-when-refused"].map(str::to_owned));
    let pod = json!({
        "affinity": affinity(),
        "automountServiceAccountToken": false,
        "containers": [{
            "name": "worker",
            "image": "r.example:5000/levers9/worker:1.2",
            "imagePullPolicy": "Always",
            "command": ["levers9-worker"],
            "args": args,
            "env": env(),
            "resources": resources(),
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
                "privileged": false,
                "readOnlyRootFilesystem": true,
                "runAsGroup": 65532,
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                { "name": "data", "mountPath": "/var/lib/levers9/worker" },
                { "name": "tmp", "mountPath": "/tmp" },
            ],
        }],
        "enableServiceLinks": false,
        // Whatever was ordered.
        "hostNetwork": false,
        "hostPID": false,
        "imagePullSecrets": [{ "name": "pull" }],
        "restartPolicy": "Never",
        "securityContext": {
            "fsGroup": 65532,
            "runAsGroup": 65532,
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
        "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "tmp", "emptyDir": {} }],
    });
    let runtime = Runtime::Process;
    assert_eq!(rendered(&create(runtime), &settings(runtime)), around(&pod));
}

#[test]
fn the_privileged_worker_has_the_nodes_devices_and_its_own_folder_and_no_more() {
    let mut args = offered();
    args.extend(["--data", "/var/lib/levers9/worker", "--exit-when-refused"].map(str::to_owned));
    let host = |name: &str, path: &str, kind: &str| json!({ "name": name, "hostPath": { "path": path, "type": kind } });
    let pod = json!({
        "affinity": affinity(),
        "automountServiceAccountToken": false,
        "containers": [{
            "name": "worker",
            "image": "r.example:5000/levers9/worker:1.2",
            "imagePullPolicy": "Always",
            "command": ["levers9-worker"],
            "args": args,
            "env": env(),
            "resources": resources(),
            "securityContext": { "privileged": true, "runAsUser": 0 },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                { "name": "levers9", "mountPath": "/var/lib/levers9" },
                { "name": "dev", "mountPath": "/dev" },
                { "name": "cgroup", "mountPath": "/sys/fs/cgroup" },
                { "name": "devices", "mountPath": "/var/lib/kubelet/device-plugins", "readOnly": true },
                { "name": "cdi-etc", "mountPath": "/etc/cdi", "readOnly": true },
                { "name": "cdi-run", "mountPath": "/var/run/cdi", "readOnly": true },
            ],
        }],
        "dnsPolicy": "ClusterFirstWithHostNet",
        "enableServiceLinks": false,
        "hostNetwork": true,
        "hostPID": false,
        "imagePullSecrets": [{ "name": "pull" }],
        "restartPolicy": "Never",
        "securityContext": { "runAsUser": 0 },
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
        "volumes": [
            host("levers9", "/var/lib/levers9", "DirectoryOrCreate"),
            host("dev", "/dev", "Directory"),
            host("cgroup", "/sys/fs/cgroup", "Directory"),
            host("devices", "/var/lib/kubelet/device-plugins", ""),
            host("cdi-etc", "/etc/cdi", "DirectoryOrCreate"),
            host("cdi-run", "/var/run/cdi", "DirectoryOrCreate"),
        ],
    });
    for runtime in [Runtime::Runc, Runtime::Runsc] {
        assert_eq!(rendered(&create(runtime), &settings(runtime)), around(&pod), "{runtime:?}");
    }
}

#[test]
fn a_privileged_worker_is_on_the_pod_network_where_the_order_says_so() {
    let create = Create { host_network: false, ..create(Runtime::Runc) };
    let pod = pod(&create, &settings(Runtime::Runc));
    assert_eq!((&pod["hostNetwork"], &pod["dnsPolicy"]), (&json!(false), &Value::Null));
}

#[test]
fn a_worker_without_cards_asks_for_none_and_says_none() {
    let mut create = create(Runtime::Process);
    (create.amounts.cards, create.gpu_type) = (0, String::new());
    let pod = pod(&create, &settings(Runtime::Process));
    let container = &pod["containers"][0];
    assert!(!container.to_string().contains("gpu"), "{container}");
    assert_eq!(container["resources"]["limits"], json!({ "memory": (8 * GI).to_string() }));
}

#[test]
fn each_cloud_has_its_tolerations_and_none_tolerates_everything() {
    let equal = |key: &str, value: &str| json!({ "key": key, "operator": "Equal", "value": value, "effect": "NoSchedule" });
    let card = json!({ "key": "nvidia.com/gpu", "operator": "Exists" });
    let cases = [
        (None, json!([card])),
        (Some(Flavor::Eks), json!([card])),
        (Some(Flavor::Gke), json!([card, equal("cloud.google.com/gke-spot", "true")])),
        (
            Some(Flavor::Aks),
            json!([card, equal("sku", "gpu"), equal("kubernetes.azure.com/scalesetpriority", "spot")]),
        ),
    ];
    for (flavor, expected) in cases {
        let settings = Settings { flavor, ..settings(Runtime::Process) };
        let tolerations = pod(&create(Runtime::Process), &settings)["tolerations"].clone();
        assert_eq!(tolerations, expected, "{flavor:?}");
        for toleration in tolerations.as_array().unwrap() {
            assert!(toleration["key"].as_str().is_some_and(|key| !key.is_empty()), "{toleration}");
        }
        // What is counted as letting a worker in is what lets it in.
        assert_eq!(settings.terms().tolerations.len(), expected.as_array().unwrap().len());
    }
}

#[test]
fn on_gke_a_worker_with_cards_sees_the_driver_where_gke_puts_it() {
    let gke = Settings { flavor: Some(Flavor::Gke), ..settings(Runtime::Runc) };
    let with = pod(&create(Runtime::Runc), &gke);
    let driver = json!({ "name": "nvidia", "mountPath": "/usr/local/nvidia", "readOnly": true });
    let mounts = |pod: &Value| pod["containers"][0]["volumeMounts"].as_array().unwrap().clone();
    assert!(mounts(&with).contains(&driver));
    assert_eq!(
        with["volumes"].as_array().unwrap().last().unwrap()["hostPath"]["path"],
        "/home/kubernetes/bin/nvidia"
    );
    let mut none = create(Runtime::Runc);
    none.amounts.cards = 0;
    assert!(!mounts(&pod(&none, &gke)).contains(&driver));
}

#[test]
fn nothing_else_of_an_order_reaches_the_pod_and_no_pod_has_an_account_or_a_secret() {
    for runtime in [Runtime::Process, Runtime::Runc, Runtime::Runsc] {
        let job = rendered(&create(runtime), &settings(runtime));
        let pod = job["spec"]["template"]["spec"].clone();
        for field in [
            "serviceAccountName",
            "serviceAccount",
            "nodeName",
            "nodeSelector",
            "initContainers",
            "priorityClassName",
        ] {
            assert_eq!(pod[field], Value::Null, "{field}");
        }
        let volumes = pod["volumes"].to_string();
        assert!(!volumes.contains("secret") && !volumes.contains("projected"), "{volumes}");
        // The token is in the environment alone: never an argument, label or annotation.
        assert_eq!(job.to_string().matches("l9_enrolment_once").count(), 1);
    }
}

#[test]
fn names_fit_their_limits_whatever_the_node_is_called() {
    let mut create = create(Runtime::Process);
    create.node = format!("{}.x", "n".repeat(251));
    let job = rendered(&create, &settings(Runtime::Process));
    assert_eq!(job["metadata"]["name"], format!("levers9-worker-{WORKER}"));
    assert!(job["metadata"]["name"].as_str().unwrap().len() <= 63);
    assert_eq!(job["metadata"]["annotations"]["levers9/node"], create.node);
    for (key, value) in job["metadata"]["labels"].as_object().unwrap() {
        assert!(value.as_str().unwrap().len() <= 63, "{key}");
    }
    // The same order makes the same Job.
    assert_eq!(rendered(&create, &settings(Runtime::Process)), job);
}
