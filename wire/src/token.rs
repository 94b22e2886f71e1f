//! Tokens as text: which kinds there are, how one looks, and a holder that
//! never shows its secret. Whether a token is good is the controlplane's to
//! say; this only tells a malformed one apart.

use std::fmt;

use rand::RngCore;

use crate::limits;

/// What a token lets its holder do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// Everything, in every workspace.
    Admin,
    /// Everything within one workspace.
    Workspace,
    /// What code in a container may do, for one container or none.
    WorkspaceRestricted,
    /// An agent of one cluster.
    Cluster,
    /// One worker.
    Worker,
    /// Becoming a worker, once.
    Enrolment,
    /// Joining a machine to a pool.
    MachineJoin,
}

impl TokenKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Admin,
        Self::Workspace,
        Self::WorkspaceRestricted,
        Self::Cluster,
        Self::Worker,
        Self::Enrolment,
        Self::MachineJoin,
    ];

    /// The word used in listings, options and the database.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Workspace => "workspace",
            Self::WorkspaceRestricted => "workspace_restricted",
            Self::Cluster => "cluster",
            Self::Worker => "worker",
            Self::Enrolment => "enrolment",
            Self::MachineJoin => "machine_join",
        }
    }

    /// The kind of a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// How a token of this kind begins.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Admin => "l9_admin_",
            Self::Workspace => "l9_ws_",
            Self::WorkspaceRestricted => "l9_wsr_",
            Self::Cluster => "l9_cluster_",
            Self::Worker => "l9_worker_",
            Self::Enrolment => "l9_enrol_",
            Self::MachineJoin => "l9_join_",
        }
    }
}

/// Text that must not be seen. `Debug` and `Display` show nothing of it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Takes the text in.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the place that sends or hashes it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "Secret(empty)" } else { "Secret(…)" })
    }
}

/// Why some text is not a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// There is none.
    #[error("the token is empty")]
    Empty,
    /// It does not look like one.
    #[error(
        "the token is malformed: a levers9 token starts with l9_ and has at least 64 letters, digits, '-' or '_'"
    )]
    Malformed,
}

/// How many random characters follow the prefix: 62^64 is beyond guessing.
const RANDOM_CHARACTERS: usize = 64;
const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// A fresh token of a kind.
#[must_use]
pub fn generate(kind: TokenKind, rng: &mut dyn RngCore) -> Secret {
    let mut text = String::with_capacity(kind.prefix().len() + RANDOM_CHARACTERS);
    text.push_str(kind.prefix());
    while text.len() < kind.prefix().len() + RANDOM_CHARACTERS {
        let mut byte = [0u8; 1];
        rng.fill_bytes(&mut byte);
        // 248 is four times 62: bytes above would favour the first letters.
        if byte[0] < 248 {
            text.push(char::from(ALPHABET[usize::from(byte[0]) % ALPHABET.len()]));
        }
    }
    Secret(text)
}

/// The kind a token says it has, when it looks like a token at all.
///
/// # Errors
/// When it is empty or malformed. The error never quotes it.
pub fn kind_of(token: &str) -> Result<TokenKind, BadToken> {
    if token.is_empty() {
        return Err(BadToken::Empty);
    }
    if token.len() > limits::TOKEN {
        return Err(BadToken::Malformed);
    }
    TokenKind::ALL
        .into_iter()
        .find(|kind| {
            token.strip_prefix(kind.prefix()).is_some_and(|rest| {
                rest.len() >= RANDOM_CHARACTERS
                    && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            })
        })
        .ok_or(BadToken::Malformed)
}

/// First six and last four characters, to tell tokens apart in a list.
#[must_use]
pub fn hint(token: &Secret) -> String {
    let text = token.expose();
    match (text.get(..6), text.len().checked_sub(4).and_then(|from| text.get(from..))) {
        (Some(head), Some(tail)) => format!("{head}…{tail}"),
        _ => "…".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn every_kind_is_readable_from_its_own_tokens() {
        let mut rng = rand::rngs::StdRng::seed_from_u64(1);
        for kind in TokenKind::ALL {
            let token = generate(kind, &mut rng);
            assert_eq!(kind_of(token.expose()), Ok(kind));
            assert!(token.expose().len() >= 64);
            assert_eq!(TokenKind::from_word(kind.word()), Some(kind));
        }
    }

    #[test]
    fn malformed_tokens_are_told_apart_and_never_quoted() {
        assert_eq!(kind_of(""), Err(BadToken::Empty));
        let bad = "l9_admin_short";
        let error = kind_of(bad).unwrap_err().to_string();
        assert!(!error.contains("short"));
        assert_eq!(kind_of(&format!("l9_ws_{}", "é".repeat(40))), Err(BadToken::Malformed));
        assert_eq!(kind_of(&"a".repeat(10_000)), Err(BadToken::Malformed));
    }

    #[test]
    fn a_secret_shows_nothing() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }
}
