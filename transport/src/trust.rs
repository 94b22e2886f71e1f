//! Whom a dialer believes. With pins, the chain must lead to a CA whose public
//! key is pinned, and the leaf must be in force and carry the name dialed;
//! nothing else counts. Without, the platform's roots decide. What was wrong
//! is kept for the person who has to act on it. There is no way to turn the
//! check off.

use std::fmt;
use std::sync::{Arc, Mutex};

use aws_lc_rs::digest;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::address::{Pin, Trust};

/// Clocks that are wrong are seldom wrong by more, in seconds.
const CLOCK_MAY_BE_OFF: i64 = 86_400;

/// Why a server is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustProblem {
    /// No CA in its chain has a pinned key.
    #[error("the server's CA is not the pinned one: it shows a certificate of {issuer:?} with {seen}")]
    WrongPin {
        /// Who signed the leaf, as it says.
        issuer: String,
        /// The pin of the CA it sent, or what it sent instead.
        seen: String,
    },
    /// The server's own key is pinned, where its CA's has to be.
    #[error(
        "the pin is of the server's own certificate, which changes when it is renewed: pin its CA, {seen}"
    )]
    LeafPinned {
        /// The pin of the CA it sent.
        seen: Pin,
    },
    /// Past its end.
    #[error("the server's certificate, issued by {issuer:?}, expired {ago} ago{clock}")]
    Expired {
        /// Who signed it.
        issuer: String,
        /// For how long it has been over.
        ago: String,
        /// Words about this machine's clock, where that is as likely wrong.
        clock: &'static str,
    },
    /// Before its beginning, by this machine's clock.
    #[error("the server's certificate is not valid for another {wait}; is this machine's clock right?")]
    NotYetValid {
        /// Until it begins.
        wait: String,
    },
    /// For other names.
    #[error("the server's certificate is not for {dialed:?}, it names {names}")]
    WrongName {
        /// What was dialed.
        dialed: String,
        /// What it is for.
        names: String,
    },
    /// Signed by nobody the platform knows.
    #[error("the server's certificate is signed by {issuer:?}, which this machine does not trust")]
    UnknownIssuer {
        /// Who signed it.
        issuer: String,
    },
    /// Anything else.
    #[error("the server's certificate is not acceptable: {0}")]
    Other(String),
}

/// The pin of a certificate's public key.
///
/// # Errors
/// When the bytes are not a certificate.
pub fn pin_of(certificate: &CertificateDer<'_>) -> Result<Pin, String> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| e.to_string())?;
    let hash = digest::digest(&digest::SHA256, parsed.tbs_certificate.subject_pki.raw);
    let mut pin = [0u8; 32];
    pin.copy_from_slice(hash.as_ref());
    Ok(Pin(pin))
}

/// What a server's certificate says, believed or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Who signed it.
    pub issuer: String,
    /// The names it is for.
    pub names: String,
    /// When it ends, in Unix seconds.
    pub expires_unix_s: i64,
    /// The pin of the CA at the end of its chain, when it sent one.
    pub pin: Option<Pin>,
}

impl Shown {
    fn of(leaf: &CertificateDer<'_>, chain: &[CertificateDer<'_>]) -> Self {
        let parsed = X509Certificate::from_der(leaf);
        Self {
            issuer: issuer_of(leaf),
            names: names_of(leaf),
            expires_unix_s: parsed.map(|(_, c)| c.validity().not_after.timestamp()).unwrap_or_default(),
            pin: chain.last().and_then(|ca| pin_of(ca).ok()),
        }
    }
}

/// Checks one server's certificate and remembers what it said and what was
/// wrong with it.
pub struct Verifier {
    trust: Trust,
    provider: Arc<CryptoProvider>,
    system: Option<rustls_platform_verifier::Verifier>,
    problem: Mutex<Option<TrustProblem>>,
    shown: Mutex<Option<Shown>>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("trust", &self.trust).finish_non_exhaustive()
    }
}

impl Verifier {
    /// A verifier for one connection attempt.
    ///
    /// # Errors
    /// When the platform's roots are wanted and cannot be had.
    pub fn new(trust: &Trust) -> Result<Arc<Self>, TrustProblem> {
        let provider = crate::quic::crypto_provider();
        let system = match trust {
            Trust::System => Some(
                rustls_platform_verifier::Verifier::new(Arc::clone(&provider))
                    .map_err(|e| TrustProblem::Other(e.to_string()))?,
            ),
            Trust::Pins(_) => None,
        };
        Ok(Arc::new(Self {
            trust: trust.clone(),
            provider,
            system,
            problem: Mutex::default(),
            shown: Mutex::default(),
        }))
    }

