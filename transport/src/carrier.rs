//! What a session rides on, whatever it is made of: a QUIC connection, or
//! TLS over TCP where UDP does not get through. Sessions and streams are
//! built on these types; [`crate::quic`] and [`crate::tcp`] are behind them,
//! and no type of either library comes up here. It knows nothing of sessions,
//! frames or tokens.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use levers9_wire::Reset;
use levers9_wire::v1::ResetCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::quic::{QuicCarrier, QuicRecv, QuicSend};
use crate::tcp::{TcpCarrier, TcpRecv, TcpSend};

/// Priorities of streams: a higher one is sent first. Streams that somebody
/// waits for have the one a stream is born with, since they are the most.
pub mod priority {
    /// Pings and what they ride with.
    pub const CONTROL: i32 = 100;
    /// Calls, exec and HTTP: somebody is waiting.
    pub const INTERACTIVE: i32 = 0;
    /// Logs and reports.
    pub const LOG: i32 = -50;
    /// Uploads.
    pub const BULK: i32 = -60;
}

/// What a carrier is made of, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CarrierKind {
    /// QUIC over UDP.
    Quic,
    /// TLS over TCP.
    Tcp,
    /// TLS over TCP through an HTTP proxy.
    Proxy,
}

impl CarrierKind {
    /// How people call it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Tcp => "tcp",
            Self::Proxy => "proxy",
        }
    }

    /// Whether there may be a better one.
    #[must_use]
    pub fn is_fallback(self) -> bool {
        self != Self::Quic
    }
}

impl fmt::Display for CarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Why a carrier is gone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// One side closed it, with a code and words.
    #[error("{reset}{words}", reset = .0, words = said(.1))]
    Closed(Reset, String),
    /// Nothing came for too long.
    #[error("no answer for too long")]
    TimedOut,
    /// The peer does not know the connection: it was restarted.
    #[error("the peer was restarted")]
    Restarted,
    /// The connection broke without a word.
    #[error("the connection was cut: {0}")]
    Cut(String),
    /// The peer speaks another QUIC version.
    #[error("the peer speaks another version of QUIC")]
    Version,
    /// The peer would not take a connection now.
    #[error("the peer refuses connections now")]
    Busy,
    /// The TLS handshake failed, with the peer's or our words.
    #[error("TLS: {0}")]
    Tls(String),
    /// A violation of the protocol.
    #[error("protocol violation: {0}")]
    Protocol(String),
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

