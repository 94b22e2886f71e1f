//! What of the agent is in its Kubernetes cluster: the exact objects, from the
//! settings of an attached cluster.
//!
//! The join command applies them or prints them as YAML, the dashboard and
//! `levers9 cluster manifest` show them without the token. This module is a
//! plain function of its arguments; it talks to no API server. What the agent
//! may do is written here once, in [`rbac`], and nowhere else.

mod deployment;
pub mod rbac;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ByteString, Resource};
use levers9_wire::valid::{self, Invalid};
use levers9_wire::{ClusterId, token, v1};
use serde::Serialize;
use serde_json::Value;

use crate::capacity::CLUSTER_LABEL;
use crate::selector::{BadSelector, Operator, Requirement};

/// The name of the Deployment, the ServiceAccount and the Secret.
pub const AGENT: &str = "levers9-agent";
/// The ClusterRole with which agents see nodes and pods.
pub const OBSERVE: &str = "levers9-agent-observe";
/// The Role with which an agent starts and stops worker Jobs.
pub const LAUNCH: &str = "levers9-agent-launch";
/// The key of the Secret under which the cluster's token is.
pub const TOKEN_KEY: &str = "token";
/// Where the Secret is mounted; the token is the file `token` in it.
pub const TOKEN_FOLDER: &str = "/var/run/levers9";
/// The label of a namespace that says which pods are let in.
pub const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";
/// The label that agents' pods are known by.
pub const NAME_LABEL: &str = "app.kubernetes.io/name";
/// The user and group the agent runs as.
pub const USER: i64 = 65532;

