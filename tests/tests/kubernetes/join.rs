//! From `cluster join` to the output of a job, and away again.

use levers9_tests::wait;

use crate::support::{NAMESPACE, SOON, Site, name};

const NODES: [(&str, u32, &str); 3] =
    [("cpu-1", 0, ""), ("gpu-1", 2, "NVIDIA-L40S"), ("gpu-2", 4, "NVIDIA-L40S")];

#[test]
fn a_cluster_is_joined_runs_a_job_and_leaves() {
    let site = Site::new(&NODES);
    let joined = site.join("my-gke", "L40S", &[]).ok();
    for said in ["reaches Kubernetes v1.", "lends 3 of the cluster's 3 nodes", "is registered as", "applied"]
    {
        assert!(joined.stderr.contains(said), "{said}: {}", joined.stderr);
    }
    let shown = joined.text();
    for said in ["cpu-1", "gpu-1", "gpu-2", "2/2 L40S", "4/4 L40S"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    let row = site.wait_cluster("my-gke", "is ready", |row| row["state"] == "ready");
    assert_eq!(row["nodes_ready"], 3, "{row:#}");
    assert_eq!(row["cards_free"], 6, "{row:#}");

    let ran =
        site.world.cli(&["run", "--gpu", "L40S", "--", "sh", "-c", "echo on $LEVERS9_NODE; id -u; exit 7"]);
    let ran = ran.with_code(7);
    assert!(ran.text().ends_with("65532\n"), "{}", ran.text());
    // The best fit is the smallest node with room, and it is taken whole.
    let worker = site.wait_worker_pod("runs", |pod| pod["status"]["phase"] == "Running");
    assert_eq!(worker["spec"]["nodeName"], "gpu-1", "{worker:#}");
    assert_eq!(worker["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], "2");
    let workers = site.json(&["worker", "list"]);
    assert_eq!(workers[0]["node"], "gpu-1", "{workers:#}");
    assert_eq!(workers[0]["pool"], "my-gke", "{workers:#}");
    let node = site.wait_node("my-gke", "gpu-1", "is taken", |node| {
        node["workers"] == 1 && node["levers9"]["cards"] == 2
    });
    assert_eq!((&node["offered"], &node["withheld"]), (&false.into(), &"no-free-card".into()), "{node:#}");

    let left = site.kube(&["cluster", "leave", "my-gke", "--yes"]).ok();
    assert!(left.stderr.contains("token"), "{}", left.stderr);
    assert_eq!(site.json(&["cluster", "list"]).as_array().map(Vec::len), Some(0));
    site.wait_no_worker_pods();
    let api = site.cluster.api();
    wait::until("nothing is left but the namespace", SOON, || {
        for plural in ["pods", "jobs", "deployments", "serviceaccounts", "roles", "rolebindings", "secrets"] {
            let objects = api.list(plural, NAMESPACE).map_err(|refused| refused.to_string())?;
            if let Some(left) = objects.iter().find(|object| name(object).starts_with("levers9")) {
                return Err(format!("{plural}: {left:#}"));
            }
        }
        for plural in ["clusterroles", "clusterrolebindings"] {
            let objects = api.list(plural, "").map_err(|refused| refused.to_string())?;
            if let Some(left) = objects.iter().find(|object| name(object).starts_with("levers9")) {
                return Err(format!("{plural}: {left:#}"));
            }
        }
        api.get("namespaces", "", NAMESPACE).map(|_| ()).map_err(|refused| refused.to_string())
    });
}
