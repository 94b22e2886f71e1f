//! Seals what must be stored but not be readable in the database: AES-256-GCM
//! under a key from a file of its own, written as key id | nonce | ciphertext.
//!
//! The callers of the store seal environments and remembered answers before
//! they hand them over. A [`Keyring`] seals with its current key and opens with
//! any it has, so keys can be changed while old data stays readable. It never
//! writes a key anywhere but into its file, and shows none.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::{digest, hmac, rand};
use levers9_wire::token::Secret;

/// How many bytes of a key's hash name it.
const KEY_ID: usize = 8;
/// The bytes before the ciphertext.
const HEADER: usize = KEY_ID + NONCE_LEN;
/// The first line of a key file.
const FILE_HEADER: &str =
    "levers9 sealing keys 1: the first seals, all open; keep them as long as the database";

/// Sealed bytes: key id, nonce, ciphertext with its tag.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed(pub Vec<u8>);

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes)", self.0.len())
    }
}

/// Why something does not open, or could not be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The key it was sealed with is not in the ring.
    #[error("sealed with a key that is not in the key file")]
    UnknownKey,
    /// It was changed, cut, or sealed for another purpose.
    #[error("the sealed data is damaged or belongs elsewhere")]
    Damaged,
    /// The cipher gave up.
    #[error("the data cannot be sealed")]
    Failed,
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read or written.
    #[error("cannot use the key file {}", .path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file holds something else than keys.
    #[error("the key file {} is malformed: a header line, then keys of 64 hexadecimal digits", .0.display())]
    Malformed(PathBuf),
    /// The cipher or the system's random source gave up.
    #[error("no key could be made")]
    Failed,
}

/// Names a key without saying what it is.
type KeyId = [u8; KEY_ID];

/// The key that seals, and those that still open.
pub struct Keyring {
    current: KeyId,
    keys: HashMap<KeyId, RandomizedNonceKey>,
    /// What other keys are derived from; never used with the cipher itself.
    seed: hmac::Key,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring(…)")
    }
}

impl Keyring {
    /// A ring of a current key and those before it.
    ///
    /// # Errors
    /// When the cipher refuses a key.
    pub fn new(current: &[u8; 32], previous: &[[u8; 32]]) -> Result<Self, KeyFileError> {
        let mut keys = HashMap::new();
        for key in previous.iter().chain([current]) {
            let cipher = RandomizedNonceKey::new(&AES_256_GCM, key).map_err(|_| KeyFileError::Failed)?;
            keys.insert(key_id(key), cipher);
        }
        Ok(Self { current: key_id(current), keys, seed: hmac::Key::new(hmac::HMAC_SHA512, current) })
    }

    /// The keys of a file, which is created with a fresh one when absent: in
    /// one step, readable by this user alone.
    ///
    /// # Errors
    /// When the file cannot be used or holds something else.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyFileError> {
        if let Some(ring) = Self::load(path)? {
            return Ok(ring);
        }
        create(path)?;
        // Whoever created it first: the file is what counts.
        Self::load(path)?.ok_or(KeyFileError::Failed)
    }

    /// The keys of a file; `None` when there is no file.
    fn load(path: &Path) -> Result<Option<Self>, KeyFileError> {
        let text = match fs::read_to_string(path).map(Secret::new) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(KeyFileError::Malformed(path.to_owned()));
            }
            Err(source) => return Err(KeyFileError::Io { path: path.to_owned(), source }),
        };
        let keys = parse(text.expose()).ok_or_else(|| KeyFileError::Malformed(path.to_owned()))?;
        let (current, previous) =
            keys.split_first().ok_or_else(|| KeyFileError::Malformed(path.to_owned()))?;
        Self::new(current, previous).map(Some)
    }

    /// Sixty-four bytes that follow from the current key and a purpose, for
    /// keys that are to outlive a process and need no file of their own.
    #[must_use]
    pub fn derive(&self, purpose: &[u8]) -> [u8; 64] {
        let mut derived = [0u8; 64];
        derived.copy_from_slice(hmac::sign(&self.seed, purpose).as_ref());
        derived
    }

    /// Seals bytes. `aad` says what they are for; they open only with the same.
    ///
    /// # Errors
    /// When the cipher gives up.
    pub fn seal(&self, aad: &[u8], plain: &[u8]) -> Result<Sealed, SealError> {
        let key = self.keys.get(&self.current).ok_or(SealError::UnknownKey)?;
        let mut body = plain.to_vec();
        let nonce = key.seal_in_place_append_tag(Aad::from(aad), &mut body).map_err(|_| SealError::Failed)?;
        let mut sealed = Vec::with_capacity(HEADER + body.len());
        sealed.extend_from_slice(&self.current);
        sealed.extend_from_slice(nonce.as_ref());
        sealed.extend_from_slice(&body);
        Ok(Sealed(sealed))
    }

    /// Opens what [`Self::seal`] made of the same `aad`.
    ///
    /// # Errors
    /// When the key is unknown, or anything was changed.
    pub fn open(&self, aad: &[u8], sealed: &Sealed) -> Result<Vec<u8>, SealError> {
        let (id, rest) = sealed.0.split_first_chunk::<KEY_ID>().ok_or(SealError::Damaged)?;
        let (nonce, body) = rest.split_first_chunk::<NONCE_LEN>().ok_or(SealError::Damaged)?;
        let key = self.keys.get(id).ok_or(SealError::UnknownKey)?;
        let mut body = body.to_vec();
        let opened = key
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(aad), &mut body)
            .map_err(|_| SealError::Damaged)?;
        let length = opened.len();
        body.truncate(length);
        Ok(body)
    }
}

