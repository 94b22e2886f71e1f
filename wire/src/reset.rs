//! Why a stream or a connection ended early: the code on the wire, whether
//! trying again can help, and whose side it was.

use crate::v1::ResetCode;

/// What a caller should do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryClass {
    /// Nothing is wrong with the peer: try at once.
    Now,
    /// Try again with growing pauses.
    BackOff,
    /// Trying again gives the same answer.
    Fatal,
}

/// Who ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// This process.
    Local,
    /// The peer.
    Remote,
}

/// A code with its side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} ({})", describe(*.code), match .side { Side::Local => "by this side", Side::Remote => "by the peer" })]
pub struct Reset {
    /// The code as sent.
    pub code: ResetCode,
    /// Who sent it.
    pub side: Side,
}

impl Reset {
    /// A reset this side made.
    #[must_use]
    pub fn local(code: ResetCode) -> Self {
        Self { code, side: Side::Local }
    }

    /// A reset the peer sent, from its number; unknown numbers are internal errors.
    #[must_use]
    pub fn remote(number: u64) -> Self {
        let code = i32::try_from(number).ok().and_then(|n| ResetCode::try_from(n).ok());
        Self { code: code.unwrap_or(ResetCode::Internal), side: Side::Remote }
    }

    /// Whether trying again can help.
    #[must_use]
    pub fn retry(&self) -> RetryClass {
        match self.code {
            ResetCode::Draining | ResetCode::CarrierLost | ResetCode::Done => RetryClass::Now,
            ResetCode::Busy | ResetCode::Timeout | ResetCode::Internal | ResetCode::Unspecified => {
                RetryClass::BackOff
            }
            ResetCode::Cancelled
            | ResetCode::Unsupported
            | ResetCode::Protocol
            | ResetCode::TooLarge
            | ResetCode::Revoked
            | ResetCode::Superseded
            | ResetCode::Refused
            | ResetCode::Aborted => RetryClass::Fatal,
        }
    }
}

fn describe(code: ResetCode) -> &'static str {
    match code {
        ResetCode::Unspecified => "ended without a reason",
        ResetCode::Cancelled => "cancelled",
        ResetCode::Unsupported => "not supported by the receiver",
        ResetCode::Protocol => "protocol violation",
        ResetCode::TooLarge => "message too large",
        ResetCode::Revoked => "the token was revoked",
        ResetCode::Superseded => "superseded by a newer process",
        ResetCode::CarrierLost => "connection lost",
        ResetCode::Draining => "the controlplane is shutting down",
        ResetCode::Timeout => "timed out",
        ResetCode::Internal => "internal error",
        ResetCode::Refused => "refused",
        ResetCode::Busy => "too busy",
        ResetCode::Done => "no longer needed",
        ResetCode::Aborted => "the connection was reset",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_are_internal_and_retried() {
        let reset = Reset::remote(9_999_999_999);
        assert_eq!(reset.code, ResetCode::Internal);
        assert_eq!(reset.retry(), RetryClass::BackOff);
        assert_eq!(reset.to_string(), "internal error (by the peer)");
    }
}
