//! What this machine has, measured once at the worker's start. GPUs are
//! declared, not probed.

use std::fs;

use levers9_wire::v1;

use crate::cgroup::Cgroups;

/// The GPUs a worker is said to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpus {
    /// Their type in canonical form; empty for none.
    pub kind: String,
    /// How many.
    pub count: u32,
}

/// Measures this machine: processors and memory as far as this process's
/// affinity and control groups let it have them.
#[must_use]
pub fn measure(runtime: &str, node: &str, gpus: Gpus) -> v1::WorkerFacts {
    let groups = Cgroups::detect();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let installed =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_memory(&text)).unwrap_or(0);
    v1::WorkerFacts {
        hostname: hostname(),
        cpu_millis: capped(cores * 1_000, groups.own_cpu_limit()),
        memory_bytes: capped(installed, groups.own_memory_limit()),
        gpu_type: gpus.kind,
        gpu_count: gpus.count,
        runtime: runtime.to_owned(),
        node: node.to_owned(),
    }
}

fn capped(amount: u64, limit: Option<u64>) -> u64 {
    limit.map_or(amount, |limit| amount.min(limit))
}

fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The installed memory in bytes, from the text of `/proc/meminfo`.
fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_installed_memory() {
        assert_eq!(total_memory("MemTotal:       24094172 kB\nMemFree: 1 kB\n"), Some(24_094_172 * 1024));
        assert_eq!(total_memory("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn this_machine_has_something_and_what_was_declared() {
        let facts = measure("process", "node-1", Gpus { kind: "T4".into(), count: 2 });
        assert!(facts.cpu_millis >= 10 && facts.memory_bytes > 1 << 20, "{facts:?}");
        assert_eq!((facts.gpu_type.as_str(), facts.gpu_count, facts.node.as_str()), ("T4", 2, "node-1"));
        assert_eq!(capped(5, Some(3)), 3);
    }
}
