//! The terminal at standard input: its size, and the raw mode in which every
//! key goes to a command elsewhere. Whatever ends this process by its own code
//! gives the terminal back as it was found: leaving the scope, and a panic,
//! which may end the process without leaving any scope.

use std::io::{self, IsTerminal as _};
use std::panic;
use std::sync::{Mutex, Once, PoisonError};

use levers9_wire::v1;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::error::Error;

/// How the terminal was found, while it is in raw mode.
static FOUND: Mutex<Option<Termios>> = Mutex::new(None);
/// The panic hook is set once.
static HOOK: Once = Once::new();

/// Whether standard input is a terminal.
pub(crate) fn is_here() -> bool {
    io::stdin().is_terminal()
}

/// Its size; the one of old where nobody knows it.
pub(crate) fn size() -> v1::TerminalSize {
    let (rows, columns) = tcgetwinsize(io::stdin()).map_or((0, 0), |size| (size.ws_row, size.ws_col));
    let side = |given: u16, usual: u32| if given == 0 { usual } else { given.into() };
    v1::TerminalSize { rows: side(rows, 24), columns: side(columns, 80) }
}

/// The terminal in raw mode, until this is dropped.
#[derive(Debug)]
pub(crate) struct Raw(());

impl Raw {
    /// Turns raw mode on. There is one terminal, so this is asked for once at a time.
    pub(crate) fn enter() -> Result<Self, Error> {
        HOOK.call_once(|| {
            let usual = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                restore();
                usual(panic);
            }));
        });
        let failed = |e: rustix::io::Errno| Error::failed("cannot set up the terminal").because(e);
        let found = tcgetattr(io::stdin()).map_err(failed)?;
        // Known before anything is changed.
        *FOUND.lock().unwrap_or_else(PoisonError::into_inner) = Some(found.clone());
        let raw = Self(());
        raw.set(found).map_err(failed)?;
        Ok(raw)
    }

    /// Turns it on again after whoever stopped this process has changed it.
    pub(crate) fn again(&self) {
        let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(found) = found {
            // A terminal that is gone says so where it is read.
            let _gone = self.set(found);
        }
    }

    fn set(&self, mut found: Termios) -> rustix::io::Result<()> {
        found.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &found)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back, once. Does not wait for what is still to be shown:
/// a terminal that shows nothing more must not hold anybody up.
fn restore() {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(found) = found {
        // A terminal that is gone needs nothing.
        let _gone = tcsetattr(io::stdin(), OptionalActions::Now, &found);
    }
}

/// What happened to the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It may have another size.
    Resized,
    /// This process goes on after it was stopped.
    Continued,
}

/// Listens for changes from now on.
#[derive(Debug)]
pub(crate) struct Changes {
    resized: Stream,
    continued: Stream,
}

impl Changes {
    /// Starts to listen.
    pub(crate) fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(|e| Error::failed("cannot listen for signals").because(e));
        let continued = SignalKind::from_raw(nix::libc::SIGCONT);
        Ok(Self { resized: listen(SignalKind::window_change())?, continued: listen(continued)? })
    }

    /// The next one; several of a kind are one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Change {
        tokio::select! {
            _ = self.resized.recv() => Change::Resized,
            _ = self.continued.recv() => Change::Continued,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::process::{Command, Stdio};

    use nix::fcntl::OFlag;
    use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
    use rustix::termios::LocalModes;

    use super::*;

    fn is_raw() -> bool {
        !tcgetattr(io::stdin()).unwrap().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// The other test starts this one at a terminal. The hook alone has to do
    /// it: in a build that ends at a panic, nothing is dropped.
    #[test]
    #[ignore = "run by a_panic_gives_the_terminal_back"]
    fn panics_in_raw_mode() {
        let raw = Raw::enter().unwrap();
        assert!(is_raw());
        std::mem::forget(raw);
        panic!("for a test");
    }

    #[test]
    fn a_panic_gives_the_terminal_back() {
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let mut line = OpenOptions::new();
        line.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
        let line = line.open(ptsname_r(&master).unwrap()).unwrap();
        let found = tcgetattr(&line).unwrap();
        let end = || Stdio::from(line.try_clone().unwrap());
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "terminal::tests::panics_in_raw_mode", "--ignored", "--nocapture"]);
        child.env("RUST_BACKTRACE", "0").stdin(end()).stdout(end()).stderr(end());
        assert!(!child.spawn().unwrap().wait().unwrap().success());
        let now = tcgetattr(&line).unwrap();
        assert_eq!(now.local_modes, found.local_modes);
        assert_eq!((now.input_modes, now.output_modes), (found.input_modes, found.output_modes));
        // What the panic said is readable: lines begin at the left.
        drop((child, line));
        let (mut shown, mut end) = (Vec::new(), File::from(OwnedFd::from(master)));
        // Once nobody holds the other end, all that was written is followed by an error.
        let _all_was_read = end.read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown).into_owned();
        assert!(shown.contains("panicked at ") && shown.contains(":\r\nfor a test\r\n"), "{shown:?}");
    }
}
