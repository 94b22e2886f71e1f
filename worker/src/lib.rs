//! The levers9 worker: runs containers, keeps their logs, and reports both to
//! its controlplane over the one session it opens outbound.
//!
//! [`containers::Containers`] owns every container: it starts them through a
//! [`runtime::Runtime`], journals their life as wire events and keeps their
//! output in a [`spool::Spool`] until it is acknowledged. [`session::Worker`] is
//! the session around it. Nothing here listens on the network; a container with
//! a token finds the controlplane behind one port of the loopback address.
//!
//! Every binary that embeds this crate calls [`run_if_supervisor`] first in
//! `main`: the `process` runtime re-executes the binary it runs in.

pub mod args;
pub mod capacity;
mod cgroup;
pub mod containers;
pub mod facts;
pub mod life;
mod proc;
pub mod runtime;
pub mod session;
pub mod spool;
mod supervisor;

pub use containers::{Config, Containers, Handle, Refused};
pub use supervisor::run_if_supervisor;
