//! Heads without an end, clients that dawdle, and HTTP/2 frames for their own
//! sake: each costs its sender the connection, and nobody else anything.

use std::sync::OnceLock;
use std::time::Duration;

use levers9_tests::http::Wire;
use levers9_tests::{Backend, Worker, World};
use tokio::time::Instant;

use crate::http2_bytes::{begun as http2, field, frame};
use crate::support::{LEARNT, PATIENCE, Site, in_time, mark};

/// A whole first request is there within 10 s.
const BEGIN: Duration = Duration::from_secs(10);
/// What an attack may cost the controlplane.
const GROWTH: u64 = 32 << 20;

/// A world whose memory nothing else uses.
struct Besieged {
    world: World,
    _worker: Worker,
    site: Site,
}

fn besieged() -> &'static Besieged {
    static BESIEGED: OnceLock<Besieged> = OnceLock::new();
    BESIEGED.get_or_init(|| {
        let world = World::start(Backend::Sqlite);
        let worker = world.worker("one");
        let site = Site::start(&world, &["--public"]);
        assert_eq!(site.get("/x").with(200).text(), "ok /x");
        Besieged { world, _worker: worker, site }
    })
}

/// The memory of its controlplane, in bytes.
fn memory() -> u64 {
    memory_of(besieged().world.controlplane.pid())
}

/// The resident memory of a process, in bytes.
pub(crate) fn memory_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("it has memory");
    let words: Vec<_> = line.split_whitespace().collect();
    words[1].parse::<u64>().expect("a number") * 1024
}

fn still_serves(site: &Site) {
    let begun = Instant::now();
    assert_eq!(site.get("/after").with(200).text(), "ok /after");
    in_time(begun, LEARNT, "a request beside it");
}

/// Sends one piece after another until the connection takes no more of them.
fn sent_until_cut(wire: &mut Wire, piece: &[u8], most: usize) -> usize {
    wire.limit(Some(PATIENCE));
    (0..most).find(|_| wire.send(piece).is_err()).map_or(most, |count| count) * piece.len()
}

#[test]
fn a_head_without_an_end_is_cut_off() {
    let site = &besieged().site;
    let before = memory();
    let lines: String = (0..100).map(|index| format!("X-Bomb-{index}: {}\r\n", "b".repeat(200))).collect();
    for piece in [lines.as_str(), &"x".repeat(20_000), "A: b\r\n"] {
        let mut wire = site.connect();
        let head = site.head("GET", "/bomb", "");
        wire.send(&head[..head.len() - 2]).expect("its beginning is sent");
        let sent = sent_until_cut(&mut wire, piece.as_bytes(), (64 << 20) / piece.len());
        assert!(sent < 48 << 20, "{sent} bytes of a head were taken");
        // The refusal may be lost to the reset that follows what is sent on.
        if let Ok(answer) = wire.answer("GET") {
            assert_eq!(answer.status(), 431, "{}", answer.text());
        }
    }
    let mut wire = site.connect();
    wire.send(b"GET /").expect("it is sent");
    let sent = sent_until_cut(&mut wire, &[b'a'; 65_536], 1024);
    assert!(sent < 48 << 20, "{sent} bytes of a target were taken");
    assert_eq!(site.requests("/bomb"), Vec::<String>::new());
    let grown = memory().saturating_sub(before);
    assert!(grown < GROWTH, "{grown} bytes more");
    still_serves(site);
}

#[test]
fn heads_that_dawdle_are_cut_off() {
    let site = &besieged().site;
    let begun = Instant::now();
    let head = site.head("GET", &format!("/slow?{}", mark()), "");
    let mut slow: Vec<(Wire, usize)> = (0..20).map(|_| (site.connect(), 0)).collect();
    let mut ended = Vec::new();
    while !slow.is_empty() {
        assert!(begun.elapsed() < BEGIN * 2, "{} still dawdle after {:?}", slow.len(), begun.elapsed());
        slow.retain_mut(|(wire, sent)| {
            // Never the last byte.
            let byte = head[*sent % (head.len() - 1)];
            *sent += 1;
            wire.limit(Some(Duration::from_millis(1)));
            let open = wire.send(&[byte]).is_ok()
                && matches!(wire.some(), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
            if !open {
                ended.push(begun.elapsed());
            }
            open
        });
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(ended.iter().all(|after| *after > Duration::from_secs(5)), "cut off too early: {ended:?}");
    still_serves(site);
}

/// Reads all that comes beside what is sent: whoever does not read stalls himself.
fn drained(wire: &Wire) -> std::thread::JoinHandle<()> {
    let mut other = Wire::new(wire.stream().try_clone().expect("a second handle"));
    std::thread::spawn(move || while other.some().is_ok_and(|bytes| !bytes.is_empty()) {})
}

/// Header blocks without an end, streams that are opened to be reset, and
/// frames that ask for answers.
#[test]
fn frames_for_their_own_sake_are_bounded() {
    let site = &besieged().site;
    let before = memory();
    // GET, http, and a long literal header in a block that goes on and on.
    let block = [&[0x82, 0x86, 0x40, 0x01, b'a', 0x7f, 0x81, 0x7f], [b'b'; 16_000].as_slice()].concat();
    let mut wire = http2(site);
    let reading = drained(&wire);
    wire.send(&frame(1, 0x1, 1, &block)).expect("a block begins");
    let sent = sent_until_cut(&mut wire, &frame(9, 0, 1, &[b'b'; 16_000]), 4000);
    assert!(sent < 48 << 20, "{sent} bytes of a header block were taken");
    reading.join().expect("it ended");

    // A whole request each, and its reset.
    let path = format!("{}/x", site.prefix);
    let authority = site.at.to_string();
    let pseudo = [(":method", "GET"), (":scheme", "http"), (":path", &path), (":authority", &authority)];
    let block: Vec<u8> =
        pseudo.iter().flat_map(|(name, value)| field(name.as_bytes(), value.as_bytes())).collect();
    let mut wire = http2(site);
    let reading = drained(&wire);
    wire.limit(Some(PATIENCE));
    for round in 0..20_000_u32 {
        let stream = round * 2 + 1;
        let reset = frame(3, 0, stream, &8_u32.to_be_bytes());
        if wire.send(&[frame(1, 0x5, stream, &block), reset].concat()).is_err() {
            break;
        }
    }
    drop(wire);
    drop(reading);

    let mut wire = http2(site);
    let reading = drained(&wire);
    let pings = frame(6, 0, 0, &[1; 8]).repeat(1000);
    let settings = frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]).repeat(1000);
    for piece in [pings, settings] {
        let _sent = sent_until_cut(&mut wire, &piece, 20);
    }
    drop(wire);
    drop(reading);
    still_serves(site);
    let grown = memory().saturating_sub(before);
    assert!(grown < GROWTH, "{grown} bytes more");
}
