//! A simulated network for tests: sockets over memory on tokio's paused clock.
//! Every chance is drawn from one seed, so the same seed gives the same packet
//! trace, and ten idle minutes take milliseconds. Conditions change in the
//! middle of a test. Nothing here touches a real socket, and nothing but tests
//! uses it.

mod net;
mod socket;

use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ED25519};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

pub use net::{Conditions, Fate, Network, Passage};
pub use socket::SimSocket;

use crate::address::Pin;
use crate::cert::CertResolver;
use crate::quic::{Identity, ServerKeys};
use crate::trust::pin_of;

/// Named links, from one nobody notices to one nobody would believe.
pub mod links {
    use super::{Conditions, Duration};

    /// The same rack.
    #[must_use]
    pub fn rack() -> Conditions {
        Conditions { delay: Duration::from_micros(100), ..Conditions::default() }
    }

    /// Across a continent by cable.
    #[must_use]
    pub fn wan() -> Conditions {
        Conditions {
            delay: Duration::from_millis(25),
            jitter: Duration::from_millis(2),
            ..Conditions::default()
        }
    }

    /// A train with a phone: loss and reordering.
    #[must_use]
    pub fn train() -> Conditions {
        Conditions {
            delay: Duration::from_millis(40),
            jitter: Duration::from_millis(60),
            reorder: true,
            loss: 0.05,
            ..Conditions::default()
        }
    }

    /// A satellite in the rain.
    #[must_use]
    pub fn satellite() -> Conditions {
        Conditions {
            delay: Duration::from_millis(300),
            jitter: Duration::from_millis(30),
            loss: 0.02,
            ..Conditions::default()
        }
    }

    /// One packet in five is lost, others arrive twice or late.
    #[must_use]
    pub fn absurd() -> Conditions {
        Conditions {
            delay: Duration::from_millis(100),
            jitter: Duration::from_millis(150),
            reorder: true,
            loss: 0.2,
            duplicate: 0.05,
            ..Conditions::default()
        }
    }
}

/// A certificate for `names` whose signatures always have the same length, so
/// that packet traces repeat, and its CA's pin.
///
/// # Panics
/// When the certificate cannot be made, which only a broken build can cause.
#[must_use]
pub fn identity(names: &[&str]) -> (Identity, Pin) {
    made(names).unwrap_or_else(|error| panic!("making a test certificate: {error}"))
}

fn made(names: &[&str]) -> Result<(Identity, Pin), Box<dyn std::error::Error>> {
    let ca_key = KeyPair::generate_for(&PKCS_ED25519)?;
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.serial_number = Some(rcgen::SerialNumber::from_slice(&[1; 16]));
    let ca_der = ca.self_signed(&ca_key)?.der().clone();
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    let mut leaf = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())?;
    leaf.serial_number = Some(rcgen::SerialNumber::from_slice(&[2; 16]));
    let leaf = leaf.signed_by(&key, &Issuer::new(ca, ca_key))?;
    let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let chain = vec![leaf.der().clone(), ca_der.clone()];
    let pair = CertifiedKey::from_der(chain, secret, &crate::quic::crypto_provider())?;
    let identity = Identity { certificate: CertResolver::fixed(pair), keys: ServerKeys { reset: [7; 64] } };
    Ok((identity, pin_of(&ca_der)?))
}

/// What a socket of the network is as the QUIC library sees it.
#[must_use]
pub fn as_socket(socket: &Arc<SimSocket>) -> Arc<dyn quinn::AsyncUdpSocket> {
    Arc::clone(socket) as Arc<dyn quinn::AsyncUdpSocket>
}
