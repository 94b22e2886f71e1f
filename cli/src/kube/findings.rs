//! What keeps an agent from coming, by what its Deployment and pods say. Pure:
//! their status in, a sentence and a hint out. The last lines of an agent that
//! crashed are in its pod's status; why one that runs does not get through is
//! in its log.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use levers9_wire::name::printable;

/// How much of an agent's last words is shown.
const LAST_WORDS: usize = 1200;
/// The longest other message.
const MESSAGE: usize = 500;

/// What was looked at.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The agent's Deployment, when it is there.
    pub(crate) deployment: Option<Deployment>,
    /// Its pods.
    pub(crate) pods: Vec<Pod>,
    /// The end of the log of the newest, as far as it was read.
    pub(crate) log: String,
}

impl Seen {
    /// The pod that counts. One that is going says nothing of the one that comes.
    pub(crate) fn newest(&self) -> Option<&Pod> {
        let alive = self.pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        alive.max_by_key(|pod| pod.metadata.creation_timestamp.clone())
    }
}

/// What was found: a sentence that goes on from "the agent…", and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// How far the agent is, in a word or two.
    pub(crate) state: &'static str,
    /// What was found.
    pub(crate) text: String,
    /// What to do about it.
    pub(crate) hint: String,
}

impl Finding {
    fn new(state: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { state, text: text.into(), hint: hint.into() }
    }
}

/// What keeps the agent from coming. `address` is what it dials.
pub(crate) fn of(seen: &Seen, namespace: &str, address: &str) -> Finding {
    let Some(deployment) = &seen.deployment else {
        let text = format!("its Deployment is not in namespace {namespace:?}");
        return Finding::new("not there", text, "was it deleted? levers9 cluster manifest prints it again");
    };
    match seen.newest() {
        Some(pod) => of_pod(pod, namespace, address, &seen.log),
        None => without_pod(deployment, !seen.pods.is_empty()),
    }
}

/// It has dialled in, and is not done looking at its cluster.
pub(crate) fn connected() -> Finding {
    Finding::new(
        "connected, has not reported yet",
        "it is connected but has not reported the cluster's nodes",
        "can it see nodes and pods? its log: kubectl logs deploy/levers9-agent, in its namespace",
    )
}

fn without_pod(deployment: &Deployment, some_are_going: bool) -> Finding {
    let conditions = deployment.status.as_ref().and_then(|status| status.conditions.as_ref());
    let failure = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True");
    match failure.and_then(|failure| failure.message.as_deref()) {
        Some(message) => Finding::new(
            "its pod is refused",
            format!("the cluster refuses to create its pod: {}", printable(message, MESSAGE)),
            "quota, Pod Security or a policy of the namespace forbids it",
        ),
        None if some_are_going => Finding::new(
            "an older one is ending",
            "an older pod of it has not ended yet, and there are never two",
            "is its node gone? it is given up by itself after a while",
        ),
        None => Finding::new(
            "no pod yet",
            "there is no pod of it, and the cluster does not say why",
            "does the cluster's controller manager run?",
        ),
    }
}

fn of_pod(pod: &Pod, namespace: &str, address: &str, log: &str) -> Finding {
    let status = pod.status.clone().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    let statuses = status.container_statuses.iter().flatten();
    match statuses.into_iter().next() {
        Some(container) => match container.state.as_ref().and_then(|state| state.running.as_ref()) {
            Some(_) => running(container, namespace, address, log),
            None => of_container(container, &status, node, namespace),
        },
        None if status.phase.as_deref() == Some("Failed") => {
            let reason = [status.reason.as_deref(), status.message.as_deref()];
            let reason: Vec<&str> = reason.into_iter().flatten().collect();
            Finding::new(
                "failed",
                format!("its pod has failed: {}", printable(&reason.join(": "), MESSAGE)),
                format!("kubectl -n {namespace} describe pods -l app.kubernetes.io/name=levers9-agent"),
            )
        }
        None if node.is_empty() => pending(&status),
        None => not_started(node, namespace),
    }
}

