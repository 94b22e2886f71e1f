//! Long outages and what changes meanwhile: names that move or are not
//! resolved, keys that are rotated, timeouts that do not match, and a process
//! that is busy. A link never gives up, and is back soon after it can be.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use levers9_transport::CarrierKind;
use levers9_transport::dial::Resolve;
use levers9_transport::quic::{ServerKeys, Settings};
use levers9_transport::tcp::{Fallback, Via};
use tokio::time::{Instant, sleep, timeout};

use crate::pipes::{Cable, Flow, Routes};
use crate::raw::{BOTH, Over};
use crate::said::Said;
use crate::world::{
    NAME, World, arrived, call, echo, hole, idle_peers, moves_to, offline, online, rides_on, s,
    server_address, try_call, why,
};

/// The longest pause between two attempts: a backoff and an attempt's patience.
const LONGEST_GAP: Duration = Duration::from_secs(41);

/// What a resolver does.
#[derive(Debug, Clone)]
enum Answer {
    With(Vec<SocketAddr>),
    Fail,
    Hang,
}

/// A resolver, and when it was asked.
#[derive(Debug)]
struct Resolver {
    answer: Mutex<Answer>,
    asked: Mutex<Vec<Instant>>,
}

impl Resolver {
    fn new(answer: Answer) -> Arc<Self> {
        Arc::new(Self { answer: Mutex::new(answer), asked: Mutex::default() })
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }
}

#[async_trait]
impl Resolve for Resolver {
    async fn resolve(&self, _host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
        self.asked.lock().unwrap().push(Instant::now());
        let answer = self.answer.lock().unwrap().clone();
        match answer {
            Answer::With(found) => Ok(found),
            Answer::Fail => Err(io::Error::other("SERVFAIL")),
            Answer::Hang => std::future::pending().await,
        }
    }
}

fn of(resolver: &Arc<Resolver>) -> Option<(Arc<dyn Resolve>, &'static str)> {
    Some((Arc::clone(resolver) as Arc<dyn Resolve>, NAME))
}

fn other_address() -> SocketAddr {
    "10.0.0.2:443".parse().unwrap()
}

/// Attempts went on from the beginning to the end, with no longer pause than there may be.
fn assert_steady(asked: &[Instant], from: Instant, to: Instant) {
    let asked = asked.iter().copied().filter(|at| (from..=to).contains(at));
    let mut times = vec![from];
    times.extend(asked);
    times.push(to);
    let gap = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(gap <= LONGEST_GAP, "a pause of {gap:?} in {} attempts", times.len());
}

/// B19: the controlplane is another one, elsewhere, and its name says so.
#[tokio::test(start_paused = true)]
async fn a_name_that_moves_after_there_was_a_session_is_followed() {
    // The old one goes without a word, or is not heard any more.
    for (over, killed) in BOTH.into_iter().flat_map(|over| [(over, true), (over, false)]) {
        let world = World::new(981);
        if over == Over::Tcp {
            world.network.set(hole());
        }
        let (old, old_pipes) = world.server_over_tcp();
        let (listener, new_pipes) = world.listener();
        let new = world.server_at(other_address(), Some(listener));
        let resolver = Resolver::new(Answer::With(vec![server_address()]));
        let routes = Routes(vec![(server_address(), Arc::clone(&old_pipes)), (other_address(), new_pipes)]);
        let via: Arc<dyn Via> = Arc::new(routes);
        let fallback = (over == Over::Tcp).then(|| Fallback::default().with_via(via));
        let (link, _incoming) = world.link_by(1, "token", of(&resolver), fallback, true);
        online(&link, s(5)).await;
        sleep(s(100)).await;
        // While the old one lives, nobody leaves it.
        resolver.set(Answer::With(vec![other_address()]));
        sleep(s(100)).await;
        assert!(new.gate.arrivals.lock().unwrap().is_empty(), "over {over:?}");
        let began = Instant::now();
        match (over, killed) {
            (Over::Quic, _) => old.kill(&world),
            (Over::Tcp, true) => old_pipes.cut(),
            (Over::Tcp, false) => old_pipes.set(Cable::both(Flow::Swallow)),
        }
        old_pipes.blocked.store(true, std::sync::atomic::Ordering::Relaxed);
        arrived(&new, 1, s(60)).await;
        online(&link, s(1)).await;
        call(&link).await;
        assert!(began.elapsed() <= s(60), "{:?} over {over:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_hangs_is_named_and_asked_again() {
    let world = World::new(982);
    let server = world.server();
    let resolver = Resolver::new(Answer::Hang);
    let (link, _incoming) = world.link_by(1, "token", of(&resolver), None, false);
    let error = why(&link, s(6)).await;
    assert_eq!(error.to_string(), format!("cannot resolve {NAME:?}: the resolver does not answer"));
    resolver.set(Answer::With(vec![server_address()]));
    online(&link, s(10)).await;
    // While there is a session nobody needs it.
    resolver.set(Answer::Hang);
    sleep(s(3600)).await;
    call(&link).await;
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1);
}

/// What keeps a link away from its controlplane for three hours.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outage {
    Refused,
    Hole,
    NoName,
    NoResolver,
}

