//! The worker Job, from the agent's own template. An order fills in typed
//! fields; nothing of it can add a volume, a privilege or a service account.
//! Pure: the same order makes the same Job, under the same name.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, HostPathVolumeSource,
    LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec, ResourceRequirements, SeccompProfile,
    SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use levers9_wire::valid::Create;
use levers9_wire::{ClusterId, WorkerId, limits};

use crate::capacity::{CARD, CLUSTER_LABEL, Comparison, Terms, Toleration as Tolerated};
use crate::picture::own::{NODE_ANNOTATION, WORKER_LABEL};

/// Where a worker keeps its containers, in its pod.
const DATA: &str = "/var/lib/levers9/worker";
/// Whoever runs a worker that needs no rights: nobody in particular.
const USER: i64 = 65_532;
/// The least memory a worker is told to offer, in bytes.
pub(crate) const LEAST_MEMORY: u64 = 64 << 20;
/// How long a worker may take to end after SIGTERM, in seconds.
const GRACE: i64 = 30;
/// How long a finished Job stays for people to look at, in seconds.
const KEEP: i32 = 300;

/// Whose cloud the cluster is in, which decides the tolerations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Flavor {
    /// Google's.
    Gke,
    /// Amazon's.
    Eks,
    /// Microsoft's.
    Aks,
}

impl Flavor {
    /// As it is written.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Gke => "gke",
            Self::Eks => "eks",
            Self::Aks => "aks",
        }
    }
}

/// What workers run jobs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Runtime {
    /// Plain processes in an unprivileged pod.
    Process,
    /// Containers; the pod is privileged.
    Runc,
    /// Containers behind gVisor; the pod is privileged.
    Runsc,
}

impl Runtime {
    /// As it is written.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Runc => "runc",
            Self::Runsc => "runsc",
        }
    }
}

/// What all workers of an agent have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The cluster they belong to.
    pub cluster: ClusterId,
    /// The namespace they are created in.
    pub namespace: String,
    /// The cloud, if it is known.
    pub flavor: Option<Flavor>,
    /// What they run jobs with.
    pub runtime: Runtime,
    /// The Secret their image is pulled with.
    pub pull_secret: Option<String>,
    /// What they dial.
    pub controlplane: String,
}

impl Settings {
    /// The terms their capacity is counted on: what is tolerated here is what
    /// the pods tolerate.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms {
            tolerations: tolerated(self.flavor),
            ..Terms::new(&self.namespace, &self.cluster.to_string())
        }
    }
}

/// The name of a worker's Job: the same for every try.
#[must_use]
pub fn job_name(worker: WorkerId) -> String {
    format!("levers9-worker-{worker}")
}

/// The taints a worker tolerates: that of cards, and what the clouds put on
/// nodes with cards or on spot nodes by their own documentation.
fn tolerated(flavor: Option<Flavor>) -> Vec<Tolerated> {
    let equal = |key: &str, value: &str| Tolerated {
        key: key.to_owned(),
        operator: Comparison::Equal,
        value: value.to_owned(),
        effect: "NoSchedule".to_owned(),
    };
    let mut all =
        vec![Tolerated { key: CARD.to_owned(), operator: Comparison::Exists, ..Tolerated::default() }];
    match flavor {
        Some(Flavor::Gke) => all.push(equal("cloud.google.com/gke-spot", "true")),
        Some(Flavor::Aks) => {
            all.push(equal("sku", "gpu"));
            all.push(equal("kubernetes.azure.com/scalesetpriority", "spot"));
        }
        Some(Flavor::Eks) | None => {}
    }
    all
}

