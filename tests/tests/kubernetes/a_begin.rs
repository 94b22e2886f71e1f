//! Runs first, by its name.

/// What is slow begins at once; the tests in [`crate::slow`] say how it went.
#[test]
fn what_is_slow_begins() {
    crate::slow::SLOW.begin();
}
