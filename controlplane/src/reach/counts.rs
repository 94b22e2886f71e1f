//! What is open into containers now, for whoever watches the figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Tunnels of CLIs.
    Tunnel,
    /// Commands.
    Exec,
    /// Streams that are measured.
    Bench,
    /// Connections that containers have made to the controlplane.
    Door,
    /// HTTP connections to containers, those included that are kept.
    Connection,
    /// HTTP requests that are not answered to their end.
    Request,
}

/// How many there are.
#[derive(Debug, Default)]
pub struct Counts {
    open: [AtomicUsize; 6],
    requests: AtomicU64,
}

impl Counts {
    /// Counts one until it is dropped.
    #[must_use]
    pub fn one(self: &Arc<Self>, what: What) -> Counted {
        self.open[what as usize].fetch_add(1, Ordering::Relaxed);
        if what == What::Request {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
        Counted { counts: Arc::clone(self), what }
    }

    /// How many are open now.
    #[must_use]
    pub fn open(&self, what: What) -> usize {
        self.open[what as usize].load(Ordering::Relaxed)
    }

    /// How many requests there have been.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// One that is open.
#[derive(Debug)]
pub struct Counted {
    counts: Arc<Counts>,
    what: What,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.open[self.what as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_not_open_any_more() {
        let counts = Arc::new(Counts::default());
        let (one, other) = (counts.one(What::Request), counts.one(What::Request));
        let exec = counts.one(What::Exec);
        assert_eq!((counts.open(What::Request), counts.open(What::Exec), counts.open(What::Door)), (2, 1, 0));
        drop((one, exec));
        assert_eq!((counts.open(What::Request), counts.open(What::Exec), counts.requests()), (1, 0, 2));
        drop(other);
        assert_eq!(counts.open(What::Request), 0);
    }
}
