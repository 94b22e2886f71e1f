//! levers9 sessions and typed streams over QUIC.
//!
//! This crate owns how two levers9 processes reach each other: dialing and
//! accepting, who is trusted, the control stream with its pings, reconnecting,
//! and streams that carry frames or raw bytes. The controlplane, workers and
//! the CLI are built on it. It decides nothing about jobs, opens no database,
//! and no type of the QUIC library appears above [`quic`].

pub mod accept;
pub mod address;
pub mod carrier;
pub mod cert;
pub mod dial;
pub mod link;
pub mod quic;
pub mod runtime;
pub mod session;
#[cfg(feature = "sim")]
pub mod sim;
pub mod stream;
pub mod tcp;
mod tls;
pub mod trust;
pub mod tunnel;

pub use address::{Address, Trust};
pub use carrier::{Carrier, CarrierKind, Lost, priority};
pub use quic::{Endpoint, Settings};
pub use stream::{FrameRecv, FrameSend, Stream, StreamError};
