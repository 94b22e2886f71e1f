//! Attached clusters and the workers ordered on them.

use levers9_controlplane::seal::Sealed;
use levers9_controlplane::store::{
    Attached, Cluster, EnrolmentClaim, PoolWorker, PoolWorkerState, Store, Token,
};
use levers9_wire::token::TokenKind;
use levers9_wire::v1::{ClusterSettings, LabelRequirement};
use levers9_wire::{ClusterId, InstanceId, TokenId, WorkerId, WorkspaceId};
use rand::SeedableRng as _;

use crate::fixtures::{Place, T0, a_lease, a_workspace, token};

fn cluster(workspace: WorkspaceId, name: &str) -> Cluster {
    let item = LabelRequirement { key: "pool".into(), operator: "In".into(), values: vec!["a".into()] };
    Cluster {
        id: ClusterId::generate(),
        workspace,
        name: name.to_owned(),
        settings: ClusterSettings {
            name: name.to_owned(),
            gpu_type: "L40S".to_owned(),
            selector: vec![item],
            ..ClusterSettings::default()
        },
        shared: false,
        created_ms: T0,
        last_seen_ms: None,
        agent_build: String::new(),
        kubernetes: String::new(),
    }
}

fn agents(cluster: &Cluster) -> Token {
    Token { cluster: Some(cluster.id), ..token(TokenKind::Cluster, Some(cluster.workspace)) }
}

async fn attached(store: &Store, name: &str) -> (Cluster, Token) {
    let cluster = cluster(a_workspace(store).await, name);
    let token = agents(&cluster);
    assert_eq!(store.attach_cluster(cluster.clone(), token.clone(), None).await.unwrap(), Attached::Yes);
    (cluster, token)
}

fn worker(cluster: &Cluster, node: &str) -> (PoolWorker, Token) {
    let id = WorkerId::generate();
    let row = PoolWorker {
        worker: id,
        cluster: cluster.id,
        node: node.to_owned(),
        state: PoolWorkerState::Pending,
        workspace: Some(cluster.workspace),
        cpu_millis: 4_000,
        memory_bytes: 8 << 30,
        gpu_type: "L40S".to_owned(),
        gpu_count: 4,
        enrolment: Sealed(vec![7; 40]),
        created_ms: T0,
    };
    let enrolment = Token {
        worker: Some(id),
        cluster: Some(cluster.id),
        node: Some(node.to_owned()),
        expires_ms: Some(T0 + 1_000),
        ..token(TokenKind::Enrolment, Some(cluster.workspace))
    };
    (row, enrolment)
}

pub(crate) async fn a_cluster_is_attached_once_and_within_the_quota(place: Place) {
    let store = place.open().await;
    let (mine, theirs) = (a_workspace(&store).await, a_workspace(&store).await);
    let attach = async |workspace, name: &str, quota| {
        let cluster = cluster(workspace, name);
        let token = agents(&cluster);
        store.attach_cluster(cluster, token, quota).await.unwrap()
    };
    assert_eq!(attach(mine, "one", Some(2)).await, Attached::Yes);
    assert_eq!(attach(mine, "one", Some(2)).await, Attached::NameTaken);
    assert_eq!(attach(theirs, "one", Some(2)).await, Attached::Yes, "a name is the workspace's own");
    assert_eq!(attach(mine, "two", Some(2)).await, Attached::Yes);
    assert_eq!(attach(mine, "three", Some(2)).await, Attached::QuotaFull(2));
    assert_eq!(attach(mine, "three", None).await, Attached::Yes);
    // Of many at once no more than there is room for.
    let tries: Vec<_> = (0..6)
        .map(|n| {
            let (store, cluster) = (store.clone(), cluster(theirs, &format!("n{n}")));
            let token = agents(&cluster);
            tokio::spawn(async move { store.attach_cluster(cluster, token, Some(4)).await.unwrap() })
        })
        .collect();
    let mut yes = 0;
    for one in tries {
        yes += u32::from(one.await.unwrap() == Attached::Yes);
    }
    assert_eq!(yes, 3);
}

