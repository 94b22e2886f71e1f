//! What happens to each packet: the pure part of the simulated network. Time
//! comes in as an argument, chance from a seeded generator.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

use super::SimSocket;

/// What a path does to packets.
#[derive(Debug, Clone, PartialEq)]
pub struct Conditions {
    /// The least a packet takes.
    pub delay: Duration,
    /// What it may take on top.
    pub jitter: Duration,
    /// Packets may overtake each other when the jitter says so.
    pub reorder: bool,
    /// The share of packets that vanish.
    pub loss: f64,
    /// The share of packets that arrive twice.
    pub duplicate: f64,
    /// Larger packets vanish, in bytes.
    pub mtu: usize,
    /// Everything vanishes.
    pub black_hole: bool,
    /// The sender's system refuses every send with this error.
    pub send_error: Option<io::ErrorKind>,
    /// The sender's next receive fails with this error of the system, as after
    /// an ICMP message about what it sent.
    pub receive_error: Option<i32>,
    /// The sender's driver announces that it splits large sends, and fails at it.
    pub refuse_segments: bool,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(1),
            jitter: Duration::ZERO,
            reorder: false,
            loss: 0.0,
            duplicate: 0.0,
            mtu: 65_535,
            black_hole: false,
            send_error: None,
            receive_error: None,
            refuse_segments: false,
        }
    }
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It arrives.
    Delivered,
    /// Lost by chance, size, or a hole.
    Lost,
    /// There is nobody at its destination.
    Nobody,
    /// The sender's system refused it.
    Refused,
}

/// One line of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Passage {
    /// Since the network was made.
    pub at: Duration,
    /// The sender's own address.
    pub from: SocketAddr,
    /// Where to.
    pub to: SocketAddr,
    /// How large, in bytes.
    pub length: usize,
    /// What became of it.
    pub fate: Fate,
}

/// A packet on its way.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Packet {
    pub(super) due: Instant,
    /// Keeps packets of one instant in the order they were sent.
    order: u64,
    pub(super) from: SocketAddr,
    pub(super) bytes: Vec<u8>,
    /// An error in the place of a packet.
    pub(super) error: Option<i32>,
}

/// What waits for one socket.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Which socket reads it: one that was replaced hears nothing more.
    socket: u64,
    pub(super) packets: BinaryHeap<Reverse<Packet>>,
    pub(super) waker: Option<Waker>,
}

#[derive(Debug)]
struct State {
    rng: StdRng,
    started: Instant,
    order: u64,
    everywhere: Conditions,
    paths: BTreeMap<(SocketAddr, SocketAddr), Conditions>,
    /// When the last packet of a path arrives.
    last: BTreeMap<(SocketAddr, SocketAddr), Instant>,
    inboxes: BTreeMap<SocketAddr, Inbox>,
    /// The address by which the world knows a socket behind a NAT.
    outside: BTreeMap<SocketAddr, SocketAddr>,
    trace: Vec<Passage>,
}

/// Sockets and what lies between them; clones share it.
#[derive(Debug, Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
}

