//! A worker's session with a controlplane that does with its logs what a test
//! tells it.
#![cfg(test)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use levers9_transport::accept::{Acceptor, Gate, Limits, Refusal, Session};
use levers9_transport::cert::Authority;
use levers9_transport::quic::{Endpoint, Identity, ServerKeys, Settings as Tuning, bind};
use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::token::Secret;
use levers9_wire::v1::{self, ResetCode, run_event, run_order, stream_open};
use levers9_wire::{ContainerId, Generation, TaskId, WorkspaceId, valid};
use levers9_worker::Config;
use levers9_worker::runtime::{Settings as ProcessSettings, folder_name};
use levers9_worker::session::{Settings, Worker, tuning};
use levers9_worker::spool::{self, Spool};
use tokio::runtime::Handle;
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(60);

/// What to do about a log.
#[derive(Debug, Clone, Copy)]
enum Plan {
    /// Takes it from this index on.
    Take(u64),
    /// Says that nobody wants it.
    Refuse,
    /// Resets this many streams before it says that nobody wants it.
    Reset(usize),
}

/// What came of one log.
#[derive(Debug, Default, Clone)]
struct Got {
    streams: usize,
    indexes: Vec<u64>,
    ends: usize,
    tasks: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Controlplane {
    plans: HashMap<ContainerId, Plan>,
    /// What to run once there is a session.
    run: Option<v1::RunOpen>,
    got: Mutex<HashMap<ContainerId, Got>>,
    /// Whether what was run has started.
    started: watch::Sender<bool>,
}

impl Gate for Controlplane {
    type Admitted = ();

    async fn admit(&self, hello: valid::Hello, _: SocketAddr) -> Result<(v1::Welcome, ()), Refusal> {
        assert_eq!(hello.inventory.len(), 0);
        Ok((v1::Welcome::default(), ()))
    }

    async fn serve(self: Arc<Self>, mut session: Session, (): ()) {
        if let Some(run) = self.run.clone() {
            let stream = session.handle().open(stream_open::Kind::Run(run)).await.expect("opens");
            tokio::spawn(Arc::clone(&self).drive(stream));
        }
        while let Some(opened) = session.next().await {
            let stream_open::Kind::Log(open) = opened.kind else { panic!("a worker opens logs only") };
            tokio::spawn(Arc::clone(&self).take(open, opened.stream));
        }
    }
}

impl Controlplane {
    async fn drive(self: Arc<Self>, mut stream: Stream) -> Result<(), StreamError> {
        while let Some(event) = stream.recv.next::<v1::RunEvent>().await? {
            self.started.send_replace(true);
            let ended = matches!(event.kind, Some(run_event::Kind::Ended(_)));
            let kind = Some(run_order::Kind::AckEvent(event.sequence));
            stream.send.send(&v1::RunOrder { kind }).await?;
            if ended {
                break;
            }
        }
        stream.send.finish_and_deliver().await
    }

    async fn take(self: Arc<Self>, open: v1::LogOpen, mut stream: Stream) -> Result<(), StreamError> {
        let container = ContainerId::from_wire(&open.container).expect("an id").expect("a container");
        let tell = |act: &dyn Fn(&mut Got)| {
            let mut got = self.got.lock().expect("whole");
            let got = got.entry(container).or_default();
            act(got);
            got.streams
        };
        let streams = tell(&|got| got.streams += 1);
        let from = match self.plans.get(&container).copied().unwrap_or(Plan::Refuse) {
            Plan::Take(from) => from,
            Plan::Reset(times) if streams <= times => {
                stream.abort(ResetCode::Internal);
                return Ok(());
            }
            Plan::Refuse | Plan::Reset(_) => {
                stream.send.send(&v1::LogAck { next_index: u64::MAX }).await?;
                return stream.send.finish_and_deliver().await;
            }
        };
        stream.send.send(&v1::LogAck { next_index: from }).await?;
        while let Some(batch) = stream.recv.next::<v1::LogBatch>().await? {
            tell(&|got| {
                got.indexes.extend(batch.records.iter().map(|record| record.index));
                got.ends += usize::from(batch.end);
                got.tasks.push(batch.task.clone());
            });
            if let Some(last) = batch.records.last() {
                stream.send.send(&v1::LogAck { next_index: last.index + 1 }).await?;
            }
            if batch.end {
                break;
            }
        }
        stream.send.finish_and_deliver().await
    }

