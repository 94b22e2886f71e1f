//! Certificates as they come, good and bad, against what a dialer trusts: over
//! QUIC, over TCP and through a proxy the same are taken, and of the others the
//! same is said.

#![cfg(test)]

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use levers9_transport::address::Pin;
use levers9_transport::cert::{Authority, CertResolver, Files};
use levers9_transport::dial::{DialError, Dialer};
use levers9_transport::quic::{Endpoint, Identity, ServerKeys, Settings, bind, crypto_provider};
use levers9_transport::tcp::{self, Fallback, Listener, Proxies};
use levers9_transport::trust::pin_of;
use levers9_transport::{Address, Carrier, Trust};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const HOST: &str = "127.0.0.1";
const MINUTE: i64 = 60;
const DAY: i64 = 86_400;

fn now() -> u64 {
    levers9_wire::clock::unix_millis() / 1000
}

fn from_now(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(i64::try_from(now()).unwrap() + seconds).unwrap()
}

/// A CA, by its name.
struct Ca {
    params: CertificateParams,
    key: KeyPair,
    der: CertificateDer<'static>,
    pem: String,
}

impl Ca {
    fn new(name: &str) -> Self {
        let (params, key) = (Self::params(name), KeyPair::generate().unwrap());
        let made = params.self_signed(&key).unwrap();
        Self { der: made.der().clone(), pem: made.pem(), params, key }
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    /// Another CA, signed by this one.
    fn below(&self, name: &str) -> Self {
        let (params, key) = (Self::params(name), KeyPair::generate().unwrap());
        let made = params.signed_by(&key, &self.issuer()).unwrap();
        Self { der: made.der().clone(), pem: made.pem(), params, key }
    }

    fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.params, &self.key)
    }

    fn pin(&self) -> Pin {
        pin_of(&self.der).unwrap()
    }

    /// A leaf for a name, in force from one time to another, with what else is
    /// sent after it.
    fn leaf(&self, name: &str, (from, to): (i64, i64), chain: &[&Self]) -> (Identity, Pin) {
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (leaf.not_before, leaf.not_after) = (from_now(from), from_now(to));
        let leaf = leaf.signed_by(&key, &self.issuer()).unwrap().der().clone();
        let pin = pin_of(&leaf).unwrap();
        let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let chain = std::iter::once(leaf).chain(chain.iter().map(|ca| ca.der.clone())).collect();
        let pair = CertifiedKey::from_der(chain, secret, &crypto_provider()).unwrap();
        (identity(CertResolver::fixed(pair)), pin)
    }
}

fn identity(certificate: Arc<CertResolver>) -> Identity {
    Identity { certificate, keys: ServerKeys { reset: [7; 64] } }
}

/// A server that completes handshakes, and the ways to it.
struct Server {
    udp: SocketAddr,
    tcp: SocketAddr,
    proxy: SocketAddr,
}

impl Server {
    async fn new(identity: &Identity) -> Self {
        let settings = Settings::default();
        let udp = bind("127.0.0.1:0".parse().unwrap(), settings.socket_buffer).unwrap();
        let endpoint = Endpoint::accepting(udp, &settings, identity).unwrap();
        let socket = tcp::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = Listener::new(socket, &settings, identity).unwrap();
        let (udp, tcp) = (endpoint.local_addr().unwrap(), listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Some(inbound) = endpoint.accept().await {
                tokio::spawn(inbound.handshake());
            }
        });
        tokio::spawn(async move {
            loop {
                tokio::spawn(listener.accept().await.handshake());
            }
        });
        Self { udp, tcp, proxy: proxy_to(tcp).await }
    }

    /// What comes of each way, with its name.
    async fn every_way(&self, trust: &Trust) -> [(&'static str, Result<Carrier, DialError>); 3] {
        let endpoint = Endpoint::dialing(&Settings::default()).unwrap();
        let address = Address { host: HOST.to_owned(), port: self.tcp.port(), trust: trust.clone() };
        let proxies = Proxies::new(&format!("http://{}", self.proxy), "").unwrap();
        let dialer = Dialer::new(address).with_fallback(Fallback::default().with_proxies(proxies));
        let ways = async {
            [
                ("QUIC", dialer.examine(&endpoint, self.udp).await.1),
                ("TCP", dialer.examine_tcp(&endpoint, self.tcp).await.1),
                ("a proxy", dialer.examine_proxy(&endpoint).await.expect("there is one").2),
            ]
        };
        timeout(Duration::from_secs(20), ways).await.expect("in time")
    }

    async fn is_trusted(&self, case: &str, trust: &Trust) {
        for (way, result) in self.every_way(trust).await {
            if let Err(error) = result {
                panic!("{case} over {way}: {error}");
            }
        }
    }

    async fn is_refused(&self, case: &str, trust: &Trust, words: &str) {
        for (way, result) in self.every_way(trust).await {
            let Err(error) = result else { panic!("{case} is trusted over {way}") };
            assert!(matches!(error, DialError::Trust(_)), "{case} over {way}: {error}");
            assert_eq!(error.to_string(), words, "{case} over {way}");
        }
    }
}

