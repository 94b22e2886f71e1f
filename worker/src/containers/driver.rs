//! The task that drives one container from its start until it is forgotten:
//! the shell around [`Life`].

use std::pin::Pin;
use std::sync::Arc;

use levers9_wire::valid::Spec;
use levers9_wire::{clock, v1};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::handle::Entry;
use super::{Shared, environment, remove_folder};
use crate::capacity::Booking;
use crate::life::{Action, Input, Life, Stop};
use crate::runtime::{Control, End, Launch, Limits, Running};
use crate::spool::{Drain, Writer};

/// Everything that is needed to drive a container.
pub(super) struct Job {
    pub(super) shared: Arc<Shared>,
    pub(super) entry: Arc<Entry>,
    pub(super) spec: Spec,
    pub(super) booking: Booking,
    pub(super) gpus: String,
    pub(super) writer: Writer,
}

impl Job {
    /// Drives it to its end and until it is forgotten.
    pub(super) async fn drive(self) {
        let Self { shared, entry, spec, booking, gpus, writer } = self;
        let launch = launch(&shared, &entry, &spec, &gpus);
        let mut shell = Shell {
            // Also when this task panics or is aborted.
            guard: Guard { shared: Arc::clone(&shared), entry: Arc::clone(&entry), booking: Some(booking) },
            life: Life::new(spec.timeout, shared.config.timeout_grace),
            control: None,
            end: None,
            output: Output::Writer(writer),
        };
        match shared.runtime.start(launch).await {
            Ok(running) => shell.started(running),
            Err(failure) => {
                shell.guard.clear();
                shell.apply(Input::StartFailed(failure));
            }
        }
        shell.run().await;
        drop(shell);

        remove_folder(entry.folder.join(environment::WORK)).await;
        wait_for_acknowledgements(&entry).await;
        remove_folder(entry.folder.clone()).await;
        shared.forget(entry.key);
    }
}

fn launch(shared: &Shared, entry: &Entry, spec: &Spec, gpus: &str) -> Launch {
    let workdir = environment::workdir(shared.config.workdir.as_deref(), &entry.folder);
    let needs = &spec.resources;
    Launch {
        container: entry.key.0,
        generation: entry.key.1,
        folder: entry.folder.clone(),
        argv: spec.command.clone(),
        env: environment::build(entry.key.0, spec, &shared.config.path, &workdir, gpus, entry.door_port()),
        workdir,
        limits: Limits {
            memory_bytes: needs.memory_given.then_some(needs.memory_bytes),
            cpu_millis: needs.cpu_given.then_some(needs.cpu_millis),
        },
    }
}

/// Who has the log's writer.
enum Output {
    Writer(Writer),
    Drain(Drain),
    Ending(JoinHandle<u64>),
    Ended,
}

impl Output {
    /// Waits for the end of the output and ends the log. May be cancelled and
    /// called again.
    async fn finish(&mut self) {
        if let Self::Drain(drain) = self {
            let writer = drain.done().await;
            // Without a writer the log has ended: its last act is to say so.
            *self = writer.map_or(Self::Ended, Self::Writer);
        }
        *self = match std::mem::replace(self, Self::Ended) {
            Self::Writer(writer) => Self::Ending(tokio::task::spawn_blocking(move || writer.end())),
            other => other,
        };
        if let Self::Ending(ending) = self {
            if let Err(error) = ending.await {
                tracing::error!(%error, "cannot end a log");
            }
            *self = Self::Ended;
        }
    }
}

struct Shell {
    guard: Guard,
    life: Life,
    control: Option<Control>,
    end: Option<Pin<Box<dyn Future<Output = End> + Send>>>,
    output: Output,
}

