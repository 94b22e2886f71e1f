//! The seam: everything that names the QUIC library. Above it there are
//! endpoints, carriers and the two halves of a stream. It knows nothing of
//! sessions, frames or tokens.

mod endpoint;
mod flow;
mod settings;
mod socket;
mod turns;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use levers9_wire::Reset;
use levers9_wire::v1::ResetCode;
use quinn::VarInt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::ReusableBoxFuture;

pub use crate::carrier::{Carrier, HalfError, Lost, RecvHalf, SendHalf, priority};
use crate::tls;
pub use crate::tls::provider as crypto_provider;
pub(crate) use endpoint::ConnectFailed;
pub use endpoint::{Endpoint, Identity, Inbound, ServerKeys};
#[cfg(feature = "sim")]
pub use quinn::AsyncUdpSocket;
pub use settings::{BadSettings, Congestion, Settings};
pub use socket::{Counters, Probe, bind, bind_any, probe, speaks_quic};

impl From<quinn::ConnectionError> for Lost {
    fn from(error: quinn::ConnectionError) -> Self {
        use quinn::ConnectionError as E;
        match error {
            E::VersionMismatch => Self::Version,
            E::TransportError(e) if is_other_protocol(e.code) => Self::Tls(tls::OTHER_PROTOCOL.to_owned()),
            E::TransportError(e) if is_tls(e.code) => Self::Tls(e.reason),
            E::TransportError(e) => Self::Protocol(e.to_string()),
            E::ConnectionClosed(c) if c.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED => {
                Self::Busy
            }
            E::ConnectionClosed(c) if is_other_protocol(c.error_code) => {
                Self::Tls(tls::OTHER_PROTOCOL.to_owned())
            }
            E::ConnectionClosed(c) if is_tls(c.error_code) => {
                Self::Tls(String::from_utf8_lossy(&c.reason).into_owned())
            }
            E::ConnectionClosed(c) => Self::Protocol(c.to_string()),
            E::ApplicationClosed(c) => {
                let words: String = String::from_utf8_lossy(&c.reason).chars().take(512).collect();
                Self::Closed(Reset::remote(c.error_code.into_inner()), words)
            }
            E::Reset => Self::Restarted,
            E::TimedOut => Self::TimedOut,
            E::LocallyClosed => Self::Closed(Reset::local(ResetCode::Done), String::new()),
            E::CidsExhausted => Self::Protocol("connection ids are exhausted".to_owned()),
        }
    }
}

fn is_other_protocol(code: quinn::TransportErrorCode) -> bool {
    code == quinn::TransportErrorCode::crypto(tls::NO_PROTOCOL_IN_COMMON)
}

fn is_tls(code: quinn::TransportErrorCode) -> bool {
    (0x100..0x200).contains(&u64::from(code))
}

impl From<quinn::WriteError> for HalfError {
    fn from(error: quinn::WriteError) -> Self {
        match error {
            quinn::WriteError::Stopped(code) => Self::Reset(Reset::remote(code.into_inner())),
            quinn::WriteError::ConnectionLost(lost) => Self::Lost(lost.into()),
            quinn::WriteError::ClosedStream | quinn::WriteError::ZeroRttRejected => Self::Closed,
        }
    }
}

impl From<quinn::ReadError> for HalfError {
    fn from(error: quinn::ReadError) -> Self {
        match error {
            quinn::ReadError::Reset(code) => Self::Reset(Reset::remote(code.into_inner())),
            quinn::ReadError::ConnectionLost(lost) => Self::Lost(lost.into()),
            quinn::ReadError::ClosedStream
            | quinn::ReadError::IllegalOrderedRead
            | quinn::ReadError::ZeroRttRejected => Self::Closed,
        }
    }
}

fn code(code: ResetCode) -> VarInt {
    VarInt::from_u32(u32::try_from(i32::from(code)).unwrap_or(0))
}

/// One QUIC connection.
#[derive(Clone)]
pub(crate) struct QuicCarrier {
    shared: Arc<flow::Tuner>,
}

impl fmt::Debug for QuicCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quic({})", self.shared.connection.remote_address())
    }
}

