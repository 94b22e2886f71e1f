//! What breaks in a cluster, and what a person sees of it: jobs go on or are
//! run again, and nobody stays away for good.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use levers9_tests::kube::Setup;
use levers9_tests::live::Signal;
use levers9_tests::{Backend, Counting, wait};
use serde_json::{Value, json};

use crate::support::{IMAGE, NAMESPACE, SOON, Site, add_node, name};

const PAIR: [(&str, u32, &str); 2] = [("gpu-1", 1, "NVIDIA-L40S"), ("gpu-2", 2, "NVIDIA-L40S")];
/// Counts, and says when it is told to end.
const COUNT: &str = "for i in $(seq 1 100000); do echo $i; sleep 0.05; done";

/// A job on a card that counts until it is told to end.
fn counting(site: &Site) -> Counting<'_> {
    Counting::start(&site.world, &["--gpu", "L40S"])
}

#[test]
fn an_agent_or_a_controlplane_that_is_killed_costs_a_job_nothing() {
    let site = Site::on(Backend::Postgres, &PAIR, Setup::default(), levers9_tests::Setup::default());
    let _joined = site.join("lab", "L40S", &[]).ok();
    let job = counting(&site);
    let agent = site.agent_pod();
    site.kubelet.kill9(&agent);
    site.cluster.api().wait("pods", NAMESPACE, &agent, SOON, |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    site.wait_cluster("lab", "is ready with a younger agent", |row| {
        row["state"] == "ready" && row["workers"] == 1
    });

    site.world.controlplane.kill9();
    site.world.controlplane.start();
    let row = site.wait_cluster("lab", "is known again", |row| row["state"] == "ready");
    assert_eq!((&row["workers"], &row["workers_pending"]), (&json!(1), &json!(0)), "{row:#}");
    job.end();
    assert_eq!(site.worker_pods().len(), 1, "no second worker was ordered");
    // And the agent takes orders from the new one.
    let ran = site.world.cli(&["run", "--gpu", "L40S", "--gpu-count", "2", "--", "echo", "two cards"]);
    assert_eq!(ran.ok().text(), "two cards\n");
}

pub(crate) fn a_node_that_is_lost_has_its_task_run_again_elsewhere_and_the_caller_follows() {
    let site = Site::joined(&PAIR, "L40S");
    let script = format!("echo on $HOSTNAME; [ -e /dev/null ]; {COUNT}");
    let mut job = site.world.cli_spawn(&["run", "--gpu", "L40S", "--", "sh", "-c", &script]);
    job.wait_text("it counts", SOON, |text| text.contains("\n3\n"));
    let pod = site.wait_worker_pod("runs", |pod| pod["status"]["phase"] == "Running");
    assert_eq!(pod["spec"]["nodeName"], "gpu-1", "{pod:#}");
    let agent_there = site.cluster.api().get("pods", NAMESPACE, &site.agent_pod()).expect("the agent's pod");
    // A machine that is gone: its processes end, its node object is removed.
    site.kubelet.forget_node("gpu-1");
    site.cluster.delete_node("gpu-1");
    job.wait_text("it starts over", Duration::from_secs(120), |text| {
        text.matches("\n1\n").count() + text.matches("\r1\n").count() >= 2
            || text.matches("\n3\n").count() >= 2
    });
    let second = site.wait_worker_pod("runs on the other node", |pod| {
        pod["spec"]["nodeName"] == "gpu-2" && pod["status"]["phase"] == "Running"
    });
    assert_ne!(name(&second), name(&pod));
    let workers = site.json(&["worker", "list"]);
    let ready: Vec<&Value> =
        workers.as_array().into_iter().flatten().filter(|w| w["state"] == "ready").collect();
    assert_eq!(ready.len(), 1, "{workers:#} {}", agent_there["spec"]["nodeName"]);
    job.signal(Signal::SIGINT);
    assert_eq!(job.wait(SOON), 130, "{}", job.shown());
}

#[test]
fn a_worker_s_pod_that_is_deleted_is_not_replaced_and_its_task_runs_again() {
    let site = Site::joined(&PAIR[..1], "L40S");
    let mut job = site.world.cli_spawn(&["run", "--gpu", "L40S", "--", "sh", "-c", COUNT]);
    job.wait_text("it counts", SOON, |text| text.contains("\n3\n"));
    let pod = site.wait_worker_pod("runs", |pod| pod["status"]["phase"] == "Running");
    let worker = pod["metadata"]["labels"]["levers9/worker"].clone();
    site.cluster
        .api()
        .delete_with("pods", NAMESPACE, name(&pod), &json!({ "gracePeriodSeconds": 1 }))
        .expect("deleted");
    job.wait_text("it starts over", Duration::from_secs(90), |text| text.matches("\n3\n").count() >= 2);
    let pods = site.worker_pods();
    let live: Vec<&Value> = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").collect();
    assert_eq!(live.len(), 1, "{pods:#?}");
    assert_ne!(live[0]["metadata"]["labels"]["levers9/worker"], worker, "an identity is meant for one pod");
    let workers = site.json(&["worker", "list"]);
    let ready = workers.as_array().into_iter().flatten().filter(|w| w["state"] == "ready").count();
    assert_eq!(ready, 1, "{workers:#}");
    job.signal(Signal::SIGINT);
    assert_eq!(job.wait(SOON), 130, "{}", job.shown());
}

#[test]
fn an_image_that_cannot_be_pulled_is_told_and_tried_again() {
    let site = Site::joined(&PAIR[..1], "L40S");
    site.kubelet.set_pullable(IMAGE, false);
    let task = site.world.submit_with(&["--gpu", "L40S"], "echo late");
    let node = site.wait_node("lab", "gpu-1", "tells what keeps its worker", |node| {
        node["why"].as_str().is_some_and(|why| why.contains("ImagePull"))
    });
    assert_eq!((&node["workers_pending"], &node["offered"]), (&json!(1), &json!(false)), "{node:#}");
    let why = site.world.cli(&["why", &task]).ok().text();
    assert!(why.contains("gpu-1") && why.contains("ImagePull"), "{why}");
    site.kubelet.set_pullable(IMAGE, true);
    site.world.wait_status(&task, "COMPLETE", SOON);
}

#[test]
fn an_api_server_that_is_away_is_told_and_missed_by_no_job() {
    let site = Site::joined(&PAIR, "L40S");
    let job = counting(&site);
    let agent = site.cluster.api().get("pods", NAMESPACE, &site.agent_pod()).expect("the agent's pod");
    let signs = site.kubelet.volumes(agent["metadata"]["uid"].as_str().expect("a uid")).join("signs");
    let wait_sign = |what: &str, wanted: fn(&Path) -> bool| {
        wait::until(what, SOON, || if wanted(&signs) { Ok(()) } else { Err(format!("{signs:?}")) });
    };
    wait_sign("the agent says that it is ready", |signs| signs.join("ready").exists());
    site.cluster.kill_apiserver();
    wait_sign("it lives and is not ready", |signs| {
        !signs.join("ready").exists() && signs.join("alive").exists()
    });
    site.wait_cluster("lab", "says what is wrong", |row| {
        row["note"].as_str().is_some_and(|note| note.contains("API server"))
    });
    let task = site.world.submit_with(&["--gpu", "L40S", "--gpu-count", "2"], "echo at last");
    job.end();
    site.cluster.start_apiserver();
    site.wait_cluster("lab", "is well again", |row| row["note"] == "" && row["state"] == "ready");
    wait_sign("it is ready again", |signs| signs.join("ready").exists());
    site.world.wait_status(&task, "COMPLETE", SOON * 2);
}

#[test]
fn a_cluster_that_leaves_takes_its_workers_along_and_its_agent_is_told() {
    let site = Site::joined(&PAIR[..1], "L40S");
    let mut job = site.world.cli_spawn(&["run", "--gpu", "L40S", "--", "sh", "-c", COUNT]);
    job.wait_text("it counts", SOON, |text| text.contains("\n3\n"));
    let agent = site.agent_pod();
    let refused = site.world.cli(&["cluster", "leave", "lab"]).with_code(2);
    assert!(refused.stderr.contains("--yes"), "{}", refused.stderr);
    let left = site.kube(&["cluster", "leave", "lab", "--yes", "--keep-agent"]).ok();
    assert!(left.stderr.contains("1 task"), "{}", left.stderr);
    // What is kept there is refused, says so, and goes on trying.
    site.kubelet.wait_log(&agent, "revoked", SOON);
    assert_eq!(site.json(&["cluster", "list"]), json!([]));
    job.signal(Signal::SIGINT);
    job.wait(SOON);
    let workers = site.json(&["worker", "list"]);
    assert!(workers.as_array().is_some_and(|all| all.iter().all(|w| w["state"] != "ready")), "{workers:#}");
}

#[test]
fn of_two_agents_with_one_token_the_newer_wins() {
    let site = Site::joined(&PAIR, "L40S");
    let first = site.agent_pod();
    let scale = json!({ "spec": { "replicas": 2 } });
    site.cluster.api().merge("deployments", NAMESPACE, "levers9-agent", &scale).expect("scaled");
    let second = wait::until("a second agent runs", SOON, || {
        let pods = site.cluster.api().list("pods", NAMESPACE).map_err(|refused| refused.to_string())?;
        let other = pods.iter().find(|pod| {
            name(pod).starts_with("levers9-agent")
                && name(pod) != first
                && pod["status"]["phase"] == "Running"
        });
        other.map(|pod| name(pod).to_owned()).ok_or_else(|| format!("{pods:#?}"))
    });
    site.kubelet.wait_log(&second, "online", SOON);
    site.kubelet.wait_log(&first, "superseded", SOON);
    let row = site.wait_cluster("lab", "has one agent", |row| row["state"] == "ready");
    assert_eq!(row["nodes_ready"], 2, "{row:#}");
    // When the newer one is gone the older one is let in again.
    let scale = json!({ "spec": { "replicas": 0 } });
    site.cluster.api().merge("deployments", NAMESPACE, "levers9-agent", &scale).expect("scaled");
    site.wait_cluster("lab", "has none", |row| row["state"] == "away");
}

#[test]
fn a_token_is_rotated_without_a_gap() {
    let site = Site::joined(&PAIR, "L40S");
    let job = counting(&site);
    let agent = site.agent_pod();
    let rotated = site.kube(&["cluster", "rotate-token", "lab"]).ok();
    assert!(!rotated.stderr.contains("l9_"), "{}", rotated.stderr);
    assert_eq!(site.wait_cluster("lab", "is still here", |_| true)["state"], "ready");
    // Where a kubelet has brought it to the pod, the next attempt is made with
    // the new one, which ends the old one.
    let pod = site.cluster.api().get("pods", NAMESPACE, &agent).expect("the agent's pod");
    let file = site.kubelet.volumes(pod["metadata"]["uid"].as_str().expect("a uid")).join("token/token");
    let new = site.cluster.api().get("secrets", NAMESPACE, "levers9-agent").expect("the Secret");
    wait::until("the pod has the new token", SOON, || {
        let there = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let wanted = new["data"]["token"].as_str().unwrap_or_default();
        if STANDARD.encode(there) == wanted { Ok(()) } else { Err("an older one".to_owned()) }
    });
    site.kubelet.kill9(&agent);
    site.cluster.api().wait("pods", NAMESPACE, &agent, SOON, |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    site.wait_cluster("lab", "is ready", |row| row["state"] == "ready");
    let tokens = site.json(&["token", "list"]);
    let of_cluster =
        tokens.as_array().into_iter().flatten().filter(|token| token["kind"] == "cluster").count();
    assert_eq!(of_cluster, 1, "{tokens:#}");
    job.end();
}

#[test]
fn a_cluster_without_nodes_is_joined_and_waits_for_them() {
    let site = Site::with(&[], Setup::default(), levers9_tests::Setup::default());
    let mut join = site.kube_spawn(&["cluster", "join", "lab", "--gpu", "L40S", "--timeout", "60"]);
    join.wait_errors("no nodes yet", SOON);
    join.wait_errors("pending", SOON);
    site.kubelet.add_node("cpu-1");
    add_node(&site.cluster, "cpu-1", 0, "");
    assert_eq!(join.wait(SOON), 0, "{}", join.shown());
    assert!(join.text().contains("cpu-1"), "{}", join.text());
    let refused = site.world.cli(&["run", "--gpu", "H100", "--", "true"]).with_code(125);
    assert!(refused.stderr.contains("H100"), "{}", refused.stderr);
}
