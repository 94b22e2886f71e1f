//! The execs of a container of the `process` runtime, on the worker's side. A
//! desk holds what is to be said to the inner supervisor about each until the
//! container's keeper has said it, and hands the supervisor's reports to
//! whoever waits. What there is to say is a state and no queue, so it is
//! bounded by the execs there are.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use levers9_wire::valid::Env;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::{Course, Exec, ExecEnd, Executing, NoExec, StartFailure};
use crate::supervisor::channel;
use crate::supervisor::protocol::{self, Command, Order, Outcome, Report, StageReport};

/// The most execs at once in one container, those included whose caller is
/// gone and whose processes are about to be.
const EXECS: usize = 512;
/// How long it may take until a command runs.
const START: Duration = Duration::from_secs(30);

/// What every command in a container begins with.
#[derive(Debug)]
pub(super) struct Base {
    /// The container's own environment.
    pub(super) env: Env,
    /// A variable that comes last and cannot be changed.
    pub(super) last: (String, Vec<u8>),
    /// The container's own working directory.
    pub(super) workdir: PathBuf,
    /// As in [`Command`].
    pub(super) data_limit: Option<u64>,
}

impl Base {
    /// The command with its environment and place.
    fn command(&self, argv: Vec<String>, env: Env, workdir: Option<PathBuf>) -> Command {
        let mut all = self.env.0.clone();
        let workdir = match workdir {
            Some(given) => {
                let place = self.workdir.join(given);
                all.push(("PWD".to_owned(), place.as_os_str().as_encoded_bytes().to_vec()));
                place
            }
            None => self.workdir.clone(),
        };
        all.extend(env.0);
        all.push(self.last.clone());
        Command { argv, env: all, workdir, cgroups: Vec::new(), data_limit: self.data_limit }
    }
}

/// Where execs are left for the keeper of their container.
#[derive(Debug, Default)]
pub(super) struct Desk {
    state: Mutex<State>,
    work: Notify,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    next: u64,
    execs: HashMap<u64, Slot>,
}

/// One exec.
#[derive(Debug)]
struct Slot {
    /// The stage's end of the socket, until the supervisor has it.
    socket: Option<OwnedFd>,
    /// The command runs: it can be signalled.
    started: bool,
    /// The signals to be sent, one bit each.
    signals: u64,
    verdict: Verdict,
    /// The supervisor was told the verdict.
    told: bool,
    /// Until its end was reported.
    ended: Option<oneshot::Sender<Outcome>>,
}

/// What is to become of an exec's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Somebody waits for its end.
    Open,
    /// Its caller was gone before it had heard of an end: all of it ends.
    HangUp,
    /// Its end was heard: what is left of it may stay.
    Forget,
}

impl Slot {
    /// Whether there is nothing more to hear or to say.
    fn is_over(&self) -> bool {
        self.ended.is_none() && self.told
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, socket: OwnedFd) -> Result<(u64, oneshot::Receiver<Outcome>), NoExec> {
        let mut state = self.lock();
        if state.closed {
            return Err(NoExec::Ended);
        }
        if state.execs.len() >= EXECS {
            return Err(NoExec::Busy);
        }
        let (ended, end) = oneshot::channel();
        let id = state.next;
        state.next += 1;
        let slot = Slot {
            socket: Some(socket),
            started: false,
            signals: 0,
            verdict: Verdict::Open,
            told: false,
            ended: Some(ended),
        };
        state.execs.insert(id, slot);
        drop(state);
        self.work.notify_one();
        Ok((id, end))
    }

    /// Changes one exec, if it has not ended.
    fn tell(&self, id: u64, change: impl FnOnce(&mut Slot)) {
        if let Some(slot) = self.lock().execs.get_mut(&id) {
            change(slot);
        }
        self.work.notify_one();
    }

    fn signal(&self, id: u64, signal: i32) {
        match u32::try_from(signal) {
            Ok(bit @ 1..=63) => self.tell(id, |slot| slot.signals |= 1 << bit),
            _ => tracing::debug!(signal, "there is no such signal"),
        }
    }

    /// Judges an exec; the first verdict holds.
    fn judge(&self, id: u64, verdict: Verdict) {
        self.tell(id, |slot| {
            if slot.verdict == Verdict::Open {
                slot.verdict = verdict;
            }
        });
    }

    /// Waits until there may be something to be said.
    pub(super) async fn work(&self) {
        self.work.notified().await;
    }

