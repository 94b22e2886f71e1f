//! A UDP relay between a peer and a controlplane, that can be cut, both ways or
//! one: nothing passes then and nobody is told, as with a pulled plug. It may
//! relay TCP on the same port beside it, whose connections can be reset too.

mod tcp;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

// The standard clock is banned in the workspace; outside a runtime this is the same.
use tokio::time::Instant;

use tcp::Tcp;

/// How often threads look whether they are to end.
const LOOK: Duration = Duration::from_millis(100);
/// Datagrams that may be on a long way; more are lost.
const ON_THE_WAY: usize = 10_000;

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// What peers send.
    Forth,
    /// What the controlplane sends.
    Back,
}

/// The relay; it ends when this is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    tcp: Option<Arc<Tcp>>,
}

#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    front: Arc<UdpSocket>,
    /// Which ways nothing passes: forth, and back.
    cut: [AtomicBool; 2],
    /// Of this many datagrams one is lost; 0 for none.
    lossy: AtomicU32,
    count: AtomicU32,
    /// How long each way is, in ms.
    delay: AtomicU32,
    late: SyncSender<Late>,
    ended: AtomicBool,
    /// Raised when peers are to appear from other ports: what belongs to an
    /// older number ends.
    epoch: AtomicU32,
    /// The address from which the controlplane sees peers.
    from: AtomicU32,
    backs: Mutex<HashMap<SocketAddr, Arc<UdpSocket>>>,
}

/// A datagram on a long way.
#[derive(Debug)]
struct Late {
    due: Instant,
    bytes: Vec<u8>,
    socket: Arc<UdpSocket>,
    /// Where to, when the socket does not say.
    to: Option<SocketAddr>,
}

impl Relay {
    /// A relay to an address.
    ///
    /// # Panics
    /// When there are no sockets.
    #[must_use]
    pub fn to(to: SocketAddr) -> Self {
        Self::of(to, socket(), None)
    }

    /// A relay to an address for UDP and TCP, on one port.
    ///
    /// # Panics
    /// When there is no port that is free for both.
    #[must_use]
    pub fn both_to(to: SocketAddr) -> Self {
        for _ in 0..50 {
            let udp = socket();
            let at = udp.local_addr().expect("a bound socket has an address");
            if let Ok(listener) = TcpListener::bind(at) {
                return Self::of(to, udp, Some(Tcp::start(listener, to)));
            }
        }
        panic!("no port is free for UDP and TCP");
    }

    fn of(to: SocketAddr, front: UdpSocket, tcp: Option<Arc<Tcp>>) -> Self {
        let front = Arc::new(front);
        let address = front.local_addr().expect("a bound socket has an address");
        let (off, none) = (|| AtomicBool::new(false), || AtomicU32::new(0));
        let backs = Mutex::default();
        let (late, coming) = sync_channel(ON_THE_WAY);
        let shared = Shared {
            to,
            front,
            cut: [off(), off()],
            lossy: none(),
            count: none(),
            delay: none(),
            late,
            ended: off(),
            epoch: none(),
            from: AtomicU32::new(Ipv4Addr::LOCALHOST.to_bits()),
            backs,
        };
        let shared = Arc::new(shared);
        let forth = Arc::clone(&shared);
        std::thread::spawn(move || forth.forth());
        let ended = Arc::clone(&shared);
        std::thread::spawn(move || deliver(&coming, &ended));
        Self { address, shared, tcp }
    }

    /// A controlplane's address with this relay's host and port in it.
    ///
    /// # Panics
    /// When it is no address.
    #[must_use]
    pub fn in_place_of(&self, address: &str) -> String {
        let (_, pins) = address.split_once('#').expect("an address with pins");
        format!("levers9://{}#{pins}", self.address)
    }

    /// Drops everything from now on.
    pub fn cut(&self) {
        self.cut_way(Way::Forth);
        self.cut_way(Way::Back);
    }

    /// Drops everything that goes one way from now on; the other works.
    pub fn cut_way(&self, way: Way) {
        self.set_udp(&[way], true);
        self.set_tcp(&[way], true);
    }

    /// Passes everything again.
    pub fn restore(&self) {
        self.restore_udp();
        self.set_tcp(&[Way::Forth, Way::Back], false);
    }

    /// Drops UDP from now on, as a firewall.
    pub fn cut_udp(&self) {
        self.set_udp(&[Way::Forth, Way::Back], true);
    }

    /// Drops UDP that goes one way from now on.
    pub fn cut_udp_way(&self, way: Way) {
        self.set_udp(&[way], true);
    }

    /// Passes UDP again.
    pub fn restore_udp(&self) {
        self.set_udp(&[Way::Forth, Way::Back], false);
    }

