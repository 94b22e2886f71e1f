//! One stream of a TCP carrier: what waits to be sent and may be, what came
//! and was not read. Owned by [`super::core`], which decides; this counts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use levers9_wire::Reset;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::core::{SEND_PIECES, SEND_QUEUE};

/// What a stream may send before its reader has said more, in bytes.
pub(super) const FIRST_WINDOW: u64 = 64 * 1024;
/// Pieces below this are copied together: a few bytes must not hold the
/// buffer they came in.
const SMALL: usize = 8 * 1024;
/// A window that was used up in this time and two round trips holds its stream back.
const BUSY: Duration = Duration::from_millis(10);

/// How far a sender is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    Open,
    /// Nothing follows what waits.
    Ending,
    /// The end was sent.
    Ended,
    /// A reset with this code is to be sent.
    GivenUp(u64),
    /// It was sent.
    Reset,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) sending: Sending,
    pub(super) queue: VecDeque<Bytes>,
    pub(super) queued: usize,
    /// What the peer lets this side send.
    pub(super) credit: u64,
    pub(super) priority: i32,
    /// The peer has everything up to the end.
    pub(super) got: bool,
    /// Why the peer reads no more.
    pub(super) stopped: Option<Reset>,
    pub(super) writer: Option<Waker>,
    pub(super) stop: Arc<Notify>,
    pub(super) sender_held: bool,

    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    /// Bytes of both.
    unread: u64,
    /// What the peer may still send.
    pub(super) allowed: u64,
    pub(super) window: u64,
    /// What of the window is of the connection's budget.
    pub(super) borrowed: u64,
    pub(super) consumed: u64,
    credited: Instant,
    /// How the peer's half ended.
    pub(super) over: Option<Option<Reset>>,
    /// This side has stopped reading.
    pub(super) ignored: bool,
    pub(super) reader: Option<Waker>,
    pub(super) receiver_held: bool,

    pub(super) open_due: bool,
    pub(super) stop_due: Option<u64>,
    pub(super) credit_due: u64,
    pub(super) got_due: bool,
    pub(super) is_marked: bool,
    pub(super) is_in_line: bool,
    pub(super) place_returned: bool,
}

impl Entry {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            sending: Sending::Open,
            queue: VecDeque::new(),
            queued: 0,
            credit: FIRST_WINDOW,
            priority: 0,
            got: false,
            stopped: None,
            writer: None,
            stop: Arc::default(),
            sender_held: true,
            chunks: VecDeque::new(),
            tail: BytesMut::new(),
            unread: 0,
            allowed: FIRST_WINDOW,
            window: FIRST_WINDOW,
            borrowed: 0,
            consumed: 0,
            credited: now,
            over: None,
            ignored: false,
            reader: None,
            receiver_held: true,
            open_due: false,
            stop_due: None,
            credit_due: 0,
            got_due: false,
            is_marked: false,
            is_in_line: false,
            place_returned: false,
        }
    }

    /// What may be put in line now, in bytes.
    pub(super) fn room(&self) -> usize {
        if self.queue.len() >= SEND_PIECES {
            return 0;
        }
        let credit = usize::try_from(self.credit).unwrap_or(usize::MAX);
        credit.min(SEND_QUEUE.saturating_sub(self.queued))
    }

    /// Puts a piece in line that has room.
    pub(super) fn take(&mut self, piece: Bytes) {
        self.credit -= piece.len() as u64;
        self.queued += piece.len();
        self.queue.push_back(piece);
    }

    /// Drops what waits to be sent.
    pub(super) fn unsend(&mut self) {
        self.queue = VecDeque::new();
        self.queued = 0;
        (self.is_marked, self.is_in_line) = (false, false);
    }

    /// A reset instead of what waits.
    pub(super) fn give_up(&mut self, code: u64) {
        self.sending = Sending::GivenUp(code);
        self.queue = VecDeque::new();
        self.queued = 0;
    }

    /// Keeps what came.
    pub(super) fn push(&mut self, bytes: Bytes) {
        self.unread += bytes.len() as u64;
        if bytes.len() < SMALL {
            self.tail.extend_from_slice(&bytes);
            if self.tail.len() >= 2 * SMALL {
                self.chunks.push_back(std::mem::take(&mut self.tail).freeze());
            }
            return;
        }
        if !self.tail.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.tail).freeze());
        }
        self.chunks.push_back(bytes);
    }

    /// The next piece of what came.
    pub(super) fn pop(&mut self, max: usize) -> Option<Bytes> {
        let piece = self.next_piece(max)?;
        self.unread -= piece.len() as u64;
        Some(piece)
    }

    fn next_piece(&mut self, max: usize) -> Option<Bytes> {
        let Some(front) = self.chunks.front_mut() else {
            let tail = std::mem::take(&mut self.tail).freeze();
            if tail.len() <= max {
                return Some(tail).filter(|tail| !tail.is_empty());
            }
            self.chunks.push_back(tail);
            return self.next_piece(max);
        };
        if front.len() <= max {
            return self.chunks.pop_front();
        }
        Some(front.split_to(max))
    }

    /// Drops what came.
    pub(super) fn discard(&mut self) {
        self.chunks = VecDeque::new();
        self.tail = BytesMut::new();
        self.unread = 0;
    }

    /// Bytes that came and were not read, for tests.
    #[cfg(test)]
    pub(super) fn unread(&self) -> usize {
        let counted = self.chunks.iter().map(Bytes::len).sum::<usize>() + self.tail.len();
        assert_eq!(counted as u64, self.unread);
        counted
    }

    /// What of the connection's budget is not needed any more: of a half that
    /// has ended all but what still waits to be read beyond the first window.
    pub(super) fn surplus(&mut self) -> u64 {
        if self.over.is_none() && !self.ignored {
            return 0;
        }
        let kept = self.borrowed.min(self.unread.saturating_sub(FIRST_WINDOW));
        std::mem::replace(&mut self.borrowed, kept) - kept
    }

    /// By how much the window is to grow, when half of it was used up at once.
    pub(super) fn growth(&self, now: Instant, rtt: Duration, largest: u64, budget: u64) -> u64 {
        if now.saturating_duration_since(self.credited) > BUSY + 2 * rtt {
            return 0;
        }
        self.window.min(largest.saturating_sub(self.window)).min(budget / 2)
    }

    /// Gives back what was read, and more.
    pub(super) fn give_credit(&mut self, more: u64, now: Instant) {
        let credit = std::mem::take(&mut self.consumed) + more;
        self.window += more;
        self.borrowed += more;
        self.allowed += credit;
        self.credit_due += credit;
        self.credited = now;
    }

    /// Whether both directions have ended, as far as the connection goes.
    pub(super) fn is_over(&self) -> bool {
        let sent = match self.sending {
            Sending::Ended => self.got,
            Sending::Reset => true,
            Sending::Open | Sending::Ending | Sending::GivenUp(_) => false,
        };
        sent && self.over.is_some() && self.chunks.is_empty() && self.tail.is_empty()
    }
}
