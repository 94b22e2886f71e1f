//! What the Jobs of workers come to, and which are doomed.

use super::*;

use proptest::prelude::*;

const MINUTE_MS: i64 = 60_000;

fn worker(number: u8) -> WorkerId {
    WorkerId::from_bytes([number; 16])
}

fn job(number: u8, node: &str) -> WorkerJob {
    WorkerJob {
        worker: worker(number),
        name: format!("job-{number}"),
        uid: format!("uid-{number}"),
        version: "1".to_owned(),
        node: node.to_owned(),
        created_ms: 0,
        deleting: false,
        end: None,
        reason: String::new(),
    }
}

fn pod(number: u8, node: &str) -> OwnPod {
    OwnPod {
        worker: worker(number),
        job: format!("uid-{number}"),
        node: node.to_owned(),
        started: false,
        end: None,
        reason: String::new(),
    }
}

fn phase(jobs: &Jobs) -> (v1::JobPhase, String) {
    let job = jobs.wire(0).next().unwrap();
    (job.phase(), job.reason)
}

#[test]
fn a_job_is_pending_until_its_pod_has_started() {
    let mut jobs = Jobs::default();
    jobs.put_job(job(1, "a"));
    assert_eq!(phase(&jobs), (v1::JobPhase::Pending, String::new()));
    let pulling = OwnPod { reason: "ImagePullBackOff: no".to_owned(), ..pod(1, "a") };
    jobs.put_pod("p", pulling);
    assert_eq!(phase(&jobs), (v1::JobPhase::Pending, "ImagePullBackOff: no".to_owned()));
    jobs.put_pod("p", OwnPod { started: true, ..pod(1, "a") });
    assert_eq!(phase(&jobs), (v1::JobPhase::Running, String::new()));
    let failed =
        OwnPod { started: true, end: Some(End::Failed), reason: "Error: x".to_owned(), ..pod(1, "a") };
    jobs.put_pod("p", failed);
    assert_eq!(phase(&jobs), (v1::JobPhase::Failed, "Error: x".to_owned()));
    jobs.put_job(WorkerJob {
        end: Some(End::Failed),
        reason: "BackoffLimitExceeded".to_owned(),
        ..job(1, "a")
    });
    assert_eq!(phase(&jobs), (v1::JobPhase::Failed, "Error: x".to_owned()));
    jobs.remove_pod("p");
    assert_eq!(phase(&jobs), (v1::JobPhase::Failed, "BackoffLimitExceeded".to_owned()));
    jobs.put_job(WorkerJob { end: Some(End::Succeeded), ..job(1, "a") });
    assert_eq!(phase(&jobs).0, v1::JobPhase::Succeeded);
}

#[test]
fn a_pod_that_ran_and_is_gone_is_not_waited_for() {
    let mut jobs = Jobs::default();
    jobs.put_pod("p", OwnPod { started: true, ..pod(1, "a") });
    jobs.put_job(job(1, "a"));
    jobs.remove_pod("p");
    assert_eq!(phase(&jobs), (v1::JobPhase::Failed, "its pod is gone".to_owned()));
    assert_eq!(jobs.doomed(60 * MINUTE_MS), []);
    // Also after everything was listed again.
    jobs.replace_jobs(vec![job(1, "a")]);
    jobs.replace_pods(Vec::new());
    assert_eq!(jobs.doomed(60 * MINUTE_MS), []);
    // Another Job of that worker is another Job.
    jobs.replace_jobs(vec![WorkerJob { uid: "another".to_owned(), ..job(1, "a") }]);
    assert_eq!(jobs.doomed(60 * MINUTE_MS).len(), 1);
}

#[test]
fn a_job_is_overdue_after_twenty_minutes_and_not_before() {
    let mut jobs = Jobs::default();
    jobs.put_job(job(1, "a"));
    jobs.put_job(WorkerJob { deleting: true, ..job(2, "b") });
    jobs.put_job(WorkerJob { end: Some(End::Failed), ..job(3, "c") });
    jobs.put_job(job(4, "d"));
    jobs.put_pod("p", OwnPod { started: true, ..pod(4, "d") });
    jobs.put_job(WorkerJob { created_ms: i64::MAX, ..job(5, "e") });
    assert_eq!(jobs.doomed(20 * MINUTE_MS - 1), []);
    let overdue = jobs.doomed(20 * MINUTE_MS);
    assert_eq!(overdue.iter().map(|o| o.worker).collect::<Vec<_>>(), [worker(1)]);
    assert_eq!((overdue[0].uid.as_str(), overdue[0].version.as_deref()), ("uid-1", Some("1")));
    assert_eq!(overdue[0].why, Doom::Overdue);
    // A pod that waits is no pod that has started.
    jobs.put_pod("q", pod(1, "a"));
    assert_eq!(jobs.doomed(20 * MINUTE_MS).len(), 1);
}