fn not_started(node: &str, namespace: &str) -> Finding {
    Finding::new(
        "starting",
        format!("its pod is on node {node:?} and has not started there"),
        format!(
            "is that node well, and is the Secret there? \
             kubectl -n {namespace} describe pods -l app.kubernetes.io/name=levers9-agent"
        ),
    )
}

/// No node takes it.
fn pending(status: &PodStatus) -> Finding {
    let scheduled = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    match scheduled.and_then(|condition| condition.message.as_deref()).filter(|message| !message.is_empty()) {
        Some(message) => Finding::new(
            "pending",
            format!("its pod is pending: no node takes it: {}", printable(message, MESSAGE)),
            "it needs 50m CPU and 64Mi on an untainted node",
        ),
        None => Finding::new(
            "pending",
            "its pod is pending, and the scheduler has not said why",
            "does the cluster have a node, and does its scheduler run?",
        ),
    }
}

fn of_container(container: &ContainerStatus, status: &PodStatus, node: &str, namespace: &str) -> Finding {
    let state = container.state.clone().unwrap_or_default();
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let message = printable(waiting.message.as_deref().unwrap_or_default(), MESSAGE);
        return match reason {
            "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => Finding::new(
                "its image cannot be pulled",
                format!(
                    "its image {:?} cannot be pulled: {reason}: {message}",
                    printable(&container.image, 200)
                ),
                "name one that the cluster can pull: --worker-image, with --pull-secret where it needs one",
            ),
            "CrashLoopBackOff" => crashed(container, &state, namespace),
            "ContainerCreating" | "PodInitializing" | "" => not_started(node, namespace),
            _ => Finding::new(
                "its container cannot be started",
                format!("its container cannot be started: {reason}: {message}"),
                format!("is Secret {namespace}/levers9-agent there, with the key \"token\"?"),
            ),
        };
    }
    match &state.terminated {
        Some(_) => crashed(container, &state, namespace),
        None if status.phase.as_deref() == Some("Pending") && node.is_empty() => pending(status),
        None => not_started(node, namespace),
    }
}

