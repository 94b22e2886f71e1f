//! Examples of what is ordered, what is not, and what is said about it.

use std::time::Duration;

use levers9_wire::limits::WORKER_MEMORY;
use levers9_wire::{ClusterId, TaskId, WorkerId, WorkspaceId};
use tokio::time::Instant;

use super::*;
use crate::scheduler::core::{Amounts, Waiting};

const GI: u64 = 1 << 30;

pub(super) const fn workspace(n: u8) -> WorkspaceId {
    WorkspaceId::from_bytes([n; 16])
}

fn held(cores: u64, gi: u64, cards: u32) -> Held {
    Held { cpu_millis: cores * 1_000, memory_bytes: gi * GI, cards, pods: 100 }
}

fn node(name: &str, cores: u64, cards: u32) -> Node {
    let all = held(cores, cores * 4, cards);
    Node { name: name.into(), allocatable: all, free: all, ..Node::default() }
}

/// What the examples are about: pools of workspace 1 unless shared.
struct Case {
    now: Instant,
    pools: Vec<Pool>,
    workers: Vec<PoolWorker>,
    recent: Recent,
    waiting: Vec<Waiting>,
    limits: Limits,
    ends: Ends,
}

impl Case {
    fn new(gpu_type: &str, nodes: Vec<Node>) -> Self {
        let mut case = Self {
            now: Instant::now() + Duration::from_secs(10_000),
            pools: Vec::new(),
            workers: Vec::new(),
            recent: Recent::default(),
            waiting: Vec::new(),
            limits: Limits::default(),
            ends: Ends::new(),
        };
        case.pool("own", 1, gpu_type, nodes);
        case
    }

    fn pool(&mut self, name: &str, owner: u8, gpu_type: &str, nodes: Vec<Node>) -> &mut Pool {
        let id = ClusterId::from_bytes([u8::try_from(self.pools.len()).unwrap() + 1; 16]);
        self.pools.push(Pool {
            id,
            name: name.into(),
            owner: workspace(owner),
            shared: false,
            gpu_type: gpu_type.into(),
            connected: true,
            paused: false,
            report: Some(Picture { taken: self.now, nodes, strangers: Vec::new() }),
            resting: Vec::new(),
        });
        self.pools.last_mut().unwrap()
    }

    fn nodes(&mut self) -> &mut Vec<Node> {
        &mut self.pools[0].report.as_mut().unwrap().nodes
    }

    /// One more task that waits, of workspace 1.
    fn task(&mut self, cores: u64, gi: u64, gpus: u32, gpu_type: &str) -> &mut Self {
        let n = u8::try_from(self.waiting.len()).unwrap() + 1;
        self.waiting.push(Waiting {
            task: TaskId::from_bytes([n; 16]),
            workspace: workspace(1),
            need: Amounts { cpu_millis: cores * 1_000, memory_bytes: gi * GI, gpus },
            gpu_type: gpu_type.into(),
            pool: None,
        });
        self
    }

    fn situation(&self) -> Situation<'_> {
        Situation {
            now: self.now,
            pools: &self.pools,
            workers: &self.workers,
            recent: &self.recent,
            waiting: &self.waiting,
            limits: &self.limits,
        }
    }

    /// Names of nodes on which workers are started, and what they take.
    fn starts(&self) -> Vec<(String, Amounts)> {
        let starts = plan(&self.situation()).into_iter().filter_map(|step| match step {
            Step::Start { node, amounts, .. } => Some((node, amounts)),
            Step::Stop { .. } => None,
        });
        starts.collect()
    }

    fn names(&self) -> Vec<String> {
        self.starts().into_iter().map(|(node, _)| node).collect()
    }

    fn worker(&mut self, node: &str, stage: Stage, amounts: Amounts) -> &mut PoolWorker {
        let n = u8::try_from(self.workers.len()).unwrap() + 1;
        self.workers.push(PoolWorker {
            id: WorkerId::from_bytes([n; 16]),
            pool: self.pools[0].id,
            node: node.into(),
            stage,
            amounts,
            gpu_type: if amounts.gpus > 0 { self.pools[0].gpu_type.clone() } else { String::new() },
            scope: Some(workspace(1)),
            in_report: false,
            idle_since: None,
            ordered: self.now,
            held_up: String::new(),
        });
        self.workers.last_mut().unwrap()
    }

    /// The reasons at all places for the task at `index`.
    fn reasons(&self, index: usize) -> Vec<(String, &'static str)> {
        let why = why(&self.situation(), &self.waiting[index], &self.ends);
        why.places.into_iter().map(|place| (place.node, place.reason.word())).collect()
    }

    fn why(&self, index: usize) -> Why {
        why(&self.situation(), &self.waiting[index], &self.ends)
    }
}

