//! Standard input, read on a thread of its own: a read that never returns
//! holds up neither the session nor the end of the process. Little is read
//! ahead, so what the command does not take stays where it is.

use std::io;
use std::os::fd::AsFd as _;
use std::thread;

use levers9_wire::limits::EXEC_PIECE;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::Errno;
use tokio::sync::mpsc;

use crate::error::Error;

/// Standard input in pieces.
#[derive(Debug)]
pub(super) struct Input {
    pieces: mpsc::Receiver<Result<Vec<u8>, Errno>>,
}

impl Input {
    /// Starts to read.
    pub(super) fn start() -> Result<Self, Error> {
        let (pieces, waiting) = mpsc::channel(1);
        thread::Builder::new()
            .name("levers9-input".to_owned())
            .spawn(move || read_all(&pieces))
            .map_err(|e| Error::failed("cannot start a thread").because(e))?;
        Ok(Self { pieces: waiting })
    }

    /// The next bytes; none at the end, after which there is nothing to ask
    /// for. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Vec<u8>, Error> {
        match self.pieces.recv().await {
            Some(Ok(piece)) => Ok(piece),
            Some(Err(errno)) => Err(Error::failed("cannot read standard input").because(errno)),
            None => Err(Error::failed("the reading thread is gone")),
        }
    }
}

/// Reads until the end, a failure, or nobody wants more.
fn read_all(pieces: &mpsc::Sender<Result<Vec<u8>, Errno>>) {
    let mut buffer = vec![0; EXEC_PIECE];
    loop {
        let read = read_once(&mut buffer).map(|length| buffer[..length].to_vec());
        let last = !matches!(&read, Ok(piece) if !piece.is_empty());
        if pieces.blocking_send(read).is_err() || last {
            return;
        }
    }
}

fn read_once(buffer: &mut [u8]) -> Result<usize, Errno> {
    let stdin = io::stdin();
    loop {
        match rustix::io::read(stdin.as_fd(), &mut *buffer) {
            Err(Errno::INTR) => {}
            // Whoever shares it has made it so that reading does not wait.
            Err(Errno::AGAIN) => {
                let mut watched = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
                // Whatever comes of it is seen by the next read.
                let _woken = poll(&mut watched, PollTimeout::NONE);
            }
            read => return read,
        }
    }
}
