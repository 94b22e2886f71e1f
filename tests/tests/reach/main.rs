#![cfg(test)]
//! HTTP, upgrades, gRPC and TCP into containers: a client that speaks byte by
//! byte, the real controlplane and worker, and an origin in a job that says
//! exactly what it is told to.

mod away;
mod churn;
mod doors;
mod exec;
mod fairness;
mod forward;
mod grpc;
mod hostile_bytes;
mod hostile_sizes;
mod http2_bytes;
mod http_auth;
mod http_bodies;
mod http_cancel;
mod http_errors;
mod http_headers;
mod http_hosts;
mod http_pool;
mod http_streaming;
mod http_upgrade;
mod slow;
mod support;
