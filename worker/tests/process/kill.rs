//! Nothing of a container outlives it: not when it ends, not when it is
//! stopped, not when the worker or the supervisor is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use levers9_wire::v1::{Outcome, StopContainer, StopReason};
use levers9_wire::{ContainerId, Generation};
use levers9_worker::runtime::Process;
use levers9_worker::{Containers, Refused};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Daemons in sessions of their own that ignore SIGTERM, one that lost its
/// environment, and one that forks without end.
const DAEMONS: &str = "
    trap '' TERM
    for n in 1 2 3 4 5 6 7 8 9 10; do
        setsid sh -c 'trap \"\" TERM HUP; (setsid sleep 1000 &) ; sleep 1000' &
    done
    (setsid env -i /bin/sh -c \"/bin/sleep 1000; : $LEVERS9_CONTAINER_ID\" &)
    setsid sh -c 'while :; do setsid sleep 1000 & sleep 0.02; done' &
    sleep 0.2
    echo ready
";

fn script(last: &str) -> String {
    format!("{DAEMONS}\n{last}")
}

#[tokio::test]
async fn daemons_end_with_the_command_and_its_log_is_complete() {
    for namespaces in [true, false] {
        let worker = worker_with(settings(namespaces), |_| {}).await;
        let asked = shell(&script("exit 4"));
        let container = asked.container;
        let (ended, text) = run(&worker.containers, asked).await;
        assert_eq!((ended.outcome(), ended.exit_code, ended.reason.as_str()), (Outcome::Exited, 4, ""));
        assert_eq!(text, "ready\n");
        assert_eq!(survivors(container), Vec::<i32>::new());
    }
}

#[tokio::test]
async fn one_that_ignores_sigterm_is_killed_after_the_grace_with_all_its_daemons() {
    for namespaces in [true, false] {
        let worker = worker_with(settings(namespaces), |_| {}).await;
        let asked = shell(&script("while :; do sleep 0.01; done"));
        let container = asked.container;
        let handle = worker.containers.run(asked).expect("taken");
        says(&handle, "ready").await;
        handle.stop(StopContainer {
            grace_ms: 200,
            reason: StopReason::NotWanted.into(),
            text: String::new(),
        });
        let ended = end(&handle).await;
        assert_eq!((ended.outcome(), ended.signal), (Outcome::Stopped, 9));
        let words = "no longer wanted by the controlplane; it did not end after SIGTERM and was killed";
        assert_eq!(ended.reason, words);
        assert_eq!(survivors(container), Vec::<i32>::new());
    }
}

#[tokio::test]
async fn sigterm_reaches_the_whole_group_and_the_exit_code_is_its_own() {
    let worker = worker().await;
    let handle = worker
        .containers
        .run(shell("trap 'echo bye; exit 7' TERM; sleep 1000 & echo ready; wait"))
        .expect("taken");
    says(&handle, "ready").await;
    handle.stop(StopContainer {
        grace_ms: 60_000,
        reason: StopReason::Cancelled.into(),
        text: String::new(),
    });
    let ended = end(&handle).await;
    assert_eq!((ended.outcome(), ended.exit_code, ended.reason.as_str()), (Outcome::Stopped, 7, "cancelled"));
    assert_eq!(stdout(&handle).await, "ready\nbye\n");
}

#[tokio::test]
async fn a_killed_supervisor_takes_the_container_with_it() {
    for namespaces in [true, false] {
        for inner in [true, false] {
            let worker = worker_with(settings(namespaces), |_| {}).await;
            let asked = shell(&script("exec sleep 1000"));
            let container = asked.container;
            let handle = worker.containers.run(asked).expect("taken");
            says(&handle, "ready").await;
            let (outer_pid, inner_pid) = supervisors(worker.data.path(), container);
            let victim = if inner { inner_pid } else { outer_pid };
            kill(Pid::from_raw(victim), Signal::SIGKILL).expect("killed");
            let ended = end(&handle).await;
            assert_eq!(ended.outcome(), Outcome::WorkerFailed, "{ended:?}");
            let told = if inner { "init was killed by signal 9" } else { "ended without an outcome" };
            // The inner one may still write how it killed the command.
            assert!(ended.reason.contains(told), "{}", ended.reason);
            until("nothing is left", || survivors(container).is_empty()).await;
        }
    }
}

/// The numbers of a container's supervisors, outer first.
fn supervisors(data: &Path, container: ContainerId) -> (i32, i32) {
    let path = data.join(format!("containers/{container}.1/processes.json"));
    let text = std::fs::read_to_string(path).expect("recorded");
    let numbers: Vec<i32> = text
        .split("\"pid\":")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
        .collect();
    (numbers[0], numbers[1])
}

/// Not a test by itself: what [`Host`] executes, in a process of its own.
#[tokio::test]
async fn host() {
    let Ok(data) = std::env::var("LEVERS9_TEST_HOST") else { return };
    let namespaces = std::env::var("LEVERS9_TEST_NAMESPACES").is_ok();
    let runtime = Arc::new(Process::new(settings(namespaces)));
    let (containers, _) = Containers::open(config(Path::new(&data)), runtime).await.expect("opens");
    let handle = containers.run(shell(&script("seq 5000; exec sleep 1000"))).expect("taken");
    says(&handle, "\n5000\n").await;
    println!("\ncontainer {}", handle.container());
    std::future::pending::<()>().await;
}

/// A worker in another process, to be killed.
struct Host {
    process: Child,
    container: ContainerId,
}

impl Host {
    fn start(data: &Path, namespaces: bool) -> Self {
        let mut command = alone("kill::host");
        command.env("LEVERS9_TEST_HOST", data).stdout(Stdio::piped());
        if namespaces {
            command.env("LEVERS9_TEST_NAMESPACES", "1");
        }
        let mut process = command.spawn().expect("runs");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let container = lines.filter_map(|line| line.strip_prefix("container ")?.parse().ok()).next();
        Self { process, container: container.expect("the host runs a container") }
    }
}

#[tokio::test]
async fn nothing_outlives_a_worker_that_is_killed() {
    for namespaces in [true, false] {
        let data = tempfile::tempdir().expect("a folder");
        let mut host = Host::start(data.path(), namespaces);
        assert!(survivors(host.container).len() > 10);
        host.process.kill().expect("killed");
        until("nothing is left", || survivors(host.container).is_empty()).await;
        let (outer, inner) = supervisors(data.path(), host.container);
        until("the supervisors have ended", || !is_supervisor(outer) && !is_supervisor(inner)).await;
        host.process.wait().expect("dead");
        // The next start finds no process, only the folder.
        let runtime = Arc::new(Process::new(settings(namespaces)));
        let (containers, recovered) = Containers::open(config(data.path()), runtime).await.expect("opens");
        assert_eq!((recovered.containers, recovered.killed, recovered.stuck), (1, vec![], vec![]));
        assert!(containers.inventory().is_empty());
        assert!(containers.get(host.container, Generation(1)).is_none());
    }
}

#[tokio::test]
async fn the_next_start_kills_what_a_worker_and_frozen_supervisors_left() {
    for namespaces in [true, false] {
        let data = tempfile::tempdir().expect("a folder");
        let mut host = Host::start(data.path(), namespaces);
        let (outer, inner) = supervisors(data.path(), host.container);
        for frozen in [outer, inner] {
            kill(Pid::from_raw(frozen), Signal::SIGSTOP).expect("stopped");
            until("frozen", || state(frozen) == Some('T')).await;
        }
        host.process.kill().expect("killed");
        host.process.wait().expect("dead");
        assert!(survivors(host.container).len() > 10);
        let runtime = Arc::new(Process::new(settings(namespaces)));
        let (containers, recovered) =
            within("the start", Containers::open(config(data.path()), runtime)).await.expect("opens");
        assert_eq!(survivors(host.container), Vec::<i32>::new());
        assert!(recovered.killed.len() >= 2 && recovered.stuck.is_empty(), "{recovered:?}");
        assert!(!is_supervisor(outer) && !is_supervisor(inner));
        let left = std::fs::read_dir(data.path().join("containers")).expect("readable").count();
        assert_eq!(left, 0);
        let (ended, _) = run(&containers, shell("exit 0")).await;
        assert_eq!(ended.outcome(), Outcome::Exited);
    }
}

#[tokio::test]
async fn the_log_of_a_killed_worker_is_kept_until_it_is_acknowledged() {
    let data = tempfile::tempdir().expect("a folder");
    let open = || async {
        let runtime = Arc::new(Process::new(settings(true)));
        Containers::open(config(data.path()), runtime).await.expect("opens").0
    };
    let left = || std::fs::read_dir(data.path().join("left")).expect("readable").count();
    let mut host = Host::start(data.path(), true);
    host.process.kill().expect("killed");
    host.process.wait().expect("dead");
    let said: String =
        std::iter::once("ready\n".to_owned()).chain((1..=5000).map(|n| format!("{n}\n"))).collect();
    // It stays, whatever was taken of it, until all is.
    for acknowledged in [0, 4000, 5001] {
        let containers = open().await;
        let logs = containers.left_logs();
        assert_eq!(logs.len(), 1);
        let log = &logs[0];
        assert_eq!((log.container, log.generation), (host.container, Generation(1)));
        let text: Vec<u8> = records_of(&log.spool).await.iter().flat_map(|r| r.data.to_vec()).collect();
        assert_eq!(String::from_utf8_lossy(&text), said);
        assert!(log.spool.progress().borrow().ended);
        // It is no container.
        assert!(containers.inventory().is_empty() && containers.all().is_empty());
        within("nothing", containers.all_forgotten()).await;
        let again = levers9_wire::valid::Run { container: host.container, ..shell("true") };
        assert!(matches!(containers.run(again), Err(Refused::Unknown(..))));
        log.spool.acknowledge(acknowledged).await;
        if acknowledged == 5001 {
            until("it is forgotten", || containers.left_logs().is_empty()).await;
            assert_eq!(left(), 0);
        }
        within("closing", containers.close()).await;
    }
    assert!(open().await.left_logs().is_empty());
}

#[tokio::test]
async fn closing_kills_what_runs() {
    let worker = worker().await;
    let asked = shell(&script("exec sleep 1000"));
    let container = asked.container;
    let handle = worker.containers.run(asked).expect("taken");
    says(&handle, "ready").await;
    within("closing", worker.containers.close()).await;
    assert_eq!(end(&handle).await.reason, "the worker gave the container up");
    until("nothing is left", || survivors(container).is_empty()).await;
}

#[tokio::test]
async fn a_frozen_supervisor_is_killed_when_orders_do_not_help() {
    let worker = worker().await;
    let asked = shell(&script("exec sleep 1000"));
    let container = asked.container;
    let handle = worker.containers.run(asked).expect("taken");
    says(&handle, "ready").await;
    let (_, inner) = supervisors(worker.data.path(), container);
    kill(Pid::from_raw(inner), Signal::SIGSTOP).expect("stopped");
    let late = within("the shutdown", worker.containers.shutdown(Duration::ZERO)).await;
    assert_eq!(late, []);
    assert_eq!(end(&handle).await.outcome(), Outcome::Stopped);
    until("nothing is left", || survivors(container).is_empty()).await;
}