    /// What is to be said to the inner supervisor now, each once.
    pub(super) fn orders(&self) -> Vec<(Order, Option<OwnedFd>)> {
        let mut orders = Vec::new();
        let mut state = self.lock();
        // One that was not begun and is not wanted is simply forgotten.
        state.execs.retain(|_, slot| slot.socket.is_none() || slot.verdict == Verdict::Open);
        for (id, slot) in &mut state.execs {
            let id = *id;
            if let Some(socket) = slot.socket.take() {
                orders.push((Order::Exec { id }, Some(socket)));
            }
            if slot.started {
                let signals = std::mem::take(&mut slot.signals);
                let wanted = (1..=63).filter(|bit| signals >> bit & 1 == 1);
                orders.extend(wanted.map(|signal| (Order::ExecSignal { id, signal }, None)));
            }
            let verdict = match slot.verdict {
                Verdict::HangUp if !slot.told => Order::ExecHangUp { id },
                Verdict::Forget if !slot.told => Order::ExecForget { id },
                _ => continue,
            };
            slot.told = true;
            orders.push((verdict, None));
        }
        state.execs.retain(|_, slot| !slot.is_over());
        orders
    }

    /// Takes a report; `false` when it is none that may come now.
    pub(super) fn take(&self, report: Report) -> bool {
        let Report::ExecEnded { id, outcome } = report else { return false };
        let mut state = self.lock();
        if let Some(ended) = state.execs.get_mut(&id).and_then(|slot| slot.ended.take()) {
            // Its caller may be gone.
            let _gone = ended.send(outcome);
        }
        state.execs.retain(|_, slot| !slot.is_over());
        true
    }

    /// The container has ended, and all that was in it.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.execs.clear();
    }
}

/// Begins an exec.
pub(super) fn begin(desk: &Arc<Desk>, base: &Base, exec: Exec) -> Result<Executing, NoExec> {
    let (ours, theirs) = UnixStream::pair().map_err(|_| NoExec::NoDescriptors)?;
    let (id, end) = desk.add(theirs.into())?;
    let Exec { argv, env, workdir, stdio, terminal } = exec;
    let command = base.command(argv, env, workdir);
    let told = Arc::clone(desk);
    let course = Follower {
        desk: Arc::clone(desk),
        id,
        begun: Some((ours, protocol::Exec { command, terminal }, stdio)),
        end,
    };
    Ok(Executing { course: Box::new(course), signal: Box::new(move |signal| told.signal(id, signal)) })
}

/// Follows one exec.
struct Follower {
    desk: Arc<Desk>,
    id: u64,
    /// What the stage is to be told, until it was.
    begun: Option<(UnixStream, protocol::Exec, [OwnedFd; 3])>,
    end: oneshot::Receiver<Outcome>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Without effect when its end was heard.
        self.desk.judge(self.id, Verdict::HangUp);
    }
}

#[async_trait]
impl Course for Follower {
    async fn started(&mut self) -> Result<(), ExecEnd> {
        let Some((socket, exec, stdio)) = self.begun.take() else { return Ok(()) };
        let starting = async {
            match talk(socket, &exec, stdio).await {
                Ok(Stage::Runs) => Ok(()),
                Ok(Stage::Failed(outcome)) => Err(not_started(outcome)),
                Ok(Stage::Silent) => Err(match (&mut self.end).await {
                    Ok(outcome) => not_started(outcome),
                    Err(_) => ExecEnd::WithContainer,
                }),
                Err(error) => Err(failed(format!("cannot talk to the command's stage: {error}"))),
            }
        };
        match timeout(START, starting).await {
            Ok(started) => started?,
            Err(_) => return Err(failed(format!("the command did not start within {START:?}"))),
        }
        self.desk.tell(self.id, |slot| slot.started = true);
        Ok(())
    }

    async fn ended(&mut self) -> ExecEnd {
        let end = (&mut self.end).await;
        self.desk.judge(self.id, Verdict::Forget);
        match end {
            Ok(Outcome::Exited { code }) => ExecEnd::Exited(code),
            Ok(Outcome::Signaled { signal }) => ExecEnd::Signaled(signal),
            Ok(other) => not_started(other),
            Err(_) => ExecEnd::WithContainer,
        }
    }
}

/// How a stage ended.
enum Stage {
    Runs,
    Failed(Outcome),
    /// Its socket closed before it said anything: the supervisor knows why.
    Silent,
}

/// Tells a stage what to become, and waits until it has.
async fn talk(socket: UnixStream, exec: &protocol::Exec, stdio: [OwnedFd; 3]) -> std::io::Result<Stage> {
    let (mut send, mut recv) = channel::split(socket)?;
    send.queue(exec, stdio.into())?;
    if send.flush().await.is_err() {
        return Ok(Stage::Silent);
    }
    let mut stage = Stage::Silent;
    loop {
        match recv.next::<StageReport>().await {
            Ok(Some(StageReport::Ready)) => stage = Stage::Runs,
            Ok(Some(StageReport::Failed { outcome })) => return Ok(Stage::Failed(outcome)),
            // A stage that dies with something unread resets its socket.
            Ok(None) | Err(_) => return Ok(stage),
        }
    }
}

