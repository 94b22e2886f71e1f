#![cfg(test)]
//! Every message and exit code a person meets, from the real binaries: what is
//! said to bad input, what each command does, and what must never be shown.

mod bad_tokens;
mod commands;
mod dev;
mod inspect;
mod jobs;
mod listings;
mod logs;
mod names;
mod pipes;
mod ports;
mod refusals;
mod secrets;
mod signals;
mod starting;
mod support;
mod terminal;
mod unreachable;
mod workspaces;
