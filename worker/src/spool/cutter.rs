//! Cuts one stream of output into pieces, once and for ever: a line, or a
//! part of one that is too long or has waited too long for its end. Pure: it
//! is told the time. Bytes are bytes; nothing here looks for text.

use std::time::Duration;

use levers9_wire::limits;
use tokio::time::Instant;

/// How long output without a newline waits for more, so that prompts and
/// progress bars show.
pub const PARTIAL_WAIT: Duration = Duration::from_millis(100);
/// A buffer that grew beyond this is given back once it is empty, in bytes.
const KEEP: usize = 64 * 1024;

/// The cutter of one stream.
#[derive(Debug, Default)]
pub struct Cutter {
    partial: Vec<u8>,
    /// When the oldest byte of `partial` came.
    since: Option<Instant>,
}

impl Cutter {
    /// Takes bytes and gives each finished piece to `emit`, in order: at most
    /// [`limits::LOG_PIECE`] bytes, a newline only at its end.
    pub fn push(&mut self, mut bytes: &[u8], now: Instant, mut emit: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            let room = limits::LOG_PIECE - self.partial.len();
            let window = &bytes[..bytes.len().min(room)];
            let newline = window.iter().position(|byte| *byte == b'\n');
            let taken = newline.map_or(window.len(), |at| at + 1);
            let (head, rest) = bytes.split_at(taken);
            bytes = rest;
            if newline.is_none() && taken < room {
                self.since.get_or_insert(now);
                self.partial.extend_from_slice(head);
            } else if self.partial.is_empty() {
                emit(head);
            } else {
                self.partial.extend_from_slice(head);
                self.flush(&mut emit);
            }
        }
    }

    /// When what has no newline yet is to be flushed.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + PARTIAL_WAIT)
    }

    /// Gives what there is to `emit`: at the deadline and at the end.
    pub fn flush(&mut self, mut emit: impl FnMut(&[u8])) {
        self.since = None;
        if !self.partial.is_empty() {
            emit(&self.partial);
            self.partial.clear();
            if self.partial.capacity() > KEEP {
                self.partial = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(cutter: &mut Cutter, bytes: &[u8], now: Instant) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        cutter.push(bytes, now, |piece| pieces.push(piece.to_vec()));
        pieces
    }

    #[test]
    fn a_line_is_cut_once_however_it_arrives() {
        let (mut cutter, now) = (Cutter::default(), Instant::now());
        assert_eq!(cut(&mut cutter, b"one\ntw", now), [b"one\n"]);
        assert_eq!(cutter.deadline(), Some(now + PARTIAL_WAIT));
        assert_eq!(cut(&mut cutter, b"o\n\n", now), [&b"two\n"[..], b"\n"]);
        assert_eq!(cutter.deadline(), None);
    }

    #[test]
    fn the_wait_counts_from_the_oldest_byte() {
        let (mut cutter, start) = (Cutter::default(), Instant::now());
        assert!(cut(&mut cutter, b"name? ", start).is_empty());
        assert!(cut(&mut cutter, b"more", start + Duration::from_millis(60)).is_empty());
        assert_eq!(cutter.deadline(), Some(start + PARTIAL_WAIT));
        let mut pieces = Vec::new();
        cutter.flush(|piece| pieces.push(piece.to_vec()));
        cutter.flush(|piece| pieces.push(piece.to_vec()));
        assert_eq!(pieces, [b"name? more"]);
        assert_eq!(cutter.deadline(), None);
    }

    #[test]
    fn a_long_line_becomes_pieces_and_the_buffer_is_given_back() {
        let (mut cutter, now) = (Cutter::default(), Instant::now());
        let mut line = vec![b'a'; 2 * limits::LOG_PIECE + 5];
        line.push(b'\n');
        let lengths: Vec<usize> = cut(&mut cutter, &line, now).iter().map(Vec::len).collect();
        assert_eq!(lengths, [limits::LOG_PIECE, limits::LOG_PIECE, 6]);
        for chunk in line.chunks(1000) {
            cut(&mut cutter, chunk, now);
        }
        assert_eq!(cutter.partial.capacity(), 0);
    }

    proptest! {
        #[test]
        fn pieces_joined_are_the_output(
            chunks in proptest::collection::vec((proptest::collection::vec(0u8..14, 0..40), any::<bool>()), 0..40)
        ) {
            let (mut cutter, now) = (Cutter::default(), Instant::now());
            let (mut sent, mut pieces) = (Vec::new(), Vec::<Vec<u8>>::new());
            for (chunk, flush) in chunks {
                sent.extend_from_slice(&chunk);
                cutter.push(&chunk, now, |piece| pieces.push(piece.to_vec()));
                if flush {
                    cutter.flush(|piece| pieces.push(piece.to_vec()));
                }
                prop_assert_eq!(cutter.deadline().is_some(), !cutter.partial.is_empty());
            }
            cutter.flush(|piece| pieces.push(piece.to_vec()));
            for piece in &pieces {
                prop_assert!(!piece.is_empty());
                prop_assert!(!piece[..piece.len() - 1].contains(&b'\n'));
            }
            prop_assert_eq!(pieces.concat(), sent);
        }
    }
}
