//! The watches against a double of an API server, on a virtual clock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::*;
use crate::capacity::Terms;
use crate::double::{Double, NAMESPACE, node, pod, until};
use crate::eyes::Eyes;
use crate::picture::STALE;
use crate::picture::facts::{Eye, Kind};
use crate::picture::lent::Lent;

const CLUSTER: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";
const WORKER: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6b";
const SECOND: Duration = Duration::from_secs(1);

/// Eyes that watch a double; the watches end when it is dropped.
struct Seen {
    double: Arc<Double>,
    eyes: Eyes,
    _watches: JoinSet<std::convert::Infallible>,
}

impl Seen {
    fn of(double: &Arc<Double>, token: Option<PathBuf>) -> Self {
        let eyes = Eyes::new(Eye { lent: Lent::read::<&str>([]), terms: Terms::new(NAMESPACE, CLUSTER) });
        let api = double.api(token);
        let mut watches = JoinSet::new();
        for kind in Kind::ALL {
            watches.spawn(run(api.clone(), Watch::of(kind, NAMESPACE, CLUSTER), eyes.clone()));
        }
        Self { double: Arc::clone(double), eyes, _watches: watches }
    }

    async fn complete(double: &Arc<Double>) -> Self {
        let seen = Self::of(double, None);
        until("everything is listed", SECOND, || seen.age().is_some()).await;
        seen
    }

    fn age(&self) -> Option<Duration> {
        self.eyes.picture().age(Instant::now())
    }

    /// The free cards of a node, as they would be reported now.
    fn free(&self, node: &str) -> Option<u32> {
        self.eyes.settle();
        let report = self.eyes.report(0);
        report.nodes.iter().find(|state| state.name == node)?.free.as_ref().map(|free| free.cards)
    }

    fn problem(&self) -> String {
        self.eyes.report(0).problem
    }

