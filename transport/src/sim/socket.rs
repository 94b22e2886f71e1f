//! A socket of the simulated network in the form the QUIC library takes.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::time::{Instant, Sleep, sleep_until};

use super::Network;

/// One end of the network.
#[derive(Debug)]
pub struct SimSocket {
    network: Network,
    address: SocketAddr,
    number: u64,
    timer: Mutex<Pin<Box<Sleep>>>,
}

impl SimSocket {
    pub(super) fn new(network: Network, address: SocketAddr, number: u64) -> Self {
        Self { network, address, number, timer: Mutex::new(Box::pin(sleep_until(Instant::now()))) }
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for SimSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let (from, to) = (self.address, transmit.destination);
        if size < transmit.contents.len() && self.network.refuses_segments(from, to) {
            return Err(io::Error::other("the driver cannot split a send"));
        }
        transmit.contents.chunks(size).try_for_each(|one| self.network.send(from, self.number, to, one))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.network.receive(self.address, self.number, cx.waker()) {
                Ok(packet) => {
                    if let Some(error) = packet.error {
                        return Poll::Ready(Err(io::Error::from_raw_os_error(error)));
                    }
                    let length = packet.bytes.len().min(bufs[0].len());
                    bufs[0][..length].copy_from_slice(&packet.bytes[..length]);
                    meta[0] =
                        RecvMeta { addr: packet.from, len: length, stride: length, ecn: None, dst_ip: None };
                    return Poll::Ready(Ok(1));
                }
                Err(None) => return Poll::Pending,
                Err(Some(due)) => {
                    let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
                    timer.as_mut().reset(due);
                    if timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn max_transmit_segments(&self) -> usize {
        10
    }

    fn may_fragment(&self) -> bool {
        false
    }
}
