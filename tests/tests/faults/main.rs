//! Kills, cuts and floods the real binaries, and looks at what a person sees.
#![cfg(test)]

mod begin;
mod blocked;
mod callers;
mod calls;
mod carriers;
mod claims;
mod connect;
mod dev;
mod disk;
mod fallback;
mod garbage;
mod nat;
mod network;
mod output;
mod peer;
mod proxy;
mod restart;
mod rolling;
mod rotation;
mod scene;
mod sleep;
mod slow;
mod strangers;
mod support;
mod tokens;
mod workers;