fn crashed(container: &ContainerStatus, state: &ContainerState, namespace: &str) -> Finding {
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let ended = state.terminated.as_ref().or(last);
    let times = match container.restart_count + i32::from(state.terminated.is_some()) {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    let text = match ended {
        Some(ended) => format!("it has started and ended {times}: {}", end_of(ended)),
        None => format!("it has started and ended {times}"),
    };
    Finding::new(
        "crashing",
        text,
        format!("its whole output: kubectl -n {namespace} logs deploy/levers9-agent -p"),
    )
}

/// How it ended, with its last words.
fn end_of(ended: &ContainerStateTerminated) -> String {
    let reason = ended.reason.as_deref().filter(|reason| *reason != "Error").unwrap_or_default();
    let space = if reason.is_empty() { "" } else { " " };
    let how = format!("{reason}{space}exit code {}", ended.exit_code);
    let said = last_lines(ended.message.as_deref().unwrap_or_default());
    if said.is_empty() { how } else { format!("{how}: {said}") }
}

/// The last lines of a message, on one line.
fn last_lines(message: &str) -> String {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut said = String::new();
    for line in lines.iter().rev().take(5) {
        let line = printable(line, LAST_WORDS);
        if said.len() + line.len() > LAST_WORDS && !said.is_empty() {
            break;
        }
        said = if said.is_empty() { line } else { format!("{line} | {said}") };
    }
    said
}

/// It runs. Why it is not here, only it can say.
fn running(container: &ContainerStatus, namespace: &str, address: &str, log: &str) -> Finding {
    let restarts = match container.restart_count {
        0 => String::new(),
        1 => " (restarted once)".to_owned(),
        count => format!(" (restarted {count} times)"),
    };
    let before = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let before = before.map(|ended| format!("; before, it ended with {}", end_of(ended))).unwrap_or_default();
    let its_log = format!("its log: kubectl -n {namespace} logs deploy/levers9-agent");
    let udp = "is UDP, or TCP, to that address open from the cluster (egress rules, NAT), and does the name resolve there?";
    let (said, hint) = match problem_of(log) {
        Some(problem) if problem.contains("token") => {
            let again = "does the Secret hold this cluster's token? a new one: levers9 cluster rotate-token";
            (format!(": {problem}"), format!("{again}; {its_log}"))
        }
        Some(problem) => (format!(": {problem}"), format!("{udp} {its_log}")),
        None => (String::new(), format!("{udp} {its_log}")),
    };
    Finding::new(
        "running, not connected yet",
        format!("its pod runs{restarts} but has not reached the controlplane at {address}{said}{before}"),
        hint,
    )
}

/// What an agent's log says last of what keeps it from connecting.
fn problem_of(log: &str) -> Option<String> {
    let problem = |line: &str| line.split_once(" problem=").map(|(_, problem)| problem.trim().to_owned());
    let last = log.lines().rev().find_map(problem)?;
    Some(printable(last.trim_matches('"'), MESSAGE)).filter(|problem| !problem.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(conditions: Value) -> Option<Deployment> {
        Some(
            serde_json::from_value(json!({ "metadata": {}, "status": { "conditions": conditions } }))
                .unwrap(),
        )
    }

    fn pod(node: &str, status: Value) -> Pod {
        let spec = json!({ "nodeName": node, "containers": [] });
        serde_json::from_value(json!({ "metadata": {}, "spec": spec, "status": status })).unwrap()
    }

    fn found(node: &str, status: Value) -> Finding {
        let seen =
            Seen { deployment: deployment(json!([])), pods: vec![pod(node, status)], ..Seen::default() };
        of(&seen, "gpus", "cp.example:443")
    }

    fn container(state: Value, last: Value, restarts: i32) -> Finding {
        let status = json!({ "name": "agent", "image": "r/w:1", "imageID": "", "ready": false,
            "restartCount": restarts, "state": state, "lastState": last });
        found("n1", json!({ "phase": "Running", "containerStatuses": [status] }))
    }

    #[test]
    fn nothing_there_is_said() {
        let finding = of(&Seen::default(), "gpus", "cp");
        assert_eq!(finding.text, "its Deployment is not in namespace \"gpus\"");
        let seen = Seen { deployment: deployment(json!([])), ..Seen::default() };
        assert_eq!(of(&seen, "gpus", "cp").state, "no pod yet");
        let message = "pods \"levers9-agent-x\" is forbidden: violates PodSecurity \"restricted:latest\"";
        let refused = json!([{ "type": "ReplicaFailure", "status": "True", "message": message }]);
        let seen = Seen { deployment: deployment(refused), ..Seen::default() };
        let finding = of(&seen, "gpus", "cp");
        assert_eq!(finding.text, format!("the cluster refuses to create its pod: {message}"));
    }

    #[test]
    fn a_pending_pod_says_what_the_scheduler_says() {
        let message = "0/3 nodes are available: 3 node(s) had untolerated taint";
        let condition = json!({ "type": "PodScheduled", "status": "False", "message": message });
        let finding = found("", json!({ "phase": "Pending", "conditions": [condition] }));
        assert_eq!(finding.text, format!("its pod is pending: no node takes it: {message}"));
        assert_eq!(found("", json!({ "phase": "Pending" })).state, "pending");
        assert_eq!(found("n1", json!({ "phase": "Pending" })).state, "starting");
        let evicted = json!({ "phase": "Failed", "reason": "Evicted", "message": "disk" });
        assert_eq!(found("n1", evicted).text, "its pod has failed: Evicted: disk");
    }

    #[test]
    fn an_image_that_cannot_be_pulled_is_named() {
        for reason in ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"] {
            let waiting = json!({ "waiting": { "reason": reason, "message": "not found" } });
            let finding = container(waiting, json!({}), 0);
            assert_eq!(finding.text, format!("its image \"r/w:1\" cannot be pulled: {reason}: not found"));
            assert!(finding.hint.contains("--worker-image"));
        }
        let waiting = json!({ "waiting": { "reason": "ContainerCreating" } });
        assert_eq!(container(waiting, json!({}), 0).state, "starting");
        let waiting =
            json!({ "waiting": { "reason": "CreateContainerConfigError", "message": "no secret" } });
        let finding = container(waiting, json!({}), 0);
        assert_eq!(finding.text, "its container cannot be started: CreateContainerConfigError: no secret");
    }

    #[test]
    fn a_crash_loop_shows_the_last_lines() {
        let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off" } });
        let said = "one\ntwo\n\u{1b}[31mthree\nfour\nfive\n\nerror: no\nhint: yes\n";
        let last = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": said } });
        let finding = container(waiting.clone(), last, 4);
        assert_eq!(
            finding.text,
            "it has started and ended 4 times: exit code 1: \
             \\u{1b}[31mthree | four | five | error: no | hint: yes"
        );
        let killed = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
        let finding = container(killed, json!({}), 0);
        assert_eq!(finding.text, "it has started and ended once: OOMKilled exit code 137");
        assert_eq!(container(waiting, json!({}), 2).text, "it has started and ended 2 times");
        let long = "x".repeat(50_000);
        let last = json!({ "terminated": { "exitCode": 1, "message": long } });
        let running = json!({ "running": {} });
        assert!(container(running, last, 1).text.len() < 2_000);
    }

    #[test]
    fn one_that_runs_did_not_get_through() {
        let finding = container(json!({ "running": {} }), json!({}), 0);
        assert_eq!(finding.text, "its pod runs but has not reached the controlplane at cp.example:443");
        assert!(finding.hint.contains("UDP"));
        let last = json!({ "terminated": { "exitCode": 1, "message": "refused" } });
        let finding = container(json!({ "running": {} }), last, 2);
        assert!(finding.text.ends_with("; before, it ended with exit code 1: refused"), "{}", finding.text);
    }

    #[test]
    fn one_that_runs_says_in_its_log_why_it_is_not_here() {
        let status = json!({ "name": "agent", "image": "r/w:1", "imageID": "", "ready": true,
            "restartCount": 0, "state": { "running": {} } });
        let pods = vec![pod("n1", json!({ "phase": "Running", "containerStatuses": [status] }))];
        let with = |log: &str| {
            let (deployment, pods) = (deployment(json!([])), pods.clone());
            of(&Seen { deployment, pods, log: log.to_owned() }, "gpus", "cp.example:443")
        };
        let line = |problem: &str| {
            format!(
                "2026-01-01T00:00:00Z  WARN levers9_transport::link: no session; trying problem={problem}\n"
            )
        };
        let blocked = "no answer from UDP cp.example:443: it is down, or UDP is blocked on the way";
        let finding = with(&format!("{}{}other\n", line("older"), line(blocked)));
        let said = "its pod runs but has not reached the controlplane at cp.example:443";
        assert_eq!(finding.text, format!("{said}: {blocked}"));
        assert!(finding.hint.contains("is UDP, or TCP, to that address open"), "{}", finding.hint);
        let finding = with(&line("this token is not known here"));
        assert_eq!(finding.text, format!("{said}: this token is not known here"));
        assert!(finding.hint.contains("rotate-token") && !finding.hint.contains("UDP"), "{}", finding.hint);
        assert_eq!(with("nothing of use\n").text, said);
    }

    #[test]
    fn a_pod_that_is_going_counts_only_when_there_is_no_other() {
        let going: Pod = serde_json::from_value(json!({
            "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" }, "status": { "phase": "Running" },
        }))
        .unwrap();
        let seen = Seen { deployment: deployment(json!([])), pods: vec![going.clone()], ..Seen::default() };
        assert_eq!(of(&seen, "gpus", "cp").state, "an older one is ending");
        let pods = vec![going, pod("", json!({ "phase": "Pending" }))];
        let seen = Seen { deployment: deployment(json!([])), pods, ..Seen::default() };
        assert_eq!(of(&seen, "gpus", "cp").state, "pending");
    }
}
