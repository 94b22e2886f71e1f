//! The objects of a large cluster, as an API server writes them: nodes of some
//! 5 KB with images and conditions, pods of 6 to 7 KB, 9 with a sidecar, with volumes, environment
//! and statuses, worker Jobs; all with the managed fields that a controller or
//! kubelet leaves behind. Pure: what differs is left open as a hole.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::template::Template;

/// The cluster the agent is of.
pub(super) const CLUSTER: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";
/// The namespace the agent works in.
pub(super) const NAMESPACE: &str = "levers9";
/// The image repository it starts workers from.
pub(super) const REPOSITORY: &str = "registry.example.com/levers9/worker";
/// Every so many nodes one has cards.
pub(super) const CARDS_EVERY: u32 = 4;

const NODE: &str = "gke-training-pool-a-<node>.europe-west4-b.c.example-project.internal";

/// What a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// One container that serves.
    Web,
    /// A container, and a sidecar that starts before it.
    Sidecar,
    /// One card.
    Card,
    /// A worker of the agent.
    Worker,
}

impl Shape {
    pub(super) const ALL: [Self; 4] = [Self::Web, Self::Sidecar, Self::Card, Self::Worker];
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Bound nowhere yet.
    Pending,
    /// Bound; its containers are created.
    Bound,
    /// Its containers run and are not ready.
    Starting,
    /// It serves.
    Running,
    /// It is told to end.
    Terminating,
    /// Its containers have ended.
    Finished,
}

impl Phase {
    pub(super) const ALL: [Self; 6] =
        [Self::Pending, Self::Bound, Self::Starting, Self::Running, Self::Terminating, Self::Finished];

    fn word(self) -> &'static str {
        match self {
            Self::Pending | Self::Bound => "Pending",
            Self::Starting | Self::Running | Self::Terminating => "Running",
            Self::Finished => "Succeeded",
        }
    }

    fn is_bound(self) -> bool {
        self != Self::Pending
    }

    fn is_ready(self) -> bool {
        matches!(self, Self::Running | Self::Terminating)
    }

    fn is_deleted(self) -> bool {
        matches!(self, Self::Terminating | Self::Finished)
    }
}

/// A node, with cards or without.
pub(super) fn node(cards: bool) -> Result<Template> {
    let mut labels = json!({
        "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "a2-ultragpu-8g",
        "cloud.google.com/gke-boot-disk": "pd-ssd", "cloud.google.com/gke-container-runtime": "containerd",
        "cloud.google.com/gke-nodepool": "training-pool-a", "cloud.google.com/gke-os-distribution": "cos",
        "cloud.google.com/machine-family": "a2",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux",
        "topology.kubernetes.io/region": "europe-west4", "topology.kubernetes.io/zone": "europe-west4-b",
        "topology.gke.io/zone": "europe-west4-b", "team.example.com/cost-centre": "research-platform",
    });
    let mut room = json!({
        "cpu": "95690m", "ephemeral-storage": "189275404Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
        "memory": "1292459Mi", "pods": "110",
    });
    if cards {
        labels["cloud.google.com/gke-accelerator"] = json!("nvidia-a100-80gb");
        labels["nvidia.com/gpu.product"] = json!("NVIDIA-A100-SXM4-80GB");
        room["nvidia.com/gpu"] = json!("8");
    }
    let status = json!({
        "addresses": [
            { "address": "10.164.7.12", "type": "InternalIP" }, { "address": NODE, "type": "Hostname" },
        ],
        "allocatable": room, "capacity": room,
        "conditions": node_conditions(),
        "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
        "images": images(),
        "nodeInfo": {
            "architecture": "amd64", "bootID": "<serial>-0a6b-4f7e-9a55-8f9c2f0d0e11",
            "containerRuntimeVersion": "containerd://1.7.24", "kernelVersion": "6.6.72+",
            "kubeProxyVersion": "v1.33.5-gke.1080000", "kubeletVersion": "v1.33.5-gke.1080000",
            "machineID": "<serial>5f3c4d2e8b6a0123456789ab", "operatingSystem": "linux",
            "osImage": "Container-Optimized OS from Google", "systemUUID": "<serial>-5f3c-4d2e-8b6a-0123456789ab",
        },
    });
    let annotations = json!({
        "container.googleapis.com/instance_id": "714<serial>", "node.alpha.kubernetes.io/ttl": "30",
        "csi.volume.kubernetes.io/nodeid": format!("{{\"pd.csi.storage.gke.io\":\"projects/example-project/{NODE}\"}}"),
        "node.gke.io/last-applied-node-labels": "cloud.google.com/gke-nodepool=training-pool-a",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    });
    let spec = json!({
        "podCIDR": "10.8.41.0/24", "podCIDRs": ["10.8.41.0/24"],
        "providerID": format!("gce://example-project/europe-west4-b/{NODE}"),
    });
    Template::of(&json!({
        "metadata": {
            "annotations": annotations, "creationTimestamp": "<created>", "labels": labels,
            "managedFields": [
                managed("kubelet", "", json!({ "f:metadata": { "f:labels": fields_of(&labels) } })),
                managed("kube-controller-manager", "", json!({ "f:spec": fields_of(&spec) })),
                managed("kubelet", "status", json!({ "f:status": { "f:conditions": fields_of(&status["conditions"]) } })),
            ],
            "name": NODE, "resourceVersion": "<version>", "uid": "<serial>-5f3c-4d2e-8b6a-0a0a0a0a0a0a",
        },
        "spec": spec, "status": status,
    }))
}