    /// Resets every TCP connection there is; new ones pass.
    pub fn break_tcp(&self) {
        if let Some(tcp) = &self.tcp {
            tcp.epoch.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn set_udp(&self, ways: &[Way], cut: bool) {
        ways.iter().for_each(|way| self.shared.cut[*way as usize].store(cut, Ordering::SeqCst));
    }

    fn set_tcp(&self, ways: &[Way], cut: bool) {
        if let Some(tcp) = &self.tcp {
            ways.iter().for_each(|way| tcp.cut[*way as usize].store(cut, Ordering::SeqCst));
        }
    }

    /// Loses one datagram of this many from now on, in both directions
    /// together; 0 for none.
    pub fn lose_one_of(&self, many: u32) {
        self.shared.lossy.store(many, Ordering::SeqCst);
    }

    /// Makes the way this much longer from now on, in each direction.
    pub fn delay(&self, by: Duration) {
        let ms = u32::try_from(by.as_millis()).unwrap_or(u32::MAX);
        self.shared.delay.store(ms, Ordering::SeqCst);
    }

    /// Lets peers appear from other ports from now on, as a NAT that forgot them.
    pub fn rebind(&self) {
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.shared.backs.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Lets peers appear from another address of this machine, and other ports.
    pub fn rebind_to(&self, from: Ipv4Addr) {
        self.shared.from.store(from.to_bits(), Ordering::SeqCst);
        self.rebind();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        if let Some(tcp) = &self.tcp {
            tcp.ended.store(true, Ordering::SeqCst);
        }
    }
}

impl Shared {
    fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn passes(&self, way: Way) -> bool {
        let lossy = self.lossy.load(Ordering::SeqCst);
        let lost = lossy > 0 && self.count.fetch_add(1, Ordering::SeqCst) % lossy == lossy - 1;
        !lost && !self.is_cut(way)
    }

    fn is_cut(&self, way: Way) -> bool {
        self.cut[way as usize].load(Ordering::SeqCst)
    }

    /// Sends a datagram on, now or when its way is over.
    fn pass(&self, bytes: &[u8], socket: Arc<UdpSocket>, to: Option<SocketAddr>) {
        let delay = Duration::from_millis(u64::from(self.delay.load(Ordering::SeqCst)));
        if delay.is_zero() {
            return send(&socket, bytes, to);
        }
        let due = Instant::now() + delay;
        // What finds no room is lost.
        let _lost = self.late.try_send(Late { due, bytes: bytes.to_vec(), socket, to });
    }

    /// From peers to the controlplane.
    fn forth(self: Arc<Self>) {
        let mut buffer = vec![0; 65_536];
        while !self.ended() {
            let Ok((n, from)) = self.front.recv_from(&mut buffer) else { continue };
            if self.passes(Way::Forth) {
                self.pass(&buffer[..n], self.back(from), None);
            }
        }
    }

    /// The socket that stands for a peer.
    fn back(self: &Arc<Self>, peer: SocketAddr) -> Arc<UdpSocket> {
        let mut backs = self.backs.lock().unwrap_or_else(PoisonError::into_inner);
        let made = backs.entry(peer).or_insert_with(|| {
            let back = socket_at(Ipv4Addr::from_bits(self.from.load(Ordering::SeqCst)));
            back.connect(self.to).expect("a UDP socket connects");
            let back = Arc::new(back);
            let (shared, socket) = (Arc::clone(self), Arc::clone(&back));
            let epoch = self.epoch.load(Ordering::SeqCst);
            std::thread::spawn(move || shared.fro(&socket, peer, epoch));
            back
        });
        Arc::clone(made)
    }

    /// From the controlplane to one peer.
    fn fro(&self, socket: &UdpSocket, peer: SocketAddr, epoch: u32) {
        let mut buffer = vec![0; 65_536];
        while !self.ended() && self.epoch.load(Ordering::SeqCst) == epoch {
            if let Ok(n) = socket.recv(&mut buffer)
                && self.passes(Way::Back)
            {
                self.pass(&buffer[..n], Arc::clone(&self.front), Some(peer));
            }
        }
    }
}

/// Delivers what is on a long way, in its order.
fn deliver(coming: &Receiver<Late>, shared: &Shared) {
    while !shared.ended() {
        let Ok(Late { due, bytes, socket, to }) = coming.recv_timeout(LOOK) else { continue };
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let way = if to.is_some() { Way::Back } else { Way::Forth };
        if !shared.is_cut(way) {
            send(&socket, &bytes, to);
        }
    }
}

fn send(socket: &UdpSocket, bytes: &[u8], to: Option<SocketAddr>) {
    // Refused means that nobody listens there now: lost, for UDP.
    let _lost = match to {
        Some(to) => socket.send_to(bytes, to),
        None => socket.send(bytes),
    };
}

fn socket() -> UdpSocket {
    socket_at(Ipv4Addr::LOCALHOST)
}

fn socket_at(address: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).expect("a UDP socket");
    socket.set_read_timeout(Some(LOOK)).expect("a timeout can be set");
    socket
}
