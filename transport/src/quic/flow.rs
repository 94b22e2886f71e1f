//! The connection's receive window. It starts small, so that no standing queue
//! delays pings on a short path, and grows to twice what the path holds (rate
//! × round-trip time) on a long one. Streams that nobody reads hold part of
//! it; when that starves the others, it is lent more until they are read or
//! dropped. The decisions are [`next_window`] and [`is_starved`]; the rest
//! counts bytes and readers.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use quinn::VarInt;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::Settings;
use super::turns::Turns;

/// A path this short needs no more than the first window.
const SHORT_PATH: Duration = Duration::from_millis(2);
/// How often to look at a carrier on which some stream is not being read.
const LOOK: Duration = Duration::from_millis(100);
/// The most that is lent on behalf of streams nobody reads, in bytes.
const LENT_MAX: u32 = 64 << 20;

/// A connection with its window; streams share it.
pub(super) struct Tuner {
    pub(super) connection: quinn::Connection,
    smallest: u32,
    largest: u32,
    stream_window: u32,
    state: Mutex<State>,
    /// Bytes read by the application since the start.
    read: AtomicU64,
    /// Open streams that nobody is reading at this moment.
    parked: AtomicUsize,
    someone_parked: Notify,
    /// Halves of streams that are held.
    pub(super) live: AtomicUsize,
    /// Streams the peer may have open at once.
    pub(super) permitted: AtomicU32,
    /// Who writes first.
    pub(super) turns: Turns,
}

#[derive(Debug)]
struct State {
    window: u32,
    lent: u32,
    bytes: u64,
    since: Option<Instant>,
    /// The shortest round trip seen on this path, and to where it leads. What
    /// is longer is a queue, which a larger window would only make longer.
    rtt: (SocketAddr, Duration),
}

impl State {
    fn saw(&mut self, peer: SocketAddr, rtt: Duration) {
        let known = if self.rtt.0 == peer { self.rtt.1 } else { Duration::MAX };
        self.rtt = (peer, known.min(rtt));
    }

    fn total(&self) -> VarInt {
        VarInt::from_u32(self.window.saturating_add(self.lent))
    }
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

/// Whether a sender that says it is blocked gets far less through than the
/// window allows: then unread streams hold the window.
fn is_starved(blocked: bool, read: u64, span: Duration, window: u32, rtt: Duration) -> bool {
    let turns = span.as_micros() / rtt.max(span).as_micros().max(1);
    blocked && u128::from(read) * 8 < u128::from(window) * turns.max(1)
}

impl Tuner {
    pub(super) fn new(connection: quinn::Connection, settings: &Settings) -> Self {
        let (smallest, largest) = (settings.window, settings.window_max.max(settings.window));
        let rtt = (connection.remote_address(), connection.rtt());
        Self {
            connection,
            smallest,
            largest,
            stream_window: settings.stream_window,
            state: Mutex::new(State { window: smallest, lent: 0, bytes: 0, since: None, rtt }),
            read: AtomicU64::new(0),
            parked: AtomicUsize::new(0),
            someone_parked: Notify::new(),
            live: AtomicUsize::new(0),
            permitted: AtomicU32::new(settings.max_streams),
            turns: Turns::default(),
        }
    }

    /// Counts bytes read, and looks at the path each time half a window has passed.
    pub(super) fn received(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        let Ok(mut state) = self.state.lock() else { return };
        state.bytes += bytes as u64;
        if state.bytes < u64::from(state.window / 2) || state.window >= self.largest {
            return;
        }
        let now = Instant::now();
        let counted = std::mem::take(&mut state.bytes);
        let Some(since) = state.since.replace(now) else { return };
        let bounds = (self.smallest, self.largest);
        state.saw(self.connection.remote_address(), self.connection.rtt());
        let next = next_window(state.window, counted, now - since, state.rtt.1, bounds);
        if next != state.window {
            state.window = next;
            self.connection.set_receive_window(state.total());
        }
    }

    /// Raises how many streams the peer may have open at once.
    pub(super) fn permit(&self, count: u32) {
        if self.permitted.fetch_max(count, Ordering::Relaxed) < count {
            self.connection.set_max_concurrent_bi_streams(VarInt::from_u32(count));
        }
    }

    /// A stream is not being read from now on.
    pub(super) fn park(&self) {
        if self.parked.fetch_add(1, Ordering::Relaxed) == 0 {
            self.someone_parked.notify_one();
        }
    }

    /// A parked stream is being read, has ended, or was dropped.
    pub(super) fn unpark(&self) {
        self.parked.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lends window while unread streams starve the others, and takes it back
    /// when none is left. Runs as long as the carrier.
    pub(super) async fn guard(&self) {
        let (mut blocked_before, mut read_before) = (0, 0);
        // The sender has said that it is blocked, and nothing was done about it yet.
        let mut waits = false;
        loop {
            if self.parked.load(Ordering::Relaxed) == 0 {
                self.lend(0);
                self.someone_parked.notified().await;
            }
            sleep(LOOK).await;
            let blocked = self.connection.stats().frame_rx.data_blocked;
            let read = self.read.load(Ordering::Relaxed);
            let Ok((window, lent)) = self.state.lock().map(|state| (state.window, state.lent)) else {
                return;
            };
            let progress = read - read_before;
            waits |= blocked > blocked_before;
            if is_starved(waits, progress, LOOK, window, self.connection.rtt()) {
                waits = false;
                self.lend(lent.saturating_add(self.stream_window));
            }
            (blocked_before, read_before) = (blocked, read);
        }
    }

    fn lend(&self, lent: u32) {
        let Ok(mut state) = self.state.lock() else { return };
        let lent = lent.min(LENT_MAX);
        if state.lent != lent {
            state.lent = lent;
            self.connection.set_receive_window(state.total());
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

    #[test]
    fn starved_is_a_blocked_sender_that_hardly_moves() {
        let ms = Duration::from_millis;
        assert!(is_starved(true, 0, LOOK, MIB, ms(1)));
        assert!(!is_starved(false, 0, LOOK, MIB, ms(1)), "a sender with nothing to say is not starved");
        assert!(!is_starved(true, u64::from(MIB) * 50, LOOK, MIB, ms(1)), "full speed is not starved");
        assert!(
            !is_starved(true, u64::from(MIB), LOOK, MIB, ms(300)),
            "a long path moves a window each trip"
        );
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
