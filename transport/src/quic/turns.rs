//! Who writes first when the connection's window is used up. What little
//! somebody waits for (a keystroke, a call, a head) must not wait for the
//! downloads beside it: as long as a small write is held up, large ones hold
//! back and leave it what the peer permits next. For a moment only: a small
//! write may wait for its own stream's reader, which is nobody else's fault.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// What counts as small, in bytes.
const SMALL: usize = 4 * 1024;
/// How long large writes hold back for one small write.
const HELD_BACK: Duration = Duration::from_millis(3);

/// The writers of one connection.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Whether some small write is held up: what most writes look at.
    waiting: AtomicBool,
    line: Mutex<Line>,
    gone: Notify,
}

#[derive(Debug, Default)]
struct Line {
    small: usize,
    until: Option<Instant>,
}

impl Turns {
    /// Writes `bytes` bytes in turn. Cancel safe when `write` is.
    pub(super) async fn write<T>(&self, bytes: usize, write: impl Future<Output = T>) -> T {
        if bytes <= SMALL { self.small(write).await } else { self.large(write).await }
    }

    async fn small<T>(&self, write: impl Future<Output = T>) -> T {
        let (mut write, mut held_up) = (pin!(write), None);
        poll_fn(|context| {
            let written = write.as_mut().poll(context);
            if written.is_pending() && held_up.is_none() {
                held_up = Some(self.held_up(Instant::now()));
            }
            written
        })
        .await
    }

    async fn large<T>(&self, write: impl Future<Output = T>) -> T {
        let mut write = pin!(write);
        loop {
            let turn = async {
                while let Some(until) = self.held_back(Instant::now()) {
                    let gone = self.gone.notified();
                    tokio::select! {
                        () = gone => {}
                        () = sleep_until(until) => {}
                    }
                }
            };
            if self.waiting.load(Ordering::Relaxed) {
                turn.await;
            }
            // A small one may come while this one waits for the peer.
            let written = poll_fn(|context| match self.waiting.load(Ordering::Relaxed) {
                true if self.held_back(Instant::now()).is_some() => Poll::Ready(None),
                _ => write.as_mut().poll(context).map(Some),
            });
            if let Some(written) = written.await {
                return written;
            }
        }
    }

    fn held_up(&self, now: Instant) -> HeldUp<'_> {
        if let Ok(mut line) = self.line.lock() {
            line.small += 1;
            line.until = Some(now + HELD_BACK);
            self.waiting.store(true, Ordering::Relaxed);
        }
        HeldUp(self)
    }

    /// Until when large writes hold back.
    fn held_back(&self, now: Instant) -> Option<Instant> {
        let mut line = self.line.lock().ok()?;
        if line.small == 0 || line.until.is_none_or(|until| until <= now) {
            line.until = None;
            self.waiting.store(false, Ordering::Relaxed);
        }
        line.until
    }
}

/// A small write that waits.
struct HeldUp<'a>(&'a Turns);

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        if let Ok(mut line) = self.0.line.lock() {
            line.small -= 1;
            if line.small == 0 {
                line.until = None;
                self.0.waiting.store(false, Ordering::Relaxed);
            }
        }
        self.0.gone.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// What the peer permits; every writer is woken for more, as the library does.
    #[derive(Default)]
    struct Window {
        bytes: AtomicUsize,
        more: Notify,
        order: Mutex<Vec<usize>>,
    }

    impl Window {
        fn permit(&self, bytes: usize) {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.more.notify_waiters();
        }

        /// Takes as much as there is of what it wants.
        async fn write(&self, wanted: usize) {
            loop {
                let mut more = pin!(self.more.notified());
                more.as_mut().enable();
                let there = self.bytes.load(Ordering::Relaxed);
                if there > 0 {
                    self.bytes.fetch_sub(there.min(wanted), Ordering::Relaxed);
                    self.order.lock().unwrap().push(wanted);
                    return;
                }
                more.await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_small_takes_what_is_permitted_next() {
        let (turns, window) = (Arc::new(Turns::default()), Arc::new(Window::default()));
        let mut tasks = tokio::task::JoinSet::new();
        for bytes in [100_000, 100_001, 1, 2, 100_002] {
            let (turns, window) = (Arc::clone(&turns), Arc::clone(&window));
            tasks.spawn(async move { turns.write(bytes, window.write(bytes)).await });
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        for _ in 0..5 {
            window.permit(50_000);
            tasks.join_next().await;
        }
        while tasks.join_next().await.is_some() {}
        assert!(began.elapsed() < HELD_BACK, "{:?}", began.elapsed());
        let order = window.order.lock().unwrap().clone();
        assert!(order[0] < SMALL && order[1] < SMALL && order.len() == 5, "{order:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_write_that_never_ends_costs_a_moment() {
        let turns = Turns::default();
        let stuck = turns.write(1, std::future::pending::<()>());
        let large = async {
            tokio::task::yield_now().await;
            let began = Instant::now();
            for _ in 0..1000 {
                turns.write(100_000, async {}).await;
            }
            began.elapsed()
        };
        tokio::select! {
            () = stuck => unreachable!("it never ends"),
            took = large => assert!(took <= HELD_BACK + Duration::from_millis(1), "{took:?}"),
        }
        // It was dropped: nothing holds anybody back.
        assert_eq!(turns.held_back(Instant::now()), None);
    }
}
