//! Endpoints: a UDP socket that dials, accepts, or both. Owns how the QUIC
//! library is configured; who is let in is decided above.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use levers9_wire::v1::ResetCode;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AsyncUdpSocket, EndpointConfig, Runtime as _, TokioRuntime};
use quinn_proto::HashedConnectionIdGenerator;

use super::settings::Distance;
use super::socket::Guarded;
use super::{Carrier, Counters, Lost, QuicCarrier, Settings, code, socket};
use crate::cert::CertResolver;
use crate::tls;
use crate::trust::Verifier;

/// Keys that outlive a process, so that its peers notice a restart at once
/// and their address validation still counts.
#[derive(Clone)]
pub struct ServerKeys {
    /// Signs stateless resets.
    pub reset: [u8; 64],
}

impl fmt::Debug for ServerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerKeys(…)")
    }
}

/// What an accepting endpoint shows of itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate in force.
    pub certificate: Arc<CertResolver>,
    /// Keys kept across restarts.
    pub keys: ServerKeys,
}

/// A socket with the carriers on it.
#[derive(Clone)]
pub struct Endpoint {
    endpoint: quinn::Endpoint,
    settings: Arc<Settings>,
    server: Option<Arc<Accepting>>,
    counters: Arc<Counters>,
    /// Why there is no socket, when there is none.
    without: Option<Arc<str>>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.endpoint.local_addr().ok()).finish()
    }
}

impl Endpoint {
    /// An endpoint that only dials. Must be called within the runtime it is to
    /// live on. Where no UDP socket can be had it leads nowhere, and says why to
    /// whoever dials by it: there may be other ways than UDP.
    ///
    /// # Errors
    /// When QUIC cannot be set up.
    pub fn dialing(settings: &Settings) -> io::Result<Self> {
        let socket = socket::bind_any(settings.socket_buffer);
        match socket.and_then(|socket| TokioRuntime.wrap_udp_socket(socket)) {
            Ok(socket) => Self::on(socket, settings, None, None),
            Err(error) => Self::without_socket(settings, &error),
        }
    }

    /// One for dialers that has no socket, because of an error.
    ///
    /// # Errors
    /// When QUIC cannot be set up.
    pub fn without_socket(settings: &Settings, error: &io::Error) -> io::Result<Self> {
        let endpoint = Self::on(Arc::new(socket::NoSocket), settings, None, None)?;
        Ok(Self { without: Some(error.to_string().into()), ..endpoint })
    }

    /// An endpoint that accepts on a bound socket.
    ///
    /// # Errors
    /// When the socket cannot be used or TLS cannot be set up.
    pub fn accepting(
        socket: std::net::UdpSocket,
        settings: &Settings,
        identity: &Identity,
    ) -> io::Result<Self> {
        let socket = TokioRuntime.wrap_udp_socket(socket)?;
        Self::on(socket, settings, Some(identity), None)
    }