/// The Job of a worker.
#[must_use]
pub fn job(create: &Create, settings: &Settings) -> Job {
    let labels: BTreeMap<String, String> = [
        (CLUSTER_LABEL, settings.cluster.to_string()),
        (WORKER_LABEL, create.worker.to_string()),
        ("app.kubernetes.io/name", "levers9-worker".to_owned()),
        ("app.kubernetes.io/managed-by", "levers9-agent".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    let annotations = BTreeMap::from([(NODE_ANNOTATION.to_owned(), create.node.clone())]);
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(create.worker)),
            namespace: Some(settings.namespace.clone()),
            labels: Some(labels.clone()),
            annotations: Some(annotations.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            completions: Some(1),
            parallelism: Some(1),
            pod_replacement_policy: Some("Failed".to_owned()),
            ttl_seconds_after_finished: Some(KEEP),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    annotations: Some(annotations),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(create, settings)),
            },
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

fn pod(create: &Create, settings: &Settings) -> PodSpec {
    let room = Room::of(create, settings);
    let secret = |name: &String| vec![LocalObjectReference { name: name.clone() }];
    PodSpec {
        affinity: Some(pinned(&create.node)),
        automount_service_account_token: Some(false),
        containers: vec![container(create, settings, &room)],
        dns_policy: room.host_network.then(|| "ClusterFirstWithHostNet".to_owned()),
        enable_service_links: Some(false),
        host_network: Some(room.host_network),
        host_pid: Some(false),
        image_pull_secrets: settings.pull_secret.as_ref().map(secret),
        restart_policy: Some("Never".to_owned()),
        security_context: Some(room.pod_security),
        termination_grace_period_seconds: Some(GRACE),
        tolerations: Some(tolerated(settings.flavor).into_iter().map(toleration).collect()),
        volumes: Some(room.volumes),
        ..PodSpec::default()
    }
}

/// The node, by name and through the scheduler, which still looks at taints
/// and at what is free.
fn pinned(node: &str) -> Affinity {
    let name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![name]), ..NodeSelectorTerm::default() };
    let node_affinity = NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(NodeSelector {
            node_selector_terms: vec![term],
        }),
        ..NodeAffinity::default()
    };
    Affinity { node_affinity: Some(node_affinity), ..Affinity::default() }
}

fn toleration(tolerated: Tolerated) -> Toleration {
    let some = |text: String| (!text.is_empty()).then_some(text);
    let operator = match tolerated.operator {
        Comparison::Equal => "Equal",
        Comparison::Exists => "Exists",
    };
    Toleration {
        key: some(tolerated.key),
        operator: Some(operator.to_owned()),
        value: some(tolerated.value),
        effect: some(tolerated.effect),
        ..Toleration::default()
    }
}

fn container(create: &Create, settings: &Settings, room: &Room) -> Container {
    Container {
        name: "worker".to_owned(),
        image: Some(create.image.clone()),
        image_pull_policy: Some("Always".to_owned()),
        command: Some(vec!["levers9-worker".to_owned()]),
        args: Some(args(create, settings)),
        env: Some(env(create, settings)),
        resources: Some(resources(create)),
        security_context: Some(room.security.clone()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(room.mounts.clone()),
        ..Container::default()
    }
}

fn args(create: &Create, settings: &Settings) -> Vec<String> {
    let amounts = &create.amounts;
    let memory = amounts.memory_bytes.saturating_sub(limits::WORKER_MEMORY).max(LEAST_MEMORY);
    let mut args = Vec::new();
    if settings.runtime == Runtime::Process {
        args.push("--allow-unisolated".to_owned());
    }
    args.extend(["--cpu".to_owned(), format!("{}m", amounts.cpu_millis)]);
    args.extend(["--memory".to_owned(), format!("{}Ki", memory / 1024)]);
    if amounts.cards > 0 {
        args.extend(["--gpu-type".to_owned(), create.gpu_type.clone()]);
        args.extend(["--gpus".to_owned(), amounts.cards.to_string()]);
    }
    args.extend(["--data".to_owned(), DATA.to_owned(), "--exit-when-refused".to_owned()]);
    args
}

fn env(create: &Create, settings: &Settings) -> Vec<EnvVar> {
    // Kubernetes would replace $(NAME) in a value; a doubled $ stands for itself.
    let plain = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.replace('$', "$$")),
        ..EnvVar::default()
    };
    let field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: path.to_owned(), ..Default::default() }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    let mut env = vec![
        plain("LEVERS9_CONTROLPLANE", &settings.controlplane),
        plain("LEVERS9_WORKER_TOKEN", create.enrolment.expose()),
        field("LEVERS9_NODE", "spec.nodeName"),
    ];
    env.extend(create.env.0.iter().map(|(name, value)| plain(name, &String::from_utf8_lossy(value))));
    env
}

