//! Reaching into containers and out of them, over a session with a
//! controlplane that a test plays: real processes, real sockets, and QUIC over
//! the loopback address.
#![cfg(test)]

mod bench;
mod door;
mod exec;
mod gone;
mod helper;
mod terminal;
mod tunnel;
mod world;
