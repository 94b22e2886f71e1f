//! A worker and the controlplane it dials, and what a test asks of them.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use levers9_transport::accept::{Acceptor, Gate, Limits, Refusal, Session, SessionHandle};
use levers9_transport::cert::Authority;
use levers9_transport::quic::{Endpoint, Identity, ServerKeys, Settings as Tuning, bind};
use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::token::Secret;
use levers9_wire::v1::{self, exec_input, exec_output, run_event, run_order, stream_open};
use levers9_wire::{ContainerId, TaskId, WorkspaceId, valid};
use levers9_worker::Config;
use levers9_worker::runtime::Settings as ProcessSettings;
use levers9_worker::session::{Settings, Worker, tuning};
use tokio::sync::{mpsc, watch};

/// How long anything may take before a test fails; nothing waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    within_time(what, PATIENCE, future).await
}

pub(crate) async fn within_time<T>(what: &str, time: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, future).await.unwrap_or_else(|_| panic!("{what} takes longer than {time:?}"))
}

/// Waits until a condition that nothing tells of holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

struct Controlplane {
    session: watch::Sender<Option<SessionHandle>>,
    /// Door streams as they come.
    doors: mpsc::Sender<(valid::Door, Stream)>,
}

impl Gate for Controlplane {
    type Admitted = ();

    async fn admit(&self, _: valid::Hello, _: SocketAddr) -> Result<(v1::Welcome, ()), Refusal> {
        Ok((v1::Welcome::default(), ()))
    }

    async fn serve(self: Arc<Self>, mut session: Session, (): ()) {
        self.session.send_replace(Some(session.handle().clone()));
        while let Some(mut opened) = session.next().await {
            match opened.kind {
                // Nobody wants the logs.
                stream_open::Kind::Log(_) => {
                    tokio::spawn(async move {
                        opened.stream.send.send(&v1::LogAck { next_index: u64::MAX }).await?;
                        opened.stream.send.finish_and_deliver().await
                    });
                }
                stream_open::Kind::Door(open) => {
                    let door = valid::Door::try_from(open).expect("a door");
                    self.doors.send((door, opened.stream)).await.expect("somebody takes doors");
                }
                other => panic!("a worker does not open {other:?}"),
            }
        }
        self.session.send_replace(None);
    }
}

pub(crate) struct World {
    pub(crate) worker: Worker,
    /// Where all containers run.
    pub(crate) work: PathBuf,
    pub(crate) doors: mpsc::Receiver<(valid::Door, Stream)>,
    session: SessionHandle,
    workspace: WorkspaceId,
    _data: tempfile::TempDir,
}

/// A running container.
pub(crate) struct Container {
    pub(crate) id: ContainerId,
    stop: mpsc::Sender<v1::StopContainer>,
    ended: watch::Receiver<Option<v1::RunEnded>>,
}

impl Container {
    pub(crate) async fn stop(&self, reason: v1::StopReason) {
        let stop = v1::StopContainer { grace_ms: 0, reason: reason.into(), text: String::new() };
        self.stop.send(stop).await.expect("it runs");
    }

    pub(crate) async fn ended(&mut self) -> v1::RunEnded {
        let ended = within("the end", self.ended.wait_for(Option::is_some)).await;
        ended.expect("it is driven").clone().expect("it has ended")
    }
}

impl World {
    pub(crate) async fn new(namespaces: bool) -> Self {
        let data = tempfile::tempdir().expect("a folder");
        let work = data.path().join("place");
        std::fs::create_dir(&work).expect("a folder");
        let now = levers9_wire::clock::unix_millis() / 1000;
        let authority =
            Authority::open(&data.path().join("ca"), &["127.0.0.1".to_owned()], now).expect("a certificate");
        let identity = Identity { certificate: authority.resolver(), keys: ServerKeys { reset: [7; 64] } };
        let socket = bind("127.0.0.1:0".parse().expect("an address"), 1 << 20).expect("bound");
        let endpoint = Endpoint::accepting(socket, &Tuning::default(), &identity).expect("accepts");
        let place = endpoint.local_addr().expect("bound");
        let (sender, doors) = mpsc::channel(1024);
        let (session, mut watched) = watch::channel(None);
        let controlplane = Arc::new(Controlplane { session, doors: sender });
        let handle = tokio::runtime::Handle::current();
        let acceptor = Acceptor::new(endpoint, controlplane, Limits::default(), handle);
        tokio::spawn(async move { acceptor.run().await });
        let worker = Worker::start(settings(&authority, place, data.path(), &work, namespaces)).await;
        let session = within("the session", watched.wait_for(Option::is_some)).await;
        let session = session.expect("open").clone().expect("online");
        let worker = worker.expect("starts");
        Self { worker, work, doors, session, workspace: WorkspaceId::generate(), _data: data }
    }