fn resources(create: &Create) -> ResourceRequirements {
    let amounts = &create.amounts;
    let memory = ("memory".to_owned(), Quantity(amounts.memory_bytes.to_string()));
    let mut limits = BTreeMap::from([memory]);
    if amounts.cards > 0 {
        limits.insert(CARD.to_owned(), Quantity(amounts.cards.to_string()));
    }
    let mut requests = limits.clone();
    requests.insert("cpu".to_owned(), Quantity(format!("{}m", amounts.cpu_millis)));
    ResourceRequirements { limits: Some(limits), requests: Some(requests), ..ResourceRequirements::default() }
}

/// What a worker's pod may touch.
struct Room {
    host_network: bool,
    pod_security: PodSecurityContext,
    security: SecurityContext,
    volumes: Vec<Volume>,
    mounts: Vec<VolumeMount>,
}

impl Room {
    fn of(create: &Create, settings: &Settings) -> Self {
        match settings.runtime {
            Runtime::Process => Self::unprivileged(),
            Runtime::Runc | Runtime::Runsc => Self::privileged(create, settings.flavor),
        }
    }

    /// What the Pod Security level `restricted` lets in, whatever was ordered.
    fn unprivileged() -> Self {
        let profile = SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() };
        let dropped = Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() };
        let empty = |name: &str| Volume {
            name: name.to_owned(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        };
        Self {
            host_network: false,
            pod_security: PodSecurityContext {
                fs_group: Some(USER),
                run_as_group: Some(USER),
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                seccomp_profile: Some(profile.clone()),
                ..PodSecurityContext::default()
            },
            security: SecurityContext {
                allow_privilege_escalation: Some(false),
                capabilities: Some(dropped),
                privileged: Some(false),
                read_only_root_filesystem: Some(true),
                run_as_group: Some(USER),
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                seccomp_profile: Some(profile),
                ..SecurityContext::default()
            },
            volumes: vec![empty("data"), empty("tmp")],
            mounts: vec![mount("data", DATA, false), mount("tmp", "/tmp", false)],
        }
    }

    /// What a worker needs to be a container runtime on its node.
    fn privileged(create: &Create, flavor: Option<Flavor>) -> Self {
        let mut paths = vec![
            ("levers9", "/var/lib/levers9", "/var/lib/levers9", "DirectoryOrCreate", false),
            ("dev", "/dev", "/dev", "Directory", false),
            ("cgroup", "/sys/fs/cgroup", "/sys/fs/cgroup", "Directory", false),
            ("devices", "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins", "", true),
            ("cdi-etc", "/etc/cdi", "/etc/cdi", "DirectoryOrCreate", true),
            ("cdi-run", "/var/run/cdi", "/var/run/cdi", "DirectoryOrCreate", true),
        ];
        if flavor == Some(Flavor::Gke) && create.amounts.cards > 0 {
            // Where GKE's own installer puts the driver, and where its images expect it.
            paths.push((
                "nvidia",
                "/home/kubernetes/bin/nvidia",
                "/usr/local/nvidia",
                "DirectoryOrCreate",
                true,
            ));
        }
        let volume = |&(name, host, _, kind, _): &(&str, &str, &str, &str, bool)| Volume {
            name: name.to_owned(),
            host_path: Some(HostPathVolumeSource { path: host.to_owned(), type_: Some(kind.to_owned()) }),
            ..Volume::default()
        };
        Self {
            host_network: create.host_network,
            pod_security: PodSecurityContext { run_as_user: Some(0), ..PodSecurityContext::default() },
            security: SecurityContext {
                privileged: Some(true),
                run_as_user: Some(0),
                ..SecurityContext::default()
            },
            volumes: paths.iter().map(volume).collect(),
            mounts: paths
                .iter()
                .map(|(name, _, inside, _, read_only)| mount(name, inside, *read_only))
                .collect(),
        }
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

#[cfg(test)]
mod tests;
