//! Strangers, and people who misbehave, on the port that sessions come to by
//! TCP: noise after TLS, nothing after TLS, streams that are opened and never
//! used, output that is never read. Each ends by itself, and harms nobody.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use levers9_tests::live::tail;
use levers9_tests::{Backend, Person, Way, World, wait};
use levers9_transport::link::open_on;
use levers9_transport::{Carrier, CarrierKind, Lost};
use levers9_wire::v1::{self, Role, call_open, stream_open};
use levers9_wire::{ALPN, RequestId, TaskId};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use tokio::time::{Instant, timeout};

use crate::peer::{Peer, connect, hello, runtime};
use crate::support::{LONG, SOON, assert_counts, counting, last_number};

/// Who does not say who it is, is gone after this; the rest is the test's own.
const GREETING: Duration = Duration::from_secs(10 + 4);

/// Strangers do not care whom they talk to.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A connection with a protocol, after the handshake; the error when there is none.
fn tls(to: SocketAddr, protocols: &[&[u8]]) -> std::io::Result<Tls> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::from(to.ip()).to_owned();
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(GREETING))?;
    let mut tls = StreamOwned::new(connection, stream);
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock)?;
    }
    Ok(tls)
}

/// Reads until the other side is gone.
fn wait_gone(what: &str, tls: &mut Tls) {
    let mut bytes = [0; 4096];
    loop {
        match tls.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("{what} is still there after {GREETING:?}")
            }
            Err(_) => return,
        }
    }
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Memory of a process that is its own, in bytes.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line for it");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

