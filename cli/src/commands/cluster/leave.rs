//! `levers9 cluster leave`: revokes the cluster's token, forgets it, and
//! removes what is in the cluster of it.

use levers9_wire::v1::{self, call_open::Request};
use serde::Serialize;

use super::{call_once, expect_answer, required};
use crate::args::Format;
use crate::client::block_on;
use crate::error::Error;
use crate::exit;
use crate::kube::Kube;
use crate::kube::remove::{Removed, by_hand, whose};
use crate::printer::Printer;
use crate::settings::{LeaveSettings, Target};

/// What scripts are told.
#[derive(Debug, Serialize)]
struct LeaveView {
    /// The cluster's id.
    cluster: String,
    /// Workers that were there.
    workers: u32,
    /// Tasks on them.
    tasks: u32,
    /// Objects that were removed from the cluster.
    removed: Vec<String>,
    /// Why others were not.
    problems: Vec<String>,
}

pub(super) fn run(target: &Target, settings: LeaveSettings, printer: &mut Printer) -> Result<u8, Error> {
    let LeaveSettings { cluster, yes, keep_agent, kube_context, format } = settings;
    let would = leave(target, &cluster, true)?;
    if !yes {
        confirm(&cluster, &would, keep_agent, printer)?;
    }
    let done = leave(target, &cluster, false)?;
    printer.note(&format!("cluster {cluster:?} is detached, its token is revoked"));
    if let Some(lost) = running(&done) {
        printer.note(&format!("with it {lost} there end"));
    }
    let manifest = required(done.manifest.or(would.manifest))?;
    let (id, namespace) = whose(&manifest);
    let mut view = LeaveView {
        cluster: id,
        workers: done.workers.max(would.workers),
        tasks: done.tasks.max(would.tasks),
        removed: Vec::new(),
        problems: Vec::new(),
    };
    if keep_agent {
        printer.note(&format!("the agent's objects stay in namespace {namespace:?}; it comes in no more"));
    } else {
        match block_on(remove(kube_context.as_deref(), &manifest, printer)) {
            Ok(Removed { gone, failed }) => {
                view.removed = gone;
                view.problems = failed.iter().map(Error::chain).collect();
            }
            Err(error) => view.problems.push(error.chain()),
        }
    }
    let failed = !view.problems.is_empty();
    if format == Format::Json {
        printer.json(&view)?;
    }
    if !failed {
        return Ok(exit::DONE);
    }
    let by_hand = by_hand(&manifest).join("; ");
    Err(Error::failed("the cluster is detached, but not all of it could be removed there")
        .because(view.problems.join("; "))
        .hint(format!("remove it by hand: {by_hand}")))
}

fn leave(target: &Target, cluster: &str, dry_run: bool) -> Result<v1::ClusterLeaveAnswer, Error> {
    let cluster = cluster.to_owned();
    let request = Request::ClusterLeave(v1::ClusterLeaveRequest { cluster, dry_run });
    expect_answer!(call_once(target, request)?, ClusterLeave)
}

/// Asks whoever sits at the terminal. A script has to say so beforehand.
fn confirm(
    cluster: &str,
    would: &v1::ClusterLeaveAnswer,
    keep_agent: bool,
    printer: &mut Printer,
) -> Result<(), Error> {
    let (_, namespace) = would.manifest.as_ref().map(whose).unwrap_or_default();
    let jobs = match running(would) {
        None => "nothing runs there".to_owned(),
        Some(lost) => format!("{lost} there will be lost"),
    };
    let objects = match keep_agent {
        true => String::new(),
        false => format!(", and its agent is removed from namespace {namespace:?}"),
    };
    let question = format!("detach cluster {cluster:?}? {jobs}{objects}");
    match printer.ask(&question)? {
        Some(true) => Ok(()),
        Some(false) => Err(Error::failed("nothing was done")),
        None => Err(Error::usage(format!("not confirmed: {question}")).hint("say so with --yes")),
    }
}

/// What is lost with a cluster, if anything is.
fn running(of: &v1::ClusterLeaveAnswer) -> Option<String> {
    let (workers, tasks) = (of.workers, of.tasks);
    (workers > 0 || tasks > 0)
        .then(|| format!("{workers} {} with {tasks} {}", plural(workers, "worker"), plural(tasks, "task")))
}

fn plural(count: u32, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

async fn remove(
    context: Option<&str>,
    manifest: &v1::ClusterManifest,
    printer: &mut Printer,
) -> Result<Removed, Error> {
    let (kube, _) = Kube::connect(context).await?;
    let removed = kube.remove(manifest).await?;
    for title in &removed.gone {
        printer.note(&format!("removed {title}"));
    }
    let (id, namespace) = whose(manifest);
    if removed.gone.is_empty() && removed.failed.is_empty() {
        printer.note(&format!(
            "the cluster of context {:?} holds nothing of it; if its agent is in another one, pass --kube-context, \
             or remove it there by hand: kubectl -n {namespace} delete deployments,jobs,secrets -l levers9/cluster={id}",
            kube.context
        ));
    } else if removed.failed.is_empty() {
        printer.note(&format!("namespace {namespace:?} is kept"));
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        assert_eq!((plural(1, "task"), plural(0, "task")), ("task".to_owned(), "tasks".to_owned()));
    }
}
