//! B125: a thousand clients of one server that is killed and started again.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::world::{World, arrived, online};

#[tokio::test(start_paused = true)]
async fn a_thousand_clients_come_back_spread_out_and_within_ninety_seconds() {
    const CLIENTS: u16 = 1_000;
    let world = World::new(41);
    let server = world.server();
    let mut peers = Vec::new();
    for number in 0..CLIENTS {
        let (link, incoming) = world.link(number);
        online(&link, Duration::from_secs(10)).await;
        peers.push((link, incoming));
    }
    // One reconnect tells everybody how many there are now.
    sleep(Duration::from_secs(1)).await;
    server.kill(&world);
    let server = world.server();
    let restarted = Instant::now();
    arrived(&server, usize::from(CLIENTS), Duration::from_secs(90)).await;
    assert!(restarted.elapsed() <= Duration::from_secs(90));
    let mut seconds: BTreeMap<u64, usize> = BTreeMap::new();
    for arrival in server.gate.arrivals.lock().unwrap().iter() {
        *seconds.entry((*arrival - restarted).as_secs()).or_default() += 1;
    }
    assert_eq!(seconds.values().sum::<usize>(), usize::from(CLIENTS));
    let (second, most) = seconds.iter().max_by_key(|(_, count)| **count).unwrap();
    assert!(*most <= usize::from(CLIENTS) / 10, "second {second} had {most} handshakes: {seconds:?}");
    let endings = server.gate.endings.lock().unwrap();
    assert!(endings.is_empty(), "established sessions were lost: {}", endings.len());
}
