//! The status of a pod, as a kubelet says it.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::container::{Container, State};

/// The address of every node.
pub(super) const HOST_IP: &str = "127.0.0.1";

/// What a status is made of beside the containers.
#[derive(Debug)]
pub(super) struct About<'a> {
    pub(super) pod: &'a Value,
    pub(super) ip: &'a str,
    pub(super) started: &'a str,
    /// Why no container can be made yet.
    pub(super) blocked: Option<&'a str>,
}

/// The phase of a pod with these containers.
pub(super) fn phase(containers: &[Container]) -> &'static str {
    let codes: Vec<Option<i64>> = containers.iter().map(Container::code).collect();
    if codes.iter().all(|code| *code == Some(0)) {
        "Succeeded"
    } else if codes.iter().all(Option::is_some) {
        "Failed"
    } else if containers.iter().all(|container| container.starts > 0) {
        "Running"
    } else {
        "Pending"
    }
}

/// The whole status. Times of conditions are those of `before` where nothing changed.
pub(super) fn of(about: &About<'_>, containers: &[Container], before: &Value) -> Value {
    let phase = phase(containers);
    let over = phase == "Succeeded" || phase == "Failed";
    let ready = containers.iter().all(Container::is_running);
    let reason = match (ready, phase) {
        (true, _) => "",
        (false, "Succeeded") => "PodCompleted",
        (false, "Failed") => "PodFailed",
        (false, _) => "ContainersNotReady",
    };
    let condition = |kind: &str, so: bool, reason: &str| {
        let status = if so { "True" } else { "False" };
        let mut known = before["conditions"].as_array().into_iter().flatten();
        let same = known.find(|it| it["type"] == kind && it["status"] == status);
        let since = same.map_or_else(
            || Value::from(Timestamp::now().to_string()),
            |same| same["lastTransitionTime"].clone(),
        );
        json!({ "type": kind, "status": status, "reason": reason, "lastTransitionTime": since })
    };
    let conditions = json!([
        condition("PodReadyToStartContainers", about.blocked.is_none() && !over, ""),
        condition("Initialized", true, if phase == "Succeeded" { "PodCompleted" } else { "" }),
        condition("Ready", ready, reason),
        condition("ContainersReady", ready, reason),
        condition("PodScheduled", true, ""),
    ]);
    let statuses: Vec<Value> = containers.iter().map(|container| one(about, container)).collect();
    let mut status = json!({
        "phase": phase,
        "conditions": conditions,
        "containerStatuses": statuses,
        "startTime": about.started,
        "hostIP": HOST_IP,
        "hostIPs": [{ "ip": HOST_IP }],
        "qosClass": about.pod["status"]["qosClass"],
    });
    if containers.iter().any(|container| container.starts > 0) {
        status["podIP"] = Value::from(about.ip);
        status["podIPs"] = json!([{ "ip": about.ip }]);
    }
    status
}

fn one(about: &About<'_>, container: &Container) -> Value {
    let state = match &container.state {
        State::Waiting { .. } if about.blocked.is_some() => {
            json!({ "waiting": { "reason": "ContainerCreating", "message": about.blocked } })
        }
        State::Waiting { reason, message } => json!({ "waiting": { "reason": reason, "message": message } }),
        State::Running(running) => json!({ "running": { "startedAt": running.since } }),
        State::Ended(terminated) => json!({ "terminated": terminated }),
    };
    let last = container.last.as_ref().map_or_else(|| json!({}), |last| json!({ "terminated": last }));
    let started = container.starts > 0;
    json!({
        "name": container.name,
        "image": container.image,
        "imageID": if started { container.image.as_str() } else { "" },
        "containerID": if started { container.id(about.pod) } else { String::new() },
        "ready": container.is_running(),
        "started": container.is_running(),
        "restartCount": container.restarts(),
        "state": state,
        "lastState": last,
    })
}