#[test]
fn one_worker_waits_on_a_node_and_no_more_than_there_are_nodes() {
    let mut jobs = Jobs::default();
    assert_eq!(jobs.order(worker(1), "a", 2), Ok(()));
    assert_eq!(jobs.order(worker(1), "a", 2), Ok(()), "the same order again");
    assert_eq!(jobs.order(worker(2), "a", 2), Err(Full::Node(worker(1))));
    assert_eq!(jobs.order(worker(2), "b", 2), Ok(()));
    assert_eq!(jobs.order(worker(3), "c", 2), Err(Full::Cluster(2)));
    // Shown by the watch, and deleted: it counts until it is gone.
    jobs.put_job(job(1, "a"));
    jobs.put_job(WorkerJob { deleting: true, ..job(1, "a") });
    assert_eq!(jobs.order(worker(3), "a", 9), Err(Full::Node(worker(1))));
    jobs.remove_job(&job(1, "a"));
    assert_eq!(jobs.order(worker(3), "a", 9), Ok(()));
    // One that runs holds no room.
    jobs.put_job(job(3, "a"));
    jobs.put_pod("p", OwnPod { started: true, ..pod(3, "a") });
    assert_eq!(jobs.order(worker(4), "a", 9), Ok(()));
}

#[test]
fn a_pod_whose_job_is_gone_still_counts() {
    let mut jobs = Jobs::default();
    jobs.put_pod("p", pod(1, "a"));
    assert_eq!(jobs.order(worker(2), "a", 9), Err(Full::Node(worker(1))));
    assert_eq!(jobs.order(worker(2), "b", 1), Err(Full::Cluster(1)));
    jobs.remove_pod("p");
    assert_eq!(jobs.order(worker(2), "a", 1), Ok(()));
}

#[test]
fn what_was_ordered_is_remembered_until_it_is_shown_or_surely_is_not_there() {
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let mut jobs = Jobs::default();
    jobs.order(worker(1), "a", 9).unwrap();
    jobs.forget_ordered(start + 60 * second);
    assert!(jobs.knows(worker(1)), "nobody has answered yet");
    jobs.missing(worker(1), start);
    assert!(jobs.knows(worker(1)));
    jobs.answered(worker(1), start);
    jobs.forget_ordered(start + second);
    assert!(jobs.knows(worker(1)), "the watch may be late");
    jobs.forget_ordered(start + 6 * second);
    assert!(!jobs.knows(worker(1)));
    jobs.order(worker(2), "a", 9).unwrap();
    jobs.refused(worker(2));
    assert_eq!(jobs.order(worker(3), "a", 9), Ok(()));
}

#[test]
fn an_order_that_is_given_twice_at_once_keeps_its_room_until_both_are_answered() {
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let mut jobs = Jobs::default();
    jobs.order(worker(1), "a", 9).unwrap();
    jobs.order(worker(1), "a", 9).unwrap();
    jobs.refused(worker(1));
    assert_eq!(jobs.order(worker(2), "a", 9), Err(Full::Node(worker(1))));
    // The other one may have been carried out, until a while from now.
    jobs.answered(worker(1), start + 60 * second);
    jobs.missing(worker(1), start);
    jobs.forget_ordered(start + 60 * second);
    assert_eq!(jobs.left(worker(1)), Some(Left::Coming));
    jobs.forget_ordered(start + 65 * second);
    assert_eq!((jobs.left(worker(1)), jobs.order(worker(2), "a", 9)), (None, Ok(())));
}

#[test]
fn a_job_whose_pod_was_replaced_has_failed_and_is_removed() {
    let mut jobs = Jobs::default();
    jobs.put_job(job(1, "a"));
    jobs.put_pod("p", OwnPod { started: true, ..pod(1, "a") });
    assert_eq!(jobs.doomed(0), []);
    jobs.remove_pod("p");
    jobs.put_pod("q", pod(1, "a"));
    let (how, why) = phase(&jobs);
    assert_eq!((how, why.contains("another was made")), (v1::JobPhase::Failed, true), "{why}");
    let doomed = jobs.doomed(0);
    assert_eq!((doomed.len(), doomed[0].why, &doomed[0].version), (1, Doom::Replaced, &None));
    // The second pod is there all the same, and waits.
    assert_eq!(jobs.order(worker(2), "a", 9), Err(Full::Node(worker(1))));
    // Also where both were seen at once, as after a start.
    let mut jobs = Jobs::default();
    jobs.put_pod("p", OwnPod { started: true, ..pod(1, "a") });
    jobs.put_pod("q", pod(1, "a"));
    jobs.put_job(job(1, "a"));
    assert_eq!(jobs.doomed(0).len(), 1);
    jobs.put_job(WorkerJob { deleting: true, ..job(1, "a") });
    assert_eq!(jobs.doomed(0), []);
}

