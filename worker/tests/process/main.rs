//! Real processes under the `process` runtime, driven the way a session
//! drives them, with `levers9-worker` itself as supervisor.
#![cfg(test)]

mod common;
mod kill;
mod life;
mod memory;
