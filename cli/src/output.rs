//! Moves the output of a job to standard output and error on a thread of its
//! own. A reader that takes its time, such as a pager, then stops neither the
//! session's pings nor Ctrl-C; only so much is read ahead.

use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::error::Error;
use crate::exit;
use crate::printer::write_failed;

/// Batches that wait to be written.
const AHEAD: usize = 4;
/// How often to look whether the reader is still there.
const READER_CHECK: Duration = Duration::from_millis(250);

/// Something to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// To standard output, as it is.
    Out(Vec<u8>),
    /// To standard error, as it is.
    Err(Vec<u8>),
    /// A line of levers9's own for standard error, without its newline.
    Note(String),
}

/// The way to the writing thread.
#[derive(Debug)]
pub(crate) struct Output {
    batches: mpsc::Sender<Vec<Piece>>,
    done: oneshot::Receiver<Result<bool, Error>>,
}

impl Output {
    /// Starts writing to the standard streams of this process.
    pub(crate) fn start() -> Result<Self, Error> {
        let (batches, mut waiting) = mpsc::channel::<Vec<Piece>>(AHEAD);
        let (tell, done) = oneshot::channel();
        let write = move || {
            let mut writer = Writer { line_open: false, shared: io::stderr().is_terminal() };
            let result = loop {
                match waiting.blocking_recv() {
                    None => break Ok(writer.line_open),
                    Some(batch) => {
                        if let Err(error) = writer.write(&batch) {
                            break Err(error);
                        }
                    }
                }
            };
            // Nobody waits any more when the command was left at once.
            let _left = tell.send(result);
        };
        thread::Builder::new()
            .name("levers9-output".to_owned())
            .spawn(write)
            .map_err(|e| Error::failed("cannot start a thread").because(e))?;
        Ok(Self { batches, done })
    }

    /// Waits for room for one batch. Cancel safe. `None` when writing has
    /// failed; [`Output::finish`] tells why.
    pub(crate) async fn room(&self) -> Option<mpsc::Permit<'_, Vec<Piece>>> {
        self.batches.reserve().await.ok()
    }

    /// Returns once writing has failed; [`Output::finish`] tells why. Cancel safe.
    pub(crate) async fn failed(&self) {
        self.batches.closed().await;
    }

    /// Waits until everything is written. Says whether the last line was left open.
    pub(crate) async fn finish(self) -> Result<bool, Error> {
        drop(self.batches);
        self.done.await.unwrap_or_else(|_| Err(Error::failed("the writing thread is gone")))
    }
}

/// Returns once nobody reads standard output any more. Cancel safe.
pub(crate) async fn reader_gone() {
    loop {
        sleep(READER_CHECK).await;
        let out = io::stdout();
        let mut watched = [PollFd::new(out.as_fd(), PollFlags::empty())];
        let seen = poll(&mut watched, PollTimeout::ZERO);
        let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
        if seen.is_ok() && watched[0].revents().is_some_and(|events| events.intersects(gone)) {
            return;
        }
    }
}

struct Writer {
    /// Whether the last byte written was not a newline.
    line_open: bool,
    /// Whether notes appear on the same screen as the output.
    shared: bool,
}

impl Writer {
    fn write(&mut self, batch: &[Piece]) -> Result<(), Error> {
        for piece in batch {
            match piece {
                Piece::Out(bytes) => {
                    self.put(&mut io::stdout().lock(), bytes).map_err(|e| write_failed(e, "output"))?;
                }
                Piece::Err(bytes) => self.put_error(bytes)?,
                Piece::Note(text) => {
                    let start = if self.line_open && self.shared { "\n" } else { "" };
                    self.put_error(format!("{start}{text}\n").as_bytes())?;
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, to: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
        to.write_all(bytes)?;
        to.flush()?;
        self.line_open = bytes.last().is_some_and(|last| *last != b'\n');
        Ok(())
    }

    /// A closed standard error loses what goes there and nothing else.
    fn put_error(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match self.put(&mut io::stderr().lock(), bytes).map_err(|e| write_failed(e, "error")) {
            Err(error) if error.exit_code() == exit::DONE => Ok(()),
            result => result,
        }
    }
}
