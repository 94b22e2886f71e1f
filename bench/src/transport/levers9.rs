//! levers9 as its own processes use it: an acceptor with a gate that lets
//! everybody in, links that dial. A call is a Call stream with a framed
//! answer, as the CLI's are; a download is a Follow stream that turns to raw
//! bytes after its opening.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use levers9_transport::accept::{Acceptor, Gate, Limits, Refusal, Session};
use levers9_transport::cert::CertResolver;
use levers9_transport::link::{Introduce, Link, Opened};
use levers9_transport::quic::{Identity, RecvHalf, SendHalf, ServerKeys, bind, priority};
use levers9_transport::tcp::{self, Fallback, Listener};
use levers9_transport::{Address, Endpoint, Settings, Stream, dial};
use levers9_wire::v1::stream_open::Kind;
use levers9_wire::v1::{self, call_answer::Answer, call_open::Request};
use levers9_wire::{InstanceId, RequestId, valid};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::protocol::{ANSWER, PING, pieces};
use super::work;

/// What makes the opening of a call 100 bytes.
const NAME: usize = 75;
/// What makes the answer to a call, framed, 1 KiB.
const TOKEN: usize = ANSWER - 8;

/// Listens.
pub(super) fn serve(certificate: Arc<CertResolver>) -> Result<SocketAddr> {
    listen(certificate, None)
}

/// Listens by TCP, where nothing is to be had by UDP.
pub(super) fn serve_tcp(certificate: Arc<CertResolver>) -> Result<SocketAddr> {
    let socket = tcp::bind((std::net::Ipv4Addr::LOCALHOST, 0).into())?;
    let bound = socket.local_addr()?;
    let udp = listen(certificate, Some(socket))?;
    ensure!(udp.port() != bound.port(), "UDP answers on the port of TCP");
    Ok(bound)
}

fn listen(certificate: Arc<CertResolver>, fallback: Option<TcpListener>) -> Result<SocketAddr> {
    let settings = Settings::default();
    let socket = bind((std::net::Ipv4Addr::LOCALHOST, 0).into(), settings.socket_buffer)?;
    let identity = Identity { certificate, keys: ServerKeys { reset: [9; 64] } };
    let endpoint = Endpoint::accepting(socket, &settings, &identity)?;
    let bound = endpoint.local_addr()?;
    let mut acceptor = Acceptor::new(endpoint, Arc::new(Open), Limits::default(), Handle::current());
    if let Some(socket) = fallback {
        acceptor = acceptor.with_tcp(Listener::new(socket, &settings, &identity)?);
    }
    tokio::spawn(async move { acceptor.run().await });
    Ok(bound)
}

/// Lets everybody in.
struct Open;

impl Gate for Open {
    type Admitted = ();

    async fn admit(&self, _: valid::Hello, _: SocketAddr) -> Result<(v1::Welcome, ()), Refusal> {
        Ok((v1::Welcome::default(), ()))
    }

    async fn serve(self: Arc<Self>, mut session: Session, (): ()) {
        while let Some(opened) = session.next().await {
            tokio::spawn(answer(opened));
        }
    }
}

/// Answers one stream. An error needs no words here: the caller fails over it.
async fn answer(Opened { kind, mut stream }: Opened) -> Result<()> {
    match kind {
        Kind::Call(_) => {
            stream.send.send(&answer_to_call()).await?;
            stream.send.finish();
            at_end(&mut stream).await
        }
        Kind::Follow(v1::FollowOpen { since_line: bytes, .. }) => {
            at_end(&mut stream).await?;
            let mut half = stream.send.into_raw().await?;
            for piece in pieces(bytes) {
                half.write_all(piece).await?;
            }
            half.finish();
            Ok(())
        }
        // Everything comes back, before all others, as a control stream's would.
        Kind::Tunnel(_) => {
            stream.send.set_priority(priority::CONTROL);
            let (mut send, (first, mut recv)) = (stream.send.into_raw().await?, stream.recv.into_raw());
            send.write_all(first).await?;
            while let Some(bytes) = recv.read(PING).await? {
                send.write_all(bytes).await?;
            }
            send.finish();
            Ok(())
        }
        other => bail!("nobody here opens {other:?}"),
    }
}

fn answer_to_call() -> v1::CallAnswer {
    let created = v1::WorkspaceCreateAnswer { workspace: None, token: "t".repeat(TOKEN) };
    v1::CallAnswer { answer: Some(Answer::WorkspaceCreate(created)) }
}

