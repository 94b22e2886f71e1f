//! What must hold whatever happens: of single passes over anything, and of long
//! lives of a small world.

use std::time::Duration;

use levers9_wire::{ClusterId, TaskId, WorkerId};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use super::model::{Cluster, Fate, GI, State, World, check};
use super::tests::workspace;
use super::*;
use crate::scheduler::core::{Amounts, Waiting};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Something that happens to the world. Numbers choose, modulo what there is.
#[derive(Debug, Clone)]
enum Op {
    Pass(u16),
    Submit { owner: u8, cores: u8, gi: u8, gpus: u8, card: u8, length: u16 },
    Finish(u8),
    NeighbourComes(u8, u8, u8),
    NeighboursLeave(u8, u8),
    Ready(u8, u8, bool),
    Cordon(u8, u8, bool),
    Connected(u8, bool),
    Paused(u8, bool),
    Lost(u8, bool),
    Deaf(u8, bool),
    Delay(u8, u8),
    Fate(u8),
    Kill(u8),
    LoseRecord(u8),
    Restart,
    Share(u8, bool),
    Replace(u8, u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1..400u16).prop_map(Op::Pass),
        8 => (1..3u8, 0..5u8, 0..8u8, 0..5u8, 0..2u8, 10..2_000u16).prop_map(
            |(owner, cores, gi, gpus, card, length)| Op::Submit { owner, cores, gi, gpus, card, length }
        ),
        2 => any::<u8>().prop_map(Op::Finish),
        2 => (any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(a, b, c)| Op::NeighbourComes(a, b, c)),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Op::NeighboursLeave(a, b)),
        1 => (any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(a, b, c)| Op::Ready(a, b, c)),
        1 => (any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(a, b, c)| Op::Cordon(a, b, c)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(a, b)| Op::Connected(a, b)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(a, b)| Op::Paused(a, b)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(a, b)| Op::Lost(a, b)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(a, b)| Op::Deaf(a, b)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Op::Delay(a, b)),
        2 => any::<u8>().prop_map(Op::Fate),
        1 => any::<u8>().prop_map(Op::Kill),
        1 => any::<u8>().prop_map(Op::LoseRecord),
        1 => Just(Op::Restart),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(a, b)| Op::Share(a, b)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Op::Replace(a, b)),
    ]
}

fn nth<T>(of: &mut [T], n: u8) -> Option<&mut T> {
    let at = usize::from(n) % of.len().max(1);
    of.get_mut(at)
}