fn amounts(cores: u64, gi: u64, gpus: u32) -> Amounts {
    Amounts { cpu_millis: cores * 1_000, memory_bytes: gi * GI, gpus }
}

#[test]
fn a_worker_for_cards_takes_all_that_is_free_where_least_is_left_over() {
    let mut case = Case::new("T4", vec![node("eight", 64, 8), node("two", 16, 2), node("one", 8, 1)]);
    case.task(1, 1, 2, "T4");
    assert_eq!(case.starts(), [("two".to_owned(), amounts(16, 64, 2))]);
    case.nodes()[1].free = held(16, 64, 1);
    assert_eq!(case.names(), ["eight"], "two cards of two nodes are no two cards");
}

#[test]
fn cpu_work_prefers_nodes_without_cards_and_takes_no_more_than_it_needs_beside_them() {
    let mut case = Case::new("T4", vec![node("cards", 64, 8), node("plain", 4, 0)]);
    case.task(3, 1, 0, "").task(8, 2, 0, "").task(4, 3, 0, "").task(1, 1, 0, "");
    let sparing = Amounts { cpu_millis: 12_000, memory_bytes: 5 * GI + WORKER_MEMORY, gpus: 0 };
    // The last small one fits beside the first on the node without cards.
    assert_eq!(case.starts(), [("plain".to_owned(), amounts(4, 16, 0)), ("cards".to_owned(), sparing)]);
}

#[test]
fn many_small_tasks_count_on_the_worker_that_is_coming() {
    let mut case = Case::new("T4", vec![node("a", 8, 4), node("b", 8, 4)]);
    for _ in 0..4 {
        case.task(1, 1, 1, "T4");
    }
    assert_eq!(case.names(), ["a"]);
    case.worker("a", Stage::Pending, amounts(8, 32, 4));
    assert!(case.starts().is_empty());
    case.task(1, 1, 1, "T4");
    assert_eq!(case.names(), ["b"], "a fifth card is not on a");
    // Whoever is late is not counted on, and still keeps its node to itself.
    case.workers[0].ordered = case.now - case.limits.late;
    case.waiting.truncate(1);
    assert_eq!(case.names(), ["b"]);
}

#[test]
fn a_node_with_a_pending_worker_or_a_stranger_is_left_alone() {
    let mut case = Case::new("T4", vec![node("a", 8, 4), node("b", 8, 0)]);
    case.worker("a", Stage::Pending, amounts(1, 1, 0)).scope = Some(workspace(9));
    case.task(1, 1, 1, "T4");
    assert!(case.starts().is_empty());
    assert_eq!(case.reasons(0), [("a".into(), "pending"), ("b".into(), "too-small")]);
    case.workers.clear();
    case.pools[0].report.as_mut().unwrap().strangers = vec!["a".into()];
    assert!(case.starts().is_empty());
}

#[test]
fn workers_that_the_picture_lacks_are_taken_off() {
    let mut case = Case::new("T4", vec![node("a", 8, 4)]);
    case.worker("a", Stage::Running, amounts(2, 8, 1));
    case.worker("a", Stage::Stopping, amounts(1, 4, 1));
    case.task(1, 1, 1, "T4");
    assert_eq!(case.starts(), [("a".to_owned(), amounts(5, 20, 2))]);
    case.workers[0].in_report = true;
    assert_eq!(case.starts(), [("a".to_owned(), amounts(7, 28, 3))]);
    case.workers[1].amounts.gpus = 4;
    case.waiting[0].need.gpus = 0;
    assert!(case.starts().is_empty(), "no free card: offered for nothing");
}

