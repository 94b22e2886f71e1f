//! A time limit on how a connection begins. Whoever has neither sent a whole
//! first request nor HTTP/2's preface when the time is up is cut off: a
//! half-open connection, garbage that never ends, a header sent byte by byte.
//! Later waiting is HTTP's own business and limited there.

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

/// A connection that must begin in time.
pub(super) struct Opening<Io> {
    io: Io,
    begun: Begun,
    /// Gone once the connection has begun.
    deadline: Option<Pin<Box<Sleep>>>,
    start: [u8; 3],
    received: usize,
}

impl<Io> Opening<Io> {
    pub(super) fn new(io: Io, limit: Duration, begun: Begun) -> Self {
        let deadline = Some(Box::pin(tokio::time::sleep(limit)));
        Self { io, begun, deadline, start: [0; 3], received: 0 }
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

impl<Io: AsyncRead + Unpin> AsyncRead for Opening<Io> {
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

impl<Io: AsyncWrite + Unpin> AsyncWrite for Opening<Io> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    const LIMIT: Duration = Duration::from_secs(10);

    fn pair() -> (DuplexStream, Opening<DuplexStream>, Begun) {
        let (client, server) = tokio::io::duplex(64);
        let begun = Begun::default();
        (client, Opening::new(server, LIMIT, begun.clone()), begun)
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
            let more = tokio::time::timeout(2 * LIMIT, server.read_u8()).await;
            match more {
                Ok(end) => assert!(cut && end.unwrap_err().kind() == io::ErrorKind::TimedOut, "{text:?}"),
                Err(_) => assert!(!cut, "{text:?}"),
            }
        }
    }
}
