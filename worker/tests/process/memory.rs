//! A command that writes as fast as it can does not make the worker grow.

use crate::common::*;
use levers9_wire::v1::{LogStream, Outcome};

/// This process's resident memory in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("there");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

#[test]
fn fast_output_is_bounded_in_memory_and_on_disk() {
    // In a process of its own: what other tests need must not count.
    let status = alone("memory::measured").env("LEVERS9_TEST_MEMORY", "1").status().expect("runs");
    assert!(status.success());
}

/// Not a test by itself: see above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measured() {
    if std::env::var_os("LEVERS9_TEST_MEMORY").is_none() {
        return;
    }
    let worker = worker().await;
    end(&worker.containers.run(shell("echo warm")).expect("taken")).await;
    let before = resident();
    let total: u64 = 1 << 30;
    let start = tokio::time::Instant::now();
    let handle =
        worker.containers.run(shell(&format!("head -c {total} /dev/zero; seq 1000000"))).expect("taken");
    let mut most = 0;
    while !handle.has_ended() {
        most = most.max(resident());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let took = start.elapsed();
    assert_eq!(end(&handle).await.outcome(), Outcome::Exited);
    let grown = most.saturating_sub(before);
    println!("{} MiB in {took:?}, grown by {} KiB", total >> 20, grown >> 10);
    assert!(grown < 16 << 20, "grown by {grown} bytes");

    let folder = worker.data.path().join("containers").join(format!("{}.1", handle.container())).join("log");
    let stored: u64 = std::fs::read_dir(folder)
        .expect("readable")
        .map(|e| e.expect("entry").metadata().expect("there").len())
        .sum();
    assert!(stored < 140 << 20, "{stored} bytes on disk");
    let records = records(&handle).await;
    let seen: u64 = records.iter().map(|record| record.dropped_bytes + record.data.len() as u64).sum();
    let numbers: u64 = (1..=1_000_000u64).map(|n| n.to_string().len() as u64 + 1).sum();
    assert_eq!(seen, total + numbers);
    assert!(records.iter().all(|record| record.stream() == LogStream::Stdout));
}
