//! Which worker Jobs to order on which nodes of attached clusters, which idle
//! workers to stop, and why a task still waits. Pure: the shell in
//! [`crate::scheduler`] gathers a [`Situation`] for each pass, carries out the
//! [`Step`]s that [`plan`] gives back, and answers people with [`why`] and
//! [`impossible`].
//!
//! It decides about workers only. Which task runs on which connected worker is
//! [`crate::scheduler::core`]'s; here are the tasks that fit on none. It never
//! waits, keeps nothing between passes, speaks to no agent, believes no picture
//! older than [`Limits::stale`], and tells a workspace nothing of a pool that
//! does not serve it.
//!
//! What holds for every pass, whatever reports say (F86, F95-F107):
//! - a node with a pending worker gets no second one, and a pool never more
//!   pending workers than it has nodes that are Ready and not cordoned;
//! - workers that a picture does not count yet are taken off what it calls free;
//! - a task counts on the first worker that is coming and will have room for
//!   it, so that a wrong book costs one idle worker on a node and no flood.

mod board;
mod plan;
mod types;
mod verdict;
mod why;
mod words;

#[cfg(test)]
mod model;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use plan::{Step, StopWhy, plan};
pub use types::{
    Held, Limits, MINUTE, Node, Picture, Pool, PoolWorker, Recent, STALE, Situation, Stage, Withheld,
};
pub use verdict::{Verdict, impossible};
pub use why::{Ends, Place, Reason, Why, why};
