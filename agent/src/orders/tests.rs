//! What an agent refuses, before anything is asked of the API server.

mod api;

use levers9_wire::ClusterId;
use serde_json::json;

use super::*;
use crate::picture::facts::{Eye, Kind};
use crate::picture::lent::Lent;
use crate::template::{LEAST_MEMORY, Runtime, Settings};

const CLUSTER: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";

fn own() -> Own {
    let cluster: ClusterId = CLUSTER.parse().unwrap();
    Own {
        workers: Settings {
            cluster,
            namespace: "gpus".to_owned(),
            flavor: None,
            runtime: Runtime::Process,
            pull_secret: None,
            controlplane: "levers9://cp.example:443".to_owned(),
        },
        repository: "r.example:5000/levers9/worker".to_owned(),
    }
}

fn order(node: &str) -> v1::CreateWorker {
    v1::CreateWorker {
        worker: WorkerId::generate().to_wire(),
        namespace: "gpus".to_owned(),
        node: node.to_owned(),
        image: "r.example:5000/levers9/worker:1.2".to_owned(),
        amounts: Some(v1::NodeAmounts { cpu_millis: 1_000, memory_bytes: 1 << 30, cards: 1, pods: 1 }),
        gpu_type: "L40S".to_owned(),
        enrolment_token: "l9_enrolment_once".to_owned(),
        runtime: "process".to_owned(),
        ..v1::CreateWorker::default()
    }
}

