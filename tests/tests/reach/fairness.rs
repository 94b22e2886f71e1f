//! B2 and B4: who does not read holds up nobody else, who gives up leaves
//! nothing behind, and both cost a bounded amount.

use std::thread;
use std::time::Duration;

use levers9_tests::http2::Http2;
use levers9_tests::live::Signal;
use levers9_tests::{Backend, World, wait};
use tokio::time::Instant;

use crate::hostile_sizes::memory_of;
use crate::support::{PATIENCE, Site, mark, shared, site, text};

/// What nobody reads may cost each process.
const GROWTH: u64 = 64 << 20;
/// The slowest of what goes on beside.
const SLOWEST: Duration = Duration::from_secs(1);
/// How much the deaf client asks for: more than all buffers together.
const DOWNLOAD: usize = 1 << 30;

/// The slowest of some that were timed, without the very slowest of all.
fn judge(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let p99 = times[(times.len() * 99 / 100).saturating_sub(1)];
    assert!(p99 < SLOWEST, "{what}: {p99:?}, the worst {:?}", times.last());
}

fn timed<T>(times: &mut Vec<Duration>, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    times.push(begun.elapsed());
    done
}

#[test]
fn those_who_stand_still_hold_up_nobody() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let site = Site::start(&world, &["--public"]);
    let chatty = world.submit("while :; do seq 1 2000; sleep 0.02; done");
    world.wait_status(&chatty, "RUNNING", PATIENCE);
    let pids = [world.controlplane.pid(), worker.pid()];
    // Each has done everything once.
    assert_eq!(site.get("/x").with(200).text(), "ok /x");
    let before = pids.map(memory_of);

    let mut follower = world.cli_spawn(&["logs", "-f", &chatty]);
    follower.wait_text("the follower prints", PATIENCE, |text| text.len() > 10_000);
    follower.signal(Signal::SIGSTOP);
    let mut deaf = site.connect();
    deaf.send(&site.head("GET", &format!("/big?bytes={DOWNLOAD}"), "")).expect("it is sent");
    assert!(!deaf.some().expect("its beginning").is_empty());

    let (mut gets, mut execs) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                timed(&mut gets, || assert_eq!(site.get("/beside").with(200).text(), "ok /beside"));
                thread::sleep(Duration::from_millis(20));
            }
        });
        for _ in 0..20 {
            timed(&mut execs, || world.cli(&["exec", &site.task, "--", "true"]).ok());
        }
    });
    judge("GET", gets);
    judge("levers9 exec", execs);
    for ((what, pid), before) in ["controlplane", "worker"].into_iter().zip(pids).zip(before) {
        let grown = memory_of(pid).saturating_sub(before);
        assert!(grown < GROWTH, "the {what} has grown by {grown} bytes");
    }
    let shown = world.task(&chatty);
    assert_eq!((text(&shown["status"]), shown["attempts"].as_u64()), ("RUNNING", Some(1)), "{shown:#}");
    // Nothing was given up meanwhile: the download goes on where it stood.
    let mut more = 0;
    while more < 32 << 20 {
        more += deaf.some().expect("it goes on").len();
    }
    follower.signal(Signal::SIGCONT);
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count()
}

/// B4: many who give up at any moment of a request's way leave nothing open.
#[test]
fn those_who_give_up_leave_nothing_behind() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let site = Site::start(&world, &["--public"]);
    assert_eq!(site.get("/x").with(200).text(), "ok /x");
    let pids = [world.controlplane.pid(), worker.pid()];
    let count = || pids.map(descriptors);
    let before = count();
    let id = mark();
    for round in 0..300_u64 {
        let mut wire = site.connect();
        wire.send(&site.head("GET", &format!("/hang?id={id}{round}"), "")).expect("it is sent");
        thread::sleep(Duration::from_micros(round * 37 % 5000));
        if round % 2 == 0 { wire.reset() } else { drop(wire) }
    }
    wait::until("every request that came to the container is closed there", PATIENCE, || {
        let (open, closed) =
            (site.events(&format!("hanging {id}")).len(), site.events(&format!("closed {id}")).len());
        if open == closed { Ok(()) } else { Err(format!("{closed} of {open}")) }
    });
    wait::until("both processes have as few files open as before", PATIENCE, || {
        let now = count();
        let few = now.iter().zip(before).all(|(now, before)| *now <= before);
        if few { Ok(()) } else { Err(format!("{now:?}, not {before:?}")) }
    });
    assert_eq!(site.get("/after").with(200).text(), "ok /after");
}

/// B2 between the streams of one connection of HTTP/2, as browsers and
/// balancers hold it: an upload that nobody takes holds up none beside it.
#[test]
fn an_upload_that_is_not_read_holds_up_no_other_of_its_connection() {
    let (site, id) = (site(), mark());
    let client = Http2::connect(site.at);
    let post = |path: &str| site.request2("POST", path).body(()).expect("a request");
    let mut stuck = client.begin(post(&format!("/deaf?id={id}")), false);
    stuck.send(vec![0; 64 << 20], false);
    site.wait_event(&format!("deaf {id}"), PATIENCE);
    // All that fits anywhere on its way is there.
    thread::sleep(Duration::from_millis(500));
    let (times, body) = (&mut Vec::new(), vec![1; 100_000]);
    for _ in 0..20 {
        let answer = timed(times, || {
            let mut upload = client.begin(post("/sha"), false);
            upload.send(body.clone(), true);
            upload.answer()
        });
        assert_eq!(answer.status, 200);
    }
    judge("uploads on one connection", std::mem::take(times));
    stuck.cancel();
}

/// B2 between those who call one container, whose calls share a connection:
/// answers that nobody takes hold up none but their own.
#[test]
fn calls_that_are_not_read_hold_up_no_other_caller() {
    let site = Site::start(&shared().world, &["--public"]);
    let call = |method: &str| {
        let request = site.request2("POST", &format!("/test.Echo/{method}"));
        request.header("content-type", "application/grpc").body(()).expect("a request")
    };
    let mut deaf = Vec::new();
    for _ in 0..8 {
        let (id, client) = (mark(), Http2::connect(site.at));
        deaf.push(client.begin(call(&format!("Flood?{id}")), true));
        site.wait_event(&format!("flooding {id}"), PATIENCE);
    }
    // All that fits anywhere on its way is there.
    thread::sleep(Duration::from_millis(1000));
    let (times, client) = (&mut Vec::new(), Http2::connect(site.at));
    for _ in 0..20 {
        let answer = timed(times, || {
            let mut call = client.begin(call("Unary"), false);
            call.send("beside", true);
            call.answer()
        });
        assert_eq!((answer.text().as_str(), answer.field("grpc-status").as_str()), ("beside", "0"));
    }
    judge("calls of one container", std::mem::take(times));
    deaf.into_iter().for_each(levers9_tests::http2::Exchange::cancel);
    let _stopped = shared().world.cli(&["task", "stop", &site.task]).ok();
}
