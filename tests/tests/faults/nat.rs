//! NATs that forget: the ports and the addresses of a worker and a command
//! change while they only listen (B8). It is one session, and nothing is lost.

use std::net::Ipv4Addr;
use std::time::Duration;

use levers9_tests::{Backend, Person, Relay, World, wait};
use tokio::time::Instant;

use crate::support::{LONG, SOON, assert_counts, counting, id_of, last_number};

/// No pause of what is followed may be longer than one ping's interval.
const PAUSE: Duration = Duration::from_secs(15);

/// The addresses of this machine in turn.
fn others() -> impl Iterator<Item = Ipv4Addr> {
    (10..250).map(|last| Ipv4Addr::new(127, 0, 0, last))
}

/// Both sides of a job move every so often, also a worker that has nothing to
/// say at all.
fn they_move(count: u32, per_second: u32, every: Duration) {
    let world = World::start(Backend::Sqlite);
    let (near, far, idle) = (world.relay(), world.relay(), world.relay());
    let worker = world.worker_via("one", &far);
    let script = counting(count, per_second);
    let mut run = world.cli_spawn(&["run", "--name", "numbers", "--", "sh", "-c", &script]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 3);
    let id = id_of(&world, "numbers");
    let silent = world.worker_via("idle", &idle);
    let token = world.new_token("workspace").1;
    let person = Person::new(near.in_place_of(&world.controlplane.address()), token);
    let mut logs = person.cli_spawn(&["logs", "-f", &id]);
    logs.wait_text("numbers", SOON, |text| last_number(text) >= 3);
    let (mut seen, mut at, mut longest) = (0, Instant::now(), Duration::ZERO);
    let (mut moved, mut addresses) = (Instant::now(), others());
    while logs.poll().is_none() {
        let now = last_number(&logs.text());
        if now > seen {
            longest = longest.max(at.elapsed());
            (seen, at) = (now, Instant::now());
        }
        assert!(at.elapsed() < PAUSE, "nothing for {:?} after {seen}: {}", at.elapsed(), logs.shown());
        if moved.elapsed() > every && seen + per_second < count {
            let relays: [&Relay; 3] = [&near, &far, &idle];
            for relay in relays {
                relay.rebind_to(addresses.next().expect("an address"));
            }
            moved = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(logs.wait(LONG), 0, "{}", logs.shown());
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&logs.text(), count, "logs -f");
    assert_counts(&run.text(), count, "run");
    assert!(!logs.errors().contains("lost"), "{}", logs.errors());
    for worker in [&worker, &silent] {
        world.wait_worker(worker, "ready", PAUSE);
        assert_eq!(worker.log().matches("online").count(), 1, "{}", worker.log());
    }
    let log = world.controlplane.log();
    assert_eq!(log.matches("a worker connects").count(), 2, "each registers once: {log}");
    let task = world.task(&id);
    assert_eq!(task["attempts"], 1, "{task:#}");
    // Each is reached where it is now.
    wait::until("a job on either", LONG, || {
        let made = world.cli(&["run", "--", "echo", "here"]);
        if made.code == 0 { Ok(()) } else { Err(made.stderr) }
    });
}

#[test]
fn ports_and_addresses_that_change_every_few_seconds_cost_nothing() {
    they_move(400, 20, Duration::from_secs(3));
}

/// As seldom as a real one forgets: nothing but pings goes to and fro between.
pub(crate) fn ports_and_addresses_that_change_now_and_then_cost_nothing() {
    they_move(45, 1, Duration::from_secs(13));
}
