//! The UDP sockets under a carrier: opened with large buffers, and guarded so
//! that an error about one datagram is counted and dropped instead of closing
//! a connection or the whole endpoint. The only file that implements the QUIC
//! library's socket trait outside the simulator.

use std::io::{self, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use socket2::{Domain, Protocol, Socket, Type};

/// Opens and binds a UDP socket with buffers of the wanted size, or as large
/// as the kernel gives.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind(address: SocketAddr, buffer: usize) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // Smaller buffers only cost speed.
    let _kept = (socket.set_recv_buffer_size(buffer), socket.set_send_buffer_size(buffer));
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Opens a socket to dial from: both families where the machine has both.
///
/// # Errors
/// When not even an IPv4 socket can be had.
pub fn bind_any(buffer: usize) -> io::Result<UdpSocket> {
    bind((Ipv6Addr::UNSPECIFIED, 0).into(), buffer)
        .or_else(|_| bind((std::net::Ipv4Addr::UNSPECIFIED, 0).into(), buffer))
}

/// What went wrong with single datagrams.
#[derive(Debug, Default)]
pub struct Counters {
    /// Sends the kernel refused.
    pub send_errors: AtomicU64,
    /// Receives that failed.
    pub receive_errors: AtomicU64,
    failing: AtomicBool,
}

impl Counters {
    /// Counts a refused send and says so once until sends work again.
    fn failed(&self, error: &io::Error, to: SocketAddr) {
        self.send_errors.fetch_add(1, Ordering::Relaxed);
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, %to, "the system refuses to send UDP packets; dropping them until it does");
        }
    }

    fn sent(&self) {
        if self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!(dropped = self.send_errors.load(Ordering::Relaxed), "UDP packets are sent again");
        }
    }
}

/// A socket whose per-datagram errors are dropped and counted.
#[derive(Debug)]
pub(super) struct Guarded {
    inner: Arc<dyn AsyncUdpSocket>,
    counters: Arc<Counters>,
    /// Segmentation was announced but does not work: send packets whole.
    whole: AtomicBool,
}

impl Guarded {
    pub(super) fn new(inner: Arc<dyn AsyncUdpSocket>, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { inner, counters, whole: AtomicBool::new(false) })
    }
}

impl Guarded {
    /// A refused send of several packets is tried once more packet by packet:
    /// some drivers announce segmentation and cannot do it.
    fn fall_back(&self, transmit: &Transmit<'_>, error: &io::Error) {
        let Some(size) = transmit.segment_size.filter(|size| *size > 0 && *size < transmit.contents.len())
        else {
            return self.counters.failed(error, transmit.destination);
        };
        for one in transmit.contents.chunks(size) {
            let single = Transmit { contents: one, segment_size: None, ..transmit.clone() };
            match self.inner.try_send(&single) {
                Ok(()) => self.whole.store(true, Ordering::Relaxed),
                Err(error) => return self.counters.failed(&error, transmit.destination),
            }
        }
    }
}

impl AsyncUdpSocket for Guarded {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match self.inner.try_send(transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            Err(error) => {
                self.fall_back(transmit, &error);
                Ok(())
            }
            Ok(()) => {
                self.counters.sent();
                Ok(())
            }
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        // A socket that does nothing but fail must not hold the thread: after
        // some errors the task is put back in line.
        for _ in 0..16 {
            match self.inner.poll_recv(cx, bufs, meta) {
                Poll::Ready(Err(_)) => self.counters.receive_errors.fetch_add(1, Ordering::Relaxed),
                other => return other,
            };
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        if self.whole.load(Ordering::Relaxed) { 1 } else { self.inner.max_transmit_segments() }
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

/// In the place of a socket where none can be had: nothing is sent, nothing comes.
#[derive(Debug)]
pub(super) struct NoSocket;

impl UdpPoller for NoSocket {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for NoSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Self)
    }

    fn try_send(&self, _: &Transmit<'_>) -> io::Result<()> {
        Ok(())
    }

    fn poll_recv(
        &self,
        _: &mut Context<'_>,
        _: &mut [IoSliceMut<'_>],
        _: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok((Ipv6Addr::UNSPECIFIED, 0).into())
    }
}

/// What a connected socket learns about an address that did not answer QUIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// The host says that no program has this port.
    NothingListening,
    /// The system has no way there.
    Unreachable,
    /// No word: blocked on the way, or down.
    Silent,
}

/// Whether something speaks QUIC at an address, and how long its answer took:
/// a packet of a version nobody has is answered with those that are spoken,
/// whatever the peer thinks of certificates and tokens.
///
/// # Errors
/// With what is known of an address that does not answer.
pub async fn speaks_quic(address: SocketAddr) -> Result<std::time::Duration, Probe> {
    let any: SocketAddr =
        if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = tokio::net::UdpSocket::bind(any).await.map_err(|_| Probe::Unreachable)?;
    socket.connect(address).await.map_err(|_| Probe::Unreachable)?;
    let packet = unknown_version();
    for _ in 0..4 {
        let began = tokio::time::Instant::now();
        let ask = async {
            socket.send(&packet).await?;
            socket.recv(&mut [0u8; 1500]).await
        };
        match tokio::time::timeout(std::time::Duration::from_millis(750), ask).await {
            Ok(Ok(_)) => return Ok(began.elapsed()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Err(Probe::NothingListening);
            }
            Ok(Err(_)) => return Err(Probe::Unreachable),
            Err(_) => {}
        }
    }
    Err(Probe::Silent)
}

/// A long header of a reserved version, as large as a first packet has to be.
fn unknown_version() -> [u8; 1200] {
    let mut packet = [0u8; 1200];
    packet[0] = 0xc0;
    packet[1..5].copy_from_slice(&[0x1a, 0x2a, 0x3a, 0x4a]);
    // Connection ids of eight bytes each.
    (packet[5], packet[14]) = (8, 8);
    packet[6..14].copy_from_slice(b"levers9?");
    packet[15..23].copy_from_slice(b"levers9?");
    packet
}

/// Asks an address with one empty-handed datagram. Only for telling failures
/// apart after a handshake got no answer.
pub async fn probe(address: SocketAddr) -> Probe {
    let any: SocketAddr =
        if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let Ok(socket) = tokio::net::UdpSocket::bind(any).await else { return Probe::Unreachable };
    if socket.connect(address).await.is_err() {
        return Probe::Unreachable;
    }
    for _ in 0..3 {
        let ask = async {
            socket.send(&[0]).await?;
            socket.recv(&mut [0u8; 16]).await
        };
        match tokio::time::timeout(std::time::Duration::from_millis(150), ask).await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Probe::NothingListening;
            }
            Ok(Err(_)) => return Probe::Unreachable,
            Ok(Ok(_)) | Err(_) => {}
        }
    }
    Probe::Silent
}
