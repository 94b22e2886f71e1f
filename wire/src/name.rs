//! Names people give to workspaces, tasks, pools and contexts, and text from
//! elsewhere that reaches a terminal. A name is a label beside an id; it is
//! never what something is identified by, so nothing here derives one name
//! from another: what does not fit the rule is refused with the rule.

use crate::limits;

/// Why a name is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} name {name:?} is refused: use 1 to {max} of the characters a-z, 0-9 and '-', starting with a letter and not ending in '-'",
    max = limits::NAME
)]
pub struct BadName {
    what: &'static str,
    name: String,
}

/// Checks a name that must also be good as a DNS label: of a workspace, pool
/// or context.
///
/// # Errors
/// When it is anything else; the error quotes the name and the rule.
pub fn label<'a>(what: &'static str, name: &'a str) -> Result<&'a str, BadName> {
    let good = (1..=limits::NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.as_bytes()[0].is_ascii_lowercase()
        && !name.ends_with('-');
    if good { Ok(name) } else { Err(BadName { what, name: printable(name, 80) }) }
}

/// Makes text from elsewhere safe for one line of a terminal: control
/// characters and those that change the direction of text are escaped, and
/// what is longer than `max` characters is cut with an ellipsis.
#[must_use]
pub fn printable(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max + 4));
    for (count, c) in text.chars().enumerate() {
        if count == max {
            out.push('…');
            break;
        }
        if c.is_control() || is_direction(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

fn is_direction(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_labels_and_refuses_everything_that_would_have_to_be_changed() {
        let long = "a".repeat(64);
        assert!(label("workspace", "team-7").is_ok());
        for bad in ["", "-a", "a-", "A", "a/b", "Café", "Cafe\u{301}", "🚀", "研究", "7up", long.as_str()]
        {
            assert!(label("workspace", bad).is_err(), "{bad:?} passed");
        }
    }

    #[test]
    fn escapes_what_would_move_the_cursor_or_turn_the_text() {
        assert_eq!(printable("a\u{1b}[2Jb\u{202e}c", 80), "a\\u{1b}[2Jb\\u{202e}c");
        assert_eq!(printable("abcdef", 3), "abc…");
    }
}
