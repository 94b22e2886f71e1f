//! TCP ports for what a job listens on.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Those below the ones that systems give out by themselves.
const FIRST: u16 = 20_000;
const LAST: u16 = 31_999;

/// A port that nobody listens on, each time another one.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let ports = u32::from(LAST - FIRST) + 1;
    for _ in 0..ports {
        // Test programs that run beside each other begin at different ones.
        let step = std::process::id().wrapping_mul(97) + u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + u16::try_from(step % ports).expect("a small number");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("every port from {FIRST} to {LAST} is taken");
}