    /// An endpoint over any socket, with a seed for all it draws by chance.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn on(
        socket: Arc<dyn AsyncUdpSocket>,
        settings: &Settings,
        identity: Option<&Identity>,
        seed: Option<[u8; 32]>,
    ) -> io::Result<Self> {
        let mut config = match identity {
            Some(identity) => {
                let reset = &identity.keys.reset;
                // A restarted process must know the ids of its predecessor to answer them with a reset.
                let ids = u64::from_le_bytes(first_eight(hmac::sign(
                    &hmac::Key::new(hmac::HMAC_SHA256, reset),
                    b"connection ids",
                )));
                let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset)));
                // After a restart everybody asks in the same moment, and each needs its answer. A
                // reset is smaller than what it answers, so it neither amplifies nor goes to and fro.
                config.min_reset_interval(Duration::ZERO);
                config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
                config
            }
            None => EndpointConfig::default(),
        };
        config.rng_seed(seed);
        let server = identity.map(|identity| Accepting::new(identity, settings)).transpose()?.map(Arc::new);
        let counters = Arc::new(Counters::default());
        let endpoint = quinn::Endpoint::new_with_abstract_socket(
            config,
            server.as_deref().map(|server| (*server.near).clone()),
            Guarded::new(socket, Arc::clone(&counters)),
            Arc::new(TokioRuntime),
        )?;
        Ok(Self { endpoint, settings: Arc::new(settings.clone()), server, counters, without: None })
    }

    /// Where it is bound.
    ///
    /// # Errors
    /// When the socket is unusable.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// What went wrong with single datagrams.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What it is tuned to.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Connections open now, those in their handshake included.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.endpoint.open_connections()
    }

    /// One handshake with one address, without a time limit of its own beyond
    /// the idle timeout. Cancel safe: dropping it abandons the attempt.
    pub(crate) async fn connect(
        &self,
        address: SocketAddr,
        name: &str,
        verifier: Arc<Verifier>,
    ) -> Result<Carrier, ConnectFailed> {
        if let Some(problem) = &self.without {
            return Err(ConnectFailed::Setup(problem.to_string()));
        }
        let crypto = tls::client(verifier).map_err(|e| ConnectFailed::Setup(e.to_string()))?;
        let crypto = QuicClientConfig::try_from(crypto).map_err(|e| ConnectFailed::Setup(e.to_string()))?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(self.settings.transport(Distance::of(address.ip()), true));
        let connecting = self
            .endpoint
            .connect_with(config, address, name)
            .map_err(|e| ConnectFailed::Setup(e.to_string()))?;
        match connecting.await {
            Ok(connection) => Ok(Carrier::from(QuicCarrier::new(connection, &self.settings))),
            Err(lost) => Err(ConnectFailed::Lost(lost.into())),
        }
    }

    /// The next peer that wants in, or `None` once the endpoint is closed.
    /// Cancel safe.
    pub async fn accept(&self) -> Option<Inbound> {
        let incoming = self.endpoint.accept().await?;
        Some(Inbound { incoming, settings: Arc::clone(&self.settings), server: self.server.clone()? })
    }

    /// Takes no new connections from now on; those there are go on.
    pub fn stop_accepting(&self) {
        self.endpoint.set_server_config(None);
    }

    /// Closes every carrier and waits, at most `patience`, until the peers
    /// have been told. Returns whether all were.
    pub async fn close(&self, why: ResetCode, words: &str, patience: Duration) -> bool {
        self.endpoint.close(code(why), words.as_bytes());
        tokio::time::timeout(patience, self.endpoint.wait_idle()).await.is_ok()
    }
}

fn first_eight(tag: hmac::Tag) -> [u8; 8] {
    let mut eight = [0u8; 8];
    eight.copy_from_slice(&tag.as_ref()[..8]);
    eight
}

/// How peers are taken in, by their distance; shared by all of them.
struct Accepting {
    near: Arc<quinn::ServerConfig>,
    far: Arc<quinn::ServerConfig>,
}

impl Accepting {
    fn new(identity: &Identity, settings: &Settings) -> io::Result<Self> {
        let crypto = tls::server(Arc::clone(&identity.certificate)).map_err(io::Error::other)?;
        let crypto = QuicServerConfig::try_from(crypto).map_err(io::Error::other)?;
        let mut near = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        // What waits for the accept loop is bounded in number and bytes.
        near.max_incoming(1024).incoming_buffer_size(16 << 10).incoming_buffer_size_total(4 << 20);
        let mut far = near.clone();
        near.transport_config(settings.transport(Distance::Near, false));
        far.transport_config(settings.transport(Distance::Far, false));
        Ok(Self { near: Arc::new(near), far: Arc::new(far) })
    }

    fn config_for(&self, peer: SocketAddr) -> Arc<quinn::ServerConfig> {
        Arc::clone(match Distance::of(peer.ip()) {
            Distance::Near => &self.near,
            Distance::Far => &self.far,
        })
    }
}

/// Why a handshake did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ConnectFailed {
    #[error("{0}")]
    Setup(String),
    #[error(transparent)]
    Lost(Lost),
}

/// A peer that wants in.
pub struct Inbound {
    incoming: quinn::Incoming,
    settings: Arc<Settings>,
    server: Arc<Accepting>,
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inbound").field(&self.incoming.remote_address()).finish()
    }
}

impl Inbound {
    /// Where it says it is.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// Whether the address is known to be its own.
    #[must_use]
    pub fn is_validated(&self) -> bool {
        self.incoming.remote_address_validated()
    }

    /// Asks it to prove its address; costs it one round trip and us nothing.
    pub fn ask_to_retry(self) {
        if let Err(error) = self.incoming.retry() {
            error.into_incoming().refuse();
        }
    }

    /// Says no.
    pub fn refuse(self) {
        self.incoming.refuse();
    }

    /// Completes the handshake. Cancel safe: dropping it abandons the peer.
    ///
    /// # Errors
    /// When the handshake fails.
    pub async fn handshake(self) -> Result<Carrier, Lost> {
        let config = self.server.config_for(self.incoming.remote_address());
        let connection = self.incoming.accept_with(config)?.await?;
        Ok(Carrier::from(QuicCarrier::new(connection, &self.settings)))
    }
}