impl World {
    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Pass(seconds) => {
                for _ in 0..seconds / 5 + 1 {
                    self.tick(s(5))?;
                }
            }
            Op::Submit { owner, cores, gi, gpus, card, length } => {
                let need = Amounts {
                    cpu_millis: u64::from(cores) * 1_000 + 125,
                    memory_bytes: u64::from(gi) * GI + GI / 8,
                    gpus: u32::from(gpus),
                };
                let card = if gpus == 0 { "" } else { ["T4", "L4"][usize::from(card) % 2] };
                self.submit(workspace(owner), need, card, s(u64::from(length)));
            }
            Op::Finish(n) => {
                if let Some(task) = nth(&mut self.tasks, n)
                    && matches!(task.state, State::On(..))
                {
                    task.length = Duration::ZERO;
                }
            }
            Op::Fate(n) => {
                self.fate = match n % 4 {
                    0 => Fate::Comes(s(u64::from(n) * 8)),
                    1 => Fate::Fails(s(u64::from(n))),
                    2 => Fate::NeverComes,
                    _ => Fate::Comes(s(10)),
                };
            }
            Op::LoseRecord(n) => self.lose_record(n),
            Op::Restart => {
                self.recent = Recent::default();
                self.clusters.iter_mut().for_each(Cluster::forget);
            }
            ref other => self.in_cluster(other),
        }
        Ok(())
    }

    fn in_cluster(&mut self, op: &Op) {
        let (Op::NeighbourComes(c, ..)
        | Op::NeighboursLeave(c, ..)
        | Op::Ready(c, ..)
        | Op::Cordon(c, ..)
        | Op::Replace(c, ..)
        | Op::Connected(c, _)
        | Op::Paused(c, _)
        | Op::Lost(c, _)
        | Op::Deaf(c, _)
        | Op::Delay(c, _)
        | Op::Kill(c)
        | Op::Share(c, _)) = *op
        else {
            return;
        };
        let Some(cluster) = nth(&mut self.clusters, c) else { return };
        let machine = |n: u8| usize::from(n) % cluster.machines.len();
        match *op {
            Op::NeighbourComes(_, n, size) => {
                let at = machine(n);
                let all = cluster.machines[at].all;
                cluster.machines[at].neighbours.push(Held {
                    cpu_millis: all.cpu_millis * u64::from(size % 5) / 5,
                    memory_bytes: all.memory_bytes * u64::from(size % 3) / 3,
                    cards: u32::from(size % 4).min(all.cards),
                    pods: 1,
                });
            }
            Op::NeighboursLeave(_, n) => {
                let at = machine(n);
                cluster.machines[at].neighbours.clear();
            }
            Op::Ready(_, n, is) => {
                let at = machine(n);
                cluster.machines[at].ready = is;
            }
            Op::Cordon(_, n, is) => {
                let at = machine(n);
                cluster.machines[at].cordoned = is;
            }
            Op::Replace(_, n) => {
                // The node goes with its pods; another one comes.
                let at = machine(n);
                let old = std::mem::take(&mut cluster.machines[at].name);
                cluster.jobs.retain(|job| job.node != old);
                cluster.machines[at].name = format!("{old}x");
            }
            Op::Connected(_, is) => cluster.pool.connected = is,
            Op::Paused(_, is) => cluster.pool.paused = is,
            Op::Lost(_, is) => cluster.lost = is,
            Op::Deaf(_, is) => cluster.deaf = is,
            Op::Delay(_, seconds) => cluster.delay = s(u64::from(seconds)),
            Op::Kill(n) => {
                let at = usize::from(n) % cluster.jobs.len().max(1);
                if at < cluster.jobs.len() {
                    cluster.jobs.remove(at);
                }
            }
            Op::Share(_, is) => cluster.pool.shared = is,
            _ => {}
        }
    }

    fn lose_record(&mut self, n: u8) {
        if self.records.is_empty() {
            return;
        }
        let gone = self.records.remove(usize::from(n) % self.records.len());
        *self.lost_records.entry((gone.pool, gone.node)).or_default() += 1;
    }

    /// All goes well from now on; tasks that run end soon.
    fn heal(&mut self) {
        self.fate = Fate::Comes(s(20));
        for cluster in &mut self.clusters {
            (cluster.pool.connected, cluster.pool.paused) = (true, false);
            (cluster.lost, cluster.deaf, cluster.delay) = (false, false, Duration::ZERO);
        }
        self.tasks.iter_mut().for_each(|task| task.length = task.length.min(s(60)));
    }

    fn missed(&self) -> Vec<&Waiting> {
        let left = self.tasks.iter().filter(|task| task.state != State::Done);
        left.map(|task| &task.waiting).filter(|task| self.has_room_for(task)).collect()
    }
}

