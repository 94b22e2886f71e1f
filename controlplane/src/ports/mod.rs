//! The ports that are not QUIC: 1993 for the Python SDK's gRPC, 1994 for REST,
//! health and metrics. This module decides which of them speak TLS and starts
//! and stops both. Whoever starts the controlplane binds the sockets and hands
//! them in, with a [`Front`] to ask.
//!
//! It holds no state of jobs or tokens, opens no database, and never speaks
//! plain text beyond loopback unless it is told to.

mod access;
mod credentials;
mod cut;
mod doors;
pub mod front;
mod grpc;
mod http;
mod serve;
mod timed;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use levers9_transport::cert::CertResolver;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::ingress::Ingress;
pub(crate) use cut::Cut;
pub(crate) use doors::Doors;
pub use front::{Asked, AuthorizeError, Authorized, Front, Health};
use serve::Port;

/// Why the ports cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    /// Plain text would leave this machine.
    #[error(
        "{0} is not loopback and there is no certificate to serve TLS with; listen on 127.0.0.1 or set insecureListen"
    )]
    NoCertificate(SocketAddr),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    /// A socket is not usable.
    #[error("a listening socket is not usable")]
    Socket(#[source] io::Error),
}

/// Ports that are being served. Dropping them cuts everything off.
pub struct Ports {
    http: Port,
    grpc: Port,
    doors: Arc<Doors>,
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ports")
    }
}

impl Ports {
    /// Serves both ports. One that listens on loopback speaks plain text, and
    /// so do others when `insecure` is set; otherwise they show the certificate
    /// that `tls` has in force at each handshake. What is for a container goes
    /// to `ingress`. Call it inside a runtime.
    ///
    /// # Errors
    /// When TLS is needed and cannot be had.
    pub fn start<F: Front>(
        http: TcpListener,
        grpc: TcpListener,
        tls: Option<Arc<CertResolver>>,
        insecure: bool,
        front: Arc<F>,
        ingress: Option<Arc<Ingress>>,
    ) -> Result<Self, PortsError> {
        let http_tls = tls_for(&http, tls.as_ref(), insecure)?;
        let grpc_tls = tls_for(&grpc, tls.as_ref(), insecure)?;
        let (rest, calls) = (http::router(Arc::clone(&front)), grpc::router(Arc::clone(&front)));
        let doors = Arc::new(Doors::new(&front, rest.clone(), calls.clone()));
        Ok(Self {
            http: Port::open("http", http, http_tls, rest, ingress),
            grpc: Port::open("grpc", grpc, grpc_tls, calls, None),
            doors,
        })
    }

    /// What containers find behind their doors.
    pub(crate) fn doors(&self) -> Arc<Doors> {
        Arc::clone(&self.doors)
    }

    /// Serves on, but asks clients to make their next connection elsewhere.
    pub fn leave(&self) {
        self.doors.leave();
        self.http.leave();
        self.grpc.leave();
    }

    /// Takes no more connections, lets requests finish until `deadline`, then
    /// cuts off the rest. Answers how many connections were late.
    pub async fn shutdown(self, deadline: Instant) -> usize {
        let (http, grpc) = tokio::join!(self.http.close(deadline), self.grpc.close(deadline));
        self.doors.close();
        http + grpc
    }
}

fn tls_for(
    listener: &TcpListener,
    certificate: Option<&Arc<CertResolver>>,
    insecure: bool,
) -> Result<Option<Arc<ServerConfig>>, PortsError> {
    let address = listener.local_addr().map_err(PortsError::Socket)?;
    if insecure || address.ip().to_canonical().is_loopback() {
        return Ok(None);
    }
    let certificate = certificate.ok_or(PortsError::NoCertificate(address))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(PortsError::Tls)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::<CertResolver>::clone(certificate));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}
