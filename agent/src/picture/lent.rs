//! Which nodes are lent: those the selector of the agent's own command line
//! names. A selector that cannot be read lends nothing; it never lends
//! everything.

use std::collections::BTreeMap;

use crate::selector::{BadSelector, Selector};

/// The nodes an owner lends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lent {
    /// Those that match; all of them without requirements.
    Matching(Selector),
    /// None, because what was said cannot be read.
    Nothing(BadSelector),
}

impl Lent {
    /// Reads the items of a selector.
    pub fn read<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> Self {
        match Selector::parse(items) {
            Ok(selector) => Self::Matching(selector),
            Err(bad) => Self::Nothing(bad),
        }
    }

    /// Whether a node with these labels is lent.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Matching(selector) => selector.matches(labels),
            Self::Nothing(_) => false,
        }
    }

    /// What keeps every node from being lent.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Matching(_) => None,
            Self::Nothing(bad) => Some(format!("no node is lent: the selector is refused: {bad}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_selector_lends_nothing_and_an_absent_one_everything() {
        let labels = BTreeMap::from([("pool".to_owned(), "a".to_owned())]);
        assert!(Lent::read::<&str>([]).matches(&labels));
        for items in [vec!["pool in (a)"], vec!["pool=a", "!gpu"], vec![""], vec!["pool=in (a", "b)"]] {
            let lent = Lent::read(&items);
            assert!(!lent.matches(&labels), "{items:?}");
            assert!(lent.problem().unwrap().contains("no node is lent"), "{items:?}");
        }
    }
}
