//! `levers9 cluster join`: looks at the cluster, registers it, applies the
//! agent's objects and waits until the agent has reported.
//!
//! Nothing is registered before all that can be seen from here has been
//! checked, and a cluster whose objects could not be applied is detached again.

use std::time::Duration;

use levers9_agent::capacity::CLUSTER_LABEL;
use levers9_agent::manifest::{AGENT, Object, POD_SECURITY, pod_security};
use levers9_transport::Address;
use levers9_wire::name::printable;
use levers9_wire::quantity::show_duration;
use levers9_wire::token::Secret;
use levers9_wire::v1::{self, FailureCode, call_open::Request};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{expect_answer, print_objects, render, required, show_nodes};
use crate::args::Format;
use crate::client::{CONNECT, Client, Patience, block_on};
use crate::error::Error;
use crate::exit;
use crate::kube::{Kube, findings, remove, rights, survey};
use crate::printer::Printer;
use crate::settings::{JoinSettings, Target};
use crate::signals::Signals;
use crate::view::{NodesView, id_text};

/// The label that says who manages an object.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// How often it is asked whether the agent has come.
const LOOK: Duration = Duration::from_secs(1);

/// What scripts are told.
#[derive(Debug, Serialize)]
struct JoinView {
    #[serde(flatten)]
    nodes: NodesView,
    /// The objects that were applied.
    applied: Vec<String>,
}

/// What was found out about the cluster before it was registered.
#[derive(Debug, Default)]
struct Surveyed {
    flavor: String,
    autopilot: bool,
    /// Whether its namespace is there already.
    namespace: bool,
    /// What the namespace enforces already.
    level: Option<String>,
}

pub(super) fn run(target: &Target, settings: &JoinSettings, printer: &mut Printer) -> Result<u8, Error> {
    block_on(async {
        if settings.manifest_only {
            return Box::pin(print_only(target, settings, printer)).await;
        }
        let connected = Kube::connect(settings.kube_context.as_deref()).await;
        let (kube, version) = connected.map_err(|error| {
            let hint = error.hint_text().map(|hint| format!("{hint}; ")).unwrap_or_default();
            error.hint(format!(
                "{hint}to apply the objects from a machine that reaches the cluster: --manifest-only"
            ))
        })?;
        printer.note(&format!("context {:?} reaches Kubernetes {version} at {}", kube.context, kube.server));
        let surveyed = look(&kube, settings, printer).await?;
        let client = Client::connect(target).await?;
        let result = Box::pin(attach(&client, &kube, settings, &surveyed, printer)).await;
        client.close().await;
        result
    })
}

/// Registers, and leaves the rest to whoever reaches the API server.
async fn print_only(target: &Target, settings: &JoinSettings, printer: &mut Printer) -> Result<u8, Error> {
    let client = Client::connect(target).await?;
    let (manifest, token) = register(&client, settings, String::new(), printer).await?;
    let printed = render(&manifest, Some(&token)).and_then(|objects| {
        warn_of_loopback(&manifest, printer);
        print_objects(&objects, settings.format, printer)
    });
    let result = match printed {
        Ok(()) => {
            printer.note("what was printed holds a secret, the token of the cluster's agent; apply it with: kubectl apply -f -");
            if settings.settings.flavor.is_empty() {
                printer.note(
                    "the nodes were not looked at; of a cluster of Google, Amazon or Microsoft say so: \
                     --flavor gke, eks or aks",
                );
            }
            printer.note("its agent comes by itself then; look: levers9 cluster list");
            Ok(exit::DONE)
        }
        // Nobody has seen the token, so nobody can use what was registered.
        Err(error) => Err(roll_back(&client, None, &manifest, error, printer).await),
    };
    client.close().await;
    result
}

