//! Real TCP on loopback: what a dialer gets where UDP does not answer, what a
//! proxy may do to it, and what rude peers may do to a listener.

#![cfg(test)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use levers9_transport::accept::{Acceptor, Gate, Limits, Refusal, Session, SessionHandle};
use levers9_transport::dial::{DialError, Dialer};
use levers9_transport::link::{Introduce, Link, Status};
use levers9_transport::quic::{Endpoint, Identity, Settings};
use levers9_transport::tcp::{self, Fallback, Listener, Proxies};
use levers9_transport::{Address, Carrier, CarrierKind, Lost, Trust, quic, sim};
use levers9_wire::v1::{self, stream_open};
use levers9_wire::{InstanceId, valid};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

/// Lets everybody in and echoes what comes.
struct Echo;

impl Gate for Echo {
    type Admitted = ();

    async fn admit(&self, _: valid::Hello, _: SocketAddr) -> Result<(v1::Welcome, ()), Refusal> {
        Ok((v1::Welcome::default(), ()))
    }

    async fn rejoin(
        &self,
        _: &valid::Hello,
        _: &SessionHandle,
        _: SocketAddr,
    ) -> Result<Option<v1::Welcome>, Refusal> {
        Ok(Some(v1::Welcome::default()))
    }

    async fn serve(self: Arc<Self>, mut session: Session, (): ()) {
        while let Some(opened) = session.next().await {
            tokio::spawn(async move {
                let (first, mut recv) = opened.stream.recv.into_raw();
                let mut send = opened.stream.send.into_raw().await.unwrap();
                let mut next = Some(first);
                while let Some(bytes) = next {
                    if send.write_all(bytes).await.is_err() {
                        return;
                    }
                    let Ok(read) = recv.read(usize::MAX).await else { return };
                    next = read;
                }
                send.finish();
            });
        }
    }
}

struct Me;

impl Introduce for Me {
    fn hello(&self) -> v1::Hello {
        let instance = InstanceId::new(0, &mut StdRng::seed_from_u64(1)).to_wire();
        v1::Hello { role: v1::Role::Cli.into(), token: "t".to_owned(), instance, ..v1::Hello::default() }
    }
}

struct Server {
    acceptor: Acceptor<Echo>,
    /// TCP is here; UDP is elsewhere, so that it does not answer here.
    address: Address,
    at: SocketAddr,
    udp: SocketAddr,
}

fn server() -> Server {
    let (identity, pin): (Identity, _) = sim::identity(&["127.0.0.1", "controlplane.test"]);
    let settings = Settings::default();
    let udp = quic::bind("127.0.0.1:0".parse().unwrap(), settings.socket_buffer).unwrap();
    let endpoint = Endpoint::accepting(udp, &settings, &identity).unwrap();
    let udp = endpoint.local_addr().unwrap();
    let listener =
        Listener::new(tcp::bind("127.0.0.1:0".parse().unwrap()).unwrap(), &settings, &identity).unwrap();
    let at = listener.local_addr().unwrap();
    let handle = tokio::runtime::Handle::current();
    let acceptor = Acceptor::new(endpoint, Arc::new(Echo), Limits::default(), handle).with_tcp(listener);
    let running = acceptor.clone();
    tokio::spawn(async move { running.run().await });
    let address = Address { host: at.ip().to_string(), port: at.port(), trust: Trust::Pins(vec![pin]) };
    Server { acceptor, address, at, udp }
}

fn link(dialer: Dialer) -> Link {
    let source = || Endpoint::dialing(&Settings::default());
    Link::start(dialer, Box::new(source), Arc::new(Me), StdRng::seed_from_u64(3)).0
}

async fn echo(carrier: &Carrier, bytes: Bytes) {
    let log = stream_open::Kind::Log(v1::LogOpen::default());
    let stream = levers9_transport::link::open_on(carrier, log).await.unwrap();
    let ((first, mut recv), mut send) = (stream.recv.into_raw(), stream.send.into_raw().await.unwrap());
    let out = bytes.clone();
    let writing = async move {
        send.write_all(out).await.unwrap();
        send.finish();
        send.delivered().await.unwrap();
    };
    let reading = async move {
        let mut back = first.to_vec();
        while let Some(piece) = recv.read(usize::MAX).await.unwrap() {
            back.extend_from_slice(&piece);
        }
        back
    };
    let ((), back) = tokio::join!(writing, reading);
    assert!(back == bytes);
}