impl QuicCarrier {
    fn new(connection: quinn::Connection, settings: &Settings) -> Self {
        Self { shared: Arc::new(flow::Tuner::new(connection, settings)) }
    }

    /// Opens a stream in both directions. Waits while the peer permits no more.
    /// Cancel safe.
    ///
    /// # Errors
    /// When the carrier is gone.
    pub(crate) async fn open(&self) -> Result<(QuicSend, QuicRecv), Lost> {
        let (send, recv) = self.shared.connection.open_bi().await?;
        Ok(self.halves(send, recv))
    }

    /// The next stream the peer opens. Cancel safe.
    ///
    /// # Errors
    /// When the carrier is gone.
    pub(crate) async fn accept(&self) -> Result<(QuicSend, QuicRecv), Lost> {
        let (send, recv) = self.shared.connection.accept_bi().await?;
        Ok(self.halves(send, recv))
    }

    fn halves(&self, send: quinn::SendStream, recv: quinn::RecvStream) -> (QuicSend, QuicRecv) {
        self.shared.park();
        self.shared.live.fetch_add(2, Ordering::Relaxed);
        let recv = QuicRecv { stream: recv, parked: Parked { flow: Arc::clone(&self.shared), is: true } };
        (QuicSend { stream: send, ended: false, flow: Arc::clone(&self.shared), stop: None }, recv)
    }

    /// Closes at once; what was not acknowledged is lost. One that is gone
    /// already stays gone for its first reason.
    pub(crate) fn close(&self, why: ResetCode, words: &str) {
        if self.shared.connection.close_reason().is_none() {
            self.shared.connection.close(code(why), words.as_bytes());
        }
    }

    /// Waits until it is gone, and says why. Cancel safe.
    pub(crate) async fn closed(&self) -> Lost {
        self.shared.connection.closed().await.into()
    }

    /// Why it is gone, when it is.
    pub(crate) fn lost(&self) -> Option<Lost> {
        self.shared.connection.close_reason().map(Lost::from)
    }

    /// Keeps streams that nobody reads from starving the others. To be polled
    /// as long as the carrier is used; never returns while it works.
    pub(crate) async fn guard(&self) {
        self.shared.guard().await;
    }

    /// Where the peer is now; changes when its NAT does.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.shared.connection.remote_address()
    }

    /// The current estimate of the round-trip time.
    pub(crate) fn rtt(&self) -> Duration {
        self.shared.connection.rtt()
    }

    /// Packets sent, and of those lost.
    pub(crate) fn packets(&self) -> (u64, u64) {
        let path = self.shared.connection.stats().path;
        (path.sent_packets, path.lost_packets)
    }

    /// Datagrams sent and received.
    pub(crate) fn datagrams(&self) -> (u64, u64) {
        let stats = self.shared.connection.stats();
        (stats.udp_tx.datagrams, stats.udp_rx.datagrams)
    }

    /// The packet size in use, in bytes.
    pub(crate) fn mtu(&self) -> u16 {
        self.shared.connection.stats().path.current_mtu
    }

    /// Raises how many streams the peer may have open at once; never lowers it.
    pub(crate) fn permit_streams(&self, count: u32) {
        self.shared.permit(count);
    }

    /// Streams the peer may have open at once.
    pub(crate) fn permitted(&self) -> u32 {
        self.shared.permitted.load(Ordering::Relaxed)
    }

    /// Halves that are still held.
    pub(crate) fn live_halves(&self) -> usize {
        self.shared.live.load(Ordering::Relaxed)
    }

    /// Tells two carriers of one process apart.
    pub(crate) fn number(&self) -> usize {
        self.shared.connection.stable_id()
    }
}

/// The half of a stream that is written. Dropping it without
/// [`finish`](QuicSend::finish) resets it.
pub(crate) struct QuicSend {
    stream: quinn::SendStream,
    /// It was finished or reset.
    ended: bool,
    flow: Arc<flow::Tuner>,
    /// Tells a writer that is polled when it is stopped, once it had to wait.
    stop: Option<ReusableBoxFuture<'static, HalfError>>,
}

