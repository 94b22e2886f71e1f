//! Cuts one stream of output into pieces, once and for ever: a line, or a
//! part of one that is too long or has waited too long for its end. Pure: it
//! is told the time. Bytes are bytes, whatever they mean; only where a line is
//! cut short anyway, a character that is not complete yet goes with what follows.

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
            } else if newline.is_some() && self.partial.is_empty() {
                emit(head);
            } else {
                self.partial.extend_from_slice(head);
                let whole =
                    if newline.is_some() { self.partial.len() } else { whole_characters(&self.partial) };
                self.give(whole, &mut emit);
                self.since = (!self.partial.is_empty()).then_some(now);
            }
        }
    }

    /// When what has no newline yet is to be flushed.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + PARTIAL_WAIT)
    }

    /// At the deadline: gives what there is to `emit`, up to its last whole character.
    pub fn flush(&mut self, emit: &mut dyn FnMut(&[u8])) {
        self.since = None;
        self.give(whole_characters(&self.partial), emit);
    }

    /// At the end of the output: gives everything to `emit`.
    pub fn finish(&mut self, emit: &mut dyn FnMut(&[u8])) {
        self.since = None;
        self.give(self.partial.len(), emit);
    }

    fn give(&mut self, length: usize, emit: &mut dyn FnMut(&[u8])) {
        if length > 0 {
            emit(&self.partial[..length]);
            self.partial.drain(..length);
            if self.partial.capacity() > KEEP {
                self.partial.shrink_to_fit();
            }
        }
    }
}

/// How many of these bytes come before a UTF-8 character that only begins at
/// their end: all of them, or up to three fewer.
fn whole_characters(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let at = bytes.len() - back;
        let needs = match bytes[at] {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => return bytes.len(),
        };
        return if needs > back { at } else { bytes.len() };
    }
    bytes.len()
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
        cutter.flush(&mut |piece: &[u8]| pieces.push(piece.to_vec()));
        cutter.flush(&mut |piece: &[u8]| pieces.push(piece.to_vec()));
        assert_eq!(pieces, [b"name? more"]);
        assert_eq!(cutter.deadline(), None);
    }

    #[test]
    fn a_character_is_cut_only_by_the_end() {
        let (mut cutter, now) = (Cutter::default(), Instant::now());
        let mut pieces: Vec<Vec<u8>> = cut(&mut cutter, "né".as_bytes().split_at(2).0, now);
        cutter.flush(&mut |piece: &[u8]| pieces.push(piece.to_vec()));
        assert_eq!(pieces, [b"n"]);
        assert_eq!(cutter.deadline(), None, "half a character has no deadline of its own");
        pieces = cut(&mut cutter, &"é\n".as_bytes()[1..], now);
        assert_eq!(pieces, ["é\n".as_bytes()]);
        let mut line = vec![b'a'; limits::LOG_PIECE - 2];
        line.extend_from_slice("€\n".as_bytes());
        let lengths: Vec<usize> = cut(&mut cutter, &line, now).iter().map(Vec::len).collect();
        assert_eq!(lengths, [limits::LOG_PIECE - 2, 4]);
        cut(&mut cutter, &[0xf0, 0x9f], now);
        cutter.finish(&mut |piece: &[u8]| pieces.push(piece.to_vec()));
        assert_eq!(pieces.last().unwrap(), &[0xf0, 0x9f]);
        for (bytes, whole) in
            [(&b"a\xff"[..], 2), (b"\x80\x80\x80\x80", 4), (b"\xe2\x82", 0), (b"", 0), (b"\xc3\xa9", 2)]
        {
            assert_eq!(whole_characters(bytes), whole, "{bytes:?}");
        }
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
                    cutter.flush(&mut |piece: &[u8]| pieces.push(piece.to_vec()));
                }
                prop_assert!(cutter.deadline().is_none() || !cutter.partial.is_empty());
            }
            cutter.finish(&mut |piece: &[u8]| pieces.push(piece.to_vec()));
            for piece in &pieces {
                prop_assert!(!piece.is_empty());
                prop_assert!(!piece[..piece.len() - 1].contains(&b'\n'));
            }
            prop_assert_eq!(pieces.concat(), sent);
        }
    }
}
