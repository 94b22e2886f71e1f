//! Byte streams through a session: between a TCP connection and the two halves
//! of a stream, between two streams, and as one reader and writer for whoever
//! speaks a protocol on it.
//!
//! Each direction ends for itself: the end of one is passed on as an end and
//! the other goes on. So it is with who stops reading because it is done, as a
//! server is that closes after its answer: what is still sent to it is not
//! wanted, and nothing is cut. Whatever else breaks one direction breaks both,
//! at once, and is passed on as a reset: a cut is never shown as an end. What cannot be
//! written on is not read, so back-pressure reaches from end to end, and what
//! waits is bounded by the stream's window and one buffer. Nothing here opens
//! a stream or knows whom it leads to.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use levers9_wire::Reset;
use levers9_wire::v1::ResetCode;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::carrier::{HalfError, RecvHalf, SendHalf};
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
        let (wanted, ()) = tokio::try_join!(up(tcp, send), down(tcp, std::mem::take(first), recv))?;
        if !wanted {
            // What is unread at the close would make it a reset, and take back what was said.
            let _still_talking = timeout(LINGER, discard(tcp)).await;
        }
        Ok(())
    }
}

/// From the connection to the stream; `false` when the peer wants no more.
async fn up(tcp: &TcpStream, send: &mut SendHalf) -> Result<bool, Cut> {
    let mut stopped = pin!(send.stopped());
    let mut buffer = Reading::default();
    loop {
        let read = tokio::select! {
            biased;
            read = buffer.read(tcp) => read.map_err(Cut::Tcp)?,
            broken = &mut stopped => match is_done(&broken) {
                true => return Ok(false),
                false => return Err(broken.into()),
            },
        };
        let Some(mut bytes) = read else { break };
        while !bytes.is_empty() {
            tokio::select! {
                biased;
                written = send.write(&mut bytes) => match written {
                    Err(broken) if is_done(&broken) => return Ok(false),
                    written => written?,
                },
                // Nobody reads it while it waits: its reset would not be seen.
                broken = reset_of(tcp) => return Err(Cut::Tcp(broken)),
            }
        }
    }
    send.finish();
    Ok(true)
}

/// Reads what nobody wants, until its end.
async fn discard(tcp: &TcpStream) -> io::Result<()> {
    let mut reading = Reading::default();
    while reading.read(tcp).await?.is_some() {}
    Ok(())
}

/// From the stream to the connection.
async fn down(tcp: &TcpStream, first: Bytes, recv: &mut RecvHalf) -> Result<(), Cut> {
    let mut batch = Batch::of(first);
    loop {
        while let Some(chunks) = batch.left() {
            let mut slices = [IoSlice::new(&[]); CHUNKS];
            for (slice, chunk) in slices.iter_mut().zip(chunks.iter()) {
                *slice = IoSlice::new(chunk);
            }
            match tcp.try_write_vectored(&slices[..chunks.len()]) {
                Ok(written) => take_off(chunks, written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::select! {
                    biased;
                    ready = tcp.writable() => ready.map_err(Cut::Tcp)?,
                    broken = recv.broken() => return Err(broken.into()),
                },
                Err(error) => return Err(Cut::Tcp(error)),
            }
        }
        if !batch.fill(recv).await? {
            break;
        }
    }
    end_writing(tcp).map_err(Cut::Tcp)
}

/// What was read of a stream and is not written yet.
struct Batch {
    chunks: [Bytes; CHUNKS],
    written: usize,
    filled: usize,
}

impl Batch {
    fn of(first: Bytes) -> Self {
        let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
        chunks[0] = first;
        Self { chunks, written: 0, filled: 1 }
    }

    /// What is left of it; the first is not empty.
    fn left(&mut self) -> Option<&mut [Bytes]> {
        while self.written < self.filled && self.chunks[self.written].is_empty() {
            self.written += 1;
        }
        (self.written < self.filled).then(|| &mut self.chunks[self.written..self.filled])
    }

    /// Reads the next one; `false` at the end. Cancel safe.
    async fn fill(&mut self, recv: &mut RecvHalf) -> Result<bool, HalfError> {
        let Some(filled) = recv.read_many(&mut self.chunks).await? else { return Ok(false) };
        (self.written, self.filled) = (0, filled);
        Ok(true)
    }
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
pub async fn relay(one: Raw, other: Raw) -> Result<(), Cut> {
    relay_until(one, other, std::future::pending()).await
}

/// As [`relay`], but no longer than until `over` gives a code to reset both with.
///
/// # Errors
/// As [`relay`], and when it was over.
pub async fn relay_until(
    mut one: Raw,
    mut other: Raw,
    over: impl Future<Output = ResetCode>,
) -> Result<(), Cut> {
    let moved = {
        let (first, second) = (std::mem::take(&mut one.first), std::mem::take(&mut other.first));
        let moving = async {
            tokio::try_join!(
                across(first, &mut one.recv, &mut other.send),
                across(second, &mut other.recv, &mut one.send)
            )
        };
        tokio::select! {
            biased;
            moved = moving => moved,
            code = over => Err(HalfError::Reset(Reset::local(code))),
        }
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
    let mut batch = Batch::of(first);
    loop {
        while let Some(chunks) = batch.left() {
            let written = tokio::select! {
                biased;
                written = send.write_many(chunks) => written,
                broken = recv.broken() => return Err(broken),
            };
            match written {
                Err(broken) if is_done(&broken) => return unwanted(recv),
                written => written?,
            }
        }
        tokio::select! {
            biased;
            read = batch.fill(recv) => if !read? { break },
            broken = &mut stopped => match is_done(&broken) {
                true => return unwanted(recv),
                false => return Err(broken),
            },
        }
    }
    send.finish();
    Ok(())
}

/// Whether the peer has stopped reading because it needs no more.
fn is_done(broken: &HalfError) -> bool {
    matches!(broken, HalfError::Reset(reset) if reset.code == ResetCode::Done)
}

/// What comes is not wanted any more.
fn unwanted(recv: &mut RecvHalf) -> Result<(), HalfError> {
    recv.stop(ResetCode::Done);
    Ok(())
}

/// A stream as one reader and writer, for protocols that are spoken on it.
/// Dropped after its writer was shut down, it has ended in order, whatever is
/// still to be read; dropped before, it resets both directions.
#[derive(Debug)]
pub struct Duplex {
    raw: Raw,
    shut_down: bool,
}

impl Duplex {
    /// Over a stream's halves.
    #[must_use]
    pub fn new(raw: Raw) -> Self {
        Self { raw, shut_down: false }
    }
}

impl Drop for Duplex {
    fn drop(&mut self) {
        if self.shut_down {
            self.raw.recv.stop(ResetCode::Done);
        } else {
            self.raw.abort(ResetCode::Cancelled);
        }
    }
}

impl AsyncRead for Duplex {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.raw.first.is_empty() {
            let length = self.raw.first.len().min(buffer.remaining());
            buffer.put_slice(&self.raw.first.split_to(length));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.raw.recv).poll_read(context, buffer)
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.raw.send).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut_down = true;
        Pin::new(&mut self.raw.send).poll_shutdown(context)
    }
}

/// How long somebody who is not listened to any more may go on.
const LINGER: Duration = Duration::from_secs(1);
/// Chunks moved in one turn.
const CHUNKS: usize = 64;
/// What is read at once from a quiet connection, in bytes.
const SMALL: usize = 4 * 1024;
/// What is read at once from a busy one, in bytes.
const LARGE: usize = 64 * 1024;
