//! The transport on a simulated network with a paused clock: what loss, holes,
//! NATs, restarts and rude peers do to sessions and streams. Every case is
//! deterministic by its seed.

#![cfg(test)]

mod chaos;
mod claims;
mod credit;
mod cuts;
mod drains;
mod fuzz;
mod hostile;
mod idlers;
mod links;
mod long;
mod moves;
mod outages;
mod pipes;
mod raw;
mod rude;
mod said;
mod storm;
mod streams;
mod tunnels;
mod world;
