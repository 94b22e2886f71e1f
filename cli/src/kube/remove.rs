//! Taking an agent out of a cluster again: what carries the cluster's id, and
//! nothing else. The namespace stays, it may hold what others put there.

use ::kube::api::ObjectMeta;
use levers9_agent::capacity::CLUSTER_LABEL;
use levers9_agent::manifest::{Object, objects, observe_binding};
use levers9_wire::token::Secret;
use levers9_wire::{ClusterId, v1};

use super::Kube;
use crate::error::Error;

/// What was removed, and what was not.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Objects that are gone now.
    pub(crate) gone: Vec<String>,
    /// Objects that could not be removed, and why.
    pub(crate) failed: Vec<Error>,
}

impl Removed {
    fn note(&mut self, title: String, result: Result<(), Error>) {
        match result {
            Ok(()) => self.gone.push(title),
            Err(error) => self.failed.push(error),
        }
    }
}

/// The id of a manifest's cluster as labels carry it, and its namespace.
pub(crate) fn whose(manifest: &v1::ClusterManifest) -> (String, String) {
    let id = ClusterId::from_wire(&manifest.cluster).ok().flatten();
    let namespace = manifest.settings.as_ref().map(|settings| settings.namespace.clone());
    (id.map(|id| id.to_string()).unwrap_or_default(), namespace.unwrap_or_default())
}

impl Kube {
    /// Removes a cluster's agent and its worker Jobs, as far as they are here.
    ///
    /// # Errors
    /// When the manifest does not say what there is to remove.
    pub(crate) async fn remove(&self, manifest: &v1::ClusterManifest) -> Result<Removed, Error> {
        let (id, namespace) = whose(manifest);
        let mut removed = Removed::default();
        // Any token will do: the Secret is only addressed.
        let all = objects(manifest, Some(&Secret::new("none")))
            .map_err(|problem| Error::failed("it is not known what the agent is made of").because(problem))?;
        // The last one applied first: nothing starts a Job once the agent is gone.
        for object in all.iter().rev().filter(|object| object.kind != "Namespace") {
            match self.doomed(object, &id).await {
                Ok(Some(meta)) => removed.note(object.title(), self.delete(object, &meta).await),
                Ok(None) => {}
                Err(error) => removed.failed.push(error),
            }
            if object.kind == "Deployment" {
                self.remove_jobs(&namespace, &id, &mut removed).await;
            }
        }
        Ok(removed)
    }

    /// The metadata of an object that is to be removed; `None` for one that
    /// stays or is gone.
    async fn doomed(&self, object: &Object, id: &str) -> Result<Option<ObjectMeta>, Error> {
        let Some(meta) = self.metadata(object).await? else { return Ok(None) };
        let observers = if object.kind == "ClusterRole" { self.observers().await? } else { 0 };
        Ok(goes(object.kind, &meta, id, observers).then_some(meta))
    }

    async fn remove_jobs(&self, namespace: &str, id: &str, removed: &mut Removed) {
        let jobs = match self.jobs(namespace, id).await {
            Ok(jobs) => jobs,
            Err(error) => return removed.failed.push(error),
        };
        for job in jobs {
            let title = format!("Job {namespace}/{}", job.name.as_deref().unwrap_or_default());
            removed.note(title, self.delete_job(namespace, &job).await);
        }
    }
}

/// Whether an object goes with a cluster. The role all agents observe with
/// goes after the last binding to it, everything else when it carries the
/// cluster's id, and the namespace never.
fn goes(kind: &str, meta: &ObjectMeta, id: &str, observers: usize) -> bool {
    let owner = meta.labels.as_ref().and_then(|labels| labels.get(CLUSTER_LABEL));
    match (kind, owner) {
        ("Namespace", _) | (_, None) => false,
        ("ClusterRole", Some(_)) => observers == 0,
        (_, Some(owner)) => owner == id,
    }
}

/// How to remove the same without levers9, line by line.
pub(crate) fn by_hand(manifest: &v1::ClusterManifest) -> [String; 2] {
    let (id, namespace) = whose(manifest);
    let kinds = "deployments,jobs,secrets,rolebindings,roles,serviceaccounts";
    [
        format!("kubectl -n {namespace} delete {kinds} -l {CLUSTER_LABEL}={id}"),
        format!("kubectl delete clusterrolebinding {}", observe_binding(&namespace)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";

    fn of(owner: Option<&str>) -> ObjectMeta {
        let labels = owner.map(|owner| [(CLUSTER_LABEL.to_owned(), owner.to_owned())].into());
        ObjectMeta { labels, ..ObjectMeta::default() }
    }

    #[test]
    fn only_what_carries_the_clusters_id_goes() {
        for kind in ["Deployment", "Secret", "ServiceAccount", "Role", "RoleBinding", "ClusterRoleBinding"] {
            assert!(goes(kind, &of(Some(ID)), ID, 9), "{kind}");
            assert!(!goes(kind, &of(Some("another")), ID, 0), "{kind}");
            assert!(!goes(kind, &of(None), ID, 0), "{kind}");
        }
        assert!(!goes("Namespace", &of(Some(ID)), ID, 0));
    }

    #[test]
    fn the_shared_role_goes_after_its_last_binding_whoever_applied_it() {
        assert!(!goes("ClusterRole", &of(Some(ID)), ID, 1));
        assert!(goes("ClusterRole", &of(Some(ID)), ID, 0));
        assert!(goes("ClusterRole", &of(Some("another")), ID, 0));
        assert!(!goes("ClusterRole", &of(None), ID, 0));
    }

    #[test]
    fn by_hand_it_goes_by_the_same_label() {
        let cluster = ID.parse::<ClusterId>().unwrap().to_wire();
        let settings = v1::ClusterSettings { namespace: "gpus".to_owned(), ..v1::ClusterSettings::default() };
        let manifest =
            v1::ClusterManifest { cluster, settings: Some(settings), ..v1::ClusterManifest::default() };
        let [inside, beside] = by_hand(&manifest);
        assert!(inside.starts_with("kubectl -n gpus delete deployments,jobs,"), "{inside}");
        assert!(inside.ends_with(&format!(" -l {CLUSTER_LABEL}={ID}")), "{inside}");
        assert_eq!(beside, "kubectl delete clusterrolebinding levers9-agent-observe-gpus");
    }
}
