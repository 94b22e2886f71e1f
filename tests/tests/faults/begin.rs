//! Runs first, by its name.

/// What takes minutes begins at once and goes on beside the other tests; the
/// tests in [`crate::slow`] say how it went.
#[test]
fn what_is_slow_begins() {
    crate::slow::SLOW.begin();
}
