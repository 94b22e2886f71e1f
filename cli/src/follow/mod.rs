//! Follows a task or container: prints its log from a line on and waits for
//! its end. A lost connection is made again and the log goes on after the last
//! line printed. Ctrl-C cancels the task of a caller; a second one leaves.

mod progress;
mod reader;

use levers9_wire::TaskId;
use levers9_wire::v1::{self, call_open};
use tokio::task::JoinHandle;

use crate::args::Format;
use crate::client::{Client, Patience, refused};
use crate::error::Error;
use crate::exit;
use crate::output::{Output, Piece, reader_gone};
use crate::printer::Printer;
use crate::signals::{Signal, Signals};
use progress::{Heard, Progress};
use reader::Reader;

/// What to follow, and as what.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// What to read from where on.
    pub(crate) open: v1::FollowOpen,
    /// How to print.
    pub(crate) format: Format,
    /// The task to cancel at Ctrl-C, for a caller that knows it; otherwise a
    /// caller takes it from the first status.
    pub(crate) task: Option<TaskId>,
    /// A note the user has seen already.
    pub(crate) seen_note: String,
}

/// How following ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finish {
    /// The end of the task or of its log as it stands.
    pub(crate) ended: v1::FollowEnded,
    /// Whether this command cancelled the task.
    pub(crate) interrupted: bool,
}

/// Follows to the end.
///
/// Once a caller knows its task it waits for a lost controlplane until Ctrl-C,
/// and so does a follow that has seen something; others give up as any command.
pub(crate) async fn follow(
    client: &Client,
    plan: &Plan,
    signals: &mut Signals,
    printer: &mut Printer,
) -> Result<Finish, Error> {
    let output = Output::start()?;
    let run = Run {
        client,
        plan,
        task: plan.task,
        printer,
        output: &output,
        reader: Reader::new(plan.open.clone(), plan.task.is_some()),
        progress: Progress::new(plan.open.since_line, plan.format, plan.seen_note.clone()),
        pending: Vec::new(),
        interrupted: false,
        stopping: None,
    };
    let result = run.until_ended(signals).await;
    match result {
        Ok(Some(finish)) => {
            signals.or(output.finish()).await?;
            Ok(finish)
        }
        // Writing has failed; the writer knows why.
        Ok(None) => Err(output.finish().await.err().unwrap_or_else(|| Error::silent(exit::DONE))),
        Err(error) => Err(error),
    }
}

struct Run<'a> {
    client: &'a Client,
    plan: &'a Plan,
    /// The task to cancel at Ctrl-C.
    task: Option<TaskId>,
    printer: &'a mut Printer,
    output: &'a Output,
    reader: Reader,
    progress: Progress,
    /// What waits for room with the writer; nothing more is read meanwhile.
    pending: Vec<Piece>,
    /// Whether Ctrl-C was pressed.
    interrupted: bool,
    /// The call that cancels the task then, while it is under way.
    stopping: Option<JoinHandle<Result<(), Error>>>,
}

/// What happened next.
enum Event {
    Signal(Signal),
    ReaderGone,
    Written,
    WriteFailed,
    Stopped(Result<(), Error>),
    Heard(Result<reader::Event, Error>),
}

