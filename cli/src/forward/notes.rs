//! What was said lately, so that a hundred connections that fail for one
//! reason say it once.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How long a line is not said again.
const QUIET: Duration = Duration::from_secs(60);
/// How many different lines are remembered.
const REMEMBERED: usize = 32;

/// The lines said last, oldest first.
#[derive(Debug, Default)]
pub(super) struct Notes(VecDeque<(String, Instant)>);

impl Notes {
    /// Whether a line is to be said now.
    pub(super) fn is_new(&mut self, text: &str, now: Instant) -> bool {
        self.0.retain(|(_, said)| now.duration_since(*said) < QUIET);
        if self.0.iter().any(|(known, _)| known == text) {
            return false;
        }
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back((text.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_said_once_in_a_while_and_others_beside_it() {
        let (mut notes, start) = (Notes::default(), Instant::now());
        assert!(notes.is_new("a", start));
        assert!(!notes.is_new("a", start + QUIET / 2));
        assert!(notes.is_new("b", start + QUIET / 2));
        assert!(notes.is_new("a", start + QUIET));
        for n in 0..1000 {
            assert!(notes.is_new(&n.to_string(), start + QUIET));
        }
        assert!(notes.0.len() <= REMEMBERED);
    }
}
