//! The Kubernetes lab for a person: a real control plane, three nodes that are
//! only objects, and the tests' kubelet, until Ctrl-C. Everything that a
//! cluster's owner does can be tried on it with the binaries beside this one.

#![expect(clippy::expect_used, reason = "what a test stands on fails the test, with words")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a person reads it")]

use levers9_tests::kube::{Cluster, Kubelet, block_on};
use tokio::signal::unix::{SignalKind, signal};

const NODES: [(&str, u32); 3] = [("cpu-1", 0), ("gpu-1", 1), ("gpu-2", 4)];

fn main() {
    eprintln!("starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler");
    let cluster = Cluster::start();
    for (name, cards) in NODES {
        let mut node = cluster.node(name).allocatable("cpu", "8").allocatable("memory", "32Gi");
        if cards > 0 {
            node = node
                .allocatable("nvidia.com/gpu", cards)
                .label("nvidia.com/gpu.product", "NVIDIA-L40S")
                .taint("nvidia.com/gpu", "present", "NoSchedule");
        }
        node.create();
    }
    let _kubelet = Kubelet::start(&cluster, &NODES.map(|(name, _)| name));
    eprintln!(
        "ready, until Ctrl-C: a node without cards, one with 1 and one with 4 L40S. In another terminal:"
    );
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    eprintln!("levers9 cluster join lab --gpu L40S --worker-image registry.example/levers9-worker:dev");
    block_on(async {
        let mut hangup = signal(SignalKind::hangup()).expect("signals can be awaited");
        let mut end = signal(SignalKind::terminate()).expect("signals can be awaited");
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = hangup.recv() => {}
            _ = end.recv() => {}
        }
    });
    eprintln!("stopping");
}