    pub(crate) async fn open(&self, kind: stream_open::Kind) -> Stream {
        within("opening", self.session.open(kind)).await.expect("opens")
    }

    /// Runs a shell script as a container; returns when it runs.
    pub(crate) async fn run(&self, script: &str) -> Container {
        self.run_with(script, &[], "").await
    }

    pub(crate) async fn run_with(&self, script: &str, env: &[(&str, &str)], token: &str) -> Container {
        let id = ContainerId::generate();
        let spec = v1::ContainerSpec {
            workspace: self.workspace.to_wire(),
            command: ["sh", "-c", script].map(Into::into).into(),
            env: variables(env),
            task: TaskId::generate().to_wire(),
            attempt: 1,
            token: token.to_owned(),
            ..v1::ContainerSpec::default()
        };
        let open = v1::RunOpen { container: id.to_wire(), generation: 1, since_event: 0, spec: Some(spec) };
        let stream = self.open(stream_open::Kind::Run(open)).await;
        let ((stop, stops), (started, mut begun), (end, ended)) =
            (mpsc::channel(1), watch::channel(false), watch::channel(None));
        tokio::spawn(drive(stream, stops, started, end));
        drop(within("the start", begun.wait_for(|begun| *begun)).await.expect("it starts"));
        Container { id, stop, ended }
    }

    /// Waits until something in a container has written a whole line into a
    /// file of the common folder.
    pub(crate) async fn written(&self, file: &str) -> String {
        let path = self.work.join(file);
        let read = || std::fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'));
        until(file, || read().is_some()).await;
        read().expect("written").trim_end().to_owned()
    }

    pub(crate) async fn exec(&self, container: &Container, ask: Ask) -> Exec {
        let open = v1::ExecOpen {
            container: container.id.to_wire(),
            generation: 1,
            command: ask.command,
            env: ask.env,
            workdir: ask.workdir,
            stdin: ask.stdin,
            terminal: ask.terminal.map(|(rows, columns)| v1::TerminalSize { rows, columns }),
        };
        Exec { stream: self.open(stream_open::Kind::Exec(open)).await }
    }

    /// Runs a script in a container to its end, without input.
    pub(crate) async fn sh(&self, container: &Container, script: &str) -> Done {
        self.exec(container, sh(script)).await.done().await
    }
}

fn settings(
    authority: &Authority,
    place: SocketAddr,
    data: &Path,
    work: &Path,
    namespaces: bool,
) -> Settings {
    let facts = v1::WorkerFacts {
        cpu_millis: 64_000,
        memory_bytes: 1 << 40,
        runtime: "process".into(),
        ..v1::WorkerFacts::default()
    };
    let mut containers = Config::new(data.join("worker"), facts);
    containers.workdir = Some(work.to_owned());
    Settings {
        address: format!("levers9://{place}#{}", authority.pin()).parse().expect("an address"),
        token: Some(Secret::new("a token")),
        state: None,
        containers,
        process: ProcessSettings {
            supervisor: env!("CARGO_BIN_EXE_levers9-worker").into(),
            namespaces,
            ..ProcessSettings::default()
        },
        tuning: tuning(),
        proxies: levers9_transport::tcp::Proxies::default(),
    }
}

async fn drive(
    mut stream: Stream,
    mut stops: mpsc::Receiver<v1::StopContainer>,
    started: watch::Sender<bool>,
    end: watch::Sender<Option<v1::RunEnded>>,
) -> Result<(), StreamError> {
    loop {
        tokio::select! {
            Some(stop) = stops.recv() => {
                let kind = Some(run_order::Kind::Stop(stop));
                stream.send.send(&v1::RunOrder { kind }).await?;
            }
            event = stream.recv.next::<v1::RunEvent>() => {
                let Some(event) = event? else { return stream.send.finish_and_deliver().await };
                let kind = Some(run_order::Kind::AckEvent(event.sequence));
                stream.send.send(&v1::RunOrder { kind }).await?;
                match event.kind {
                    Some(run_event::Kind::Started(_)) => drop(started.send_replace(true)),
                    Some(run_event::Kind::Ended(ended)) => {
                        end.send_replace(Some(ended));
                        return stream.send.finish_and_deliver().await;
                    }
                    None => {}
                }
            }
        }
    }
}

fn variables(env: &[(&str, &str)]) -> Vec<v1::EnvVar> {
    env.iter().map(|(name, value)| v1::EnvVar { name: (*name).into(), value: (*value).into() }).collect()
}

/// What to run in a container.
#[derive(Default)]
pub(crate) struct Ask {
    pub(crate) command: Vec<String>,
    pub(crate) env: Vec<v1::EnvVar>,
    pub(crate) workdir: String,
    pub(crate) stdin: bool,
    pub(crate) terminal: Option<(u32, u32)>,
}