#[tokio::test]
async fn a_host_without_udp_is_reached_over_tcp_soon() {
    let server = server();
    let began = Instant::now();
    let link = link(Dialer::new(server.address.clone()).with_fallback(Fallback::default()));
    let (carrier, _) = timeout(Duration::from_secs(5), link.online()).await.expect("in time").unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(carrier.kind(), CarrierKind::Tcp);
    echo(&carrier, Bytes::from(vec![9; 32 << 20])).await;
    // Many at once.
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..200u8 {
        let carrier = carrier.clone();
        tasks.spawn(async move { echo(&carrier, Bytes::from(vec![number; 20_000])).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(carrier.rtt() > Duration::ZERO);
    assert!(server.acceptor.shutdown("bye", Duration::ZERO, Duration::from_secs(5)).await);
    let lost = timeout(Duration::from_secs(1), carrier.closed()).await.unwrap();
    assert!(matches!(lost, Lost::Closed(_, words) if words == "bye"));
}

#[tokio::test]
async fn a_wrong_pin_is_named_over_tcp_too() {
    let server = server();
    let (_, other) = sim::identity(&["x"]);
    let address = Address { trust: Trust::Pins(vec![other]), ..server.address };
    let endpoint = Endpoint::dialing(&Settings::default()).unwrap();
    let mut dialer = Dialer::new(address).with_fallback(Fallback::default());
    let error = dialer.dial(&endpoint, Duration::from_secs(3)).await.unwrap_err();
    assert!(matches!(error, DialError::Trust(_)), "{error}");
    let (shown, examined) = dialer.examine_tcp(&endpoint, server.at).await;
    assert!(shown.expect("a certificate").names.contains("controlplane.test"));
    assert!(matches!(examined, Err(DialError::Trust(_))));
}

#[tokio::test]
async fn whatever_comes_to_the_port_ends_itself_only() {
    let server = server();
    let link = link(Dialer::new(server.address.clone()).with_fallback(Fallback::default()));
    let (carrier, _) = timeout(Duration::from_secs(5), link.online()).await.unwrap().unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[22, 3, 1, 0xff, 0xff], b"SSH-2.0-x\r\n"]
    {
        let mut rude = TcpStream::connect(server.at).await.unwrap();
        rude.write_all(garbage).await.unwrap();
        rude.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _cut = timeout(Duration::from_secs(5), rude.read_to_end(&mut answer)).await.expect("it ends");
    }
    // TLS, but nobody asks for levers9.
    let verifier = levers9_transport::trust::Verifier::new(&server.address.trust).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(quic::crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let tcp = TcpStream::connect(server.at).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut tls = connector.connect(name, tcp).await.unwrap();
    let mut answer = Vec::new();
    let _cut = timeout(Duration::from_secs(5), tls.read_to_end(&mut answer)).await.expect("it ends");
    assert!(answer.is_empty());
    echo(&carrier, Bytes::from_static(b"still there")).await;
    let gauges = server.acceptor.gauges();
    assert_eq!(gauges.sessions.load(Ordering::Relaxed), 1);
}

/// Something else has the port: it is said what, beside what became of UDP.
#[tokio::test]
async fn what_answers_and_is_no_controlplane_is_named() {
    let server = server();
    for (words, problem) in [
        (&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..], "it does not speak TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it does not speak TLS"),
        // A TLS alert: no application protocol in common.
        (&[21, 3, 3, 0, 2, 2, 120], "it does not speak levers9/1"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    client.write_all(words).await.unwrap();
                    let mut rest = Vec::new();
                    let _cut = client.read_to_end(&mut rest).await;
                });
            }
        });
        let address = Address { port: at.port(), ..server.address.clone() };
        let mut dialer = Dialer::new(address).with_fallback(Fallback::default());
        let endpoint = Endpoint::dialing(&Settings::default()).unwrap();
        let error = dialer.dial(&endpoint, Duration::from_secs(1)).await.unwrap_err();
        let expected =
            format!("nothing is listening on UDP {at}; TCP {at} is not a levers9 controlplane: {problem}");
        assert_eq!(error.to_string(), expected);
    }
}

