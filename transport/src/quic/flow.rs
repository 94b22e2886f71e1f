//! The connection's receive window follows the path: it starts small, so that
//! no standing queue delays pings on a short path, and grows to twice what the
//! path holds (rate × round-trip time) on a long one. The decision is
//! [`next_window`]; the rest counts bytes as streams are read.

use std::sync::Mutex;
use std::time::Duration;

use quinn::VarInt;
use tokio::time::Instant;

use super::Settings;

/// A path this short needs no more than the first window.
const SHORT_PATH: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Tuner {
    smallest: u32,
    largest: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    window: u32,
    bytes: u64,
    since: Option<Instant>,
}

/// The window after `bytes` arrived in `span` on a path of `rtt`.
fn next_window(now: u32, bytes: u64, span: Duration, rtt: Duration, bounds: (u32, u32)) -> u32 {
    if rtt < SHORT_PATH || span.is_zero() {
        return now;
    }
    let wanted = u128::from(bytes) * 2 * rtt.as_micros() / span.as_micros().max(1);
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(bounds.0, bounds.1);
    // Shrinking a window in use would stall the sender for a round trip.
    if wanted > now + now / 4 { wanted } else { now }
}

impl Tuner {
    pub(super) fn new(settings: &Settings) -> Self {
        let (smallest, largest) = (settings.window, settings.window_max.max(settings.window));
        Self { smallest, largest, state: Mutex::new(State { window: smallest, bytes: 0, since: None }) }
    }

    /// Counts bytes read, and looks at the path each time half a window has passed.
    pub(super) fn received(&self, bytes: usize, connection: &quinn::Connection) {
        let Ok(mut state) = self.state.lock() else { return };
        state.bytes += bytes as u64;
        if state.bytes < u64::from(state.window / 2) || state.window >= self.largest {
            return;
        }
        let now = Instant::now();
        let counted = std::mem::take(&mut state.bytes);
        let Some(since) = state.since.replace(now) else { return };
        let bounds = (self.smallest, self.largest);
        let next = next_window(state.window, counted, now - since, connection.rtt(), bounds);
        if next != state.window {
            state.window = next;
            connection.set_receive_window(VarInt::from_u32(next));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u32 = 1 << 20;
    const BOUNDS: (u32, u32) = (MIB, 16 * MIB);

    #[test]
    fn a_short_path_keeps_the_first_window() {
        let rate = 1 << 30;
        assert_eq!(next_window(MIB, rate, Duration::from_secs(1), Duration::from_micros(200), BOUNDS), MIB);
    }

    #[test]
    fn a_long_fat_path_reaches_twice_what_it_holds() {
        // The sender is held by the window: a window of bytes each round trip.
        let rtt = Duration::from_millis(100);
        let path = 6_250_000u64; // 500 Mbit/s × 100 ms
        let mut window = MIB;
        for _ in 0..10 {
            let bytes = u64::from(window).min(path);
            window = next_window(window, bytes, rtt, rtt, BOUNDS);
        }
        assert!(u64::from(window) >= path * 2 * 8 / 10 && window <= 16 * MIB, "{window}");
    }

    proptest! {
        #[test]
        fn never_leaves_its_bounds_and_never_shrinks(
            now in MIB..=16 * MIB, bytes in any::<u64>(), span in 0..10_000_000u64, rtt in 0..10_000_000u64
        ) {
            let next = next_window(now, bytes, Duration::from_micros(span), Duration::from_micros(rtt), BOUNDS);
            prop_assert!(next >= now && next <= 16 * MIB);
        }
    }
}
