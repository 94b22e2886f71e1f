//! `levers9 cluster`: attaching Kubernetes clusters and looking at them.

mod join;
mod leave;
mod rotate;

use levers9_agent::manifest::{BadManifest, Object, objects, yaml};
use levers9_wire::token::Secret;
use levers9_wire::v1::{self, call_open::Request};
use serde::Serialize;
use serde_json::json;

use super::{call_once, expect_answer, required};
use crate::args::Format;
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::{ClusterAction, ClusterSettings, Target};
use crate::view::{ClusterView, NodeWhyView, NodesView};

/// Runs the command.
///
/// # Errors
/// When the controlplane or the cluster says no, or one of them cannot be reached.
pub fn run(settings: ClusterSettings, printer: &mut Printer) -> Result<u8, Error> {
    let target = &settings.target;
    match settings.action {
        ClusterAction::Join(settings) => return join::run(target, &settings, printer),
        ClusterAction::List { format } => {
            let answer = call_once(target, Request::ClusterList(v1::ClusterListRequest {}))?;
            let answer = expect_answer!(answer, ClusterList)?;
            let clusters: Vec<ClusterView> = answer.clusters.into_iter().map(ClusterView::from).collect();
            printer.list(format, &clusters)?;
        }
        ClusterAction::Nodes { cluster, why, format } => {
            let request = Request::ClusterNodes(v1::ClusterNodesRequest { cluster });
            let answer = expect_answer!(call_once(target, request)?, ClusterNodes)?;
            show_nodes(answer.into(), why, format, printer)?;
        }
        ClusterAction::Manifest { cluster, format } => {
            let request = Request::ClusterShow(v1::ClusterShowRequest { cluster });
            let answer = expect_answer!(call_once(target, request)?, ClusterShow)?;
            print_objects(&render(&required(answer.manifest)?, None)?, format, printer)?;
        }
        ClusterAction::Share { cluster, shared, format } => share(target, cluster, shared, format, printer)?,
        ClusterAction::Leave(settings) => return leave::run(target, settings, printer),
        ClusterAction::RotateToken(settings) => return rotate::run(target, &settings, printer),
    }
    Ok(exit::DONE)
}

/// A cluster's nodes: the table alone on standard output, the rest beside it.
fn show_nodes(view: NodesView, why: bool, format: Format, printer: &mut Printer) -> Result<(), Error> {
    if format == Format::Json {
        return printer.json(&view);
    }
    let NodesView { cluster, age_ms, nodes, orphans } = view;
    match age_ms {
        None => {
            printer.note(&format!("cluster {:?} has not reported yet: it is {}", cluster.name, cluster.state))
        }
        Some(_) if cluster.state != "ready" => {
            printer
                .note(&format!("cluster {:?} is {}: what follows may be old", cluster.name, cluster.state));
        }
        Some(_) => {}
    }
    if why {
        let nodes: Vec<NodeWhyView> = nodes.into_iter().map(NodeWhyView).collect();
        printer.list(format, &nodes)?;
    } else {
        printer.list(format, &nodes)?;
    }
    if let Some(template) = template_of(&cluster.runtime) {
        printer.note(template);
    }
    if !cluster.note.is_empty() {
        printer.note(&cluster.note);
    }
    for orphan in orphans {
        printer.note(&format!(
            "the Job of worker {} on node {:?} ({}) is not known to the controlplane; remove it by hand if nobody needs it",
            orphan.worker, orphan.node, orphan.phase
        ));
    }
    Ok(())
}

/// Which of its templates an agent makes workers from.
fn template_of(runtime: &str) -> Option<&'static str> {
    match runtime {
        "process" => {
            Some("workers there are unprivileged pods that run jobs as plain processes, one workspace each")
        }
        "runc" | "runsc" => Some("workers there are privileged pods"),
        _ => None,
    }
}

fn share(
    target: &Target,
    cluster: String,
    shared: bool,
    format: Format,
    printer: &mut Printer,
) -> Result<(), Error> {
    #[derive(Serialize)]
    struct ShareView {
        #[serde(flatten)]
        cluster: ClusterView,
        /// What an admin should know of it.
        warning: String,
    }
    let request = Request::ClusterShare(v1::ClusterShareRequest { cluster, shared });
    let answer = expect_answer!(call_once(target, request)?, ClusterShare)?;
    let cluster = ClusterView::from(required(answer.cluster)?);
    if !answer.note.is_empty() {
        printer.note(&answer.note);
    }
    if format == Format::Json {
        return printer.json(&ShareView { cluster, warning: answer.note });
    }
    printer.line(&format!("cluster {:?} serves: {}", cluster.name, cluster.serves))
}

/// The objects of a manifest.
fn render(manifest: &v1::ClusterManifest, token: Option<&Secret>) -> Result<Vec<Object>, Error> {
    objects(manifest, token).map_err(unusable)
}

fn unusable(problem: BadManifest) -> Error {
    Error::failed("the cluster's settings, as the controlplane has them, cannot be used").because(problem)
}

/// Objects as YAML, or as a List in JSON; kubectl takes both.
fn print_objects(objects: &[Object], format: Format, printer: &mut Printer) -> Result<(), Error> {
    match format {
        Format::Text => printer.script(yaml(objects).map_err(unusable)?.as_bytes()),
        Format::Json => {
            let items: Vec<_> = objects.iter().map(|object| &object.value).collect();
            printer.json(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))
        }
    }
}
