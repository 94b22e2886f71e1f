//! One controlplane takes another's place while a cluster is attached.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use levers9_tests::kube::Setup;
use levers9_tests::{Backend, Counting, world};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{SOON, Site};

const NAME: &str = "levers9.test";
const OLD: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const NEW: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const NODES: [(&str, u32, &str); 2] = [("gpu-1", 1, "NVIDIA-L40S"), ("gpu-2", 2, "NVIDIA-L40S")];

/// F9: nothing is to be done on the cluster, whose agent and workers go along.
#[test]
fn a_cluster_and_its_workers_go_along() {
    let set = world::Setup { config: "drain: 15s\n".to_owned(), name: Some(NAME), ..world::Setup::default() };
    let site = Site::on(Backend::Postgres, &NODES, Setup::default(), set);
    site.kubelet.share_hosts(site.world.home.hosts());
    // The new one has started before there was anything to know.
    let new = site.world.controlplane.beside("new", NEW);
    new.start();
    let _joined = site.join("lab", "L40S", &[]).ok();
    let job = Counting::start(&site.world, &["--gpu", "L40S"]);
    site.world.home.resolve(NAME, &[OLD, NEW]);

    site.world.controlplane.begin_to_stop();
    let began = Instant::now();
    let row = site.wait_cluster("lab", "is served by the new one", |row| row["state"] == "ready");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!((&row["workers"], &row["workers_pending"]), (&json!(1), &json!(0)), "{row:#}");
    // And its agent takes orders from there, while what ran goes on.
    let ran = site.world.cli(&["run", "--gpu", "L40S", "--gpu-count", "2", "--", "echo", "two cards"]);
    assert_eq!(ran.ok().text(), "two cards\n");
    job.wait_more(20);
    assert_eq!(site.world.controlplane.wait_end(SOON), 0, "{}", site.world.controlplane.log());
    site.world.home.resolve(NAME, &[NEW]);
    job.wait_more(20);
    let row = site.wait_cluster("lab", "is ready", |row| row["state"] == "ready" && row["workers"] == 2);
    assert_eq!(row["workers_pending"], 0, "{row:#}");
    job.end();
    assert_eq!(site.worker_pods().len(), 2, "no worker was ordered twice");
}
