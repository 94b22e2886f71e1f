//! Kills, cuts and floods the real binaries, and looks at what a person sees.
#![cfg(test)]

mod begin;
mod callers;
mod calls;
mod carriers;
mod claims;
mod dev;
mod disk;
mod fallback;
mod garbage;
mod network;
mod output;
mod peer;
mod restart;
mod rolling;
mod rotation;
mod scene;
mod slow;
mod support;
mod tokens;
mod workers;
