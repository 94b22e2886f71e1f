//! What the two sides of every variant say to each other, and what their
//! parent asks of them. A request is 100 bytes that name how many bytes to
//! answer with; levers9 carries the same in its own frames.

use anyhow::{Result, ensure};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::process::Usage;

/// The size of a request.
pub(crate) const REQUEST: usize = 100;
/// What a request asks for whose sender wants everything back that follows.
pub(super) const ECHO: u64 = u64::MAX;
/// The size of a ping.
pub(super) const PING: usize = 64;
/// The size of the answer to a call.
pub(crate) const ANSWER: usize = 1024;
/// How much is written at once.
const PIECE: usize = 64 * 1024;

static ZEROS: [u8; PIECE] = [0; PIECE];

/// A request for so many bytes.
pub(crate) fn request(bytes: u64) -> Bytes {
    let mut request = vec![0; REQUEST];
    request[..8].copy_from_slice(&bytes.to_be_bytes());
    request.into()
}

/// How many bytes a request asks for.
pub(crate) fn asked(request: &[u8]) -> Result<u64> {
    ensure!(request.len() == REQUEST, "a request has {REQUEST} bytes, not {}", request.len());
    let mut number = [0; 8];
    number.copy_from_slice(&request[..8]);
    Ok(u64::from_be_bytes(number))
}

/// So many bytes, in pieces.
pub(crate) fn pieces(mut bytes: u64) -> impl Iterator<Item = Bytes> + Send {
    std::iter::from_fn(move || {
        let size = usize::try_from(bytes).unwrap_or(PIECE).min(PIECE);
        bytes -= size as u64;
        (size > 0).then(|| Bytes::from_static(&ZEROS[..size]))
    })
}

/// What a client is to do.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Downloads side by side, of so many bytes together.
    Bulk { streams: u32, bytes: u64 },
    /// Calls, one stream each, for so long.
    Calls { in_flight: u32, millis: u64 },
    /// A ping every ten milliseconds beside so many downloads, for so long: on a
    /// stream of its own that is kept, where that is easily had, else a call.
    Pinged { streams: u32, millis: u64 },
    /// One stream after another, each until its first byte, for so long.
    FirstByte { millis: u64 },
}

/// What the parent asks a process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Ask {
    /// What have you used?
    Usage,
    /// Make ready for work, off the clock.
    Prepare(Work),
    /// Do it.
    Work(Work),
    /// Open so many sessions and keep them.
    Hold { sessions: u32 },
}

/// What a process answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Answer {
    /// A server listens here, with this CA; a client is connected there.
    Ready {
        address: String,
    },
    Usage(Usage),
    Done(Done),
    Failed {
        why: String,
    },
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) wall_us: u64,
    /// Bytes or requests.
    pub(crate) count: u64,
    /// Of one request.
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_how_much_it_wants() {
        assert_eq!(asked(&request(1 << 40)).unwrap(), 1 << 40);
        assert!(asked(&[0; 8]).is_err());
    }

    #[test]
    fn pieces_add_up() {
        for bytes in [0, 1, 65_535, 65_536, 65_537, 1 << 20] {
            assert_eq!(pieces(bytes).map(|piece| piece.len() as u64).sum::<u64>(), bytes);
        }
    }
}
