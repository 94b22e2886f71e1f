//! Framing: a varint length, then that many bytes of one message. The decoder
//! is fed pieces as they come and never allocates for a length above its cap.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The length is above what this frame may have.
    #[error("a frame claims {claimed} bytes; the limit here is {limit}")]
    TooLarge {
        /// What the peer announced.
        claimed: u64,
        /// What is allowed.
        limit: usize,
    },
    /// The length is not a varint of at most 64 bits.
    #[error("a frame's length is not a varint")]
    BadLength,
    /// The bytes are not the expected message.
    #[error("a frame does not hold the expected message")]
    BadMessage(#[source] prost::DecodeError),
    /// The stream ended within a frame.
    #[error("the stream ended inside a frame")]
    Truncated,
}

/// Appends one frame to a buffer.
///
/// # Errors
/// When the message is larger than `limit`.
pub fn encode<M: Message>(message: &M, limit: usize, into: &mut BytesMut) -> Result<(), BadFrame> {
    let length = message.encoded_len();
    if length > limit {
        return Err(BadFrame::TooLarge { claimed: length as u64, limit });
    }
    into.reserve(length + 10);
    prost::encoding::encode_varint(length as u64, into);
    // The buffer grows as needed, so encoding cannot run out of room.
    message.encode_raw(into);
    Ok(())
}

/// One frame as bytes of its own.
///
/// # Errors
/// When the message is larger than `limit`.
pub fn to_bytes<M: Message>(message: &M, limit: usize) -> Result<Bytes, BadFrame> {
    let mut buffer = BytesMut::new();
    encode(message, limit, &mut buffer)?;
    Ok(buffer.freeze())
}

/// Collects the pieces of a stream and gives out whole frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// An empty decoder; it holds no memory until it is fed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes as they came from the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.put_slice(bytes);
    }

    /// A whole frame at the front of `bytes`, decoded where it is; `None` when
    /// bytes are held already or the frame is not whole, so that it has to be
    /// fed. What was read is taken off `bytes`.
    ///
    /// # Errors
    /// As [`Decoder::next`].
    pub fn next_in_place<M: Message + Default>(
        &self,
        bytes: &mut Bytes,
        limit: usize,
    ) -> Result<Option<M>, BadFrame> {
        if !self.buffer.is_empty() {
            return Ok(None);
        }
        let Some((length, prefix)) = peek_length(bytes)? else { return Ok(None) };
        let size = match usize::try_from(length) {
            Ok(size) if size <= limit => size,
            _ => return Err(BadFrame::TooLarge { claimed: length, limit }),
        };
        if bytes.len() < prefix + size {
            return Ok(None);
        }
        bytes.advance(prefix);
        M::decode(bytes.split_to(size)).map(Some).map_err(BadFrame::BadMessage)
    }

    /// How many bytes are held and not yet given out.
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffer.len()
    }

    /// Takes what is held, for a stream that turns to raw bytes.
    #[must_use]
    pub fn take_rest(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    /// The next whole frame's payload, or `None` when more bytes are needed.
    ///
    /// # Errors
    /// When the length is no varint or above `limit`.
    pub fn next_payload(&mut self, limit: usize) -> Result<Option<Bytes>, BadFrame> {
        let Some((length, prefix)) = peek_length(&self.buffer)? else { return Ok(None) };
        let size = match usize::try_from(length) {
            Ok(size) if size <= limit => size,
            _ => return Err(BadFrame::TooLarge { claimed: length, limit }),
        };
        if self.buffer.len() < prefix + size {
            self.buffer.reserve(prefix + size - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(prefix);
        Ok(Some(self.buffer.split_to(size).freeze()))
    }

    /// The next whole frame, decoded.
    ///
    /// # Errors
    /// As [`Decoder::next_payload`], and when the payload is not an `M`.
    pub fn next<M: Message + Default>(&mut self, limit: usize) -> Result<Option<M>, BadFrame> {
        match self.next_payload(limit)? {
            None => Ok(None),
            Some(payload) => M::decode(payload).map(Some).map_err(BadFrame::BadMessage),
        }
    }

    /// To be asked when the stream has ended.
    ///
    /// # Errors
    /// When part of a frame is left over.
    pub fn finish(&self) -> Result<(), BadFrame> {
        if self.buffer.is_empty() { Ok(()) } else { Err(BadFrame::Truncated) }
    }
}

/// Reads the varint at the start: its value and its own size, or `None` until
/// all of it is there.
///
/// # Errors
/// When it has more than 64 bits.
pub fn peek_length(buffer: &[u8]) -> Result<Option<(u64, usize)>, BadFrame> {
    let mut value = 0u64;
    for (index, byte) in buffer.iter().enumerate() {
        if index == 9 && *byte > 1 {
            return Err(BadFrame::BadLength);
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
        if index == 9 {
            return Err(BadFrame::BadLength);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn ping(nonce: u64) -> v1::ControlFrame {
        v1::ControlFrame { kind: Some(v1::control_frame::Kind::Ping(v1::Ping { nonce })) }
    }

    #[test]
    fn a_frame_fed_byte_by_byte_comes_out_whole() {
        let bytes = to_bytes(&ping(300), 100).unwrap();
        let mut decoder = Decoder::new();
        for (index, byte) in bytes.iter().enumerate() {
            assert_eq!(decoder.next::<v1::ControlFrame>(100), Ok(None), "after {index} bytes");
            decoder.feed(&[*byte]);
        }
        assert_eq!(decoder.next::<v1::ControlFrame>(100), Ok(Some(ping(300))));
        assert_eq!(decoder.finish(), Ok(()));
    }

    #[test]
    fn four_gibibytes_are_refused_before_any_allocation() {
        let mut decoder = Decoder::new();
        decoder.feed(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
        let refused = decoder.next::<v1::ControlFrame>(crate::limits::FRAME);
        assert_eq!(refused, Err(BadFrame::TooLarge { claimed: 0xffff_ffff, limit: crate::limits::FRAME }));
        assert!(decoder.buffer.capacity() < 4096);
    }

    #[test]
    fn a_length_of_more_than_64_bits_is_refused() {
        let mut decoder = Decoder::new();
        decoder.feed(&[0xff; 11]);
        assert_eq!(decoder.next_payload(10), Err(BadFrame::BadLength));
    }

    #[test]
    fn half_a_frame_at_the_end_is_named() {
        let mut decoder = Decoder::new();
        decoder.feed(&[5, 1, 2]);
        assert_eq!(decoder.next_payload(10), Ok(None));
        assert_eq!(decoder.finish(), Err(BadFrame::Truncated));
    }

    #[test]
    fn unknown_fields_and_enum_values_are_tolerated() {
        let mut bytes = v1::Hello { role: 77, ..v1::Hello::default() }.encode_to_vec();
        bytes.extend_from_slice(&[0xfa, 0x3e, 0x01, 0x2a]); // field 1007, one byte
        let hello = v1::Hello::decode(bytes.as_slice()).unwrap();
        assert_eq!(hello.role, 77);
        // A StreamOpen of a kind this build does not know has no kind.
        let unknown = v1::StreamOpen::decode(&[0xba, 0xf0, 0x04, 0x00][..]).unwrap();
        assert_eq!(unknown.kind, None);
    }
}