impl Shell {
    fn started(&mut self, running: Running) {
        let Running { pid, stdout, stderr, notes, control, inside, end } = running;
        if let Output::Writer(mut writer) = std::mem::replace(&mut self.output, Output::Ended) {
            for note in notes {
                tracing::warn!(container = %self.guard.entry.key.0, "{note}");
                writer.put(v1::LogStream::System, clock::unix_millis(), format!("{note}\n").as_bytes());
            }
            match Drain::start(&self.guard.entry.key.0.to_string(), stdout, stderr, writer) {
                Ok(drain) => self.output = Output::Drain(drain),
                Err(error) => {
                    tracing::error!(container = %self.guard.entry.key.0, %error, "cannot read its output")
                }
            }
        }
        self.control = Some(control);
        self.end = Some(end);
        self.guard.entry.set_inside(inside);
        self.apply(Input::Started { pid });
    }

    async fn run(&mut self) {
        let mut stop = self.guard.entry.stop.subscribe();
        stop.mark_changed();
        while !self.life.has_ended() {
            let input = self.next(&mut stop).await;
            if matches!(input, Input::Exited(_)) {
                self.guard.clear();
                self.end = None;
            }
            self.apply(input);
        }
    }

    async fn next(&mut self, stop: &mut watch::Receiver<Option<Stop>>) -> Input {
        let deadline = self.life.deadline();
        let tick = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            end = async {
                match &mut self.end {
                    Some(end) => end.await,
                    None => std::future::pending().await,
                }
            } => Input::Exited(end),
            () = self.output.finish(), if self.end.is_none() => {
                Input::Drained { records: self.guard.records() }
            }
            order = next_stop(stop) => Input::Stop(order),
            () = tick => Input::Tick,
        }
    }

    fn apply(&mut self, input: Input) {
        for action in self.life.on(input, Instant::now()) {
            match action {
                Action::TellStarted { pid } => {
                    let started = v1::RunStarted { pid: u64::from(pid) };
                    self.guard.entry.tell(v1::run_event::Kind::Started(started));
                }
                Action::Terminate => self.control.iter().for_each(Control::terminate),
                Action::Kill => self.control.iter().for_each(Control::kill),
                Action::CutLog => {
                    tracing::warn!(container = %self.guard.entry.key.0, "somebody still holds its output open; cutting it");
                    if let Output::Drain(drain) = &mut self.output {
                        drain.cut();
                    }
                }
                Action::TellEnded(ended) => self.guard.entry.tell(v1::run_event::Kind::Ended(ended)),
            }
        }
    }
}

async fn next_stop(stop: &mut watch::Receiver<Option<Stop>>) -> Stop {
    loop {
        if stop.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let order = stop.borrow_and_update().clone();
        if let Some(order) = order {
            return order;
        }
    }
}

async fn wait_for_acknowledgements(entry: &Entry) {
    let mut mark = entry.mark.subscribe();
    let mut progress = entry.spool.progress();
    // Both senders are in the entry: they do not go away meanwhile.
    drop(mark.wait_for(|mark| mark.ended && mark.acknowledged >= mark.last_event).await);
    drop(progress.wait_for(|progress| progress.is_settled()).await);
}

/// Sees that a container ends and its share is given back, whatever happens
/// to the task that drives it.
struct Guard {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    booking: Option<Booking>,
}

impl Guard {
    /// No process is left: what was booked is free again.
    fn clear(&mut self) {
        self.entry.set_clear();
        self.entry.set_over();
        self.give_back();
    }

    fn give_back(&mut self) {
        if let Some(booking) = self.booking.take() {
            self.shared.lock().capacity.give_back(booking);
        }
    }

    fn records(&self) -> u64 {
        self.entry.spool.progress().borrow().next_index
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.give_back();
        self.entry.set_over();
        // Without effect when the end was told.
        let reason = "the worker gave the container up".to_owned();
        let (outcome, log_records) = (v1::Outcome::WorkerFailed.into(), self.records());
        let ended = v1::RunEnded { outcome, reason, log_records, ..v1::RunEnded::default() };
        self.entry.tell(v1::run_event::Kind::Ended(ended));
    }
}
