//! The part of a levers9 worker that runs containers and keeps their logs.
//!
//! [`containers::Containers`] owns every container: it starts them through a
//! [`runtime::Runtime`], journals their life as wire events and keeps their
//! output in a [`spool::Spool`] until it is acknowledged. A session talks to
//! it; nothing here opens a network connection.
//!
//! Every binary that embeds this crate calls [`run_if_supervisor`] first in
//! `main`: the `process` runtime re-executes the binary it runs in.

pub mod capacity;
mod cgroup;
pub mod containers;
pub mod facts;
pub mod life;
mod proc;
pub mod runtime;
pub mod spool;
mod supervisor;

pub use containers::{Config, Containers, Handle, Refused};
pub use supervisor::run_if_supervisor;
