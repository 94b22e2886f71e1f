//! Makes TCP carriers from the dialing side: a connection straight there or
//! through a proxy, then TLS with the same trust as over QUIC. Which address
//! and when is [`crate::dial`]'s.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustls::AlertDescription;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::TaskTracker;

use super::proxy::Proxies;
use super::{End, Io, TcpCarrier};
use crate::carrier::{Carrier, Lost};
use crate::quic::Settings;
use crate::tls;
use crate::trust::Verifier;

/// When the system starts to ask a silent peer, as a backstop below the
/// session's own timer.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Questions without an answer until it gives up.
const KEEP_ALIVE_RETRIES: u32 = 4;
/// What was sent and not acknowledged for this long ends the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(60);
/// What may wait in the system's buffer beyond what is on the way, so that
/// what comes last and matters most need not wait for it, in bytes.
const UNSENT: u32 = 128 * 1024;

/// Opens connections.
#[async_trait]
pub trait Via: Send + Sync + std::fmt::Debug {
    /// A connection to an address.
    async fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Io>>;
}

/// Over the system's TCP.
#[derive(Debug, Clone, Copy, Default)]
struct System;

#[async_trait]
impl Via for System {
    async fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Io>> {
        let stream = TcpStream::connect(address).await?;
        tune(&stream);
        Ok(Box::new(stream))
    }
}

/// Settings that suit a carrier; a system that lacks one does without.
pub(super) fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keep_alive =
        TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE).with_retries(KEEP_ALIVE_RETRIES);
    let _nodelay = stream.set_nodelay(true);
    let _kept = socket.set_tcp_keepalive(&keep_alive);
    let _given_up = socket.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let _short = socket.set_tcp_notsent_lowat(UNSENT);
}

/// What a dialer does where UDP does not get through.
#[derive(Debug, Clone)]
pub struct Fallback {
    pub(crate) via: Arc<dyn Via>,
    pub(crate) proxies: Proxies,
    /// The drivers of the carriers made.
    pub(crate) tasks: TaskTracker,
}

impl Default for Fallback {
    fn default() -> Self {
        Self { via: Arc::new(System), proxies: Proxies::default(), tasks: TaskTracker::new() }
    }
}

impl Fallback {
    /// With proxies for hosts that cannot be reached otherwise.
    #[must_use]
    pub fn with_proxies(mut self, proxies: Proxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// Over other connections than the system's.
    #[must_use]
    pub fn with_via(mut self, via: Arc<dyn Via>) -> Self {
        self.via = via;
        self
    }
}

/// Why a connection led to no carrier.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ConnectFailed {
    #[error("{0}")]
    Setup(String),
    #[error(transparent)]
    Lost(Lost),
}

/// Why there is no TCP connection.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Unconnected {
    #[error("nothing is listening there")]
    Refused,
    #[error("no answer")]
    Silent,
    #[error("{0}")]
    Other(String),
}

impl From<io::Error> for Unconnected {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut => Self::Silent,
            _ => Self::Other(error.to_string()),
        }
    }
}

/// TLS with a controlplane over a connection. Cancel safe: dropping it
/// abandons the attempt.
pub(crate) async fn encrypt(
    io: Box<dyn Io>,
    name: &str,
    verifier: Arc<Verifier>,
) -> Result<TlsStream<Box<dyn Io>>, ConnectFailed> {
    let config = tls::client(verifier).map_err(|e| ConnectFailed::Setup(e.to_string()))?;
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| ConnectFailed::Setup(format!("{name:?} is no name a certificate can carry")))?;
    let shaken = TlsConnector::from(Arc::new(config)).connect(name, io).await;
    let stream = shaken.map_err(|error| ConnectFailed::Lost(lost_in_handshake(&error)))?;
    if !tls::speaks_levers9(stream.get_ref().1.alpn_protocol()) {
        return Err(ConnectFailed::Lost(Lost::Tls(tls::OTHER_PROTOCOL.to_owned())));
    }
    Ok(stream)
}

/// A carrier over an encrypted connection.
pub(crate) fn start(
    stream: TlsStream<Box<dyn Io>>,
    end: End,
    peer: SocketAddr,
    settings: &Settings,
    tasks: &TaskTracker,
) -> Carrier {
    Carrier::from(TcpCarrier::start(stream, end, peer, settings, tasks))
}

/// What a handshake's end means.
pub(super) fn lost_in_handshake(error: &io::Error) -> Lost {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => Lost::Tls("it does not speak TLS".to_owned()),
        Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => {
            Lost::Tls(tls::OTHER_PROTOCOL.to_owned())
        }
        Some(tls) => Lost::Tls(tls.to_string()),
        None => Lost::Cut(error.to_string()),
    }
}
