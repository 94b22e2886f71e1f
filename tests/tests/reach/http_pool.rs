//! Connections to containers are used again, and never at somebody's cost (B31).

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use levers9_tests::{Backend, World};

use crate::support::{Site, ask, mark, site};

/// Connections of clients that send beside each other.
const CLIENTS: u64 = 20;
/// Requests of each.
const ROUNDS: u64 = 10;

/// How far away the worker is: for so long nobody knows here of a close there,
/// nor there of a request that has left here.
const AWAY: Duration = Duration::from_millis(40);

/// B31: the origin closes a connection after a second of idling; requests come
/// around that moment. Whoever can be asked again is, and nobody is twice.
#[test]
fn a_connection_that_is_just_being_closed_costs_no_request() {
    let world = World::start(Backend::Sqlite);
    let relay = world.relay();
    let _worker = world.worker_via("one", &relay);
    let site = &Site::start(&world, &["--public"]);
    relay.delay(AWAY);
    let id = mark();
    let client = |number: u64| -> Vec<(String, u16)> {
        let mut wire = site.connect();
        let mut statuses = Vec::new();
        for round in 0..ROUNDS {
            let name = format!("{id}{number}.{round}");
            let (method, lines, body): (_, _, &[u8]) = match (number + round) % 2 {
                0 => ("GET", "", b""),
                _ => ("POST", "Content-Length: 3\r\n", b"abc"),
            };
            let path = if method == "GET" { "idle-close" } else { "once" };
            let head = site.head(method, &format!("/{path}?id={name}"), lines);
            let answer = ask(&mut wire, method, &[&head, body].concat());
            statuses.push((format!("{method} {name}"), answer.status()));
            // The pause is what this is about: the close is 920 to 1,000 ms away from here.
            thread::sleep(Duration::from_millis(890 + (number * 11 + round * 17) % 131));
        }
        statuses
    };
    let statuses: Vec<(String, u16)> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    let failed: Vec<_> = statuses.iter().filter(|(_, status)| *status != 200).collect();
    assert!(failed.is_empty(), "{} of {}: {failed:?}", failed.len(), statuses.len());
    let mut seen = BTreeMap::new();
    for event in site.events(&format!("once {id}")) {
        *seen.entry(event).or_insert(0) += 1;
    }
    assert_eq!(seen.len() as u64, CLIENTS * ROUNDS / 2, "every POST that was answered came");
    let twice: Vec<_> = seen.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "delivered more than once: {twice:?}");
}

/// What a container sends unasked is nobody's answer.
#[test]
fn an_answer_that_nobody_asked_for_reaches_nobody() {
    let site = site();
    for _ in 0..20 {
        let mut wire = site.connect();
        assert_eq!(ask(&mut wire, "GET", &site.head("GET", "/raw/unasked", "")).with(200).text(), "ok");
        let after = ask(&mut wire, "GET", &site.head("GET", "/after", "")).with(200);
        assert_eq!(after.text(), "ok /after");
    }
}

/// Requests one after another on one connection, and many at once sent before
/// the first is answered: each gets its own answer, in order.
#[test]
fn requests_that_follow_each_other_get_their_own_answers() {
    let site = site();
    let mut wire = site.connect();
    let pipelined: Vec<u8> =
        (0..50).flat_map(|number| site.head("GET", &format!("/n{number}"), "")).collect();
    wire.send(&pipelined).expect("all are sent");
    for number in 0..50 {
        let answer = wire.answer("GET").expect("an answer").with(200);
        assert_eq!(answer.text(), format!("ok /n{number}"));
    }
    // Beside each other they use several connections to the container.
    thread::scope(|scope| {
        for client in 0..8 {
            scope.spawn(move || {
                let mut wire = site.connect();
                for number in 0..50 {
                    let path = format!("/c{client}n{number}");
                    let answer = ask(&mut wire, "GET", &site.head("GET", &path, "")).with(200);
                    assert_eq!(answer.text(), format!("ok {path}"));
                }
            });
        }
    });
}

/// A client says when a connection is to end, and a container's word on its
/// own connection is none on the client's.
#[test]
fn a_connection_ends_when_its_client_says_so() {
    let site = site();
    let mut wire = site.connect();
    let last = ask(&mut wire, "GET", &site.head("GET", "/x", "Connection: close\r\n")).with(200);
    assert_eq!(last.text(), "ok /x");
    assert_eq!(wire.rest().expect("it ends in order"), b"");
    let mut wire = site.connect();
    let head = site.head("GET", "/status?code=200&framing=none", "");
    assert_eq!(ask(&mut wire, "GET", &head).with(200).text(), "abc", "the container closes its own");
    assert_eq!(ask(&mut wire, "GET", &site.head("GET", "/x", "")).with(200).text(), "ok /x");
}
