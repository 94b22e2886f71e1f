//! The levers9 agent: what of a Kubernetes cluster is lent and free, told to
//! the controlplane, and worker Jobs on its orders.
//!
//! What decides is pure: [`capacity`] counts as the scheduler does,
//! [`selector`] says which nodes are lent, [`picture`] is what was seen,
//! [`pace`] says when to report, [`template`] is the worker Job. Around it is
//! a thin shell: [`kubernetes`] asks and watches the API server, the session
//! reports, [`orders`] creates and deletes Jobs, and [`agent`] holds them
//! together. [`probe`] tells Kubernetes how it is. [`manifest`] is what runs an agent in a cluster. An agent never
//! listens and never sees a job's code.

pub mod agent;
pub mod args;
pub mod capacity;
#[cfg(test)]
mod double;
pub mod eyes;
pub mod kubernetes;
pub mod manifest;
pub mod orders;
pub mod pace;
pub mod picture;
pub mod probe;
pub mod quantity;
pub mod selector;
mod session;
pub mod template;
