//! Commands in containers through real processes: what breaks on the way is
//! never a success, and nothing outlives its caller or its container.

use std::time::Duration;

use levers9_tests::live::Signal;
use levers9_tests::{Backend, Live, World, wait};

use crate::support::{ENDED, PATIENCE};

/// A job that only waits.
fn waiting(world: &World) -> String {
    let task = world.submit("exec sleep 1000");
    world.wait_status(&task, "RUNNING", PATIENCE);
    task
}

/// Processes of this machine with these arguments.
fn processes(command: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let ids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let with = |id: &String| {
        let arguments = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        id.bytes().all(|b| b.is_ascii_digit()) && arguments.trim_end() == command
    };
    ids.filter(with).collect()
}

/// A number of seconds that no other test sleeps for.
fn own_seconds() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    40_000_000 + (std::process::id() % 100_000) * 100 + NEXT.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn output_is_complete_before_the_code() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let task = waiting(&world);
    // B55: much of both at once, and the end right after the last byte.
    let script = "seq 1 300000; seq 1 300000 >&2; echo last; echo last >&2; exit 7";
    for _ in 0..5 {
        let did = world.cli(&["exec", &task, "--", "sh", "-c", script]).with_code(7);
        for (name, text) in [("stdout", did.text()), ("stderr", did.stderr.clone())] {
            let lines = text.lines().filter(|line| line.bytes().all(|b| b.is_ascii_digit())).count();
            assert_eq!((lines, text.lines().last()), (300_000, Some("last")), "{name}");
        }
    }
    let did = world.cli(&["exec", &task, "--", "no-such-program"]).with_code(127);
    assert!(did.stderr.contains("no-such-program"), "{}", did.stderr);
    let _denied = world.cli(&["exec", &task, "--", "/"]).with_code(126);
    let _killed = world.cli(&["exec", &task, "--", "sh", "-c", "kill -9 $$"]).with_code(137);
}

/// B54: whatever dies on the way, the code is the command's own or 125.
#[test]
fn a_broken_way_is_never_a_success() {
    let world = World::start(Backend::Sqlite);
    let relay = world.relay();
    let worker = world.worker_via("one", &relay);
    let task = waiting(&world);
    let begin = |count: usize| -> Vec<Live> {
        let exec = ["exec", &task, "--", "sh", "-c", "echo on; sleep 1.5; exit 7"];
        let mut all: Vec<Live> = (0..count).map(|_| world.cli_spawn(&exec)).collect();
        all.iter_mut().for_each(|one| one.wait_text("it runs", PATIENCE, |text| text.contains("on")));
        all
    };
    let judge = |what: &str, all: Vec<Live>, lost: bool| {
        for mut one in all {
            let code = one.wait(Duration::from_secs(60));
            let errors = one.errors();
            assert!(code == 7 || code == 125, "{what}: code {code}: {errors}");
            if lost {
                assert_eq!(code, 125, "{what}: {errors}");
                assert!(errors.contains("lost") || errors.contains("ended"), "{what}: {errors}");
            }
        }
    };
    let all = begin(6);
    world.controlplane.kill9();
    world.controlplane.start();
    judge("the controlplane was killed", all, true);
    world.wait_worker(&worker, "ready", PATIENCE);
    let all = begin(6);
    let _code = world.controlplane.terminate();
    world.controlplane.start();
    judge("the controlplane was stopped", all, true);
    world.wait_worker(&worker, "ready", PATIENCE);
    let all = begin(4);
    // Shorter than anybody gives up: it goes on as if nothing had been.
    relay.cut();
    std::thread::sleep(Duration::from_secs(1));
    relay.restore();
    judge("the worker was cut off for a moment", all, false);
    let all = begin(6);
    worker.kill9();
    judge("the worker was killed", all, true);
}

/// A command that shrugs off what is polite, and has company.
struct Stubborn {
    exec: Live,
    sleepers: [String; 2],
}

