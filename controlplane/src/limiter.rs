//! Slows down who guesses tokens: an address with many failures in a minute is
//! told to wait. Bounded in memory, whatever comes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(60);
/// Failures an address may have in a window.
const ALLOWED: u32 = 30;
/// Addresses remembered at once.
const REMEMBERED: usize = 10_000;

/// Failures by address.
#[derive(Debug, Default)]
pub struct FailureLimiter {
    seen: Mutex<HashMap<IpAddr, (Instant, u32)>>,
}

impl FailureLimiter {
    /// Whether an address has to wait at `now`.
    #[must_use]
    pub fn must_wait(&self, address: IpAddr, now: Instant) -> bool {
        let Ok(seen) = self.seen.lock() else { return true };
        seen.get(&address).is_some_and(|(since, count)| *count >= ALLOWED && now - *since < WINDOW)
    }

    /// An address failed at `now`.
    pub fn failed(&self, address: IpAddr, now: Instant) {
        let Ok(mut seen) = self.seen.lock() else { return };
        if seen.len() >= REMEMBERED {
            seen.retain(|_, (since, _)| now - *since < WINDOW);
            if seen.len() >= REMEMBERED {
                seen.clear();
            }
        }
        let entry = seen.entry(address).or_insert((now, 0));
        if now - entry.0 >= WINDOW {
            *entry = (now, 0);
        }
        entry.1 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirty_failures_in_a_minute_are_enough_and_memory_is_bounded() {
        let limiter = FailureLimiter::default();
        let (now, address) = (Instant::now(), IpAddr::from([192, 0, 2, 1]));
        for _ in 0..ALLOWED {
            assert!(!limiter.must_wait(address, now));
            limiter.failed(address, now);
        }
        assert!(limiter.must_wait(address, now));
        assert!(!limiter.must_wait(IpAddr::from([192, 0, 2, 2]), now));
        assert!(!limiter.must_wait(address, now + WINDOW));
        for n in 0..30_000u32 {
            limiter.failed(IpAddr::from(n.to_be_bytes()), now);
        }
        assert!(limiter.seen.lock().unwrap().len() <= REMEMBERED);
    }
}
