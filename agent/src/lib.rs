//! The levers9 agent's decisions: which nodes of a cluster are lent and what
//! is free on them.
//!
//! Everything here is a plain function of its arguments. The shell that
//! watches the Kubernetes API and reports to the controlplane calls it; this
//! code never does I/O, never reads a clock and never sees a job's code.

pub mod capacity;
pub mod manifest;
pub mod quantity;
pub mod selector;
