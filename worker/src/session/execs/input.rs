//! What the caller of an exec sends: input for the command, sizes of its
//! terminal, signals. Frames are read as fast as the command takes its input,
//! with up to 256 KiB waiting here: until then a size or a signal gets through
//! to a command that does not read. Beyond that nothing is read, and whoever
//! sends has to wait, also with a size or a signal: they are in one stream.

use std::collections::VecDeque;

use bytes::Bytes;
use levers9_transport::stream::{FrameRecv, StreamError};
use levers9_wire::v1::{self, exec_input};
use levers9_wire::valid::Size;

use super::stdio::{Ends, Sink, Terminal};

/// How much input may wait for the command, in bytes.
const HELD: usize = 256 * 1024;
/// What ends the input at a terminal, at the beginning of a line: VEOF.
const END_OF_INPUT: u8 = 0x04;

/// The way of the input.
#[derive(Debug)]
pub(super) struct Input {
    /// Closed by this, or by the command.
    to: Option<Sink>,
    terminal: Option<Terminal>,
    held: VecDeque<Bytes>,
    /// How much is held, in bytes.
    bytes: usize,
    /// How much of the first is written.
    written: usize,
    /// No input follows what is held.
    ending: bool,
}

impl Input {
    pub(super) fn new(ends: &mut Ends) -> Self {
        Self {
            to: ends.stdin.take(),
            terminal: ends.terminal.take(),
            held: VecDeque::new(),
            bytes: 0,
            written: 0,
            ending: false,
        }
    }

    /// Takes frames until the stream breaks. Its end is the end of the input,
    /// no more: the command may go on.
    pub(super) async fn run(&mut self, recv: &mut FrameRecv, signal: &(dyn Fn(i32) + Sync)) -> StreamError {
        let mut open = true;
        loop {
            let (to, first, written) = (&self.to, self.held.front(), self.written);
            let write = async {
                match (to, first) {
                    (Some(to), Some(first)) => to.write(&first[written..]).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                frame = recv.next::<v1::ExecInput>(), if open && self.bytes < HELD => match frame {
                    Ok(Some(frame)) => self.take(frame, signal),
                    Ok(None) => {
                        open = false;
                        self.end();
                    }
                    Err(error) => return error,
                },
                result = write => match result {
                    Ok(written) => self.wrote(written),
                    Err(error) => {
                        tracing::debug!(%error, "a command reads no more; the rest of its input is dropped");
                        self.close();
                    }
                },
            }
        }
    }

    fn take(&mut self, frame: v1::ExecInput, signal: &(dyn Fn(i32) + Sync)) {
        match frame.kind {
            Some(exec_input::Kind::Stdin(bytes)) if self.to.is_some() && !self.ending => self.hold(bytes),
            // Nobody reads it.
            Some(exec_input::Kind::Stdin(_)) => {}
            Some(exec_input::Kind::StdinEnd(v1::StdinEnd {})) => self.end(),
            Some(exec_input::Kind::Resize(size)) => {
                if let Some(Err(error)) =
                    self.terminal.as_ref().map(|terminal| terminal.resize(Size::from(size)))
                {
                    tracing::debug!(%error, "cannot resize a terminal");
                }
            }
            Some(exec_input::Kind::Signal(number)) => signal(i32::try_from(number).unwrap_or(0)),
            None => tracing::debug!("the caller of a command sent what this build does not know"),
        }
    }

    fn hold(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.held.push_back(bytes);
        }
    }

    fn end(&mut self) {
        if self.ending || self.to.is_none() {
            return;
        }
        if self.terminal.is_some() {
            // A terminal has no other end: closing it would be a hang-up.
            self.hold(Bytes::from_static(&[END_OF_INPUT]));
        }
        self.ending = true;
        self.close_if_done();
    }

    fn wrote(&mut self, written: usize) {
        self.written += written;
        self.bytes -= written;
        if self.held.front().is_some_and(|first| first.len() == self.written) {
            self.held.pop_front();
            self.written = 0;
        }
        self.close_if_done();
    }

    fn close_if_done(&mut self) {
        if self.ending && self.held.is_empty() {
            self.close();
        }
    }

    fn close(&mut self) {
        self.to = None;
        self.held.clear();
        (self.bytes, self.written) = (0, 0);
    }
}