impl Drop for QuicSend {
    fn drop(&mut self) {
        // The library would finish it: a cut that looks like an end.
        if !self.ended {
            self.reset(ResetCode::Cancelled);
        }
        self.flow.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for QuicSend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendHalf({})", self.stream.id())
    }
}

impl QuicSend {
    /// Writes what fits now and takes it off the front of `bytes`; waits until
    /// something fits. Cancel safe: what was not written is still in `bytes`.
    ///
    /// # Errors
    /// When the peer stopped the stream or the carrier is gone.
    pub(crate) async fn write(&mut self, bytes: &mut Bytes) -> Result<(), HalfError> {
        self.write_many(std::slice::from_mut(bytes)).await
    }

    /// Writes what fits now of several and takes it off their fronts; waits
    /// until something fits. Cancel safe.
    ///
    /// # Errors
    /// When the peer stopped the stream or the carrier is gone.
    pub(crate) async fn write_many(&mut self, chunks: &mut [Bytes]) -> Result<(), HalfError> {
        let length = chunks.iter().map(Bytes::len).sum();
        // Most need not wait, and do not pay for what waiting takes.
        let at_once = self.flow.turns.write(length, self.stream.write_chunks(chunks)).now_or_never();
        if let Some(written) = at_once {
            written?;
            return Ok(());
        }
        let stopped = self.stopped();
        let write = self.flow.turns.write(length, self.stream.write_chunks(chunks));
        unless(stopped, write).await?;
        Ok(())
    }

    /// Waits until the peer reads no more, or the carrier is gone; for ever
    /// when it has read everything. Can be waited for beside writing. Cancel safe.
    pub(crate) fn stopped(&self) -> impl Future<Output = HalfError> + Send + 'static {
        let stopped = self.stream.stopped();
        async move {
            match stopped.await {
                Ok(None) => std::future::pending().await,
                Ok(Some(why)) => HalfError::Reset(Reset::remote(why.into_inner())),
                Err(quinn::StoppedError::ConnectionLost(lost)) => HalfError::Lost(lost.into()),
                Err(quinn::StoppedError::ZeroRttRejected) => HalfError::Closed,
            }
        }
    }

    /// Writes all of it. Not cancel safe: a part may have been written.
    ///
    /// # Errors
    /// When the peer stopped the stream or the carrier is gone.
    pub(crate) async fn write_all(&mut self, bytes: Bytes) -> Result<(), HalfError> {
        let mut left = [bytes];
        while !left[0].is_empty() {
            self.write_many(&mut left).await?;
        }
        Ok(())
    }

    /// Says that nothing follows. The bytes before are still delivered.
    pub(crate) fn finish(&mut self) {
        self.ended = true;
        let _already_closed = self.stream.finish();
    }

    /// Gives up the stream; bytes not yet delivered may be lost.
    pub(crate) fn reset(&mut self, why: ResetCode) {
        self.ended = true;
        let _already_closed = self.stream.reset(code(why));
    }

    /// Waits until the peer has everything up to the finish (`Ok`), or has
    /// stopped reading. Cancel safe.
    ///
    /// # Errors
    /// When the peer stopped the stream or the carrier is gone.
    pub(crate) async fn delivered(&mut self) -> Result<(), HalfError> {
        match self.stream.stopped().await {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(HalfError::Reset(Reset::remote(why.into_inner()))),
            Err(quinn::StoppedError::ConnectionLost(lost)) => Err(HalfError::Lost(lost.into())),
            Err(quinn::StoppedError::ZeroRttRejected) => Err(HalfError::Closed),
        }
    }

    /// Sends this stream before or after others of the carrier.
    pub(crate) fn set_priority(&mut self, priority: i32) {
        let _already_closed = self.stream.set_priority(priority);
    }
}

/// Writes unless the stream is stopped meanwhile. The library does not say so
/// to a writer that waits for the connection's window and for the stream's at
/// once, and it would wait as long as the connection lasts.
async fn unless<T>(
    stopped: impl Future<Output = HalfError>,
    write: impl Future<Output = Result<T, quinn::WriteError>>,
) -> Result<T, HalfError> {
    tokio::select! {
        biased;
        written = write => Ok(written?),
        why = stopped => Err(why),
    }
}

