//! The descriptors of an exec: pipes or a terminal for the command, and the
//! other ends for the worker.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use levers9_wire::valid::Size;
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::net::unix::pipe;

/// The worker's ends.
#[derive(Debug)]
pub(super) struct Ends {
    /// The command's input, when it has any.
    pub(super) stdin: Option<Sink>,
    pub(super) stdout: Source,
    /// Absent with a terminal: its output is one stream.
    pub(super) stderr: Option<Source>,
    pub(super) terminal: Option<Terminal>,
}

/// Where a command's output comes from.
#[derive(Debug)]
pub(super) struct Source(pipe::Receiver);

impl Source {
    fn new(descriptor: impl Into<OwnedFd>) -> io::Result<Self> {
        pipe::Receiver::from_owned_fd_unchecked(for_tokio(descriptor)?).map(Self)
    }

    /// Waits until [`Self::read`] is worth trying. Cancel safe.
    pub(super) async fn readable(&self) {
        // An error is seen when it is read.
        let _seen_later = self.0.readable().await;
    }

    /// Reads what is there into the room `into` has: how much, 0 at the end,
    /// or `None` when there is nothing now.
    pub(super) fn read(&self, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
        match self.0.try_read_buf(into) {
            Ok(length) => Ok(Some(length)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            // A terminal that nobody has open any more.
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// How much can be read now, in bytes.
    pub(super) fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.0).unwrap_or(0)
    }
}

/// Where a command's input goes.
#[derive(Debug)]
pub(super) struct Sink(pipe::Sender);

impl Sink {
    fn new(descriptor: impl Into<OwnedFd>) -> io::Result<Self> {
        pipe::Sender::from_owned_fd_unchecked(for_tokio(descriptor)?).map(Self)
    }

    /// Writes what fits; waits until something does. Cancel safe.
    pub(super) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.0.writable().await?;
            match self.0.try_write(bytes) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                written => return written,
            }
        }
    }
}

/// A command's terminal.
#[derive(Debug)]
pub(super) struct Terminal(OwnedFd);

impl Terminal {
    pub(super) fn resize(&self, size: Size) -> io::Result<()> {
        resize(&self.0, size)
    }
}

fn resize(terminal: impl AsFd, size: Size) -> io::Result<()> {
    let window = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, window)?)
}

/// A pipe's end or a terminal, which is read and written in the same way.
fn for_tokio(descriptor: impl Into<OwnedFd>) -> io::Result<OwnedFd> {
    let descriptor = descriptor.into();
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    Ok(descriptor)
}

/// Makes both sides: input only when it is wanted, a terminal of the given
/// size when there is one.
pub(super) fn make(stdin: bool, terminal: Option<Size>) -> io::Result<(Ends, [OwnedFd; 3])> {
    match terminal {
        Some(size) => terminal_of(stdin, size),
        None => pipes(stdin),
    }
}

fn terminal_of(stdin: bool, size: Size) -> io::Result<(Ends, [OwnedFd; 3])> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    // Before anything runs that could ask for it.
    resize(&master, size)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    let theirs = [slave.try_clone()?, slave.try_clone()?, slave];
    let stdin = if stdin { Some(Sink::new(master.try_clone()?)?) } else { None };
    let stdout = Source::new(master.try_clone()?)?;
    let ends = Ends { stdin, stdout, stderr: None, terminal: Some(Terminal(master)) };
    Ok((ends, theirs))
}

fn pipes(stdin: bool) -> io::Result<(Ends, [OwnedFd; 3])> {
    let (input, stdin) = if stdin {
        let (theirs, ours) = io::pipe()?;
        (OwnedFd::from(theirs), Some(Sink::new(ours)?))
    } else {
        (OwnedFd::from(File::open("/dev/null")?), None)
    };
    let (stdout, their_stdout) = io::pipe()?;
    let (stderr, their_stderr) = io::pipe()?;
    let ends =
        Ends { stdin, stdout: Source::new(stdout)?, stderr: Some(Source::new(stderr)?), terminal: None };
    Ok((ends, [input, their_stdout.into(), their_stderr.into()]))
}
