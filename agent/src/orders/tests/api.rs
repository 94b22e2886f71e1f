//! Orders carried out against a double of an API server, on a virtual clock.

use http::Method;
use serde_json::Value;
use tokio::task::JoinSet;

use super::*;
use crate::double::{Asked, Double, NAMESPACE, node, until};
use crate::kubernetes::{Watch, run};

const SECOND: Duration = Duration::from_secs(1);

/// An agent's orders, with the watches and the clean-up they live by.
struct Rig {
    double: Arc<Double>,
    orders: Orders,
    _parts: JoinSet<()>,
}

impl Rig {
    async fn start() -> Self {
        let double = Double::new();
        ["a", "b"].iter().for_each(|name| double.put("nodes", node(name, 4)));
        Self::on(&double).await
    }

    /// An agent that starts and finds what is there.
    async fn on(double: &Arc<Double>) -> Self {
        let own = own();
        let eyes = Eyes::new(Eye { lent: Lent::read(["pool=a"]), terms: own.workers.terms() });
        let api = double.api(None);
        let mut parts = JoinSet::new();
        for kind in Kind::ALL {
            let watch = Watch::of(kind, NAMESPACE, CLUSTER);
            let (api, eyes) = (api.clone(), eyes.clone());
            parts.spawn(async move { match run(api, watch, eyes).await {} });
        }
        let orders = Orders::new(own, eyes.clone(), Arc::new(OnceLock::from(api)));
        let cleaning = orders.clone();
        parts.spawn(async move {
            loop {
                sleep(5 * SECOND).await;
                cleaning.clean_up().await;
            }
        });
        until("everything is listed", SECOND, || eyes.says_something()).await;
        Self { double: Arc::clone(double), orders, _parts: parts }
    }

    async fn create(&self, create: &v1::CreateWorker) -> Result<(), (FailureCode, String)> {
        self.give(order_open::Order::Create(create.clone())).await
    }

    async fn delete(&self, worker: &[u8]) -> Result<(), (FailureCode, String)> {
        self.give(order_open::Order::Delete(v1::DeleteWorker { worker: worker.to_vec() })).await
    }

    async fn give(&self, order: order_open::Order) -> Result<(), (FailureCode, String)> {
        let answer = self.orders.serve(v1::OrderOpen { order: Some(order) }).await;
        answer.failure.map_or(Ok(()), |failure| Err((failure.code(), failure.text)))
    }

    async fn observe(&self) -> Vec<v1::WorkerJob> {
        let order = order_open::Order::Observe(v1::ObserveWorkers {});
        self.orders.serve(v1::OrderOpen { order: Some(order) }).await.jobs
    }

    fn asked(&self, method: &Method) -> Vec<Asked> {
        self.double.asked().into_iter().filter(|asked| asked.method == *method).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.double.beyond_rights().is_empty(), "{:?}", self.double.beyond_rights());
        }
    }
}

fn name(create: &v1::CreateWorker) -> String {
    template::job_name(WorkerId::from_wire(&create.worker).unwrap().unwrap())
}

/// What the Job controller makes for a worker's Job.
fn pod(double: &Double, create: &v1::CreateWorker, name: &str, phase: &str) -> Value {
    let job = double.get("jobs", &self::name(create)).unwrap();
    let mut labels = job["metadata"]["labels"].clone();
    labels["batch.kubernetes.io/controller-uid"] = job["metadata"]["uid"].clone();
    json!({
        "metadata": { "name": name, "namespace": NAMESPACE, "uid": name, "labels": labels },
        "spec": { "nodeName": create.node, "containers": [] },
        "status": { "phase": phase },
    })
}

