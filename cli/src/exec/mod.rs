//! One command in a container: input and signals go to it, output comes back,
//! and its end is this command's exit code. Only a word about its end counts
//! as one: whatever else ends the stream is a failure, and nothing is resumed
//! or tried again, because the command ends with its caller.

mod escape;
mod input;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use levers9_transport::{FrameRecv, FrameSend, Stream, StreamError};
use levers9_wire::v1::{self, ResetCode, exec_input, exec_output, stream_open};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::{Client, refused};
use crate::error::Error;
use crate::exit;
use crate::output::{Output, Piece, reader_gone};
use crate::printer::Printer;
use crate::signals::{Signal, Signals};
use crate::terminal::{self, Change, Changes, Raw};
use escape::Escape;
use input::Input;

/// Output that is held while the one before is written, in bytes.
const HELD: usize = 256 * 1024;
/// How long a command that was told to end may take before it is left.
const MOMENT: Duration = Duration::from_secs(1);
/// How long the last output may take when nobody waits for the end.
const LAST_OUTPUT: Duration = Duration::from_millis(100);
/// How long the signal may take that says that the terminal is gone.
const HANGING_UP: Duration = Duration::from_millis(250);

/// The terminal the command gets: what happens to the one here.
#[derive(Debug)]
pub(crate) struct Window {
    changes: Changes,
    /// The size the command was told last.
    told: v1::TerminalSize,
}

impl Window {
    /// The terminal here. Listens before it looks, so that no change is missed.
    pub(crate) fn open() -> Result<Self, Error> {
        let changes = Changes::listen()?;
        Ok(Self { changes, told: terminal::size() })
    }

    /// The size it has at first.
    pub(crate) fn size(&self) -> v1::TerminalSize {
        self.told
    }
}

/// Runs a command over a session there is and waits for its end. Returns the
/// exit code.
pub(crate) async fn exec(
    client: &Client,
    open: v1::ExecOpen,
    window: Option<Window>,
    signals: &mut Signals,
    printer: &mut Printer,
) -> Result<u8, Error> {
    let stdin = open.stdin;
    let opened = async { client.open(stream_open::Kind::Exec(open)).await.map_err(|e| client.broken(&e)) };
    let Stream { send, recv } = signals.or(opened).await?;
    let output = Output::start()?;
    let mut run = Run {
        client,
        send,
        recv,
        pending: Vec::new(),
        held: 0,
        stdin,
        input: None,
        window,
        raw: None,
        resized: false,
        started: false,
        deaf: false,
        asked: false,
        leaving: None,
        left: false,
        // One that is gone no longer says that it is one.
        shown: io::stdout().is_terminal(),
        escape: Escape::default(),
    };
    let result = run.until_ended(&output, signals).await;
    let (left, leaving) = (run.left, run.leaving);
    let (line_open, result) = tokio::select! {
        written = written(result, output, run.shown, signals) => written,
        code = late(leaving), if !left => (true, Err(Error::silent(code))),
    };
    // The stream is given up, and the terminal is as it was before anything is said.
    drop(run);
    let says = match &result {
        Ok((_, said)) => said.is_some(),
        Err(error) => left || !error.is_silent(),
    };
    if says && line_open {
        printer.fresh_line();
    }
    if left {
        printer.note("leaving; the command is ended");
    }
    let (code, said) = result?;
    if let Some(said) = said {
        printer.note(&said);
    }
    // Told to leave, it has left, however the command took it.
    Ok(leaving.map_or(code, |(signal, _)| signal.exit_code()))
}

/// How it came to its end.
enum End {
    /// The controlplane said so: the command has ended, or why nothing more
    /// comes of it.
    Told(Result<v1::ExecEnded, Error>),
    /// The output cannot be written any more.
    WriteFailed,
}

/// Waits until the output is written: all there is, unless nobody waits for
/// it. Says whether its last line was left open, and what the end means;
/// `shown`: on a terminal, which may be gone.
async fn written(
    result: Result<End, Error>,
    output: Output,
    shown: bool,
    signals: &mut Signals,
) -> (bool, Result<(u8, Option<String>), Error>) {
    match result {
        Ok(End::Told(told)) => match signals.or(output.finish()).await {
            Ok(line_open) => (line_open, told.map(|ended| exit::of_exec(&ended))),
            Err(error) => (true, Err(error)),
        },
        // The writer knows why.
        Ok(End::WriteFailed) => {
            let error = output.finish().await.err().unwrap_or_else(|| Error::silent(exit::DONE));
            (false, Err(if shown { unless_hung_up(error, signals).await } else { error }))
        }
        Err(error) => match timeout(LAST_OUTPUT, output.finish()).await {
            Ok(Ok(line_open)) => (line_open, Err(error)),
            _ => (true, Err(error)),
        },
    }
}

/// A terminal that is gone fails to be read and written; the signal that says
/// so says more than the failure.
async fn unless_hung_up(error: Error, signals: &mut Signals) -> Error {
    match timeout(HANGING_UP, signals.next()).await {
        Ok(signal) => Error::silent(signal.exit_code()),
        Err(_) => error,
    }
}

