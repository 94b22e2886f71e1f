//! What one pod holds, and of which node.
//!
//! [`super::count`] asks for each pod of the cluster. The sum is the
//! scheduler's: the larger of what runs for good and what an init stage
//! needs, pod-level figures above it, an in-place resize at its largest,
//! overhead last. Containers' states play no part, only the pod's phase.

use super::amounts::{Amounts, BadResource, Millis};
use super::objects::{Container, ContainerStatus, Pod, Quantities, StatusResources};

/// Where a pod that is not finished holds something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// It is bound to the node of this name, started or not.
    Bound(&'a str),
    /// It waits for room on the node of this name.
    Nominated(&'a str),
}

impl<'a> Place<'a> {
    /// The node's name.
    #[must_use]
    pub fn node(self) -> &'a str {
        match self {
            Self::Bound(node) | Self::Nominated(node) => node,
        }
    }
}

/// The node a pod holds something of; none when it is finished or waits
/// anywhere. A terminating pod holds its node until it is finished or gone.
#[must_use]
pub fn place(pod: &Pod) -> Option<Place<'_>> {
    if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
        return None;
    }
    match (pod.spec.node_name.as_str(), pod.status.nominated_node_name.as_str()) {
        ("", "") => None,
        ("", nominated) => Some(Place::Nominated(nominated)),
        (bound, _) => Some(Place::Bound(bound)),
    }
}

/// What a pod holds while it is not finished, its pod slot included.
///
/// # Errors
/// With the first amount that cannot be read or counted.
pub fn request(pod: &Pod) -> Result<Amounts, BadResource> {
    let resize = Resize::of(pod);
    let mut held = containers(pod, resize)?;
    let pod_level = pod_level(pod, &held, resize)?;
    held.replace(pod_level);
    held.add(&Millis::read(&pod.spec.overhead)?);
    Ok(Amounts { pods: 1, ..held.round_up() })
}

/// Whether what the spec asks for may still come true.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Resize {
    Possible,
    Infeasible,
}

impl Resize {
    fn of(pod: &Pod) -> Self {
        let infeasible = |c: &super::Condition| c.kind == "PodResizePending" && c.reason == "Infeasible";
        if pod.status.conditions.iter().any(infeasible) { Self::Infeasible } else { Self::Possible }
    }
}

/// The larger, per resource, of what runs side by side for good and what each
/// init container needs beside the sidecars that started before it.
fn containers(pod: &Pod, resize: Resize) -> Result<Millis<'_>, BadResource> {
    let mut sidecars = Millis::default();
    let mut init_peak = Millis::default();
    for container in &pod.spec.init_containers {
        if container.restart_policy == "Always" {
            sidecars.add(&resized(container, &pod.status.init_container_statuses, resize)?);
        } else {
            let mut stage = wanted(container)?;
            stage.add(&sidecars);
            init_peak.raise(&stage);
        }
    }
    let mut held = sidecars;
    for container in &pod.spec.containers {
        held.add(&resized(container, &pod.status.container_statuses, resize)?);
    }
    held.raise(&init_peak);
    Ok(held)
}

/// What a container asks for; a limit stands in for a missing request.
fn wanted(container: &Container) -> Result<Millis<'_>, BadResource> {
    let mut wanted = Millis::read(&container.resources.requests)?;
    wanted.fill(&Millis::read(&container.resources.limits)?);
    Ok(wanted)
}

/// What a long-running container asks for, or more where its status says so.
fn resized<'a>(
    container: &'a Container,
    statuses: &'a [ContainerStatus],
    resize: Resize,
) -> Result<Millis<'a>, BadResource> {
    let mut held = wanted(container)?;
    let status = statuses.iter().find(|status| status.name == container.name);
    if let Some((actual, granted)) =
        status.and_then(|s| Some((s.resources.as_ref()?, &s.allocated_resources)))
    {
        // A resize is about cpu and memory; cards stay even when it cannot be.
        if resize == Resize::Infeasible {
            held.forget_cpu_and_memory();
        }
        raise_to_status(&mut held, actual, granted)?;
    }
    Ok(held)
}

/// The cpu and memory of the pod as a whole, which replace the containers'
/// sum; nothing where no pod-level resources are in use.
fn pod_level<'a>(pod: &'a Pod, containers: &Millis<'a>, resize: Resize) -> Result<Millis<'a>, BadResource> {
    // A missing request is the containers' sum, and without one the limit.
    let mut defaults = Millis::read(&pod.spec.resources.limits)?;
    defaults.forget(containers);
    let mut held = Millis::read(&pod.spec.resources.requests)?;
    held.fill(&defaults);
    held.keep_cpu_and_memory();
    if let (false, Some(actual)) = (held.is_empty(), &pod.status.resources) {
        if resize == Resize::Infeasible {
            held.forget_cpu_and_memory();
        }
        raise_to_status(&mut held, actual, &pod.status.allocated_resources)?;
        held.keep_cpu_and_memory();
    }
    Ok(held)
}

fn raise_to_status<'a>(
    held: &mut Millis<'a>,
    actual: &'a StatusResources,
    granted: &'a Quantities,
) -> Result<(), BadResource> {
    held.raise(&Millis::read(&actual.requests)?);
    held.raise(&Millis::read(granted)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(json: &str) -> Amounts {
        request(&serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn only_cpu_and_memory_exist_at_pod_level() {
        let held = held(
            r#"{"spec": {
                "containers": [{"resources": {"requests": {"nvidia.com/gpu": "2"}}}],
                "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}}
            }}"#,
        );
        assert_eq!((held.cpu_millis, held.extended.get("nvidia.com/gpu")), (1_000, Some(&2)));
    }

    #[test]
    fn an_infeasible_pod_level_wish_without_a_status_still_counts() {
        let held = held(
            r#"{
                "spec": {"containers": [{}], "resources": {"requests": {"cpu": "30"}}},
                "status": {"conditions": [{"type": "PodResizePending", "reason": "Infeasible"}]}
            }"#,
        );
        assert_eq!(held.cpu_millis, 30_000);
    }

    #[test]
    fn an_infeasible_resize_keeps_cards_that_no_status_shows() {
        let held = held(
            r#"{
                "spec": {"containers": [
                    {"name": "c", "resources": {"limits": {"cpu": "60", "nvidia.com/gpu": "2"}}}
                ]},
                "status": {
                    "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}],
                    "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
                }
            }"#,
        );
        assert_eq!((held.cpu_millis, held.extended.get("nvidia.com/gpu")), (1_000, Some(&2)));
    }

    #[test]
    fn being_bound_comes_before_being_nominated() {
        let mut pod = Pod::default();
        assert_eq!(place(&pod), None);
        "a".clone_into(&mut pod.status.nominated_node_name);
        assert_eq!(place(&pod), Some(Place::Nominated("a")));
        "b".clone_into(&mut pod.spec.node_name);
        assert_eq!(place(&pod), Some(Place::Bound("b")));
        "Failed".clone_into(&mut pod.status.phase);
        assert_eq!(place(&pod), None);
    }
}
