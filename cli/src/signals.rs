//! The signals that end a command: Ctrl-C, and those that tell it to leave.

use std::fs;
use std::future::{Future, poll_fn};
use std::task::Poll;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::error::Error;

/// Which signal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// From outside: `kill`, or the machine shuts down.
    Terminate,
    /// The terminal is gone.
    HangUp,
    /// Ctrl-\\.
    Quit,
}

impl Signal {
    /// The exit code of a command that this signal ended.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::HangUp => 129,
            Self::Interrupt => crate::exit::INTERRUPTED,
            Self::Terminate => 143,
            Self::Quit => 131,
        }
    }

    /// Its number of signal(7).
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::HangUp => 1,
            Self::Interrupt => 2,
            Self::Quit => 3,
            Self::Terminate => 15,
        }
    }
}

/// Listens for them from now on.
#[derive(Debug)]
pub(crate) struct Signals {
    listening: Vec<(Signal, Stream)>,
}

impl Signals {
    /// Starts to listen. A signal this process was started to ignore, as under
    /// `nohup` or in the background of a script, stays ignored.
    pub(crate) fn listen() -> Result<Self, Error> {
        Self::to(&[
            (Signal::Interrupt, SignalKind::interrupt()),
            (Signal::Terminate, SignalKind::terminate()),
            (Signal::HangUp, SignalKind::hangup()),
        ])
    }

    /// Starts to listen, also to the one that would otherwise leave a core file.
    pub(crate) fn listen_to_quit_too() -> Result<Self, Error> {
        let mut signals = Self::listen()?;
        signals.listening.extend(Self::to(&[(Signal::Quit, SignalKind::quit())])?.listening);
        Ok(signals)
    }

    fn to(wanted: &[(Signal, SignalKind)]) -> Result<Self, Error> {
        let ignored = ignored_by_parent();
        let listening = wanted
            .iter()
            .filter(|(_, kind)| ignored & (1 << (kind.as_raw_value() - 1)) == 0)
            .map(|(which, kind)| Ok((*which, signal(*kind)?)))
            .collect::<std::io::Result<_>>()
            .map_err(|e| Error::failed("cannot listen for signals").because(e))?;
        Ok(Self { listening })
    }

    /// The next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let came = |(which, stream): &mut (Signal, Stream)| {
                stream.poll_recv(context).is_ready().then_some(*which)
            };
            self.listening.iter_mut().find_map(came).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Does something unless a signal comes first, which then ends the command.
    pub(crate) async fn or<T>(&mut self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            biased;
            signal = self.next() => Err(Error::silent(signal.exit_code())),
            result = work => result,
        }
    }
}

/// The signals this process was started to ignore, one bit each. Where the
/// system does not tell, none.
fn ignored_by_parent() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