/// Looks at the cluster, and says what will not work before anything is done.
async fn look(kube: &Kube, settings: &JoinSettings, printer: &mut Printer) -> Result<Surveyed, Error> {
    let namespace = &settings.settings.namespace;
    check_rights(kube, namespace).await?;
    let nodes = kube.nodes().await?;
    let lent = survey::selected(&settings.selector, &nodes);
    match nodes.len() {
        0 => printer.note("the cluster has no nodes yet: its agent comes when there is one to run on"),
        all => printer.note(&format!("lends {} of the cluster's {all} nodes", lent.len())),
    }
    let warnings = [
        survey::selector_warning(&settings.selector, &nodes),
        survey::card_warning(&settings.settings.gpu_type, &lent),
    ];
    for warning in warnings.into_iter().flatten() {
        printer.note(&format!("warning: {warning}"));
    }
    let autopilot = survey::autopilot(&nodes);
    if autopilot {
        printer.note("warning: this is GKE Autopilot, which lets in no privileged pods and no host network");
    }
    let given = Some(settings.settings.flavor.clone()).filter(|flavor| !flavor.is_empty());
    let flavor = given.unwrap_or_else(|| survey::flavor(&nodes).unwrap_or_default().to_owned());
    if !flavor.is_empty() && settings.settings.flavor.is_empty() {
        printer.note(&format!("its nodes are those of {flavor}"));
    }
    let labels = kube.namespace_labels(namespace).await?;
    let level = labels.as_ref().and_then(|labels| labels.get(POD_SECURITY)).cloned();
    if let Some(level) = &level {
        printer.note(&format!("namespace {namespace:?} enforces the Pod Security level {level:?}"));
    }
    check_free(kube, namespace).await?;
    check_pull_secret(kube, &settings.settings, printer).await?;
    Ok(Surveyed { flavor, autopilot, namespace: labels.is_some(), level })
}

/// The Secret with which images are pulled is the cluster owner's to make.
async fn check_pull_secret(
    kube: &Kube,
    settings: &v1::ClusterSettings,
    printer: &mut Printer,
) -> Result<(), Error> {
    let v1::ClusterSettings { namespace, pull_secret, .. } = settings;
    if pull_secret.is_empty() || kube.metadata(&addressed(SECRET, namespace, pull_secret)).await?.is_some() {
        return Ok(());
    }
    printer.note(&format!(
        "warning: Secret {namespace}/{pull_secret} is not there, and no image is pulled with it until it is; \
         make it: kubectl -n {namespace} create secret docker-registry {pull_secret} --docker-server … \
         --docker-username … --docker-password …"
    ));
    Ok(())
}

