//! The agent's own worker Jobs and their pods as the API server shows them:
//! which worker they are, whether one has started, and why not. Reads objects
//! of the own namespace only and decides nothing about them.

use k8s_openapi::jiff::Timestamp;
use levers9_wire::WorkerId;
use levers9_wire::name::printable;
use serde::Deserialize;

/// The label that carries the worker's id on Jobs and pods.
pub const WORKER_LABEL: &str = "levers9/worker";
/// The annotation that carries the full name of the node a Job is pinned to.
pub const NODE_ANNOTATION: &str = "levers9/node";
/// How much is said of why a worker does not run, in characters.
const REASON: usize = 300;

/// A worker Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerJob {
    /// Whose.
    pub worker: WorkerId,
    /// The Job's name.
    pub name: String,
    /// Which object of that name.
    pub uid: String,
    /// Which version of it.
    pub version: String,
    /// The node it is pinned to.
    pub node: String,
    /// When it was created, by the API server's clock, in Unix milliseconds.
    pub created_ms: i64,
    /// It is being deleted.
    pub deleting: bool,
    /// How it ended.
    pub end: Option<End>,
    /// Why, when it failed.
    pub reason: String,
}

/// How a Job or a pod ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Well.
    Succeeded,
    /// Otherwise.
    Failed,
}

/// A pod of a worker Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPod {
    /// Whose.
    pub worker: WorkerId,
    /// The uid of the Job it was made for.
    pub job: String,
    /// Where it is bound; empty when it is not.
    pub node: String,
    /// Its container runs or has run.
    pub started: bool,
    /// How it ended.
    pub end: Option<End>,
    /// Why it does not run.
    pub reason: String,
}