#[tokio::test(start_paused = true)]
async fn an_order_whose_answer_was_lost_is_carried_out_once_however_often_it_is_given() {
    let rig = Rig::start().await;
    let create = order("a");
    rig.double.faults(|faults| faults.lost_answers = 1);
    let (code, text) = rig.create(&create).await.unwrap_err();
    assert_eq!((code, text.contains("connection reset")), (FailureCode::Unavailable, true), "{text}");
    // The Job is there, and shown at some time. Another worker finds no room meanwhile.
    assert_eq!(rig.create(&order("a")).await.unwrap_err().0, FailureCode::Conflict);
    for _ in 0..3 {
        assert_eq!(rig.create(&create).await, Ok(()));
    }
    let jobs = rig.observe().await;
    assert_eq!((jobs.len(), &jobs[0].worker, jobs[0].node.as_str()), (1, &create.worker, "a"));
    // Another node's order under that name is another order.
    let elsewhere = v1::CreateWorker { node: "b".to_owned(), ..create };
    assert_eq!(rig.create(&elsewhere).await.unwrap_err().0, FailureCode::Conflict);
    assert_eq!(rig.observe().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_order_given_twice_at_once_makes_one_job() {
    let rig = Rig::start().await;
    let create = order("a");
    let another = order("a");
    let (first, again, other) = tokio::join!(rig.create(&create), rig.create(&create), rig.create(&another));
    assert_eq!((first, again), (Ok(()), Ok(())));
    assert_eq!(other.unwrap_err().0, FailureCode::Conflict);
    until("it is seen", SECOND, || rig.orders.eyes.picture().jobs.wire(0).count() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_order_waits_for_a_dying_job_of_its_name_and_says_so_when_that_takes_long() {
    let rig = Rig::start().await;
    let create = order("a");
    rig.create(&create).await.unwrap();
    let mut dying = rig.double.get("jobs", &name(&create)).unwrap();
    let old = dying["metadata"]["uid"].clone();
    dying["metadata"]["deletionTimestamp"] = json!("2026-11-29T20:00:00Z");
    rig.double.put("jobs", dying);
    let begun = Instant::now();
    let (code, text) = rig.create(&create).await.unwrap_err();
    assert_eq!((code, text.contains("still being deleted")), (FailureCode::Unavailable, true), "{text}");
    assert!(begun.elapsed() <= PATIENCE, "{:?}", begun.elapsed());
    let reaped = async {
        sleep(7 * SECOND).await;
        rig.double.remove("jobs", &name(&create));
    };
    let (created, ()) = tokio::join!(rig.create(&create), reaped);
    assert_eq!(created, Ok(()));
    assert_ne!(rig.double.get("jobs", &name(&create)).unwrap()["metadata"]["uid"], old);
}

#[tokio::test(start_paused = true)]
async fn a_strangers_job_is_neither_taken_for_a_worker_nor_deleted() {
    let rig = Rig::start().await;
    let create = order("a");
    let stranger = json!({ "metadata": { "name": name(&create), "namespace": NAMESPACE, "uid": "s", "labels": {
        "levers9/cluster": "another", "levers9/worker": WorkerId::from_wire(&create.worker).unwrap().unwrap().to_string(),
    }}});
    rig.double.put("jobs", stranger);
    assert_eq!(rig.create(&create).await.unwrap_err().0, FailureCode::Conflict);
    let (code, text) = rig.delete(&create.worker).await.unwrap_err();
    assert_eq!((code, text.contains("not a worker of this cluster")), (FailureCode::Denied, true), "{text}");
    assert!(rig.asked(&Method::DELETE).is_empty());
    // Its room is given back.
    assert_eq!(rig.create(&order("a")).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_refuses_takes_no_room_and_what_it_may_have_done_does() {
    let rig = Rig::start().await;
    for (code, reason, means) in [
        (403, "Forbidden", FailureCode::Denied),
        (422, "Invalid", FailureCode::Invalid),
        (429, "TooManyRequests", FailureCode::Unavailable),
    ] {
        rig.double.faults(|faults| faults.creates = Some((code, reason)));
        let (failed, text) = rig.create(&order("a")).await.unwrap_err();
        assert_eq!((failed, text.contains(&code.to_string())), (means, true), "{text}");
        assert!(!text.contains("l9_enrolment_once"), "{text}");
    }
    rig.double.faults(|faults| faults.creates = Some((500, "InternalError")));
    assert_eq!(rig.create(&order("a")).await.unwrap_err().0, FailureCode::Unavailable);
    rig.double.faults(|faults| faults.creates = None);
    assert_eq!(rig.create(&order("a")).await.unwrap_err().0, FailureCode::Conflict);
    // It was not, and everybody had the time to see that.
    sleep(120 * SECOND).await;
    assert_eq!(rig.create(&order("a")).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_deleted_with_its_pod_and_not_before_that_is_gone() {
    let rig = Rig::start().await;
    let create = order("a");
    rig.create(&create).await.unwrap();
    rig.double.put("pods", pod(&rig.double, &create, "p", "Running"));
    let uid = rig.double.get("jobs", &name(&create)).unwrap()["metadata"]["uid"].clone();
    // The pod takes its time.
    let begun = Instant::now();
    let (code, text) = rig.delete(&create.worker).await.unwrap_err();
    assert_eq!((code, text.contains("its pod has yet to end")), (FailureCode::Unavailable, true), "{text}");
    assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < PATIENCE + SECOND);
    let reaped = async {
        sleep(5 * SECOND).await;
        rig.double.remove("jobs", &name(&create));
        sleep(5 * SECOND).await;
        rig.double.remove("pods", "p");
    };
    let begun = Instant::now();
    let (deleted, ()) = tokio::join!(rig.delete(&create.worker), reaped);
    assert_eq!(deleted, Ok(()));
    assert!(begun.elapsed() >= 10 * SECOND);
    // It was asked for once, with what depends on it.
    let asked = rig.asked(&Method::DELETE);
    assert_eq!((asked.len(), &asked[0].body["propagationPolicy"]), (1, &json!("Foreground")));
    assert_eq!(asked[0].body["preconditions"]["uid"], uid);
    // And again, when it is gone long since; also one that nobody ever ordered.
    assert_eq!(rig.delete(&create.worker).await, Ok(()));
    assert_eq!(rig.delete(&WorkerId::generate().to_wire()).await, Ok(()));
    assert_eq!(rig.delete(&[]).await.unwrap_err().0, FailureCode::Invalid);
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_its_job_is_waited_for_too() {
    let rig = Rig::start().await;
    let create = order("a");
    rig.create(&create).await.unwrap();
    rig.double.put("pods", pod(&rig.double, &create, "p", "Running"));
    rig.double.remove("jobs", &name(&create));
    let (code, text) = rig.delete(&create.worker).await.unwrap_err();
    assert_eq!(
        (code, text.contains("a pod of it has yet to end")),
        (FailureCode::Unavailable, true),
        "{text}"
    );
    rig.double.remove("pods", "p");
    assert_eq!(rig.delete(&create.worker).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_pod_does_not_start_is_deleted_after_twenty_minutes() {
    let rig = Rig::start().await;
    let (stuck, runs) = (order("a"), order("b"));
    rig.create(&stuck).await.unwrap();
    rig.create(&runs).await.unwrap();
    let mut pulling = pod(&rig.double, &stuck, "p", "Pending");
    pulling["status"]["containerStatuses"] =
        json!([{ "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } } }]);
    rig.double.put("pods", pulling);
    rig.double.put("pods", pod(&rig.double, &runs, "q", "Running"));
    until("the reason is told", SECOND, || {
        rig.orders.eyes.picture().jobs.wire(0).any(|job| job.reason == "ImagePullBackOff: no such image")
    })
    .await;
    sleep(Duration::from_secs(20 * 60 - 10)).await;
    assert!(rig.asked(&Method::DELETE).is_empty());
    // The API server's clock is read off its answers, which come every 20 s when all is quiet.
    sleep(60 * SECOND).await;
    let asked = rig.asked(&Method::DELETE);
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(asked[0].path.ends_with(&name(&stuck)));
    assert_eq!(asked[0].body["propagationPolicy"], "Foreground");
    // Gone, it leaves its node to the next.
    rig.double.remove("jobs", &name(&stuck));
    rig.double.remove("pods", "p");
    let worker = WorkerId::from_wire(&stuck.worker).unwrap().unwrap();
    until("it is gone", SECOND, || rig.orders.eyes.picture().jobs.left(worker).is_none()).await;
    assert_eq!(rig.create(&order("a")).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_starts_again_counts_the_twenty_minutes_from_the_jobs_begin() {
    let rig = Rig::start().await;
    let stuck = order("a");
    rig.create(&stuck).await.unwrap();
    let double = Arc::clone(&rig.double);
    drop(rig);
    sleep(Duration::from_secs(15 * 60)).await;
    let rig = Rig::on(&double).await;
    // What was pending still is: its node has no room.
    assert_eq!(rig.create(&order("a")).await.unwrap_err().0, FailureCode::Conflict);
    sleep(Duration::from_secs(4 * 60)).await;
    assert!(rig.asked(&Method::DELETE).is_empty());
    sleep(Duration::from_secs(90)).await;
    assert_eq!(rig.asked(&Method::DELETE).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_the_api_server_cannot_be_seen_no_job_is_taken_for_overdue() {
    let rig = Rig::start().await;
    rig.create(&order("a")).await.unwrap();
    rig.double.faults(|faults| faults.hangs = true);
    rig.double.deafen();
    sleep(Duration::from_secs(40 * 60)).await;
    assert!(rig.asked(&Method::DELETE).is_empty());
    rig.double.faults(|faults| faults.hangs = false);
    until("it is deleted", 60 * SECOND, || rig.asked(&Method::DELETE).len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_got_a_second_pod_is_reported_as_failed_and_deleted() {
    let rig = Rig::start().await;
    let create = order("a");
    rig.create(&create).await.unwrap();
    rig.double.put("pods", pod(&rig.double, &create, "p", "Running"));
    sleep(20 * SECOND).await;
    assert!(rig.asked(&Method::DELETE).is_empty());
    rig.double.remove("pods", "p");
    rig.double.put("pods", pod(&rig.double, &create, "q", "Pending"));
    until("it is deleted", 10 * SECOND, || rig.asked(&Method::DELETE).len() == 1).await;
    let jobs = rig.observe().await;
    assert_eq!((jobs.len(), jobs[0].phase()), (1, v1::JobPhase::Failed), "{jobs:?}");
    // Its second pod is there, and no other worker beside it.
    assert_eq!(rig.create(&order("a")).await.unwrap_err().0, FailureCode::Conflict);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_nobody_ordered_of_this_agent_is_told_and_left_alone() {
    let double = Double::new();
    double.put("nodes", node("a", 4));
    let first = Rig::on(&double).await;
    let create = order("a");
    first.create(&create).await.unwrap();
    double.put("pods", pod(&double, &create, "p", "Running"));
    drop(first);
    let rig = Rig::on(&double).await;
    sleep(Duration::from_secs(24 * 3600)).await;
    let jobs = rig.observe().await;
    assert_eq!((jobs.len(), &jobs[0].worker, jobs[0].phase()), (1, &create.worker, v1::JobPhase::Running));
    assert!(jobs[0].age_ms >= 24 * 3600 * 1000, "{}", jobs[0].age_ms);
    assert!(rig.asked(&Method::DELETE).is_empty());
}
