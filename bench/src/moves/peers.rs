//! Those levers9 is compared with when a server dies: bare quinn with default
//! settings that dials again when its connection is lost, and one TLS
//! connection over TCP that is made again when it fails. Neither waits before
//! it tries.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use levers9_transport::cert::CertResolver;
use levers9_transport::{Address, CarrierKind};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::{client, server};

use super::service::{Service, Way};
use crate::transport::protocol::{ANSWER, REQUEST, asked, pieces, request};
use crate::transport::quinn::serve_connection;
use crate::transport::tls::{self, Connector};

/// The pause after an attempt that failed.
const PAUSE: Duration = Duration::from_millis(10);

/// Listens.
pub(super) fn serve_quinn(certificate: Arc<CertResolver>, port: u16) -> Result<SocketAddr> {
    let crypto = QuicServerConfig::try_from(tls::server_config(certificate, levers9_wire::ALPN)?)?;
    let config = ServerConfig::with_crypto(Arc::new(crypto));
    let endpoint = Endpoint::server(config, (Ipv4Addr::LOCALHOST, port).into())?;
    let bound = endpoint.local_addr()?;
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(serve_connection(incoming));
        }
    });
    Ok(bound)
}

/// Listens.
pub(super) async fn serve_tls(certificate: Arc<CertResolver>, port: u16) -> Result<SocketAddr> {
    tls::listen_on(certificate, levers9_wire::ALPN, port, answer).await
}

/// One request after another.
async fn answer(mut stream: server::TlsStream<TcpStream>) -> Result<()> {
    let mut request = [0; REQUEST];
    loop {
        stream.read_exact(&mut request).await?;
        for piece in pieces(asked(&request)?) {
            stream.write_all(&piece).await?;
        }
        stream.flush().await?;
    }
}

/// A caller of quinn's.
#[derive(Clone)]
pub(super) struct Quinn {
    current: watch::Receiver<Option<Connection>>,
    _keeper: Arc<JoinSet<Result<()>>>,
}

impl Quinn {
    pub(super) fn dial(address: &Address) -> Result<Self> {
        let crypto = tls::client_config(address, levers9_wire::ALPN)?;
        let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto)?));
        let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?;
        endpoint.set_default_client_config(config);
        let to = SocketAddr::new(address.host.parse()?, address.port);
        let (sender, current) = watch::channel(None);
        let mut keeper = JoinSet::new();
        keeper.spawn(keep(endpoint, to, address.host.clone(), sender));
        Ok(Self { current, _keeper: Arc::new(keeper) })
    }
}

/// Keeps a connection.
async fn keep(
    endpoint: Endpoint,
    to: SocketAddr,
    name: String,
    current: watch::Sender<Option<Connection>>,
) -> Result<()> {
    loop {
        match endpoint.connect(to, &name)?.await {
            Ok(connection) => {
                current.send_replace(Some(connection.clone()));
                connection.closed().await;
                current.send_replace(None);
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

impl Service for Quinn {
    async fn call(&self) -> Result<Way> {
        let mut current = self.current.clone();
        let connection = current.wait_for(Option::is_some).await?.clone().context("no connection")?;
        let (mut send, mut recv) = connection.open_bi().await?;
        send.write_all(&request(ANSWER as u64)).await?;
        send.finish()?;
        let answer = recv.read_to_end(ANSWER).await?;
        ensure!(answer.len() == ANSWER, "an answer of {} bytes", answer.len());
        Ok(Way { carrier: CarrierKind::Quic, server: 0 })
    }
}

/// A caller over TLS. A connection has no streams: one request after another.
#[derive(Clone)]
pub(super) struct Tls {
    connector: Connector,
    kept: Arc<Mutex<Option<client::TlsStream<TcpStream>>>>,
}

impl Tls {
    pub(super) fn dial(address: &Address) -> Result<Self> {
        Ok(Self { connector: Connector::new(address, levers9_wire::ALPN)?, kept: Arc::default() })
    }
}

impl Service for Tls {
    async fn call(&self) -> Result<Way> {
        let mut kept = self.kept.lock().await;
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => self.connector.connect().await?,
        };
        stream.write_all(&request(ANSWER as u64)).await?;
        stream.flush().await?;
        stream.read_exact(&mut [0; ANSWER]).await?;
        *kept = Some(stream);
        Ok(Way { carrier: CarrierKind::Tcp, server: 0 })
    }
}
