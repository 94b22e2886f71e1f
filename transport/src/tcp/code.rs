//! What goes over a TCP carrier inside TLS: frames of a kind byte, one or two
//! varints, and for some of them bytes. Payload is handed on as it comes,
//! however it is cut on the way; nothing is allocated by what a length claims.
//! It knows what a frame is, not what it means.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use levers9_wire::frame::peek_length;
use prost::encoding::encode_varint;

/// The longest words with a close or a note, in bytes.
pub(super) const WORDS: usize = 512;

/// One frame. Ids are odd for streams the dialer opened, even for the acceptor's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// Some of a stream's payload; one frame may come in several of these.
    Data(u64, Bytes),
    /// The next stream of the sender.
    Open(u64),
    /// The payload of a stream ends here.
    End(u64),
    /// Everything of a stream up to its end has come.
    Got(u64),
    /// The sender gives its half up, with a code.
    Reset(u64, u64),
    /// The sender reads no more of it, with a code.
    Stop(u64, u64),
    /// The peer may send this many bytes more on a stream.
    Credit(u64, u64),
    /// The peer may open this many streams in all.
    Streams(u64),
    /// A ping.
    Ping(u64),
    /// Its answer.
    Pong(u64),
    /// The connection ends, with a code and words.
    Close(u64, String),
    /// Which kind of carrier the dialer made, and why.
    Note(u64, String),
}

/// Why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadBytes {
    #[error("a frame of an unknown kind {0}")]
    Kind(u8),
    #[error("a number of more than 64 bits")]
    Number,
    #[error("words of {0} bytes")]
    Words(u64),
    #[error("an empty frame")]
    Empty,
}

const DATA: u8 = 0;
const OPEN: u8 = 1;
const END: u8 = 2;
const GOT: u8 = 3;
const RESET: u8 = 4;
const STOP: u8 = 5;
const CREDIT: u8 = 6;
const STREAMS: u8 = 7;
const PING: u8 = 8;
const PONG: u8 = 9;
const CLOSE: u8 = 10;
const NOTE: u8 = 11;

/// Reads frames out of bytes.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The payload that is still to come, and whose.
    payload: Option<(u64, u64)>,
}

impl Decoder {
    /// The next frame, or `None` until more bytes have come.
    pub(super) fn next(&mut self, bytes: &mut BytesMut) -> Result<Option<Frame>, BadBytes> {
        if self.payload.is_none() {
            match self.head(bytes)? {
                Some(frame) => return Ok(Some(frame)),
                None if self.payload.is_none() => return Ok(None),
                None => {}
            }
        }
        let Some((id, left)) = self.payload.filter(|_| !bytes.is_empty()) else { return Ok(None) };
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left - here as u64;
        self.payload = (left > 0).then_some((id, left));
        Ok(Some(Frame::Data(id, bytes.split_to(here).freeze())))
    }

    /// A frame without payload, or the head of one with it.
    fn head(&mut self, bytes: &mut BytesMut) -> Result<Option<Frame>, BadBytes> {
        let Some(&kind) = bytes.first() else { return Ok(None) };
        if kind > NOTE {
            return Err(BadBytes::Kind(kind));
        }
        let mut used = 1;
        let mut number = || {
            let found = peek_length(&bytes[used..]).map_err(|_| BadBytes::Number)?;
            Ok(found.map(|(number, size)| {
                used += size;
                number
            }))
        };
        let Some(first) = number()? else { return Ok(None) };
        let two = matches!(kind, DATA | RESET | STOP | CREDIT | CLOSE | NOTE);
        let second = if two { number()? } else { Some(0) };
        let Some(second) = second else { return Ok(None) };
        let frame = match kind {
            DATA if second == 0 => return Err(BadBytes::Empty),
            DATA => {
                self.payload = Some((first, second));
                None
            }
            CLOSE | NOTE => {
                let length = usize::try_from(second).ok().filter(|length| *length <= WORDS);
                let length = length.ok_or(BadBytes::Words(second))?;
                let Some(words) = bytes.get(used..used + length) else { return Ok(None) };
                let words = String::from_utf8_lossy(words).into_owned();
                used += length;
                Some(if kind == CLOSE { Frame::Close(first, words) } else { Frame::Note(first, words) })
            }
            OPEN => Some(Frame::Open(first)),
            END => Some(Frame::End(first)),
            GOT => Some(Frame::Got(first)),
            RESET => Some(Frame::Reset(first, second)),
            STOP => Some(Frame::Stop(first, second)),
            CREDIT => Some(Frame::Credit(first, second)),
            STREAMS => Some(Frame::Streams(first)),
            PING => Some(Frame::Ping(first)),
            _ => Some(Frame::Pong(first)),
        };
        bytes.advance(used);
        Ok(frame)
    }
}

/// The head of a data frame, whose payload follows.
pub(super) fn put_data_head(id: u64, length: usize, out: &mut BytesMut) {
    put(DATA, id, Some(length as u64), out);
}