#[test]
fn labels_and_shared_cards_speak_against_cards_only() {
    let mut case = Case::new("T4", vec![node("a", 8, 4)]);
    case.task(1, 1, 2, "T4").task(1, 1, 1, "T4").task(1, 1, 0, "");
    case.nodes()[0].gpu_label = "L4".into();
    assert_eq!(case.starts()[0].1.gpus, 0);
    assert_eq!(case.reasons(0), [("a".into(), "label-contradicts")]);
    case.nodes()[0].gpu_label = "T4".into();
    case.nodes()[0].shared_cards = true;
    // One slot with its part of the rest, so that the others stay usable.
    assert_eq!(case.starts(), [("a".to_owned(), amounts(2, 8, 1))]);
    assert_eq!(case.reasons(0), [("a".into(), "shared-cards")]);
}

#[test]
fn a_size_that_was_not_said_contradicts_nothing() {
    let mut case = Case::new("A100", vec![node("a", 8, 4), node("b", 8, 4)]);
    (case.nodes()[0].gpu_label, case.nodes()[1].gpu_label) = ("A100-40".into(), "A100-80".into());
    case.task(1, 1, 1, "A100-80");
    let steps = plan(&case.situation());
    let [Step::Start { node, gpu_type, scope, .. }] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((node.as_str(), gpu_type.as_str(), *scope), ("b", "A100-80", Some(workspace(1))));
}

#[test]
fn the_workspace_s_own_pools_come_before_shared_ones_and_others_own_never() {
    let mut case = Case::new("T4", vec![node("own", 8, 8)]);
    case.pool("a-shared", 2, "T4", vec![node("shared", 8, 1)]).shared = true;
    case.pool("a-foreign", 2, "T4", vec![node("foreign", 8, 1)]);
    case.task(1, 1, 1, "T4");
    assert_eq!(case.names(), ["own"]);
    case.waiting[0].pool = Some("a-shared".into());
    assert_eq!(case.names(), ["shared"]);
    case.waiting[0].pool = Some("a-foreign".into());
    assert!(case.starts().is_empty());
    let told = case.why(0);
    assert_eq!(told.summary, "there is no pool \"a-foreign\"");
    assert!(told.places.iter().all(|p| p.reason == Reason::AnotherPool && p.pool != "a-foreign"));
    assert_eq!(impossible(&case.pools, &case.waiting[0]), Verdict::NoPool);
    // With sharing off the next task goes there no more.
    case.pools[1].shared = false;
    case.waiting[0].pool = Some("a-shared".into());
    assert!(case.starts().is_empty());
}

#[test]
fn never_more_pending_than_nodes_that_count_and_the_guard_holds() {
    let mut case = Case::new("T4", (0..4).map(|n| node(&format!("n{n}"), 4, 1)).collect());
    for _ in 0..4 {
        case.task(1, 1, 1, "T4");
    }
    assert_eq!(case.names(), ["n0", "n1", "n2", "n3"]);
    case.nodes()[3].withheld = Some(Withheld::Cordoned);
    // One is pending on a node that is not lent any more.
    case.worker("gone", Stage::Pending, amounts(4, 16, 0)).scope = Some(workspace(9));
    assert_eq!(case.names(), ["n0", "n1"]);
    assert_eq!(case.reasons(3), [("".into(), "ceiling")]);
    case.limits.guard_pending = 2;
    assert_eq!(case.names(), ["n0"]);
    case.limits.guard_pending = 0;
    assert!(case.starts().is_empty());
    assert!(case.why(0).summary.ends_with("worker.provisioningGuard is 0: no worker is ordered"));
    case.limits.guard_pending = -1;
    case.limits.guard_per_minute = 1;
    assert_eq!(case.names(), ["n0"]);
    case.recent.note(case.pools[0].id, case.now - Duration::from_secs(20));
    let told = case.why(0).places.remove(0);
    assert_eq!((told.reason, told.frees.as_str()), (Reason::Guard, "in at most 40s"));
    case.now += Duration::from_secs(40);
    assert_eq!(case.names(), ["n0"]);
}

