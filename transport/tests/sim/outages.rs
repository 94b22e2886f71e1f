//! Outages: holes in the network, servers that are gone, refuse, restart or move.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use levers9_transport::accept::Ending;
use levers9_transport::address::Address;
use levers9_transport::dial::{DialError, Dialer, Resolve};
use levers9_transport::link::Status;
use levers9_transport::quic::Lost;
use levers9_transport::sim::links;
use tokio::time::{Instant, sleep, timeout};

use crate::world::{
    NAME, World, arrived, call, client_address, hole, idle_peers, offline, online, s, server_address,
    try_call,
};

#[tokio::test(start_paused = true)]
async fn a_short_hole_costs_no_session() {
    let world = World::new(21);
    world.network.set(links::wan());
    let server = world.server();
    let (link, _incoming) = world.link(1);
    let session = online(&link, s(10)).await;
    sleep(s(20)).await;
    world.network.set(hole());
    sleep(s(25)).await;
    world.network.set(links::wan());
    timeout(s(30), call(&link)).await.expect("answered after the hole");
    assert_eq!(online(&link, s(1)).await, session);
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn silence_of_forty_five_seconds_ends_the_carrier_on_both_sides_and_the_session_comes_back() {
    let world = World::new(22);
    let server = world.server();
    let (link, _incoming) = world.link(1);
    let session = online(&link, s(10)).await;
    sleep(s(1)).await;
    world.network.set(hole());
    let began = Instant::now();
    offline(&link, s(70)).await;
    let dead_after = began.elapsed();
    assert!(dead_after >= s(29) && dead_after <= s(46), "given up after {dead_after:?}");
    sleep(s(600)).await;
    assert_eq!(server.gate.endings.lock().unwrap().len(), 1);
    assert!(matches!(server.gate.endings.lock().unwrap()[0], Ending::Lost(Lost::TimedOut)));
    world.network.set(links::rack());
    assert_eq!(online(&link, s(41)).await, session, "the session is kept");
    call(&link).await;
}

/// B16: an outage longer than any retry helper's patience.
#[tokio::test(start_paused = true)]
async fn three_hours_of_refused_connections_end_in_a_session() {
    let world = World::new(23);
    let server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    sleep(s(20 * 60)).await;
    server.kill(&world);
    sleep(s(3 * 3600)).await;
    let attempts: Vec<Duration> = world
        .network
        .trace()
        .iter()
        .filter(|p| p.from == client_address(1) && p.at > s(21 * 60))
        .map(|p| p.at)
        .collect();
    let gaps = attempts.windows(2).map(|pair| pair[1] - pair[0]);
    let longest = gaps.max().expect("there were attempts");
    assert!(longest <= s(41), "the longest pause was {longest:?}");
    assert!(attempts.last().unwrap() > &s(3 * 3600 + 19 * 60), "attempts went on to the end");
    let _server = world.server();
    online(&link, s(41)).await;
    call(&link).await;
}

/// A refusal with words is asked again every 30 s and said once.
#[tokio::test(start_paused = true)]
async fn a_revoked_token_is_tried_every_thirty_seconds() {
    let world = World::new(24);
    let server = world.server();
    let (link, _incoming) = world.link_as(1, "refused", None);
    let mut status = link.status();
    let refused = status.wait_for(|s| matches!(s, Status::Waiting { .. })).await.unwrap().clone();
    let Status::Waiting { why, .. } = refused else { panic!("waiting") };
    assert_eq!(why.to_string(), "the token was revoked");
    assert!(matches!(*why, DialError::Refused { .. }));
    sleep(s(300)).await;
    let gauges = server.acceptor.gauges();
    let refusals = gauges.refused.load(std::sync::atomic::Ordering::Relaxed);
    assert!((9..=12).contains(&refusals), "{refusals} attempts in 300 s");
}

/// B20: a quick restart is noticed at once, since the reset key is kept.
#[tokio::test(start_paused = true)]
async fn twenty_peers_of_a_restarted_server_are_back_within_ten_seconds() {
    let world = World::new(25);
    let server = world.server();
    let peers = idle_peers(&world, 20).await;
    server.kill(&world);
    sleep(s(2)).await;
    let server = world.server();
    let restarted = Instant::now();
    // Each writes something, as a worker with a log does.
    for (link, _) in &peers {
        let link = link.clone();
        tokio::spawn(async move { while !matches!(timeout(s(1), try_call(&link)).await, Ok(Ok(()))) {} });
    }
    arrived(&server, 20, s(10)).await;
    assert!(restarted.elapsed() < s(10), "took {:?}", restarted.elapsed());
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 20);
}

