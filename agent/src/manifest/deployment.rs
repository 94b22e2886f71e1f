//! The agent's Deployment: one small pod that never listens, never two of
//! them, as a plain user who can write nowhere.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, EmptyDirVolumeSource, ExecAction, LocalObjectReference, NodeAffinity,
    NodeSelectorRequirement, NodeSelectorTerm, PodSecurityContext, PodSpec, PodTemplateSpec,
    PreferredSchedulingTerm, Probe, ResourceRequirements, SeccompProfile, SecretVolumeSource,
    SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use levers9_wire::valid;

use crate::probe;

use super::{AGENT, BadManifest, NAME_LABEL, Object, Parts, TOKEN_FOLDER, USER};

/// What nodes with cards are labelled with, by the plugin or the cloud.
const CARD_LABELS: [&str; 2] = ["nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"];
/// Where it leaves its signs of life.
const SIGNS_FOLDER: &str = "/run/levers9-signs";
/// How long the agent stays with a node that is gone, in seconds.
const GONE_SECONDS: i64 = 30;

pub(super) fn object(parts: &Parts) -> Result<Object, BadManifest> {
    let metadata = parts.inside(AGENT);
    let spec = DeploymentSpec {
        replicas: Some(1),
        revision_history_limit: Some(2),
        // It cannot be changed later, so it holds nothing that changes.
        selector: LabelSelector {
            match_labels: Some(BTreeMap::from([(NAME_LABEL.to_owned(), AGENT.to_owned())])),
            ..LabelSelector::default()
        },
        strategy: Some(DeploymentStrategy {
            type_: Some("Recreate".to_owned()),
            ..DeploymentStrategy::default()
        }),
        template: PodTemplateSpec {
            metadata: Some(ObjectMeta { labels: Some(parts.labels()), ..ObjectMeta::default() }),
            spec: Some(pod(parts)),
        },
        ..DeploymentSpec::default()
    };
    let deployment = Deployment { metadata, spec: Some(spec), ..Deployment::default() };
    Object::of(&deployment, &deployment.metadata)
}

fn pod(parts: &Parts) -> PodSpec {
    let pull = Some(parts.settings.pull_secret.clone()).filter(|name| !name.is_empty());
    PodSpec {
        service_account_name: Some(AGENT.to_owned()),
        automount_service_account_token: Some(true),
        enable_service_links: Some(false),
        image_pull_secrets: pull.map(|name| vec![LocalObjectReference { name }]),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            // Whom the token's file belongs to, so that its mode lets the agent read it.
            fs_group: Some(USER),
            seccomp_profile: Some(seccomp()),
            ..PodSecurityContext::default()
        }),
        affinity: Some(rather_without_cards()),
        tolerations: Some(vec![
            // A cluster may have no other nodes.
            Toleration {
                key: Some("nvidia.com/gpu".to_owned()),
                operator: Some("Exists".to_owned()),
                ..Toleration::default()
            },
            leaves_after("node.kubernetes.io/not-ready"),
            leaves_after("node.kubernetes.io/unreachable"),
        ]),
        containers: vec![container(parts)],
        volumes: Some(volumes()),
        ..PodSpec::default()
    }
}

fn volumes() -> Vec<Volume> {
    let token = SecretVolumeSource {
        secret_name: Some(AGENT.to_owned()),
        default_mode: Some(0o440),
        ..SecretVolumeSource::default()
    };
    let signs = EmptyDirVolumeSource {
        medium: Some("Memory".to_owned()),
        size_limit: Some(Quantity("1Mi".to_owned())),
    };
    vec![
        Volume { name: "token".to_owned(), secret: Some(token), ..Volume::default() },
        Volume { name: "signs".to_owned(), empty_dir: Some(signs), ..Volume::default() },
    ]
}

/// Asks the agent's own binary; see [`crate::probe`]. Three answers in a row count.
fn probe(question: &str) -> Probe {
    let words = ["levers9-agent", probe::WORD, question, "--signs", SIGNS_FOLDER];
    Probe {
        exec: Some(ExecAction { command: Some(words.map(str::to_owned).to_vec()) }),
        initial_delay_seconds: Some(10),
        period_seconds: Some(10),
        timeout_seconds: Some(5),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

fn container(parts: &Parts) -> Container {
    let amounts = |pairs: &[(&str, &str)]| {
        Some(
            pairs.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect(),
        )
    };
    Container {
        name: "agent".to_owned(),
        image: Some(parts.settings.worker_image.clone()),
        image_pull_policy: Some("Always".to_owned()),
        command: Some(vec!["levers9-agent".to_owned()]),
        args: Some(arguments(parts)),
        resources: Some(ResourceRequirements {
            requests: amounts(&[("cpu", "50m"), ("memory", "64Mi")]),
            limits: amounts(&[("memory", "256Mi")]),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            seccomp_profile: Some(seccomp()),
            ..SecurityContext::default()
        }),
        // So that the last lines of one that crashed are in its status.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        // A stuck core is restarted; a lost network is ridden out, and shown.
        liveness_probe: Some(probe("alive")),
        readiness_probe: Some(probe("ready")),
        volume_mounts: Some(vec![
            VolumeMount {
                name: "token".to_owned(),
                mount_path: TOKEN_FOLDER.to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            },
            VolumeMount {
                name: "signs".to_owned(),
                mount_path: SIGNS_FOLDER.to_owned(),
                ..VolumeMount::default()
            },
        ]),
        ..Container::default()
    }
}

/// Which nodes are lent, which images may be started and whom to dial: fixed
/// here, never by an order.
fn arguments(parts: &Parts) -> Vec<String> {
    let settings = &parts.settings;
    let mut arguments = Vec::new();
    let mut push = |name: &str, value: &str| arguments.extend([name.to_owned(), value.to_owned()]);
    push("--controlplane", &parts.address);
    push("--cluster", &parts.cluster.to_string());
    push("--namespace", &settings.namespace);
    for item in &parts.selector {
        push("--selector", item);
    }
    push("--image-repository", valid::repository(&settings.worker_image));
    push("--runtime", &parts.runtime);
    push("--signs", SIGNS_FOLDER);
    if !settings.flavor.is_empty() {
        push("--flavor", &settings.flavor);
    }
    if !settings.pull_secret.is_empty() {
        push("--pull-secret", &settings.pull_secret);
    }
    arguments
}

fn seccomp() -> SeccompProfile {
    SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }
}

/// It is better off on a node without cards, which comes and goes less.
fn rather_without_cards() -> Affinity {
    let lacks = |label: &&str| NodeSelectorRequirement {
        key: (*label).to_owned(),
        operator: "DoesNotExist".to_owned(),
        values: None,
    };
    let term = NodeSelectorTerm {
        match_expressions: Some(CARD_LABELS.iter().map(lacks).collect()),
        ..NodeSelectorTerm::default()
    };
    Affinity {
        node_affinity: Some(NodeAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![PreferredSchedulingTerm {
                weight: 100,
                preference: term,
            }]),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// Without this the pod would stay five minutes with a node that is powered off.
fn leaves_after(taint: &str) -> Toleration {
    Toleration {
        key: Some(taint.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        toleration_seconds: Some(GONE_SECONDS),
        ..Toleration::default()
    }
}
