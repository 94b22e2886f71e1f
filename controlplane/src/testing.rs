//! A controlplane's shared state without its ports, and rows to test with.
//! Two states on one database and folder are two processes.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use levers9_transport::cert::{Authority, CertResolver};
use levers9_wire::id::StubId;
use levers9_wire::v1::Resources;
use levers9_wire::{
    AttemptNumber, ContainerId, Generation, InstanceId, RequestId, TaskId, WorkerId, WorkspaceId,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::WorkerDefaults;
use crate::ingress::Serving;
use crate::logs::{Logs, objects::Objects};
use crate::seal::{Keyring, Sealed};
use crate::state::{Options, Shared, State, now_ms};
use crate::store::{Fence, NewStub, NewTask, Placement, Store, Workspace};

/// What both show.
fn certificate(folder: &Path) -> Arc<CertResolver> {
    let now = levers9_wire::clock::unix_millis() / 1_000;
    Authority::open(&folder.join("tls"), &["localhost".to_owned()], now).unwrap().resolver()
}

/// A process on a database.
pub(crate) async fn process(url: &str, folder: &Path) -> Shared {
    Arc::new(State {
        store: Store::open(url, 5).await.unwrap(),
        keyring: Keyring::load_or_create(&folder.join("keys")).unwrap(),
        instance: InstanceId::generate(),
        options: Options {
            host: "localhost".to_owned(),
            port: 443,
            certificate: certificate(folder),
            bootstrap_secret: None,
            serving: Serving::Nowhere,
            log_bytes_max: u64::MAX,
            log_age_max: Duration::MAX,
            worker: WorkerDefaults::default(),
        },
        sessions: Default::default(),
        clusters: Default::default(),
        logs: Logs::new(Objects::new(folder.join("logs"))),
        runs: Default::default(),
        places: Default::default(),
        transport: Handle::current(),
        open: Arc::default(),
        benches: Default::default(),
        doors: OnceLock::new(),
        failures: Default::default(),
        trouble: Default::default(),
        data: folder.to_owned(),
        placeable: Notify::new(),
        tasks: TaskTracker::new(),
        leading: Default::default(),
        refreshes: Default::default(),
        draining: CancellationToken::new(),
        stopping: CancellationToken::new(),
    })
}

/// A process alone on a database.
pub(crate) async fn alone(folder: &Path) -> Shared {
    process(&format!("sqlite://{}/levers9.db", folder.display()), folder).await
}

/// A task whose first attempt a worker has.
pub(crate) async fn placed(state: &Shared, worker: WorkerId) -> Fence {
    let (store, now) = (&state.store, now_ms());
    let workspace =
        Workspace { id: WorkspaceId::generate(), name: TaskId::generate().to_string(), created_ms: now };
    store.create_workspace(workspace.clone(), None).await.unwrap();
    let stub = NewStub {
        id: StubId::generate(),
        kind: "container".to_owned(),
        name: String::new(),
        config: b"{}".to_vec(),
        config_hash: [7; 32],
        object: None,
        image: None,
    };
    let task = NewTask {
        id: TaskId::generate(),
        workspace: workspace.id,
        name: String::new(),
        command: vec!["true".to_owned()],
        env: Sealed(Vec::new()),
        resources: Resources::default(),
        timeout_ms: None,
        max_retries: 3,
        detached: false,
        pool: None,
        exposed: None,
        created_ms: now,
    };
    let fence = Fence {
        task: task.id,
        number: AttemptNumber(1),
        container: ContainerId::generate(),
        generation: Generation(1),
    };
    store.submit(stub, task, RequestId::generate(), Sealed(Vec::new())).await.unwrap();
    let name = InstanceId::generate().to_string();
    let placement = Placement {
        task: fence.task,
        number: fence.number,
        container: fence.container,
        generation: fence.generation,
        worker,
        base_line: 1,
        lines_reserved: 1_001,
        token: None,
        lease: store.acquire_lease(&name, state.instance, 60_000, now).await.unwrap().unwrap(),
        now_ms: now,
    };
    assert!(store.place(placement).await.unwrap());
    fence
}
