//! A controlplane that does what a test tells it, over a real session. It
//! knows nothing of jobs; it answers calls and follows by a script and keeps
//! what it was asked.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use levers9_transport::Stream;
use levers9_transport::accept::{Acceptor, Gate, Limits, Refusal, Session};
use levers9_transport::cert::Authority;
use levers9_transport::link::Opened;
use levers9_transport::quic::{Endpoint, Identity, ServerKeys, Settings, bind};
use levers9_wire::v1::{self, ResetCode, call_answer, call_open, follow_event, stream_open};
use levers9_wire::{TaskId, valid};
use tokio::runtime::{Handle, Runtime};

/// What the controlplane does on a stream.
#[expect(clippy::large_enum_variant, reason = "a script has a handful of steps")]
pub(crate) enum Step {
    /// Sends this.
    Event(follow_event::Kind),
    /// Answers a call.
    Answer(call_answer::Answer),
    /// Hands the stream to a test; what it returns closes the whole session.
    With(Played),
    /// Waits until the task was asked to stop.
    UntilStopped,
    /// Says nothing more and keeps the stream.
    Hang,
    /// Closes the whole session with a code.
    Close(ResetCode),
}

/// A test's own code for one stream.
pub(crate) type Played =
    Box<dyn FnOnce(Stream) -> Pin<Box<dyn Future<Output = Option<ResetCode>> + Send>> + Send>;