#[derive(Debug)]
pub(crate) struct Names(pub(crate) Mutex<Vec<SocketAddr>>);

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, _host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(self.0.lock().unwrap().clone())
    }
}

/// B19: the name points elsewhere after a while, and of two addresses one is dead.
#[tokio::test(start_paused = true)]
async fn names_are_asked_anew_and_dead_addresses_do_not_hold_up_live_ones() {
    let world = World::new(27);
    let _server = world.server();
    let nowhere: SocketAddr = "10.9.9.9:443".parse().unwrap();
    let names = Arc::new(Names(Mutex::new(vec![nowhere])));
    let resolver = Arc::clone(&names) as Arc<dyn Resolve>;
    let (link, _incoming) = world.link_as(1, "token", Some((resolver, NAME)));
    let mut status = link.status();
    let waiting = status.wait_for(|s| matches!(s, Status::Waiting { .. })).await.unwrap().clone();
    let Status::Waiting { why, .. } = waiting else { panic!("waiting") };
    assert_eq!(
        why.to_string(),
        "no answer from UDP controlplane.test:443: it is down, or UDP is blocked on the way"
    );
    // The name points elsewhere; the dead address is still among its answers, and first.
    *names.0.lock().unwrap() = vec![nowhere, server_address()];
    online(&link, s(60)).await;

    // A first attempt with a dead address in front costs a moment, not its whole patience.
    let resolver = Arc::clone(&names) as Arc<dyn Resolve>;
    let (link, _incoming) = world.link_as(2, "token", Some((resolver, NAME)));
    let began = Instant::now();
    online(&link, s(10)).await;
    assert!(began.elapsed() < s(1), "took {:?}", began.elapsed());
}

/// Where a dialer tries first after one attempt with these addresses.
async fn order_after_a_dial(seed: u64, addresses: [SocketAddr; 2]) -> Vec<SocketAddr> {
    let world = World::new(seed);
    let _server = world.server();
    let resolver = Arc::new(Names(Mutex::new(addresses.to_vec())));
    let address = Address { host: NAME.to_owned(), ..world.address() };
    let mut dialer = Dialer::new(address).without_probe().with_resolver(resolver);
    dialer.dial(&world.endpoint(1), s(5)).await.expect("one of them answers");
    dialer.addresses().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_address_that_answered_stays_first_and_one_that_was_silent_goes_last() {
    let (here, nowhere) = (server_address(), "10.9.9.9:443".parse().unwrap());
    assert_eq!(order_after_a_dial(31, [here, nowhere]).await, [here, nowhere]);
    assert_eq!(order_after_a_dial(32, [nowhere, here]).await, [here, nowhere]);
}

/// B24: nobody waits long for a peer that is gone.
#[tokio::test(start_paused = true)]
async fn shutting_down_is_bounded_and_the_others_are_told() {
    let world = World::new(29);
    let server = world.server();
    let (near, _a) = world.link(1);
    let (gone, _b) = world.link(2);
    online(&near, s(10)).await;
    online(&gone, s(10)).await;
    sleep(s(1)).await;
    world.network.set_path(server_address(), client_address(2), hole());
    world.network.set_path(client_address(2), server_address(), hole());
    let began = Instant::now();
    let mut status = near.status();
    let waiting = tokio::spawn(async move {
        let told = status.wait_for(|s| matches!(s, Status::Waiting { .. })).await.unwrap().clone();
        let Status::Waiting { why, .. } = told else { panic!("waiting") };
        why.to_string()
    });
    server.acceptor.shutdown("upgrading", s(1), s(3)).await;
    assert!(began.elapsed() <= s(7), "took {:?}", began.elapsed());
    let why = waiting.await.unwrap();
    assert!(why.contains("upgrading"), "{why}");
    let began = Instant::now();
    gone.shutdown(s(2)).await;
    assert!(began.elapsed() <= s(2));
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_is_told_apart_from_a_loss() {
    let world = World::new(30);
    let server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, s(10)).await;
    link.shutdown(s(2)).await;
    sleep(s(1)).await;
    assert_eq!(*server.gate.endings.lock().unwrap(), [Ending::Bye("closing".to_owned())]);
}
