//! Moves the bytes of one TCP carrier between its state and the connection.
//! What is put in line while the connection is busy goes out together, and at
//! once when it is idle; that is all the coalescing there is. Ends when the
//! connection does: after a close by this side it hears the peer out for a
//! moment, since unread bytes would take back what was said.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::io::poll_read_buf;

use super::code::Decoder;
use super::core::Outgoing;
use super::{Io, Shared};
use crate::carrier::Lost;

/// What is read at once from a quiet connection, in bytes.
const SMALL: usize = 4 * 1024;
/// What is read at once from a busy one, in bytes.
const LARGE: usize = 64 * 1024;
/// Slices in one write.
const SLICES: usize = 32;
/// Turns before others on the thread get theirs.
const TURNS: usize = 16;
/// How long a closed connection may take to end.
const LINGER: Duration = Duration::from_secs(2);
/// What is said of a peer that is gone.
const ENDED: &str = "the peer ended it without a word";

pub(super) struct Driver<T> {
    io: T,
    shared: Arc<Shared>,
    decoder: Decoder,
    buffer: BytesMut,
    /// How much to read at once.
    size: usize,
    out: Outgoing,
    timer: Pin<Box<Sleep>>,
    unflushed: bool,
    /// Closed by this side; until when the peer may take it in.
    closing: Option<Instant>,
    shut_down: bool,
}

impl<T: Io> Driver<T> {
    pub(super) fn new(io: T, shared: Arc<Shared>) -> Self {
        Self {
            io,
            shared,
            decoder: Decoder::default(),
            buffer: BytesMut::new(),
            size: SMALL,
            out: Outgoing::new(),
            timer: Box::pin(sleep_until(Instant::now())),
            unflushed: false,
            closing: None,
            shut_down: false,
        }
    }

    /// Reads once and takes in what came; `Ready(false)` at the end.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.buffer.capacity() - self.buffer.len() < self.size {
            self.buffer.reserve(self.size);
        }
        let length = match poll_read_buf(Pin::new(&mut self.io), context, &mut self.buffer) {
            Poll::Ready(Ok(length)) => length,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {
                if self.buffer.is_empty() {
                    // Nothing is held while nothing comes.
                    self.buffer = BytesMut::new();
                }
                return Poll::Pending;
            }
        };
        if length >= self.size {
            self.size = (self.size * 2).min(LARGE);
        } else if length < self.size / 4 {
            self.size = (self.size / 2).max(SMALL);
        }
        if self.closing.is_some() {
            self.buffer.clear();
        } else {
            self.take_in();
        }
        Poll::Ready(Ok(length > 0))
    }

    fn take_in(&mut self) {
        let now = Instant::now();
        self.shared.with(|core| {
            let bad = loop {
                match self.decoder.next(&mut self.buffer) {
                    Ok(Some(frame)) => match core.receive(frame, now) {
                        Ok(()) => {}
                        Err(violation) => break violation.0.to_owned(),
                    },
                    Ok(None) => return,
                    Err(bad) => break bad.to_string(),
                }
            };
            core.violated(bad);
        });
    }

    /// Writes once; `Ready(false)` when there is nothing to write.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.out.is_empty() && !self.shared.with(|core| core.fill(&mut self.out, Instant::now())) {
            if self.unflushed {
                std::task::ready!(Pin::new(&mut self.io).poll_flush(context))?;
                self.unflushed = false;
            }
            return Poll::Ready(Ok(false));
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = self.out.len().min(SLICES);
        for (slice, bytes) in slices.iter_mut().zip(&self.out) {
            *slice = IoSlice::new(bytes);
        }
        let written = Pin::new(&mut self.io).poll_write_vectored(context, &slices[..count]);
        let mut written = std::task::ready!(written)?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.unflushed = true;
        while let Some(front) = self.out.front_mut().filter(|_| written > 0) {
            let here = front.len().min(written);
            front.advance(here);
            written -= here;
            if front.is_empty() {
                self.out.pop_front();
            }
        }
        Poll::Ready(Ok(true))
    }

    /// One turn; whether the connection is over.
    fn turn(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let now = Instant::now();
        let (next, lost) = self.shared.with(|core| (core.tick(now), core.lost().cloned()));
        if let Some(lost) = &lost
            && self.closing.is_none()
        {
            let told_by_peer = match lost {
                Lost::Closed(reset, _) => reset.side == levers9_wire::Side::Remote,
                Lost::Cut(_) => return Poll::Ready(true),
                _ => false,
            };
            self.closing = Some(if told_by_peer { now } else { now + LINGER });
        }
        let wake_at = self.closing.unwrap_or(next);
        if self.timer.deadline() != wake_at {
            self.timer.as_mut().reset(wake_at);
        }
        let late = self.timer.as_mut().poll(context).is_ready() && self.closing.is_some();
        let mut moved = false;
        match self.write(context) {
            Poll::Ready(Ok(wrote)) => {
                moved |= wrote;
                if !wrote && self.closing.is_some() && !self.shut_down {
                    match Pin::new(&mut self.io).poll_shutdown(context) {
                        Poll::Ready(_) => self.shut_down = true,
                        Poll::Pending => {}
                    }
                }
            }
            Poll::Ready(Err(error)) => return self.cut(&error.to_string()),
            Poll::Pending => {}
        }
        if late {
            return Poll::Ready(true);
        }
        match self.read(context) {
            Poll::Ready(Ok(true)) => moved = true,
            Poll::Ready(Ok(false)) => return self.cut(ENDED),
            // TLS has words of its own for an end that nobody announced.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return self.cut(ENDED);
            }
            Poll::Ready(Err(error)) => return self.cut(&error.to_string()),
            Poll::Pending => {}
        }
        if moved { Poll::Ready(false) } else { Poll::Pending }
    }

    fn cut(&self, words: &str) -> Poll<bool> {
        self.shared.with(|core| core.fail(Lost::Cut(words.to_owned())));
        Poll::Ready(true)
    }
}

impl<T: Io> Future for Driver<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.shared.driver.register(context.waker());
        for _ in 0..TURNS {
            match this.turn(context) {
                Poll::Ready(true) => return Poll::Ready(()),
                Poll::Ready(false) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