/// Reads the end that follows the last frame. A stream dropped before it would
/// tell the peer to stop.
async fn at_end(stream: &mut Stream) -> Result<()> {
    let more = stream.recv.next::<v1::CallAnswer>().await?;
    ensure!(more.is_none(), "more than one frame");
    Ok(())
}

/// Dials from one socket, as many sessions as are wanted.
pub(super) struct Dialer {
    address: Address,
    endpoint: Endpoint,
}

impl work::Dialer for Dialer {
    type Client = Client;

    fn new(address: &Address) -> Result<Self> {
        Ok(Self { address: address.clone(), endpoint: Endpoint::dialing(&Settings::default())? })
    }

    async fn connect(&self) -> Result<Client> {
        let endpoint = self.endpoint.clone();
        let (link, incoming) = Link::start(
            dial::Dialer::new(self.address.clone()).with_fallback(Fallback::default()),
            Box::new(move || Ok(endpoint.clone())),
            Arc::new(Caller { instance: InstanceId::generate() }),
            StdRng::from_os_rng(),
        );
        link.online().await?;
        Ok(Client { link, _incoming: Arc::new(incoming) })
    }
}

/// A session. What the server would open is kept open and never comes.
#[derive(Clone)]
pub(super) struct Client {
    link: Link,
    _incoming: Arc<mpsc::Receiver<Box<Opened>>>,
}

struct Caller {
    instance: InstanceId,
}

impl Introduce for Caller {
    fn hello(&self) -> v1::Hello {
        v1::Hello { role: v1::Role::Cli.into(), instance: self.instance.to_wire(), ..v1::Hello::default() }
    }
}

/// A stream that is kept, before all others; what is said on it comes back.
pub(super) struct Pinger {
    send: SendHalf,
    recv: RecvHalf,
}

impl work::Ping for Pinger {
    async fn ping(&mut self) -> Result<()> {
        self.send.write_all(Bytes::from_static(&[1; PING])).await?;
        let mut came = 0;
        while came < PING {
            came += self.recv.read(PING).await?.context("no more comes back")?.len();
        }
        Ok(())
    }
}

impl work::Client for Client {
    type Pinger = Pinger;

    async fn pinger(&self) -> Result<Pinger> {
        let mut stream = self.link.open(Kind::Tunnel(v1::TunnelOpen::default())).await?;
        stream.send.set_priority(priority::CONTROL);
        Ok(Pinger { send: stream.send.into_raw().await?, recv: stream.recv.into_raw().1 })
    }

    async fn download(&self, bytes: u64) -> Result<u64> {
        let id = RequestId::generate().to_wire();
        let open = v1::FollowOpen { id, since_line: bytes, ..v1::FollowOpen::default() };
        let mut stream = self.link.open(Kind::Follow(open)).await?;
        stream.send.finish();
        let (first, mut half) = stream.recv.into_raw();
        let mut came = first.len() as u64;
        let mut chunks: [Bytes; 64] = std::array::from_fn(|_| Bytes::new());
        while let Some(count) = half.read_many(&mut chunks).await? {
            came += chunks[..count].iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        }
        Ok(came)
    }

    async fn call(&self) -> Result<()> {
        let request = Request::WorkspaceCreate(v1::WorkspaceCreateRequest { name: "n".repeat(NAME) });
        let open = v1::CallOpen { request_id: RequestId::generate().to_wire(), request: Some(request) };
        let mut stream = self.link.open(Kind::Call(open)).await?;
        stream.send.finish();
        let answer = stream.recv.expect::<v1::CallAnswer>().await?.answer.context("an empty answer")?;
        ensure!(matches!(answer, Answer::WorkspaceCreate(_)), "another answer: {answer:?}");
        at_end(&mut stream).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::protocol::REQUEST;
    use levers9_wire::{frame, limits};

    #[test]
    fn a_call_is_as_long_as_those_of_the_others() {
        let request = Request::WorkspaceCreate(v1::WorkspaceCreateRequest { name: "n".repeat(NAME) });
        let call = v1::CallOpen { request_id: RequestId::generate().to_wire(), request: Some(request) };
        let open = v1::StreamOpen { kind: Some(Kind::Call(call)) };
        assert_eq!(frame::to_bytes(&open, limits::STREAM_OPEN).unwrap().len(), REQUEST);
        assert_eq!(frame::to_bytes(&answer_to_call(), limits::FRAME).unwrap().len(), ANSWER);
    }
}
