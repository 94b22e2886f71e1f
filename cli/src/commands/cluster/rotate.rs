//! `levers9 cluster rotate-token`: a new token for a cluster's agent, put into
//! its Secret. Both tokens hold until the agent has come with the new one.
//!
//! That the Secret can be changed is made sure of before there is a new token.

use std::time::Duration;

use levers9_agent::capacity::CLUSTER_LABEL;
use levers9_agent::manifest::{AGENT, Object, TOKEN_KEY};
use levers9_wire::quantity::show_duration;
use levers9_wire::token::Secret;
use levers9_wire::v1::{self, call_open::Request};
use serde::Serialize;
use serde_json::json;

use super::{expect_answer, render, required};
use crate::args::Format;
use crate::client::{CONNECT, Client, Patience, block_on};
use crate::contexts::shell_quoted;
use crate::error::Error;
use crate::exit;
use crate::files;
use crate::kube::remove::whose;
use crate::kube::{Kube, rights};
use crate::printer::Printer;
use crate::settings::{RotateSettings, Target};
use crate::view::id_text;

/// What scripts are told. Never the token.
#[derive(Debug, Serialize)]
struct RotateView {
    /// The cluster's id.
    cluster: String,
    /// The agent's namespace.
    namespace: String,
    /// Until when the token before is good at most.
    old_until_unix_ms: u64,
}

pub(super) fn run(target: &Target, rotation: &RotateSettings, printer: &mut Printer) -> Result<u8, Error> {
    block_on(async {
        let client = Client::connect(target).await?;
        let result = Box::pin(rotate(&client, rotation, printer)).await;
        client.close().await;
        result
    })
}

async fn rotate(client: &Client, rotation: &RotateSettings, printer: &mut Printer) -> Result<u8, Error> {
    let cluster = &rotation.cluster;
    let request = Request::ClusterShow(v1::ClusterShowRequest { cluster: cluster.clone() });
    let shown = client.call(request, Patience::Within(CONNECT)).await?;
    let manifest = required(expect_answer!(shown, ClusterShow)?.manifest)?;
    let place = reach(rotation, manifest).await.map_err(|problem| {
        let hint = problem.hint_text().unwrap_or_default().to_owned();
        Error::failed("nothing was changed: the new token could not be put where the agent reads it")
            .because(problem.chain())
            .hint(hint)
    })?;
    let request = Request::ClusterRotateToken(v1::ClusterRotateTokenRequest { cluster: cluster.clone() });
    let answer = client.call(request, Patience::Within(CONNECT)).await?;
    let answer = expect_answer!(answer, ClusterRotateToken)?;
    let (token, namespace) = (Secret::new(answer.token), answer.namespace);
    let left = answer.old_until_unix_ms.saturating_sub(levers9_wire::clock::unix_millis());
    let left = show_duration(Duration::from_secs(left / 1000));
    if let Err(problem) = place.put(&token).await {
        return Err(by_hand(rotation, &place, &token, &left, &problem));
    }
    printer.note(&format!("the new token of cluster {cluster:?} is in Secret {namespace}/{AGENT}"));
    printer.note(&format!(
        "its agent reads it when it connects next; until then, and for {left} at most, the old one holds as well"
    ));
    if rotation.format == Format::Json {
        let cluster = id_text(&answer.cluster);
        printer.json(&RotateView { cluster, namespace, old_until_unix_ms: answer.old_until_unix_ms })?;
    }
    Ok(exit::DONE)
}

/// Where the new token goes.
struct Place {
    kube: Kube,
    manifest: v1::ClusterManifest,
    /// Whether the Secret is there; otherwise it is made anew.
    there: bool,
}

impl Place {
    async fn put(&self, token: &Secret) -> Result<(), Error> {
        if self.there {
            let (_, namespace) = whose(&self.manifest);
            return self.kube.put_token(&namespace, token).await;
        }
        let objects = render(&self.manifest, Some(token))?;
        match objects.iter().find(|object| object.kind == "Secret") {
            Some(secret) => self.kube.apply(secret).await,
            None => Ok(()),
        }
    }
}

/// Finds the agent's Secret, and makes sure that it may be changed.
async fn reach(rotation: &RotateSettings, manifest: v1::ClusterManifest) -> Result<Place, Error> {
    let (kube, _) = Kube::connect(rotation.kube_context.as_deref()).await?;
    let (id, namespace) = whose(&manifest);
    let objects = render(&manifest, Some(&Secret::new("none")))?;
    let there = match owner_of(&kube, &objects, "Secret").await? {
        Owner::Cluster(owner) if owner == id => true,
        // The agent was installed from what `cluster manifest` prints.
        Owner::Nobody if owner_of(&kube, &objects, "Deployment").await? == Owner::Cluster(id) => false,
        Owner::Nobody => {
            let text =
                format!("Secret {namespace}/{AGENT} is not in the cluster of context {:?}", kube.context);
            return Err(Error::failed(text).hint(format!(
                "pass the context of the right cluster: --kube-context CONTEXT; or install the agent again first: \
                 levers9 cluster manifest {} | kubectl apply -f -",
                rotation.cluster
            )));
        }
        Owner::Cluster(_) | Owner::Unknown => {
            let text =
                format!("Secret {namespace}/{AGENT} of context {:?} is not this cluster's", kube.context);
            return Err(
                Error::failed(text).hint("pass the context of the right cluster: --kube-context CONTEXT")
            );
        }
    };
    if let Some(need) = kube.first_missing(&rights::to_rotate(&namespace, there)).await? {
        return Err(Error::failed(format!("context {:?} may not {}", kube.context, need.words()))
            .hint("ask an administrator of the cluster for the right"));
    }
    Ok(Place { kube, manifest, there })
}

/// Whose an object is.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    /// It is not there.
    Nobody,
    /// The cluster's of this id.
    Cluster(String),
    /// It does not say.
    Unknown,
}

async fn owner_of(kube: &Kube, objects: &[Object], kind: &str) -> Result<Owner, Error> {
    let Some(object) = objects.iter().find(|object| object.kind == kind) else { return Ok(Owner::Nobody) };
    let Some(meta) = kube.metadata(object).await? else { return Ok(Owner::Nobody) };
    let label = meta.labels.and_then(|mut labels| labels.remove(CLUSTER_LABEL));
    Ok(label.map_or(Owner::Unknown, Owner::Cluster))
}

/// Says how to finish. The token goes into a file, never into an argument.
fn by_hand(rotation: &RotateSettings, place: &Place, token: &Secret, left: &str, problem: &Error) -> Error {
    let (_, namespace) = whose(&place.manifest);
    let path = &rotation.fallback;
    let again = format!("once the cluster can be reached: levers9 cluster rotate-token {}", rotation.cluster);
    let patch = json!({ "stringData": { TOKEN_KEY: token.expose() } }).to_string();
    let error = Error::failed(format!(
        "the new token could not be put into Secret {namespace}/{AGENT}; the old one holds for {left} at most"
    ))
    .because(problem.chain());
    if !place.there {
        return error.hint(again);
    }
    match files::replace(path, &patch) {
        Ok(()) => {
            let file = shell_quoted(&path.display().to_string());
            error.hint(format!(
                "the new one is in {file}, which only you may read: kubectl -n {namespace} patch secret {AGENT} \
                 --type merge --patch-file {file} && rm {file}"
            ))
        }
        Err(_) => error.hint(again),
    }
}
