//! Kills, cuts and floods the real binaries, and looks at what a person sees.
#![cfg(test)]

mod begin;
mod callers;
mod carriers;
mod dev;
mod disk;
mod fallback;
mod garbage;
mod network;
mod output;
mod restart;
mod rolling;
mod scene;
mod slow;
mod support;
mod tokens;
mod workers;