    async fn frees(&self, node: &str, cards: u32, within: Duration) {
        until(&format!("{cards} cards are free on {node}"), within, || self.free(node) == Some(cards)).await;
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.double.beyond_rights().is_empty(), "{:?}", self.double.beyond_rights());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn everything_is_listed_in_pages_and_followed_from_there() {
    let double = Double::new();
    (0..1_201).for_each(|n| double.put("nodes", node(&format!("node-{n:04}"), 2)));
    double.put("pods", pod("p", "node-0007", 1));
    let seen = Seen::complete(&double).await;
    assert_eq!((seen.free("node-0007"), seen.free("node-1200")), (Some(1), Some(2)));
    let lists: Vec<_> =
        double.asked().into_iter().filter(|asked| asked.plural() == "nodes" && !asked.is_watch()).collect();
    assert_eq!(lists.len(), 3);
    assert!(lists.iter().all(|asked| asked.query["limit"] == "500"));

    double.put("pods", pod("p", "node-0007", 2));
    seen.frees("node-0007", 0, SECOND).await;
    double.remove("pods", "p");
    seen.frees("node-0007", 2, SECOND).await;
    double.remove("nodes", "node-0007");
    until("the node is gone", SECOND, || seen.free("node-0007").is_none()).await;
    // A quiet cluster is watched on from where a watch ended, and not listed again.
    sleep(300 * SECOND).await;
    assert!(seen.age().unwrap() <= 21 * SECOND, "{:?}", seen.age());
    assert_eq!(double.asked().iter().filter(|asked| !asked.is_watch()).count(), 5);
    for asked in double.asked().iter().filter(|asked| asked.is_watch()) {
        assert_eq!(asked.query["allowWatchBookmarks"], "true");
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_are_watched_by_the_clusters_label_in_its_namespace_only() {
    let double = Double::new();
    let job = |name: &str, cluster: &str| {
        json!({ "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": name, "creationTimestamp": "2026-11-29T20:00:00Z",
            "labels": { "levers9/cluster": cluster, "levers9/worker": WORKER },
        }})
    };
    double.put("jobs", job("other", "another"));
    double.put("jobs", job("own", CLUSTER));
    let seen = Seen::complete(&double).await;
    assert_eq!(seen.eyes.report(0).jobs.len(), 1);
    let jobs: Vec<_> = double.asked().into_iter().filter(|asked| asked.plural() == "jobs").collect();
    for asked in jobs {
        assert_eq!(asked.path, format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs"));
        assert_eq!(asked.query["labelSelector"], format!("levers9/cluster={CLUSTER}"));
    }
}

#[tokio::test(start_paused = true)]
async fn versions_that_are_forgotten_lead_to_a_fresh_list_within_five_seconds() {
    let double = Double::new();
    double.put("nodes", node("a", 4));
    let seen = Seen::complete(&double).await;
    for cards in 1..4 {
        double.put("pods", pod("p", "a", cards));
        double.forget();
        seen.frees("a", 4 - cards, 5 * SECOND).await;
        assert_eq!(seen.problem(), "");
        sleep(10 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deaf_watch_is_found_within_half_a_minute() {
    let double = Double::new();
    double.put("nodes", node("a", 4));
    let seen = Seen::complete(&double).await;
    double.deafen();
    let deaf = Instant::now();
    double.put("pods", pod("p", "a", 3));
    while seen.free("a") != Some(1) {
        // What is old says so: it never looks fresher than its last proof.
        assert!(seen.age().unwrap() + SECOND >= deaf.elapsed(), "{:?}", seen.age());
        assert!(deaf.elapsed() <= 30 * SECOND);
        sleep(SECOND / 4).await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_every_watch_is_deaf_the_picture_grows_old() {
    let double = Double::new();
    double.put("nodes", node("a", 4));
    let seen = Seen::complete(&double).await;
    double.faults(|faults| faults.hangs = true);
    double.deafen();
    sleep(STALE + SECOND).await;
    assert!(seen.age().unwrap() > STALE, "{:?}", seen.age());
    assert_eq!(seen.free("a"), Some(4));
    let report = seen.eyes.report(0);
    assert!(report.age_ms > 90_000 && report.problem.contains("did not answer"), "{report:?}");
    // What was seen last is still told, with its age.
    assert_eq!(report.nodes.len(), 1);
    double.faults(|faults| faults.hangs = false);
    double.put("pods", pod("p", "a", 3));
    seen.frees("a", 1, 30 * SECOND).await;
    until("it is young again", 30 * SECOND, || seen.age().unwrap() <= 21 * SECOND).await;
    assert_eq!(seen.problem(), "");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_asked_again_for_ever_and_not_in_a_hurry() {
    let double = Double::new();
    double.faults(|faults| faults.away = true);
    double.put("nodes", node("a", 4));
    let seen = Seen::of(&double, None);
    sleep(600 * SECOND).await;
    assert!(seen.age().is_none() && seen.eyes.says_something());
    assert!(
        seen.problem().contains("cannot watch nodes: the API server cannot be reached"),
        "{}",
        seen.problem()
    );
    let asked = double.asked().len();
    assert!((180..600).contains(&asked), "{asked} requests in ten minutes");
    double.faults(|faults| faults.away = false);
    seen.frees("a", 4, 10 * SECOND).await;
    assert_eq!(seen.problem(), "");
    // And away again, in the middle of everything.
    double.faults(|faults| faults.away = true);
    sleep(60 * SECOND).await;
    assert!(seen.age().unwrap() > 30 * SECOND && !seen.problem().is_empty());
    double.faults(|faults| faults.away = false);
    until("it is young again", 30 * SECOND, || seen.age().unwrap() <= 21 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_replaced_costs_one_call_of_each_watch_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "first").unwrap();
    let double = Double::new();
    double.faults(|faults| faults.token = Some("first".to_owned()));
    double.put("nodes", node("a", 4));
    let seen = Seen::of(&double, Some(file.clone()));
    seen.frees("a", 4, SECOND).await;
    let refused = |double: &Double| double.asked().iter().filter(|asked| asked.code == Some(401)).count();
    for (nth, token) in ["second", "third", "fourth"].into_iter().enumerate() {
        // The old token is good until a moment before its file is replaced.
        double.faults(|faults| faults.token = Some(token.to_owned()));
        std::fs::remove_file(&file).unwrap();
        let mut oldest = Duration::ZERO;
        for second in 0..60 {
            if second == 5 {
                std::fs::write(&file, token).unwrap();
            }
            sleep(SECOND).await;
            oldest = oldest.max(seen.age().unwrap());
        }
        assert!(oldest <= 30 * SECOND, "{token}: {oldest:?}");
        double.put("pods", pod("p", "a", u32::try_from(nth).unwrap() + 1));
        seen.frees("a", 3 - u32::try_from(nth).unwrap(), SECOND).await;
    }
    let before = refused(&double);
    // Replaced in time, nothing fails.
    std::fs::write(&file, "fifth").unwrap();
    double.faults(|faults| faults.token = Some("fifth".to_owned()));
    sleep(300 * SECOND).await;
    assert_eq!(refused(&double), before);
    // And where the API server was first, one call of each watch does.
    double.faults(|faults| faults.token = Some("sixth".to_owned()));
    until("it is refused", 30 * SECOND, || refused(&double) > before).await;
    std::fs::write(&file, "sixth").unwrap();
    sleep(300 * SECOND).await;
    assert!(refused(&double) - before <= Kind::ALL.len(), "{}", refused(&double) - before);
    assert!(seen.age().unwrap() <= 30 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn without_rights_the_report_says_which_are_missing() {
    let double = Double::new();
    double.faults(|faults| faults.token = Some("another".to_owned()));
    let seen = Seen::of(&double, None);
    until("it is said", 10 * SECOND, || seen.problem().contains("cannot watch pods: 401 Unauthorized")).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_makes_no_sense_changes_nothing() {
    let double = Double::new();
    double.put("nodes", node("a", 4));
    let seen = Seen::complete(&double).await;
    double.faults(|faults| faults.garbage = true);
    double.forget();
    until("it is said", 10 * SECOND, || seen.problem().contains("cannot be read")).await;
    assert_eq!(seen.free("a"), Some(4));
    double.faults(|faults| faults.garbage = false);
    double.put("pods", pod("p", "a", 1));
    seen.frees("a", 3, 15 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_come_is_given_up() {
    let double = Double::new();
    double.faults(|faults| faults.hangs = true);
    let api = double.api(None);
    let request = || http::Request::get("/version").body(Vec::new()).unwrap();
    let begun = Instant::now();
    let error = api.ask(request()).await.unwrap_err();
    assert!(matches!(error, ApiError::Slow(_)) && error.leaves_open(), "{error}");
    assert!(begun.elapsed() <= 16 * SECOND);
    double.faults(|faults| faults.hangs = false);
    assert!(api.ask(request()).await.is_ok());
    assert_eq!(double.count_asked(&Method::GET, "version"), 2);
}