pub(crate) async fn a_cluster_is_kept_whole_and_forgotten_with_its_tokens(place: Place) {
    let store = place.open().await;
    let (cluster, token) = attached(&store, "here").await;
    let (other, others) = attached(&store, "here").await;
    store.cluster_seen(cluster.id, "0.1.0", "v1.37.2", T0 + 9).await.unwrap();
    assert!(store.share_cluster(cluster.id, true).await.unwrap());
    let found = store.clusters().await.unwrap();
    let kept = Cluster {
        shared: true,
        last_seen_ms: Some(T0 + 9),
        agent_build: "0.1.0".to_owned(),
        kubernetes: "v1.37.2".to_owned(),
        ..cluster.clone()
    };
    // By id, and two of one millisecond are in any order.
    let mut wanted = [kept, other.clone()];
    wanted.sort_by_key(|cluster| cluster.id);
    assert_eq!(found, wanted);

    let (row, enrolment) = worker(&cluster, "node");
    let lease = a_lease(&store).await;
    assert!(store.order_pool_worker(row, enrolment.clone(), lease).await.unwrap());
    let mut revoked = store.detach_cluster(cluster.id, T0 + 10).await.unwrap();
    revoked.sort();
    let mut expected = vec![token.id, enrolment.id];
    expected.sort();
    assert_eq!(revoked, expected);
    assert_eq!(store.clusters().await.unwrap(), [other]);
    assert_eq!(store.pool_workers().await.unwrap(), []);
    let row = store.token_by_hash(token.hash).await.unwrap().unwrap();
    assert_eq!((row.revoked_ms, row.cluster), (Some(T0 + 10), Some(cluster.id)));
    assert_eq!(store.token_by_hash(others.hash).await.unwrap().unwrap().revoked_ms, None);
    assert!(!store.share_cluster(cluster.id, true).await.unwrap());
}

pub(crate) async fn an_agents_token_is_rotated_without_a_gap(place: Place) {
    let store = place.open().await;
    let (cluster, mut old) = attached(&store, "here").await;
    old = store.token_by_hash(old.hash).await.unwrap().unwrap();
    // Ids begin with the time they were made.
    let id = TokenId::new(u64::try_from(T0 + 5).unwrap(), &mut rand::rngs::StdRng::seed_from_u64(1));
    let new = Token { id, ..agents(&cluster) };
    store.rotate_cluster_token(cluster.id, new.clone(), T0 + 100).await.unwrap();
    let found = async |token: &Token| store.token_by_hash(token.hash).await.unwrap().unwrap();
    assert_eq!((found(&old).await.expires_ms, found(&old).await.revoked_ms), (Some(T0 + 100), None));
    assert_eq!((found(&new).await.expires_ms, found(&new).await.revoked_ms), (None, None));
    // The old one comes again: both stay. The new one comes: it is the only one.
    assert_eq!(store.retire_cluster_tokens(cluster.id, old.id, T0 + 6).await.unwrap(), []);
    assert_eq!(store.retire_cluster_tokens(cluster.id, new.id, T0 + 7).await.unwrap(), [old.id]);
    assert_eq!(store.retire_cluster_tokens(cluster.id, new.id, T0 + 8).await.unwrap(), []);
    assert_eq!(found(&old).await.revoked_ms, Some(T0 + 7));
    assert_eq!(found(&new).await.revoked_ms, None);
}

pub(crate) async fn a_node_has_one_worker_on_its_way(place: Place) {
    let store = place.open().await;
    let (cluster, _) = attached(&store, "here").await;
    let (elsewhere, _) = attached(&store, "there").await;
    let lease = a_lease(&store).await;
    let order = async |cluster: &Cluster, node: &str| {
        let (row, token) = worker(cluster, node);
        let id = row.worker;
        store.order_pool_worker(row, token, lease.clone()).await.unwrap().then_some(id)
    };
    let first = order(&cluster, "a").await.unwrap();
    assert_eq!(order(&cluster, "a").await, None);
    assert!(order(&cluster, "b").await.is_some());
    assert!(order(&elsewhere, "a").await.is_some());
    assert!(store.set_pool_worker(first, PoolWorkerState::Running).await.unwrap());
    let second = order(&cluster, "a").await.unwrap();
    assert_eq!(store.pool_workers().await.unwrap().len(), 4);
    assert_eq!(store.forget_pool_worker(first, T0 + 1).await.unwrap().len(), 1);
    assert_eq!(store.forget_pool_worker(first, T0 + 1).await.unwrap(), []);
    assert!(!store.set_pool_worker(first, PoolWorkerState::Stopping).await.unwrap());
    // An enrolment that was revoked enrols nobody.
    let (_, token) = worker(&cluster, "a");
    let claim = store.claim_enrolment(token.id, InstanceId::generate(), T0).await.unwrap();
    assert_eq!(claim, None::<EnrolmentClaim>);

    let (third, stops) = (order(&cluster, "d").await.unwrap(), PoolWorkerState::Stopping);
    for reached in [PoolWorkerState::Running; 2] {
        assert_eq!(store.pool_worker_came(third).await.unwrap(), Some(reached));
    }
    store.set_pool_worker(third, stops).await.unwrap();
    assert_eq!(store.pool_worker_came(third).await.unwrap(), Some(stops), "what stops goes on stopping");
    assert_eq!(store.pool_worker_came(first).await.unwrap(), None);

    store.release_lease(&lease).await.unwrap();
    assert_eq!(order(&cluster, "c").await, None, "without the lease nothing is ordered");
    let _running = store.set_pool_worker(second, PoolWorkerState::Running).await.unwrap();
    store.detach_cluster(cluster.id, T0 + 2).await.unwrap();
    let (row, token) = worker(&cluster, "a");
    let error = store.order_pool_worker(row, token, a_lease(&store).await).await;
    assert!(error.is_err(), "a worker of no cluster");
}
