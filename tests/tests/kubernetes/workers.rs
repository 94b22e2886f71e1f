//! Workers on clusters: who starts them, who counts them, who is left alone.

use std::time::Duration;

use levers9_tests::kube::Setup;
use levers9_tests::wait;
use serde_json::{Value, json};

use crate::support::{NAMESPACE, SOON, Site, add_node, name};

/// A node's name of 253 characters, as clouds make them and longer.
fn long_name(last: char) -> String {
    let part = "x".repeat(61);
    format!("{part}a.{part}b.{part}c.{}{last}", "y".repeat(63))
}

#[test]
fn a_worker_that_dies_is_missed_when_the_next_job_needs_its_node() {
    // Two names that are equal for 252 characters, and hosts that are called alike.
    let (first, second) = (long_name('1'), long_name('2'));
    let nodes = [("cpu-1", 0, ""), (first.as_str(), 1, "NVIDIA-L40S"), (second.as_str(), 2, "NVIDIA-L40S")];
    let site = Site::joined(&nodes, "L40S");
    let ran = site.world.cli(&["run", "--gpu", "L40S", "--", "echo", "first"]).ok();
    assert_eq!(ran.text(), "first\n");
    let pod = site.wait_worker_pod("runs", |pod| pod["status"]["phase"] == "Running");
    assert_eq!(pod["spec"]["nodeName"], first, "{pod:#}");
    let worker = pod["metadata"]["labels"]["levers9/worker"].clone();
    site.kubelet.kill9(name(&pod));
    // Its Job ends, its record goes, and nobody asks for another.
    site.wait_node("lab", &first, "is free again", |node| {
        node["workers"] == 0 && node["workers_pending"] == 0 && node["free"]["cards"] == 1
    });
    wait::until("the dead worker is no longer listed", SOON, || {
        let workers = site.json(&["worker", "list"]);
        let ghost = workers.as_array().into_iter().flatten().any(|row| row["id"] == worker);
        if ghost { Err(format!("{workers:#}")) } else { Ok(()) }
    });
    assert_eq!(running(&site).len(), 0);
    // A job for two cards: its worker is on the other node.
    let ran = site.world.cli(&["run", "--gpu", "L40S", "--gpu-count", "2", "--", "echo", "second"]).ok();
    assert_eq!(ran.text(), "second\n");
    let pods = running(&site);
    assert_eq!(pods.len(), 1, "{pods:#?}");
    assert_eq!(pods[0]["spec"]["nodeName"], second, "{pods:#?}");
    assert_eq!(pods[0]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], "2");
}

fn running(site: &Site) -> Vec<Value> {
    site.worker_pods().into_iter().filter(|pod| pod["status"]["phase"] == "Running").collect()
}

/// B88: a drain at the moment of the result.
#[test]
fn a_result_outlives_the_pod_it_was_made_in() {
    let site = Site::joined(&[("cpu-1", 0, ""), ("gpu-1", 1, "NVIDIA-L40S")], "L40S");
    let expected: String = (1..=20).map(|line| format!("line {line}\n")).collect();
    for round in 1..=8 {
        let script = "for i in $(seq 20); do echo line $i; done; exit 3";
        let mut job = site.world.cli_spawn(&["run", "--gpu", "L40S", "--", "sh", "-c", script]);
        job.wait_text("its last line", SOON, |text| text.contains("line 20\n"));
        for pod in running(&site) {
            let now = json!({ "gracePeriodSeconds": 5 });
            site.cluster.api().delete_with("pods", NAMESPACE, name(&pod), &now).expect("deleted");
        }
        assert_eq!(job.wait(SOON), 3, "round {round}: {}", job.shown());
        assert_eq!(job.text(), expected, "round {round}");
        site.wait_no_worker_pods();
    }
    let tasks = site.json(&["task", "list"]);
    for task in tasks.as_array().into_iter().flatten() {
        let shown = site.world.task(task["id"].as_str().expect("an id"));
        assert_eq!((&shown["status"], &shown["attempts"]), (&json!("ERROR"), &json!(1)), "{shown:#}");
    }
}