/// Eyes that see these nodes, of which those of pool `a` are lent.
fn eyes(nodes: &[(&str, &str)]) -> Eyes {
    let own = own();
    let eyes = Eyes::new(Eye { lent: Lent::read(["pool=a"]), terms: own.workers.terms() });
    let fact = |(name, pool): &(&str, &str)| {
        let node = json!({
            "metadata": { "name": name, "uid": "u", "labels": { "pool": pool } },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        eyes.eye().read(Kind::Nodes, &node.to_string()).unwrap()
    };
    eyes.replace(Kind::Nodes, nodes.iter().map(fact).collect(), Instant::now());
    eyes.replace(Kind::Pods, Vec::new(), Instant::now());
    eyes.replace(Kind::Jobs, Vec::new(), Instant::now());
    eyes
}

/// Carries an order out without any API server: it gets that far or is refused before.
async fn refusal(eyes: &Eyes, change: impl FnOnce(&mut v1::CreateWorker)) -> (FailureCode, String) {
    let mut create = order("a");
    change(&mut create);
    let orders = Orders::new(own(), eyes.clone(), Arc::default());
    let order = v1::OrderOpen { order: Some(order_open::Order::Create(create)) };
    let failure = orders.serve(order).await.failure.unwrap();
    (failure.code(), failure.text)
}

#[tokio::test]
async fn an_order_for_what_is_not_the_agents_is_denied() {
    let eyes = eyes(&[("a", "a")]);
    let good = refusal(&eyes, |_| {}).await;
    assert_eq!((good.0, good.1.contains("no way to the API server")), (FailureCode::Unavailable, true));
    let (code, text) = refusal(&eyes, |o| o.namespace = "kube-system".to_owned()).await;
    assert_eq!(
        (code, text.contains("namespace gpus only, not in kube-system")),
        (FailureCode::Denied, true),
        "{text}"
    );
    for image in [
        "r.example:5000/levers9/other:1.2",
        "r.example/levers9/worker:1.2",
        "r.example:5000/levers9/worker/more:1.2",
        "levers9/worker@sha256:00",
        "r.example:5000/levers9/workers",
    ] {
        let (code, text) = refusal(&eyes, |o| image.clone_into(&mut o.image)).await;
        assert_eq!((code, text.contains(image)), (FailureCode::Denied, true), "{text}");
    }
    for image in ["r.example:5000/levers9/worker", "r.example:5000/levers9/worker:2@sha256:00"] {
        assert_eq!(refusal(&eyes, |o| image.clone_into(&mut o.image)).await.0, FailureCode::Unavailable);
    }
    for runtime in ["runc", "runsc"] {
        let (code, text) = refusal(&eyes, |o| runtime.clone_into(&mut o.runtime)).await;
        assert_eq!((code, text.contains("process workers only")), (FailureCode::Denied, true), "{text}");
    }
}

#[tokio::test]
async fn an_order_that_makes_no_sense_is_invalid() {
    let eyes = eyes(&[("a", "a")]);
    let changes: [fn(&mut v1::CreateWorker); 9] = [
        |o| o.worker.clear(),
        |o| o.node.clear(),
        |o| "a/../b".clone_into(&mut o.node),
        |o| "a b".clone_into(&mut o.image),
        |o| o.enrolment_token.clear(),
        |o| o.gpu_type.clear(),
        |o| "docker".clone_into(&mut o.runtime),
        |o| o.env.push(v1::EnvVar { name: "LD_PRELOAD".to_owned(), value: b"x".to_vec() }),
        |o| o.env.push(v1::EnvVar { name: "LEVERS9_LOG".to_owned(), value: vec![0xff] }),
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let (code, text) = refusal(&eyes, change).await;
        assert_eq!(code, FailureCode::Invalid, "{nth}: {text}");
        assert!(!text.contains("l9_enrolment_once"), "{text}");
    }
    let least = limits::WORKER_MEMORY + LEAST_MEMORY;
    let little =
        |memory: u64| move |o: &mut v1::CreateWorker| o.amounts.as_mut().unwrap().memory_bytes = memory;
    assert_eq!(refusal(&eyes, little(least - 1)).await.0, FailureCode::Invalid);
    assert_eq!(refusal(&eyes, little(least)).await.0, FailureCode::Unavailable);
    let nothing = Orders::new(own(), eyes, Arc::default()).serve(v1::OrderOpen { order: None }).await;
    assert_eq!(nothing.failure.unwrap().code(), FailureCode::Unsupported);
}

fn room(eyes: &Eyes, node: &str, at: Instant) -> Result<(), (FailureCode, String)> {
    let create = Create::try_from(order(node)).unwrap();
    let taken = rules::take_room(&create, &mut eyes.picture(), at);
    taken.map_err(|failure| (failure.code(), failure.text))
}

#[test]
fn room_is_taken_on_lent_nodes_only() {
    let eyes = eyes(&[("a", "a"), ("b", "b")]);
    let now = Instant::now();
    for node in ["b", "c"] {
        let (code, text) = room(&eyes, node, now).unwrap_err();
        assert_eq!(
            (code, text.contains(&format!("node {node} is not lent"))),
            (FailureCode::Denied, true),
            "{text}"
        );
    }
    assert_eq!(room(&eyes, "a", now), Ok(()));
}

#[test]
fn no_second_worker_waits_on_a_node_nor_more_of_them_than_nodes() {
    let eyes = eyes(&[("a", "a"), ("b", "a"), ("c", "a")]);
    let now = Instant::now();
    room(&eyes, "a", now).unwrap();
    let (code, text) = room(&eyes, "a", now).unwrap_err();
    assert_eq!((code, text.contains("has not started yet")), (FailureCode::Conflict, true), "{text}");
    room(&eyes, "b", now).unwrap();
    // A node that is not ready is no room for one.
    let gone = json!({ "metadata": { "name": "c", "uid": "u", "labels": { "pool": "a" } } });
    eyes.put(eyes.eye().read(Kind::Nodes, &gone.to_string()).unwrap());
    let (code, text) = room(&eyes, "c", now).unwrap_err();
    assert_eq!(
        (code, text.contains("2 workers have not started yet, and 2 nodes")),
        (FailureCode::Busy, true),
        "{text}"
    );
}

#[test]
fn by_an_old_picture_no_worker_is_created_and_no_job_removed() {
    let eyes = eyes(&[("a", "a")]);
    let now = Instant::now();
    let (code, text) = room(&eyes, "a", now + STALE_AFTER).unwrap_err();
    assert_eq!((code, text.contains("s old")), (FailureCode::Unavailable, true), "{text}");
    let nothing = Eyes::new(eyes.eye().clone());
    assert_eq!(room(&nothing, "a", now).unwrap_err().0, FailureCode::Unavailable);

    let job = json!({ "metadata": {
        "name": "j", "uid": "u", "resourceVersion": "7", "creationTimestamp": "1970-01-01T00:00:00Z",
        "labels": { "levers9/worker": CLUSTER },
    }});
    eyes.put(eyes.eye().read(Kind::Jobs, &job.to_string()).unwrap());
    let twenty_minutes = 20 * 60 * 1000;
    assert_eq!(rules::doomed(&eyes.picture(), now, twenty_minutes - 1), []);
    assert_eq!(rules::doomed(&eyes.picture(), now, twenty_minutes).len(), 1);
    assert_eq!(rules::doomed(&eyes.picture(), now + STALE_AFTER, twenty_minutes), []);
}

const STALE_AFTER: Duration = Duration::from_secs(91);
