//! What Kubernetes allows as a label's key and value.
//!
//! [`super::Requirement`] asks before it keeps either. This module knows the
//! grammar of labels and nothing of selectors.

/// Why a text cannot be a label's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// Two slashes or more.
    #[error("it has more than one slash")]
    Slashes,
    /// Nothing before the slash.
    #[error("its prefix is empty")]
    EmptyPrefix,
    /// Too many bytes before the slash.
    #[error("its prefix is longer than {MAX_PREFIX_BYTES} characters")]
    LongPrefix,
    /// A prefix that is no DNS name.
    #[error("its prefix is not a lower-case DNS name")]
    Prefix,
    /// Nothing, or nothing after the slash.
    #[error("its name is empty")]
    EmptyName,
    /// A bad name, which follows the rules of a value.
    #[error(transparent)]
    Name(BadValue),
}

/// Why a text cannot be a label's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    /// Too many characters.
    #[error("it is longer than {MAX_NAME_BYTES} characters")]
    Long,
    /// A character outside `A-Za-z0-9-_.`.
    #[error("it contains {0:?}, and only ASCII letters, digits, '-', '_' and '.' are allowed")]
    Character(char),
    /// Another first or last character than a letter or digit.
    #[error("it must begin and end with a letter or digit")]
    Edge,
}

/// Checks a key: a name with an optional DNS prefix before a slash.
pub(super) fn check_key(key: &str) -> Result<(), BadKey> {
    let name = match key.split_once('/') {
        Some((_, name)) if name.contains('/') => return Err(BadKey::Slashes),
        Some((prefix, name)) => {
            check_prefix(prefix)?;
            name
        }
        None => key,
    };
    if name.is_empty() {
        return Err(BadKey::EmptyName);
    }
    check_value(name).map_err(BadKey::Name)
}

/// Checks a value, which may be empty.
pub(super) fn check_value(value: &str) -> Result<(), BadValue> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if let Some(other) = value.chars().find(|c| !allowed(*c)) {
        return Err(BadValue::Character(other));
    }
    if value.len() > MAX_NAME_BYTES {
        return Err(BadValue::Long);
    }
    let edge = |c: char| !c.is_ascii_alphanumeric();
    if value.starts_with(edge) || value.ends_with(edge) {
        return Err(BadValue::Edge);
    }
    Ok(())
}

fn check_prefix(prefix: &str) -> Result<(), BadKey> {
    if prefix.is_empty() {
        return Err(BadKey::EmptyPrefix);
    }
    if prefix.len() > MAX_PREFIX_BYTES {
        return Err(BadKey::LongPrefix);
    }
    if prefix.split('.').all(is_dns_label) { Ok(()) } else { Err(BadKey::Prefix) }
}

fn is_dns_label(label: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let (Some(&first), Some(&last)) = (label.as_bytes().first(), label.as_bytes().last()) else {
        return false;
    };
    alphanumeric(first) && alphanumeric(last) && label.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
}

/// The longest name and the longest value.
const MAX_NAME_BYTES: usize = 63;
/// The longest prefix, without its slash.
const MAX_PREFIX_BYTES: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_of_a_key_has_its_own_reason() {
        assert_eq!(check_key("example.com/gpu.product_x-1"), Ok(()));
        assert_eq!(check_key(""), Err(BadKey::EmptyName));
        assert_eq!(check_key("example.com/"), Err(BadKey::EmptyName));
        assert_eq!(check_key("/x"), Err(BadKey::EmptyPrefix));
        assert_eq!(check_key("a/b/c"), Err(BadKey::Slashes));
        for prefix in ["Example.com", "ex_ample.com", "a..b", ".a", "a.", "-a", "a-"] {
            assert_eq!(check_key(&format!("{prefix}/x")), Err(BadKey::Prefix), "{prefix}");
        }
        assert_eq!(check_key(&format!("{}/x", "a".repeat(254))), Err(BadKey::LongPrefix));
        assert_eq!(check_key("pool."), Err(BadKey::Name(BadValue::Edge)));
        assert_eq!(check_key("po ol"), Err(BadKey::Name(BadValue::Character(' '))));
    }

    #[test]
    fn a_value_may_be_empty_and_63_long() {
        assert_eq!(check_value(""), Ok(()));
        assert_eq!(check_value(&"v".repeat(63)), Ok(()));
        assert_eq!(check_value(&"v".repeat(64)), Err(BadValue::Long));
        assert_eq!(check_value("-a"), Err(BadValue::Edge));
        assert_eq!(check_value("a_"), Err(BadValue::Edge));
    }
}