impl OwnPod {
    /// Whether it has yet to start.
    #[must_use]
    pub fn waits(&self) -> bool {
        !self.started && self.end.is_none()
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    uid: String,
    resource_version: String,
    labels: Labels,
    annotations: Annotations,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Labels {
    #[serde(rename = "levers9/worker")]
    worker: String,
    /// Put on pods by the Job controller.
    #[serde(rename = "batch.kubernetes.io/controller-uid")]
    job: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "levers9/node")]
    node: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JobObject {
    metadata: Metadata,
    status: JobStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JobStatus {
    succeeded: i64,
    failed: i64,
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodObject {
    metadata: Metadata,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: String,
    reason: String,
    message: String,
    conditions: Option<Vec<Condition>>,
    container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    state: State,
    last_state: State,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct State {
    waiting: Option<Said>,
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<Terminated>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Said {
    reason: String,
    message: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    exit_code: i64,
    reason: String,
    message: String,
}

/// Reads a Job of the own namespace; none when it names no worker.
///
/// # Errors
/// When it is not a Job.
pub fn read_job(object: &str) -> Result<Option<WorkerJob>, serde_json::Error> {
    let JobObject { metadata, status } = serde_json::from_str(object)?;
    let Ok(worker) = metadata.labels.worker.parse() else { return Ok(None) };
    let conditions = status.conditions.unwrap_or_default();
    let holds = |kind: &str| conditions.iter().find(|c| c.kind == kind && c.status == "True");
    let failed = holds("Failed").or_else(|| holds("FailureTarget"));
    let end = if holds("Complete").is_some() || status.succeeded > 0 {
        Some(End::Succeeded)
    } else if failed.is_some() || status.failed > 0 {
        Some(End::Failed)
    } else {
        None
    };
    let created = metadata.creation_timestamp.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
    Ok(Some(WorkerJob {
        worker,
        name: metadata.name,
        uid: metadata.uid,
        version: metadata.resource_version,
        node: metadata.annotations.node,
        // A time nobody can read is never so long ago that something is removed for it.
        created_ms: created.map_or(i64::MAX, Timestamp::as_millisecond),
        deleting: metadata.deletion_timestamp.is_some(),
        end,
        reason: failed.map(|c| one_line(&c.reason, &c.message)).unwrap_or_default(),
    }))
}

/// Reads a pod of the own namespace; none when it names no worker.
///
/// # Errors
/// When it is not a pod.
pub fn read_pod(object: &str) -> Result<Option<OwnPod>, serde_json::Error> {
    let PodObject { metadata, spec, status } = serde_json::from_str(object)?;
    let Ok(worker) = metadata.labels.worker.parse() else { return Ok(None) };
    let end = match status.phase.as_str() {
        "Succeeded" => Some(End::Succeeded),
        "Failed" => Some(End::Failed),
        _ => None,
    };
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let ran = |c: &ContainerStatus| {
        [&c.state, &c.last_state].iter().any(|s| s.running.is_some() || s.terminated.is_some())
    };
    let started = status.phase == "Running" || containers.iter().any(ran);
    let reason = why(&status, end);
    Ok(Some(OwnPod { worker, job: metadata.labels.job, node: spec.node_name, started, end, reason }))
}

/// Why a pod does not run: what its container waits for or ended with, what
/// the kubelet says of the pod, why the scheduler has no place for it.
fn why(status: &PodStatus, end: Option<End>) -> String {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    if end == Some(End::Succeeded) {
        return String::new();
    }
    if end == Some(End::Failed) {
        let ended = containers.iter().find_map(|c| c.state.terminated.as_ref());
        return match ended {
            Some(t) if !t.message.is_empty() => one_line(&t.reason, telling_line(&t.message)),
            Some(t) => one_line(&t.reason, &format!("exit code {}", t.exit_code)),
            None => one_line(&status.reason, &status.message),
        };
    }
    let waiting = containers.iter().find_map(|c| c.state.waiting.as_ref());
    if let Some(waiting) = waiting.filter(|w| !matches!(w.reason.as_str(), "ContainerCreating" | "")) {
        return one_line(&waiting.reason, &waiting.message);
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let unscheduled = conditions.iter().find(|c| c.kind == "PodScheduled" && c.status == "False");
    unscheduled.map(|c| one_line(&c.reason, &c.message)).unwrap_or_default()
}

/// The line that says most: the last that names an error, or the last.
fn telling_line(text: &str) -> &str {
    let lines = || text.lines().rev().map(str::trim);
    let error = |line: &&str| line.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("error:"));
    lines().find(error).or_else(|| lines().find(|line| !line.is_empty())).unwrap_or_default()
}

/// A reason and the first line of its message.
fn one_line(reason: &str, message: &str) -> String {
    let message = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let text = match (reason, message) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    printable(&text, REASON)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";

    fn pod(spec: &str, status: &str) -> OwnPod {
        let json = format!(
            r#"{{"metadata": {{"labels": {{"levers9/worker": "{WORKER}", "batch.kubernetes.io/controller-uid": "u"}}}},
                "spec": {spec}, "status": {status}}}"#
        );
        read_pod(&json).unwrap().unwrap()
    }

    fn job(status: &str) -> WorkerJob {
        let json = format!(
            r#"{{"metadata": {{"name": "j", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-11-29T20:00:00Z", "labels": {{"levers9/worker": "{WORKER}"}},
                "annotations": {{"levers9/node": "a.b"}}}}, "status": {status}}}"#
        );
        read_job(&json).unwrap().unwrap()
    }

    #[test]
    fn labels_and_annotations_are_read_under_their_names() {
        // serde's attributes take literals only.
        assert_eq!((WORKER_LABEL, NODE_ANNOTATION), ("levers9/worker", "levers9/node"));
        let job = job("{}");
        assert_eq!((job.worker.to_string().as_str(), job.node.as_str()), (WORKER, "a.b"));
        assert_eq!((job.created_ms, job.end, job.deleting), (1_795_982_400_000, None, false));
        assert_eq!(read_job(r#"{"metadata": {"labels": {"levers9/worker": "x"}}}"#).unwrap(), None);
    }

    #[test]
    fn a_job_ends_by_its_conditions_or_counts() {
        assert_eq!(job(r#"{"succeeded": 1}"#).end, Some(End::Succeeded));
        let failed = job(
            r#"{"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "it is over"}]}"#,
        );
        assert_eq!(
            (failed.end, failed.reason.as_str()),
            (Some(End::Failed), "BackoffLimitExceeded: it is over")
        );
        assert_eq!(job(r#"{"failed": 1, "conditions": null}"#).end, Some(End::Failed));
    }

    #[test]
    fn a_pod_that_waits_says_what_for() {
        let pulling = pod(
            r#"{"nodeName": "n"}"#,
            r#"{"phase": "Pending", "containerStatuses": [{"state": {"waiting":
                {"reason": "ImagePullBackOff", "message": "Back-off pulling image\nmore"}}}]}"#,
        );
        assert_eq!(pulling.reason, "ImagePullBackOff: Back-off pulling image");
        assert!(!pulling.started && pulling.end.is_none());
        assert_eq!((pulling.node.as_str(), pulling.job.as_str()), ("n", "u"));
        let creating = pod(
            "{}",
            r#"{"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}"#,
        );
        assert_eq!(creating.reason, "");
        let unbound = pod(
            "{}",
            r#"{"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
                "reason": "Unschedulable", "message": "0/3 nodes are available"}]}"#,
        );
        assert_eq!(unbound.reason, "Unschedulable: 0/3 nodes are available");
    }

    #[test]
    fn a_pod_that_has_run_has_started_whatever_came_after() {
        assert!(pod("{}", r#"{"phase": "Running"}"#).started);
        let ended = r#"{"phase": "Failed", "containerStatuses": [{"state": {"terminated":
            {"exitCode": 3, "reason": "Error", "message": "starting\nerror: refused\n"}}}]}"#;
        let ended = pod("{}", ended);
        assert!(ended.started);
        assert_eq!((ended.end, ended.reason.as_str()), (Some(End::Failed), "Error: error: refused"));
        let evicted = pod("{}", r#"{"phase": "Failed", "reason": "Evicted", "message": "low on disk"}"#);
        assert_eq!((evicted.started, evicted.reason.as_str()), (false, "Evicted: low on disk"));
    }
}