/// The keys in the text of a key file.
fn parse(text: &str) -> Option<Vec<[u8; 32]>> {
    let mut lines = text.lines();
    lines.next().filter(|line| *line == FILE_HEADER)?;
    lines.map(from_hex).collect()
}

fn key_id(key: &[u8; 32]) -> KeyId {
    let hash = digest::digest(&digest::SHA256, key);
    let mut id = KeyId::default();
    id.copy_from_slice(&hash.as_ref()[..KEY_ID]);
    id
}

/// Writes a file with one fresh key beside its place, then links it there: it
/// is whole or absent, and a file that is there already stays.
fn create(path: &Path) -> Result<(), KeyFileError> {
    let failed = |source| KeyFileError::Io { path: path.to_owned(), source };
    let mut key = [0u8; 32];
    rand::fill(&mut key).map_err(|_| KeyFileError::Failed)?;
    let text = Secret::new(format!("{FILE_HEADER}\n{}\n", to_hex(&key)));
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Temporary files are created for this user's eyes only.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(text.expose().as_bytes()).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => {}
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(failed(error.error)),
    }
    // The name too must survive a power cut: without the key the data is lost.
    #[cfg(unix)]
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    Ok(())
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let text = text.trim().as_bytes();
    if text.len() != 64 {
        return None;
    }
    let mut key = [0u8; 32];
    for (byte, pair) in key.iter_mut().zip(text.chunks(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(0)? << 4 | digit(1)?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_what_it_sealed_for_the_same_purpose_only() {
        let ring = Keyring::new(&[1; 32], &[]).unwrap();
        let sealed = ring.seal(b"env", b"TOKEN=hunter2").unwrap();
        assert_eq!(ring.open(b"env", &sealed).unwrap(), b"TOKEN=hunter2");
        assert_eq!(ring.open(b"answer", &sealed), Err(SealError::Damaged));
        assert_ne!(ring.seal(b"env", b"TOKEN=hunter2").unwrap(), sealed, "nonces are fresh");
        assert!(!sealed.0.windows(7).any(|part| part == b"hunter2"));
    }

    #[test]
    fn any_changed_or_missing_byte_is_noticed() {
        let ring = Keyring::new(&[1; 32], &[]).unwrap();
        let sealed = ring.seal(b"", b"x").unwrap();
        for at in 0..sealed.0.len() {
            let mut bad = sealed.clone();
            bad.0[at] ^= 1;
            assert!(ring.open(b"", &bad).is_err(), "byte {at}");
            assert!(ring.open(b"", &Sealed(sealed.0[..at].to_vec())).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_previous_key_still_opens_and_no_longer_seals() {
        let old = Keyring::new(&[1; 32], &[]).unwrap();
        let new = Keyring::new(&[2; 32], &[[1; 32]]).unwrap();
        let sealed = old.seal(b"a", b"x").unwrap();
        assert_eq!(new.open(b"a", &sealed).unwrap(), b"x");
        assert_eq!(old.open(b"a", &new.seal(b"a", b"x").unwrap()), Err(SealError::UnknownKey));
    }

    #[test]
    fn a_key_file_is_created_once_private_and_then_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let sealed = Keyring::load_or_create(&path).unwrap().seal(b"a", b"x").unwrap();
        assert_eq!(Keyring::load_or_create(&path).unwrap().open(b"a", &sealed).unwrap(), b"x");
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).unwrap());
            assert_eq!(mode & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn whoever_creates_the_file_at_once_gets_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let rings: Vec<_> = std::thread::scope(|scope| {
            let made: Vec<_> =
                (0..8).map(|_| scope.spawn(|| Keyring::load_or_create(&path).unwrap())).collect();
            made.into_iter().map(|made| made.join().unwrap()).collect()
        });
        let sealed = rings[0].seal(b"", b"x").unwrap();
        assert!(rings.iter().all(|ring| ring.open(b"", &sealed).is_ok()));
    }

    #[test]
    fn a_file_of_something_else_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        for text in [
            "",
            "hello",
            FILE_HEADER,
            &format!("{FILE_HEADER}\nabc\n"),
            &format!("{FILE_HEADER}\n{}\n", "é".repeat(32)),
        ] {
            fs::write(&path, text).unwrap();
            assert!(matches!(Keyring::load_or_create(&path), Err(KeyFileError::Malformed(_))), "{text:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn debug_shows_nothing() {
        let ring = Keyring::new(&[7; 32], &[]).unwrap();
        assert_eq!(format!("{ring:?} {:?}", Sealed(vec![1; 9])), "Keyring(…) Sealed(9 bytes)");
    }
}
