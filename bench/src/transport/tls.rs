//! TLS 1.3 over TCP, one connection for each stream, and the TLS settings that
//! quinn and HTTP/2 share: levers9's cipher order, certificate and
//! verification, no resumption.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use levers9_transport::Address;
use levers9_transport::cert::CertResolver;
use levers9_transport::quic::crypto_provider;
use levers9_transport::trust::Verifier;
use rustls::version::TLS13;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::protocol::{REQUEST, asked, pieces, request};
use super::work;

/// How much is read at once.
const READ: usize = 256 * 1024;

/// The server's side of TLS.
pub(crate) fn server_config(certificate: Arc<CertResolver>, alpn: &[u8]) -> Result<rustls::ServerConfig> {
    let mut config = rustls::ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![alpn.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The client's side of TLS.
pub(crate) fn client_config(address: &Address, alpn: &[u8]) -> Result<rustls::ClientConfig> {
    let mut config = rustls::ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Verifier::new(&address.trust)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// A listener that has shaken hands before it hands out a connection.
pub(super) async fn listen<F>(
    certificate: Arc<CertResolver>,
    alpn: &[u8],
    serve: impl Fn(server::TlsStream<TcpStream>) -> F + Copy + Send + Sync + 'static,
) -> Result<SocketAddr>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    listen_on(certificate, alpn, 0, serve).await
}

/// The same on a port.
pub(crate) async fn listen_on<F>(
    certificate: Arc<CertResolver>,
    alpn: &[u8],
    port: u16,
    serve: impl Fn(server::TlsStream<TcpStream>) -> F + Copy + Send + Sync + 'static,
) -> Result<SocketAddr>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let acceptor = TlsAcceptor::from(Arc::new(server_config(certificate, alpn)?));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let bound = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                socket.set_nodelay(true)?;
                serve(acceptor.accept(socket).await?).await
            });
        }
    });
    Ok(bound)
}

/// Dials TCP and shakes hands.
#[derive(Clone)]
pub(crate) struct Connector {
    connector: TlsConnector,
    address: SocketAddr,
    name: ServerName<'static>,
}

impl Connector {
    pub(crate) fn new(address: &Address, alpn: &[u8]) -> Result<Self> {
        let connector = TlsConnector::from(Arc::new(client_config(address, alpn)?));
        let name = ServerName::try_from(address.host.clone())?;
        Ok(Self { connector, address: SocketAddr::new(address.host.parse()?, address.port), name })
    }

    pub(crate) async fn connect(&self) -> Result<client::TlsStream<TcpStream>> {
        let socket = TcpStream::connect(self.address).await?;
        socket.set_nodelay(true)?;
        Ok(self.connector.connect(self.name.clone(), socket).await?)
    }
}

/// Listens.
pub(super) async fn serve(certificate: Arc<CertResolver>) -> Result<SocketAddr> {
    listen(certificate, levers9_wire::ALPN, answer).await
}

async fn answer(mut stream: server::TlsStream<TcpStream>) -> Result<()> {
    let mut request = [0; REQUEST];
    // A connection made ready and never used ends here.
    stream.read_exact(&mut request).await?;
    for piece in pieces(asked(&request)?) {
        stream.write_all(&piece).await?;
    }
    Ok(stream.shutdown().await?)
}

pub(super) struct Dialer {
    connector: Connector,
}

impl work::Dialer for Dialer {
    type Client = Client;

    fn new(address: &Address) -> Result<Self> {
        Ok(Self { connector: Connector::new(address, levers9_wire::ALPN)? })
    }

    async fn connect(&self) -> Result<Client> {
        Ok(Client { connector: self.connector.clone(), ready: Arc::default() })
    }
}

/// Connects for each stream, unless a connection was made ready.
#[derive(Clone)]
pub(super) struct Client {
    connector: Connector,
    ready: Arc<Mutex<Vec<client::TlsStream<TcpStream>>>>,
}

impl Client {
    fn take(&self) -> Option<client::TlsStream<TcpStream>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

impl work::Client for Client {
    type Pinger = Self;

    async fn pinger(&self) -> Result<Self> {
        Ok(self.clone())
    }

    async fn prepare(&self, streams: u32) -> Result<()> {
        for _ in 0..streams {
            let stream = self.connector.connect().await?;
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        }
        Ok(())
    }

    async fn download(&self, bytes: u64) -> Result<u64> {
        let mut stream = match self.take() {
            Some(stream) => stream,
            None => self.connector.connect().await?,
        };
        stream.write_all(&request(bytes)).await?;
        let size = usize::try_from(bytes).context("too many bytes")?.clamp(1, READ);
        let mut buffer = vec![0; size];
        let mut came = 0;
        loop {
            match stream.read(&mut buffer).await? {
                0 => return Ok(came),
                count => came += count as u64,
            }
        }
    }
}
