//! The requests there are, one function each.

use std::collections::BTreeMap;

use ::kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, LogParams, ObjectMeta, PartialObjectMeta,
    Patch, PatchParams, PostParams, Preconditions,
};
use futures_util::future::try_join_all;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use levers9_agent::capacity::CLUSTER_LABEL;
use levers9_agent::manifest::{AGENT, NAME_LABEL, OBSERVE, Object, TOKEN_KEY};
use levers9_wire::token;
use serde_json::json;

use super::Kube;
use super::findings::Seen;
use super::rights::Need;
use super::survey::NodeFacts;
use crate::error::Error;

/// Who applies: what others changed of the objects is set back.
const MANAGER: &str = "levers9";
/// Objects in one page of a list.
const PAGE: u32 = 500;
/// More pods of one agent are not looked at; there is never more than one alive.
const AGENT_PODS: u32 = 50;
/// How much of the end of an agent's log is read.
const LOG_LINES: i64 = 20;
const LOG_BYTES: i64 = 16 * 1024;

impl Kube {
    /// Every node's name and labels.
    pub(crate) async fn nodes(&self) -> Result<Vec<NodeFacts>, Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let mut nodes = Vec::new();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = self.ask("list nodes", api.list_metadata(&page)).await?;
            nodes.extend(list.items.into_iter().map(|node| NodeFacts {
                name: node.metadata.name.unwrap_or_default(),
                labels: node.metadata.labels.unwrap_or_default(),
            }));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = ListParams::default().limit(PAGE).continue_token(&token),
                None => return Ok(nodes),
            }
        }
    }

    /// Labels of a namespace, when it is there.
    pub(crate) async fn namespace_labels(
        &self,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, Error> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let what = format!("get namespace {name:?}");
        let found = self.ask(&what, api.get_metadata_opt(name)).await?;
        Ok(found.map(|found| found.metadata.labels.unwrap_or_default()))
    }

    /// Of several rights, the first that is missing.
    pub(crate) async fn first_missing(&self, needs: &[Need]) -> Result<Option<Need>, Error> {
        let allowed = try_join_all(needs.iter().map(|need| self.allowed(need))).await?;
        Ok(needs.iter().zip(allowed).find(|(_, allowed)| !allowed).map(|(need, _)| need.clone()))
    }

    async fn allowed(&self, need: &Need) -> Result<bool, Error> {
        let owned = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: owned(need.verb),
                    group: owned(need.group),
                    resource: owned(need.resource),
                    namespace: need.namespace.clone(),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let params = PostParams::default();
        let answer = self.ask("be asked what it may do", api.create(&params, &review)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    fn of(&self, object: &Object) -> Api<DynamicObject> {
        let slash = if object.group.is_empty() { "" } else { "/" };
        let resource = ApiResource {
            group: object.group.to_owned(),
            version: object.version.to_owned(),
            api_version: format!("{}{slash}{}", object.group, object.version),
            kind: object.kind.to_owned(),
            plural: object.plural.to_owned(),
        };
        match &object.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Metadata of an object, when it is there. Never what is in it.
    pub(crate) async fn metadata(&self, object: &Object) -> Result<Option<ObjectMeta>, Error> {
        let api = self.of(object);
        let what = format!("get {}", object.title());
        let found: Option<PartialObjectMeta<DynamicObject>> =
            self.ask(&what, api.get_metadata_opt(&object.name)).await?;
        Ok(found.map(|found| found.metadata))
    }

    /// Makes an object as it is given, whatever it was before.
    pub(crate) async fn apply(&self, object: &Object) -> Result<(), Error> {
        let params = PatchParams::apply(MANAGER).force();
        let api = self.of(object);
        let patch = Patch::Apply(&object.value);
        let what = format!("apply {}", object.title());
        self.ask(&what, api.patch_metadata(&object.name, &params, &patch)).await.map(drop)
    }

    /// Deletes this very object and, in the background, what it owns. One that
    /// is gone already is fine.
    pub(crate) async fn delete(&self, object: &Object, meta: &ObjectMeta) -> Result<(), Error> {
        let api = self.of(object);
        let params = this_very(meta);
        let what = format!("delete {}", object.title());
        self.ask(&what, gone_is_fine(async { api.delete(&object.name, &params).await.map(drop) })).await
    }

    /// The worker Jobs of a cluster.
    pub(crate) async fn jobs(&self, namespace: &str, cluster: &str) -> Result<Vec<ObjectMeta>, Error> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), namespace);
        let selected = ListParams::default().labels(&format!("{CLUSTER_LABEL}={cluster}")).limit(PAGE);
        let what = format!("list jobs in namespace {namespace:?}");
        let (mut jobs, mut page) = (Vec::new(), selected.clone());
        loop {
            let list = self.ask(&what, api.list_metadata(&page)).await?;
            jobs.extend(list.items.into_iter().map(|job| job.metadata));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = selected.clone().continue_token(&token),
                None => return Ok(jobs),
            }
        }
    }

    /// Deletes a Job and, in the background, its pod.
    pub(crate) async fn delete_job(&self, namespace: &str, job: &ObjectMeta) -> Result<(), Error> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), namespace);
        let name = job.name.as_deref().unwrap_or_default();
        let params = this_very(job);
        let what = format!("delete job {namespace}/{name}");
        self.ask(&what, gone_is_fine(async { api.delete(name, &params).await.map(drop) })).await
    }

    /// How many bindings refer to the role with which agents observe.
    pub(crate) async fn observers(&self) -> Result<usize, Error> {
        let api: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        let list = self.ask("list clusterrolebindings", api.list(&ListParams::default())).await?;
        let refers = |binding: &&ClusterRoleBinding| {
            binding.role_ref.kind == "ClusterRole" && binding.role_ref.name == OBSERVE
        };
        Ok(list.items.iter().filter(refers).count())
    }

    /// Puts a new token into the agent's Secret.
    pub(crate) async fn put_token(&self, namespace: &str, token: &token::Secret) -> Result<(), Error> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({ "stringData": { TOKEN_KEY: token.expose() } }));
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let what = format!("change Secret {namespace}/{AGENT}");
        self.ask(&what, api.patch_metadata(AGENT, &params, &patch)).await.map(drop)
    }

    /// What there is of an agent's Deployment and pods.
    pub(crate) async fn look_at_agent(&self, namespace: &str) -> Result<Seen, Error> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let what = format!("get Deployment {namespace}/{AGENT}");
        let deployment = self.ask(&what, deployments.get_opt(AGENT)).await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let params = ListParams::default().labels(&format!("{NAME_LABEL}={AGENT}")).limit(AGENT_PODS);
        let what = format!("list pods in namespace {namespace:?}");
        let pods = self.ask(&what, pods.list(&params)).await?.items;
        Ok(Seen { deployment, pods, log: String::new() })
    }

    /// The end of the log of an agent's pod. `None` where it is not to be had:
    /// it takes a right of its own, and a node that can be reached.
    pub(crate) async fn end_of_log(&self, namespace: &str, pod: &str) -> Option<String> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let params =
            LogParams { tail_lines: Some(LOG_LINES), limit_bytes: Some(LOG_BYTES), ..LogParams::default() };
        self.ask("read the log of its agent", api.logs(pod, &params)).await.ok()
    }
}

fn this_very(meta: &ObjectMeta) -> DeleteParams {
    let uid = meta.uid.clone();
    DeleteParams::background().preconditions(Preconditions { uid, resource_version: None })
}

async fn gone_is_fine(
    deleting: impl Future<Output = Result<(), ::kube::Error>>,
) -> Result<(), ::kube::Error> {
    match deleting.await {
        Err(::kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}
