//! What comes and goes leaves nothing behind: after many execs, tunnels,
//! requests and upgrades, ended well or given up, every process has the
//! descriptors, tasks and memory it had before (B1, B3, B4, B18).

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;

use levers9_tests::{Backend, Worker, World, wait};

use crate::hostile_sizes::memory_of;
use crate::support::{PATIENCE, Site};

/// What may stay of what was warmed up: pools, buffers, caches.
const GROWTH: u64 = 48 << 20;

/// What a process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    descriptors: [usize; 2],
    tasks: usize,
}

fn gauge(world: &World, name: &str) -> usize {
    let (status, text) = world.get("/metrics");
    assert_eq!(status, 200);
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
}

fn held(world: &World, worker: &Worker) -> Held {
    let descriptors = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").count();
    Held {
        descriptors: [descriptors(world.controlplane.pid()), descriptors(worker.pid())],
        tasks: gauge(world, "levers9_runtime_tasks"),
    }
}

/// Waits until nothing is open into containers.
fn quiet(world: &World) {
    let names = [
        "levers9_tunnels",
        "levers9_execs",
        "levers9_benches",
        "levers9_ingress_requests",
        "levers9_ingress_connections",
    ];
    wait::until("nothing is open any more", PATIENCE, || {
        let open: Vec<(&str, usize)> =
            names.iter().map(|name| (*name, gauge(world, name))).filter(|(_, open)| *open > 0).collect();
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    });
}

/// All there is to do, so many times.
fn stir(world: &World, site: &Site, forwarded: u16, times: usize) {
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..times {
                let script = if round % 2 == 0 { "true" } else { "echo x; exit 3" };
                let did = world.cli(&["exec", &site.task, "--", "sh", "-c", script]);
                assert_eq!(did.code, if round % 2 == 0 { 0 } else { 3 }, "{}", did.stderr);
            }
        });
        scope.spawn(|| {
            for _ in 0..times * 5 {
                assert_eq!(site.get("/churn").with(200).text(), "ok /churn");
                // Asked for and not waited for, then given up in the middle.
                let mut gone = site.connect();
                gone.send(&site.head("GET", "/big?bytes=100000000", "")).expect("it is sent");
                if !gone.some().expect("a beginning").is_empty() {
                    gone.reset();
                }
            }
        });
        scope.spawn(|| {
            for round in 0..times * 10 {
                let mut stream = TcpStream::connect(("127.0.0.1", forwarded)).expect("it is forwarded");
                // Given up at once, or after a request that is never read.
                if round % 2 == 0 {
                    let _gone = stream.write_all(b"GET /big?bytes=1000000 HTTP/1.1\r\nHost: x\r\n\r\n");
                }
            }
        });
    });
}

#[test]
fn what_comes_and_goes_leaves_nothing_behind() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let site = Site::start(&world, &["--public"]);
    let port = site.origin.port();
    let forward = world.cli_spawn(&["port-forward", &site.task, &format!("0:{port}"), "--format", "json"]);
    forward.wait_text("the port", PATIENCE, |text| text.contains("local"));
    let said: serde_json::Value = serde_json::from_str(forward.text().trim()).expect("JSON");
    let local = said["local"].as_str().and_then(|at| at.rsplit(':').next()?.parse().ok()).expect("a port");
    stir(&world, &site, local, 3);
    quiet(&world);
    let before = held(&world, &worker);
    let memory = [world.controlplane.pid(), worker.pid()].map(memory_of);
    stir(&world, &site, local, 30);
    quiet(&world);
    wait::until("all is as it was", PATIENCE, || {
        let now = held(&world, &worker);
        let good = now.descriptors.iter().zip(before.descriptors).all(|(now, before)| *now <= before + 2)
            && now.tasks <= before.tasks + 4;
        if good { Ok(()) } else { Err(format!("{now:?} after {before:?}")) }
    });
    for (now, before) in [world.controlplane.pid(), worker.pid()].map(memory_of).into_iter().zip(memory) {
        assert!(now < before + GROWTH, "grown from {before} to {now} bytes");
    }
}