impl Run<'_> {
    /// `None` when the output cannot be written any more.
    async fn until_ended(mut self, signals: &mut Signals) -> Result<Option<Finish>, Error> {
        let gone = reader_gone();
        tokio::pin!(gone);
        let mut ended = None;
        loop {
            if self.pending.is_empty()
                && let Some(ended) = ended.take()
            {
                return Ok(Some(Finish { ended, interrupted: self.interrupted }));
            }
            let event = tokio::select! {
                biased;
                signal = signals.next() => Event::Signal(signal),
                () = &mut gone => Event::ReaderGone,
                () = self.output.failed() => Event::WriteFailed,
                room = self.output.room(), if !self.pending.is_empty() => match room {
                    Some(room) => {
                        room.send(std::mem::take(&mut self.pending));
                        Event::Written
                    }
                    None => Event::WriteFailed,
                },
                stopped = stopped(&mut self.stopping) => Event::Stopped(stopped),
                heard = self.reader.next(self.client), if self.pending.is_empty() => Event::Heard(heard),
            };
            match event {
                Event::Signal(signal) => self.on_signal(signal)?,
                Event::ReaderGone => return Err(Error::silent(exit::DONE)),
                Event::Written => {}
                Event::WriteFailed => return Ok(None),
                Event::Stopped(result) => self.on_stopped(result)?,
                Event::Heard(heard) => ended = self.on_heard(heard?)?,
            }
        }
    }

    /// Takes what came from the controlplane. `Some` at the end.
    fn on_heard(&mut self, event: reader::Event) -> Result<Option<v1::FollowEnded>, Error> {
        match event {
            reader::Event::Lost(why) => {
                self.note(&format!(
                    "the connection to {} is lost ({why}); trying again",
                    self.client.place()
                ));
            }
            reader::Event::Back => self.note(&format!("connected to {} again", self.client.place())),
            reader::Event::Said(said) => {
                self.learn_task(&said);
                return self.on_said(said);
            }
        }
        Ok(None)
    }

    /// A caller that asked by container is told which task it is.
    fn learn_task(&mut self, said: &v1::FollowEvent) {
        if let (None, true, Some(v1::follow_event::Kind::Status(status))) =
            (self.task, self.plan.open.caller, &said.kind)
        {
            self.task = TaskId::try_from(status.task.as_slice()).ok();
        }
    }

    fn on_said(&mut self, said: v1::FollowEvent) -> Result<Option<v1::FollowEnded>, Error> {
        match self.progress.take(said) {
            Heard::Print(pieces, last_line) => {
                self.reader.printed(last_line);
                self.pending = pieces;
            }
            Heard::Ended(ended) => return Ok(Some(ended)),
            Heard::Failed(failure) if reader::passes(failure.code()) => self.reader.give_up_stream(),
            Heard::Failed(failure) => return Err(refused(failure)),
        }
        Ok(None)
    }

    /// Ctrl-C cancels a caller's task and waits for its end. Everything else
    /// leaves.
    fn on_signal(&mut self, signal: Signal) -> Result<(), Error> {
        match (self.task, signal) {
            (Some(task), Signal::Interrupt) if !self.interrupted => {
                self.interrupted = true;
                self.printer.note("cancelling the task; press Ctrl-C again to leave at once");
                let client = self.client.clone();
                let stop = call_open::Request::TaskStop(v1::TaskStopRequest { task: task.to_wire() });
                let call = async move { client.call(stop, Patience::Forever).await.map(drop) };
                self.stopping = Some(tokio::spawn(call));
                Ok(())
            }
            (Some(task), Signal::Terminate | Signal::HangUp) => {
                self.printer.note(&format!(
                    "leaving; task {task} waits 120 s for a caller unless it is detached: levers9 attach {task}"
                ));
                Err(Error::silent(signal.exit_code()))
            }
            _ => Err(Error::silent(signal.exit_code())),
        }
    }

    fn on_stopped(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        self.stopping = None;
        // The end of the task comes with its log; only a refusal ends the wait.
        let Err(error) = result else { return Ok(()) };
        self.printer.note(&format!("the task was not cancelled: {}", error.chain()));
        Err(Error::silent(exit::INTERRUPTED))
    }

    fn note(&mut self, text: &str) {
        if self.plan.format == Format::Text {
            self.pending.push(Piece::Note(crate::printer::note_line(text)));
        } else {
            self.printer.note(text);
        }
    }
}

/// The result of the call under way, if there is one. Cancel safe; not to be
/// asked again once it has answered.
async fn stopped(call: &mut Option<JoinHandle<Result<(), Error>>>) -> Result<(), Error> {
    match call {
        Some(call) => call.await.unwrap_or_else(|e| Err(Error::failed("the call has failed").because(e))),
        None => std::future::pending().await,
    }
}