/// What a proxy does once it was asked.
#[derive(Clone, Copy)]
enum Answer {
    Lead(SocketAddr),
    Say(&'static str),
    Hang,
    Close,
}

/// A proxy, and what it was asked.
async fn proxy(answer: Answer) -> (SocketAddr, tokio::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (asked, questions) = tokio::sync::mpsc::channel(16);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let asked = asked.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                let _full = asked.try_send(String::from_utf8(head).unwrap());
                match answer {
                    Answer::Say(words) => client.write_all(words.as_bytes()).await.unwrap(),
                    Answer::Hang => std::future::pending().await,
                    Answer::Close => {}
                    Answer::Lead(to) => {
                        let mut there = TcpStream::connect(to).await.unwrap();
                        client.write_all(b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\n").await.unwrap();
                        let _cut = tokio::io::copy_bidirectional(&mut client, &mut there).await;
                    }
                }
            });
        }
    });
    (at, questions)
}

/// A dialer for an address where nothing listens, with a proxy.
fn through(server: &Server, proxy: SocketAddr) -> (Dialer, String) {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = Address { port: nobody.port(), ..server.address.clone() };
    let proxies = Proxies::new(&format!("http://me:p%40ss@{proxy}"), "").unwrap();
    let target = address.authority();
    (Dialer::new(address).with_fallback(Fallback::default().with_proxies(proxies)), target)
}

#[tokio::test]
async fn a_proxy_leads_where_nothing_else_does() {
    let server = server();
    let (at, mut asked) = proxy(Answer::Lead(server.at)).await;
    let (dialer, target) = through(&server, at);
    let endpoint = Endpoint::dialing(&Settings::default()).unwrap();
    let (found, shown, examined) = dialer.examine_proxy(&endpoint).await.expect("there is one");
    assert_eq!(found.to_string(), at.to_string());
    assert!(shown.unwrap().names.contains("controlplane.test"));
    assert_eq!(examined.unwrap().kind(), CarrierKind::Proxy);
    let link = link(dialer);
    let (carrier, _) = timeout(Duration::from_secs(5), link.online()).await.expect("in time").unwrap();
    assert_eq!(carrier.kind(), CarrierKind::Proxy);
    assert!(carrier.why().contains("TCP did not get through"), "{}", carrier.why());
    echo(&carrier, Bytes::from(vec![1; 1 << 20])).await;
    assert_eq!(server.acceptor.gauges().over_tcp.load(Ordering::Relaxed), 1);
    let asked = asked.recv().await.unwrap();
    assert!(asked.starts_with(&format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n")), "{asked}");
    assert!(asked.contains("Proxy-Authorization: Basic bWU6cEBzcw==\r\n"), "{asked}");
    assert!(!format!("{link:?}").contains("p@ss"));
}

#[tokio::test]
async fn what_a_proxy_does_wrong_is_said() {
    let server = server();
    for (answer, words) in [
        (
            Answer::Say("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"),
            "wants a name and a password (407)",
        ),
        (Answer::Say("HTTP/1.1 403 Forbidden\r\n\r\n"), "refuses: 403 Forbidden"),
        (Answer::Say("220 mail.example ESMTP\r\n\r\n"), "does not answer as an HTTP proxy does"),
        (Answer::Close, "closed the connection"),
        (Answer::Hang, "does not answer"),
    ] {
        let (at, _asked) = proxy(answer).await;
        let patience = Duration::from_secs(if matches!(answer, Answer::Hang) { 7 } else { 1 });
        let (mut dialer, target) = through(&server, at);
        let endpoint = Endpoint::dialing(&Settings::default()).unwrap();
        let error = dialer.dial(&endpoint, patience).await.unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, DialError::AllWays { .. }), "{said}");
        assert!(said.contains(&format!("{at} {words}")), "{said}");
        assert!(said.contains(&format!("TCP {target}: nothing is listening there")), "{said}");
        assert!(!said.contains("p@ss"));
    }
}

