//! The levers9 wire protocol: what agents, workers, the CLI and the
//! controlplane say to each other on a QUIC stream.
//!
//! This crate owns the `.proto` files, the types generated from them, the
//! framing, the limits and the identifiers. Everything that reads or writes a
//! stream talks to it. It never does I/O, never waits and never reads a clock
//! except through [`clock`], which edges call.

pub mod clock;
pub mod frame;
pub mod gpu;
pub mod id;
pub mod limits;
pub mod name;
pub mod quantity;
pub mod reset;
mod secret_debug;
pub mod token;
pub mod valid;

/// The generated messages of package `levers9.wire.v1`.
#[rustfmt::skip]
#[expect(clippy::large_enum_variant, reason = "an answer is made once and moved a few times")]
pub mod v1 {
    include!("gen/levers9.wire.v1.rs");
}

pub use id::{
    AttemptNumber, ClusterId, ContainerId, Generation, InstanceId, RequestId, SessionId, TaskId, TokenId,
    WorkerId, WorkspaceId,
};
pub use reset::{Reset, RetryClass, Side};

/// The ALPN protocol of a levers9 carrier.
pub const ALPN: &[u8] = b"levers9/1";
/// The lowest protocol version this build speaks.
pub const VERSION_MIN: u32 = 1;
/// The highest protocol version this build speaks.
pub const VERSION_MAX: u32 = 1;
/// The build, for people.
pub const BUILD: &str = env!("CARGO_PKG_VERSION");