fn failed(words: String) -> ExecEnd {
    ExecEnd::NotStarted(StartFailure { exit_code: 126, words })
}

fn not_started(outcome: Outcome) -> ExecEnd {
    match outcome {
        Outcome::NotFound { words } => ExecEnd::NotStarted(StartFailure { exit_code: 127, words }),
        Outcome::NotExecutable { words } | Outcome::StartFailed { words } | Outcome::Lost { words } => {
            failed(words)
        }
        Outcome::Exited { code } => failed(format!("the command's stage ended with code {code}")),
        Outcome::Signaled { signal } => failed(format!("the command's stage was killed by signal {signal}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> OwnedFd {
        UnixStream::pair().expect("made").0.into()
    }

    fn shown(desk: &Desk) -> Vec<String> {
        desk.orders().iter().map(|(order, socket)| format!("{order:?} {}", socket.is_some())).collect()
    }

    #[test]
    fn each_thing_is_said_once_and_signals_wait_for_the_start() {
        let desk = Desk::default();
        let (id, mut end) = desk.add(socket()).expect("open");
        desk.signal(id, 15);
        desk.signal(id, 15);
        desk.signal(id, -1);
        desk.signal(id, 64);
        assert_eq!(shown(&desk), ["Exec { id: 0 } true"]);
        desk.tell(id, |slot| slot.started = true);
        assert_eq!(shown(&desk), ["ExecSignal { id: 0, signal: 15 } false"]);
        desk.judge(id, Verdict::HangUp);
        assert_eq!(shown(&desk), ["ExecHangUp { id: 0 } false"]);
        assert_eq!(shown(&desk), [""; 0]);
        assert!(desk.take(Report::ExecEnded { id, outcome: Outcome::Exited { code: 4 } }));
        assert_eq!(end.try_recv(), Ok(Outcome::Exited { code: 4 }));
        assert!(desk.lock().execs.is_empty());
        assert!(!desk.take(Report::Started { pid: 1 }));
    }

    #[test]
    fn an_end_that_nobody_heard_is_a_hang_up_all_the_same() {
        for (verdict, order) in [(Verdict::HangUp, "ExecHangUp"), (Verdict::Forget, "ExecForget")] {
            let desk = Desk::default();
            let (id, _end) = desk.add(socket()).expect("open");
            assert_eq!(shown(&desk), ["Exec { id: 0 } true"]);
            assert!(desk.take(Report::ExecEnded { id, outcome: Outcome::Exited { code: 4 } }));
            assert_eq!(shown(&desk), [""; 0]);
            desk.judge(id, verdict);
            desk.judge(id, Verdict::HangUp);
            assert_eq!(shown(&desk), [format!("{order} {{ id: 0 }} false")]);
            assert!(desk.lock().execs.is_empty());
        }
    }

    #[test]
    fn one_that_is_given_up_before_it_was_begun_is_never_begun() {
        let desk = Desk::default();
        let (id, mut end) = desk.add(socket()).expect("open");
        desk.judge(id, Verdict::HangUp);
        assert_eq!(shown(&desk), [""; 0]);
        assert!(end.try_recv().is_err());
    }

    #[test]
    fn there_is_a_most_and_an_end() {
        let desk = Desk::default();
        let mut ends: Vec<_> = (0..EXECS).map(|_| desk.add(socket()).expect("open")).collect();
        assert_eq!(desk.add(socket()).err(), Some(NoExec::Busy));
        desk.close();
        assert_eq!(desk.add(socket()).err(), Some(NoExec::Ended));
        assert!(ends.iter_mut().all(|(_, end)| end.try_recv().is_err()));
    }

    #[test]
    fn the_own_environment_comes_first_and_the_mark_last() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let base = Base {
            env: Env(vec![pair("A", "1"), pair("MARK", "x")]),
            last: pair("MARK", "true"),
            workdir: "/w".into(),
            data_limit: Some(7),
        };
        let command = base.command(vec![], Env(vec![pair("A", "2"), pair("MARK", "no")]), Some("sub".into()));
        let names: Vec<_> =
            command.env.iter().map(|(name, value)| format!("{name}={}", value.escape_ascii())).collect();
        assert_eq!(names, ["A=1", "MARK=x", "PWD=/w/sub", "A=2", "MARK=no", "MARK=true"]);
        assert_eq!((command.workdir, command.data_limit), ("/w/sub".into(), Some(7)));
        assert_eq!(base.command(vec![], Env::default(), Some("/tmp".into())).workdir, PathBuf::from("/tmp"));
    }
}