/// A proxy that leads to one place.
async fn proxy_to(there: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let mut there = TcpStream::connect(there).await.unwrap();
                let _cut = tokio::io::copy_bidirectional(&mut client, &mut there).await;
            });
        }
    });
    at
}

const IN_FORCE: (i64, i64) = (-DAY, DAY);

#[tokio::test]
async fn a_pinned_ca_is_trusted_whatever_else_is_pinned_or_sent() {
    let (ca, older) = (Ca::new("the CA"), Ca::new("an older CA"));
    let pinned = Trust::Pins(vec![ca.pin()]);
    let (good, _) = ca.leaf(HOST, IN_FORCE, &[&ca]);
    let good = Server::new(&good).await;
    good.is_trusted("one good pin", &pinned).await;
    // While pins are rotated there are two, and the server shows either CA.
    let both = Trust::Pins(vec![older.pin(), ca.pin()]);
    good.is_trusted("the new CA of two pins", &both).await;
    let (old, _) = older.leaf(HOST, IN_FORCE, &[&older]);
    Server::new(&old).await.is_trusted("the old CA of two pins", &both).await;
    // A CA between: either may be pinned.
    let between = ca.below("a CA between");
    let (long, _) = between.leaf(HOST, IN_FORCE, &[&between, &ca]);
    let long = Server::new(&long).await;
    long.is_trusted("the root of a chain", &pinned).await;
    long.is_trusted("the middle of a chain", &Trust::Pins(vec![between.pin()])).await;
    // Both roots go along while one takes the other's place, in whichever order.
    for chain in [[&ca, &older], [&older, &ca]] {
        let (two, _) = ca.leaf(HOST, IN_FORCE, &chain);
        let two = Server::new(&two).await;
        two.is_trusted("a chain of two roots", &pinned).await;
        two.is_trusted("a chain of two roots, both pinned", &both).await;
        let unsigned =
            "the server's certificate is signed by \"CN=the CA\", which this machine does not trust";
        two.is_refused("a root that has signed nothing", &Trust::Pins(vec![older.pin()]), unsigned).await;
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_said_the_same_on_every_way() {
    let (ca, other) = (Ca::new("the CA"), Ca::new("another CA"));
    let pinned = Trust::Pins(vec![ca.pin()]);
    let wrong_pin = |seen: &str| {
        format!("the server's CA is not the pinned one: it shows a certificate of \"CN=the CA\" with {seen}")
    };
    let (good, leaf) = ca.leaf(HOST, IN_FORCE, &[&ca]);
    let good = Server::new(&good).await;
    good.is_refused("a wrong pin", &Trust::Pins(vec![other.pin()]), &wrong_pin(&ca.pin().to_string())).await;
    let of_leaf = format!(
        "the pin is of the server's own certificate, which changes when it is renewed: pin its CA, {}",
        ca.pin()
    );
    good.is_refused("the leaf's pin", &Trust::Pins(vec![leaf]), &of_leaf).await;
    good.is_refused("no pin", &Trust::Pins(Vec::new()), &wrong_pin(&ca.pin().to_string())).await;

    let (alone, _) = ca.leaf(HOST, IN_FORCE, &[]);
    Server::new(&alone).await.is_refused("no CA", &pinned, &wrong_pin("no CA in its chain")).await;
    // The pinned CA goes along, but has signed nothing here.
    let (borrowed, _) = other.leaf(HOST, IN_FORCE, &[&ca]);
    let words = "the server's certificate is signed by \"CN=another CA\", which this machine does not trust";
    Server::new(&borrowed).await.is_refused("a borrowed CA", &pinned, words).await;

    let (named, _) = ca.leaf("elsewhere.test", IN_FORCE, &[&ca]);
    let words = "the server's certificate is not for \"127.0.0.1\", it names elsewhere.test";
    Server::new(&named).await.is_refused("a wrong name", &pinned, words).await;
}

/// The end of what is said of a certificate that is not in force; the time in
/// it may have gone on by a second.
#[tokio::test]
async fn a_certificate_out_of_its_time_is_named_and_so_is_the_clock_where_it_may_be_wrong() {
    let ca = Ca::new("the CA");
    let pinned = Trust::Pins(vec![ca.pin()]);
    for (case, validity, begins, ends) in [
        (
            "expired long ago",
            (-9 * DAY, -3 * DAY),
            "the server's certificate, issued by \"CN=the CA\", expired 3d",
            " ago",
        ),
        (
            "ended ten minutes ago",
            (-DAY, -10 * MINUTE),
            "the server's certificate, issued by \"CN=the CA\", expired 10m",
            " ago; is this machine's clock right?",
        ),
        (
            "begins tomorrow",
            (DAY + 30, 9 * DAY),
            "the server's certificate is not valid for another 1d",
            "; is this machine's clock right?",
        ),
        (
            "begins in ten minutes",
            (10 * MINUTE + 30, DAY),
            "the server's certificate is not valid for another 10m",
            "; is this machine's clock right?",
        ),
    ] {
        let (shown, _) = ca.leaf(HOST, validity, &[&ca]);
        for (way, result) in Server::new(&shown).await.every_way(&pinned).await {
            let Err(error) = result else { panic!("{case} is trusted over {way}") };
            assert!(matches!(error, DialError::Trust(_)), "{case} over {way}: {error}");
            let said = error.to_string();
            assert!(said.starts_with(begins) && said.ends_with(ends), "{case} over {way}: {said}");
        }
    }
}

/// A controlplane with a CA of its own and a clock that is off by ten minutes,
/// either way.
#[tokio::test]
async fn a_clock_that_is_ten_minutes_off_costs_nobody_a_connection() {
    for clock in [now() - 600, now(), now() + 600] {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path(), &[HOST.to_owned()], clock).unwrap();
        let server = Server::new(&identity(authority.resolver())).await;
        server.is_trusted("a clock that is off", &Trust::Pins(vec![authority.pin()])).await;
    }
}

/// A renewed certificate, and one of another CA, is shown to whoever comes
/// next, without a restart.
#[tokio::test]
async fn a_certificate_that_changes_is_shown_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    let (first, second) = (Ca::new("the first CA"), Ca::new("the second CA"));
    write_pair(&first, &chain, &key);
    let files = Files::open(&chain, &key).unwrap();
    let server = Server::new(&identity(files.resolver())).await;
    let [old, new] = [&first, &second].map(|ca| Trust::Pins(vec![ca.pin()]));
    server.is_trusted("the first", &old).await;
    write_pair(&second, &chain, &key);
    server.is_trusted("the first, until it is read", &old).await;
    assert!(files.refresh().unwrap());
    server.is_trusted("the second", &new).await;
    assert!(server.every_way(&old).await.iter().all(|(_, result)| result.is_err()));
    // A bad pair changes nothing.
    std::fs::write(&key, "no key").unwrap();
    assert!(files.refresh().is_err());
    server.is_trusted("the second still", &new).await;
}