impl Stubborn {
    fn start(world: &World, task: &str) -> Self {
        let [one, other] = [own_seconds(), own_seconds()];
        let script = format!("trap '' HUP TERM; sleep {one} & echo on; sleep {other}");
        let exec = world.cli_spawn(&["exec", task, "--", "sh", "-c", &script]);
        exec.wait_text("it runs", PATIENCE, |text| text.contains("on"));
        let stubborn = Self { exec, sleepers: [one, other].map(|seconds| format!("sleep {seconds}")) };
        wait::until("both sleep", PATIENCE, || {
            let both = stubborn.left();
            if both.len() == 2 { Ok(()) } else { Err(format!("{both:?}")) }
        });
        stubborn
    }

    fn left(&self) -> Vec<String> {
        self.sleepers.iter().flat_map(|one| processes(one)).collect()
    }

    fn ends(&self, within: Duration) {
        wait::until("nothing of it is left", within, || {
            let left = self.left();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
    }
}

/// B58: nothing of a command stays when its caller is gone.
#[test]
fn a_command_ends_with_its_caller() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let task = waiting(&world);
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let mut stubborn = Stubborn::start(&world, &task);
        stubborn.exec.signal(signal);
        assert_ne!(stubborn.exec.wait(PATIENCE), 0, "{signal}");
        stubborn.ends(Duration::from_secs(10));
    }
    assert_eq!(world.task(&task)["status"], "RUNNING", "the container is not harmed");
}

/// B58: nor when it was killed, and nobody could say so: its session is given
/// up after 45 s.
pub(crate) fn a_command_ends_with_a_caller_that_is_killed() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let mut stubborn = Stubborn::start(&world, &waiting(&world));
    stubborn.exec.kill9();
    stubborn.ends(Duration::from_secs(60));
}

/// B59: an exec whose container ends says so within two seconds.
#[test]
fn a_command_ends_with_its_container() {
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let task = waiting(&world);
    let mut exec = world.cli_spawn(&["exec", "-i", &task, "--", "sh", "-c", "echo on; exec sleep 1000"]);
    exec.wait_text("it runs", PATIENCE, |text| text.contains("on"));
    let _stopped = world.cli(&["task", "stop", &task]).ok();
    world.wait_status(&task, "CANCELLED", PATIENCE);
    assert_eq!(exec.wait(ENDED), 137, "{}", exec.errors());
    assert!(exec.errors().contains("the container has ended"), "{}", exec.errors());
    let did = world.cli(&["exec", &task, "--", "true"]).with_code(125);
    assert!(did.stderr.contains("has ended"), "{}", did.stderr);
    let task = waiting(&world);
    let mut exec = world.cli_spawn(&["exec", &task, "--", "sh", "-c", "echo on; exec sleep 1000"]);
    exec.wait_text("it runs", PATIENCE, |text| text.contains("on"));
    let _code = worker.terminate();
    let code = exec.wait(PATIENCE);
    assert!(code == 137 || code == 125, "{code}: {}", exec.errors());
    assert!(!exec.errors().is_empty(), "it says why");
}

#[test]
fn what_is_not_there_or_not_yours_cannot_be_reached() {
    let world = World::start(Backend::Sqlite);
    let _worker = world.worker("one");
    let task = waiting(&world);
    let made = world.cli(&["workspace", "create", "other", "--format", "json"]).ok().json();
    let token = made["token"].as_str().expect("a token");
    let as_other = |args: &[&str]| {
        let mut command = world.home.command("levers9", args);
        command.env("LEVERS9_ADDRESS", world.controlplane.address()).env("LEVERS9_TOKEN", token);
        levers9_tests::Output::of(command)
    };
    let nobody = "01890000-0000-7000-8000-000000000000";
    for id in [task.as_str(), nobody] {
        let did = as_other(&["exec", id, "--", "true"]).with_code(125);
        assert_eq!(did.stderr, "error: no such container\nhint: levers9 container list shows them\n");
        let did = as_other(&["port-forward", id, "0:8000"]);
        assert_eq!(did.code, 1, "{}", did.stderr);
        assert!(did.stderr.contains("no such"), "{}", did.stderr);
    }
    // One that waits for a worker with a card nobody has.
    let waits = world.cli(&["run", "--detach", "--pool", "none-of-this-name", "--", "true"]);
    if waits.code == 0 {
        let did = world.cli(&["exec", waits.text().trim(), "--", "true"]).with_code(125);
        assert!(did.stderr.contains("waits for a worker"), "{}", did.stderr);
    }
}