#[tokio::test]
async fn a_status_shows_the_carrier_and_why() {
    let server = server();
    let link = link(Dialer::new(server.address.clone()).with_fallback(Fallback::default()));
    timeout(Duration::from_secs(5), link.online()).await.unwrap().unwrap();
    let Status::Online { carrier, .. } = link.status().borrow().clone() else { panic!("online") };
    assert_eq!(format!("{carrier:?}"), format!("Carrier(tcp {})", server.at));
    assert_eq!(carrier.why(), "UDP was not answered");
}

/// Leads UDP from one port to another for the peers that come.
async fn lead_udp(at: SocketAddr, to: SocketAddr) {
    let outside = Arc::new(tokio::net::UdpSocket::bind(at).await.unwrap());
    tokio::spawn(async move {
        let mut inside = std::collections::HashMap::new();
        let mut packet = [0u8; 65_536];
        loop {
            let (length, peer) = outside.recv_from(&mut packet).await.unwrap();
            let socket = match inside.get(&peer) {
                Some(socket) => Arc::clone(socket),
                None => {
                    let socket = Arc::new(tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap());
                    socket.connect(to).await.unwrap();
                    inside.insert(peer, Arc::clone(&socket));
                    let (outside, back) = (Arc::clone(&outside), Arc::clone(&socket));
                    tokio::spawn(async move {
                        let mut packet = [0u8; 65_536];
                        while let Ok(length) = back.recv(&mut packet).await {
                            let _gone = outside.send_to(&packet[..length], peer).await;
                        }
                    });
                    socket
                }
            };
            let _gone = socket.send(&packet[..length]).await;
        }
    });
}

#[tokio::test]
async fn when_udp_answers_again_the_session_moves_and_a_transfer_ends_where_it_is() {
    let server = server();
    let link = link(Dialer::new(server.address.clone()).with_fallback(Fallback::default()));
    let (old, _) = timeout(Duration::from_secs(5), link.online()).await.unwrap().unwrap();
    assert_eq!(old.kind(), CarrierKind::Tcp);
    let log = stream_open::Kind::Log(v1::LogOpen::default());
    let stream = link.open(log).await.unwrap();
    let ((_, mut recv), mut send) = (stream.recv.into_raw(), stream.send.into_raw().await.unwrap());
    lead_udp(server.at, server.udp).await;
    let mut status = link.status();
    let on_quic =
        |s: &Status| matches!(s, Status::Online { carrier, .. } if carrier.kind() == CarrierKind::Quic);
    let moved = async {
        // What is under way stays under way.
        let mut count = 0u64;
        while !on_quic(&status.borrow_and_update()) {
            send.write_all(count.to_be_bytes().to_vec().into()).await.unwrap();
            let mut back = Vec::new();
            while back.len() < 8 {
                back.extend_from_slice(&recv.read(8).await.unwrap().unwrap());
            }
            assert_eq!(back, count.to_be_bytes());
            count += 1;
            let _changed = timeout(Duration::from_millis(5), status.changed()).await;
        }
    };
    timeout(Duration::from_secs(20), moved).await.expect("it moves");
    let (new, _) = link.online().await.unwrap();
    echo(&new, Bytes::from(vec![3; 1 << 20])).await;
    send.write_all(Bytes::from_static(b"the last")).await.unwrap();
    send.finish();
    let mut rest = Vec::new();
    while let Some(bytes) = recv.read(100).await.unwrap() {
        rest.extend_from_slice(&bytes);
    }
    assert_eq!(rest, b"the last");
    drop((send, recv));
    timeout(Duration::from_secs(5), old.closed()).await.expect("nothing runs there any more");
    let gauges = server.acceptor.gauges();
    let counts = [&gauges.admitted, &gauges.joined].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts, [1, 1]);
    assert_eq!(gauges.sessions.load(Ordering::Relaxed), 1);
}