fn write_pair(ca: &Ca, chain: &Path, key: &Path) {
    let pair = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![HOST.to_owned()]).unwrap();
    let leaf = leaf.signed_by(&pair, &ca.issuer()).unwrap();
    std::fs::write(chain, format!("{}{}", leaf.pem(), ca.pem)).unwrap();
    std::fs::write(key, pair.serialize_pem()).unwrap();
}

/// Where [`the_systems_roots_as_another_process_has_them`] finds its server.
const AT: &str = "LEVERS9_TEST_TRUST_AT";

/// The roots of the platform are read once per process: each case has its own.
#[tokio::test]
async fn the_systems_roots_decide_where_nothing_is_pinned() {
    let (ca, other) = (Ca::new("the CA"), Ca::new("another CA"));
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    let (good, _) = ca.leaf(HOST, IN_FORCE, &[&ca]);
    let (named, _) = ca.leaf("elsewhere.test", IN_FORCE, &[&ca]);
    let (over, _) = ca.leaf(HOST, (-9 * DAY, -3 * DAY), &[&ca]);
    for (shown, root, words) in [
        (&good, &ca, "trusted"),
        (&good, &other, "signed by \"CN=the CA\", which this machine does not trust"),
        (&named, &ca, "is not for \"127.0.0.1\", it names elsewhere.test"),
        (&over, &ca, "expired 3d"),
    ] {
        std::fs::write(&roots, &root.pem).unwrap();
        let server = Server::new(shown).await;
        let mut dialing = Command::new(std::env::current_exe().unwrap());
        dialing.args(["--exact", "the_systems_roots_as_another_process_has_them", "--nocapture"]);
        dialing.env("SSL_CERT_FILE", &roots).env_remove("SSL_CERT_DIR");
        dialing.env(AT, format!("{} {} {}", server.udp, server.tcp, server.proxy));
        let output = tokio::task::spawn_blocking(move || dialing.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        for way in ["QUIC", "TCP", "a proxy"] {
            let line = said.lines().find_map(|line| line.strip_prefix(&format!("over {way}: ")));
            let line = line.unwrap_or_else(|| panic!("nothing over {way}: {said}"));
            assert!(line.contains(words), "over {way}: {line}");
        }
    }
}

/// Says what comes of each way; for the test above, and nothing on its own.
#[tokio::test]
async fn the_systems_roots_as_another_process_has_them() {
    let Ok(at) = std::env::var(AT) else { return };
    let mut at = at.split(' ').map(|address| address.parse().unwrap());
    let mut next = || at.next().unwrap();
    let server = Server { udp: next(), tcp: next(), proxy: next() };
    println!();
    for (way, result) in server.every_way(&Trust::System).await {
        let outcome = result.map_or_else(|error| error.to_string(), |_| "trusted".to_owned());
        println!("over {way}: {outcome}");
    }
}