type Kind = (&'static str, &'static str, &'static str);
const DEPLOYMENT: Kind = ("apps", "Deployment", "deployments");
const SECRET: Kind = ("", "Secret", "secrets");

/// An object as far as it takes to ask for it.
fn addressed((group, kind, plural): Kind, namespace: &str, name: &str) -> Object {
    let (namespace, name) = (Some(namespace.to_owned()), name.to_owned());
    Object { group, version: "v1", kind, plural, namespace, name, value: Value::Null }
}

/// Whether this person may do all that is to be done.
async fn check_rights(kube: &Kube, namespace: &str) -> Result<(), Error> {
    let refused = |need: &rights::Need, more: &str| {
        Error::failed(format!("context {:?} may not {}{more}", kube.context, need.words())).hint(
            "ask an administrator of the cluster for the right, or to apply what --manifest-only prints",
        )
    };
    if let Some(need) = kube.first_missing(&rights::to_join(namespace)).await? {
        return Err(refused(&need, ""));
    }
    let Some(need) = kube.first_missing(&rights::to_give(namespace)).await? else { return Ok(()) };
    match kube.first_missing(&rights::instead_of_having(namespace)).await? {
        None => Ok(()),
        Some(_) => Err(refused(&need, ", so it cannot let the agent do it")),
    }
}

/// Whether no other cluster's agent is in the namespace.
async fn check_free(kube: &Kube, namespace: &str) -> Result<(), Error> {
    for kind in [DEPLOYMENT, SECRET] {
        let object = addressed(kind, namespace, AGENT);
        let Some(meta) = kube.metadata(&object).await? else { continue };
        let owner = meta.labels.and_then(|mut labels| labels.remove(CLUSTER_LABEL));
        let whose = match &owner {
            Some(id) => format!("another agent, that of cluster {}", printable(id, 80)),
            None => "another agent, of no known cluster".to_owned(),
        };
        return Err(Error::failed(format!(
            "namespace {namespace:?} holds {whose}: its {} is there",
            object.title()
        ))
        .hint(format!(
            "choose another one with --namespace; or detach that cluster: levers9 cluster leave; \
                 or, if it is detached, remove what is left of it: kubectl -n {namespace} delete deployment,secret {AGENT}"
        )));
    }
    Ok(())
}

/// Registers the cluster; gives what its manifest is made of.
async fn register(
    client: &Client,
    settings: &JoinSettings,
    flavor: String,
    printer: &mut Printer,
) -> Result<(v1::ClusterManifest, Secret), Error> {
    let mut registered = settings.settings.clone();
    if registered.flavor.is_empty() {
        registered.flavor = flavor;
    }
    let request = Request::ClusterJoin(v1::ClusterJoinRequest { settings: Some(registered) });
    let answer = expect_answer!(client.call(request, Patience::Within(CONNECT)).await?, ClusterJoin)?;
    let name = &settings.settings.name;
    printer.note(&format!("cluster {name:?} is registered as {}", id_text(&answer.cluster)));
    let mut manifest = required(answer.manifest)?;
    if manifest.cluster.is_empty() {
        manifest.cluster = answer.cluster;
    }
    Ok((manifest, Secret::new(answer.token)))
}

async fn attach(
    client: &Client,
    kube: &Kube,
    settings: &JoinSettings,
    surveyed: &Surveyed,
    printer: &mut Printer,
) -> Result<u8, Error> {
    let (manifest, token) = register(client, settings, surveyed.flavor.clone(), printer).await?;
    let mut signals = Signals::listen()?;
    warn_of_loopback(&manifest, printer);
    let applied = match signals.or(set_up(kube, &manifest, &token, surveyed, printer)).await {
        Ok(applied) => applied,
        Err(error) => return Err(roll_back(client, Some(kube), &manifest, error, printer).await),
    };
    let name = &settings.settings.name;
    let waited = signals.or(wait(client, kube, &manifest, settings, printer)).await;
    let answer = waited.inspect_err(|_| {
        printer.note(&format!(
            "cluster {name:?} stays attached and is used as soon as its agent comes; \
             look: levers9 cluster list; undo: levers9 cluster leave {name}"
        ));
    })?;
    let nodes = NodesView::from(answer);
    match settings.format {
        Format::Json => printer.json(&JoinView { nodes, applied })?,
        Format::Text => show_nodes(nodes, false, Format::Text, printer)?,
    }
    Ok(exit::DONE)
}

/// Applies the objects; gives their titles.
async fn set_up(
    kube: &Kube,
    manifest: &v1::ClusterManifest,
    token: &Secret,
    surveyed: &Surveyed,
    printer: &mut Printer,
) -> Result<Vec<String>, Error> {
    let mut objects = render(manifest, Some(token))?;
    let (_, namespace) = remove::whose(manifest);
    let runtime = &manifest.runtime;
    let level = surveyed.level.as_deref();
    if let Some(level) = level.filter(|level| survey::keeps_out(level, runtime)) {
        return Err(Error::failed(format!(
            "namespace {namespace:?} enforces the Pod Security level {level:?}, \
             which keeps out the privileged workers of the runtime {runtime}"
        ))
        .hint(format!(
            "use another namespace: --namespace NAME, or let them in: \
             kubectl label --overwrite namespace {namespace} {POD_SECURITY}=privileged"
        )));
    }
    if surveyed.autopilot && survey::keeps_out("", runtime) {
        return Err(Error::failed(format!(
            "GKE Autopilot keeps out the privileged workers of the runtime {runtime}"
        ))
        .hint("attach a GKE Standard cluster"));
    }
    let mut applied = Vec::new();
    for object in &mut objects {
        if object.kind == "Namespace" {
            let labels = &mut object.value["metadata"]["labels"];
            keep_level(labels, runtime, surveyed.namespace, level);
            if let Some(labels) = labels.as_object_mut().filter(|_| surveyed.namespace) {
                // One that was there is perhaps somebody else's to manage.
                drop(labels.remove(MANAGED_BY));
            }
        }
        kube.apply(object).await?;
        printer.note(&format!("applied {}", object.title()));
        applied.push(object.title());
    }
    Ok(applied)
}

/// A namespace that was there keeps its level: what is stricter than needed
/// stays as strict, and where none is said none is brought in that would keep
/// out pods of others.
fn keep_level(labels: &mut Value, runtime: &str, was_there: bool, level: Option<&str>) {
    match (level, labels.as_object_mut()) {
        (Some(level), Some(labels)) => drop(labels.insert(POD_SECURITY.to_owned(), level.into())),
        (None, Some(labels)) if was_there && pod_security(runtime) != "privileged" => {
            drop(labels.remove(POD_SECURITY));
        }
        _ => {}
    }
}

/// Undoes a registration whose objects are not all there.
async fn roll_back(
    client: &Client,
    kube: Option<&Kube>,
    manifest: &v1::ClusterManifest,
    error: Error,
    printer: &mut Printer,
) -> Error {
    let (id, _) = remove::whose(manifest);
    let mut left = Vec::new();
    if let Some(kube) = kube {
        match kube.remove(manifest).await {
            Ok(removed) => left.extend(removed.failed.iter().map(Error::chain)),
            Err(problem) => left.push(problem.chain()),
        }
    }
    let request = Request::ClusterLeave(v1::ClusterLeaveRequest { cluster: id.clone(), dry_run: false });
    match client.call(request, Patience::Within(CONNECT)).await {
        Ok(_) => printer.note("rolled back: the cluster is detached again, its token is revoked"),
        Err(problem) => printer.note(&format!(
            "the cluster could not be detached again: {}; do it by: levers9 cluster leave {id}",
            problem.chain()
        )),
    }
    for problem in left {
        printer.note(&format!("not removed again: {problem}"));
    }
    error
}

/// An agent cannot come to an address of its own machine.
fn warn_of_loopback(manifest: &v1::ClusterManifest, printer: &mut Printer) {
    let Ok(address) = manifest.address.parse::<Address>() else { return };
    if is_loopback(&address.host) {
        printer.note(&format!(
            "warning: the agent will dial {}, which in the cluster is the agent's own pod; \
             set publicAddress in the controlplane's configuration",
            address.authority()
        ));
    }
}

fn is_loopback(host: &str) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || host.ends_with(".localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}

/// Waits until the agent has reported.
async fn wait(
    client: &Client,
    kube: &Kube,
    manifest: &v1::ClusterManifest,
    settings: &JoinSettings,
    printer: &mut Printer,
) -> Result<v1::ClusterNodesAnswer, Error> {
    let (cluster, namespace) = remove::whose(manifest);
    let place = manifest.address.parse::<Address>().map(|address| address.authority());
    let place = place.unwrap_or_else(|_| manifest.address.clone());
    let deadline = Instant::now() + settings.timeout;
    printer.note(&format!("waiting for the agent, at most {}", show_duration(settings.timeout)));
    let mut state = "";
    loop {
        let request = Request::ClusterNodes(v1::ClusterNodesRequest { cluster: cluster.clone() });
        let asked = client.call(request, Patience::Within(CONNECT)).await;
        let asked = asked.and_then(|answer| expect_answer!(answer, ClusterNodes));
        let connected = match &asked {
            Ok(answer) if answer.age_ms.is_some() => return asked,
            // It is detached again, or is no longer theirs to see.
            Err(error) if error.code().is_some_and(is_final) => return asked,
            Ok(answer) => answer.cluster.as_ref().is_some_and(|cluster| cluster.agent_uptime_ms > 0),
            Err(_) => false,
        };
        let late = Instant::now() >= deadline;
        let finding = match connected {
            true => Ok(findings::connected()),
            false => look_at_agent(kube, &namespace, &place, late).await,
        };
        if late {
            return Err(asked.err().unwrap_or_else(|| did_not_come(settings, finding)));
        }
        if let Ok(finding) = &finding
            && finding.state != state
        {
            state = finding.state;
            printer.note(&format!("the agent: {state}"));
        }
        sleep(LOOK.min(deadline.saturating_duration_since(Instant::now()))).await;
    }
}

fn is_final(code: FailureCode) -> bool {
    matches!(code, FailureCode::NotFound | FailureCode::Denied)
}

/// What keeps the agent from coming; its log is read when that is to be said.
async fn look_at_agent(
    kube: &Kube,
    namespace: &str,
    place: &str,
    thoroughly: bool,
) -> Result<findings::Finding, Error> {
    let mut seen = kube.look_at_agent(namespace).await?;
    let pod = seen.newest().and_then(|pod| pod.metadata.name.clone());
    if let Some(pod) = pod.filter(|_| thoroughly) {
        seen.log = kube.end_of_log(namespace, &pod).await.unwrap_or_default();
    }
    Ok(findings::of(&seen, namespace, place))
}

fn did_not_come(settings: &JoinSettings, finding: Result<findings::Finding, Error>) -> Error {
    let (name, time) = (&settings.settings.name, show_duration(settings.timeout));
    let error = Error::failed(format!("the agent of cluster {name:?} did not come within {time}"));
    match finding {
        Ok(finding) => error.because(finding.text).hint(finding.hint),
        Err(problem) => error.because(problem.chain()).hint(problem.hint_text().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_the_same_machine_are_known() {
        for host in ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "x.localhost"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["10.0.0.1", "cp.example", "localhost.example", "::2"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
    #[test]
    fn a_namespace_that_was_there_keeps_its_level() {
        let kept = |runtime: &str, was_there: bool, level: Option<&str>| {
            let mut labels = json!({ "levers9/cluster": "x", POD_SECURITY: pod_security(runtime) });
            keep_level(&mut labels, runtime, was_there, level);
            labels.get(POD_SECURITY).and_then(Value::as_str).map(ToOwned::to_owned)
        };
        assert_eq!(kept("process", false, None).as_deref(), Some("baseline"));
        assert_eq!(kept("process", true, None), None);
        for level in ["restricted", "baseline", "privileged"] {
            assert_eq!(kept("process", true, Some(level)).as_deref(), Some(level));
        }
        assert_eq!(kept("runc", true, None).as_deref(), Some("privileged"));
    }
}
