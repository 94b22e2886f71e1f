//! A relay for UDP and TCP on one port: a firewall that drops all of UDP when
//! it is told to, and a middlebox that resets every TCP connection there is.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use levers9_transport::Address;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How many peers may come by UDP; each attempt to dial is another one.
const PEERS: usize = 256;
/// How often a port is looked for that is free for both.
const TRIES: usize = 50;
/// The largest datagram.
const DATAGRAM: usize = 65_536;

/// The relay; it ends when this is dropped.
pub(super) struct Relay {
    at: SocketAddr,
    passes_udp: Arc<AtomicBool>,
    resets: watch::Sender<u64>,
    _tasks: JoinSet<()>,
}

impl Relay {
    /// Starts one in front of an address. It runs on another thread than those
    /// who are measured.
    pub(super) async fn start(on: &Handle, to: SocketAddr) -> Result<Self> {
        on.spawn(Self::on_this_runtime(to)).await?
    }

    async fn on_this_runtime(to: SocketAddr) -> Result<Self> {
        let (udp, tcp) = both().await?;
        let at = udp.local_addr()?;
        let (passes_udp, resets) = (Arc::new(AtomicBool::new(true)), watch::Sender::new(0));
        let mut tasks = JoinSet::new();
        tasks.spawn(relay_udp(Arc::new(udp), to, Arc::clone(&passes_udp)));
        tasks.spawn(relay_tcp(tcp, to, resets.subscribe()));
        Ok(Self { at, passes_udp, resets, _tasks: tasks })
    }

    /// The address of what is behind it, by way of this relay.
    pub(super) fn in_place_of(&self, address: &Address) -> Address {
        Address { host: self.at.ip().to_string(), port: self.at.port(), trust: address.trust.clone() }
    }

    /// Lets UDP pass from now on, or drops it.
    pub(super) fn pass_udp(&self, passes: bool) {
        self.passes_udp.store(passes, Ordering::SeqCst);
    }

    /// Resets every TCP connection there is; new ones pass.
    pub(super) fn reset_tcp(&self) {
        self.resets.send_modify(|count| *count += 1);
    }
}

/// Sockets of both kinds on one port.
async fn both() -> Result<(UdpSocket, TcpListener)> {
    for _ in 0..TRIES {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        if let Ok(tcp) = TcpListener::bind(udp.local_addr()?).await {
            return Ok((udp, tcp));
        }
    }
    None.context("no port is free for UDP and TCP")
}

async fn relay_udp(outside: Arc<UdpSocket>, to: SocketAddr, passes: Arc<AtomicBool>) {
    let (mut peers, mut tasks) = (HashMap::<SocketAddr, Arc<UdpSocket>>::new(), JoinSet::new());
    let mut packet = vec![0; DATAGRAM];
    loop {
        // An error is what ICMP said of a packet before.
        let Ok((length, peer)) = outside.recv_from(&mut packet).await else { continue };
        if !passes.load(Ordering::SeqCst) {
            continue;
        }
        if !peers.contains_key(&peer) && peers.len() < PEERS {
            let Ok(inside) = connected(to).await else { continue };
            let inside = Arc::new(inside);
            tasks.spawn(relay_back(Arc::clone(&inside), Arc::clone(&outside), peer, Arc::clone(&passes)));
            peers.insert(peer, inside);
        }
        if let Some(inside) = peers.get(&peer) {
            // Refused: nobody is there now, and the packet is lost.
            let _lost = inside.send(&packet[..length]).await;
        }
    }
}

async fn connected(to: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    socket.connect(to).await?;
    Ok(socket)
}

async fn relay_back(
    inside: Arc<UdpSocket>,
    outside: Arc<UdpSocket>,
    peer: SocketAddr,
    passes: Arc<AtomicBool>,
) {
    let mut packet = vec![0; DATAGRAM];
    loop {
        let Ok(length) = inside.recv(&mut packet).await else { continue };
        if passes.load(Ordering::SeqCst) {
            let _lost = outside.send_to(&packet[..length], peer).await;
        }
    }
}

async fn relay_tcp(listener: TcpListener, to: SocketAddr, resets: watch::Receiver<u64>) {
    let mut pairs = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((front, _)) = accepted {
                let mut resets = resets.clone();
                resets.mark_unchanged();
                pairs.spawn(pair(front, to, resets));
            },
            Some(_) = pairs.join_next() => {}
        }
    }
}

/// One connection until its end. Who cannot be reached closes on whoever asked.
async fn pair(mut front: TcpStream, to: SocketAddr, mut resets: watch::Receiver<u64>) {
    let Ok(mut back) = TcpStream::connect(to).await else { return };
    let _slower = (front.set_nodelay(true), back.set_nodelay(true));
    tokio::select! {
        _ended = copy_bidirectional(&mut front, &mut back) => {}
        Ok(()) = resets.changed() => {
            // Closed with this, a socket is reset.
            let _closed_only = (front.set_zero_linger(), back.set_zero_linger());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use levers9_transport::runtime::TransportThread;
    use std::io::ErrorKind;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    #[tokio::test]
    async fn udp_is_dropped_and_tcp_is_reset_when_told() {
        let thread = TransportThread::start().unwrap();
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = server.local_addr().unwrap();
        let udp = UdpSocket::bind(to).await.unwrap();
        let relay = Relay::start(thread.handle(), to).await.unwrap();

        let caller = connected(relay.at).await.unwrap();
        let mut packet = [0; 16];
        caller.send(b"there").await.unwrap();
        let (length, from) = udp.recv_from(&mut packet).await.unwrap();
        udp.send_to(&packet[..length], from).await.unwrap();
        assert_eq!(caller.recv(&mut packet).await.unwrap(), 5);
        relay.pass_udp(false);
        caller.send(b"lost").await.unwrap();
        udp.send_to(b"lost too", from).await.unwrap();
        assert!(timeout(Duration::from_millis(50), udp.recv_from(&mut packet)).await.is_err());
        assert!(timeout(Duration::from_millis(50), caller.recv(&mut packet)).await.is_err());
        relay.pass_udp(true);
        caller.send(b"back").await.unwrap();
        assert_eq!(udp.recv_from(&mut packet).await.unwrap().0, 4);

        for _ in 0..2 {
            let mut near = TcpStream::connect(relay.at).await.unwrap();
            let (mut far, _) = server.accept().await.unwrap();
            near.write_all(b"x").await.unwrap();
            assert_eq!(far.read_u8().await.unwrap(), b'x');
            relay.reset_tcp();
            for end in [&mut near, &mut far] {
                assert_eq!(end.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            }
        }
    }
}
