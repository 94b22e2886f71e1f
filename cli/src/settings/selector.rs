//! Selectors as they are typed: read item by item, and of one that is refused,
//! the character to look at.

use levers9_agent::selector::{BadKey, BadList, BadSelector, BadValue, Operator, Selector};
use levers9_wire::v1;

use crate::error::Error;

/// Reads the items of `--selector`.
pub(super) fn parse(items: &[String]) -> Result<Selector, Error> {
    for item in items {
        if let Err(problem) = Selector::parse([item]) {
            let at = place(item, &problem);
            return Err(Error::usage("--selector").because(problem).pointing_at(item, at));
        }
    }
    Selector::parse(items).map_err(|problem| Error::usage("--selector").because(problem))
}

/// A selector as it goes over the wire.
pub(super) fn to_wire(selector: &Selector) -> Vec<v1::LabelRequirement> {
    let item = |item: &levers9_agent::selector::Requirement| v1::LabelRequirement {
        key: item.key().to_owned(),
        operator: match item.operator() {
            Operator::In => "In",
            Operator::Exists => "Exists",
        }
        .to_owned(),
        values: item.values().to_vec(),
    };
    selector.requirements().iter().map(item).collect()
}

/// Which character of an item a refusal is about, from 0.
fn place(item: &str, problem: &BadSelector) -> usize {
    let at = byte(item, problem).min(item.len());
    item.get(..at).unwrap_or_default().chars().count()
}

fn byte(item: &str, problem: &BadSelector) -> usize {
    let key_end = item.find('=').unwrap_or(item.len());
    let start = item.len() - item.trim_start().len();
    match problem {
        BadSelector::Form(_) => form(item, start, key_end),
        BadSelector::Comma(_) => {
            let outside = |(at, c): &(usize, char)| *c == ',' && depth(&item[..*at]) <= 0;
            item.char_indices().find(outside).map_or(start, |(at, _)| at)
        }
        BadSelector::List { problem, .. } => list(item, *problem),
        BadSelector::Operator { operator, .. } => after(item, key_end, operator),
        BadSelector::Key { key, problem } => {
            let offset = match problem {
                BadKey::Name(problem) => {
                    let name = key.rfind('/').map_or(0, |at| at + 1);
                    name + within(&key[name..], problem)
                }
                BadKey::Slashes => key.rfind('/').unwrap_or_default(),
                BadKey::EmptyName => key.len(),
                _ => 0,
            };
            start + offset
        }
        BadSelector::Value { value, problem, .. } => after(item, key_end, value) + within(value, problem),
        _ => start,
    }
}

/// Of an item in another form, what first stands where it should not.
fn form(item: &str, start: usize, key_end: usize) -> usize {
    let key = &item[..key_end];
    let sign = key.find(['!', '<', '>', '(', ')']);
    let inner = key.trim_end();
    let gap = inner[start.min(inner.len())..].find(char::is_whitespace).map(|at| start + at);
    // Of an operator in words the gap before it is meant, of one in signs the sign.
    let words = |gap: &usize| sign.is_none_or(|sign| !key[*gap..sign.max(*gap)].trim().is_empty());
    if let Some(at) = gap.filter(words).or(sign) {
        return at;
    }
    if item[key_end..].starts_with("==") { key_end + 1 } else { start }
}

fn list(item: &str, problem: BadList) -> usize {
    let open = item.find('(').unwrap_or_default();
    let close = item.find(')').unwrap_or(item.len());
    match problem {
        BadList::Open => open,
        BadList::Nested => item[open + 1..].find('(').map_or(open, |at| open + 1 + at),
        BadList::Trailing => {
            let rest = &item[(close + 1).min(item.len())..];
            item.len() - rest.trim_start().len()
        }
    }
}

