//! The one place that reads the wall clock. Cores take times as arguments;
//! shells call this at the edge. Nothing here is compared across machines.

/// Milliseconds since the Unix epoch; 0 when the clock stands before it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the edge the ban points to")]
pub fn unix_millis() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