#[test]
fn a_pool_that_cannot_be_trusted_takes_nobody() {
    let mut case = Case::new("T4", vec![node("a", 4, 1)]);
    case.task(1, 1, 1, "T4");
    let (now, taken) = (case.now, case.now);
    case.now = taken + Duration::from_secs(89);
    assert_eq!(case.names(), ["a"]);
    case.now = taken + Duration::from_secs(90);
    assert!(case.starts().is_empty());
    assert_eq!(
        case.why(0).summary,
        "pool own: its last report is 1m30s old; it goes on with its next report"
    );
    case.now = now;
    case.pools[0].paused = true;
    assert_eq!((case.starts().len(), case.reasons(0)), (0, vec![("".into(), "paused")]));
    case.pools[0].connected = false;
    assert_eq!((case.starts().len(), case.reasons(0)), (0, vec![("".into(), "away")]));
    (case.pools[0].connected, case.pools[0].paused, case.pools[0].report) = (true, false, None);
    assert_eq!((case.starts().len(), case.reasons(0)), (0, vec![("".into(), "never-reported")]));
    assert_eq!(impossible(&case.pools, &case.waiting[0]), Verdict::Might);
}

#[test]
fn a_node_where_a_worker_failed_rests() {
    let mut case = Case::new("T4", vec![node("a", 4, 1)]);
    case.task(1, 1, 1, "T4");
    let until = case.now + Duration::from_millis(29_500);
    case.pools[0].resting = vec![("a".into(), until, "ImagePullBackOff: no such image".into())];
    assert!(case.starts().is_empty());
    let place = case.why(0).places.remove(0);
    assert_eq!(place.text, "a worker failed there lately: ImagePullBackOff: no such image");
    assert_eq!(place.frees, "in 30s");
    case.now = until;
    assert_eq!(case.names(), ["a"]);
    assert_eq!(case.reasons(0), [("a".into(), "room")]);
}

#[test]
fn idle_workers_are_stopped_unless_somebody_waits_for_them() {
    let mut case = Case::new("T4", vec![node("a", 4, 1)]);
    let now = case.now;
    case.worker("a", Stage::Running, amounts(4, 16, 1)).idle_since = Some(now - Duration::from_secs(299));
    let stops = |case: &Case| plan(&case.situation()).into_iter().next();
    assert_eq!(stops(&case), None);
    case.now += Duration::from_secs(1);
    let worker = case.workers[0].id;
    assert_eq!(stops(&case), Some(Step::Stop { worker, why: StopWhy::Idle }));
    case.task(1, 1, 1, "T4");
    assert_eq!(stops(&case), None, "it may have lost its session for a moment");
    case.now += Duration::from_secs(300);
    assert_eq!(stops(&case), Some(Step::Stop { worker, why: StopWhy::Useless }));
    case.workers[0].stage = Stage::Stopping;
    assert_eq!(stops(&case), None);
}

#[test]
fn who_holds_the_room_is_told() {
    let mut case = Case::new("T4", ["a", "b", "c", "d"].map(|n| node(n, 8, 4)).into());
    case.task(1, 1, 2, "T4");
    for n in 0..4 {
        case.nodes()[n].free = held(8, 32, 1);
    }
    case.nodes()[0].others = held(0, 0, 3);
    for n in 1..4 {
        case.nodes()[n].levers9 = held(0, 0, 3);
        let name = ["a", "b", "c", "d"][n];
        case.worker(name, Stage::Running, amounts(4, 8, 3)).in_report = true;
    }
    case.workers[1].scope = Some(workspace(9));
    case.workers[2].stage = Stage::Stopping;
    case.ends.insert(case.workers[0].id, Duration::from_secs(180));
    let told = case.why(0);
    let frees: Vec<_> = told.places.iter().map(|p| (p.reason.word(), p.frees.as_str())).collect();
    assert_eq!(
        frees,
        [
            ("taken-by-others", "when others' pods leave"),
            ("busy", "when a task on its worker ends, in at most 3m (a task's timeout)"),
            ("taken-by-levers9", "when a worker there has had nothing to do for 5m"),
            ("taken-by-levers9", "when the worker that stops there is gone"),
        ]
    );
    assert_eq!(told.places[0].text, "1 of its 4 cards are free, not 2");
    assert!(told.summary.starts_with("node b of pool own: a worker that could run it is there"));
}

