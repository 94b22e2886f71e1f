//! Which nodes a cluster lends: a selector of label requirements, in the
//! three forms `key=value`, `key=in (a,b)` and `key`.
//!
//! The join command parses what was typed, the agent parses its arguments and
//! asks which nodes match. One bad item refuses the whole selector: it never
//! falls back to fewer requirements, which would lend nodes nobody meant to
//! lend. On the wire a selector is its list of (key, operator, values).

mod label;

use std::collections::BTreeMap;
use std::fmt;

pub use label::{BadKey, BadValue};

/// Requirements that must all hold; without any, every node matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// One requirement on a node's labels, valid since it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

/// How a requirement compares, named as in Kubernetes node affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// The label's value is one of the values; `key=value` lists just one.
    In,
    /// The label is there, with any value.
    Exists,
}

/// Why a selector is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSelector {
    /// Nothing but white space.
    #[error("a selector item is empty; leave it out to lend every node")]
    Empty,
    /// Another form, perhaps one that `kubectl -l` knows.
    #[error("{0:?} is none of the three forms; write key=value, key=in (a,b) or key")]
    Form(String),
    /// A comma that does not stand between values.
    #[error("{0:?} has a comma outside parentheses; write one item for each label, or key=in (a,b)")]
    Comma(String),
    /// Parentheses that do not enclose one plain list at the end.
    #[error("{item:?} {problem}; write key=in (a,b)")]
    List {
        /// The item.
        item: String,
        /// What is wrong with its list.
        problem: BadList,
    },
    /// A list after something other than `in`.
    #[error("{item:?} has the unknown operator {operator:?}; only key=in (a,b) takes a list")]
    Operator {
        /// The item.
        item: String,
        /// What stands before the list.
        operator: String,
    },
    /// A key that no label can have.
    #[error("{key:?} cannot be a label's key: {problem}; write it as the node carries it")]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: BadKey,
    },
    /// A value that no label can have.
    #[error("{value:?} cannot be a value of {key:?}: {problem}; write it as the node carries it")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What is wrong with it.
        problem: BadValue,
    },
    /// `In` without values, or `Exists` with some.
    #[error("{key:?} has {count} values; In takes at least one and Exists none")]
    Count {
        /// The key.
        key: String,
        /// The number of values.
        count: usize,
    },
}

/// What is wrong with the list of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadList {
    /// It does not end.
    #[error("has a parenthesis that is not closed")]
    Open,
    /// It holds another parenthesis.
    #[error("has a parenthesis inside its list")]
    Nested,
    /// Something follows it.
    #[error("goes on after its list")]
    Trailing,
}

impl Selector {
    /// Reads a selector, one text for each time the option was given.
    ///
    /// # Errors
    /// With the first item that is refused.
    pub fn parse<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> Result<Self, BadSelector> {
        items.into_iter().map(|item| Requirement::parse(item.as_ref())).collect()
    }

    /// The requirements, in the order they were given.
    #[must_use]
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether every requirement holds for these labels.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }
}

impl FromIterator<Requirement> for Selector {
    fn from_iter<I: IntoIterator<Item = Requirement>>(requirements: I) -> Self {
        Self { requirements: requirements.into_iter().collect() }
    }
}

impl Requirement {
    /// A requirement from its parts, as they come off the wire. Values are
    /// kept sorted, each once.
    ///
    /// # Errors
    /// When no label can have this key or one of the values, or the number of
    /// values does not suit the operator.
    pub fn new(key: &str, operator: Operator, values: &[&str]) -> Result<Self, BadSelector> {
        label::check_key(key).map_err(|problem| BadSelector::Key { key: key.to_owned(), problem })?;
        if values.is_empty() != (operator == Operator::Exists) {
            return Err(BadSelector::Count { key: key.to_owned(), count: values.len() });
        }
        for value in values {
            label::check_value(value).map_err(|problem| BadSelector::Value {
                key: key.to_owned(),
                value: (*value).to_owned(),
                problem,
            })?;
        }
        let mut values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        values.sort_unstable();
        values.dedup();
        Ok(Self { key: key.to_owned(), operator, values })
    }

    /// The label's key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How the label is compared.
    #[must_use]
    pub const fn operator(&self) -> Operator {
        self.operator
    }

    /// The values it may have: at least one for `In`, none for `Exists`.
    #[must_use]
    pub fn values(&self) -> &[String] {
        &self.values
    }

