//! A whole agent between a double of an API server and a controlplane that
//! does what a test tells it, over the loopback.

use std::net::SocketAddr;

use levers9_transport::accept::{Acceptor, Ending, Gate, Limits, Refusal, Session, SessionHandle};
use levers9_transport::cert::Authority;
use levers9_transport::dial::DialError;
use levers9_transport::quic::{Identity, ServerKeys, bind};
use levers9_transport::stream::StreamError;
use levers9_wire::v1::{FailureCode, RefuseCode, ResetCode, order_open, stream_open};
use levers9_wire::{ClusterId, WorkerId, limits, valid};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::*;
use crate::double::{Double, NAMESPACE, node, pod};
use crate::template::Runtime;

const CLUSTER: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";
const REPOSITORY: &str = "r.example/levers9/worker";
const PATIENCE: Duration = Duration::from_secs(20);

/// The controlplane's side.
#[derive(Default)]
struct Controlplane {
    /// What every Hello is answered with instead of a Welcome.
    refusal: Mutex<Option<RefuseCode>>,
    /// What it has against every report.
    against: Mutex<Option<&'static str>>,
    hellos: watch::Sender<Vec<valid::Hello>>,
    session: watch::Sender<Option<SessionHandle>>,
    reports: watch::Sender<Vec<(Instant, v1::NodeReport)>>,
}

impl Gate for Controlplane {
    type Admitted = ();

    async fn admit(&self, hello: valid::Hello, _: SocketAddr) -> Result<(v1::Welcome, ()), Refusal> {
        self.hellos.send_modify(|hellos| hellos.push(hello));
        match *self.refusal.lock().unwrap() {
            Some(code) => Err(Refusal::new(code, "this token was revoked")),
            None => Ok((v1::Welcome::default(), ())),
        }
    }

    async fn serve(self: Arc<Self>, mut session: Session, (): ()) {
        self.session.send_replace(Some(session.handle().clone()));
        while let Some(opened) = session.next().await {
            let stream_open::Kind::NodeReport(_) = opened.kind else { panic!("an agent opens reports only") };
            let mut stream = opened.stream;
            let recv = stream.recv.with_limit(limits::NODE_REPORT);
            stream.recv = recv;
            // One that was overtaken by another is reset.
            let Ok(report) = stream.recv.expect::<v1::NodeReport>().await else { continue };
            let failure = self.against.lock().unwrap().map(|text| v1::Failure {
                code: FailureCode::Invalid.into(),
                text: text.to_owned(),
                hint: String::new(),
            });
            stream.send.send(&v1::NodeReportAnswer { failure }).await.unwrap();
            stream.send.finish();
            self.reports.send_modify(|reports| reports.push((Instant::now(), report)));
        }
    }
}

/// An agent and both its sides.
struct World {
    controlplane: Arc<Controlplane>,
    api: Arc<Double>,
    agent: Agent,
    folder: TempDir,
}

impl World {
    async fn start(refusal: Option<RefuseCode>, prepare: impl FnOnce(&Double)) -> Self {
        let (folder, api) = (tempfile::tempdir().unwrap(), Double::new());
        prepare(&api);
        let controlplane = Arc::new(Controlplane { refusal: Mutex::new(refusal), ..Controlplane::default() });
        let now = levers9_wire::clock::unix_millis() / 1000;
        let authority = Authority::open(&folder.path().join("ca"), &["127.0.0.1".to_owned()], now).unwrap();
        let identity = Identity { certificate: authority.resolver(), keys: ServerKeys { reset: [7; 64] } };
        let socket = bind("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
        let endpoint = Endpoint::accepting(socket, &Tuning::default(), &identity).unwrap();
        let place = endpoint.local_addr().unwrap();
        let acceptor =
            Acceptor::new(endpoint, Arc::clone(&controlplane), Limits::default(), Handle::current());
        tokio::spawn(async move { acceptor.run().await });

        let address: Address = format!("levers9://{place}#{}", authority.pin()).parse().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "a token\n").unwrap();
        let cluster: ClusterId = CLUSTER.parse().unwrap();
        let settings = Settings {
            token_file,
            lent: Lent::read(["pool=a"]),
            repository: REPOSITORY.to_owned(),
            workers: template::Settings {
                cluster,
                namespace: NAMESPACE.to_owned(),
                flavor: Some(template::Flavor::Gke),
                runtime: Runtime::Process,
                pull_secret: None,
                controlplane: address.to_string(),
            },
            kubernetes: Some(api.api(None)),
            signs: None,
            proxies: Proxies::default(),
            address,
            tuning: Tuning::default(),
        };
        let agent = Agent::start(settings).await;
        Self { controlplane, api, agent, folder }
    }

