//! Byte streams through a session: between a TCP connection and the two halves
//! of a stream, between two streams, and as one reader and writer for whoever
//! speaks a protocol on it.
//!
//! Each direction ends for itself: the end of one is passed on as an end and
//! the other goes on. Whatever breaks one direction breaks both, at once, and
//! is passed on as a reset: a cut is never shown as an end. What cannot be
//! written on is not read, so back-pressure reaches from end to end, and what
//! waits is bounded by the stream's window and one buffer. Nothing here opens
//! a stream or knows whom it leads to.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes, BytesMut};
use levers9_wire::v1::ResetCode;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::quic::{HalfError, RecvHalf, SendHalf};
use crate::stream::{Stream, StreamError};

/// A stream's two halves from a point on where only bytes follow.
#[derive(Debug)]
pub struct Raw {
    /// To the peer.
    pub send: SendHalf,
    /// What came from the peer and was not looked at.
    pub first: Bytes,
    /// From the peer.
    pub recv: RecvHalf,
}

impl Raw {
    /// The bytes of a stream after its frames.
    ///
    /// # Errors
    /// When a frame in line cannot be written.
    pub async fn of(stream: Stream) -> Result<Self, StreamError> {
        let (first, recv) = stream.recv.into_raw();
        Ok(Self { send: stream.send.into_raw().await?, first, recv })
    }

    /// Ends both directions with a code.
    pub fn abort(&mut self, why: ResetCode) {
        self.send.reset(why);
        self.recv.stop(why);
    }
}

