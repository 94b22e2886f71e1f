//! Bad links: loss, reordering, duplicates, changing packet sizes, NATs.

use std::time::Duration;

use levers9_transport::link::Status;
use levers9_transport::sim::{Conditions, Fate, Passage, links};
use levers9_wire::v1::{self, stream_open};
use tokio::time::{Instant, sleep, timeout};

use crate::world::{World, call, client_address, download, drain, echo, online, server_address};

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

/// A run with everything in it, for comparing traces.
async fn eventful(seed: u64) -> Vec<Passage> {
    let world = World::new(seed);
    world.network.set(links::train());
    let _server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, Duration::from_secs(30)).await;
    echo(&link, &payload(300_000)).await;
    sleep(Duration::from_secs(600)).await;
    echo(&link, &payload(1_000)).await;
    world.network.trace()
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_packets_and_another_seed_others() {
    let first = eventful(11).await;
    assert!(first.iter().any(|p| p.fate == Fate::Lost), "the link lost nothing");
    assert!(first.last().unwrap().at > Duration::from_secs(600));
    assert!(eventful(11).await == first, "two runs of one seed differ");
    assert!(eventful(12).await != first, "two seeds gave one run");
}

#[tokio::test(start_paused = true)]
async fn bytes_survive_from_one_to_twenty_percent_loss() {
    for (seed, loss) in [(1, 0.01), (2, 0.05), (3, 0.1), (4, 0.2)] {
        let world = World::new(seed);
        world.network.set(Conditions { loss, ..links::wan() });
        let _server = world.server();
        let (link, _incoming) = world.link(1);
        online(&link, Duration::from_secs(60)).await;
        timeout(Duration::from_secs(300), echo(&link, &payload(256 * 1024))).await.expect("in time");
    }
}

#[tokio::test(start_paused = true)]
async fn reordered_and_doubled_packets_change_nothing() {
    let world = World::new(5);
    world.network.set(Conditions {
        jitter: Duration::from_millis(80),
        reorder: true,
        duplicate: 0.2,
        ..links::wan()
    });
    let _server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, Duration::from_secs(30)).await;
    timeout(Duration::from_secs(120), echo(&link, &payload(512 * 1024))).await.expect("in time");
}

#[tokio::test(start_paused = true)]
async fn every_named_link_carries_a_session() {
    for conditions in [links::rack(), links::wan(), links::train(), links::satellite(), links::absurd()] {
        let world = World::new(6);
        world.network.set(conditions.clone());
        let _server = world.server();
        let (link, _incoming) = world.link(1);
        online(&link, Duration::from_secs(60)).await;
        timeout(Duration::from_secs(60), call(&link)).await.unwrap_or_else(|_| panic!("{conditions:?}"));
    }
}

/// B8: the NAT forgets a side that only receives. It says nothing by itself.
#[tokio::test(start_paused = true)]
async fn a_side_that_only_receives_moves_to_a_new_address_within_a_ping() {
    let world = World::new(7);
    world.network.set(links::wan());
    let server = world.server();
    let (link, _incoming) = world.link(1);
    let session = online(&link, Duration::from_secs(10)).await;
    let numbers = 1_500;
    let follow = v1::FollowOpen { since_line: numbers, tail: Some(100), ..v1::FollowOpen::default() };
    let stream = link.open(stream_open::Kind::Follow(follow)).await.unwrap();
    let network = world.network.clone();
    let rebinding = tokio::spawn(async move {
        for hop in 0..5u16 {
            // Not in step with the pings; another port, then another address too.
            sleep(Duration::from_millis(21_300)).await;
            let outside = format!("203.0.113.{}:{}", hop / 2 + 1, 40_000 + hop).parse().unwrap();
            network.rebind(client_address(1), outside);
        }
    });
    let (first, mut recv) = stream.recv.into_raw();
    let (mut read, mut longest, mut last) = (first.to_vec(), Duration::ZERO, Instant::now());
    while let Some(bytes) = recv.read(1 << 20).await.expect("the stream goes on") {
        longest = longest.max(last.elapsed());
        last = Instant::now();
        read.extend_from_slice(&bytes);
    }
    assert!(rebinding.is_finished(), "it was over before the last rebinding");
    let expected: Vec<u8> = (0..numbers).flat_map(u64::to_be_bytes).collect();
    assert!(read == expected, "{} bytes of {}", read.len(), expected.len());
    assert!(longest > Duration::from_secs(1), "nothing was lost on the way: {longest:?}");
    assert!(longest <= Duration::from_millis(15_500), "a pause of {longest:?}");
    assert_eq!(online(&link, Duration::from_secs(1)).await, session);
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1, "it registered once");
}

/// B7 (b): the path suddenly takes smaller packets only.
#[tokio::test(start_paused = true)]
async fn a_shrunken_path_is_recovered_from_without_a_new_connection() {
    let world = World::new(8);
    world.network.set(links::wan());
    let server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, Duration::from_secs(10)).await;
    let Status::Online { carrier, .. } = link.status().borrow().clone() else { panic!("online") };
    let reading = tokio::spawn(drain(download(&link, 100 << 20).await));
    sleep(Duration::from_secs(2)).await;
    assert!(carrier.mtu() > 1_300, "discovered {}", carrier.mtu());
    world.network.set(Conditions { mtu: 1_300, ..links::wan() });
    let read = timeout(Duration::from_secs(300), reading).await.expect("in time").unwrap().unwrap();
    assert_eq!(read, 100 << 20);
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 1);
}

