//! A command ends with its caller, its container and its worker, and leaves
//! nothing behind.

use std::time::Duration;

use crate::world::*;
use levers9_wire::v1::{Outcome, ResetCode, StopReason};

#[tokio::test]
async fn a_command_ends_with_its_caller_and_all_its_session() {
    for (round, namespaces) in [true, false].into_iter().enumerate() {
        let world = World::new(namespaces).await;
        let container = world.run("exec sleep 1000").await;
        for (kind, terminal) in [false, true].into_iter().enumerate() {
            let name = |what: u32| format!("{what}{round}{kind}31");
            let (stubborn, polite, daemon) = (name(71), name(72), name(73));
            let script = format!(
                "setsid sleep {daemon} & (trap '' HUP TERM; sleep {stubborn}; sleep 1) & sleep {polite} & echo ready
                while :; do sleep 0.05; done"
            );
            let asked = if terminal { sh(&script).terminal(24, 80) } else { sh(&script) };
            let mut exec = world.exec(&container, asked.stdin()).await;
            exec.says("ready").await;
            let there = |name: &String| !processes_with(&format!("sleep\0{name}")).is_empty();
            until("all run", || [&stubborn, &polite, &daemon].into_iter().all(there)).await;
            // Its drop resets the stream.
            drop(exec);
            let gone = async { until("all are gone", || !there(&stubborn) && !there(&polite)).await };
            within_time("the end", Duration::from_secs(6), gone).await;
            assert!(there(&daemon), "a session of its own is not touched");
        }
    }
}

#[tokio::test]
async fn a_caller_that_stops_listening_is_gone_too() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    let mut exec = world.exec(&container, sh("echo ready; exec sleep 615243").stdin()).await;
    exec.says("ready").await;
    exec.stream.send.finish();
    exec.stream.recv.stop(ResetCode::Cancelled);
    until("it is gone", || processes_with("615243").is_empty()).await;
    // Before it runs, too, again and again.
    for _ in 0..50 {
        drop(world.exec(&container, ask(&["sleep", "615244"])).await);
    }
    assert_eq!(world.sh(&container, "exit 3").await.how().1, 3);
    until("they are gone", || processes_with("615244").is_empty()).await;
}

#[tokio::test]
async fn an_exec_ends_with_its_container() {
    for namespaces in [true, false] {
        for (by_order, terminal) in [(true, false), (false, false), (true, true)] {
            let world = World::new(namespaces).await;
            let mut container = world.run("while ! test -e go; do sleep 0.01; done; exit 1").await;
            let asked = sh("echo ready; trap '' TERM HUP; while :; do sleep 1; done");
            let asked = if terminal { asked.terminal(24, 80) } else { asked };
            let mut exec = world.exec(&container, asked.stdin()).await;
            exec.says("ready").await;
            let idle = world.exec(&container, ask(&["cat"]).stdin()).await;
            if by_order {
                container.stop(StopReason::Cancelled).await;
            } else {
                std::fs::write(world.work.join("go"), "").expect("written");
            }
            for exec in [exec, idle] {
                let done = within_time("the end", Duration::from_secs(2), exec.done()).await;
                assert_eq!(done.how(), (Outcome::Stopped, 137, 0));
                assert_eq!(done.ended.reason, "the container has ended");
            }
            container.ended().await;
        }
    }
}

#[tokio::test]
async fn an_exec_ends_with_its_worker() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    let mut exec = world.exec(&container, sh("echo ready; exec sleep 1000").stdin()).await;
    exec.says("ready").await;
    let (done, late) = tokio::join!(
        within_time("the end", Duration::from_secs(2), exec.done()),
        within("the shutdown", world.worker.shutdown(Duration::ZERO))
    );
    assert_eq!(done.how(), (Outcome::Stopped, 137, 0));
    assert_eq!((done.ended.reason.as_str(), late.len()), ("the worker is shutting down", 0));
}

#[test]
fn nothing_is_left_of_many() {
    // In a process of its own: what other tests have open must not count.
    alone("gone::counted", "LEVERS9_TEST_COUNTED");
}

fn descriptors(pid: &str) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("readable").count()
}

/// Not a test by itself: see above.
#[tokio::test]
async fn counted() {
    if std::env::var_os("LEVERS9_TEST_COUNTED").is_none() {
        return;
    }
    for namespaces in [true, false] {
        let world = World::new(namespaces).await;
        let container = world.run("exec sleep 1000").await;
        let inner = processes_with("__levers9-supervise\0inner").pop().expect("it runs").to_string();
        let some = async |count: u32| {
            for number in 0..count {
                match number % 4 {
                    0 => drop(world.sh(&container, "exit 1").await),
                    1 => {
                        drop(world.exec(&container, ask(&["stty", "size"]).terminal(1, 1)).await.done().await)
                    }
                    2 => drop(world.exec(&container, ask(&["none"]).stdin()).await.done().await),
                    _ => drop(world.exec(&container, ask(&["cat"]).terminal(1, 1).stdin()).await),
                }
            }
        };
        some(8).await;
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let children = || {
            let all =
                std::fs::read_to_string(format!("/proc/{inner}/task/{inner}/children")).expect("readable");
            all.split_ascii_whitespace().count()
        };
        // The command is the only child.
        until("the first are gone", || children() == 1).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (own, theirs, running) = (descriptors("self"), descriptors(&inner), tasks());
        some(200).await;
        let left = || (descriptors("self"), descriptors(&inner), children());
        until("all are gone", || left().0 <= own && left().1 <= theirs && left().2 == 1).await;
        until("all tasks are gone", || tasks() <= running).await;
    }
}
