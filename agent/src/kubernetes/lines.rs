//! The lines of a watch: one event each, of a bounded length. Pure; bytes
//! are fed in as they come.

use bytes::{Buf as _, Bytes, BytesMut};

/// The longest event, in bytes: several times what etcd stores of an object.
pub(super) const LONGEST: usize = 8 << 20;

/// A line is longer than allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Bytes on their way to be lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    held: BytesMut,
    /// How much of it was searched for an end.
    searched: usize,
}

impl Lines {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next line that says something.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        loop {
            let Some(end) = self.held[self.searched..].iter().position(|b| *b == b'\n') else {
                self.searched = self.held.len();
                return if self.held.len() > LONGEST { Err(TooLong) } else { Ok(None) };
            };
            let line = self.held.split_to(self.searched + end).freeze();
            self.held.advance(1);
            self.searched = 0;
            if line.len() > LONGEST {
                return Err(TooLong);
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    /// Whether nothing is left over of a line.
    pub(super) fn is_empty(&self) -> bool {
        self.held.iter().all(u8::is_ascii_whitespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_are_cut(
            lines in prop::collection::vec("[a-z ]{0,9}", 0..9), cuts in prop::collection::vec(1..7_usize, 0..40)
        ) {
            let text = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect::<String>();
            let mut rest = text.as_bytes();
            let mut cut = cuts.into_iter();
            let (mut reader, mut read) = (Lines::default(), Vec::new());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(cut.next().unwrap_or(rest.len()).min(rest.len()));
                reader.feed(now);
                rest = later;
                while let Some(line) = reader.next().unwrap() {
                    read.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            let said: Vec<String> = lines.into_iter().filter(|line| !line.trim().is_empty()).collect();
            prop_assert_eq!(read, said);
            prop_assert!(reader.is_empty());
        }
    }

    #[test]
    fn a_line_without_an_end_is_given_up() {
        let mut lines = Lines::default();
        lines.feed(&vec![b'x'; LONGEST]);
        assert_eq!(lines.next(), Ok(None));
        assert!(!lines.is_empty());
        lines.feed(b"xx");
        assert_eq!(lines.next(), Err(TooLong));
    }
}