pub(crate) fn ask(words: &[&str]) -> Ask {
    Ask { command: words.iter().map(|word| (*word).to_owned()).collect(), ..Ask::default() }
}

pub(crate) fn sh(script: &str) -> Ask {
    ask(&["sh", "-c", script])
}

impl Ask {
    pub(crate) fn stdin(self) -> Self {
        Self { stdin: true, ..self }
    }

    pub(crate) fn terminal(self, rows: u32, columns: u32) -> Self {
        Self { terminal: Some((rows, columns)), ..self }
    }

    pub(crate) fn env(self, env: &[(&str, &str)]) -> Self {
        Self { env: variables(env), ..self }
    }
}

/// A command in a container, as its caller has it.
pub(crate) struct Exec {
    pub(crate) stream: Stream,
}

/// What came of one.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) started: bool,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) ended: v1::ExecEnded,
    pub(crate) failure: Option<v1::Failure>,
}

impl Done {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Outcome, exit code and signal.
    pub(crate) fn how(&self) -> (v1::Outcome, i32, i32) {
        assert_eq!(self.failure, None);
        (self.ended.outcome(), self.ended.exit_code, self.ended.signal)
    }
}

pub(crate) fn frame(kind: exec_input::Kind) -> v1::ExecInput {
    v1::ExecInput { kind: Some(kind) }
}

pub(crate) fn stdin(bytes: &[u8]) -> v1::ExecInput {
    frame(exec_input::Kind::Stdin(bytes.to_vec().into()))
}

pub(crate) fn stdin_end() -> v1::ExecInput {
    frame(exec_input::Kind::StdinEnd(v1::StdinEnd {}))
}

pub(crate) fn resize(rows: u32, columns: u32) -> v1::ExecInput {
    frame(exec_input::Kind::Resize(v1::TerminalSize { rows, columns }))
}

pub(crate) fn signal(number: u32) -> v1::ExecInput {
    frame(exec_input::Kind::Signal(number))
}

impl Exec {
    pub(crate) async fn send(&mut self, input: v1::ExecInput) {
        within("sending", self.stream.send.send(&input)).await.expect("sent");
    }

    /// The next frame.
    pub(crate) async fn next(&mut self) -> Option<exec_output::Kind> {
        let frame = within("a frame", self.stream.recv.next::<v1::ExecOutput>()).await.expect("whole");
        frame.map(|frame| frame.kind.expect("a kind"))
    }

    pub(crate) async fn started(&mut self) {
        assert_eq!(self.next().await, Some(exec_output::Kind::Started(v1::ExecStarted {})));
    }

    /// Reads until the output so far holds a text.
    pub(crate) async fn says(&mut self, text: &str) -> String {
        let mut all = Vec::new();
        while !String::from_utf8_lossy(&all).contains(text) {
            match self.next().await.expect("more") {
                exec_output::Kind::Stdout(bytes) | exec_output::Kind::Stderr(bytes) => all.extend(bytes),
                exec_output::Kind::Started(_) => {}
                other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&all)),
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Everything to the last frame, which must be an end or a failure.
    pub(crate) async fn done(mut self) -> Done {
        let done = read(&mut self).await;
        self.stream.send.finish();
        done
    }
}

/// As [`Exec::done`], leaving the input open.
pub(crate) async fn read(exec: &mut Exec) -> Done {
    let mut done = Done::default();
    let mut last = false;
    while let Some(kind) = exec.next().await {
        assert!(!last, "something came after the last frame");
        match kind {
            exec_output::Kind::Started(_) => {
                assert!(!done.started && done.stdout.is_empty() && done.stderr.is_empty());
                done.started = true;
            }
            exec_output::Kind::Stdout(bytes) => {
                assert!(bytes.len() <= levers9_wire::limits::EXEC_PIECE);
                done.stdout.extend(bytes);
            }
            exec_output::Kind::Stderr(bytes) => done.stderr.extend(bytes),
            exec_output::Kind::Ended(ended) => (done.ended, last) = (ended, true),
            exec_output::Kind::Failure(failure) => (done.failure, last) = (Some(failure), true),
        }
    }
    assert!(last, "the stream ended without a last frame");
    done
}

/// Writes an executable script into a folder.
pub(crate) fn executable(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("set");
    path.to_str().expect("text").to_owned()
}

/// Living processes whose command line holds this word.
pub(crate) fn processes_with(word: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("readable").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.windows(word.len()).any(|window| window == word.as_bytes())
    })
    .collect()
}

/// Runs one test of this binary in a process of its own.
pub(crate) fn alone(test: &str, variable: &str) {
    let mut command = std::process::Command::new(std::env::current_exe().expect("known"));
    let status = command.args(["--exact", test, "--nocapture"]).env(variable, "1").status().expect("runs");
    assert!(status.success());
}
