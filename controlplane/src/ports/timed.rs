//! Time limits of a connection that HTTP does not keep itself. Whoever has
//! neither sent a whole first request nor HTTP/2's preface when the time is up
//! is cut off: a half-open connection, garbage that never ends, a header sent
//! byte by byte. So is whoever takes nothing of its answers for too long.
//! Waiting for later requests is HTTP's own business and limited there.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How HTTP/2 begins; no method of HTTP/1 starts like this.
const PREFACE_START: [u8; 3] = *b"PRI";
const PREFACE_LENGTH: usize = 24;

/// Says that a first request has arrived.
#[derive(Clone, Debug, Default)]
pub(super) struct Begun(Arc<AtomicBool>);

impl Begun {
    /// It has.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection that must begin in time and go on.
pub(super) struct Timed<Io> {
    io: Io,
    begun: Begun,
    /// For the beginning; gone once there was one.
    deadline: Option<Pin<Box<Sleep>>>,
    start: [u8; 3],
    received: usize,
    /// For the peer to take something; there while it takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<Io> Timed<Io> {
    pub(super) fn new(io: Io, begun: Begun) -> Self {
        let deadline = Some(Box::pin(tokio::time::sleep(BEGIN)));
        Self { io, begun, deadline, start: [0; 3], received: 0, stalled: None }
    }

    fn has_begun(&self) -> bool {
        let http2 = self.start == PREFACE_START && self.received >= PREFACE_LENGTH;
        http2 || self.begun.0.load(Ordering::Relaxed)
    }

    fn note(&mut self, bytes: &[u8]) {
        for (place, byte) in self.start.iter_mut().skip(self.received).zip(bytes) {
            *place = *byte;
        }
        self.received = self.received.saturating_add(bytes.len());
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Timed<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.has_begun() {
            self.deadline = None;
        }
        let late = self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready());
        if late {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        if self.deadline.is_some() {
            self.note(&buffer.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncWrite + Unpin> Timed<Io> {
    /// Passes progress on, and fails when there has been none for too long.
    fn going_on<T>(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        step: impl FnOnce(Pin<&mut Io>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let done = step(Pin::new(&mut self.io), context);
        if done.is_ready() {
            self.stalled = None;
            return done;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(STALL)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Timed<Io> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.going_on(context, |io, context| io.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.going_on(context, |io, context| io.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.going_on(context, |io, context| io.poll_shutdown(context))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.going_on(context, |io, context| io.poll_write_vectored(context, slices))
    }
}

/// For the first request, or HTTP/2's preface.
const BEGIN: Duration = Duration::from_secs(10);
/// For a peer to take some of what is sent to it.
const STALL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    fn pair() -> (DuplexStream, Timed<DuplexStream>, Begun) {
        let (client, server) = tokio::io::duplex(64);
        let begun = Begun::default();
        (client, Timed::new(server, begun.clone()), begun)
    }

    #[tokio::test(start_paused = true)]
    async fn who_drips_is_cut_off_and_who_began_is_not() {
        for (text, begins, cut) in [
            ("GET / HT", false, true),
            ("GET /long", true, false),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false, false),
            ("PRI *", false, true),
        ] {
            let (mut client, mut server, begun) = pair();
            client.write_all(text.as_bytes()).await.unwrap();
            let mut read = vec![0; text.len()];
            server.read_exact(&mut read).await.unwrap();
            if begins {
                begun.set();
            }
            let more = tokio::time::timeout(2 * BEGIN, server.read_u8()).await;
            match more {
                Ok(end) => assert!(cut && end.unwrap_err().kind() == io::ErrorKind::TimedOut, "{text:?}"),
                Err(_) => assert!(!cut, "{text:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_cut_off_and_who_takes_little_is_not() {
        let (mut client, mut server, _begun) = pair();
        server.write_all(&[0; 64]).await.unwrap();
        for _ in 0..5 {
            let write = server.write_all(&[0; 1]);
            let (written, read) = tokio::join!(write, async {
                tokio::time::sleep(STALL * 9 / 10).await;
                client.read_u8().await
            });
            assert!(written.is_ok() && read.is_ok());
        }
        let started = tokio::time::Instant::now();
        let error = server.write_all(&[0; 1]).await.unwrap_err();
        assert_eq!((error.kind(), started.elapsed().as_secs()), (io::ErrorKind::TimedOut, STALL.as_secs()));
    }
}