#[test]
fn a_worker_that_nobody_knows_is_counted_shown_and_left() {
    let site = Site::joined(&[("cpu-1", 0, ""), ("gpu-1", 1, "NVIDIA-L40S")], "L40S");
    let cluster = site.wait_cluster("lab", "is ready", |row| row["state"] == "ready");
    let worker = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6b";
    let labels = json!({ "levers9/cluster": cluster["id"], "levers9/worker": worker });
    let container = json!({
        "name": "worker", "image": "registry.example/shell:1", "command": ["sh", "-c", "sleep 1000"],
        "resources": { "limits": { "nvidia.com/gpu": "1" } },
    });
    let pod = json!({
        "restartPolicy": "Never", "nodeName": "gpu-1", "containers": [container],
        "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
    });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": format!("levers9-worker-{worker}"), "namespace": NAMESPACE, "labels": labels,
            "annotations": { "levers9/node": "gpu-1" },
        },
        "spec": { "backoffLimit": 0, "template": { "metadata": { "labels": labels }, "spec": pod } },
    });
    site.cluster.api().create(&job).expect("a Job is made");
    site.wait_node("lab", "gpu-1", "has its card taken by a worker", |node| {
        node["levers9"]["cards"] == 1 && node["free"]["cards"] == 0 && node["offered"] == false
    });
    wait::until("the orphan is shown on its node", SOON, || {
        let nodes = site.json(&["cluster", "nodes", "lab"]);
        let shown = nodes["orphans"].as_array().is_some_and(|orphans| {
            orphans.len() == 1 && orphans[0]["worker"] == worker && orphans[0]["node"] == "gpu-1"
        });
        if shown { Ok(()) } else { Err(format!("{nodes:#}")) }
    });
    let told = site.world.cli(&["cluster", "nodes", "lab"]).ok();
    assert!((told.text() + &told.stderr).contains(worker), "{} {}", told.text(), told.stderr);
    // Nothing is started beside it, and the agent and the controlplane leave it.
    let task = site.world.submit_with(&["--gpu", "L40S"], "echo never");
    let why = site.world.cli(&["why", &task]).ok().text();
    assert!(why.contains("gpu-1") && why.contains("taken"), "{why}");
    site.kubelet.kill9(&site.agent_pod());
    site.wait_cluster("lab", "is ready again", |row| row["state"] == "ready" && row["cards_free"] == 0);
    let job = site.cluster.api().get("jobs", NAMESPACE, &format!("levers9-worker-{worker}"));
    assert!(job.expect("it is still there")["metadata"]["deletionTimestamp"].is_null());
    let _cancelled = site.world.cli(&["task", "stop", &task]).ok();
}

pub(crate) fn a_picture_that_is_too_old_places_nothing() {
    let site = Site::joined(&[("cpu-1", 0, ""), ("gpu-1", 1, "NVIDIA-L40S")], "L40S");
    site.cluster.kill_apiserver();
    // The product's own 90 s.
    let long = Duration::from_secs(150);
    wait::until("the cluster is stale", long, || {
        let rows = site.json(&["cluster", "list"]);
        if rows[0]["state"] == "stale" { Ok(()) } else { Err(format!("{rows:#}")) }
    });
    let task = site.world.submit_with(&["--gpu", "L40S"], "echo at last");
    let why = site.world.cli(&["why", &task]).ok().text();
    assert!(why.contains("stale"), "{why}");
    let nodes = site.json(&["cluster", "nodes", "lab"]);
    assert!(
        nodes["nodes"].as_array().is_some_and(|all| all.iter().all(|n| n["offered"] == false)),
        "{nodes:#}"
    );
    site.cluster.start_apiserver();
    site.world.wait_status(&task, "COMPLETE", long);
}

#[test]
fn nodes_that_come_go_and_change_are_followed() {
    let site = Site::with(&[("cpu-1", 0, "")], Setup::default(), levers9_tests::Setup::default());
    let _joined = site.join("lab", "L40S", &[]).ok();
    add_node(&site.cluster, "gpu-9", 4, "NVIDIA-L40S");
    site.wait_node("lab", "gpu-9", "is offered", |node| {
        node["offered"] == true && node["free"]["cards"] == 4
    });
    let pod = |name: &str, cards: u32| {
        let _pod = site.cluster.pod("default", name).request("nvidia.com/gpu", cards).on("gpu-9").create();
    };
    pod("neighbour", 3);
    site.wait_node("lab", "gpu-9", "counts a neighbour", |node| {
        node["others"]["cards"] == 3 && node["free"]["cards"] == 1
    });
    site.cluster.cordon("gpu-9", true);
    site.wait_node("lab", "gpu-9", "is cordoned", |node| node["withheld"] == "cordoned");
    site.cluster.cordon("gpu-9", false);
    site.cluster.taint("gpu-9", "team", "other", "NoSchedule");
    site.wait_node("lab", "gpu-9", "is tainted", |node| node["withheld"] == "tainted");
    site.cluster.untaint("gpu-9", "team");
    site.cluster.set_ready("gpu-9", false);
    site.wait_node("lab", "gpu-9", "is not ready", |node| node["withheld"] == "not-ready");
    site.cluster.set_ready("gpu-9", true);
    site.wait_node("lab", "gpu-9", "is offered again", |node| node["offered"] == true);
    site.cluster.set_allocatable("gpu-9", "nvidia.com/gpu", 3);
    site.wait_node("lab", "gpu-9", "has no card left", |node| node["withheld"] == "no-free-card");
    // Removed and made again under the same name: what was there is not counted.
    site.cluster.delete_node("gpu-9");
    site.wait_cluster("lab", "has one node", |row| row["nodes"] == 1);
    site.cluster.api().delete_with("pods", "default", "neighbour", &json!({ "gracePeriodSeconds": 0 })).ok();
    add_node(&site.cluster, "gpu-9", 2, "NVIDIA-L40S");
    site.wait_node("lab", "gpu-9", "is new", |node| node["offered"] == true && node["free"]["cards"] == 2);
    // A label that speaks against the cluster's cards: for CPU work only.
    add_node(&site.cluster, "gpu-8", 2, "NVIDIA-A100-SXM4-80GB");
    let other = site.wait_node("lab", "gpu-8", "is reported", |_| true);
    assert!(other["why"].as_str().is_some_and(|why| why.contains("A100")), "{other:#}");
}