    /// The first report for which something holds.
    async fn reported(&self, what: impl Fn(&v1::NodeReport) -> bool) -> v1::NodeReport {
        let mut reports = self.controlplane.reports.subscribe();
        let found = reports.wait_for(|reports| reports.iter().any(|(_, report)| what(report)));
        let reports = timeout(PATIENCE, found).await.expect("it is reported").unwrap();
        reports.iter().map(|(_, report)| report).find(|report| what(report)).unwrap().clone()
    }

    async fn session(&self) -> SessionHandle {
        let mut session = self.controlplane.session.subscribe();
        let there = timeout(PATIENCE, session.wait_for(Option::is_some)).await.expect("there is a session");
        there.unwrap().clone().unwrap()
    }

    async fn order(&self, order: order_open::Order) -> v1::OrderAnswer {
        let open = v1::OrderOpen { order: Some(order) };
        let mut stream = self.session().await.open(stream_open::Kind::Order(open)).await.unwrap();
        stream.send.finish();
        timeout(PATIENCE, stream.recv.expect()).await.expect("it is answered").unwrap()
    }
}

fn free(report: &v1::NodeReport) -> Option<u32> {
    report.nodes.first().and_then(|node| node.free.as_ref()).map(|free| free.cards)
}

fn order() -> v1::CreateWorker {
    v1::CreateWorker {
        worker: WorkerId::generate().to_wire(),
        namespace: NAMESPACE.to_owned(),
        node: "a".to_owned(),
        image: format!("{REPOSITORY}:1"),
        amounts: Some(v1::NodeAmounts { cpu_millis: 1_000, memory_bytes: 1 << 30, cards: 1, pods: 1 }),
        gpu_type: "L40S".to_owned(),
        enrolment_token: "once".to_owned(),
        runtime: "process".to_owned(),
        ..v1::CreateWorker::default()
    }
}

#[tokio::test]
async fn an_agent_says_who_it_is_what_it_sees_and_what_has_changed() {
    let world = World::start(None, |api| {
        api.put("nodes", node("a", 4));
        let mut other = node("b", 8);
        other["metadata"]["labels"]["pool"] = serde_json::json!("b");
        api.put("nodes", other);
    })
    .await;
    let first = world.reported(|_| true).await;
    assert_eq!((first.nodes.len(), free(&first), first.nodes_in_cluster), (1, Some(4), 2));
    assert_eq!((first.nodes[0].name.as_str(), first.problem.as_str()), ("a", ""));
    assert!(first.age_ms < 5_000, "{}", first.age_ms);

    let hello = world.controlplane.hellos.borrow()[0].clone();
    assert_eq!((hello.role, hello.token.expose()), (v1::Role::Agent, "a token"));
    let agent = hello.agent.unwrap();
    assert_eq!(agent.cluster.to_string(), CLUSTER);
    let facts = agent.facts;
    assert_eq!((facts.namespace.as_str(), facts.kubernetes.as_str()), (NAMESPACE, "v1.99.0"));
    assert_eq!((facts.flavor.as_str(), facts.runtime.as_str()), ("gke", "process"));
    assert_eq!(facts.image_repository, REPOSITORY);

    // Many changes are few reports, and the last one is told.
    let (before, begun) = (world.controlplane.reports.borrow().len(), Instant::now());
    for cards in (0..100).map(|n| n % 3) {
        world.api.put("pods", pod("p", "a", cards));
        sleep(Duration::from_millis(10)).await;
    }
    world.api.put("pods", pod("p", "a", 3));
    world.reported(|report| free(report) == Some(1)).await;
    let reports = world.controlplane.reports.borrow()[before..].to_vec();
    let most = usize::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    assert!(reports.len() <= most, "{} reports in {:?}", reports.len(), begun.elapsed());
    // What is of no matter is not told.
    let before = world.controlplane.reports.borrow().len();
    let mut beating = node("a", 4);
    beating["status"]["conditions"][0]["lastHeartbeatTime"] = serde_json::json!("2026-11-29T20:00:00Z");
    world.api.put("nodes", beating);
    sleep(Duration::from_millis(1_500)).await;
    assert_eq!(world.controlplane.reports.borrow().len(), before);
    assert!(world.api.beyond_rights().is_empty(), "{:?}", world.api.beyond_rights());
}

