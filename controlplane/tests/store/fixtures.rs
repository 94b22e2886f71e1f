//! Databases and rows to test with.

use levers9_controlplane::auth::mint;
use levers9_controlplane::seal::Sealed;
use levers9_controlplane::store::{
    Fence, Finish, Lease, NewStub, NewTask, Placement, Store, Submitted, TaskNow, Token, Workspace,
};
use levers9_controlplane::store::{Segment, SegmentId};
use levers9_wire::id::StubId;
use levers9_wire::token::TokenKind;
use levers9_wire::v1::Resources;
use levers9_wire::{
    AttemptNumber, ContainerId, Generation, InstanceId, RequestId, TaskId, WorkerId, WorkspaceId,
};
use tempfile::TempDir;

/// A time to start from.
pub(crate) const T0: i64 = 1_800_000_000_000;

/// Where a fresh database is.
pub(crate) struct Place {
    pub(crate) url: String,
    _folder: Option<TempDir>,
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A name the driver's URL parser would stumble over.
        let url = format!("sqlite://{}/50%3F of it?/levers9.db", folder.path().display());
        Self { url, _folder: Some(folder) }
    }

    pub(crate) async fn postgres() -> Self {
        Self { url: levers9_tests::postgres::fresh_database(), _folder: None }
    }

    pub(crate) async fn open(&self) -> Store {
        self.open_with(5).await
    }

    pub(crate) async fn open_with(&self, pool_size: u32) -> Store {
        Store::open(&self.url, pool_size).await.unwrap()
    }
}

pub(crate) fn workspace(name: &str) -> Workspace {
    Workspace { id: WorkspaceId::generate(), name: name.to_owned(), created_ms: T0 }
}

pub(crate) async fn a_workspace(store: &Store) -> WorkspaceId {
    let workspace = workspace(&WorkspaceId::generate().to_string());
    store.create_workspace(workspace.clone(), None).await.unwrap();
    workspace.id
}

pub(crate) fn token(kind: TokenKind, workspace: Option<WorkspaceId>) -> Token {
    mint(kind, workspace, T0, &mut rand::rng()).1
}

pub(crate) fn stub() -> NewStub {
    NewStub {
        id: StubId::generate(),
        kind: "command".to_owned(),
        name: String::new(),
        config: b"{}".to_vec(),
        config_hash: [7; 32],
        object: None,
        image: None,
    }
}

pub(crate) fn task(workspace: WorkspaceId, created_ms: i64) -> NewTask {
    NewTask {
        id: TaskId::new(created_ms.try_into().unwrap(), &mut rand::rng()),
        workspace,
        name: "a job".to_owned(),
        command: vec!["echo".to_owned(), "a b".to_owned()],
        env: Sealed(vec![1, 2, 3]),
        resources: Resources {
            cpu_millis: 500,
            memory_bytes: 1 << 40,
            gpu_type: "T4".to_owned(),
            gpu_count: 2,
            cpu_given: true,
            memory_given: false,
        },
        timeout_ms: None,
        max_retries: 3,
        detached: false,
        pool: None,
        exposed: None,
        created_ms,
    }
}

pub(crate) async fn submitted(store: &Store, task: NewTask) -> TaskId {
    let id = task.id;
    let answer = store.submit(stub(), task, RequestId::generate(), Sealed(vec![9])).await.unwrap();
    assert_eq!(answer, Submitted::New);
    id
}

/// A task of a workspace of its own.
pub(crate) async fn a_task(store: &Store) -> TaskId {
    let workspace = a_workspace(store).await;
    submitted(store, task(workspace, T0)).await
}

pub(crate) async fn a_lease(store: &Store) -> Lease {
    let (name, holder) = (InstanceId::generate().to_string(), InstanceId::generate());
    store.acquire_lease(&name, holder, 60_000, T0).await.unwrap().unwrap()
}

/// Where attempt `number` goes, with a block of 1,000 lines of its own.
pub(crate) fn placement(task: TaskId, number: u32, lease: &Lease) -> Placement {
    let base_line = u64::from(number - 1) * 1000;
    Placement {
        task,
        number: AttemptNumber(number),
        container: ContainerId::generate(),
        generation: Generation(u64::from(number)),
        worker: WorkerId::generate(),
        base_line,
        lines_reserved: base_line + 1000,
        token: None,
        lease: lease.clone(),
        now_ms: T0 + 10,
    }
}

pub(crate) fn fence(placement: &Placement) -> Fence {
    Fence {
        task: placement.task,
        number: placement.number,
        container: placement.container,
        generation: placement.generation,
    }
}

/// A task whose first attempt a worker has.
pub(crate) async fn a_placed_task(store: &Store) -> (Fence, Lease) {
    let (task, lease) = (a_task(store).await, a_lease(store).await);
    let placement = placement(task, 1, &lease);
    assert!(store.place(placement.clone()).await.unwrap());
    (fence(&placement), lease)
}

/// A task whose first attempt runs.
pub(crate) async fn a_running_task(store: &Store) -> (Fence, Lease) {
    let (fence, lease) = a_placed_task(store).await;
    store.started(fence, 1, T0 + 20).await.unwrap();
    (fence, lease)
}

pub(crate) async fn now(store: &Store, task: TaskId) -> TaskNow {
    store.task(task).await.unwrap().unwrap()
}

pub(crate) fn ended(
    state: levers9_controlplane::store::AttemptState,
    then: levers9_controlplane::store::Then,
    event: Option<u64>,
) -> Finish {
    Finish { state, reason: "said so".to_owned(), then, log_total: None, event, now_ms: T0 + 30 }
}

pub(crate) fn segment(task: TaskId, attempt: u32, (first, next): (u64, u64), base: u64) -> Segment {
    Segment {
        id: SegmentId(*TaskId::generate().as_bytes()),
        task,
        attempt: AttemptNumber(attempt),
        first_index: first,
        next_index: next,
        first_line: base + first,
        next_line: base + next,
        object_key: format!("logs/{task}/{attempt}/{first}"),
        bytes: (next - first) * 10,
        created_ms: T0 + i64::try_from(base + first).unwrap(),
    }
}
