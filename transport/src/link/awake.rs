//! Notices what timers do not: that the machine was suspended, since the wall
//! clock went on and timers did not, and that it is on another network, since
//! what is sent to the peer would leave by another address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How often to look.
const LOOK: Duration = Duration::from_secs(5);

/// What happened to this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It was asleep.
    Slept,
    /// It is on another network.
    Moved,
}

pub(super) struct Awake {
    next: Instant,
    wall: u64,
    /// Towards whom to look, where there are real networks.
    peer: Option<SocketAddr>,
    by: Option<IpAddr>,
}

impl Awake {
    pub(super) fn new(peer: Option<SocketAddr>) -> Self {
        let by = peer.and_then(way_to);
        Self { next: Instant::now() + LOOK, wall: levers9_wire::clock::unix_millis(), peer, by }
    }

    /// Returns after a change. Cancel safe.
    pub(super) async fn changed(&mut self) -> Change {
        loop {
            sleep_until(self.next).await;
            let wall = levers9_wire::clock::unix_millis();
            let passed = Duration::from_millis(wall.saturating_sub(self.wall));
            self.wall = wall;
            self.next = Instant::now() + LOOK;
            // No way at all is no other network yet.
            let by = self.peer.and_then(way_to).or(self.by);
            let moved = by != self.by;
            self.by = by;
            if passed > 2 * LOOK {
                return Change::Slept;
            }
            if moved {
                return Change::Moved;
            }
        }
    }
}

/// The address by which packets to a peer would leave; none is sent.
fn way_to(peer: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}