#[tokio::test]
async fn orders_are_carried_out_and_strange_streams_refused() {
    let world = World::start(None, |api| api.put("nodes", node("a", 4))).await;
    world.reported(|report| free(report) == Some(4)).await;
    let create = order();
    for _ in 0..2 {
        let answer = world.order(order_open::Order::Create(create.clone())).await;
        assert_eq!(answer.failure, None);
    }
    let report = world.reported(|report| report.jobs.len() == 1).await;
    assert_eq!((&report.jobs[0].worker, report.jobs[0].phase()), (&create.worker, v1::JobPhase::Pending));
    let seen = world.order(order_open::Order::Observe(v1::ObserveWorkers {})).await;
    assert_eq!((seen.failure, seen.jobs.len()), (None, 1));
    let mut outside = order();
    outside.namespace = "kube-system".to_owned();
    let answer = world.order(order_open::Order::Create(outside)).await;
    assert_eq!(answer.failure.unwrap().code(), FailureCode::Denied);

    let session = world.session().await;
    let strange = stream_open::Kind::NodeReport(v1::NodeReportOpen {});
    let mut stream = session.open(strange).await.unwrap();
    let error = timeout(PATIENCE, stream.recv.next::<v1::OrderAnswer>()).await.unwrap().unwrap_err();
    assert!(matches!(&error, StreamError::Reset(reset) if reset.code == ResetCode::Unsupported), "{error:?}");
    assert!(!session.has_ended());
}

#[tokio::test]
async fn a_revoked_token_is_tried_every_thirty_seconds_and_ends_nothing() {
    for code in [RefuseCode::TokenRevoked, RefuseCode::Superseded] {
        let world = World::start(Some(code), |api| api.put("nodes", node("a", 4))).await;
        let mut status = world.agent.status();
        let waiting = timeout(PATIENCE, status.wait_for(|status| matches!(status, Status::Waiting { .. })));
        let (why, until) = match waiting.await.unwrap().unwrap().clone() {
            Status::Waiting { why, until } => (why, until),
            other => panic!("{other:?}"),
        };
        assert!(matches!(&*why, DialError::Refused { code: was, .. } if *was == code), "{why:?}");
        assert_eq!(why.to_string(), "this token was revoked");
        let pause = until.saturating_duration_since(Instant::now());
        assert!((Duration::from_secs(25)..=Duration::from_secs(30)).contains(&pause), "{pause:?}");
        assert_eq!(world.controlplane.hellos.borrow().len(), 1);
        assert!(world.controlplane.reports.borrow().is_empty());
        world.agent.shutdown().await;
    }
}

#[tokio::test]
async fn a_token_that_was_replaced_is_said_at_the_next_attempt() {
    let world = World::start(None, |api| api.put("nodes", node("a", 4))).await;
    world.reported(|_| true).await;
    std::fs::write(world.folder.path().join("token"), "another token").unwrap();
    world.session().await.close(ResetCode::Draining, "a restart");
    let mut hellos = world.controlplane.hellos.subscribe();
    let again = timeout(PATIENCE, hellos.wait_for(|hellos| hellos.len() == 2)).await.unwrap().unwrap();
    assert_eq!(again[1].token.expose(), "another token");
    assert_eq!(again[0].instance, again[1].instance);
    drop(again);
    // A session that begins is told everything anew.
    let reported = world.controlplane.reports.borrow().len();
    let mut reports = world.controlplane.reports.subscribe();
    timeout(PATIENCE, reports.wait_for(|reports| reports.len() > reported)).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_api_server_that_is_away_is_told_in_words_and_not_as_an_empty_cluster() {
    let world = World::start(None, |api| api.faults(|faults| faults.away = true)).await;
    let report = world.reported(|_| true).await;
    assert!(report.nodes.is_empty() && report.problem.contains("cannot be reached"), "{report:?}");
    let answer = world.order(order_open::Order::Create(order())).await;
    assert_eq!(answer.failure.unwrap().code(), FailureCode::Unavailable);
    world.api.put("nodes", node("a", 4));
    world.api.faults(|faults| faults.away = false);
    let report = world.reported(|report| free(report) == Some(4)).await;
    assert_eq!(report.problem, "");
}

#[tokio::test]
async fn a_report_that_is_not_taken_is_followed_by_others() {
    let world = World::start(None, |api| api.put("nodes", node("a", 4))).await;
    *world.controlplane.against.lock().unwrap() = Some("this makes no sense");
    for cards in 1..3 {
        world.api.put("pods", pod("p", "a", cards));
        world.reported(|report| free(report) == Some(4 - cards)).await;
    }
    assert!(!world.session().await.has_ended());
}

#[tokio::test]
async fn an_agent_says_goodbye_and_leaves_its_workers_alone() {
    let world = World::start(None, |api| api.put("nodes", node("a", 4))).await;
    world.reported(|_| true).await;
    assert_eq!(world.order(order_open::Order::Create(order())).await.failure, None);
    let (session, begun) = (world.session().await, Instant::now());
    world.agent.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let ending = timeout(PATIENCE, session.ended()).await.unwrap();
    assert!(matches!(&ending, Ending::Bye(_)), "{ending:?}");
    assert_eq!(world.api.count_asked(&http::Method::DELETE, "jobs"), 0);
}