#[test]
fn of_somebody_else_s_shared_pool_no_node_is_named_or_counted() {
    let nodes = ["secret-a", "secret-b", "secret-c"].map(|n| node(n, 8, 4));
    let mut case = Case::new("L4", Vec::new());
    let now = case.now;
    let shared = case.pool("lent", 2, "T4", nodes.into());
    shared.shared = true;
    shared.resting = vec![("secret-c".into(), now + Duration::from_secs(9), "secret-image".into())];
    for node in &mut shared.report.as_mut().unwrap().nodes {
        node.free.cards = 1;
        node.others.cards = 3;
    }
    case.task(1, 1, 2, "T4").task(1, 1, 9, "T4").task(1, 1, 1, "T4");
    assert_eq!(
        case.reasons(0),
        [("".into(), "wrong-card"), ("".into(), "taken-by-others"), ("".into(), "resting")]
    );
    assert_eq!(case.reasons(1)[1..], [("".into(), "too-small")]);
    assert_eq!(case.reasons(2)[1..], [("".into(), "room"), ("".into(), "promised"), ("".into(), "resting")]);
    for index in 0..3 {
        let said = format!("{:?}", case.why(index));
        assert!(!said.contains("secret"), "{said}");
    }
    assert!(case.why(1).summary.starts_with("no place could ever take it; the nearest is pool lent"));
}

#[test]
fn withheld_nodes_say_why_and_count_for_what_is_possible() {
    let all = [Withheld::Deleting, Withheld::NotReady, Withheld::Cordoned, Withheld::Tainted];
    let withheld =
        |(n, reason): (usize, &Withheld)| Node { withheld: Some(*reason), ..node(&format!("n{n}"), 8, 4) };
    let mut case = Case::new("T4", all.iter().enumerate().map(withheld).collect());
    case.task(1, 1, 4, "T4");
    assert!(case.starts().is_empty());
    let words: Vec<_> = case.reasons(0).into_iter().map(|(_, word)| word).collect();
    assert_eq!(words, ["not-ready", "not-ready", "cordoned", "tainted"]);
    assert_eq!(impossible(&case.pools, &case.waiting[0]), Verdict::Could);
}

#[test]
fn what_can_never_run_is_said_with_the_largest_there_is() {
    let mut case = Case::new("T4", vec![node("a", 8, 4), node("b", 64, 0)]);
    case.task(1, 1, 8, "T4")
        .task(1, 256, 0, "")
        .task(65, 1, 0, "")
        .task(1, 1, 1, "H100")
        .task(60, 1, 1, "T4");
    let said = |case: &Case, index: usize| match impossible(&case.pools, &case.waiting[index]) {
        Verdict::Never(words) => words,
        other => panic!("{other:?}"),
    };
    assert_eq!(said(&case, 0), "8 T4 GPUs are more than any one node has; the most are 4");
    assert_eq!(
        said(&case, 1),
        "256Gi of memory is more than any node has; the largest has 255.9Gi for jobs",
        "a worker needs some itself"
    );
    assert_eq!(said(&case, 2), "65 CPU is more than any node has; the largest has 64");
    assert_eq!(said(&case, 3), "no attached cluster has H100 GPUs");
    assert_eq!(said(&case, 4), "no single node has this much CPU, memory and GPUs together");
    case.nodes()[0].shared_cards = true;
    assert!(said(&case, 0).contains("shared cards are given one by one"));
    case.nodes()[0].gpu_label = "L4".into();
    assert_eq!(said(&case, 0), "the nodes' own labels say that their cards are not T4");
    case.nodes()[0].allocatable = Held::default();
    assert_eq!(impossible(&case.pools, &case.waiting[0]), Verdict::Might, "it cannot be read now");
    case.waiting[0].workspace = workspace(7);
    assert_eq!(impossible(&case.pools, &case.waiting[0]), Verdict::NoPool);
}

#[test]
fn a_name_that_is_reported_twice_is_one_node() {
    let mut case = Case::new("T4", vec![node("a", 4, 1), node("a", 4, 1)]);
    case.task(1, 1, 1, "T4").task(1, 1, 1, "T4");
    assert_eq!(case.names(), ["a"]);
}

#[test]
fn one_pass_over_many_tasks_and_nodes_is_quick() {
    let nodes = (0..5_000).map(|n| node(&format!("n{n:04}"), 8, 4)).collect();
    let mut case = Case::new("T4", nodes);
    case.limits.guard_pending = -1;
    case.limits.guard_per_minute = -1;
    for _ in 0..50 {
        case.task(1, 1, 3, "T4");
    }
    assert_eq!(case.starts().len(), 50);
}