/// Where a text first stands behind the equals sign, as a whole word of the
/// list it may be in.
fn after(item: &str, key_end: usize, text: &str) -> usize {
    let from = (key_end + 1).min(item.len());
    let whole = |at: usize| {
        let edge = |c: Option<char>| c.is_none_or(|c| c.is_whitespace() || "=(),".contains(c));
        edge(item[..at].chars().next_back()) && edge(item[at + text.len()..].chars().next())
    };
    let found = item[from..].match_indices(text).map(|(at, _)| from + at);
    found.into_iter().find(|at| whole(*at)).unwrap_or(from)
}

/// Where in a label's value, or name, the trouble is.
fn within(value: &str, problem: &BadValue) -> usize {
    let alphanumeric = |c: char| c.is_ascii_alphanumeric();
    match problem {
        BadValue::Character(c) => value.find(*c).unwrap_or_default(),
        BadValue::Long => value.char_indices().nth(63).map_or(value.len(), |(at, _)| at),
        BadValue::Edge if value.starts_with(|c| !alphanumeric(c)) => 0,
        BadValue::Edge => value.char_indices().next_back().map_or(0, |(at, _)| at),
    }
}

/// How many parentheses are open after a text.
fn depth(text: &str) -> i32 {
    text.chars().fold(0, |depth, c| match c {
        '(' => depth + 1,
        ')' => depth - 1,
        _ => depth,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks where an item is refused.
    fn marked(item: &str) -> String {
        let error = parse(&["good".to_owned(), item.to_owned()]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let (text, at) = error.pointer().unwrap();
        assert_eq!(text, item);
        let byte = item.char_indices().nth(at).map_or(item.len(), |(byte, _)| byte);
        format!("{}^{}", &item[..byte], &item[byte..])
    }

    #[test]
    fn each_refusal_points_at_its_character() {
        for expected in [
            "^",
            "pool^!=b",
            "^!pool",
            "rank^>=3",
            "pool^ in (a,b)",
            "pool ^(a,b)",
            "rank ^> 3",
            "pool=^=b",
            "pool=a^,gpu=b",
            "a^,b",
            "pool=in (a)^,gpu",
            "pool=in ^(a,b",
            "pool=in (^(a))",
            "pool=in (a) ^b",
            "pool=^notin (a)",
            "p^öl=a",
            "pool=a^ b",
            "pool=in (a, ^-b)",
            "pool=in (ab,a^!)",
            "a/b^/c=d",
            "example.com/^",
            "^Example.com/x",
            "^/x",
            "pool^.",
            "a=a^_",
            "^=b",
        ] {
            assert_eq!(marked(&expected.replacen('^', "", 1)), expected);
        }
        let long = format!("a={}", "x".repeat(64));
        assert_eq!(parse(std::slice::from_ref(&long)).unwrap_err().pointer(), Some((long.as_str(), 65)));
    }

    #[test]
    fn no_item_makes_it_point_outside_or_panic() {
        let parts = ["", "a", "=", "(", ")", ",", " ", "in ", "é", "/", "!", "\t", "-", "."];
        for (one, two) in parts.iter().flat_map(|one| parts.iter().map(move |two| (one, two))) {
            for (three, four) in parts.iter().flat_map(|three| parts.iter().map(move |four| (three, four))) {
                let item = format!("{one}{two}{three}{four}");
                if let Err(error) = parse(std::slice::from_ref(&item)) {
                    let at = error.pointer().unwrap().1;
                    assert!(at <= item.chars().count(), "{item:?}: {at}");
                }
            }
        }
    }

    #[test]
    fn a_selector_goes_over_the_wire_in_three_parts() {
        let selector = parse(&["gpu".to_owned(), "pool=in (b,a)".to_owned()]).unwrap();
        let parts: Vec<_> = to_wire(&selector)
            .into_iter()
            .map(|item| (item.key, item.operator, item.values.join(",")))
            .collect();
        let owned = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(parts, [owned("gpu", "Exists", ""), owned("pool", "In", "a,b")]);
    }
}