/// Why a stream ended other than by its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HalfError {
    /// One side reset or stopped it.
    #[error(transparent)]
    Reset(#[from] Reset),
    /// The carrier is gone.
    #[error("connection lost: {0}")]
    Lost(#[from] Lost),
    /// It was finished or reset by this side before.
    #[error("the stream is closed already")]
    Closed,
}

impl From<HalfError> for io::Error {
    fn from(error: HalfError) -> Self {
        let kind = match &error {
            HalfError::Reset(_) => io::ErrorKind::ConnectionReset,
            HalfError::Lost(_) => io::ErrorKind::ConnectionAborted,
            HalfError::Closed => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

/// One connection: moves the streams of a session.
#[derive(Clone)]
pub struct Carrier(Made);

#[derive(Clone)]
enum Made {
    Quic(QuicCarrier),
    Tcp(TcpCarrier),
}

impl From<QuicCarrier> for Carrier {
    fn from(quic: QuicCarrier) -> Self {
        Self(Made::Quic(quic))
    }
}

impl From<TcpCarrier> for Carrier {
    fn from(tcp: TcpCarrier) -> Self {
        Self(Made::Tcp(tcp))
    }
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Carrier({} {})", self.kind(), self.peer())
    }
}

impl Carrier {
    /// What it is made of. Of a peer behind a proxy this is what the peer says.
    #[must_use]
    pub fn kind(&self) -> CarrierKind {
        match &self.0 {
            Made::Quic(_) => CarrierKind::Quic,
            Made::Tcp(tcp) => tcp.kind(),
        }
    }

    /// Why it is no better one, in the dialer's words; empty for QUIC.
    #[must_use]
    pub fn why(&self) -> String {
        match &self.0 {
            Made::Quic(_) => String::new(),
            Made::Tcp(tcp) => tcp.why(),
        }
    }

    /// Opens a stream in both directions. Waits while the peer permits no more.
    /// Cancel safe.
    ///
    /// # Errors
    /// When the carrier is gone.
    pub async fn open(&self) -> Result<(SendHalf, RecvHalf), Lost> {
        match &self.0 {
            Made::Quic(quic) => quic.open().await.map(of_quic),
            Made::Tcp(tcp) => tcp.open().await.map(of_tcp),
        }
    }

    /// The next stream the peer opens. Cancel safe.
    ///
    /// # Errors
    /// When the carrier is gone.
    pub async fn accept(&self) -> Result<(SendHalf, RecvHalf), Lost> {
        match &self.0 {
            Made::Quic(quic) => quic.accept().await.map(of_quic),
            Made::Tcp(tcp) => tcp.accept().await.map(of_tcp),
        }
    }

    /// Closes at once; what was not acknowledged is lost. One that is gone
    /// already stays gone for its first reason.
    pub fn close(&self, why: ResetCode, words: &str) {
        match &self.0 {
            Made::Quic(quic) => quic.close(why, words),
            Made::Tcp(tcp) => tcp.close(why, words),
        }
    }

    /// Waits until it is gone, and says why. Cancel safe.
    pub async fn closed(&self) -> Lost {
        match &self.0 {
            Made::Quic(quic) => quic.closed().await,
            Made::Tcp(tcp) => tcp.closed().await,
        }
    }

    /// Why it is gone, when it is.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        match &self.0 {
            Made::Quic(quic) => quic.lost(),
            Made::Tcp(tcp) => tcp.lost(),
        }
    }

    /// Waits until the peer of a closed TCP carrier has been told, or cannot
    /// be. Those of QUIC are told by their endpoint.
    pub(crate) async fn told(&self) {
        if let Made::Tcp(tcp) = &self.0 {
            tcp.told().await;
        }
    }

    /// Keeps streams that nobody reads from starving the others. To be polled
    /// as long as the carrier is used; never returns while it works.
    pub(crate) async fn guard(&self) {
        match &self.0 {
            Made::Quic(quic) => quic.guard().await,
            // Streams share no window there.
            Made::Tcp(_) => std::future::pending().await,
        }
    }

    /// Where the peer is now; changes when its NAT does.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        let peer = match &self.0 {
            Made::Quic(quic) => quic.peer(),
            Made::Tcp(tcp) => tcp.peer(),
        };
        SocketAddr::new(peer.ip().to_canonical(), peer.port())
    }

    /// The current estimate of the round-trip time.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        match &self.0 {
            Made::Quic(quic) => quic.rtt(),
            Made::Tcp(tcp) => tcp.rtt(),
        }
    }

    /// Packets sent, and of those lost; none are counted on TCP.
    #[must_use]
    pub fn packets(&self) -> (u64, u64) {
        match &self.0 {
            Made::Quic(quic) => quic.packets(),
            Made::Tcp(_) => (0, 0),
        }
    }

    /// UDP datagrams sent and received; none are counted on TCP.
    pub(crate) fn datagrams(&self) -> (u64, u64) {
        match &self.0 {
            Made::Quic(quic) => quic.datagrams(),
            Made::Tcp(_) => (0, 0),
        }
    }

    /// The packet size in use, in bytes; 0 on TCP, where the system chooses it.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        match &self.0 {
            Made::Quic(quic) => quic.mtu(),
            Made::Tcp(_) => 0,
        }
    }

    /// Raises how many streams the peer may have open at once; never lowers it.
    pub fn permit_streams(&self, count: u32) {
        match &self.0 {
            Made::Quic(quic) => quic.permit_streams(count),
            Made::Tcp(tcp) => tcp.permit_streams(count),
        }
    }

    /// Streams the peer may have open at once.
    #[must_use]
    pub fn permitted(&self) -> u32 {
        match &self.0 {
            Made::Quic(quic) => quic.permitted(),
            Made::Tcp(tcp) => tcp.permitted(),
        }
    }

    /// Halves of streams that this side still holds.
    #[must_use]
    pub fn halves(&self) -> usize {
        match &self.0 {
            Made::Quic(quic) => quic.live_halves(),
            Made::Tcp(tcp) => tcp.live_halves(),
        }
    }

    /// Tells two carriers of one process apart.
    #[must_use]
    pub fn number(&self) -> usize {
        match &self.0 {
            Made::Quic(quic) => quic.number(),
            Made::Tcp(tcp) => tcp.number(),
        }
    }
}

fn of_quic((send, recv): (QuicSend, QuicRecv)) -> (SendHalf, RecvHalf) {
    (SendHalf(Sends::Quic(send)), RecvHalf(Receives::Quic(recv)))
}

fn of_tcp((send, recv): (TcpSend, TcpRecv)) -> (SendHalf, RecvHalf) {
    (SendHalf(Sends::Tcp(send)), RecvHalf(Receives::Tcp(recv)))
}

/// The half of a stream that is written. Dropping it without
/// [`finish`](SendHalf::finish) resets it.
#[derive(Debug)]
pub struct SendHalf(Sends);

#[derive(Debug)]
enum Sends {
    Quic(QuicSend),
    Tcp(TcpSend),
}

impl SendHalf {
    /// Writes what fits now and takes it off the front of `bytes`; waits until
    /// something fits. Cancel safe: what was not written is still in `bytes`.
    ///
    /// # Errors
    /// When the peer stopped the stream or the carrier is gone.
    pub async fn write(&mut self, bytes: &mut Bytes) -> Result<(), HalfError> {
        match &mut self.0 {
            Sends::Quic(quic) => quic.write(bytes).await,
            Sends::Tcp(tcp) => tcp.write_many(std::slice::from_mut(bytes)).await,
        }
    }

