//! Ports 1993 and 1994 over real sockets, before a small controlplane: what
//! they answer, what hostile peers cannot do, and how they stop.
#![cfg(test)]

mod answers;
mod calls;
mod descriptors;
mod desk;
mod hostile;
mod log;
mod stopping;
mod tls;