/// A whole frame.
pub(super) fn put_frame(frame: &Frame, out: &mut BytesMut) {
    match frame {
        Frame::Data(id, bytes) => {
            put_data_head(*id, bytes.len(), out);
            out.put_slice(bytes);
        }
        Frame::Open(id) => put(OPEN, *id, None, out),
        Frame::End(id) => put(END, *id, None, out),
        Frame::Got(id) => put(GOT, *id, None, out),
        Frame::Reset(id, code) => put(RESET, *id, Some(*code), out),
        Frame::Stop(id, code) => put(STOP, *id, Some(*code), out),
        Frame::Credit(id, bytes) => put(CREDIT, *id, Some(*bytes), out),
        Frame::Streams(count) => put(STREAMS, *count, None, out),
        Frame::Ping(nonce) => put(PING, *nonce, None, out),
        Frame::Pong(nonce) => put(PONG, *nonce, None, out),
        Frame::Close(code, words) => put_words(CLOSE, *code, words, out),
        Frame::Note(kind, words) => put_words(NOTE, *kind, words, out),
    }
}

fn put_words(kind: u8, number: u64, words: &str, out: &mut BytesMut) {
    let words = &words.as_bytes()[..words.floor_char_boundary(WORDS)];
    put(kind, number, Some(words.len() as u64), out);
    out.put_slice(words);
}

fn put(kind: u8, first: u64, second: Option<u64>, out: &mut BytesMut) {
    out.put_u8(kind);
    encode_varint(first, out);
    if let Some(second) = second {
        encode_varint(second, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let words = "\\PC{0,40}";
        prop_oneof![
            (any::<u64>(), prop::collection::vec(any::<u8>(), 1..300))
                .prop_map(|(id, bytes)| Frame::Data(id, bytes.into())),
            any::<u64>().prop_map(Frame::Open),
            any::<u64>().prop_map(Frame::End),
            any::<u64>().prop_map(Frame::Got),
            (any::<u64>(), any::<u64>()).prop_map(|(id, code)| Frame::Reset(id, code)),
            (any::<u64>(), any::<u64>()).prop_map(|(id, code)| Frame::Stop(id, code)),
            (any::<u64>(), any::<u64>()).prop_map(|(id, more)| Frame::Credit(id, more)),
            any::<u64>().prop_map(Frame::Streams),
            any::<u64>().prop_map(Frame::Ping),
            any::<u64>().prop_map(Frame::Pong),
            (any::<u64>(), words).prop_map(|(code, words)| Frame::Close(code, words)),
            (any::<u64>(), words).prop_map(|(kind, words)| Frame::Note(kind, words)),
        ]
    }

    /// Payload that was cut is put together again.
    fn joined(frames: Vec<Frame>) -> Vec<Frame> {
        let mut joined: Vec<Frame> = Vec::new();
        for frame in frames {
            match (joined.last_mut(), frame) {
                (Some(Frame::Data(id, bytes)), Frame::Data(next, more)) if *id == next => {
                    *bytes = [bytes.as_ref(), more.as_ref()].concat().into();
                }
                (_, frame) => joined.push(frame),
            }
        }
        joined
    }

    #[test]
    fn words_are_cut_between_characters() {
        let mut out = BytesMut::new();
        put_frame(&Frame::Close(3, "ä".repeat(400)), &mut out);
        let Some(Frame::Close(3, words)) = Decoder::default().next(&mut out).unwrap() else { panic!() };
        assert_eq!(words, "ä".repeat(256));
    }

    #[test]
    fn a_claimed_length_allocates_nothing_and_is_bounded_where_it_must_be() {
        let mut decoder = Decoder::default();
        let mut bytes = BytesMut::new();
        put(CLOSE, 1, Some(u64::MAX), &mut bytes);
        assert_eq!(decoder.next(&mut bytes), Err(BadBytes::Words(u64::MAX)));
        let mut bytes = BytesMut::new();
        put_data_head(1, usize::MAX, &mut bytes);
        bytes.put_slice(b"abc");
        assert_eq!(Decoder::default().next(&mut bytes), Ok(Some(Frame::Data(1, Bytes::from_static(b"abc")))));
        let mut bytes =
            BytesMut::from(&[PING, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..]);
        assert_eq!(decoder.next(&mut bytes), Err(BadBytes::Number));
    }

    proptest! {
        #[test]
        fn reads_what_was_written_however_it_is_cut(
            sent in prop::collection::vec(frames(), 0..20), cuts in prop::collection::vec(1..40usize, 1..50)
        ) {
            let mut wire = BytesMut::new();
            sent.iter().for_each(|frame| put_frame(frame, &mut wire));
            let (mut decoder, mut buffer, mut read) = (Decoder::default(), BytesMut::new(), Vec::new());
            let mut cuts = cuts.into_iter().cycle();
            while !wire.is_empty() {
                let here = cuts.next().unwrap_or(1).min(wire.len());
                buffer.extend_from_slice(&wire.split_to(here));
                while let Some(frame) = decoder.next(&mut buffer).unwrap() {
                    read.push(frame);
                }
            }
            prop_assert!(buffer.is_empty());
            prop_assert_eq!(joined(read), joined(sent));
        }

        #[test]
        fn never_panics_and_always_moves_on(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
            let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::from(bytes.as_slice()));
            loop {
                let before = buffer.len();
                match decoder.next(&mut buffer) {
                    Ok(Some(_)) => prop_assert!(buffer.len() < before),
                    Ok(None) | Err(_) => break,
                }
            }
        }
    }
}