fn node_conditions() -> Value {
    let condition = |(kind, status, reason, message): (&str, &str, &str, &str)| {
        json!({
            "lastHeartbeatTime": "<changed>", "lastTransitionTime": "<created>", "message": message,
            "reason": reason, "status": status, "type": kind,
        })
    };
    let all = [
        ("KernelDeadlock", "False", "KernelHasNoDeadlock", "kernel has no deadlock"),
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    all.map(condition).into_iter().collect()
}

fn images() -> Value {
    let image = |(name, size): (&str, u64)| {
        let digest = "a3f1c2d4e5b60718293a4b5c6d7e8f90112233445566778899aabbccddeeff00";
        json!({ "names": [format!("{name}@sha256:{digest}"), format!("{name}:v1.33.5")], "sizeBytes": size })
    };
    let all = [
        ("registry.example.com/research/trainer", 9_812_334_112_u64),
        ("gke.gcr.io/gcp-compute-persistent-disk-csi-driver", 61_223_001),
        ("gke.gcr.io/kube-proxy-amd64", 84_120_447),
    ];
    all.map(image).into_iter().collect()
}

/// A pod of a shape in a phase.
pub(super) fn pod(shape: Shape, phase: Phase) -> Result<Template> {
    let (namespace, name, labels) = pod_names(shape);
    let mut spec = pod_spec(shape, &name);
    if phase.is_bound() {
        spec["nodeName"] = json!(NODE);
    }
    let status = pod_status(&spec, phase);
    let mut metadata = json!({
        "annotations": { "checksum/config": "5a1c2d4e5b60718293a4b5c6d7e8f901", "prometheus.io/scrape": "true" },
        "creationTimestamp": "<created>",
        "labels": labels,
        "managedFields": [
            managed("kube-controller-manager", "", json!({
                "f:metadata": { "f:labels": fields_of(&labels) }, "f:spec": fields_of(&spec),
            })),
            managed("kubelet", "status", json!({ "f:status": status_fields(&status) })),
        ],
        "name": name, "namespace": namespace,
        "ownerReferences": [{
            "apiVersion": "apps/v1", "blockOwnerDeletion": true, "controller": true, "kind": "ReplicaSet",
            "name": "app-7d9f8b6c5d", "uid": "<serial>-5f3c-4d2e-8b6a-0c0c0c0c0c0c",
        }],
        "resourceVersion": "<version>", "uid": "<serial>-5f3c-4d2e-8b6a-0b0b0b0b0b0b",
    });
    if phase.is_deleted() {
        metadata["deletionTimestamp"] = json!("<changed>");
        metadata["deletionGracePeriodSeconds"] = json!(30);
    }
    Template::of(&json!({ "metadata": metadata, "spec": spec, "status": status }))
}

fn pod_names(shape: Shape) -> (&'static str, String, Value) {
    match shape {
        Shape::Worker => (
            NAMESPACE,
            "levers9-worker-<serial>".to_owned(),
            json!({
                "batch.kubernetes.io/controller-uid": "<serial>-5f3c-4d2e-8b6a-0d0d0d0d0d0d",
                "levers9/cluster": CLUSTER, "levers9/worker": "019a0c1e-7b3c-7d11-8a20-5f3c<serial>",
            }),
        ),
        _ => (
            "team-recommendations",
            "ranking-service-7d9f8b6c5d-<serial>".to_owned(),
            json!({
                "app.kubernetes.io/instance": "ranking-service", "app.kubernetes.io/managed-by": "Helm",
                "app.kubernetes.io/name": "ranking-service", "app.kubernetes.io/version": "4.12.7",
                "pod-template-hash": "7d9f8b6c5d", "team": "recommendations",
            }),
        ),
    }
}

fn pod_spec(shape: Shape, name: &str) -> Value {
    let mut spec = json!({
        "containers": [container("app", shape)], "dnsPolicy": "ClusterFirst", "enableServiceLinks": true,
        "preemptionPolicy": "PreemptLowerPriority", "priority": 0, "restartPolicy": "Always",
        "schedulerName": "default-scheduler", "securityContext": { "fsGroup": 1000, "runAsNonRoot": true },
        "serviceAccount": "ranking-service", "serviceAccountName": "ranking-service",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [
            { "effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300 },
            { "effect": "NoExecute", "key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 300 },
        ],
        "volumes": [
            { "configMap": { "defaultMode": 420, "name": "ranking-service-config" }, "name": "config" },
            { "emptyDir": { "sizeLimit": "2Gi" }, "name": "scratch" },
            { "name": "kube-api-access", "projected": { "defaultMode": 420, "sources": [
                { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                { "configMap": { "items": [{ "key": "ca.crt", "path": "ca.crt" }], "name": "kube-root-ca.crt" } },
            ] } },
        ],
    });
    match shape {
        Shape::Web => {}
        Shape::Sidecar => {
            let mut proxy = container("proxy", shape);
            proxy["restartPolicy"] = json!("Always");
            spec["initContainers"] = json!([proxy]);
        }
        Shape::Card => {
            if let Some(tolerations) = spec["tolerations"].as_array_mut() {
                tolerations
                    .push(json!({ "effect": "NoSchedule", "key": "nvidia.com/gpu", "operator": "Exists" }));
            }
        }
        Shape::Worker => {
            spec["restartPolicy"] = json!("Never");
            spec["hostname"] = json!(name);
        }
    }
    spec
}

fn container(name: &str, shape: Shape) -> Value {
    let mut amounts = json!({ "cpu": "500m", "memory": "1536Mi" });
    if matches!(shape, Shape::Card | Shape::Worker) {
        amounts["nvidia.com/gpu"] = json!("1");
    }
    let variable = |(name, value): (&str, &str)| json!({ "name": name, "value": value });
    let env: Value = [
        ("DATABASE_URL", "postgres://ranking@db.team-recommendations.svc:5432/ranking?sslmode=verify-full"),
        ("FEATURE_STORE", "grpc://feature-store.platform.svc.cluster.local:7001"),
    ]
    .map(variable)
    .into_iter()
    .collect();
    json!({
        "env": env, "image": format!("registry.example.com/recommendations/{name}:4.12.7"),
        "imagePullPolicy": "IfNotPresent",
        "readinessProbe": probe(),
        "name": name, "ports": [{ "containerPort": 8080, "name": "http", "protocol": "TCP" }],
        "resources": { "limits": amounts, "requests": amounts },
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "volumeMounts": [
            { "mountPath": "/etc/app", "name": "config", "readOnly": true },
            { "mountPath": "/scratch", "name": "scratch" },
            { "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access", "readOnly": true },
        ],
    })
}

fn probe() -> Value {
    json!({
        "failureThreshold": 3, "httpGet": { "path": "/healthz", "port": "http", "scheme": "HTTP" },
        "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1,
    })
}

fn pod_status(spec: &Value, phase: Phase) -> Value {
    let truth = |holds| if holds { "True" } else { "False" };
    let condition = |(kind, holds, at): (&str, bool, &str)| {
        json!({
            "lastTransitionTime": at, "observedGeneration": 1, "status": truth(holds),
            "type": kind,
        })
    };
    let conditions: Value = [
        ("PodReadyToStartContainers", phase.is_bound(), "<created>"),
        ("Initialized", phase.is_bound(), "<created>"),
        ("Ready", phase.is_ready(), "<changed>"),
        ("ContainersReady", phase.is_ready(), "<changed>"),
        ("PodScheduled", phase.is_bound(), "<created>"),
    ]
    .map(condition)
    .into_iter()
    .collect();
    let mut status = json!({ "conditions": conditions, "phase": phase.word(), "qosClass": "Guaranteed" });
    if phase.is_bound() {
        let of = |list: &Value| -> Value {
            list.as_array().into_iter().flatten().map(|of| container_status(of, phase)).collect()
        };
        status["containerStatuses"] = of(&spec["containers"]);
        if spec.get("initContainers").is_some() {
            status["initContainerStatuses"] = of(&spec["initContainers"]);
        }
        status["hostIP"] = json!("10.164.7.12");
        status["podIP"] = json!("10.8.41.7");
        status["podIPs"] = json!([{ "ip": "10.8.41.7" }]);
        status["startTime"] = json!("<created>");
    }
    status
}

fn container_status(container: &Value, phase: Phase) -> Value {
    let digest = "b4f1c2d4e5b60718293a4b5c6d7e8f90112233445566778899aabbccddeeff00";
    let id = format!("containerd://<serial>{digest}");
    let state = match phase {
        Phase::Pending | Phase::Bound => json!({ "waiting": { "reason": "ContainerCreating" } }),
        Phase::Starting | Phase::Running | Phase::Terminating => {
            json!({ "running": { "startedAt": "<created>" } })
        }
        Phase::Finished => json!({ "terminated": {
            "containerID": id, "exitCode": 0, "finishedAt": "<changed>", "reason": "Completed",
            "startedAt": "<created>",
        } }),
    };
    json!({
        "allocatedResources": container["resources"]["requests"], "containerID": id, "image": container["image"],
        "imageID": format!("registry.example.com/recommendations/app@sha256:{digest}"), "lastState": {},
        "name": container["name"], "ready": phase.is_ready(), "resources": container["resources"],
        "restartCount": 0, "started": phase.is_ready(), "state": state,
    })
}

/// The Job of a worker.
pub(super) fn job() -> Result<Template> {
    let labels =
        json!({ "levers9/cluster": CLUSTER, "levers9/worker": "019a0c1e-7b3c-7d11-8a20-5f3c<serial>" });
    let spec = json!({
        "backoffLimit": 0, "completions": 1, "parallelism": 1,
        "template": { "metadata": { "labels": labels }, "spec": pod_spec(Shape::Worker, "worker") },
    });
    Template::of(&json!({
        "metadata": {
            "annotations": { "levers9/node": NODE }, "creationTimestamp": "<created>", "labels": labels,
            "managedFields": [managed("levers9-agent", "", json!({ "f:spec": fields_of(&spec) }))],
            "name": "levers9-worker-<serial>", "namespace": NAMESPACE, "resourceVersion": "<version>",
            "uid": "<serial>-5f3c-4d2e-8b6a-0d0d0d0d0d0d",
        },
        "spec": spec,
        "status": { "active": 1, "ready": 1, "startTime": "<created>", "terminating": 0 },
    }))
}

/// An entry of the managed fields.
fn managed(manager: &str, subresource: &str, fields: Value) -> Value {
    let mut entry = json!({
        "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields, "manager": manager,
        "operation": "Update", "time": "<changed>",
    });
    if !subresource.is_empty() {
        entry["subresource"] = json!(subresource);
    }
    entry
}

/// The same of a pod's status, whose lists of containers are owned whole.
fn status_fields(status: &Value) -> Value {
    let mut fields = fields_of(status);
    for list in ["f:containerStatuses", "f:initContainerStatuses"] {
        if let Some(fields) = fields.get_mut(list) {
            *fields = json!({});
        }
    }
    fields
}

/// Who owns what of a value, in the notation of managed fields: a name for
/// each field, a key for each item of a list that has names or types.
fn fields_of(value: &Value) -> Value {
    let mut fields = Map::new();
    match value {
        Value::Object(object) => {
            fields.extend(object.iter().map(|(key, value)| (format!("f:{key}"), fields_of(value))));
        }
        Value::Array(items) => {
            for item in items {
                let key = ["name", "type"].into_iter().find(|key| item.get(key).is_some());
                let Some(key) = key else { return json!({}) };
                let mut owned = fields_of(item);
                owned["."] = json!({});
                fields.insert(format!("k:{}", json!({ key: item[key] })), owned);
            }
        }
        _ => {}
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::Job;
    use k8s_openapi::api::core::v1::{Node, Pod};

    use super::super::template::Fill;
    use super::*;

    fn text(template: &Template) -> String {
        let (created, changed) = ("2026-11-29T20:00:00Z", "2026-11-29T21:00:00Z");
        let mut text = String::new();
        template.render(Fill { serial: 9, version: 11, node: 3, created, changed }, &mut text);
        text
    }

    #[test]
    fn nodes_are_nodes_of_some_five_kilobytes() {
        for cards in [false, true] {
            let text = text(&node(cards).unwrap());
            assert!((4_500..6_500).contains(&text.len()), "{}", text.len());
            let node: Node = serde_json::from_str(&text).unwrap();
            assert!(node.metadata.name.unwrap().starts_with("gke-training-pool-a-00003."));
            let status = node.status.unwrap();
            assert_eq!(status.allocatable.unwrap().contains_key("nvidia.com/gpu"), cards);
            assert!(status.conditions.unwrap().iter().any(|c| c.type_ == "Ready" && c.status == "True"));
        }
    }

    #[test]
    fn pods_are_pods_of_six_to_seven_kilobytes_and_more_with_sidecars() {
        for (shape, phase) in Shape::ALL.into_iter().flat_map(|s| Phase::ALL.map(|p| (s, p))) {
            let text = text(&pod(shape, phase).unwrap());
            let sidecar = if shape == Shape::Sidecar { 2_500 } else { 0 };
            assert!((5_000..7_500 + sidecar).contains(&text.len()), "{shape:?} {phase:?}: {}", text.len());
            let pod: Pod = serde_json::from_str(&text).unwrap();
            assert_eq!(pod.spec.unwrap().node_name.is_some(), phase != Phase::Pending);
            assert_eq!(pod.metadata.deletion_timestamp.is_some(), phase.is_deleted());
            assert_eq!(pod.status.unwrap().phase.as_deref(), Some(phase.word()));
        }
    }

    #[test]
    fn a_workers_job_and_pod_belong_together() {
        let job: Job = serde_json::from_str(&text(&job().unwrap())).unwrap();
        let pod: Pod = serde_json::from_str(&text(&pod(Shape::Worker, Phase::Running).unwrap())).unwrap();
        let (job, pod) = (job.metadata, pod.metadata);
        let label = |name: &str| pod.labels.as_ref().and_then(|labels| labels.get(name).cloned());
        assert_eq!(job.uid, label("batch.kubernetes.io/controller-uid"));
        assert_eq!(job.labels.unwrap().get("levers9/worker").cloned(), label("levers9/worker"));
        assert!(label("levers9/worker").unwrap().parse::<levers9_wire::WorkerId>().is_ok());
        assert_eq!(job.namespace, pod.namespace);
    }

    #[test]
    fn managed_fields_name_what_is_there() {
        let owned = fields_of(&json!({ "a": 1, "list": [{ "name": "x", "b": {} }], "plain": [1, 2] }));
        let item = json!({ ".": {}, "f:name": {}, "f:b": {} });
        assert_eq!(owned, json!({ "f:a": {}, "f:list": { "k:{\"name\":\"x\"}": item }, "f:plain": {} }));
    }
}
