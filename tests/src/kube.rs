//! A real control plane of Kubernetes and a kubelet for tests.
//!
//! A [`Cluster`] is etcd, kube-apiserver with RBAC, kube-controller-manager and
//! kube-scheduler as they are, with data, keys and ports of its own.
//! [`shared`] gives all tests of a program the same one, and each takes a
//! [`Cluster::namespace`] for itself; a test that kills parts starts its own.
//! Nodes are objects made by [`Cluster::node`]; a [`Kubelet`] runs the pods
//! bound to some of them as real processes of the binaries under test.
//!
//! ```no_run
//! use levers9_tests::kube::{Kubelet, shared};
//!
//! let cluster = shared();
//! let namespace = cluster.namespace();
//! cluster.node("one").allocatable("nvidia.com/gpu", 8).create();
//! let kubelet = Kubelet::start(cluster, &["one"]);
//! cluster.api().apply_yaml("apiVersion: batch/v1 ...").expect("the job is taken");
//! println!("{}", kubelet.log("the-pod"));
//! ```
//!
//! Like the rest of the harness it is plain blocking code, ends with the test
//! process however that goes, and fails with words where something is missing:
//! `.ci/kubernetes` builds the binaries. It never talks to another cluster.

mod api;
mod assets;
mod audit;
mod cluster;
mod component;
mod kubeconfig;
mod kubelet;
mod node;
mod pki;
mod pod;
mod resource;

pub use api::{Api, Refused, block_on};
pub use cluster::{Cluster, Setup, shared};
pub use kubelet::{Kubelet, Process};
pub use node::NodeMaker;
pub use pod::PodMaker;