/// B7 (a): ordinary loss is not a smaller path.
#[tokio::test(start_paused = true)]
async fn loss_alone_does_not_pin_the_packet_size_low() {
    let world = World::new(9);
    world.network.set(Conditions { loss: 0.03, delay: Duration::from_millis(40), ..links::wan() });
    let server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, Duration::from_secs(30)).await;
    let _reading = tokio::spawn(drain(download(&link, 1 << 40).await));
    let Status::Online { carrier, .. } = link.status().borrow().clone() else { panic!("online") };
    let mut low = Duration::ZERO;
    for _ in 0..120 {
        sleep(Duration::from_secs(1)).await;
        low = if carrier.mtu() > 1_400 { Duration::ZERO } else { low + Duration::from_secs(1) };
        assert!(low <= Duration::from_secs(60), "the packet size stayed low for {low:?}");
    }
    drop(server);
}

/// B9, B11: the system refuses to send to one peer.
#[tokio::test(start_paused = true)]
async fn send_errors_towards_one_peer_leave_the_others_alone() {
    let world = World::new(10);
    let server = world.server();
    let mut links = Vec::new();
    for number in 0..20 {
        let (link, incoming) = world.link(number);
        online(&link, Duration::from_secs(10)).await;
        links.push((link, incoming));
    }
    let refusing = |kind| Conditions { send_error: Some(kind), ..Conditions::default() };
    let kinds = [std::io::ErrorKind::PermissionDenied, std::io::ErrorKind::NetworkUnreachable];
    for round in 0..60 {
        let kind = kinds[round % 2];
        world.network.set_path(server_address(), client_address(0), refusing(kind));
        world.network.set_path(client_address(0), server_address(), refusing(kind));
        for (link, _) in &links[1..] {
            timeout(Duration::from_secs(1), call(link)).await.expect("others are served");
        }
        sleep(Duration::from_millis(500)).await;
        world.network.set_path(server_address(), client_address(0), Conditions::default());
        world.network.set_path(client_address(0), server_address(), Conditions::default());
        sleep(Duration::from_millis(500)).await;
    }
    timeout(Duration::from_secs(35), call(&links[0].0)).await.expect("the troubled peer is back");
    assert!(server.endpoint.counters().send_errors.load(std::sync::atomic::Ordering::Relaxed) > 0);
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 20, "nobody had to come again");
}

/// B9: what comes back about one peer's packets is an error on receive, once
/// for each of them, at both ends.
#[tokio::test(start_paused = true)]
async fn receive_errors_over_one_peer_leave_fifty_alone() {
    const EMSGSIZE: i32 = 90;
    const ECONNREFUSED: i32 = 111;
    let world = World::new(13);
    let server = world.server();
    let mut links = Vec::new();
    for number in 0..50 {
        let (link, incoming) = world.link(number);
        online(&link, Duration::from_secs(10)).await;
        let stream = download(&link, 2 << 20).await;
        links.push((link, incoming, stream));
    }
    for round in 0..60 {
        let error = Some([EMSGSIZE, ECONNREFUSED][round % 2]);
        let failing = Conditions { receive_error: error, ..Conditions::default() };
        // Sometimes nothing gets through beside the errors.
        let failing = Conditions { black_hole: round % 3 == 0, ..failing };
        world.network.set_path(server_address(), client_address(0), failing.clone());
        world.network.set_path(client_address(0), server_address(), failing);
        for (link, ..) in &links[1..] {
            timeout(Duration::from_secs(1), call(link)).await.expect("others are served");
        }
        let _troubled = timeout(Duration::from_millis(300), call(&links[0].0)).await;
        sleep(Duration::from_millis(500)).await;
        world.network.set_path(server_address(), client_address(0), Conditions::default());
        world.network.set_path(client_address(0), server_address(), Conditions::default());
        sleep(Duration::from_millis(500)).await;
    }
    assert!(server.endpoint.counters().receive_errors.load(std::sync::atomic::Ordering::Relaxed) > 30);
    assert_eq!(server.gate.arrivals.lock().unwrap().len(), 50, "nobody had to come again");
    for (_, _, stream) in links {
        let read = timeout(Duration::from_secs(30), drain(stream)).await.expect("all are transferring");
        assert_eq!(read.unwrap(), 2 << 20);
    }
}

/// B13: a driver that announces segmentation offload and fails at it, from the
/// start or in the middle of a transfer.
#[tokio::test(start_paused = true)]
async fn a_driver_that_cannot_split_sends_costs_nothing_but_speed() {
    let failing = Conditions { refuse_segments: true, ..links::rack() };
    let world = World::new(11);
    world.network.set(failing.clone());
    let _server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, Duration::from_secs(2)).await;
    let read = timeout(Duration::from_secs(60), drain(download(&link, 50 << 20).await)).await;
    assert_eq!(read.expect("in time").unwrap(), 50 << 20);

    let world = World::new(12);
    world.network.set(links::rack());
    let _server = world.server();
    let (link, _incoming) = world.link(1);
    online(&link, Duration::from_secs(2)).await;
    assert_eq!(drain(download(&link, 1 << 20).await).await.unwrap(), 1 << 20);
    world.network.set(failing);
    let read = timeout(Duration::from_secs(60), drain(download(&link, 50 << 20).await)).await;
    assert_eq!(read.expect("in time").unwrap(), 50 << 20);
}
