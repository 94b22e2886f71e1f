//! HTTP/2 over TLS 1.3: one connection, a POST for each stream, windows as
//! large as a fast connection wants.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream, client, server};
use http::{Request, Response};
use levers9_transport::Address;
use levers9_transport::cert::CertResolver;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::protocol::{asked, pieces, request};
use super::{tls, work};

const ALPN: &[u8] = b"h2";
const STREAM_WINDOW: u32 = 4 << 20;
const WINDOW: u32 = 16 << 20;
const MAX_STREAMS: u32 = 256;

/// Listens.
pub(super) async fn serve(certificate: Arc<CertResolver>) -> Result<SocketAddr> {
    tls::listen(certificate, ALPN, serve_connection).await
}

async fn serve_connection(stream: TlsStream<TcpStream>) -> Result<()> {
    let mut connection = server::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .handshake::<_, Bytes>(stream)
        .await?;
    while let Some(request) = connection.accept().await {
        let (request, respond) = request?;
        tokio::spawn(answer(request, respond));
    }
    Ok(())
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Result<()> {
    let mut body = request.into_body();
    let mut asking = BytesMut::new();
    while let Some(chunk) = next(&mut body).await? {
        asking.extend_from_slice(&chunk);
    }
    let bytes = asked(&asking)?;
    let mut send = respond.send_response(Response::new(()), false)?;
    let mut left = bytes;
    for piece in pieces(bytes) {
        left -= piece.len() as u64;
        write(&mut send, piece, left == 0).await?;
    }
    Ok(())
}

/// Writes one piece as the windows allow.
async fn write(send: &mut SendStream<Bytes>, mut piece: Bytes, last: bool) -> Result<()> {
    while !piece.is_empty() {
        send.reserve_capacity(piece.len());
        let room = poll_fn(|cx| send.poll_capacity(cx)).await.context("the stream was closed")??;
        let part = piece.split_to(room.min(piece.len()));
        send.send_data(part, last && piece.is_empty())?;
    }
    Ok(())
}

/// The next bytes of a body, which are then the peer's to send again.
async fn next(body: &mut RecvStream) -> Result<Option<Bytes>> {
    let Some(chunk) = body.data().await.transpose()? else { return Ok(None) };
    body.flow_control().release_capacity(chunk.len())?;
    Ok(Some(chunk))
}

pub(super) struct Dialer {
    connector: tls::Connector,
}

impl work::Dialer for Dialer {
    type Client = Client;

    fn new(address: &Address) -> Result<Self> {
        Ok(Self { connector: tls::Connector::new(address, ALPN)? })
    }

    async fn connect(&self) -> Result<Client> {
        let stream = self.connector.connect().await?;
        let (requests, connection) = client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(WINDOW)
            .initial_max_send_streams(MAX_STREAMS as usize)
            .handshake::<_, Bytes>(stream)
            .await?;
        tokio::spawn(connection);
        Ok(Client { requests })
    }
}

#[derive(Clone)]
pub(super) struct Client {
    requests: client::SendRequest<Bytes>,
}

impl work::Client for Client {
    type Pinger = Self;

    async fn pinger(&self) -> Result<Self> {
        Ok(self.clone())
    }

    async fn download(&self, bytes: u64) -> Result<u64> {
        let mut requests = self.requests.clone().ready().await?;
        let head = Request::post("https://127.0.0.1/").body(())?;
        let (response, mut send) = requests.send_request(head, false)?;
        send.send_data(request(bytes), true)?;
        let mut body = response.await?.into_body();
        let mut came = 0;
        // To its end: a server counts streams that are dropped before it.
        while let Some(chunk) = next(&mut body).await? {
            came += chunk.len() as u64;
        }
        Ok(came)
    }
}