    /// What was wrong, once a handshake has failed over it.
    #[must_use]
    pub fn problem(&self) -> Option<TrustProblem> {
        self.problem.lock().ok().and_then(|problem| problem.clone())
    }

    /// What the server showed, once it has.
    #[must_use]
    pub fn shown(&self) -> Option<Shown> {
        self.shown.lock().ok().and_then(|shown| shown.clone())
    }

    fn pinned<'a>(
        &self,
        pins: &[Pin],
        chain: impl Iterator<Item = &'a CertificateDer<'a>>,
    ) -> Option<RootCertStore> {
        // All of them: during a rotation the chain may hold one that has not issued the leaf.
        let pinned = chain.into_iter().filter(|c| pin_of(c).is_ok_and(|pin| pins.contains(&pin)));
        let mut roots = RootCertStore::empty();
        let (added, _unusable) = roots.add_parsable_certificates(pinned.map(|c| c.clone().into_owned()));
        (added > 0).then_some(roots)
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<(), TrustProblem> {
        let describe = |error: rustls::Error| explain(&error, leaf, name, now);
        if let Some(system) = &self.system {
            return system.verify_server_cert(leaf, chain, name, ocsp, now).map(drop).map_err(describe);
        }
        let Trust::Pins(pins) = &self.trust else { return Err(TrustProblem::Other("no roots".to_owned())) };
        let Some(roots) = self.pinned(pins, chain.iter()) else {
            let seen = match chain.last().map(pin_of) {
                Some(Ok(seen)) if pin_of(leaf).is_ok_and(|pin| pins.contains(&pin)) => {
                    return Err(TrustProblem::LeafPinned { seen });
                }
                Some(Ok(pin)) => pin.to_string(),
                _ => "no CA in its chain".to_owned(),
            };
            return Err(TrustProblem::WrongPin { issuer: issuer_of(leaf), seen });
        };
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|e| TrustProblem::Other(e.to_string()))?;
        webpki.verify_server_cert(leaf, chain, name, ocsp, now).map(drop).map_err(describe)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Ok(mut shown) = self.shown.lock() {
            *shown = Some(Shown::of(leaf, chain));
        }
        self.check(leaf, chain, name, ocsp, now).map(|()| ServerCertVerified::assertion()).map_err(
            |problem| {
                let error = rustls::Error::General(problem.to_string());
                if let Ok(mut kept) = self.problem.lock() {
                    *kept = Some(problem);
                }
                error
            },
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn explain(
    error: &rustls::Error,
    leaf: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> TrustProblem {
    let rustls::Error::InvalidCertificate(problem) = error else {
        return TrustProblem::Other(error.to_string());
    };
    let validity = |pick: fn(&x509_parser::certificate::Validity) -> i64| {
        X509Certificate::from_der(leaf).map(|(_, c)| pick(c.validity())).unwrap_or_default()
    };
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let span = |seconds: i64| {
        let seconds = u64::try_from(seconds).unwrap_or_default();
        levers9_wire::quantity::show_duration(std::time::Duration::from_secs(seconds))
    };
    match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            let ago = now - validity(|v| v.not_after.timestamp());
            let clock = if ago < CLOCK_MAY_BE_OFF { "; is this machine's clock right?" } else { "" };
            TrustProblem::Expired { issuer: issuer_of(leaf), ago: span(ago), clock }
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TrustProblem::NotYetValid { wait: span(validity(|v| v.not_before.timestamp()) - now) }
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            TrustProblem::WrongName { dialed: name.to_str().into_owned(), names: names_of(leaf) }
        }
        CertificateError::UnknownIssuer => TrustProblem::UnknownIssuer { issuer: issuer_of(leaf) },
        other => TrustProblem::Other(format!("{other:?}")),
    }
}

fn issuer_of(leaf: &CertificateDer<'_>) -> String {
    let issuer = X509Certificate::from_der(leaf).map(|(_, c)| c.issuer().to_string());
    levers9_wire::name::printable(&issuer.unwrap_or_else(|_| "an unreadable certificate".to_owned()), 120)
}

fn names_of(leaf: &CertificateDer<'_>) -> String {
    use x509_parser::extensions::GeneralName;
    let Ok((_, parsed)) = X509Certificate::from_der(leaf) else { return "nothing readable".to_owned() };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return "nothing".to_owned() };
    let shown: Vec<String> = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(dns) => Some((*dns).to_owned()),
            GeneralName::IPAddress(bytes) => match *bytes {
                [a, b, c, d] => Some(std::net::Ipv4Addr::new(*a, *b, *c, *d).to_string()),
                bytes => <[u8; 16]>::try_from(bytes).ok().map(|b| std::net::Ipv6Addr::from(b).to_string()),
            },
            _ => None,
        })
        .take(8)
        .collect();
    levers9_wire::name::printable(&shown.join(", "), 200)
}