struct Run<'a> {
    client: &'a Client,
    send: FrameSend,
    recv: FrameRecv,
    /// What waits for room with the writer, and how many bytes that are.
    pending: Vec<Piece>,
    held: usize,
    /// Whether the command gets standard input.
    stdin: bool,
    /// Standard input, from the start of the command to its end.
    input: Option<Input>,
    window: Option<Window>,
    raw: Option<Raw>,
    /// Whether the command is to be told the terminal's size.
    resized: bool,
    started: bool,
    /// Whether the command takes nothing more.
    deaf: bool,
    /// Whether Ctrl-C was passed on.
    asked: bool,
    /// Which signal tells this command to leave, and when it does.
    leaving: Option<(Signal, Instant)>,
    /// Whether it has left a command that ran.
    left: bool,
    /// Whether the output goes to a terminal.
    shown: bool,
    /// The way out when every key goes to a command that is not reached.
    escape: Escape,
}

/// What happened next.
enum Event {
    Signal(Signal),
    Late,
    ReaderGone,
    Written,
    WriteFailed,
    Terminal(Change),
    Said(Result<Option<v1::ExecOutput>, StreamError>),
    Sent(Result<(), StreamError>),
    Typed(Result<Vec<u8>, Error>),
    Hangs,
}

impl Run<'_> {
    async fn until_ended(&mut self, output: &Output, signals: &mut Signals) -> Result<End, Error> {
        let gone = reader_gone();
        tokio::pin!(gone);
        let mut told = None;
        loop {
            // What came before the end is written before it.
            if self.pending.is_empty()
                && let Some(told) = told.take()
            {
                return Ok(End::Told(told));
            }
            self.tell_size()?;
            // None of these comes before the others: neither much output nor
            // much input may hold up the other direction or a signal.
            let event = tokio::select! {
                signal = signals.next() => Event::Signal(signal),
                _code = late(self.leaving) => Event::Late,
                () = &mut gone => Event::ReaderGone,
                () = output.failed() => Event::WriteFailed,
                room = output.room(), if !self.pending.is_empty() => match room {
                    Some(room) => {
                        self.held = 0;
                        room.send(std::mem::take(&mut self.pending));
                        Event::Written
                    }
                    None => Event::WriteFailed,
                },
                () = self.escape.hangs() => Event::Hangs,
                change = change(&mut self.window) => Event::Terminal(change),
                said = self.recv.next(), if self.held < HELD && told.is_none() => Event::Said(said),
                sent = self.send.flush(), if self.send.has_pending() && !self.deaf => Event::Sent(sent),
                typed = typed(&mut self.input), if !self.send.has_pending() => Event::Typed(typed),
            };
            match event {
                Event::Signal(signal) => self.on_signal(signal)?,
                Event::Late => return Err(self.leave()),
                Event::ReaderGone if self.shown => {
                    return Err(unless_hung_up(Error::silent(Signal::HangUp.exit_code()), signals).await);
                }
                Event::ReaderGone => return Err(Error::silent(exit::DONE)),
                Event::Written => {}
                Event::WriteFailed => return Ok(End::WriteFailed),
                Event::Terminal(change) => self.on_change(change),
                Event::Hangs => {
                    // Lines do not begin at the left by themselves in raw mode.
                    let text = format!(
                        "\r\nlevers9: {} does not answer; press Ctrl-C again to leave\r\n",
                        self.client.place()
                    );
                    self.pending.push(Piece::Err(text.into_bytes()));
                }
                Event::Said(Ok(said)) => {
                    self.escape.heard();
                    told = self.on_said(said).transpose();
                }
                Event::Said(Err(error)) => told = Some(Err(self.lost(&error))),
                Event::Sent(Ok(())) => {}
                // The rest is not read. Why, the other direction says.
                Event::Sent(Err(_)) => self.hush(),
                Event::Typed(Ok(piece)) => self.on_typed(piece)?,
                Event::Typed(Err(error)) if self.window.is_some() => {
                    return Err(unless_hung_up(error, signals).await);
                }
                Event::Typed(Err(error)) => return Err(error),
            }
            if told.is_some() {
                self.hush();
            }
        }
    }

    /// Takes what came from the controlplane. `Some` at the end.
    fn on_said(&mut self, said: Option<v1::ExecOutput>) -> Result<Option<v1::ExecEnded>, Error> {
        // A stream that stops without a word about the end is a lost one.
        let Some(said) = said else { return Err(self.lost(&StreamError::Early)) };
        match said.kind {
            Some(exec_output::Kind::Started(_)) if !self.started => self.start()?,
            Some(exec_output::Kind::Stdout(bytes)) => {
                self.held += bytes.len();
                self.pending.push(Piece::Out(bytes.into()));
            }
            Some(exec_output::Kind::Stderr(bytes)) => {
                self.held += bytes.len();
                self.pending.push(Piece::Err(bytes.into()));
            }
            Some(exec_output::Kind::Ended(ended)) => return Ok(Some(ended)),
            Some(exec_output::Kind::Failure(failure)) => return Err(refused(failure)),
            // A kind this build does not know; the rest is still readable.
            Some(exec_output::Kind::Started(_)) | None => {}
        }
        Ok(None)
    }

    /// The command runs: from here on input is read, and keys are its own.
    fn start(&mut self) -> Result<(), Error> {
        self.started = true;
        if self.window.is_some() {
            self.raw = Some(Raw::enter()?);
            self.resized = true;
        }
        if self.stdin && !self.deaf {
            self.input = Some(Input::start()?);
        }
        Ok(())
    }

    fn on_typed(&mut self, piece: Vec<u8>) -> Result<(), Error> {
        if piece.is_empty() {
            self.input = None;
            return self.queue(exec_input::Kind::StdinEnd(v1::StdinEnd {}));
        }
        if self.raw.is_some() && self.escape.typed(&piece, self.client) {
            self.leaving = Some((Signal::Interrupt, Instant::now()));
            return Err(self.leave());
        }
        self.queue(exec_input::Kind::Stdin(piece.into()))
    }

    fn on_change(&mut self, change: Change) {
        if let (Change::Continued, Some(raw)) = (change, &self.raw) {
            raw.again();
        }
        self.resized = self.started;
    }

    /// Tells the command the size its terminal has now, once what was said
    /// before is on its way.
    fn tell_size(&mut self) -> Result<(), Error> {
        if !self.resized || self.deaf || self.send.has_pending() {
            return Ok(());
        }
        self.resized = false;
        let size = terminal::size();
        match &mut self.window {
            Some(window) if window.told != size => {
                window.told = size;
                self.queue(exec_input::Kind::Resize(size))
            }
            _ => Ok(()),
        }
    }

    /// The first Ctrl-C is the command's, which decides what comes of it; a
    /// second one leaves. Being told to leave, the command is told first.
    fn on_signal(&mut self, signal: Signal) -> Result<(), Error> {
        let again = match signal {
            Signal::Interrupt | Signal::Quit => std::mem::replace(&mut self.asked, true),
            Signal::Terminate | Signal::HangUp => self.leaving.is_some(),
        };
        if again || !self.started || self.deaf || self.window.is_some() {
            self.leaving = Some((signal, Instant::now()));
            return Err(self.leave());
        }
        if matches!(signal, Signal::Terminate | Signal::HangUp) {
            self.leaving = Some((signal, Instant::now() + MOMENT));
        }
        self.queue(exec_input::Kind::Signal(signal.number()))
    }

    /// Gives the command up, which ends it.
    fn leave(&mut self) -> Error {
        self.left = self.started;
        self.send.reset(ResetCode::Cancelled);
        self.recv.stop(ResetCode::Cancelled);
        Error::silent(self.leaving.map_or(exit::INTERRUPTED, |(signal, _)| signal.exit_code()))
    }

    /// Nothing more goes to the command.
    fn hush(&mut self) {
        self.deaf = true;
        self.input = None;
    }

    fn queue(&mut self, kind: exec_input::Kind) -> Result<(), Error> {
        if self.deaf {
            return Ok(());
        }
        self.send.queue(&v1::ExecInput { kind: Some(kind) }).map_err(|e| self.client.broken(&e))
    }

    /// What the end of the stream without a word about the command's means.
    fn lost(&self, error: &StreamError) -> Error {
        let place = self.client.place();
        let why = match error {
            StreamError::Reset(reset) if reset.code == ResetCode::Revoked => {
                return self.client.broken(error);
            }
            StreamError::Reset(reset) if reset.code == ResetCode::Unsupported => {
                return Error::failed(format!("the controlplane at {place} runs no commands in containers"))
                    .hint("upgrade it");
            }
            StreamError::Lost(lost) => self.client.why_lost(lost),
            other => other.to_string(),
        };
        let (what, hint) = if self.started {
            ("; the command was ended with it", "the output may not be all of it, and nothing is resumed")
        } else {
            (" before the command was started", "had it started after all, it was ended: run it again")
        };
        Error::failed(format!("the connection to {place} was lost{what}")).because(why).hint(hint)
    }
}

/// Returns when it is time to leave, with the exit code.
async fn late(leaving: Option<(Signal, Instant)>) -> u8 {
    match leaving {
        Some((signal, when)) => {
            sleep_until(when).await;
            signal.exit_code()
        }
        None => std::future::pending().await,
    }
}

/// The next change of the terminal, if there is one. Cancel safe.
async fn change(window: &mut Option<Window>) -> Change {
    match window {
        Some(window) => window.changes.next().await,
        None => std::future::pending().await,
    }
}

/// The next of standard input, if that is read. Cancel safe.
async fn typed(input: &mut Option<Input>) -> Result<Vec<u8>, Error> {
    match input {
        Some(input) => input.next().await,
        None => std::future::pending().await,
    }
}