/// Why there is no manifest.
#[derive(Debug, thiserror::Error)]
pub enum BadManifest {
    /// Something every manifest is made of is not there.
    #[error("the cluster's manifest lacks {0}")]
    Missing(&'static str),
    /// A value is not allowed.
    #[error("the cluster's manifest cannot be made")]
    Invalid(#[from] Invalid),
    /// The selector makes no sense. It is never left out instead.
    #[error("the cluster's selector cannot be used")]
    Selector(#[from] BadSelector),
    /// Something cannot be written down.
    #[error("the cluster's manifest cannot be written")]
    Json(#[from] serde_json::Error),
    /// The same, as YAML.
    #[error("the cluster's manifest cannot be written as YAML")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// One object, with what is needed to address it at an API server.
#[derive(Clone, PartialEq)]
pub struct Object {
    /// Its API group; empty for the core one.
    pub group: &'static str,
    /// The version of the group.
    pub version: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// What its kind is called in paths and rules.
    pub plural: &'static str,
    /// Its namespace, unless it stands beside namespaces.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// The whole object.
    pub value: Value,
}

/// Without the object: it may hold the token.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.title())
    }
}

impl Object {
    fn of<T: Resource + Serialize>(object: &T, meta: &ObjectMeta) -> Result<Self, BadManifest> {
        Ok(Self {
            group: T::GROUP,
            version: T::VERSION,
            kind: T::KIND,
            plural: T::URL_PATH_SEGMENT,
            namespace: meta.namespace.clone(),
            name: meta.name.clone().unwrap_or_default(),
            value: serde_json::to_value(object)?,
        })
    }

    /// For people: `Deployment levers9/levers9-agent`.
    #[must_use]
    pub fn title(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

/// A manifest's settings, checked: what the objects are made of.
struct Parts {
    cluster: ClusterId,
    settings: v1::ClusterSettings,
    selector: Vec<String>,
    address: String,
    runtime: String,
}

impl Parts {
    fn of(manifest: &v1::ClusterManifest) -> Result<Self, BadManifest> {
        let cluster = ClusterId::from_wire(&manifest.cluster).ok().flatten();
        let settings = manifest.settings.clone().ok_or(BadManifest::Missing("its settings"))?;
        let settings = valid::cluster_settings(settings)?;
        if settings.worker_image.is_empty() {
            return Err(BadManifest::Missing("the worker image"));
        }
        if manifest.address.is_empty() {
            return Err(BadManifest::Missing("the controlplane's address"));
        }
        Ok(Self {
            cluster: cluster.ok_or(BadManifest::Missing("the cluster's id"))?,
            selector: selector_items(&settings.selector)?,
            settings,
            address: manifest.address.clone(),
            runtime: valid::runtime(manifest.runtime.clone())?,
        })
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let pairs = [
            (CLUSTER_LABEL, self.cluster.to_string()),
            ("app.kubernetes.io/managed-by", "levers9".to_owned()),
            (NAME_LABEL, AGENT.to_owned()),
        ];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Metadata of an object in the agent's namespace.
    fn inside(&self, name: &str) -> ObjectMeta {
        ObjectMeta { namespace: Some(self.settings.namespace.clone()), ..self.beside(name) }
    }

    /// Metadata of an object of the whole cluster.
    fn beside(&self, name: &str) -> ObjectMeta {
        ObjectMeta { name: Some(name.to_owned()), labels: Some(self.labels()), ..ObjectMeta::default() }
    }
}

/// The items of a selector as they are typed.
///
/// # Errors
/// With the first that no node label can fulfil. Nothing is ever left out: a
/// shorter selector lends more nodes.
fn selector_items(selector: &[v1::LabelRequirement]) -> Result<Vec<String>, BadSelector> {
    let item = |item: &v1::LabelRequirement| {
        let operator = match item.operator.as_str() {
            "In" => Operator::In,
            "Exists" => Operator::Exists,
            _ => return Err(BadSelector::Form(format!("{} {}", item.key, item.operator))),
        };
        let values: Vec<&str> = item.values.iter().map(String::as_str).collect();
        Ok(Requirement::new(&item.key, operator, &values)?.to_string())
    };
    selector.iter().map(item).collect()
}

/// What a namespace has to let in for workers of a runtime.
#[must_use]
pub fn pod_security(runtime: &str) -> &'static str {
    // The agent's pod, and workers that run plain processes, are even `restricted`.
    if runtime == "process" { "baseline" } else { "privileged" }
}

/// The name of the binding that lets the agent of one namespace observe.
#[must_use]
pub fn observe_binding(namespace: &str) -> String {
    format!("{OBSERVE}-{namespace}")
}

/// The objects of a cluster's agent, in the order they are applied in: the
/// namespace first, the Deployment last. Without a token there is no Secret
/// among them.
///
/// # Errors
/// When the settings lack something or make no sense.
pub fn objects(
    manifest: &v1::ClusterManifest,
    token: Option<&token::Secret>,
) -> Result<Vec<Object>, BadManifest> {
    let parts = Parts::of(manifest)?;
    let mut objects = vec![namespace(&parts)?, service_account(&parts)?];
    objects.extend(rbac::objects(&parts)?);
    if let Some(token) = token {
        objects.push(secret(&parts, token)?);
    }
    objects.push(deployment::object(&parts)?);
    Ok(objects)
}

/// Objects as one YAML text that `kubectl apply -f -` takes.
///
/// # Errors
/// When they cannot be written.
pub fn yaml(objects: &[Object]) -> Result<String, BadManifest> {
    let values: Vec<&Value> = objects.iter().map(|object| &object.value).collect();
    // Quoted so that readers of YAML 1.1, as kubectl is, take every text for one.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false, yaml_12: false };
    Ok(serde_saphyr::to_string_multiple_with_options(&values, options)?)
}

fn namespace(parts: &Parts) -> Result<Object, BadManifest> {
    let mut meta = parts.beside(&parts.settings.namespace);
    if let Some(labels) = &mut meta.labels {
        labels.insert(POD_SECURITY.to_owned(), pod_security(&parts.runtime).to_owned());
        // It is more than the agent's.
        labels.remove(NAME_LABEL);
    }
    Object::of(&Namespace { metadata: meta.clone(), ..Namespace::default() }, &meta)
}

/// Its credential is issued and rotated by Kubernetes. Only a pod that asks
/// for it, as the agent's does, has it mounted.
fn service_account(parts: &Parts) -> Result<Object, BadManifest> {
    let meta = parts.inside(AGENT);
    let account = ServiceAccount {
        automount_service_account_token: Some(false),
        metadata: meta.clone(),
        ..ServiceAccount::default()
    };
    Object::of(&account, &meta)
}

fn secret(parts: &Parts, token: &token::Secret) -> Result<Object, BadManifest> {
    let meta = parts.inside(AGENT);
    let data = BTreeMap::from([(TOKEN_KEY.to_owned(), ByteString(token.expose().as_bytes().to_vec()))]);
    let secret = Secret {
        data: Some(data),
        metadata: meta.clone(),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    };
    Object::of(&secret, &meta)
}