    /// Writes what fits now of several and takes it off their fronts; waits
    /// until something fits. Cancel safe.
    ///
    /// # Errors
    /// When the peer stopped the stream or the carrier is gone.
    pub async fn write_many(&mut self, chunks: &mut [Bytes]) -> Result<(), HalfError> {
        match &mut self.0 {
            Sends::Quic(quic) => quic.write_many(chunks).await,
            Sends::Tcp(tcp) => tcp.write_many(chunks).await,
        }
    }

    /// Waits until the peer reads no more, or the carrier is gone; for ever
    /// when it has read everything. Can be waited for beside writing. Cancel safe.
    pub fn stopped(&self) -> impl Future<Output = HalfError> + Send + 'static {
        match &self.0 {
            Sends::Quic(quic) => Either::Left(quic.stopped()),
            Sends::Tcp(tcp) => Either::Right(tcp.stopped()),
        }
    }

    /// Writes all of it. Not cancel safe: a part may have been written.
    ///
    /// # Errors
    /// When the peer stopped the stream or the carrier is gone.
    pub async fn write_all(&mut self, bytes: Bytes) -> Result<(), HalfError> {
        match &mut self.0 {
            Sends::Quic(quic) => quic.write_all(bytes).await,
            Sends::Tcp(tcp) => tcp.write_all(bytes).await,
        }
    }

    /// Says that nothing follows. The bytes before are still delivered.
    pub fn finish(&mut self) {
        match &mut self.0 {
            Sends::Quic(quic) => quic.finish(),
            Sends::Tcp(tcp) => tcp.finish(),
        }
    }

    /// Gives up the stream; bytes not yet delivered may be lost.
    pub fn reset(&mut self, why: ResetCode) {
        match &mut self.0 {
            Sends::Quic(quic) => quic.reset(why),
            Sends::Tcp(tcp) => tcp.reset(why),
        }
    }

    /// Waits until the peer has everything up to the finish (`Ok`), or has
    /// stopped reading. Cancel safe.
    ///
    /// # Errors
    /// When the peer stopped the stream or the carrier is gone.
    pub async fn delivered(&mut self) -> Result<(), HalfError> {
        match &mut self.0 {
            Sends::Quic(quic) => quic.delivered().await,
            Sends::Tcp(tcp) => tcp.delivered().await,
        }
    }

    /// Sends this stream before or after others of the carrier.
    pub fn set_priority(&mut self, priority: i32) {
        match &mut self.0 {
            Sends::Quic(quic) => quic.set_priority(priority),
            Sends::Tcp(tcp) => tcp.set_priority(priority),
        }
    }
}

/// The half of a stream that is read. Dropping it before its end stops the
/// peer and gives the window back.
#[derive(Debug)]
pub struct RecvHalf(Receives);

#[derive(Debug)]
enum Receives {
    Quic(QuicRecv),
    Tcp(TcpRecv),
}

impl RecvHalf {
    /// The next bytes, at most `max`, or `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// When the peer reset the stream or the carrier is gone.
    pub async fn read(&mut self, max: usize) -> Result<Option<Bytes>, HalfError> {
        match &mut self.0 {
            Receives::Quic(quic) => quic.read(max).await,
            Receives::Tcp(tcp) => tcp.read(max).await,
        }
    }

    /// Fills `chunks` from the front with what is there and says how many, or
    /// `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// As [`RecvHalf::read`].
    pub async fn read_many(&mut self, chunks: &mut [Bytes]) -> Result<Option<usize>, HalfError> {
        match &mut self.0 {
            Receives::Quic(quic) => quic.read_many(chunks).await,
            Receives::Tcp(tcp) => tcp.read_many(chunks).await,
        }
    }

    /// Waits until the peer has reset the stream, or the carrier is gone,
    /// without reading; for ever when it has ended well. Cancel safe.
    pub async fn broken(&mut self) -> HalfError {
        match &mut self.0 {
            Receives::Quic(quic) => quic.broken().await,
            Receives::Tcp(tcp) => tcp.broken().await,
        }
    }

    /// Tells the peer that nothing more is read.
    pub fn stop(&mut self, why: ResetCode) {
        match &mut self.0 {
            Receives::Quic(quic) => quic.stop(why),
            Receives::Tcp(tcp) => tcp.stop(why),
        }
    }
}

impl AsyncWrite for SendHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Sends::Quic(quic) => Pin::new(quic).poll_write(context, bytes),
            Sends::Tcp(tcp) => tcp.poll_copy(context, bytes).map_err(io::Error::from),
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

/// Copies, where [`RecvHalf::read_many`] does not.
impl AsyncRead for RecvHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Receives::Quic(quic) => Pin::new(quic).poll_read(context, buffer),
            Receives::Tcp(tcp) => tcp.poll_copy(context, buffer).map_err(io::Error::from),
        }
    }
}
