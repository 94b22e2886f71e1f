//! The levers9 controlplane: who may do what, which task runs where, and what
//! came of it. [`server`] starts and stops it; [`gate`] lets peers in;
//! [`calls`] answers people, [`workers`] and [`runs`] drive what runs,
//! [`scheduler`] places, [`logs`] keeps what is said, [`reach`] and [`ingress`]
//! lead into containers, [`ports`] serves gRPC and HTTP. Everything it must not
//! forget is in [`store`]; what must not be read
//! back by others is sealed by [`seal`] before it gets there.

pub mod auth;
pub mod calls;
pub mod clusters;
pub mod config;
pub mod drain;
pub mod front;
pub mod gate;
pub mod ingress;
pub mod janitor;
pub mod jobs;
pub mod limiter;
pub mod logs;
pub mod outcome;
pub mod places;
pub mod ports;
pub mod reach;
pub mod recover;
pub mod runs;
pub mod scheduler;
pub mod seal;
pub mod server;
pub mod sessions;
pub mod state;
pub mod store;
#[cfg(test)]
pub(crate) mod testing;
pub mod workers;
