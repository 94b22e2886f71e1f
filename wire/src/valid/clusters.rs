//! What concerns attached clusters: what their agents report and are ordered,
//! and how somebody attaches one.

use super::{Env, Invalid, at_most, check_env, gpu_type, required_id};
use crate::id::{ClusterId, WorkerId};
use crate::token::Secret;
use crate::{limits, name, v1};

/// Environment variables that an order may set in a worker.
pub const WORKER_ENV: [&str; 1] = ["LEVERS9_LOG"];

/// What an agent says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// The cluster it was started for.
    pub cluster: ClusterId,
    /// The rest, printable.
    pub facts: v1::AgentFacts,
}

impl TryFrom<v1::AgentFacts> for Agent {
    type Error = Invalid;

    fn try_from(facts: v1::AgentFacts) -> Result<Self, Invalid> {
        Ok(Self {
            cluster: required_id("cluster", ClusterId::from_wire(&facts.cluster))?,
            facts: v1::AgentFacts {
                namespace: name::printable(&facts.namespace, limits::NAME),
                kubernetes: name::printable(&facts.kubernetes, 64),
                flavor: name::printable(&facts.flavor, 16),
                image_repository: name::printable(&facts.image_repository, limits::IMAGE),
                runtime: name::printable(&facts.runtime, 32),
                ..facts
            },
        })
    }
}

/// A report, checked: names are printable, nothing is longer than allowed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report(pub v1::NodeReport);

impl TryFrom<v1::NodeReport> for Report {
    type Error = Invalid;

    fn try_from(mut report: v1::NodeReport) -> Result<Self, Invalid> {
        at_most("the list of nodes", report.nodes.len(), limits::NODES)?;
        at_most("the list of worker Jobs", report.jobs.len(), limits::JOBS)?;
        report.problem = name::printable(&report.problem, limits::TEXT);
        for node in &mut report.nodes {
            node_name(&node.name)?;
            at_most("a node's uid", node.uid.len(), limits::NAME)?;
            at_most("the list of other resources", node.other.len(), limits::SELECTOR)?;
            node.uid = name::printable(&node.uid, limits::NAME);
            // A name no card can have is none.
            node.gpu_label = gpu_type(&node.gpu_label).unwrap_or_default();
            for other in &mut node.other {
                other.name = name::printable(&other.name, 316);
            }
        }
        report.jobs = report.jobs.into_iter().map(job).collect::<Result<_, _>>()?;
        Ok(Self(report))
    }
}

/// A worker Job, its texts printable.
///
/// # Errors
/// When it names no worker.
pub fn job(job: v1::WorkerJob) -> Result<v1::WorkerJob, Invalid> {
    required_id("worker", WorkerId::from_wire(&job.worker))?;
    Ok(v1::WorkerJob {
        node: name::printable(&job.node, limits::NODE_NAME),
        reason: name::printable(&job.reason, 1024),
        ..job
    })
}

/// A node's name: what Kubernetes takes for one.
///
/// # Errors
/// When it is anything else.
pub fn node_name(text: &str) -> Result<(), Invalid> {
    dns_name("node name", text, limits::NODE_NAME)
}

/// A DNS subdomain of at most `max` bytes, as Kubernetes names most objects.
fn dns_name(what: &'static str, text: &str, max: usize) -> Result<(), Invalid> {
    at_most(what, text.len(), max)?;
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    if bytes.iter().all(|b| inner(*b)) && end(bytes.first()) && end(bytes.last()) {
        Ok(())
    } else {
        let value = name::printable(text, 80);
        Err(Invalid::Value { what, value, rule: "a-z, 0-9, '-' and '.', beginning and ending in a-z or 0-9" })
    }
}

/// A worker to start.
#[derive(Debug, Clone, PartialEq)]
pub struct Create {
    /// Which.
    pub worker: WorkerId,
    /// Where it is to be created.
    pub namespace: String,
    /// The node it is pinned to.
    pub node: String,
    /// Its image.
    pub image: String,
    /// What it takes of the node.
    pub amounts: v1::NodeAmounts,
    /// What it calls its cards.
    pub gpu_type: String,
    /// More of its environment; names of [`WORKER_ENV`] only.
    pub env: Env,
    /// What it enrols with.
    pub enrolment: Secret,
    /// What it runs jobs with.
    pub runtime: String,
    /// Whether it shares the node's network.
    pub host_network: bool,
}

impl TryFrom<v1::CreateWorker> for Create {
    type Error = Invalid;

    fn try_from(order: v1::CreateWorker) -> Result<Self, Invalid> {
        node_name(&order.node)?;
        dns_name("namespace", &order.namespace, limits::NAME)?;
        at_most("the enrolment token", order.enrolment_token.len(), limits::TOKEN)?;
        let env = check_env(order.env)?;
        if let Some((name, _)) = env.0.iter().find(|(name, _)| !WORKER_ENV.contains(&name.as_str())) {
            let value = name::printable(name, 40);
            return Err(Invalid::Value { what: "environment variable", value, rule: "only LEVERS9_LOG" });
        }
        Ok(Self {
            worker: required_id("worker", WorkerId::from_wire(&order.worker))?,
            namespace: order.namespace,
            node: order.node,
            image: image(order.image)?,
            amounts: order.amounts.unwrap_or_default(),
            gpu_type: gpu_type(&order.gpu_type)?,
            env,
            enrolment: Secret::new(order.enrolment_token),
            runtime: runtime(order.runtime)?,
            host_network: order.host_network,
        })
    }
}

