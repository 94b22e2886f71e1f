//! One controlplane takes another's place on the same database, under load.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use levers9_tests::http::Wire;
use levers9_tests::world::Setup;
use levers9_tests::{Backend, Controlplane, World, binaries, port, wait};

use tokio::time::Instant;

use crate::support::{LONG, SOON, assert_counts, counting, id_of, last_number, text};

/// The name behind which both are.
const NAME: &str = "levers9.test";
const OLD: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const NEW: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// What what runs may take until it is cut off.
const DRAIN: Duration = Duration::from_secs(20);

/// A world whose controlplane is dialed by a name.
fn world() -> World {
    let config = format!("drain: {}s\n", DRAIN.as_secs());
    World::start_with(Backend::Postgres, Setup { config, name: Some(NAME), ..Setup::default() })
}

/// Asks a container something over and over, at whichever controlplane takes
/// connections, and counts what fails.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    /// `kept`: on connections that are kept, else each on one of its own.
    fn start(at: [SocketAddr; 2], path: &str) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let one = |kept: bool| {
            let (stop, answered, path) = (Arc::clone(&stop), Arc::clone(&answered), path.to_owned());
            std::thread::spawn(move || {
                let (mut failed, mut wire) = (Vec::new(), None);
                while !stop.load(Ordering::Relaxed) {
                    match ask(at, &path, &mut wire) {
                        Ok(()) => _ = answered.fetch_add(1, Ordering::Relaxed),
                        Err(problem) => failed.push(problem),
                    }
                    if !kept {
                        wire = None;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                failed
            })
        };
        let tasks = vec![one(true), one(true), one(false), one(false)];
        Self { stop, answered, tasks }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Stops it; all that failed.
    fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.into_iter().flat_map(|task| task.join().expect("a load that ends")).collect()
    }
}

/// One request, on the connection there is or on a new one to the first that
/// takes it, as a client does to whom a name leads to both.
fn ask(at: [SocketAddr; 2], path: &str, kept: &mut Option<Wire>) -> Result<(), String> {
    let mut wire = match kept.take() {
        Some(wire) => wire,
        None => {
            let stream = at.iter().find_map(|at| TcpStream::connect(at).ok());
            let wire = Wire::new(stream.ok_or("nobody takes a connection")?);
            wire.limit(Some(Duration::from_secs(15)));
            wire
        }
    };
    let head = format!("GET {path}/hello HTTP/1.1\r\nHost: {}\r\n\r\n", at[0]);
    wire.send(head.as_bytes()).map_err(|error| format!("sending: {error}"))?;
    let answer = wire.answer("GET").map_err(|error| format!("no answer: {error}"))?;
    if answer.status() != 200 || answer.cut.is_some() || !answer.text().starts_with("ok ") {
        return Err(format!("{} {:?} {:?}", answer.status(), answer.cut, answer.text()));
    }
    let closes = answer.head.says("connection", "close");
    *kept = Some(wire).filter(|_| !closes);
    Ok(())
}

/// Bytes of a large answer.
const LARGE: usize = 64 << 20;

/// Takes a large answer in, slowly: how much of it came.
fn slow_download(at: SocketAddr, path: &str) -> impl FnOnce() -> Result<usize, String> + Send + 'static {
    let head = format!("GET {path}/big?bytes={LARGE} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    move || {
        let mut wire = Wire::connect(at);
        wire.send(head.as_bytes()).map_err(|error| error.to_string())?;
        let head = wire.head().map_err(|error| error.to_string())?.ok_or("no answer")?;
        if head.status() != 200 {
            return Err(format!("{}", head.status()));
        }
        let mut got = 0;
        while got < LARGE {
            let piece = wire.some().map_err(|error| format!("{error} after {got}"))?;
            if piece.is_empty() {
                return Err(format!("it ends after {got}"));
            }
            got += piece.len();
            // Some ten seconds for all of it.
            std::thread::sleep(Duration::from_micros(u64::try_from(piece.len() / 6).expect("a size")));
        }
        Ok(got)
    }
}

/// An origin in a job: its task, and the path it is reached by.
fn origin(world: &World) -> (String, String) {
    let port = port::free().to_string();
    let origin = binaries::path("levers9-test-origin");
    let args = ["run", "--detach", "--format", "json", "--public", "--port", &port, "--"];
    let args = [&args[..], &[origin.to_str().expect("a path that is text"), &port]].concat();
    let made = world.cli(&args).ok().json();
    let task = text(&made, "task").to_owned();
    world.wait_status(&task, "RUNNING", SOON);
    let url = made["urls"][0].as_str().expect("a URL");
    let path = url.split_once("/box/").map(|(_, path)| format!("/box/{}", path.trim_end_matches('/')));
    (task, path.expect("a URL with a path"))
}

/// Starts the new one behind the same name.
fn start_beside(world: &World) -> Controlplane {
    let new = world.controlplane.beside("new", NEW);
    new.start();
    world.home.resolve(NAME, &[OLD, NEW]);
    new
}