/// The half of a stream that is read. Dropping it before its end stops the
/// peer and gives the window back.
pub(crate) struct QuicRecv {
    stream: quinn::RecvStream,
    parked: Parked,
}

/// Whether a stream counts among those nobody reads.
struct Parked {
    flow: Arc<flow::Tuner>,
    is: bool,
}

impl Parked {
    fn set(&mut self, parked: bool) {
        if self.is != parked {
            self.is = parked;
            if parked { self.flow.park() } else { self.flow.unpark() }
        }
    }

    /// Not parked while the guard lives.
    fn reading(&mut self) -> Reading<'_> {
        self.set(false);
        Reading(self)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.set(false);
        self.flow.live.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Reading<'a>(&'a mut Parked);

impl Reading<'_> {
    /// Counts what was read. After an end or an error there is nothing left to
    /// read, and the stream is parked no more.
    fn finish<T>(
        self,
        read: Result<Option<T>, quinn::ReadError>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Result<Option<T>, HalfError> {
        match &read {
            Ok(Some(some)) => self.0.flow.received(bytes(some)),
            Ok(None) | Err(_) => std::mem::forget(self),
        }
        read.map_err(HalfError::from)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

impl fmt::Debug for QuicRecv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvHalf({})", self.stream.id())
    }
}

impl QuicRecv {
    /// The next bytes, at most `max`, or `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// When the peer reset the stream or the carrier is gone.
    pub(crate) async fn read(&mut self, max: usize) -> Result<Option<Bytes>, HalfError> {
        let reading = self.parked.reading();
        let read = self.stream.read_chunk(max, true).await;
        let chunk = reading.finish(read, |chunk| chunk.bytes.len())?;
        Ok(chunk.map(|chunk| chunk.bytes))
    }

    /// Fills `chunks` from the front with what is there and says how many, or
    /// `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// As [`QuicRecv::read`].
    pub(crate) async fn read_many(&mut self, chunks: &mut [Bytes]) -> Result<Option<usize>, HalfError> {
        let reading = self.parked.reading();
        let read = self.stream.read_chunks(chunks).await;
        reading.finish(read, |count| chunks[..*count].iter().map(Bytes::len).sum())
    }

    /// Waits until the peer has reset the stream, or the carrier is gone,
    /// without reading; for ever when it has ended well. Cancel safe.
    pub(crate) async fn broken(&mut self) -> HalfError {
        match self.stream.received_reset().await {
            Ok(None) => std::future::pending().await,
            Ok(Some(why)) => HalfError::Reset(Reset::remote(why.into_inner())),
            Err(quinn::ResetError::ConnectionLost(lost)) => HalfError::Lost(lost.into()),
            Err(quinn::ResetError::ZeroRttRejected) => HalfError::Closed,
        }
    }

    /// Tells the peer that nothing more is read.
    pub(crate) fn stop(&mut self, why: ResetCode) {
        let _already_closed = self.stream.stop(code(why));
    }
}

impl AsyncWrite for QuicSend {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(written) = written {
            return Poll::Ready(written.map_err(|error| HalfError::from(error).into()));
        }
        // As in `unless`.
        let mut stop = self.stop.take().unwrap_or_else(|| ReusableBoxFuture::new(self.stopped()));
        match stop.poll(context) {
            Poll::Ready(why) => Poll::Ready(Err(why.into())),
            Poll::Pending => {
                self.stop = Some(stop);
                Poll::Pending
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}

/// Copies, where [`QuicRecv::read_many`] does not. Counts as not being read all
/// the time, since nobody says when the reader pauses.
impl AsyncRead for QuicRecv {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(self.stream.poll_read_buf(context, buffer));
        self.parked.flow.received(buffer.filled().len() - before);
        if read.is_err() || buffer.filled().len() == before {
            self.parked.set(false);
        }
        Poll::Ready(read.map_err(|error| HalfError::from(error).into()))
    }
}
