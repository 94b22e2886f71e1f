//! Servers that do not keep the protocol, seen by a dialer: it says in words
//! what is wrong, and tries again as long as it takes.

use std::future::IntoFuture as _;
use std::net::SocketAddr;
use std::sync::Arc;

use levers9_transport::dial::{DialError, Dialer};
use levers9_transport::quic::crypto_provider;
use levers9_transport::sim::as_socket;
use levers9_transport::tcp::{Fallback, Io, Via};
use levers9_transport::{Carrier, CarrierKind};
use levers9_wire::v1::{self, RefuseCode, ResetCode, control_frame};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::pipes::Pipes;
use crate::raw::{BOTH, Over, Rude, control, link, welcome};
use crate::world::{World, call, moves_to, online, rides_on, s, server_address, why};

const HERE: &str = "10.0.0.1:443";

/// Accepts a carrier and answers on its control stream with bytes.
async fn answer(rude: &Rude, over: Over, bytes: Vec<u8>) -> (Carrier, levers9_transport::carrier::SendHalf) {
    let carrier = timeout(s(75), rude.accept(over)).await.expect("somebody comes");
    let (mut send, recv) = carrier.accept().await.unwrap();
    send.write_all(bytes.into()).await.unwrap();
    // Nothing of it is read, nor is it stopped.
    std::mem::forget(recv);
    (carrier, send)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_welcomes_is_named_and_left_in_time() {
    for over in BOTH {
        let world = World::new(971);
        let (rude, pipes) = Rude::new(&world);
        let (link, _incoming) = link(&world, &pipes, 1, over);
        let (carrier, _send) = answer(&rude, over, Vec::new()).await;
        let began = Instant::now();
        let error = why(&link, s(11)).await;
        let words = error.to_string();
        assert!(words.contains(&format!("{HERE} answered the handshake but not the greeting")), "{words}");
        assert!(carrier.closed().await.to_string().contains("no welcome"));
        assert!(began.elapsed() <= s(11));
        // Others may come there instead.
        let _server = rude.reformed(&world);
        online(&link, s(20)).await;
        call(&link).await;
    }
}

/// Where there is another way, one that is mute costs three seconds.
#[tokio::test(start_paused = true)]
async fn a_mute_server_over_udp_is_left_for_tcp() {
    let world = World::new(972);
    let (rude, mute_pipes) = Rude::new(&world);
    let (link, _incoming) = world.link_with_tcp(1, "token", &mute_pipes);
    let (_quic, _unsaid) = answer(&rude, Over::Quic, Vec::new()).await;
    let began = Instant::now();
    let (_tcp, _said) = answer(&rude, Over::Tcp, control(control_frame::Kind::Welcome(welcome()))).await;
    online(&link, s(5)).await;
    assert!(began.elapsed() < s(4), "{:?}", began.elapsed());
    assert_eq!(rides_on(&link).kind(), CarrierKind::Tcp);
}

#[tokio::test(start_paused = true)]
async fn a_second_welcome_changes_nothing() {
    for over in BOTH {
        let world = World::new(973);
        let (rude, pipes) = Rude::new(&world);
        let (link, _incoming) = link(&world, &pipes, 1, over);
        let mut bytes = control(control_frame::Kind::Welcome(welcome()));
        let other = v1::Welcome { session: vec![8; 16], version: 9, ..welcome() };
        bytes.extend(control(control_frame::Kind::Welcome(other)));
        bytes.extend(control(control_frame::Kind::Refused(v1::Refused::default())));
        let (carrier, _send) = answer(&rude, over, bytes).await;
        let session = online(&link, s(1)).await;
        sleep(s(30)).await;
        assert_eq!(session.to_wire(), vec![7; 16]);
        assert_eq!(online(&link, s(1)).await, session, "it stays what it was");
        assert_eq!(carrier.lost(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_that_was_not_offered_is_refused_in_words() {
    for (over, version) in BOTH.into_iter().flat_map(|over| [(over, 0), (over, 2), (over, u32::MAX)]) {
        let world = World::new(974);
        let (rude, pipes) = Rude::new(&world);
        let (link, _incoming) = link(&world, &pipes, 1, over);
        let newer = v1::Welcome { version, build: "9.9.9".into(), ..welcome() };
        let (carrier, _send) = answer(&rude, over, control(control_frame::Kind::Welcome(newer))).await;
        let error = why(&link, s(2)).await;
        assert_eq!(
            error.to_string(),
            format!(
                "the controlplane (9.9.9) speaks protocol {version}, this levers9 ({}) speaks 1 to 1",
                levers9_wire::BUILD
            )
        );
        assert!(matches!(*error, DialError::Refused { code: RefuseCode::Version, .. }));
        assert_eq!(error.hint(), Some("upgrade levers9"));
        timeout(s(1), carrier.closed()).await.expect("it is closed");
        // Once it is another's, it goes on.
        let _server = rude.reformed(&world);
        online(&link, s(45)).await;
        call(&link).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_kind_nobody_knows_is_one_all_the_same() {
    for (over, text, words) in BOTH.into_iter().flat_map(|over| {
        [
            (over, "come back on\u{1b}[31m Monday", "come back on\\u{1b}[31m Monday"),
            (over, "", "the controlplane refuses this peer and does not say why"),
        ]
    }) {
        let world = World::new(975);
        let (rude, pipes) = Rude::new(&world);
        let (link, _incoming) = link(&world, &pipes, 1, over);
        let refused = v1::Refused { code: 4711, text: text.into(), ..v1::Refused::default() };
        let (_carrier, _send) = answer(&rude, over, control(control_frame::Kind::Refused(refused))).await;
        let error = why(&link, s(2)).await;
        assert!(matches!(*error, DialError::Refused { code: RefuseCode::Unspecified, .. }), "{error}");
        assert!(!error.to_string().contains('\u{1b}'));
        if text.is_empty() {
            assert_eq!(error.to_string(), words);
        }
        let _server = rude.reformed(&world);
        online(&link, s(45)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_control_stream_that_ends_or_breaks_is_the_end_of_the_carrier_only() {
    for (over, end) in BOTH.into_iter().flat_map(|over| [(over, 0), (over, 1), (over, 2)]) {
        let world = World::new(976);
        let (rude, pipes) = Rude::new(&world);
        let (link, _incoming) = link(&world, &pipes, 1, over);
        let (carrier, mut send) = answer(&rude, over, control(control_frame::Kind::Welcome(welcome()))).await;
        online(&link, s(1)).await;
        match end {
            0 => send.finish(),
            1 => send.reset(ResetCode::Internal),
            _ => send.write_all(vec![0xff; 20].into()).await.unwrap(),
        }
        let error = why(&link, s(2)).await;
        assert!(error.to_string().starts_with(&format!("connection to {HERE} lost: ")), "{error}");
        timeout(s(2), carrier.closed()).await.expect("the other side is told");
        let _server = rude.reformed(&world);
        online(&link, s(20)).await;
        call(&link).await;
    }
}

/// A QUIC server of another kind, which speaks these protocols.
fn another_quic(world: &World, protocols: &[&[u8]]) -> quinn::Endpoint {
    let tls = another_tls(world, protocols);
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let socket = as_socket(&world.network.socket(server_address()));
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = quinn::Endpoint::new_with_abstract_socket(
        quinn::EndpointConfig::default(),
        Some(config),
        socket,
        runtime,
    );
    let endpoint = endpoint.unwrap();
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            tokio::spawn(incoming.into_future());
        }
    });
    endpoint
}

/// TLS with the right certificate and these protocols.
fn another_tls(world: &World, protocols: &[&[u8]]) -> rustls::ServerConfig {
    let certificate = Arc::clone(&world.identity.certificate);
    let mut tls = rustls::ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    tls
}

/// Whoever has a good certificate and speaks something else is told apart from
/// one that is not believed, and from one that does not answer.
#[tokio::test(start_paused = true)]
async fn another_protocol_over_quic_is_no_controlplane() {
    let other: [Vec<&[u8]>; 3] = [vec![], vec![b"h3"], vec![b"levers9/9", b"h3"]];
    for protocols in &other {
        let world = World::new(977);
        let _other = another_quic(&world, protocols);
        let mut dialer = Dialer::new(world.address()).without_probe();
        let error = dialer.dial(&world.endpoint(1), s(5)).await.unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, DialError::NotLevers9(..)), "{protocols:?}: {error:?}");
        let words = format!("{HERE} is not a levers9 controlplane: it does not speak levers9/1");
        assert_eq!(said, words, "{protocols:?}");
    }
}

/// What is at the other end of a TCP connection instead of a controlplane.
#[derive(Clone)]
enum Other {
    Tls(Vec<&'static [u8]>),
    Says(&'static [u8]),
}

/// Answers every connection so.
fn another_tcp(world: &World, other: Other) -> Arc<Pipes> {
    let (given, mut connections) = mpsc::channel::<(Box<dyn Io>, SocketAddr)>(16);
    let tls = |protocols: &[&[u8]]| tokio_rustls::TlsAcceptor::from(Arc::new(another_tls(world, protocols)));
    let acceptor = if let Other::Tls(protocols) = &other { Some(tls(protocols)) } else { None };
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some((mut io, _)) = connections.recv().await {
            match (&acceptor, &other) {
                (Some(acceptor), _) => {
                    let acceptor = acceptor.clone();
                    tokio::spawn(async move {
                        if let Ok(stream) = acceptor.accept(io).await {
                            sleep(s(100)).await;
                            drop(stream);
                        }
                    });
                }
                (None, Other::Says(words)) => {
                    io.write_all(words).await.unwrap();
                    held.push(io);
                }
                _ => {}
            }
        }
    });
    Arc::new(Pipes::new(given))
}

#[tokio::test(start_paused = true)]
async fn another_protocol_over_tcp_is_no_controlplane() {
    let no_levers9 = "it does not speak levers9/1";
    for (other, words) in [
        (Other::Tls(Vec::new()), no_levers9),
        (Other::Tls(vec![b"h2", b"http/1.1"]), no_levers9),
        (Other::Says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "it does not speak TLS"),
        (Other::Says(b"SSH-2.0-OpenSSH_9.6\r\n"), "it does not speak TLS"),
    ] {
        let world = World::new(978);
        let via: Arc<dyn Via> = another_tcp(&world, other);
        let dialer = Dialer::new(world.address()).without_probe();
        let dialer = dialer.with_fallback(Fallback::default().with_via(via));
        let examined = timeout(s(5), dialer.examine_tcp(&world.endpoint(1), server_address())).await;
        let error = examined.expect("in time").1.unwrap_err();
        assert!(matches!(error, DialError::NotLevers9(..)), "{error:?}");
        assert_eq!(error.to_string(), format!("TCP {HERE} is not a levers9 controlplane: {words}"));
    }
}

/// Something else on the TCP port costs nothing where UDP gets through.
#[tokio::test(start_paused = true)]
async fn something_else_on_the_tcp_port_does_not_keep_udp_from_coming_back() {
    let world = World::new(979);
    let pipes = another_tcp(&world, Other::Says(b"SSH-2.0-OpenSSH_9.6\r\n"));
    world.network.set(crate::world::hole());
    let _server = world.server();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    let error = why(&link, s(11)).await;
    assert_eq!(
        error.to_string(),
        format!(
            "no answer from UDP {HERE}: it is down, or UDP is blocked on the way; \
             TCP {HERE} is not a levers9 controlplane: it does not speak TLS"
        )
    );
    sleep(s(300)).await;
    world.network.set(levers9_transport::sim::links::wan());
    moves_to(&link, CarrierKind::Quic, s(45)).await;
    call(&link).await;
}
