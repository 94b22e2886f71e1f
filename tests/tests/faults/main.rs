//! Kills, cuts and floods the real binaries, and looks at what a person sees.
#![cfg(test)]

mod restart;
mod support;