/// The name of a runtime.
///
/// # Errors
/// When there is none of that name.
pub fn runtime(text: String) -> Result<String, Invalid> {
    if ["process", "runc", "runsc"].contains(&text.as_str()) {
        Ok(text)
    } else {
        let value = name::printable(&text, 40);
        Err(Invalid::Value { what: "runtime", value, rule: "process, runc or runsc" })
    }
}

/// An image's reference.
///
/// # Errors
/// When it cannot be one.
pub fn image(text: String) -> Result<String, Invalid> {
    at_most("the image", text.len(), limits::IMAGE)?;
    let good = |b: u8| b.is_ascii_alphanumeric() || b"./:@_-".contains(&b);
    // A URL is none.
    let whole = text.split(['/', ':', '@']).all(|part| !part.is_empty());
    if whole && text.bytes().all(good) && text.as_bytes()[0].is_ascii_alphanumeric() {
        Ok(text)
    } else {
        let value = name::printable(&text, 80);
        Err(Invalid::Value { what: "image", value, rule: "registry/repository:tag or …@sha256:digest" })
    }
}

/// The repository of an image's reference: what stands before tag and digest.
#[must_use]
pub fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    match image.rsplit_once(':') {
        // A colon before the last slash is a registry's port.
        Some((before, tag)) if !tag.contains('/') => before,
        _ => image,
    }
}

/// Settings of a cluster, as somebody attaches it.
///
/// # Errors
/// With the first that makes no sense.
pub fn cluster_settings(settings: v1::ClusterSettings) -> Result<v1::ClusterSettings, Invalid> {
    let card = gpu_type(&settings.gpu_type)?;
    if card.is_empty() {
        return Err(Invalid::Missing("the type of the cluster's GPUs"));
    }
    let namespace =
        if settings.namespace.is_empty() { "levers9".to_owned() } else { settings.namespace.clone() };
    dns_name("namespace", &namespace, limits::NAME)?;
    if namespace.contains('.') {
        return Err(Invalid::Value { what: "namespace", value: namespace, rule: "no '.'" });
    }
    if !settings.flavor.is_empty() && !["gke", "eks", "aks"].contains(&settings.flavor.as_str()) {
        let value = name::printable(&settings.flavor, 40);
        return Err(Invalid::Value { what: "flavor", value, rule: "gke, eks or aks" });
    }
    if !settings.pull_secret.is_empty() {
        dns_name("pull secret", &settings.pull_secret, limits::NODE_NAME)?;
    }
    if !settings.worker_image.is_empty() {
        image(settings.worker_image.clone())?;
    }
    at_most("the selector", settings.selector.len(), limits::SELECTOR)?;
    settings.selector.iter().try_for_each(requirement)?;
    Ok(v1::ClusterSettings { gpu_type: card, namespace, ..settings })
}

/// A selector's item has the form of one. What a label may be is checked where
/// selectors are read.
fn requirement(item: &v1::LabelRequirement) -> Result<(), Invalid> {
    at_most("a label's key", item.key.len(), 317)?;
    at_most("the values of a label", item.values.len(), limits::SELECTOR)?;
    for value in &item.values {
        at_most("a label's value", value.len(), limits::NAME)?;
    }
    let counts = match item.operator.as_str() {
        "In" => !item.values.is_empty(),
        "Exists" => item.values.is_empty(),
        _ => false,
    };
    if counts && !item.key.is_empty() && item.key.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(())
    } else {
        let value = name::printable(&format!("{} {}", item.key, item.operator), 80);
        Err(Invalid::Value { what: "selector item", value, rule: "a key, In with values or Exists without" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_what_stands_before_tag_and_digest() {
        for (image, of) in [
            ("r.io/a/b:1", "r.io/a/b"),
            ("localhost:5000/b", "localhost:5000/b"),
            ("localhost:5000/b:2@sha256:00", "localhost:5000/b"),
            ("b", "b"),
        ] {
            assert_eq!(repository(image), of);
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_with_the_value() {
        let good = v1::ClusterSettings { gpu_type: "L40s".into(), ..v1::ClusterSettings::default() };
        let settled = cluster_settings(good.clone()).unwrap();
        assert_eq!((settled.gpu_type.as_str(), settled.namespace.as_str()), ("L40S", "levers9"));
        let item = |key: &str, operator: &str, values: &[&str]| v1::LabelRequirement {
            key: key.into(),
            operator: operator.into(),
            values: values.iter().map(|v| (*v).to_owned()).collect(),
        };
        let with = |change: fn(&mut v1::ClusterSettings)| {
            let mut settings = good.clone();
            change(&mut settings);
            cluster_settings(settings).unwrap_err().to_string()
        };
        assert!(with(|s| s.gpu_type.clear()).contains("missing"));
        assert!(with(|s| s.namespace = "Kube System".into()).contains("Kube System"));
        assert!(with(|s| s.flavor = "openshift".into()).contains("openshift"));
        assert!(with(|s| s.worker_image = "a b".into()).contains("a b"));
        assert!(with(|s| s.worker_image = "https://r.io/a".into()).contains("https://r.io/a"));
        for bad in [item("", "Exists", &[]), item("a", "NotIn", &["b"]), item("a", "In", &[])] {
            assert!(requirement(&bad).is_err(), "{bad:?}");
        }
    }
}
