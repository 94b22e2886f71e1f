//! The certificate a controlplane shows. Either it keeps a CA of its own and
//! issues itself leaves (`dev`, and self-hosting with pins), or an operator
//! gives files that are read again when they change. A bad or mismatched pair
//! never replaces a good one, and live connections are never cut.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::address::Pin;
use crate::trust::pin_of;

const CA_LIFE: Duration = Duration::from_secs(3652 * 86_400);
const LEAF_LIFE: Duration = Duration::from_secs(90 * 86_400);
/// A leaf is replaced when less than this is left of it.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 86_400);
/// Certificates start this much in the past: clocks differ.
const BACKDATE: Duration = Duration::from_secs(3_600);

/// Why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path}: {problem}")]
    Content {
        /// Which.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// A certificate could not be made.
    #[error("making a certificate failed: {0}")]
    Make(#[from] rcgen::Error),
}

fn at(path: &Path) -> impl Fn(io::Error) -> CertError + '_ {
    |source| CertError::File { path: path.display().to_string(), source }
}

fn content(path: &Path, problem: impl ToString) -> CertError {
    CertError::Content { path: path.display().to_string(), problem: problem.to_string() }
}

/// The certificate in force; swapped while running.
pub struct CertResolver {
    current: ArcSwap<CertifiedKey>,
}

impl std::fmt::Debug for CertResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CertResolver")
    }
}

impl CertResolver {
    fn new(key: CertifiedKey) -> Arc<Self> {
        Arc::new(Self { current: ArcSwap::from_pointee(key) })
    }

    /// One that never changes.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn fixed(key: CertifiedKey) -> Arc<Self> {
        Self::new(key)
    }

    /// When the certificate in force ends, in Unix seconds.
    #[must_use]
    pub fn expires(&self) -> i64 {
        self.current.load().cert.first().map_or(0, |leaf| not_after(leaf))
    }

    /// What clients may pin: the roots that go along in the chain, two of them
    /// while one takes the other's place, or else the CA at its end; none when
    /// no CA goes along.
    #[must_use]
    pub fn pins(&self) -> Vec<Pin> {
        let current = self.current.load();
        let issuers = current.cert.get(1..).unwrap_or_default();
        let roots: Vec<Pin> = issuers.iter().filter(|c| is_root(c)).filter_map(|c| pin_of(c).ok()).collect();
        if roots.is_empty() {
            issuers.last().and_then(|c| pin_of(c).ok()).into_iter().collect()
        } else {
            roots
        }
    }

    /// The certificate and key in force, for the TLS of other ports.
    #[must_use]
    pub fn current(&self) -> Arc<CertifiedKey> {
        self.current.load_full()
    }
}

impl ResolvesServerCert for CertResolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

fn is_root(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, c)| c.subject() == c.issuer())
}

fn not_after(certificate: &CertificateDer<'_>) -> i64 {
    X509Certificate::from_der(certificate).map_or(0, |(_, c)| c.validity().not_after.timestamp())
}

/// A CA kept in a folder, and the leaf it issued last.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    names: Vec<String>,
    resolver: Arc<CertResolver>,
    pin: Pin,
}

impl Authority {
    /// Opens the CA in `folder`, or makes it, and issues a leaf for `names`
    /// when there is none in force for them. Keys are written 0600.
    ///
    /// # Errors
    /// When files cannot be used or a certificate cannot be made.
    pub fn open(folder: &Path, names: &[String], now_unix: u64) -> Result<Self, CertError> {
        fs::create_dir_all(folder).map_err(at(folder))?;
        let (ca_file, key_file) = (folder.join("ca.pem"), folder.join("ca.key"));
        if !ca_file.exists() {
            let (certificate, key) = make_ca(now_unix)?;
            write_atomically(&key_file, key.as_bytes(), 0o600)?;
            write_atomically(&ca_file, certificate.as_bytes(), 0o644)?;
        }
        let ca = CertificateDer::from_pem_file(&ca_file).map_err(|e| content(&ca_file, e))?;
        let pin = pin_of(&ca).map_err(|e| content(&ca_file, e))?;
        let leaf = match load_pair(&folder.join("leaf.pem"), &folder.join("leaf.key")) {
            Ok(leaf) if still_good(&leaf, names, now_unix) => leaf,
            _ => issue(folder, names, now_unix)?,
        };
        Ok(Self { folder: folder.to_owned(), names: names.to_vec(), resolver: CertResolver::new(leaf), pin })
    }