/// A step that hands the stream to a test.
pub(crate) fn with<F>(play: impl FnOnce(Stream) -> F + Send + 'static) -> Vec<Step>
where
    F: Future<Output = Option<ResetCode>> + Send + 'static,
{
    vec![Step::With(Box::new(move |stream| Box::pin(play(stream))))]
}

/// Decides what to do about a stream, by what it is and how often one of its
/// kind was opened before.
pub(crate) type Script = dyn Fn(&stream_open::Kind, usize) -> Vec<Step> + Send + Sync;

/// Why a token is refused, if it is.
pub(crate) type Door = dyn Fn(&str) -> Option<Refusal> + Send + Sync;

struct Scripted {
    script: Box<Script>,
    door: Box<Door>,
    asked: Mutex<Vec<stream_open::Kind>>,
    stopped: tokio::sync::watch::Sender<bool>,
}

/// A running controlplane.
pub(crate) struct Fake {
    gate: Arc<Scripted>,
    place: SocketAddr,
    pin: String,
    _runtime: Runtime,
    _certificates: tempfile::TempDir,
}

impl Fake {
    /// Starts one that lets everybody in.
    pub(crate) fn start(
        script: impl Fn(&stream_open::Kind, usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        Self::with_door(script, |_| None)
    }

    /// Starts one that refuses some tokens.
    pub(crate) fn with_door(
        script: impl Fn(&stream_open::Kind, usize) -> Vec<Step> + Send + Sync + 'static,
        door: impl Fn(&str) -> Option<Refusal> + Send + Sync + 'static,
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let now = levers9_wire::clock::unix_millis() / 1000;
        let authority = Authority::open(folder.path(), &["127.0.0.1".to_owned()], now).unwrap();
        let identity = Identity { certificate: authority.resolver(), keys: ServerKeys { reset: [7; 64] } };
        let gate = Arc::new(Scripted {
            script: Box::new(script),
            door: Box::new(door),
            asked: Mutex::default(),
            stopped: tokio::sync::watch::channel(false).0,
        });
        let place = runtime.block_on(async {
            let socket = bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
            let endpoint = Endpoint::accepting(socket, &Settings::default(), &identity).unwrap();
            let place = endpoint.local_addr().unwrap();
            let acceptor = Acceptor::new(endpoint, Arc::clone(&gate), Limits::default(), Handle::current());
            tokio::spawn(async move { acceptor.run().await });
            place
        });
        Self { gate, place, pin: authority.pin().to_string(), _runtime: runtime, _certificates: folder }
    }

    /// What to dial.
    pub(crate) fn address(&self) -> String {
        format!("levers9://{}#{}", self.place, self.pin)
    }

    /// The host and port.
    pub(crate) fn place(&self) -> String {
        self.place.to_string()
    }

    /// The follows so far, by what they were opened with.
    pub(crate) fn follows(&self) -> Vec<v1::FollowOpen> {
        let pick = |kind: &stream_open::Kind| match kind {
            stream_open::Kind::Follow(open) => Some(open.clone()),
            _ => None,
        };
        self.gate.asked.lock().unwrap().iter().filter_map(pick).collect()
    }

    /// The calls so far.
    pub(crate) fn calls(&self) -> Vec<v1::CallOpen> {
        let pick = |kind: &stream_open::Kind| match kind {
            stream_open::Kind::Call(open) => Some(open.clone()),
            _ => None,
        };
        self.gate.asked.lock().unwrap().iter().filter_map(pick).collect()
    }

    /// The commands so far, by what they were opened with.
    pub(crate) fn execs(&self) -> Vec<v1::ExecOpen> {
        let pick = |kind: &stream_open::Kind| match kind {
            stream_open::Kind::Exec(open) => Some(open.clone()),
            _ => None,
        };
        self.gate.asked.lock().unwrap().iter().filter_map(pick).collect()
    }
}

impl Gate for Scripted {
    type Admitted = ();

    async fn admit(&self, hello: valid::Hello, _peer: SocketAddr) -> Result<(v1::Welcome, ()), Refusal> {
        match (self.door)(hello.token.expose()) {
            Some(refusal) => Err(refusal),
            None => Ok((v1::Welcome::default(), ())),
        }
    }

    async fn serve(self: Arc<Self>, mut session: Session, _admitted: ()) {
        while let Some(opened) = session.next().await {
            let same = |kind: &stream_open::Kind| name_of(kind) == name_of(&opened.kind);
            let before = {
                let mut asked = self.asked.lock().unwrap();
                let before = asked.iter().filter(|kind| same(kind)).count();
                asked.push(opened.kind.clone());
                before
            };
            if name_of(&opened.kind) == "stop" {
                self.stopped.send_replace(true);
            }
            let (gate, handle) = (Arc::clone(&self), session.handle().clone());
            tokio::spawn(async move {
                let steps = (gate.script)(&opened.kind, before);
                if let Some(code) = gate.play(opened, steps).await {
                    handle.close(code, "");
                }
            });
        }
    }
}

impl Scripted {
    /// Plays the steps; the code to close the session with, if that is one.
    async fn play(&self, mut opened: Opened, steps: Vec<Step>) -> Option<ResetCode> {
        for step in steps {
            match step {
                Step::Event(kind) => {
                    let _gone = opened.stream.send.send(&v1::FollowEvent { kind: Some(kind) }).await;
                }
                Step::Answer(answer) => {
                    let _gone = opened.stream.send.send(&v1::CallAnswer { answer: Some(answer) }).await;
                }
                Step::With(play) => return play(opened.stream).await,
                Step::UntilStopped => drop(self.stopped.subscribe().wait_for(|stopped| *stopped).await),
                Step::Hang => std::future::pending().await,
                Step::Close(code) => {
                    // What was sent before has to arrive first.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    return Some(code);
                }
            }
        }
        let _gone = opened.stream.send.finish_and_deliver().await;
        None
    }
}

/// The kinds of streams a script counts apart.
fn name_of(kind: &stream_open::Kind) -> &'static str {
    match kind {
        stream_open::Kind::Follow(_) => "follow",
        stream_open::Kind::Call(open) => match open.request {
            Some(call_open::Request::Submit(_)) => "submit",
            Some(call_open::Request::TaskStop(_)) => "stop",
            _ => "call",
        },
        stream_open::Kind::Exec(_) => "exec",
        stream_open::Kind::Tunnel(_) => "tunnel",
        _ => "other",
    }
}

pub(crate) fn line(number: u64, stream: v1::LogStream, data: &str) -> v1::FollowLine {
    let data = data.to_owned().into_bytes().into();
    v1::FollowLine { line: number, stream: stream.into(), data, ..v1::FollowLine::default() }
}

pub(crate) fn lines(lines: Vec<v1::FollowLine>) -> Step {
    Step::Event(follow_event::Kind::Lines(v1::FollowLines { lines }))
}

/// Lines `from..=to` of standard output, each with its number.
pub(crate) fn numbers(from: u64, to: u64) -> Step {
    lines((from..=to).map(|n| line(n, v1::LogStream::Stdout, &format!("{n}\n"))).collect())
}

pub(crate) fn note(text: &str) -> Step {
    let note = text.to_owned();
    Step::Event(follow_event::Kind::Status(v1::FollowStatus { note, ..v1::FollowStatus::default() }))
}

pub(crate) fn ended(status: &str, exit_code: Option<i32>, reason: &str) -> Step {
    let (status, reason) = (status.to_owned(), reason.to_owned());
    Step::Event(follow_event::Kind::Ended(v1::FollowEnded { status, exit_code, reason, complete: true }))
}

pub(crate) fn submitted(task: TaskId, note: &str) -> Vec<Step> {
    let answer =
        v1::SubmitAnswer { task: task.to_wire(), note: note.to_owned(), ..v1::SubmitAnswer::default() };
    vec![Step::Answer(call_answer::Answer::Submit(answer))]
}

pub(crate) fn failure(code: v1::FailureCode, text: &str, hint: &str) -> v1::Failure {
    v1::Failure { code: code.into(), text: text.to_owned(), hint: hint.to_owned() }
}
