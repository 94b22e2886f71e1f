//! Bare quinn, with what levers9 sets: its [`Settings`], its sockets, its
//! certificate and verification. What levers9 adds on top is what differs.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Result, ensure};
use bytes::Bytes;
use levers9_transport::cert::CertResolver;
use levers9_transport::quic::{bind, bind_any, priority};
use levers9_transport::{Address, Settings};
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, IdleTimeout, Incoming, MtuDiscoveryConfig,
    RecvStream, SendStream, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};

use super::protocol::{ANSWER, ECHO, PING, REQUEST, asked, pieces, request};
use super::{tls, work};

/// How much of an answer is read at once.
const READ: usize = 64 * 1024;

/// What levers9's `Settings` become on loopback, set by hand.
fn transport(settings: &Settings, dialer: bool) -> Result<Arc<TransportConfig>> {
    let mut config = TransportConfig::default();
    config
        // What a busy levers9 session is permitted.
        .max_concurrent_bidi_streams(VarInt::from_u32(256))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(settings.stream_window.into())
        .receive_window(settings.window.into())
        .send_window(settings.send_window)
        .initial_mtu(settings.initial_mtu)
        .initial_rtt(settings.initial_rtt)
        .enable_segmentation_offload(settings.segmentation_offload)
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(IdleTimeout::try_from(settings.idle_timeout)?))
        .keep_alive_interval(dialer.then_some(settings.keep_alive));
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(settings.mtu_max);
    config.mtu_discovery_config(Some(mtu));
    let mut cubic = CubicConfig::default();
    cubic.initial_window((10 * u64::from(settings.mtu_max)).max(14_720));
    config.congestion_controller_factory(Arc::new(cubic));
    Ok(Arc::new(config))
}

fn endpoint(socket: std::net::UdpSocket, server: Option<ServerConfig>) -> Result<Endpoint> {
    Ok(Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))?)
}

/// Listens.
pub(super) fn serve(certificate: Arc<CertResolver>) -> Result<SocketAddr> {
    let settings = Settings::default();
    let crypto = QuicServerConfig::try_from(tls::server_config(certificate, levers9_wire::ALPN)?)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(transport(&settings, false)?);
    let socket = bind((Ipv4Addr::LOCALHOST, 0).into(), settings.socket_buffer)?;
    let endpoint = endpoint(socket, Some(config))?;
    let bound = endpoint.local_addr()?;
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(serve_connection(incoming));
        }
    });
    Ok(bound)
}

/// Ends when the client is gone.
pub(crate) async fn serve_connection(incoming: Incoming) -> Result<()> {
    let connection = incoming.await?;
    loop {
        let (send, recv) = connection.accept_bi().await?;
        tokio::spawn(answer(send, recv));
    }
}

async fn answer(mut send: SendStream, mut recv: RecvStream) -> Result<()> {
    let mut request = [0; REQUEST];
    recv.read_exact(&mut request).await?;
    let asked = asked(&request)?;
    if asked == ECHO {
        send.set_priority(priority::CONTROL)?;
        while let Some(chunk) = recv.read_chunk(READ, true).await? {
            send.write_chunk(chunk.bytes).await?;
        }
        return Ok(send.finish()?);
    }
    ensure!(recv.read_chunk(1, true).await?.is_none(), "more than a request");
    for piece in pieces(asked) {
        send.write_chunk(piece).await?;
    }
    Ok(send.finish()?)
}

/// Dials from one socket.
pub(super) struct Dialer {
    endpoint: Endpoint,
    address: Address,
    settings: Settings,
}

impl work::Dialer for Dialer {
    type Client = Client;

    fn new(address: &Address) -> Result<Self> {
        let settings = Settings::default();
        let endpoint = endpoint(bind_any(settings.socket_buffer)?, None)?;
        Ok(Self { endpoint, address: address.clone(), settings })
    }

    async fn connect(&self) -> Result<Client> {
        let crypto = tls::client_config(&self.address, levers9_wire::ALPN)?;
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto)?));
        config.transport_config(transport(&self.settings, true)?);
        let to = SocketAddr::new(self.address.host.parse()?, self.address.port);
        let connection = self.endpoint.connect_with(config, to, &self.address.host)?.await?;
        Ok(Client { connection })
    }
}

#[derive(Clone)]
pub(super) struct Client {
    connection: Connection,
}

impl Client {
    async fn ask(&self, bytes: u64) -> Result<RecvStream> {
        let (mut send, recv) = self.connection.open_bi().await?;
        send.write_chunk(request(bytes)).await?;
        send.finish()?;
        Ok(recv)
    }
}

/// A stream that is kept, before all others; what is said on it comes back.
pub(super) struct Pinger {
    send: SendStream,
    recv: RecvStream,
}

impl work::Ping for Pinger {
    async fn ping(&mut self) -> Result<()> {
        let mut back = [0; PING];
        self.send.write_all(&[1; PING]).await?;
        Ok(self.recv.read_exact(&mut back).await?)
    }
}

impl work::Client for Client {
    type Pinger = Pinger;

    async fn pinger(&self) -> Result<Pinger> {
        let (send, recv) = self.connection.open_bi().await?;
        send.set_priority(priority::CONTROL)?;
        let mut pinger = Pinger { send, recv };
        pinger.send.write_all(&request(ECHO)).await?;
        Ok(pinger)
    }

    async fn download(&self, bytes: u64) -> Result<u64> {
        let mut recv = self.ask(bytes).await?;
        let mut came = 0;
        let mut chunks: [Bytes; 64] = std::array::from_fn(|_| Bytes::new());
        while let Some(count) = recv.read_chunks(&mut chunks).await? {
            came += chunks[..count].iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        }
        Ok(came)
    }

    async fn call(&self) -> Result<()> {
        let mut recv = self.ask(ANSWER as u64).await?;
        let mut came = 0;
        while let Some(chunk) = recv.read_chunk(READ, true).await? {
            came += chunk.bytes.len();
        }
        ensure!(came == ANSWER, "an answer of {came} bytes");
        Ok(())
    }
}