    /// Issues a new leaf when the one in force ends within 30 days. To be
    /// called now and then; returns whether it did.
    ///
    /// # Errors
    /// When files cannot be used or a certificate cannot be made; the old leaf
    /// stays in force.
    pub fn renew(&self, now_unix: u64) -> Result<bool, CertError> {
        if still_good(&self.resolver.current(), &self.names, now_unix) {
            return Ok(false);
        }
        self.resolver.current.store(Arc::new(issue(&self.folder, &self.names, now_unix)?));
        Ok(true)
    }

    /// What to show.
    #[must_use]
    pub fn resolver(&self) -> Arc<CertResolver> {
        Arc::clone(&self.resolver)
    }

    /// What clients pin.
    #[must_use]
    pub fn pin(&self) -> Pin {
        self.pin
    }
}

/// Certificate and key files an operator keeps.
#[derive(Debug)]
pub struct Files {
    certificate: PathBuf,
    key: PathBuf,
    resolver: Arc<CertResolver>,
}

impl Files {
    /// Reads both files: a PEM chain with the leaf first, and its PEM key.
    ///
    /// # Errors
    /// When they cannot be read or do not belong together.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, CertError> {
        let resolver = CertResolver::new(load_pair(certificate, key)?);
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), resolver })
    }

    /// Reads them again. To be called now and then; returns whether anything
    /// changed.
    ///
    /// # Errors
    /// When they are not a good pair now; the pair in force stays.
    pub fn refresh(&self) -> Result<bool, CertError> {
        let fresh = load_pair(&self.certificate, &self.key)?;
        let changed = fresh.cert != self.resolver.current().cert;
        if changed {
            self.resolver.current.store(Arc::new(fresh));
        }
        Ok(changed)
    }

    /// What to show.
    #[must_use]
    pub fn resolver(&self) -> Arc<CertResolver> {
        Arc::clone(&self.resolver)
    }
}

fn date(now_unix: u64) -> OffsetDateTime {
    i64::try_from(now_unix)
        .ok()
        .and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok())
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn make_ca(now_unix: u64) -> Result<(String, String), CertError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "levers9 CA");
    params.not_before = date(now_unix) - BACKDATE;
    params.not_after = date(now_unix) + CA_LIFE;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

fn issue(folder: &Path, names: &[String], now_unix: u64) -> Result<CertifiedKey, CertError> {
    let (ca_file, key_file) = (folder.join("ca.pem"), folder.join("ca.key"));
    let ca_pem = fs::read_to_string(&ca_file).map_err(at(&ca_file))?;
    let ca_key = KeyPair::from_pem(&fs::read_to_string(&key_file).map_err(at(&key_file))?)?;
    let issuer = Issuer::from_ca_cert_pem(&ca_pem, ca_key)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "levers9 controlplane");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = date(now_unix) - BACKDATE;
    params.not_after = date(now_unix) + LEAF_LIFE;
    let leaf = params.signed_by(&key, &issuer)?;
    write_atomically(&folder.join("leaf.key"), key.serialize_pem().as_bytes(), 0o600)?;
    // The CA goes along, so that a pin of its key can be checked.
    write_atomically(&folder.join("leaf.pem"), format!("{}{ca_pem}", leaf.pem()).as_bytes(), 0o644)?;
    load_pair(&folder.join("leaf.pem"), &folder.join("leaf.key"))
}

fn load_pair(certificate: &Path, key: &Path) -> Result<CertifiedKey, CertError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|e| content(certificate, e))?;
    if chain.is_empty() {
        return Err(content(certificate, "no certificate in it"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| content(key, e))?;
    let provider: &CryptoProvider = &crate::quic::crypto_provider();
    CertifiedKey::from_der(chain, secret, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => content(key, "the key is not the certificate's"),
        other => content(key, other),
    })
}

/// Whether a leaf is far from its end and carries exactly these names.
fn still_good(leaf: &CertifiedKey, names: &[String], now_unix: u64) -> bool {
    let Some(first) = leaf.cert.first() else { return false };
    let left = not_after(first) - i64::try_from(now_unix).unwrap_or(i64::MAX);
    let named = X509Certificate::from_der(first).is_ok_and(|(_, c)| {
        let Ok(Some(held)) = c.subject_alternative_name() else { return names.is_empty() };
        held.value.general_names.len() == names.len() && names.iter().all(|name| is_for(first, name))
    });
    named && left > i64::try_from(RENEW_BEFORE.as_secs()).unwrap_or(i64::MAX)
}

