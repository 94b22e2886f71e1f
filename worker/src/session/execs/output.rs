//! What a command says, on its way to the caller of the exec: frames of what
//! comes, at once after a quiet moment, else several writes of the command
//! together. It reads no more than the caller takes.

use std::time::Duration;

use levers9_transport::quic::SendHalf;
use levers9_transport::stream::{FrameSend, StreamError};
use levers9_wire::limits;
use levers9_wire::v1::{self, exec_output};
use tokio::time::{Instant, sleep_until, timeout};

use super::stdio::{Ends, Source};

/// This much is sent without a wait for more, in bytes.
const ENOUGH: usize = 16 * 1024;
/// That wait.
const COALESCE: Duration = Duration::from_millis(5);
/// What is read at once: with what is held it still fits into one frame.
const READ: usize = limits::EXEC_PIECE - ENOUGH;
/// After the command's end its output is over when nothing comes for so long,
/// though somebody may still hold it open.
const QUIET: Duration = Duration::from_millis(100);
/// Whoever goes on writing after the command's end is heard for so long, or so
/// many bytes, beside what the command itself has left.
const AFTER: Duration = Duration::from_secs(2);
const AFTER_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stdout,
    Stderr,
}

/// The way of the output.
#[derive(Debug)]
pub(super) struct Output {
    send: FrameSend,
    /// Those that have not ended.
    sources: Vec<(Kind, Source)>,
    buffer: Vec<u8>,
    /// Read and not yet in line, in order.
    held: Vec<(Kind, Vec<u8>)>,
    /// How much is held, in bytes.
    bytes: usize,
    /// When something was sent last.
    sent: Instant,
}

impl Output {
    pub(super) fn new(send: SendHalf) -> Self {
        let (sources, held) = (Vec::new(), Vec::new());
        Self { send: FrameSend::new(send), sources, buffer: Vec::new(), held, bytes: 0, sent: Instant::now() }
    }

    /// Reads from these from now on.
    pub(super) fn attach(&mut self, ends: Ends) {
        self.sources.push((Kind::Stdout, ends.stdout));
        self.sources.extend(ends.stderr.map(|stderr| (Kind::Stderr, stderr)));
        self.buffer.reserve_exact(READ);
    }

    /// Sends one frame, after all that was read.
    pub(super) async fn put(&mut self, kind: exec_output::Kind) -> Result<(), StreamError> {
        self.line_up()?;
        self.send.send(&v1::ExecOutput { kind: Some(kind) }).await
    }

    /// The half itself, once everything is written.
    pub(super) async fn into_half(self) -> Result<SendHalf, StreamError> {
        self.send.into_raw().await
    }

    /// Sends what the command says, for ever. Cancel safe.
    pub(super) async fn pump(&mut self) -> StreamError {
        loop {
            if let Err(error) = self.step().await {
                return error;
            }
        }
    }

    async fn step(&mut self) -> Result<(), StreamError> {
        if self.send.has_pending() {
            self.send.flush().await?;
            self.sent = Instant::now();
        }
        let due = self.sent + COALESCE;
        if self.bytes >= ENOUGH || (self.bytes > 0 && due <= Instant::now()) {
            return self.line_up();
        }
        let holding = self.bytes > 0;
        tokio::select! {
            _ = self.read() => {}
            () = sleep_until(due), if holding => {}
        }
        Ok(())
    }

    /// Sends what is left when the command has ended.
    pub(super) async fn drain(&mut self) -> Result<(), StreamError> {
        let left: u64 = self.sources.iter().map(|(_, source)| source.unread()).sum();
        let (mut bytes, mut patience) = (left + AFTER_BYTES, AFTER);
        loop {
            self.line_up()?;
            self.send.flush().await?;
            if self.sources.is_empty() || bytes == 0 || patience.is_zero() {
                return Ok(());
            }
            // Only this wait counts: the caller may be slow to take it.
            let begun = Instant::now();
            let Ok(read) = timeout(QUIET, self.read()).await else { return Ok(()) };
            bytes = bytes.saturating_sub(read as u64);
            patience = patience.saturating_sub(begun.elapsed());
        }
    }

    /// Waits for output and takes some of it; for ever when all has ended.
    /// Says how much it took. Cancel safe.
    async fn read(&mut self) -> usize {
        let sources = &self.sources;
        let ready = async |at: usize| {
            match sources.get(at) {
                Some((_, source)) => source.readable().await,
                None => std::future::pending().await,
            }
            at
        };
        let at = tokio::select! {
            at = ready(0) => at,
            at = ready(1) => at,
        };
        let (kind, source) = &self.sources[at];
        let kind = *kind;
        self.buffer.clear();
        match source.read(&mut self.buffer) {
            Ok(None) => 0,
            Ok(Some(0)) => {
                self.sources.remove(at);
                0
            }
            Ok(Some(length)) => {
                self.hold(kind);
                length
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read the output of a command; it ends here");
                self.sources.remove(at);
                0
            }
        }
    }

    fn hold(&mut self, kind: Kind) {
        self.bytes += self.buffer.len();
        match self.held.last_mut() {
            Some((last, bytes)) if *last == kind => bytes.extend_from_slice(&self.buffer),
            _ => self.held.push((kind, self.buffer.clone())),
        }
    }

    /// Puts all that is held in line.
    fn line_up(&mut self) -> Result<(), StreamError> {
        for (kind, bytes) in self.held.drain(..) {
            let kind = match kind {
                Kind::Stdout => exec_output::Kind::Stdout(bytes.into()),
                Kind::Stderr => exec_output::Kind::Stderr(bytes.into()),
            };
            self.send.queue(&v1::ExecOutput { kind: Some(kind) })?;
        }
        self.bytes = 0;
        Ok(())
    }
}