    fn got(&self, container: ContainerId) -> Got {
        self.got.lock().expect("whole").get(&container).cloned().unwrap_or_default()
    }
}

/// Starts a controlplane and a worker that dials it.
async fn start(controlplane: &Arc<Controlplane>, data: &Path) -> Worker {
    let now = levers9_wire::clock::unix_millis() / 1000;
    let authority = Authority::open(&data.join("ca"), &["127.0.0.1".to_owned()], now).expect("a certificate");
    let identity = Identity { certificate: authority.resolver(), keys: ServerKeys { reset: [7; 64] } };
    let socket = bind("127.0.0.1:0".parse().expect("an address"), 1 << 20).expect("bound");
    let endpoint = Endpoint::accepting(socket, &Tuning::default(), &identity).expect("accepts");
    let place = endpoint.local_addr().expect("bound");
    let acceptor = Acceptor::new(endpoint, Arc::clone(controlplane), Limits::default(), Handle::current());
    tokio::spawn(async move { acceptor.run().await });
    let facts = v1::WorkerFacts {
        cpu_millis: 1_000,
        memory_bytes: 1 << 30,
        runtime: "process".into(),
        ..v1::WorkerFacts::default()
    };
    let settings = Settings {
        address: format!("levers9://{place}#{}", authority.pin()).parse().expect("an address"),
        token: Some(Secret::new("a token")),
        state: None,
        containers: Config::new(data.to_owned(), facts),
        process: ProcessSettings {
            supervisor: env!("CARGO_BIN_EXE_levers9-worker").into(),
            ..ProcessSettings::default()
        },
        tuning: tuning(),
        proxies: levers9_transport::tcp::Proxies::default(),
    };
    Worker::start(settings).await.expect("starts")
}

/// Leaves a container's folder as a worker does that is killed.
fn leave(data: &Path, records: usize) -> ContainerId {
    let container = ContainerId::generate();
    let log = data.join("containers").join(folder_name(container, Generation(2))).join("log");
    let (_, mut writer) = Spool::create(&log, spool::Limits::default()).expect("made");
    (0..records).for_each(|n| writer.put(v1::LogStream::Stdout, 1, format!("{n}\n").as_bytes()));
    container
}

#[tokio::test]
async fn what_an_earlier_worker_left_is_sent_until_it_is_taken_or_refused() {
    let data = tempfile::tempdir().expect("a folder");
    let [part, all, none, refused, reset] = [10, 10, 10, 10, 10].map(|records| leave(data.path(), records));
    let plans = [
        (part, Plan::Take(7)),
        (all, Plan::Take(0)),
        (none, Plan::Take(10)),
        (refused, Plan::Refuse),
        (reset, Plan::Reset(2)),
    ];
    let controlplane = Arc::new(Controlplane { plans: plans.into(), ..Controlplane::default() });
    let worker = start(&controlplane, data.path()).await;
    let left = data.path().join("left");
    let waiting = async {
        while std::fs::read_dir(&left).expect("readable").count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("all logs are settled");
    for (container, first) in [(part, 7), (all, 0), (none, 10)] {
        let got = controlplane.got(container);
        assert_eq!((got.streams, got.ends), (1, 1));
        assert_eq!(got.indexes, (first..10).collect::<Vec<u64>>());
        assert!(got.tasks.iter().all(Vec::is_empty));
    }
    for (container, streams) in [(refused, 1), (reset, 3)] {
        let got = controlplane.got(container);
        assert_eq!((got.streams, got.indexes.len(), got.ends), (streams, 0, 0));
    }
    assert!(worker.shutdown(Duration::ZERO).await.is_empty());
}

#[tokio::test]
async fn a_log_that_is_refused_is_not_offered_again_while_the_worker_shuts_down() {
    let data = tempfile::tempdir().expect("a folder");
    let container = ContainerId::generate();
    let spec = v1::ContainerSpec {
        workspace: WorkspaceId::generate().to_wire(),
        command: ["sh", "-c", "trap '' TERM; while :; do echo line; sleep 0.01; done"].map(Into::into).into(),
        task: TaskId::generate().to_wire(),
        attempt: 1,
        ..v1::ContainerSpec::default()
    };
    let run = v1::RunOpen { container: container.to_wire(), generation: 1, since_event: 0, spec: Some(spec) };
    let controlplane = Arc::new(Controlplane { run: Some(run), ..Controlplane::default() });
    let mut started = controlplane.started.subscribe();
    let worker = start(&controlplane, data.path()).await;
    let starting = started.wait_for(|started| *started);
    drop(tokio::time::timeout(PATIENCE, starting).await.expect("it starts").expect("open"));
    // Longer than the pause between two streams; it writes all the time.
    assert!(worker.shutdown(Duration::from_millis(1_200)).await.is_empty());
    let got = controlplane.got(container);
    assert_eq!((got.streams, got.indexes.len()), (1, 0));
    for folder in ["containers", "left"] {
        assert_eq!(std::fs::read_dir(data.path().join(folder)).expect("readable").count(), 0, "{folder}");
    }
}