/// B21, F9: nothing is lost, doubled or refused, and nobody does anything.
#[test]
fn a_rolling_restart_loses_nothing() {
    const COUNT: u32 = 900;
    let world = world();
    let worker = world.worker_with("one", &["--cpu", "16"]);
    let (task, path) = origin(&world);
    let mut run = world.cli_spawn(&["run", "--name", "numbers", "--", "sh", "-c", &counting(COUNT, 20)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let id = id_of(&world, "numbers");
    let mut logs = world.cli_spawn(&["logs", "-f", &id]);
    logs.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let at = world.controlplane.http();
    let load = Load::start([at, SocketAddr::new(NEW, at.port())], &path);
    let short = ["exec", &task, "--", "sh", "-c", "echo on; sleep 12; echo off; exit 7"];
    let long = ["exec", &task, "--", "sh", "-c", "echo on; sleep 600"];
    let mut short = world.cli_spawn(&short);
    let mut long = world.cli_spawn(&long);
    for exec in [&short, &long] {
        exec.wait_text("it runs", SOON, |text| text.contains("on"));
    }
    let slow = std::thread::spawn(slow_download(at, &path));
    let _new = start_beside(&world);
    wait::until("some requests", SOON, || {
        if load.answered() > 100 { Ok(()) } else { Err(load.answered().to_string()) }
    });

    world.controlplane.begin_to_stop();
    let began = Instant::now();
    // The old one takes no commands any more: those that come reach the new one.
    world.wait_worker(&worker, "ready", Duration::from_secs(5));
    let _through = world.cli(&["exec", &task, "--", "true"]).ok();
    assert!(world.controlplane.runs(), "what runs keeps it");
    // Jobs are placed there.
    let placed = world.submit("echo placed");
    world.wait_status(&placed, "COMPLETE", SOON);

    assert_eq!(slow.join().expect("a download"), Ok(LARGE), "what is being sent is sent to its end");
    assert_eq!(short.wait(SOON), 7, "{}", short.shown());
    assert_eq!(short.text(), "on\noff\n");
    let cut = long.wait(DRAIN + SOON);
    assert!(began.elapsed() > DRAIN - Duration::from_secs(1), "{:?}", began.elapsed());
    assert_ne!(cut, 0, "{}", long.shown());
    assert!(long.errors().contains("the controlplane is shutting down"), "{}", long.errors());
    assert_eq!(world.controlplane.wait_end(SOON), 0, "{}", world.controlplane.log());
    world.home.resolve(NAME, &[NEW]);

    let before = load.answered();
    wait::until("requests at the new one", SOON, || {
        if load.answered() > before + 100 { Ok(()) } else { Err(load.answered().to_string()) }
    });
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_eq!(logs.wait(SOON), 0, "{}", logs.shown());
    assert_counts(&run.text(), COUNT, "run");
    assert_counts(&logs.text(), COUNT, "logs -f");
    assert!(!run.errors().contains("lost"), "nothing was lost on the way: {}", run.errors());
    assert_counts(&world.cli(&["logs", &id]).ok().text(), COUNT, "logs afterwards");
    let failed = load.stop();
    assert!(failed.is_empty(), "{} failed: {failed:#?}", failed.len());
    for task in [&id, &task] {
        assert_eq!(world.task(task)["attempts"], 1);
    }
    assert_eq!(worker.poll(), None, "the worker ran through");
}

/// B19: the name leads elsewhere, and nobody has to be told.
#[test]
fn a_controlplane_that_has_moved_is_found_by_its_name() {
    const COUNT: u32 = 600;
    let world = World::start_with(Backend::Sqlite, Setup { name: Some(NAME), ..Setup::default() });
    let worker = world.worker("one");
    let mut run = world.cli_spawn(&["run", "--name", "numbers", "--", "sh", "-c", &counting(COUNT, 20)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let mut logs = world.cli_spawn(&["logs", "-f", &id_of(&world, "numbers")]);
    logs.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    world.controlplane.kill9();
    let new = world.controlplane.beside("new", NEW);
    new.start();
    // For a while the name still leads to where nobody is.
    world.home.resolve(NAME, &[OLD, NEW]);
    world.wait_worker(&worker, "ready", Duration::from_secs(60));
    let before = last_number(&run.text());
    let more = |text: &str| last_number(text) > before + 10;
    for live in [&run, &logs] {
        live.wait_text("numbers from there", LONG, more);
    }
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_eq!(logs.wait(SOON), 0, "{}", logs.shown());
    assert_counts(&run.text(), COUNT, "run");
    assert_counts(&logs.text(), COUNT, "logs -f");
}

/// Who is in a hurry asks a second time; what runs is told why it ends.
#[test]
fn asked_twice_it_does_not_wait() {
    let world = world();
    let worker = world.worker("one");
    let task = world.submit("exec sleep 600");
    world.wait_status(&task, "RUNNING", SOON);
    let mut exec = world.cli_spawn(&["exec", &task, "--", "sh", "-c", "echo on; sleep 600"]);
    exec.wait_text("it runs", SOON, |text| text.contains("on"));
    let _new = start_beside(&world);
    world.controlplane.begin_to_stop();
    world.wait_worker(&worker, "ready", Duration::from_secs(5));
    world.controlplane.begin_to_stop();
    assert_eq!(world.controlplane.wait_end(Duration::from_secs(8)), 0, "{}", world.controlplane.log());
    assert_ne!(exec.wait(SOON), 0, "{}", exec.shown());
    assert!(exec.errors().contains("the controlplane is shutting down"), "{}", exec.errors());
    assert_eq!(world.task(&task)["status"], "RUNNING");
}