/// Why a tunnel ended before both directions had.
#[derive(Debug, thiserror::Error)]
pub enum Cut {
    /// The TCP connection broke.
    #[error("the connection broke: {0}")]
    Tcp(#[source] io::Error),
    /// The stream broke.
    #[error(transparent)]
    Stream(#[from] HalfError),
}

impl Cut {
    /// The code that tells the other end.
    fn code(&self) -> ResetCode {
        match self {
            Self::Stream(HalfError::Reset(reset)) => reset.code,
            Self::Stream(HalfError::Lost(_)) => ResetCode::CarrierLost,
            Self::Stream(HalfError::Closed) => ResetCode::Internal,
            Self::Tcp(_) => ResetCode::Aborted,
        }
    }
}

/// Moves bytes between a TCP connection and a stream until both directions
/// have ended. Dropped before, it resets both.
///
/// # Errors
/// When either breaks; both are then reset.
pub async fn splice(tcp: TcpStream, raw: Raw) -> Result<(), Cut> {
    let mut ends = Ends { tcp: Resetting(Some(tcp)), raw };
    let moved = ends.run().await;
    match &moved {
        // Both directions have ended: closing is no reset.
        Ok(()) => drop(ends.tcp.0.take()),
        Err(cut) => ends.raw.abort(cut.code()),
    }
    moved
}

/// A TCP connection whose drop is a reset.
struct Resetting(Option<TcpStream>);

impl Drop for Resetting {
    fn drop(&mut self) {
        if let Some(tcp) = &self.0 {
            // One that is gone already needs none.
            let _gone = tcp.set_zero_linger();
        }
    }
}

struct Ends {
    tcp: Resetting,
    raw: Raw,
}

impl Ends {
    async fn run(&mut self) -> Result<(), Cut> {
        let Some(tcp) = &self.tcp.0 else { return Ok(()) };
        // Only costs latency where it is refused.
        let _gone = tcp.set_nodelay(true);
        let Raw { send, first, recv } = &mut self.raw;
        tokio::try_join!(up(tcp, send), down(tcp, std::mem::take(first), recv))?;
        Ok(())
    }
}

/// From the connection to the stream.
async fn up(tcp: &TcpStream, send: &mut SendHalf) -> Result<(), Cut> {
    let mut stopped = pin!(send.stopped());
    let mut buffer = Reading::default();
    loop {
        let read = tokio::select! {
            biased;
            read = buffer.read(tcp) => read.map_err(Cut::Tcp)?,
            broken = &mut stopped => return Err(broken.into()),
        };
        let Some(mut bytes) = read else { break };
        while !bytes.is_empty() {
            tokio::select! {
                biased;
                written = send.write(&mut bytes) => written?,
                // Nobody reads it while it waits: its reset would not be seen.
                broken = reset_of(tcp) => return Err(Cut::Tcp(broken)),
            }
        }
    }
    send.finish();
    Ok(())
}

/// From the stream to the connection.
async fn down(tcp: &TcpStream, first: Bytes, recv: &mut RecvHalf) -> Result<(), Cut> {
    let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
    chunks[0] = first;
    let mut count = 1;
    loop {
        let mut done = 0;
        while done < count {
            if chunks[done].is_empty() {
                done += 1;
                continue;
            }
            let mut slices = [IoSlice::new(&[]); CHUNKS];
            for (slice, chunk) in slices.iter_mut().zip(&chunks[done..count]) {
                *slice = IoSlice::new(chunk);
            }
            match tcp.try_write_vectored(&slices[..count - done]) {
                Ok(written) => take_off(&mut chunks[done..count], written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::select! {
                    biased;
                    ready = tcp.writable() => ready.map_err(Cut::Tcp)?,
                    broken = recv.broken() => return Err(broken.into()),
                },
                Err(error) => return Err(Cut::Tcp(error)),
            }
        }
        match recv.read_many(&mut chunks).await? {
            Some(read) => count = read,
            None => break,
        }
    }
    end_writing(tcp).map_err(Cut::Tcp)
}

/// Takes bytes off the front of several chunks.
fn take_off(chunks: &mut [Bytes], mut bytes: usize) {
    for chunk in chunks {
        let here = bytes.min(chunk.len());
        chunk.advance(here);
        bytes -= here;
        if bytes == 0 {
            return;
        }
    }
}

/// Waits until a connection is reset, without reading it.
async fn reset_of(tcp: &TcpStream) -> io::Error {
    match tcp.ready(Interest::ERROR).await {
        Err(error) => error,
        Ok(_) => match tcp.take_error() {
            Ok(Some(error)) | Err(error) => error,
            Ok(None) => io::ErrorKind::ConnectionReset.into(),
        },
    }
}

/// Ends one direction of a connection.
fn end_writing(tcp: &TcpStream) -> io::Result<()> {
    match socket2::SockRef::from(tcp).shutdown(std::net::Shutdown::Write) {
        // The peer has taken everything and is gone.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        result => result,
    }
}

/// Reads pieces that grow with what comes, so that a quiet connection holds
/// little and a busy one takes few turns.
#[derive(Debug)]
struct Reading {
    size: usize,
}

impl Default for Reading {
    fn default() -> Self {
        Self { size: SMALL }
    }
}

impl Reading {
    /// The next bytes, or `None` at the end. Cancel safe.
    async fn read(&mut self, tcp: &TcpStream) -> io::Result<Option<Bytes>> {
        loop {
            // Nothing is held while nothing comes.
            tcp.readable().await?;
            let mut buffer = BytesMut::with_capacity(self.size);
            match tcp.try_read_buf(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(length) => {
                    if length == self.size {
                        self.size = (self.size * 2).min(LARGE);
                    } else if length < self.size / 4 {
                        self.size = (self.size / 2).max(SMALL);
                    }
                    // A few bytes must not hold a large buffer until they are acknowledged.
                    let few = length < buffer.capacity() / 8;
                    return Ok(Some(if few { Bytes::copy_from_slice(&buffer) } else { buffer.freeze() }));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Moves bytes between two streams until both directions have ended. Dropped
/// before, it resets both.
///
/// # Errors
/// When either breaks; the other is then reset with the same code.
pub async fn relay(mut one: Raw, mut other: Raw) -> Result<(), Cut> {
    let moved = {
        let (first, second) = (std::mem::take(&mut one.first), std::mem::take(&mut other.first));
        tokio::try_join!(
            across(first, &mut one.recv, &mut other.send),
            across(second, &mut other.recv, &mut one.send)
        )
    };
    if let Err(broken) = moved {
        let cut = Cut::from(broken);
        one.abort(cut.code());
        other.abort(cut.code());
        return Err(cut);
    }
    Ok(())
}

async fn across(first: Bytes, recv: &mut RecvHalf, send: &mut SendHalf) -> Result<(), HalfError> {
    let mut stopped = pin!(send.stopped());
    let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
    chunks[0] = first;
    let mut count = 1;
    loop {
        let mut done = 0;
        while done < count {
            if chunks[done].is_empty() {
                done += 1;
                continue;
            }
            tokio::select! {
                biased;
                written = send.write_many(&mut chunks[done..count]) => done += written?,
                broken = recv.broken() => return Err(broken),
            }
        }
        tokio::select! {
            biased;
            read = recv.read_many(&mut chunks) => match read? {
                Some(read) => count = read,
                None => break,
            },
            broken = &mut stopped => return Err(broken),
        }
    }
    send.finish();
    Ok(())
}

/// A stream as one reader and writer, for protocols that are spoken on it.
/// Dropped before both directions have ended, it resets what is left.
#[derive(Debug)]
pub struct Duplex(Raw);

impl Duplex {
    /// Over a stream's halves.
    #[must_use]
    pub fn new(raw: Raw) -> Self {
        Self(raw)
    }
}

impl AsyncRead for Duplex {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.0.first.is_empty() {
            let length = self.0.first.len().min(buffer.remaining());
            buffer.put_slice(&self.0.first.split_to(length));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.0.recv).poll_read(context, buffer)
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0.send).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.send).poll_shutdown(context)
    }
}

/// Chunks moved in one turn.
const CHUNKS: usize = 64;
/// What is read at once from a quiet connection, in bytes.
const SMALL: usize = 4 * 1024;
/// What is read at once from a busy one, in bytes.
const LARGE: usize = 64 * 1024;
