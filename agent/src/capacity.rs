//! What is free on a node, counted as the Kubernetes scheduler counts it, and
//! whether the node is offered at all.
//!
//! The shell gives a [`Node`], the cluster's [`Pod`]s and the worker's
//! [`Terms`]; [`count`] answers with [`Totals`] and [`NodeReport::new`] turns
//! them into what the controlplane is told. A report holds totals only: no
//! pod, namespace or label of anybody. Where the scheduler would place and a
//! sensible owner would not, the node is withheld. An amount that cannot be
//! read is never taken for zero.

mod amounts;
mod books;
mod objects;
mod pod;
mod report;
mod site;
mod taints;

pub use amounts::{Amounts, BadResource};
pub use books::{Held, Terms, Totals, Unreadable, count};
pub use objects::{
    CLUSTER_LABEL, Condition, Container, ContainerStatus, Node, NodeMetadata, NodeSpec, NodeStatus, Pod,
    PodLabels, PodMetadata, PodSpec, PodStatus, Quantities, Resources, StatusResources, Taint,
};
pub use pod::{Place, place, request};
pub use report::{CARD, NodeReport, Withheld};
pub use site::Site;
pub use taints::{Comparison, Toleration};