#[test]
fn a_pod_of_an_earlier_job_of_the_same_name_is_nobodys_second_pod() {
    let mut jobs = Jobs::default();
    jobs.put_pod("old", OwnPod { job: "earlier".to_owned(), started: true, ..pod(1, "a") });
    jobs.put_job(job(1, "a"));
    jobs.put_pod("new", pod(1, "a"));
    assert_eq!(phase(&jobs).0, v1::JobPhase::Pending);
    assert_eq!(jobs.doomed(0), []);
    assert_eq!(jobs.doomed(20 * MINUTE_MS).len(), 1);
}

#[test]
fn a_worker_is_gone_when_neither_job_nor_pod_is_left() {
    let mut jobs = Jobs::default();
    jobs.put_job(job(1, "a"));
    jobs.put_pod("p", pod(1, "a"));
    assert_eq!(jobs.left(worker(1)), Some(Left::Job));
    jobs.remove_job(&job(1, "a"));
    assert_eq!(jobs.left(worker(1)), Some(Left::Pod));
    jobs.remove_pod("p");
    assert_eq!(jobs.left(worker(1)), None);
}

#[test]
fn getting_older_is_no_change() {
    let mut jobs = Jobs::default();
    jobs.put_job(job(1, "a"));
    assert!(jobs.settle());
    assert!(!jobs.settle());
    jobs.put_job(WorkerJob { version: "2".to_owned(), ..job(1, "a") });
    assert!(!jobs.settle());
    jobs.put_pod("p", OwnPod { started: true, ..pod(1, "a") });
    assert!(jobs.settle());
}

/// What happens between an agent, the API server and a kubelet.
#[derive(Debug, Clone)]
enum Happening {
    Order(u8, u8),
    /// The API server has the Job, and the watch shows it later or never.
    Answer(u8, bool),
    Show(u8),
    Start(u8),
    End(u8),
    Delete(u8),
    List,
}

fn happening() -> impl Strategy<Value = Happening> {
    let worker = 0..6_u8;
    prop_oneof![
        4 => (worker.clone(), 0..3_u8).prop_map(|(worker, node)| Happening::Order(worker, node)),
        3 => (worker.clone(), any::<bool>()).prop_map(|(worker, made)| Happening::Answer(worker, made)),
        3 => worker.clone().prop_map(Happening::Show),
        2 => worker.clone().prop_map(Happening::Start),
        1 => worker.clone().prop_map(Happening::End),
        1 => worker.prop_map(Happening::Delete),
        1 => Just(Happening::List),
    ]
}

proptest! {
    /// The API server's own Jobs never hold two that wait on one node, nor
    /// more that wait than there are nodes.
    #[test]
    fn whatever_happens_the_ceilings_hold(happenings in prop::collection::vec(happening(), 0..80)) {
        let mut jobs = Jobs::default();
        // What the API server has, and what was asked of it.
        let mut real: BTreeMap<u8, (u8, bool)> = BTreeMap::new();
        let mut asked: BTreeMap<u8, (u8, u8)> = BTreeMap::new();
        let now = Instant::now();
        for happening in happenings {
            match happening {
                Happening::Order(number, node) => {
                    let room = jobs.order(worker(number), &node.to_string(), 2).is_ok();
                    if room && !real.contains_key(&number) {
                        asked.entry(number).or_insert((node, 0)).1 += 1;
                    }
                }
                Happening::Answer(number, made) => {
                    let Some((node, times)) = asked.remove(&number) else { continue };
                    if made {
                        real.insert(number, (node, false));
                    }
                    for _ in 0..times {
                        if made { jobs.answered(worker(number), now) } else { jobs.refused(worker(number)) }
                    }
                }
                Happening::Show(number) => {
                    if let Some((node, _)) = real.get(&number) {
                        jobs.put_job(job(number, &node.to_string()));
                    }
                }
                Happening::Start(number) => {
                    if let Some((node, started)) = real.get_mut(&number) {
                        *started = true;
                        let pod = OwnPod { started: true, ..pod(number, &node.to_string()) };
                        jobs.put_pod(&number.to_string(), pod);
                    }
                }
                Happening::End(number) | Happening::Delete(number) => {
                    if let Some((node, _)) = real.remove(&number) {
                        jobs.remove_pod(&number.to_string());
                        jobs.put_job(job(number, &node.to_string()));
                        jobs.remove_job(&job(number, ""));
                    }
                }
                Happening::List => {
                    let listed = real.iter().map(|(number, (node, _))| job(*number, &node.to_string()));
                    jobs.replace_jobs(listed.collect());
                }
            }
            let waiting: Vec<u8> =
                real.values().filter(|(_, started)| !started).map(|(node, _)| *node).collect();
            let nodes: std::collections::BTreeSet<u8> = waiting.iter().copied().collect();
            prop_assert_eq!(nodes.len(), waiting.len(), "two wait on one node: {:?}", &real);
            prop_assert!(waiting.len() <= 2, "{:?}", &real);
        }
    }
}