/// B16: whatever an outage is made of, attempts go on to its end.
#[tokio::test(start_paused = true)]
async fn three_hours_of_any_outage_end_in_a_session() {
    use std::sync::atomic::Ordering;
    for (number, (over, outage)) in BOTH
        .into_iter()
        .flat_map(|over| {
            [Outage::Refused, Outage::Hole, Outage::NoName, Outage::NoResolver].map(|outage| (over, outage))
        })
        .enumerate()
    {
        let world = World::new(990 + number as u64);
        if over == Over::Tcp {
            world.network.set(hole());
        }
        let (server, pipes) = world.server_over_tcp();
        let resolver = Resolver::new(Answer::With(vec![server_address()]));
        let via: Arc<dyn Via> = Arc::<crate::pipes::Pipes>::clone(&pipes);
        let fallback = (over == Over::Tcp).then(|| Fallback::default().with_via(via));
        let (link, _incoming) = world.link_by(1, "token", of(&resolver), fallback, true);
        online(&link, s(5)).await;
        sleep(s(20 * 60)).await;
        // The carrier is lost, and then no new one can be had.
        match outage {
            Outage::Refused => pipes.refused.store(true, Ordering::Relaxed),
            Outage::Hole => pipes.blocked.store(true, Ordering::Relaxed),
            Outage::NoName => resolver.set(Answer::Fail),
            Outage::NoResolver => resolver.set(Answer::Hang),
        }
        world.network.set(hole());
        pipes.cut();
        offline(&link, s(61)).await;
        let from = Instant::now();
        sleep(s(3 * 3600)).await;
        let to = Instant::now();
        assert_steady(&resolver.asked.lock().unwrap(), from, to);
        if over == Over::Tcp && matches!(outage, Outage::Refused | Outage::Hole) {
            assert_steady(&pipes.asked.lock().unwrap(), from, to);
        }
        pipes.refused.store(false, Ordering::Relaxed);
        pipes.blocked.store(false, Ordering::Relaxed);
        resolver.set(Answer::With(vec![server_address()]));
        if over == Over::Quic {
            world.network.set(levers9_transport::sim::links::wan());
        }
        online(&link, LONGEST_GAP).await;
        call(&link).await;
        assert_eq!(server.gate.arrivals.lock().unwrap().len(), 2, "{over:?} {outage:?}");
    }
}

/// B20: with another reset key nobody is told, and everybody finds out alone.
#[tokio::test(start_paused = true)]
async fn peers_of_a_server_with_another_reset_key_are_back_within_fifty_seconds() {
    let mut world = World::new(983);
    let server = world.server();
    let peers = idle_peers(&world, 20).await;
    server.kill(&world);
    sleep(s(2)).await;
    world.identity.keys = ServerKeys { reset: [8; 64] };
    let server = world.server();
    let restarted = Instant::now();
    for (link, _) in &peers {
        let link = link.clone();
        tokio::spawn(async move { while !matches!(timeout(s(1), try_call(&link)).await, Ok(Ok(()))) {} });
    }
    arrived(&server, 20, s(50)).await;
    // Nobody was told before its time, or this is no test.
    let first = server.gate.arrivals.lock().unwrap()[0] - restarted;
    assert!(first > s(25), "somebody was back after {first:?}");
}

