//! TLS on both ports: when, with which certificate, and what when it changes.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use levers9_controlplane::ports::{Ports, PortsError};
use levers9_transport::cert::{Authority, Files};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use crate::desk::{Desk, get, parts, serve_on};

fn authority() -> (TempDir, Authority) {
    let folder = tempfile::tempdir().unwrap();
    let names = ["localhost".to_owned()];
    let now = levers9_wire::clock::unix_millis() / 1_000;
    let authority = Authority::open(folder.path(), &names, now).unwrap();
    (folder, authority)
}

/// Connects as somebody does who trusts the CA in `folder`.
async fn connect(at: SocketAddr, folder: &Path, alpn: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(at).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
}

fn leaf(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

/// One request on a connection that stays open.
async fn healthz(stream: &mut TlsStream<TcpStream>) -> String {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 1024];
    let length = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[tokio::test]
async fn both_ports_speak_tls_beyond_loopback() {
    let (folder, authority) = authority();
    let served = serve_on("0.0.0.0:0", Some(authority.resolver()), false).await;
    let mut stream = connect(served.http, folder.path(), b"http/1.1").await.unwrap();
    assert!(healthz(&mut stream).await.starts_with("HTTP/1.1 200"));
    for at in [served.http, served.grpc] {
        let stream = connect(at, folder.path(), b"h2").await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    }
    // Plain text gets no answer there, and a stranger's CA no trust.
    let mut plain = TcpStream::connect(served.http).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    drop(plain.read_to_end(&mut answer).await);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    let (stranger, _) = self::authority();
    assert!(connect(served.http, stranger.path(), b"h2").await.is_err());
    assert!(healthz(&mut stream).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_at_once_and_cuts_nobody() {
    let ((old, _), (new, _)) = (authority(), authority());
    let (pem, key) = (old.path().join("leaf.pem"), old.path().join("leaf.key"));
    let files = Files::open(&pem, &key).unwrap();
    let served = serve_on("0.0.0.0:0", Some(files.resolver()), false).await;
    let mut before = connect(served.http, old.path(), b"http/1.1").await.unwrap();
    fs::copy(new.path().join("leaf.pem"), &pem).unwrap();
    assert!(files.refresh().is_err(), "the key does not fit yet");
    assert_eq!(leaf(&connect(served.http, old.path(), b"http/1.1").await.unwrap()), leaf(&before));
    fs::copy(new.path().join("leaf.key"), &key).unwrap();
    assert!(files.refresh().unwrap());
    for at in [served.http, served.grpc] {
        assert_ne!(leaf(&connect(at, new.path(), b"http/1.1").await.unwrap()), leaf(&before));
    }
    assert!(healthz(&mut before).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn plain_text_leaves_the_machine_only_when_asked_to() {
    let (http, grpc) =
        (TcpListener::bind("0.0.0.0:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let at = http.local_addr().unwrap();
    let error = Ports::start(http, grpc, None, false, Arc::new(Desk::default()), None).unwrap_err();
    assert!(matches!(&error, PortsError::NoCertificate(address) if *address == at));
    assert_eq!(
        error.to_string(),
        format!(
            "{at} is not loopback and there is no certificate to serve TLS with; listen on 127.0.0.1 or set \
             insecureListen"
        )
    );
    let (_folder, authority) = authority();
    let served = serve_on("0.0.0.0:0", Some(authority.resolver()), true).await;
    assert_eq!(parts(&get(served.http, "/healthz", &[]).await).0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_stalls_is_cut_off() {
    let (_folder, authority) = authority();
    let served = serve_on("0.0.0.0:0", Some(authority.resolver()), false).await;
    for start in [b"".as_slice(), b"\x16\x03\x01\x02\x00\x01"] {
        let mut stream = TcpStream::connect(served.grpc).await.unwrap();
        stream.write_all(start).await.unwrap();
        let started = Instant::now();
        drop(stream.read_to_end(&mut Vec::new()).await);
        assert!(started.elapsed() <= Duration::from_millis(10_100), "kept for {:?}", started.elapsed());
    }
}
