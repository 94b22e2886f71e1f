#![cfg(test)]
//! The real parts on a real control plane of Kubernetes, with nodes that are
//! only objects and a kubelet that runs pods as processes.

mod a_begin;
mod bad_input;
mod failures;
mod join;
mod joining;
mod lab;
mod rights;
mod rolling;
mod slow;
mod support;
mod tenancy;
mod workers;
