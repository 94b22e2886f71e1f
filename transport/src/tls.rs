//! TLS 1.3 for carriers: the cipher order, the key exchange, ALPN. Whom to
//! trust is [`crate::trust`]'s, which certificate to show is [`crate::cert`]'s.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};

use crate::cert::CertResolver;
use crate::trust::Verifier;

/// The cryptography of every carrier: AES-128 first (fastest where the CPU has
/// AES), then the others; post-quantum key exchange first.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(provider)
}

pub(crate) fn client(verifier: Arc<Verifier>) -> Result<rustls::ClientConfig, rustls::Error> {
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![levers9_wire::ALPN.to_vec()];
    // Every connection is checked anew: a resumed one would outlive a revoked pin.
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_early_data = false;
    Ok(config)
}

pub(crate) fn server(certificate: Arc<CertResolver>) -> Result<rustls::ServerConfig, rustls::Error> {
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![levers9_wire::ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config)
}

/// What is said of a peer that speaks something else.
pub(crate) const OTHER_PROTOCOL: &str = "it does not speak levers9/1";

/// TLS's alert for it.
pub(crate) const NO_PROTOCOL_IN_COMMON: u8 = 120;

/// Whether the protocol agreed on is this one. Over QUIC the library insists;
/// over TCP a peer may have asked for none.
pub(crate) fn speaks_levers9(agreed: Option<&[u8]>) -> bool {
    agreed == Some(levers9_wire::ALPN)
}