impl Network {
    /// A network in which all chance comes from `seed`. Must be made within a
    /// runtime whose clock is paused.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                rng: StdRng::seed_from_u64(seed),
                started: Instant::now(),
                order: 0,
                everywhere: Conditions::default(),
                paths: BTreeMap::new(),
                last: BTreeMap::new(),
                inboxes: BTreeMap::new(),
                outside: BTreeMap::new(),
                trace: Vec::new(),
            })),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A socket at an address. An older one there is cut off.
    #[must_use]
    pub fn socket(&self, address: SocketAddr) -> Arc<SimSocket> {
        let mut state = self.lock();
        state.order += 1;
        let number = state.order;
        state.inboxes.insert(address, Inbox { socket: number, ..Inbox::default() });
        Arc::new(SimSocket::new(self.clone(), address, number))
    }

    /// Takes an address out of the network, as when its process is killed.
    pub fn unplug(&self, address: SocketAddr) {
        self.lock().inboxes.remove(&address);
    }

    /// Sets the conditions of every path that has none of its own.
    pub fn set(&self, conditions: Conditions) {
        self.lock().everywhere = conditions;
    }

    /// Sets the conditions from one socket to an address, one way.
    pub fn set_path(&self, from: SocketAddr, to: SocketAddr, conditions: Conditions) {
        self.lock().paths.insert((from, to), conditions);
    }

    /// Gives a socket another address as others see it, as a NAT does that has
    /// forgotten it. What is sent to the old one reaches nobody.
    pub fn rebind(&self, inside: SocketAddr, outside: SocketAddr) {
        self.lock().outside.insert(inside, outside);
    }

    /// Every packet so far. Same seed, same trace.
    #[must_use]
    pub fn trace(&self) -> Vec<Passage> {
        self.lock().trace.clone()
    }

    /// Whether a send of several packets at once fails on a path.
    pub(super) fn refuses_segments(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let state = self.lock();
        state.paths.get(&(from, to)).unwrap_or(&state.everywhere).refuse_segments
    }

    /// Decides what becomes of a packet and puts it on its way.
    pub(super) fn send(&self, from: SocketAddr, socket: u64, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        if state.inboxes.get(&from).is_none_or(|inbox| inbox.socket != socket) {
            return Ok(()); // unplugged or replaced: what it says goes nowhere
        }
        let now = Instant::now();
        let path = state.paths.get(&(from, to)).unwrap_or(&state.everywhere).clone();
        let passage = |fate| Passage { at: now - state.started, from, to, length: bytes.len(), fate };
        if let Some(kind) = path.send_error {
            let refused = passage(Fate::Refused);
            state.trace.push(refused);
            return Err(kind.into());
        }
        let inside = state.inside(to);
        let nobody = passage(Fate::Nobody);
        let lost = passage(Fate::Lost);
        let delivered = passage(Fate::Delivered);
        // Chance is drawn for every packet, so that one more condition changes no other's luck.
        let (luck, again): (f64, f64) = (state.rng.random(), state.rng.random());
        let late = path.jitter.mul_f64(state.rng.random());
        let later = path.jitter.mul_f64(state.rng.random());
        if path.receive_error.is_some() {
            state.deliver(now + path.delay, to, from, &[], path.receive_error);
        }
        let Some(inside) = inside else {
            state.trace.push(nobody);
            return Ok(());
        };
        if path.black_hole || bytes.len() > path.mtu || luck < path.loss {
            state.trace.push(lost);
            return Ok(());
        }
        state.trace.push(delivered);
        let mut due = now + path.delay + late;
        if !path.reorder {
            let last = state.last.entry((from, inside)).or_insert(due);
            due = due.max(*last);
            *last = due;
        }
        state.deliver(due, from, inside, bytes, None);
        if again < path.duplicate {
            state.deliver(now + path.delay + later, from, inside, bytes, None);
        }
        Ok(())
    }

    /// Gives the next packet that is due, or says when the next one will be.
    pub(super) fn receive(
        &self,
        at: SocketAddr,
        socket: u64,
        waker: &Waker,
    ) -> Result<Packet, Option<Instant>> {
        let mut state = self.lock();
        let Some(inbox) = state.inboxes.get_mut(&at).filter(|inbox| inbox.socket == socket) else {
            return Err(None);
        };
        let due = inbox.packets.peek().map(|Reverse(packet)| packet.due);
        if due.is_some_and(|due| due <= Instant::now())
            && let Some(Reverse(packet)) = inbox.packets.pop()
        {
            return Ok(packet);
        }
        inbox.waker = Some(waker.clone());
        Err(due)
    }
}

impl State {
    /// The socket behind an address, if there is one.
    fn inside(&self, to: SocketAddr) -> Option<SocketAddr> {
        let behind = self.outside.iter().find(|(_, outside)| **outside == to).map(|(inside, _)| *inside);
        let direct = (!self.outside.contains_key(&to)).then_some(to);
        behind.or(direct).filter(|address| self.inboxes.contains_key(address))
    }

    fn deliver(&mut self, due: Instant, from: SocketAddr, to: SocketAddr, bytes: &[u8], error: Option<i32>) {
        let order = self.order;
        self.order += 1;
        let from = self.outside.get(&from).copied().unwrap_or(from);
        let Some(inbox) = self.inboxes.get_mut(&to) else { return };
        inbox.packets.push(Reverse(Packet { due, order, from, bytes: bytes.to_vec(), error }));
        if let Some(waker) = inbox.waker.take() {
            waker.wake();
        }
    }
}
