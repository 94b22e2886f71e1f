//! A stream of frames: what to send is queued and written so that a dropped
//! future loses nothing, what comes is decoded under a limit. A stream can
//! turn to raw bytes at any point.

use bytes::{Bytes, BytesMut};
use levers9_wire::frame::{self, BadFrame, Decoder};
use levers9_wire::v1::{self, ResetCode};
use levers9_wire::{Reset, RetryClass, limits};
use prost::Message;

use crate::carrier::{HalfError, Lost, RecvHalf, SendHalf, priority};

/// The most taken from the carrier at once, in bytes.
const READ: usize = 64 * 1024;
/// When a line is long, in bytes.
const LONG: usize = 4 * 1024;

/// Why a stream ended other than by its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// One side reset it.
    #[error(transparent)]
    Reset(#[from] Reset),
    /// The carrier is gone.
    #[error("connection lost: {0}")]
    Lost(#[from] Lost),
    /// The bytes are not what they should be.
    #[error(transparent)]
    Frame(#[from] BadFrame),
    /// It was closed by this side before.
    #[error("the stream is closed already")]
    Closed,
    /// The peer ended it where something had to come.
    #[error("the peer ended the stream early")]
    Early,
}

impl StreamError {
    /// Whether the same thing on a new stream can work.
    #[must_use]
    pub fn retry(&self) -> RetryClass {
        match self {
            Self::Reset(reset) => reset.retry(),
            Self::Lost(_) | Self::Early => RetryClass::Now,
            Self::Frame(_) | Self::Closed => RetryClass::Fatal,
        }
    }
}

impl From<HalfError> for StreamError {
    fn from(error: HalfError) -> Self {
        match error {
            HalfError::Reset(reset) => Self::Reset(reset),
            HalfError::Lost(lost) => Self::Lost(lost),
            HalfError::Closed => Self::Closed,
        }
    }
}

/// Sends frames.
#[derive(Debug)]
pub struct FrameSend {
    half: SendHalf,
    pending: Bytes,
    limit: usize,
}

impl FrameSend {
    /// Frames of at most [`limits::FRAME`] bytes over a half.
    #[must_use]
    pub fn new(half: SendHalf) -> Self {
        Self { half, pending: Bytes::new(), limit: limits::FRAME }
    }

    /// With another limit, in bytes.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sends one frame. Cancel safe: once started, the frame goes out whole
    /// with the next send or flush.
    ///
    /// # Errors
    /// When it is too large, the peer stopped the stream or the carrier is gone.
    pub async fn send<M: Message>(&mut self, message: &M) -> Result<(), StreamError> {
        self.queue(message)?;
        self.flush().await
    }

    /// Puts one frame in line for the next flush, so that several go together.
    ///
    /// # Errors
    /// When it is too large.
    pub fn queue<M: Message>(&mut self, message: &M) -> Result<(), StreamError> {
        let mut buffer = match std::mem::take(&mut self.pending).try_into_mut() {
            Ok(buffer) => buffer,
            Err(shared) => BytesMut::from(shared.as_ref()),
        };
        let result = frame::encode(message, self.limit, &mut buffer);
        self.pending = buffer.freeze();
        Ok(result?)
    }

    /// Writes what is in line. Cancel safe.
    ///
    /// # Errors
    /// When the peer stopped the stream or the carrier is gone.
    pub async fn flush(&mut self) -> Result<(), StreamError> {
        while !self.pending.is_empty() {
            self.half.write(&mut self.pending).await?;
        }
        Ok(())
    }

    /// Whether anything is in line.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether the peer reads so slowly that nothing more should be put in
    /// line on its behalf.
    #[must_use]
    pub fn is_backed_up(&self) -> bool {
        self.pending.len() >= LONG
    }

    /// Says that nothing follows.
    pub fn finish(&mut self) {
        self.half.finish();
    }

    /// Finishes and waits until the peer has it all. Cancel safe.
    ///
    /// # Errors
    /// When the peer stopped the stream or the carrier is gone.
    pub async fn finish_and_deliver(&mut self) -> Result<(), StreamError> {
        self.flush().await?;
        self.half.finish();
        Ok(self.half.delivered().await?)
    }

    /// Gives up the stream.
    pub fn reset(&mut self, why: ResetCode) {
        self.half.reset(why);
    }

    /// Until the peer wants no more of it, or it is gone.
    pub fn stopped(&self) -> impl Future<Output = HalfError> + Send + 'static {
        self.half.stopped()
    }

    /// Sends this stream before or after others.
    pub fn set_priority(&mut self, priority: i32) {
        self.half.set_priority(priority);
    }

    /// The half itself, for raw bytes, once everything in line is written.
    ///
    /// # Errors
    /// As [`FrameSend::flush`].
    pub async fn into_raw(mut self) -> Result<SendHalf, StreamError> {
        self.flush().await?;
        Ok(self.half)
    }
}

/// Receives frames.
#[derive(Debug)]
pub struct FrameRecv {
    half: RecvHalf,
    /// What came last and is not looked at yet.
    fresh: Bytes,
    decoder: Decoder,
    ended: bool,
    limit: usize,
}

impl FrameRecv {
    /// Frames of at most [`limits::FRAME`] bytes over a half.
    #[must_use]
    pub fn new(half: RecvHalf) -> Self {
        Self { half, fresh: Bytes::new(), decoder: Decoder::new(), ended: false, limit: limits::FRAME }
    }

    /// With another limit, in bytes.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// The next frame, or `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// When the frame is malformed or too large (the stream is then stopped),
    /// the peer reset the stream or the carrier is gone.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, StreamError> {
        loop {
            match self.decode() {
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) => {}
                Err(bad) => {
                    let too_large = matches!(bad, BadFrame::TooLarge { .. });
                    self.half.stop(if too_large { ResetCode::TooLarge } else { ResetCode::Protocol });
                    return Err(bad.into());
                }
            }
            if self.ended {
                self.decoder.finish()?;
                return Ok(None);
            }
            match self.half.read(READ).await? {
                Some(bytes) => self.fresh = bytes,
                None => self.ended = true,
            }
        }
    }

    /// A frame of what has come. Most frames come whole and are decoded where
    /// they are; only one that is in pieces is put together.
    fn decode<M: Message + Default>(&mut self) -> Result<Option<M>, BadFrame> {
        if !self.fresh.is_empty() {
            if let Some(message) = self.decoder.next_in_place(&mut self.fresh, self.limit)? {
                return Ok(Some(message));
            }
            let pieces = std::mem::take(&mut self.fresh);
            self.decoder.feed(&pieces);
        }
        self.decoder.next(self.limit)
    }

    /// The next frame where one has to come. Cancel safe.
    ///
    /// # Errors
    /// As [`FrameRecv::next`], and when the stream has ended.
    pub async fn expect<M: Message + Default>(&mut self) -> Result<M, StreamError> {
        self.next().await?.ok_or(StreamError::Early)
    }

    /// Tells the peer that nothing more is read.
    pub fn stop(&mut self, why: ResetCode) {
        self.half.stop(why);
    }

    /// What was read ahead, and the half itself, for raw bytes.
    #[must_use]
    pub fn into_raw(mut self) -> (Bytes, RecvHalf) {
        // Bytes are held together only while a frame is in pieces.
        if self.decoder.held() == 0 {
            return (self.fresh, self.half);
        }
        self.decoder.feed(&self.fresh);
        (self.decoder.take_rest(), self.half)
    }
}

/// Both directions of one stream.
#[derive(Debug)]
pub struct Stream {
    /// What this side says.
    pub send: FrameSend,
    /// What the peer says.
    pub recv: FrameRecv,
}

impl Stream {
    /// A stream over both halves.
    #[must_use]
    pub fn new(send: SendHalf, recv: RecvHalf) -> Self {
        Self { send: FrameSend::new(send), recv: FrameRecv::new(recv) }
    }

    /// Ends both directions with a code.
    pub fn abort(&mut self, why: ResetCode) {
        self.send.reset(why);
        self.recv.stop(why);
    }
}

/// The priority that suits a kind of stream.
#[must_use]
pub fn priority_of(kind: &v1::stream_open::Kind) -> i32 {
    use v1::stream_open::Kind;
    match kind {
        Kind::Control(_) => priority::CONTROL,
        Kind::Call(_) | Kind::Run(_) | Kind::Follow(_) | Kind::Exec(_) => priority::INTERACTIVE,
        Kind::NodeReport(_) | Kind::Order(_) => priority::INTERACTIVE,
        Kind::Tunnel(_) | Kind::Door(_) => priority::INTERACTIVE,
        Kind::Log(_) => priority::LOG,
        Kind::Bench(_) => priority::BULK,
    }
}