const SHORT_PINGS: &str = "pings come more often than every 15 s";

/// B14: whichever side gives up sooner, on either carrier, pings come in time;
/// and it is said once that they come more often.
#[tokio::test(start_paused = true)]
async fn a_short_idle_timeout_of_either_side_gets_more_pings_and_one_warning() {
    for (over, at_server) in BOTH.into_iter().flat_map(|over| [(over, true), (over, false)]) {
        let mut world = World::new(984);
        let short = Settings { idle_timeout: s(10), ..Settings::default() };
        // Somebody has asked for pings that are too rare.
        world.ping_every = Some(s(15));
        let said = Said::listen();
        if at_server {
            world.settings = short.clone();
        }
        let (server, pipes) = world.server_over_tcp();
        assert_eq!(said.count(SHORT_PINGS), usize::from(at_server), "by the server");
        world.settings = if at_server { Settings::default() } else { short };
        let (link, _incoming) = crate::raw::link(&world, &pipes, 1, over);
        online(&link, s(10)).await;
        sleep(s(300)).await;
        call(&link).await;
        assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1, "{over:?}, at the server: {at_server}");
        // It comes again, and says no more.
        crate::world::session_of(&server).close(levers9_wire::v1::ResetCode::Internal, "again");
        arrived(&server, 2, s(30)).await;
        online(&link, s(5)).await;
        sleep(s(60)).await;
        assert_eq!(said.count(SHORT_PINGS), 1 + usize::from(at_server), "{over:?}");
    }
}

/// B15: what serves sessions is busy for almost a minute; pings are answered
/// elsewhere, and nobody is lost.
#[tokio::test(start_paused = true)]
async fn a_block_of_the_runtime_that_serves_loses_no_session() {
    for over in BOTH {
        let serving =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut world = World::new(985);
        world.serve_on = Some(serving.handle().clone());
        let (server, pipes) = world.server_over_tcp();
        let (link, _incoming) = crate::raw::link(&world, &pipes, 1, over);
        online(&link, s(10)).await;
        call(&link).await;
        // The only thread of that runtime waits for this one.
        let (free, blocked) = std::sync::mpsc::sync_channel::<()>(1);
        let (entered, entering) = std::sync::mpsc::sync_channel(1);
        serving.spawn(async move {
            entered.send(()).unwrap();
            let _freed = blocked.recv();
        });
        entering.recv().unwrap();
        let before = rides_on(&link).number();
        let waiting = tokio::spawn({
            let link = link.clone();
            async move { try_call(&link).await }
        });
        sleep(s(50)).await;
        assert!(!waiting.is_finished(), "nobody serves");
        assert_eq!(rides_on(&link).number(), before, "it rides on the same carrier");
        // Whoever comes meanwhile gets in, too.
        let (newcomer, _incoming) = crate::raw::link(&world, &pipes, 2, over);
        online(&newcomer, s(10)).await;
        free.send(()).unwrap();
        waiting.await.unwrap().expect("it was served in the end");
        call(&newcomer).await;
        echo(&link, &[5; 100_000]).await;
        assert_eq!(rides_on(&link).number(), before);
        assert!(server.gate.endings.lock().unwrap().is_empty());
        serving.shutdown_background();
    }
}

/// A hole that comes and goes never leaves a link on the worse way for good.
#[tokio::test(start_paused = true)]
async fn an_outage_of_everything_ends_on_the_better_way() {
    let world = World::new(986);
    let (_server, pipes) = world.server_over_tcp();
    let (link, _incoming) = world.link_with_tcp(1, "token", &pipes);
    online(&link, s(5)).await;
    for _ in 0..3 {
        world.network.set(hole());
        pipes.blocked.store(true, std::sync::atomic::Ordering::Relaxed);
        pipes.cut();
        offline(&link, s(61)).await;
        sleep(s(600)).await;
        pipes.blocked.store(false, std::sync::atomic::Ordering::Relaxed);
        moves_to(&link, CarrierKind::Tcp, LONGEST_GAP).await;
        call(&link).await;
        world.network.set(levers9_transport::sim::links::wan());
        moves_to(&link, CarrierKind::Quic, s(120)).await;
        call(&link).await;
    }
}