    fn parse(item: &str) -> Result<Self, BadSelector> {
        let text = trim(item);
        if text.is_empty() {
            return Err(BadSelector::Empty);
        }
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (trim(key), Some(trim(value))),
            None => (text, None),
        };
        // What `kubectl -l` reads as another form is told apart from a bad key.
        if key.contains(['!', '<', '>', '(', ')']) {
            return Err(BadSelector::Form(item.to_owned()));
        }
        if key.contains(',') {
            return Err(BadSelector::Comma(item.to_owned()));
        }
        if value.is_none() && key.contains(is_space) {
            return Err(BadSelector::Form(item.to_owned()));
        }
        match value {
            None => Self::new(key, Operator::Exists, &[]),
            Some(value) => Self::new(key, Operator::In, &values_of(item, value)?),
        }
    }

    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        match self.operator {
            Operator::Exists => labels.contains_key(&self.key),
            Operator::In => labels.get(&self.key).is_some_and(|value| self.values.contains(value)),
        }
    }
}

/// The form that reads back as the same requirement.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match (self.operator, self.values.as_slice()) {
            (Operator::Exists, _) => write!(f, "{key}"),
            (Operator::In, [value]) => write!(f, "{key}={value}"),
            (Operator::In, values) => write!(f, "{key}=in ({})", values.join(",")),
        }
    }
}

/// The values after the equals sign of an item: one, or those of `in (…)`.
fn values_of<'a>(item: &str, text: &'a str) -> Result<Vec<&'a str>, BadSelector> {
    if text.starts_with('=') {
        return Err(BadSelector::Form(item.to_owned()));
    }
    let Some((word, list)) = text.split_once('(') else {
        return if text.contains(',') { Err(BadSelector::Comma(item.to_owned())) } else { Ok(vec![text]) };
    };
    let word = trim(word);
    if word != "in" {
        return Err(BadSelector::Operator { item: item.to_owned(), operator: word.to_owned() });
    }
    let refuse = |problem| Err(BadSelector::List { item: item.to_owned(), problem });
    let Some((list, after)) = list.split_once(')') else {
        return refuse(BadList::Open);
    };
    if list.contains('(') {
        return refuse(BadList::Nested);
    }
    match trim(after).chars().next() {
        None => Ok(list.split(',').map(trim).collect()),
        Some(',') => Err(BadSelector::Comma(item.to_owned())),
        Some(_) => refuse(BadList::Trailing),
    }
}

/// White space as selectors know it; no other space is skipped.
const fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(item: &str) -> String {
        Selector::parse([item]).unwrap_err().to_string()
    }

    #[test]
    fn keeps_requirements_as_key_operator_values() {
        let selector = Selector::parse(["zone", "pool=in (b, a,b)", "empty="]).unwrap();
        let parts: Vec<_> =
            selector.requirements().iter().map(|r| (r.key(), r.operator(), r.values().join("|"))).collect();
        assert_eq!(
            parts,
            [
                ("zone", Operator::Exists, String::new()),
                ("pool", Operator::In, "a|b".to_owned()),
                ("empty", Operator::In, String::new()),
            ]
        );
        assert_eq!(selector.requirements()[2].values().len(), 1);
    }

    #[test]
    fn refusals_say_what_was_wrong_with_which_value() {
        assert_eq!(
            refusal("pool!=b"),
            r#""pool!=b" is none of the three forms; write key=value, key=in (a,b) or key"#
        );
        assert_eq!(
            refusal("pool=in (a,b"),
            r#""pool=in (a,b" has a parenthesis that is not closed; write key=in (a,b)"#
        );
        assert!(
            refusal("pool=a,gpu=b").contains("a comma outside parentheses; write one item for each label")
        );
        assert!(refusal("a,b").contains("a comma outside parentheses"));
        assert!(refusal("pool=in (a),gpu").contains("a comma outside parentheses"));
        assert!(refusal("pool=notin (a)").contains(r#"the unknown operator "notin""#));
        assert!(refusal("pool=in (a) b").contains("goes on after its list"));
        assert!(refusal("pool=in ((a))").contains("a parenthesis inside its list"));
        assert!(refusal("pool in (a,b)").contains("none of the three forms"));
        assert!(refusal("rank>=3").contains("none of the three forms"));
        assert!(refusal("x in (a=b)").contains("none of the three forms"));
        assert!(refusal("pöl=a").starts_with(r#""pöl" cannot be a label's key: it contains 'ö'"#));
        assert!(refusal("pool=a b").starts_with(r#""a b" cannot be a value of "pool": it contains ' '"#));
        assert!(refusal("\u{1b}[2J").starts_with(r#""\u{1b}[2J" cannot"#));
    }

    #[test]
    fn parts_off_the_wire_are_checked_like_text() {
        assert!(Requirement::new("pool", Operator::In, &["a", "b"]).is_ok());
        let count = |count| Err(BadSelector::Count { key: "pool".to_owned(), count });
        assert_eq!(Requirement::new("pool", Operator::In, &[]), count(0));
        assert_eq!(Requirement::new("pool", Operator::Exists, &["a"]), count(1));
        assert!(Requirement::new("pool ", Operator::Exists, &[]).is_err());
        assert!(Requirement::new("pool", Operator::In, &["a", "b "]).is_err());
    }
}
