//! The keys a configuration file may hold, and what somebody may have meant
//! who wrote another. [`super::section`] asks; nothing here reads a value.

/// Every section by its path, with the keys in it. The first is the file itself.
const SECTIONS: [(&str, &[&str]); 9] = [
    (
        "",
        &[
            "certificate",
            "containerUrl",
            "controlplane",
            "data",
            "database",
            "databasePool",
            "drain",
            "encryptionKey",
            "grpc",
            "http",
            "insecureListen",
            "logs",
            "names",
            "previousEncryptionKeys",
            "publicAddress",
            "quic",
            "tcp",
            "transport",
            "worker",
        ],
    ),
    ("certificate", &["certFile", "keyFile"]),
    ("controlplane", &["auth"]),
    ("controlplane.auth", &["bootstrapSecret"]),
    ("logs", &["maxAge", "maxBytes"]),
    ("transport", &["congestion", "idleTimeout", "mtu"]),
    ("worker", &["attachedClusters", "image", "provisioningGuard"]),
    ("worker.attachedClusters", &["hostNetwork", "quotaPerWorkspace"]),
    ("worker.provisioningGuard", &["maxAddedPerMinute", "maxPending"]),
];

/// The full name of the key that the environment wins over.
pub(super) const BOOTSTRAP_SECRET: &str = "controlplane.auth.bootstrapSecret";

/// Another spelling that is read as well, because documents use it.
const OTHER_SPELLING: (&str, &str) = ("insecure_listen", "insecureListen");

/// The keys of a section.
pub(super) fn of_section(path: &str) -> &'static [&'static str] {
    SECTIONS.iter().find(|(section, _)| *section == path).map_or(&[], |(_, keys)| keys)
}

/// The key that `written` is, in the section at `path`.
pub(super) fn known(path: &str, written: &str) -> Option<&'static str> {
    let written = if path.is_empty() && written == OTHER_SPELLING.0 { OTHER_SPELLING.1 } else { written };
    of_section(path).iter().find(|key| **key == written).copied()
}

/// The full name of a key.
pub(super) fn full(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// What somebody meant who wrote `written` in the section at `path`: a key there
/// that is spelt nearly so, or one of this name elsewhere.
pub(super) fn meant(path: &str, written: &str) -> Option<String> {
    let wanted = bare(written);
    let near = of_section(path)
        .iter()
        .map(|key| (distance(&wanted, &bare(key)), *key))
        .filter(|(distance, key)| *distance <= 2 && 2 * distance < key.len())
        .min();
    let elsewhere = || {
        SECTIONS.iter().find_map(|(section, keys)| {
            keys.iter().find(|key| bare(key) == wanted).map(|key| full(section, key))
        })
    };
    near.map(|(_, key)| key.to_owned()).or_else(elsewhere)
}

/// A key without what people get wrong first: case, and what joins words.
fn bare(key: &str) -> Vec<char> {
    let joins = |c: &char| !matches!(c, '_' | '-');
    key.chars().take(64).filter(joins).flat_map(char::to_lowercase).collect()
}

/// How many letters to add, drop or change to get from one to the other.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let change = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_what_was_meant() {
        let meant = |path, written| meant(path, written).unwrap_or_default();
        assert_eq!(meant("", "htttp"), "http");
        assert_eq!(meant("", "public_address"), "publicAddress");
        assert_eq!(meant("", "bootstrapSecret"), "controlplane.auth.bootstrapSecret");
        assert_eq!(meant("transport", "idletimout"), "idleTimeout");
        assert_eq!(meant("", "redis"), "");
        assert_eq!(meant("transport", ""), "");
    }

    #[test]
    fn counts_edits() {
        let of = |a: &str, b: &str| distance(&bare(a), &bare(b));
        assert_eq!((of("", "abc"), of("abc", "abc"), of("kitten", "sitting")), (3, 0, 3));
    }
}