/// Anything at all: what reports, records and tasks could be, plausible or not.
fn anything(seed: u64) -> (Instant, Vec<Pool>, Vec<PoolWorker>, Vec<Waiting>, Recent, Limits) {
    let mut rng = StdRng::seed_from_u64(seed);
    let now = Instant::now() + s(1_000);
    let cards = ["", "T4", "L4", "A100", "A100-40", "A100-80"];
    let held = |rng: &mut StdRng| Held {
        cpu_millis: rng.random_range(0..9_000),
        memory_bytes: rng.random_range(0..9) * GI,
        cards: rng.random_range(0..5),
        pods: rng.random_range(0..9),
    };
    let mut pools = Vec::new();
    for n in 0..rng.random_range(0..4u8) {
        let nodes = (0..rng.random_range(0..6u8)).map(|at| Node {
            name: format!("node-{n}-{}", at % 5),
            withheld: Withheld::of(rng.random_range(0..5i32).saturating_sub(3) * rng.random_range(0..9)),
            allocatable: held(&mut rng).plus(held(&mut rng)),
            free: held(&mut rng),
            levers9: held(&mut rng),
            others: held(&mut rng),
            reserved: held(&mut rng),
            gpu_label: cards[rng.random_range(0..cards.len())].into(),
            shared_cards: rng.random_range(0..4) == 0,
        });
        let nodes: Vec<Node> = nodes.collect();
        let strangers = if rng.random_range(0..5) == 0 { vec![format!("node-{n}-0")] } else { Vec::new() };
        let taken = now - s(rng.random_range(0..100));
        pools.push(Pool {
            id: ClusterId::from_bytes([n + 1; 16]),
            name: format!("pool-{n}"),
            owner: workspace(rng.random_range(1..4)),
            shared: rng.random_range(0..3) == 0,
            gpu_type: cards[rng.random_range(1..cards.len())].into(),
            connected: rng.random_range(0..8) > 0,
            paused: rng.random_range(0..8) == 0,
            report: (rng.random_range(0..8) > 0).then_some(Picture { taken, nodes, strangers }),
            resting: vec![(format!("node-{n}-1"), now + s(rng.random_range(0..3)), format!("why-{n}"))],
        });
    }
    let worker = |at: u8, rng: &mut StdRng| PoolWorker {
        id: WorkerId::from_bytes([at + 1; 16]),
        pool: ClusterId::from_bytes([rng.random_range(1..5); 16]),
        node: format!("node-{}-{}", rng.random_range(0..4), rng.random_range(0..5)),
        stage: [Stage::Pending, Stage::Running, Stage::Stopping][rng.random_range(0..3usize)],
        amounts: Amounts {
            cpu_millis: rng.random_range(0..9_000),
            memory_bytes: rng.random_range(0..9) * GI,
            gpus: rng.random_range(0..5),
        },
        gpu_type: cards[rng.random_range(0..cards.len())].into(),
        scope: (rng.random_range(0..4) > 0).then(|| workspace(rng.random_range(1..4))),
        in_report: rng.random_range(0..2) == 0,
        idle_since: (rng.random_range(0..2) == 0).then(|| now - s(rng.random_range(0..900))),
        ordered: now - s(rng.random_range(0..400)),
        held_up: String::new(),
    };
    let workers = (0..rng.random_range(0..8u8)).map(|at| worker(at, &mut rng)).collect();
    let task = |at: u8, rng: &mut StdRng| {
        let gpus = rng.random_range(0..4u32);
        Waiting {
            task: TaskId::from_bytes([at + 1; 16]),
            workspace: workspace(rng.random_range(1..4)),
            need: Amounts {
                cpu_millis: rng.random_range(1..5_000),
                memory_bytes: rng.random_range(1..4 * GI),
                gpus,
            },
            gpu_type: if gpus == 0 { String::new() } else { cards[rng.random_range(1..cards.len())].into() },
            pool: (rng.random_range(0..6) == 0).then(|| format!("pool-{}", rng.random_range(0..4))),
        }
    };
    let waiting = (0..rng.random_range(0..20u8)).map(|at| task(at, &mut rng)).collect();
    let recent = pools
        .iter()
        .flat_map(|pool| {
            (0..rng.random_range(0..3u64)).map(|n| (pool.id, now - s(n * 30))).collect::<Vec<_>>()
        })
        .collect();
    let guards = [-1, 0, 1, 2, 20];
    let limits = Limits {
        guard_pending: guards[rng.random_range(0..5usize)],
        guard_per_minute: guards[rng.random_range(0..5usize)],
        ..Limits::default()
    };
    (now, pools, workers, waiting, recent, limits)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_pass_over_anything_keeps_the_rules(seed in any::<u64>()) {
        let (now, pools, workers, waiting, recent, limits) = anything(seed);
        let with = Situation { now, pools: &pools, workers: &workers, recent: &recent, waiting: &waiting, limits: &limits };
        let steps = plan(&with);
        check(&with, &steps)?;

        // Explanations agree with what is done, and each task has one.
        for task in &waiting {
            let told = why(&with, task, &Ends::new());
            prop_assert!(!told.summary.is_empty());
            let starts: Vec<_> = steps.iter().filter_map(|step| match step {
                Step::Start { node, task: first, .. } if *first == task.task => Some(node.clone()),
                _ => None,
            }).collect();
            let room = told.places.iter().filter(|place| place.reason == Reason::Room).count();
            prop_assert_eq!(room, starts.len(), "{:?} {:?}", starts, told);
            if !starts.is_empty() {
                prop_assert_eq!(impossible(&pools, task), Verdict::Could);
            }
            for pool in &pools {
                let n = pool.name.trim_start_matches("pool-");
                let (node, cause) = (format!("node-{n}-"), format!("why-{n}"));
                for place in &told.places {
                    let said = format!("{place:?} {}", told.summary);
                    if pool.owner != task.workspace {
                        prop_assert!(!said.contains(&node) && !said.contains(&cause), "{}", said);
                    }
                    if !pool.visible_to(task.workspace) && task.pool.as_ref() != Some(&pool.name) {
                        prop_assert!(!said.contains(&pool.name), "{}", said);
                    }
                }
            }
        }

        // Planning again with the starts on record starts nothing.
        let (first, mut later, mut noted) = (steps.len(), workers.clone(), recent.clone());
        for (n, step) in steps.into_iter().enumerate() {
            let Step::Start { pool, node, amounts, gpu_type, scope, .. } = step else { continue };
            let id = WorkerId::from_bytes([u8::try_from(n).unwrap() + 100; 16]);
            noted.note(pool, now);
            later.push(PoolWorker {
                id, pool, node, stage: Stage::Pending, amounts, gpu_type, scope,
                in_report: false, idle_since: None, ordered: now, held_up: String::new() });
        }
        let again = plan(&Situation { workers: &later, recent: &noted, ..with });
        let again = again.iter().filter(|step| matches!(step, Step::Start { .. })).count();
        prop_assert_eq!(again, 0, "after {}", first);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_long_life_keeps_the_rules_and_leaves_nobody_waiting(
        seed in any::<u64>(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut world = World::new(seed);
        for op in &ops {
            world.apply(op)?;
        }
        world.heal();
        for _ in 0..6 * 720 {
            if world.missed().is_empty() {
                break;
            }
            world.tick(s(5))?;
        }
        let told: Vec<_> = world.missed().into_iter().map(|task| format!("{task:?}")).collect();
        prop_assert!(told.is_empty(), "{:#?}\n{:#?}\n{:#?}", told, world.records, world.clusters);
        // Once nobody waits, no worker stays.
        world.tasks.clear();
        for _ in 0..400 {
            world.tick(s(5))?;
        }
        prop_assert!(world.records.is_empty(), "{:#?}", world.records);
    }

    /// The worst that wrong books can do (F107).
    #[test]
    fn wrong_books_cost_one_idle_worker_on_a_node(
        seed in any::<u64>(),
        lengths in prop::collection::vec((1..200u16, 10..600u16), 1..40),
        gpus in 0..2u32,
    ) {
        let mut world = World::new(seed);
        world.lies = true;
        for cluster in &mut world.clusters {
            (cluster.pool.owner, cluster.pool.gpu_type) = (workspace(1), "T4".to_owned());
        }
        let need = Amounts { cpu_millis: 500, memory_bytes: GI / 2, gpus };
        for (pause, length) in lengths {
            world.submit(workspace(1), need, if gpus > 0 { "T4" } else { "" }, s(u64::from(length)));
            for _ in 0..pause / 5 {
                world.tick(s(5))?;
                for cluster in &world.clusters {
                    for machine in &cluster.machines {
                        let here = cluster.jobs.iter().filter(|job| job.node == machine.name && !job.used);
                        let count = here.filter(|job| job.stays()).count();
                        prop_assert!(count <= 1, "{} unused on {}", count, machine.name);
                    }
                }
            }
        }
    }

    #[test]
    fn many_small_tasks_start_as_few_workers_as_there_are_nodes_for_them(
        seed in any::<u64>(),
        count in 1..30usize,
        slow in 0..250u64,
    ) {
        let mut world = World::new(seed);
        world.fate = Fate::Comes(s(slow));
        for _ in 0..3 {
            world.tick(s(5))?;
        }
        let need = Amounts { cpu_millis: 50, memory_bytes: GI / 64, gpus: 0 };
        for _ in 0..count {
            world.submit(workspace(1), need, "", s(1_000));
        }
        let machines: usize = world.clusters.iter().map(|cluster| cluster.machines.len()).sum();
        for _ in 0..80 {
            world.tick(s(5))?;
        }
        prop_assert!(world.started <= machines.min(2), "{} for {} tasks", world.started, count);
        prop_assert!(world.missed().is_empty() || world.tasks.iter().all(|t| matches!(t.state, State::On(..))));
    }
}