fn is_for(leaf: &CertificateDer<'_>, name: &str) -> bool {
    let (Ok(parsed), Ok(name)) = (ParsedCertificate::try_from(leaf), ServerName::try_from(name)) else {
        return false;
    };
    verify_server_name(&parsed, &name).is_ok()
}

/// Writes a file whole or not at all.
fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CertError> {
    let temporary = path.with_extension("new");
    let write = || {
        let _gone = fs::remove_file(&temporary);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(at(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const NOW: u64 = 1_800_000_000;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_ca_is_kept_and_its_leaf_renewed_under_the_same_pin() {
        let folder = tempfile::tempdir().unwrap();
        let first = Authority::open(folder.path(), &names(&["localhost", "127.0.0.1"]), NOW).unwrap();
        let again = Authority::open(folder.path(), &names(&["localhost", "127.0.0.1"]), NOW + 10).unwrap();
        assert_eq!(first.pin(), again.pin());
        assert_eq!(first.resolver().current().cert, again.resolver().current().cert);
        assert!(!again.renew(NOW + 59 * 86_400).unwrap());
        assert!(again.renew(NOW + 61 * 86_400).unwrap());
        assert_eq!(again.resolver().expires(), i64::try_from(NOW + 151 * 86_400).unwrap());
        for key in ["ca.key", "leaf.key"] {
            let mode = fs::metadata(folder.path().join(key)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
    }

    #[test]
    fn other_names_get_another_leaf() {
        let folder = tempfile::tempdir().unwrap();
        let first = Authority::open(folder.path(), &names(&["localhost"]), NOW).unwrap();
        let other = Authority::open(folder.path(), &names(&["localhost", "example.org"]), NOW).unwrap();
        assert_ne!(first.resolver().current().cert, other.resolver().current().cert);
        assert_eq!(first.pin(), other.pin());
    }

    /// What signs the leaf and what is to sign the next one.
    #[test]
    fn a_chain_with_two_roots_has_two_pins() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = Authority::open(a.path(), &names(&["localhost"]), NOW).unwrap();
        let second = Authority::open(b.path(), &names(&["localhost"]), NOW).unwrap();
        assert_eq!(first.resolver().pins(), [first.pin()]);
        let chain = a.path().join("chain.pem");
        let both =
            [a.path().join("leaf.pem"), b.path().join("ca.pem")].map(|f| fs::read_to_string(f).unwrap());
        fs::write(&chain, both.concat()).unwrap();
        let files = Files::open(&chain, &a.path().join("leaf.key")).unwrap();
        assert_eq!(files.resolver().pins(), [first.pin(), second.pin()]);
        // A leaf alone leaves it to the platform.
        let pem = fs::read_to_string(a.path().join("leaf.pem")).unwrap();
        let (leaf, _) = pem.split_once("-----END CERTIFICATE-----").unwrap();
        fs::write(&chain, format!("{leaf}-----END CERTIFICATE-----\n")).unwrap();
        assert!(files.refresh().unwrap());
        assert!(files.resolver().pins().is_empty());
    }

    /// B113
    #[test]
    fn a_mismatched_or_broken_pair_keeps_the_one_in_force() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Authority::open(a.path(), &names(&["localhost"]), NOW).unwrap();
        Authority::open(b.path(), &names(&["localhost"]), NOW).unwrap();
        let (pem, key) = (a.path().join("leaf.pem"), a.path().join("leaf.key"));
        let files = Files::open(&pem, &key).unwrap();
        let before = files.resolver().current();
        fs::copy(b.path().join("leaf.pem"), &pem).unwrap();
        assert!(files.refresh().unwrap_err().to_string().contains("not the certificate's"));
        assert_eq!(files.resolver().current().cert, before.cert);
        fs::copy(b.path().join("leaf.key"), &key).unwrap();
        assert!(files.refresh().unwrap());
        fs::write(&pem, "garbage").unwrap();
        assert!(files.refresh().is_err());
        assert_ne!(files.resolver().current().cert, before.cert);
    }
}