#[test]
fn noise_and_silence_after_tls_harm_nobody() {
    const COUNT: u32 = 400;
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let pid = world.controlplane.pid();
    let mut run = world.cli_spawn(&["run", "--", "sh", "-c", &counting(COUNT, 20)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let (before, at) = (descriptors(pid), world.controlplane.quic());

    // Another protocol, or none, is refused in the handshake or right after.
    for protocols in [&[][..], &[b"h2".as_slice()], &[b"http/1.1", b"levers9/0"]] {
        let talked = tls(at, protocols).and_then(|mut tls| {
            tls.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
            let mut bytes = Vec::new();
            tls.read_to_end(&mut bytes).map(|_| bytes)
        });
        assert!(talked.as_ref().map_or(true, Vec::is_empty), "{protocols:?} is answered: {talked:?}");
    }
    let mut silent: Vec<Tls> = (0..30).map(|_| tls(at, &[ALPN]).expect("a handshake")).collect();
    let mut noisy = Vec::new();
    for seed in 0..30_u64 {
        let mut tls = tls(at, &[ALPN]).expect("a handshake");
        // It may be closed on us at any time: that is its right.
        let _closed = tls.write_all(&noise(seed + 1, 1 << (seed % 18)));
        noisy.push(tls);
    }
    // Real carriers that never say hello, and one that begins to.
    let (kept, mute): (Vec<_>, Vec<Carrier>) = runtime().block_on(async {
        let mut kept = (Vec::new(), Vec::new());
        for kind in [CarrierKind::Tcp, CarrierKind::Quic] {
            for opens in [false, true] {
                let (endpoint, carrier) = connect(&world.controlplane.address(), kind).await;
                let control = stream_open::Kind::Control(v1::ControlOpen {});
                let stream =
                    if opens { Some(open_on(&carrier, control).await.expect("a stream")) } else { None };
                kept.0.push((endpoint, stream));
                kept.1.push(carrier);
            }
        }
        kept
    });
    let begun = Instant::now();
    assert_eq!(world.cli(&["run", "--", "echo", "hi"]).ok().text(), "hi\n");
    assert!(begun.elapsed() < Duration::from_secs(5), "a job took {:?} beside them", begun.elapsed());
    silent.iter_mut().for_each(|tls| wait_gone("who says nothing", tls));
    noisy.iter_mut().for_each(|tls| wait_gone("who makes noise", tls));
    runtime().block_on(async {
        for carrier in &mute {
            let lost = timeout(GREETING, carrier.closed()).await;
            assert!(!matches!(lost.expect("who says no hello is closed"), Lost::TimedOut));
        }
    });
    drop((silent, noisy, kept));
    wait::until("nothing of them is left", SOON, || match descriptors(pid) {
        now if now <= before + 3 => Ok(()),
        now => Err(format!("{now} descriptors, {before} before")),
    });
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "the job beside them");
    assert_eq!(worker.log().matches("online").count(), 1, "{}", worker.log());
    let log = world.controlplane.log();
    assert!(!log.contains("panicked") && log.len() < 64 * 1024, "{}", tail(&log, 3000));
}

/// Streams that are opened and say nothing are reset; the session goes on.
#[test]
fn streams_that_never_say_what_they_are_end() {
    let world = World::start(Backend::Sqlite);
    let (address, token) = (world.controlplane.address(), world.new_token("workspace").1);
    runtime().block_on(join_all([CarrierKind::Tcp, CarrierKind::Quic].map(async |kind| {
        let peer = Peer::greet(&address, kind, hello(Role::Cli, &token)).await.expect("a welcome");
        let mut open = Vec::new();
        // All that may be open at once.
        let all = async {
            while let Ok((mut send, recv)) = peer.carrier.open().await {
                // A length, and nothing of what it is the length of.
                let _sent = send.write_all(vec![40].into()).await;
                open.push((send, recv));
            }
        };
        let _full = timeout(Duration::from_secs(1), all).await;
        assert!(open.len() >= 15, "{kind:?}: {} streams", open.len());
        for (_, recv) in &mut open {
            let ended = timeout(GREETING, recv.read(1)).await;
            assert!(ended.expect("it ends").is_err(), "{kind:?}: with a reset");
        }
        drop(open);
        let id = RequestId::generate().to_wire();
        let answer = peer.call(&id, call_open::Request::WhoAmI(v1::WhoAmIRequest {})).await;
        assert!(matches!(answer, v1::call_answer::Answer::WhoAmI(_)), "{kind:?}: {answer:?}");
    })));
}

/// Followers of much who read nothing: of a stream, and of the connection.
#[test]
fn output_that_is_never_read_costs_its_reader_only() {
    const COUNT: u32 = 200;
    let world = World::start(Backend::Sqlite);
    let worker = world.worker_with("one", &["--cpu", "16"]);
    let much = world.submit("seq 3000000; sleep 1; seq 3000000");
    world.wait_status(&much, "COMPLETE", LONG);
    let (pid, token) = (world.controlplane.pid(), world.new_token("workspace").1);
    let before = memory(pid);
    // Ten that follow over TCP and whose network takes nothing in any more.
    let relay = world.relay_of_both();
    relay.cut_udp();
    let person = Person::new(relay.in_place_of(&world.controlplane.address()), &token);
    let stuck: Vec<_> = (0..10).map(|_| person.cli_spawn(&["logs", "-f", &much])).collect();
    for live in &stuck {
        wait::until("it begins", SOON, || if live.stdout_len() > 0 { Ok(()) } else { Err(live.shown()) });
    }
    relay.cut_way(Way::Back);
    // Ten streams each of sessions over both carriers that nobody reads.
    let id: TaskId = much.parse().expect("an id");
    let open = v1::FollowOpen { id: id.to_wire(), follow: true, ..v1::FollowOpen::default() };
    let kept = runtime().block_on(async {
        let mut kept = Vec::new();
        for kind in [CarrierKind::Tcp, CarrierKind::Quic] {
            let address = world.controlplane.address();
            let peer = Peer::greet(&address, kind, hello(Role::Cli, &token)).await.expect("a welcome");
            for _ in 0..10 {
                let follow = stream_open::Kind::Follow(open.clone());
                kept.push((None, open_on(&peer.carrier, follow).await.expect("a stream")));
            }
            let (id, who) = (RequestId::generate().to_wire(), v1::WhoAmIRequest {});
            let answer = peer.call(&id, call_open::Request::WhoAmI(who)).await;
            assert!(
                matches!(answer, v1::call_answer::Answer::WhoAmI(_)),
                "{kind:?}: calls work beside: {answer:?}"
            );
            if let Some(last) = kept.last_mut() {
                last.0 = Some(peer);
            }
        }
        kept
    });
    let mut run = world.cli_spawn(&["run", "--", "sh", "-c", &counting(COUNT, 20)]);
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "the job beside them");
    let begun = Instant::now();
    let read = world.cli(&["logs", &much]).ok();
    assert!(begun.elapsed() < SOON, "who reads waits for nobody: {:?}", begun.elapsed());
    assert_eq!(read.stdout.len(), 2 * 22_888_896);
    let grown = memory(pid).saturating_sub(before);
    // 30 readers, each with what may be on its way to it.
    assert!(grown < 30 * (5 << 20), "{} MiB for 30 who do not read", grown >> 20);
    assert_eq!(worker.poll(), None);
    drop((kept, stuck));
}
