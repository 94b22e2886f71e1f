//! What a worker has left: a pure account of CPU, memory and GPUs. Containers
//! are booked here before they start and given back when no process of theirs
//! is left.

use levers9_wire::quantity::{show_cpu, show_memory};
use levers9_wire::v1;

/// Why something does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Short {
    /// Not enough CPU.
    #[error("needs {} CPU and {} are free", show_cpu(*.needed), show_cpu(*.free))]
    Cpu {
        /// Thousandths of a core.
        needed: u64,
        /// Thousandths of a core.
        free: u64,
    },
    /// Not enough memory.
    #[error("needs {} of memory and {} are free", show_memory(*.needed), show_memory(*.free))]
    Memory {
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// Not enough GPUs.
    #[error("needs {needed} {kind} and {free} are free")]
    Gpus {
        /// How many.
        needed: u32,
        /// Of which type.
        kind: String,
        /// How many there are.
        free: usize,
    },
    /// GPUs of another type.
    #[error("needs a {needed} and this worker has {}", if .present.is_empty() { "no GPU" } else { .present })]
    GpuType {
        /// Which.
        needed: String,
        /// What there is; empty for none.
        present: String,
    },
}

/// What was booked for one container.
#[derive(Debug, PartialEq, Eq)]
pub struct Booking {
    cpu_millis: u64,
    memory_bytes: u64,
    gpus: Vec<usize>,
}

/// The account.
#[derive(Debug)]
pub struct Capacity {
    cpu_millis: u64,
    memory_bytes: u64,
    gpu_type: String,
    /// The name of each GPU, as the drivers know it, and whether it is free.
    gpus: Vec<(String, bool)>,
}

impl Capacity {
    /// All that a worker has; nothing is booked yet. GPUs are named by their
    /// index.
    #[must_use]
    pub fn new(facts: &v1::WorkerFacts) -> Self {
        Self {
            cpu_millis: facts.cpu_millis,
            memory_bytes: facts.memory_bytes,
            gpu_type: facts.gpu_type.clone(),
            gpus: (0..facts.gpu_count).map(|index| (index.to_string(), true)).collect(),
        }
    }

    /// Books what a container needs, all or nothing.
    ///
    /// # Errors
    /// When something is not there; the error says what.
    pub fn book(&mut self, needs: &v1::Resources) -> Result<Booking, Short> {
        if needs.cpu_millis > self.cpu_millis {
            return Err(Short::Cpu { needed: needs.cpu_millis, free: self.cpu_millis });
        }
        if needs.memory_bytes > self.memory_bytes {
            return Err(Short::Memory { needed: needs.memory_bytes, free: self.memory_bytes });
        }
        let gpus = self.free_gpus(needs)?;
        for index in &gpus {
            self.gpus[*index].1 = false;
        }
        self.cpu_millis -= needs.cpu_millis;
        self.memory_bytes -= needs.memory_bytes;
        Ok(Booking { cpu_millis: needs.cpu_millis, memory_bytes: needs.memory_bytes, gpus })
    }

    fn free_gpus(&self, needs: &v1::Resources) -> Result<Vec<usize>, Short> {
        if needs.gpu_count == 0 {
            return Ok(Vec::new());
        }
        if needs.gpu_type != self.gpu_type {
            return Err(Short::GpuType { needed: needs.gpu_type.clone(), present: self.gpu_type.clone() });
        }
        let mut free: Vec<usize> =
            self.gpus.iter().enumerate().filter(|(_, (_, free))| *free).map(|(index, _)| index).collect();
        let count = usize::try_from(needs.gpu_count).unwrap_or(usize::MAX);
        if free.len() < count {
            let kind = self.gpu_type.clone();
            return Err(Short::Gpus { needed: needs.gpu_count, kind, free: free.len() });
        }
        free.truncate(count);
        Ok(free)
    }

    /// Gives back what was booked.
    pub fn give_back(&mut self, booking: Booking) {
        self.cpu_millis += booking.cpu_millis;
        self.memory_bytes += booking.memory_bytes;
        for index in booking.gpus {
            self.gpus[index].1 = true;
        }
    }

    /// The names of the GPUs of a booking, joined by commas.
    #[must_use]
    pub fn gpu_names(&self, booking: &Booking) -> String {
        booking.gpus.iter().map(|index| self.gpus[*index].0.as_str()).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts() -> v1::WorkerFacts {
        let (cpu_millis, memory_bytes, gpu_count) = (4_000, 8 << 30, 3);
        v1::WorkerFacts { cpu_millis, memory_bytes, gpu_type: "T4".into(), gpu_count, ..Default::default() }
    }

    fn needs(cpu_millis: u64, memory_bytes: u64, gpu_count: u32) -> v1::Resources {
        let gpu_type = if gpu_count > 0 { "T4".into() } else { String::new() };
        v1::Resources { cpu_millis, memory_bytes, gpu_type, gpu_count, ..Default::default() }
    }

    #[test]
    fn says_what_is_missing() {
        let mut capacity = Capacity::new(&facts());
        let short = |capacity: &mut Capacity, needs| capacity.book(&needs).expect_err("too much").to_string();
        assert_eq!(short(&mut capacity, needs(5_500, 0, 0)), "needs 5500m CPU and 4 are free");
        assert_eq!(short(&mut capacity, needs(0, 9 << 30, 0)), "needs 9Gi of memory and 8Gi are free");
        assert_eq!(short(&mut capacity, needs(0, 0, 4)), "needs 4 T4 and 3 are free");
        let other = v1::Resources { gpu_type: "A100-80".into(), gpu_count: 1, ..Default::default() };
        assert_eq!(short(&mut capacity, other.clone()), "needs a A100-80 and this worker has T4");
        let mut none = Capacity::new(&v1::WorkerFacts::default());
        assert_eq!(short(&mut none, other), "needs a A100-80 and this worker has no GPU");
    }

    proptest! {
        #[test]
        fn nothing_is_booked_twice_and_all_comes_back(
            steps in proptest::collection::vec((any::<bool>(), 0u64..3_000, 0u64..(5 << 30), 0u32..4), 1..60)
        ) {
            let mut capacity = Capacity::new(&facts());
            let mut booked: Vec<Booking> = Vec::new();
            for (book, cpu, memory, gpus) in steps {
                if book {
                    booked.extend(capacity.book(&needs(cpu, memory, gpus)));
                } else if !booked.is_empty() {
                    let index = usize::try_from(cpu).expect("small") % booked.len();
                    capacity.give_back(booked.swap_remove(index));
                }
                let mut cards: Vec<usize> = booked.iter().flat_map(|b| b.gpus.clone()).collect();
                let all = cards.len();
                cards.sort_unstable();
                cards.dedup();
                prop_assert_eq!(cards.len(), all);
                prop_assert_eq!(capacity.cpu_millis + booked.iter().map(|b| b.cpu_millis).sum::<u64>(), 4_000);
            }
            for booking in booked {
                capacity.give_back(booking);
            }
            prop_assert!(capacity.book(&needs(4_000, 8 << 30, 3)).is_ok());
        }
    }
}
