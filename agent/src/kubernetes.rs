//! The API server: how it is asked, and how it is watched. Knows paths,
//! versions and answers; what an object means is [`crate::picture`]'s. Every
//! request has a time and every answer a size it may not exceed.
//!
//! What is asked for, and no more: nodes and pods are listed and watched
//! everywhere; Jobs of the own namespace are listed, watched, read, created
//! and deleted; `/version` is read.

mod api;
mod lines;
mod pauses;
mod token;
mod watch;

pub use api::{Answer, Api, ApiError};
pub use pauses::Pauses;
pub use watch::{Watch, run};

#[cfg(test)]
mod tests;
