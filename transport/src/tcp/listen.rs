//! Takes TCP carriers in. Whom to let in, and how many at once, is decided
//! above; a connection that is nothing but garbage ends itself and no other.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use levers9_wire::v1::ResetCode;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use super::connect::{lost_in_handshake, tune};
use super::{End, Held, Io, TcpCarrier};
use crate::carrier::{Carrier, Lost};
use crate::quic::{Identity, Settings};
use crate::tls;

/// Connections the system keeps until they are taken.
const BACKLOG: i32 = 1024;
/// The pause after the system gave no connection, as when files run out.
const PAUSE: Duration = Duration::from_millis(50);

/// Opens and binds a TCP socket that listens.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // A restarted process must not wait for the connections of its predecessor.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A listening socket with the carriers that came in by it; clones share it.
#[derive(Clone)]
pub struct Listener {
    inner: Arc<Inner>,
}

struct Inner {
    source: Source,
    tls: TlsAcceptor,
    settings: Settings,
    /// The drivers of its carriers.
    tasks: TaskTracker,
    live: Mutex<Vec<Weak<Held>>>,
}

enum Source {
    System(TcpListener),
    #[cfg(feature = "sim")]
    Given(tokio::sync::Mutex<tokio::sync::mpsc::Receiver<(Box<dyn Io>, SocketAddr)>>),
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.local_addr().ok()).finish()
    }
}

impl Listener {
    /// Over a bound socket. Must be called within the runtime it is to live on.
    ///
    /// # Errors
    /// When the socket cannot be used or TLS cannot be set up.
    pub fn new(socket: std::net::TcpListener, settings: &Settings, identity: &Identity) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Self::on(Source::System(TcpListener::from_std(socket)?), settings, identity)
    }

    /// Over connections that are handed in.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    #[cfg(feature = "sim")]
    pub fn given(
        connections: tokio::sync::mpsc::Receiver<(Box<dyn Io>, SocketAddr)>,
        settings: &Settings,
        identity: &Identity,
    ) -> io::Result<Self> {
        Self::on(Source::Given(tokio::sync::Mutex::new(connections)), settings, identity)
    }

    fn on(source: Source, settings: &Settings, identity: &Identity) -> io::Result<Self> {
        let config = tls::server(Arc::clone(&identity.certificate)).map_err(io::Error::other)?;
        let inner = Inner {
            source,
            tls: TlsAcceptor::from(Arc::new(config)),
            settings: settings.clone(),
            tasks: TaskTracker::new(),
            live: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Where it is bound.
    ///
    /// # Errors
    /// When the socket is unusable.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.inner.source {
            Source::System(socket) => socket.local_addr(),
            #[cfg(feature = "sim")]
            Source::Given(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The next peer that wants in. Cancel safe.
    pub async fn accept(&self) -> Inbound {
        let (io, peer) = match &self.inner.source {
            Source::System(socket) => loop {
                match socket.accept().await {
                    Ok((stream, peer)) => {
                        tune(&stream);
                        break (Arrived::System(stream), peer);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the system gives no TCP connection");
                        sleep(PAUSE).await;
                    }
                }
            },
            #[cfg(feature = "sim")]
            Source::Given(connections) => match connections.lock().await.recv().await {
                Some((io, peer)) => (Arrived::Given(io), peer),
                None => std::future::pending().await,
            },
        };
        Inbound { io, peer, listener: self.clone() }
    }

    /// Closes every carrier and waits, at most `patience`, until the peers
    /// have been told. Returns whether all were.
    pub async fn close(&self, why: ResetCode, words: &str, patience: Duration) -> bool {
        let live = std::mem::take(&mut *self.live());
        for held in live.iter().filter_map(Weak::upgrade) {
            held.shared.with(|core| core.close(why, words));
        }
        self.inner.tasks.close();
        timeout(patience, self.inner.tasks.wait()).await.is_ok()
    }

    fn live(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Held>>> {
        self.inner.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a carrier as long as it lives.
    fn remember(&self, carrier: &TcpCarrier) {
        let mut live = self.live();
        if live.len() == live.capacity() {
            live.retain(|held| held.strong_count() > 0);
        }
        live.push(Arc::downgrade(&carrier.held));
    }
}

enum Arrived {
    System(TcpStream),
    #[cfg(feature = "sim")]
    Given(Box<dyn Io>),
}

/// A peer that wants in.
pub struct Inbound {
    io: Arrived,
    peer: SocketAddr,
    listener: Listener,
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inbound").field(&self.peer).finish()
    }
}

impl Inbound {
    /// Where it is.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Says no.
    pub fn refuse(self) {
        match &self.io {
            // Nothing is kept of it, not even by the system.
            Arrived::System(stream) => drop(stream.set_zero_linger()),
            #[cfg(feature = "sim")]
            Arrived::Given(_) => {}
        }
    }

    /// Completes the handshake. Cancel safe: dropping it abandons the peer.
    ///
    /// # Errors
    /// When the handshake fails.
    pub async fn handshake(self) -> Result<Carrier, Lost> {
        let io: Box<dyn Io> = match self.io {
            Arrived::System(stream) => Box::new(stream),
            #[cfg(feature = "sim")]
            Arrived::Given(io) => io,
        };
        let inner = &self.listener.inner;
        let stream = inner.tls.accept(io).await.map_err(|error| lost_in_handshake(&error))?;
        if !tls::speaks_levers9(stream.get_ref().1.alpn_protocol()) {
            return Err(Lost::Tls("the peer does not ask for levers9".to_owned()));
        }
        let carrier = TcpCarrier::start(stream, End::Acceptor, self.peer, &inner.settings, &inner.tasks);
        self.listener.remember(&carrier);
        Ok(Carrier::from(carrier))
    }
}
