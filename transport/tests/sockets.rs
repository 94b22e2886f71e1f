//! What a dialer finds out about an address through real sockets.

#![cfg(test)]

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use levers9_transport::dial::{DialError, Dialer};
use levers9_transport::quic::{Endpoint, Identity, Probe, Settings, bind, speaks_quic};
use levers9_transport::sim;
use levers9_transport::trust::TrustProblem;
use levers9_transport::{Address, Trust};

/// A server that accepts, and the pin of its CA.
fn server() -> (Endpoint, SocketAddr, levers9_transport::address::Pin) {
    let (identity, pin): (Identity, _) = sim::identity(&["127.0.0.1", "name.test"]);
    let settings = Settings::default();
    let socket = bind("127.0.0.1:0".parse().unwrap(), settings.socket_buffer).unwrap();
    let endpoint = Endpoint::accepting(socket, &settings, &identity).unwrap();
    let address = endpoint.local_addr().unwrap();
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(inbound) = accepting.accept().await {
            tokio::spawn(inbound.handshake());
        }
    });
    (endpoint, address, pin)
}

#[tokio::test]
async fn tells_quic_from_nothing_and_from_silence() {
    let (_endpoint, address, _) = server();
    assert!(speaks_quic(address).await.expect("an answer") < Duration::from_secs(1));
    let mute = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = mute.local_addr().unwrap();
    assert_eq!(speaks_quic(at).await, Err(Probe::Silent));
    drop(mute);
    assert_eq!(speaks_quic(at).await, Err(Probe::NothingListening));
}

#[tokio::test]
async fn shows_the_certificate_it_was_shown_whether_or_not_it_believes_it() {
    let (_endpoint, address, pin) = server();
    let dialing = Endpoint::dialing(&Settings::default()).unwrap();
    let of = |pins| {
        Dialer::new(Address {
            host: address.ip().to_string(),
            port: address.port(),
            trust: Trust::Pins(pins),
        })
    };
    let (shown, connected) = of(vec![pin]).examine(&dialing, address).await;
    connected.expect("it is believed");
    let shown = shown.expect("a certificate");
    assert!(shown.names.contains("name.test"), "{shown:?}");
    assert_eq!(shown.pin, Some(pin));
    let other = sim::identity(&["x"]).1;
    let (seen, refused) = of(vec![other]).examine(&dialing, address).await;
    assert_eq!(seen, Some(shown));
    assert!(matches!(refused, Err(DialError::Trust(TrustProblem::WrongPin { .. }))), "{refused:?}");
}
