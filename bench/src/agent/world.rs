//! A large cluster and what happens in it: which objects there are, in which
//! version, and every change since the start, so that lists and watches can be
//! answered. Pure: randomness and time are arguments; the double of the API
//! server asks, [`super::double`] lets things happen.
//!
//! Of the changes to pods, half are turnover, which changes what is free: a pod
//! ends (told to end, ended, deleted) and another comes in its place (created,
//! bound elsewhere, starting, running), seven changes in all. The other half
//! are statuses that change nothing that is counted.

use std::collections::VecDeque;

use anyhow::Result;
use rand::Rng;

use super::objects::{self, CARDS_EVERY, Phase, Shape};
use super::template::{Fill, Template};

/// How many pods are replaced at a time.
const TURNING: usize = 8;
/// How many changes are remembered; a watch from before them is too old.
const REMEMBERED: usize = 200_000;
/// Every so many nodes one runs a worker of the agent.
const WORKER_EVERY: u32 = 20;
/// How long before the start everything was created, in seconds.
const AGE: u64 = 3_600;
/// The resource version of the cluster at the start.
const FIRST: u64 = 1_000_000;

/// What there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Nodes,
    Pods,
    Jobs,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Added,
    Modified,
    Deleted,
}

impl What {
    /// The type of the event.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// An object in one version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object {
    body: Body,
    serial: u32,
    version: u64,
    node: u32,
    created_s: u64,
    changed_s: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Node { cards: bool },
    Pod(Shape, Phase),
    Job,
}

impl Object {
    fn kind(&self) -> Kind {
        match self.body {
            Body::Node { .. } => Kind::Nodes,
            Body::Pod(..) => Kind::Pods,
            Body::Job => Kind::Jobs,
        }
    }
}

/// A change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) what: What,
    pub(super) object: Object,
}

/// A version is no longer, or not yet, known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// How large the cluster is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) nodes: u32,
    pub(super) pods: u32,
}

/// The cluster.
#[derive(Debug)]
pub(super) struct World {
    nodes: Vec<Object>,
    /// A place each; empty between a pod's deletion and the next one's creation.
    pods: Vec<Option<Object>>,
    jobs: Vec<Object>,
    turning: Vec<usize>,
    next_node: usize,
    serial: u32,
    version: u64,
    changes: VecDeque<Change>,
    /// The version of the last change that is forgotten.
    forgotten: u64,
}

impl World {
    /// A cluster where all is quiet. The first pods are workers' of the agent.
    pub(super) fn new(size: Size, now_s: u64) -> Self {
        let created_s = now_s.saturating_sub(AGE);
        let object = |body, serial, node| Object {
            body,
            serial,
            version: FIRST - u64::from(serial % 1_000),
            node,
            created_s,
            changed_s: created_s,
        };
        let nodes = (0..size.nodes).map(|node| object(Body::Node { cards: has_cards(node) }, node, node));
        let workers = (size.nodes / WORKER_EVERY).min(size.pods);
        let place = |slot: u32| if slot < workers { slot * WORKER_EVERY } else { slot % size.nodes.max(1) };
        let pod = |slot: u32| {
            let node = place(slot);
            let shape = if slot < workers { Shape::Worker } else { shape_on(node, slot / size.nodes.max(1)) };
            Some(object(Body::Pod(shape, Phase::Running), slot, node))
        };
        Self {
            nodes: nodes.collect(),
            pods: (0..size.pods).map(pod).collect(),
            jobs: (0..workers).map(|slot| object(Body::Job, slot, place(slot))).collect(),
            turning: Vec::new(),
            next_node: 0,
            serial: size.pods,
            version: FIRST,
            changes: VecDeque::new(),
            forgotten: FIRST - 1_000,
        }
    }

    /// The version of the last change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// A page of what there is of a kind, and where the next one begins.
    pub(super) fn page(&self, kind: Kind, from: usize, limit: usize) -> (Vec<Object>, Option<usize>) {
        let of = |all: &[Object]| all.iter().skip(from).take(limit).copied().collect();
        let (page, all) = match kind {
            Kind::Nodes => (of(&self.nodes), self.nodes.len()),
            Kind::Jobs => (of(&self.jobs), self.jobs.len()),
            Kind::Pods => {
                let page = self.pods.iter().skip(from).take(limit).flatten().copied().collect();
                (page, self.pods.len())
            }
        };
        let next = from.saturating_add(limit);
        (page, (next < all).then_some(next))
    }

    /// What happened to a kind after a version, at most so many changes.
    pub(super) fn since(&self, kind: Kind, version: u64, most: usize) -> Result<Vec<Change>, Gone> {
        if version < self.forgotten || version > self.version {
            return Err(Gone);
        }
        let first = self.changes.partition_point(|change| change.version <= version);
        let later = self.changes.iter().skip(first).filter(|change| change.object.kind() == kind);
        Ok(later.take(most).copied().collect())
    }

    /// The next node's kubelet says that it lives.
    pub(super) fn heartbeat(&mut self, now_s: u64) {
        let count = self.nodes.len();
        let Some(node) = self.nodes.get_mut(self.next_node) else { return };
        self.next_node = (self.next_node + 1) % count;
        self.version += 1;
        (node.version, node.changed_s) = (self.version, now_s);
        let object = *node;
        self.remember(What::Modified, object);
    }

    /// Something happens to a pod.
    pub(super) fn pod_event(&mut self, rng: &mut impl Rng, now_s: u64) {
        if rng.random_bool(0.5) {
            self.turn(rng, now_s);
        } else if let Some(slot) = self.settled(rng) {
            self.put(slot, Phase::Running, now_s);
        }
    }

    /// A pod that is replaced goes one step on.
    fn turn(&mut self, rng: &mut impl Rng, now_s: u64) {
        if self.turning.len() < TURNING
            && let Some(slot) = self.settled(rng)
        {
            self.turning.push(slot);
        }
        if self.turning.is_empty() {
            return;
        }
        let turn = rng.random_range(0..self.turning.len());
        let slot = self.turning[turn];
        let Some(Object { body: Body::Pod(_, phase), .. }) = self.pods[slot] else {
            self.create(slot, rng, now_s);
            return;
        };
        match phase {
            Phase::Running => self.put(slot, Phase::Terminating, now_s),
            Phase::Terminating => self.put(slot, Phase::Finished, now_s),
            Phase::Finished => self.delete(slot, now_s),
            Phase::Pending => self.put(slot, Phase::Bound, now_s),
            Phase::Bound => self.put(slot, Phase::Starting, now_s),
            Phase::Starting => {
                self.put(slot, Phase::Running, now_s);
                self.turning.swap_remove(turn);
            }
        }
    }

    /// A pod that runs, is not replaced just now, and is no worker.
    fn settled(&self, rng: &mut impl Rng) -> Option<usize> {
        if self.pods.len() <= self.jobs.len() {
            return None;
        }
        // Almost every pod is; a cluster of a handful may have none.
        let slots = (0..100).map(|_| rng.random_range(self.jobs.len()..self.pods.len()));
        slots.into_iter().find(|slot| !self.turning.contains(slot))
    }

    fn create(&mut self, slot: usize, rng: &mut impl Rng, now_s: u64) {
        let Ok(nodes) = u32::try_from(self.nodes.len()) else { return };
        if nodes == 0 {
            return;
        }
        let node = rng.random_range(0..nodes);
        self.version += 1;
        let object = Object {
            body: Body::Pod(shape_on(node, self.serial), Phase::Pending),
            serial: self.serial,
            version: self.version,
            node,
            created_s: now_s,
            changed_s: now_s,
        };
        self.serial = self.serial.wrapping_add(1);
        self.pods[slot] = Some(object);
        self.remember(What::Added, object);
    }

    fn put(&mut self, slot: usize, phase: Phase, now_s: u64) {
        let Some(pod) = &mut self.pods[slot] else { return };
        let Body::Pod(shape, _) = pod.body else { return };
        self.version += 1;
        (pod.body, pod.version, pod.changed_s) = (Body::Pod(shape, phase), self.version, now_s);
        let object = *pod;
        self.remember(What::Modified, object);
    }

    fn delete(&mut self, slot: usize, now_s: u64) {
        let Some(mut object) = self.pods[slot].take() else { return };
        self.version += 1;
        (object.version, object.changed_s) = (self.version, now_s);
        self.remember(What::Deleted, object);
    }

    fn remember(&mut self, what: What, object: Object) {
        if self.changes.len() == REMEMBERED
            && let Some(oldest) = self.changes.pop_front()
        {
            self.forgotten = oldest.version;
        }
        self.changes.push_back(Change { version: object.version, what, object });
    }
}

fn has_cards(node: u32) -> bool {
    node.is_multiple_of(CARDS_EVERY)
}

/// What the `turn`th pod of a node is.
fn shape_on(node: u32, turn: u32) -> Shape {
    match turn % 5 {
        0 | 1 if has_cards(node) => Shape::Card,
        2 => Shape::Sidecar,
        _ => Shape::Web,
    }
}

/// Writes objects.
#[derive(Debug)]
pub(super) struct Writer {
    nodes: [Template; 2],
    pods: Vec<(Shape, Phase, Template)>,
    job: Template,
}

impl Writer {
    pub(super) fn new() -> Result<Self> {
        let pods = Shape::ALL.into_iter().flat_map(|shape| Phase::ALL.map(|phase| (shape, phase)));
        let pods = pods.map(|(shape, phase)| Ok((shape, phase, objects::pod(shape, phase)?)));
        Ok(Self {
            nodes: [objects::node(false)?, objects::node(true)?],
            pods: pods.collect::<Result<_>>()?,
            job: objects::job()?,
        })
    }

    /// Appends an object as JSON.
    pub(super) fn write(&self, object: &Object, out: &mut String) {
        let template = match object.body {
            Body::Node { cards } => &self.nodes[usize::from(cards)],
            Body::Job => &self.job,
            Body::Pod(shape, phase) => {
                let found = self.pods.iter().find(|(s, p, _)| (*s, *p) == (shape, phase));
                // There is one of each.
                found.map_or(&self.job, |(_, _, template)| template)
            }
        };
        let Object { serial, version, node, .. } = *object;
        let (created, changed) = (timestamp(object.created_s), timestamp(object.changed_s));
        template.render(Fill { serial, version, node, created: &created, changed: &changed }, out);
    }
}

fn timestamp(unix_s: u64) -> String {
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX);
    k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;
    use std::collections::BTreeMap;

    use super::*;

    const NOW: u64 = 1_790_000_000;

    fn read(writer: &Writer, object: &Object) -> serde_json::Value {
        let mut text = String::new();
        writer.write(object, &mut text);
        serde_json::from_str(&text).unwrap()
    }

    fn all(world: &World, kind: Kind) -> Vec<Object> {
        let (mut found, mut from) = (Vec::new(), 0);
        loop {
            let (page, next) = world.page(kind, from, 7);
            found.extend(page);
            match next {
                Some(next) => from = next,
                None => return found,
            }
        }
    }

    #[test]
    fn pages_hold_everything_once() {
        let world = World::new(Size { nodes: 40, pods: 400 }, NOW);
        assert_eq!(all(&world, Kind::Nodes).len(), 40);
        assert_eq!(all(&world, Kind::Jobs).len(), 2);
        let writer = Writer::new().unwrap();
        let pods: BTreeMap<String, Object> = all(&world, Kind::Pods)
            .into_iter()
            .map(|pod| (read(&writer, &pod)["metadata"]["uid"].to_string(), pod))
            .collect();
        assert_eq!(pods.len(), 400);
    }

    #[test]
    fn a_list_and_the_changes_after_it_give_what_there_is() {
        let (mut world, writer) = (World::new(Size { nodes: 10, pods: 60 }, NOW), Writer::new().unwrap());
        let mut rng = StdRng::seed_from_u64(7);
        let keyed = |object: &Object| {
            let object = read(&writer, object);
            (object["metadata"]["uid"].to_string(), object["metadata"]["resourceVersion"].to_string())
        };
        let mut seen: BTreeMap<String, String> = all(&world, Kind::Pods).iter().map(keyed).collect();
        let listed = world.version();
        for second in 0..2_000 {
            world.pod_event(&mut rng, NOW + second);
            world.heartbeat(NOW + second);
        }
        let changes = world.since(Kind::Pods, listed, usize::MAX).unwrap();
        let deleted = changes.iter().filter(|change| change.what == What::Deleted).count();
        assert!(changes.len() > 1_900 && deleted > 100, "{} {deleted}", changes.len());
        for change in &changes {
            let (uid, version) = keyed(&change.object);
            if change.what == What::Deleted {
                seen.remove(&uid)
            } else {
                seen.insert(uid, version)
            };
        }
        assert_eq!(seen, all(&world, Kind::Pods).iter().map(keyed).collect());
        assert_eq!(world.since(Kind::Nodes, listed, usize::MAX).unwrap().len(), 2_000);
        assert!(world.since(Kind::Jobs, listed, usize::MAX).unwrap().is_empty());
    }

    #[test]
    fn versions_that_are_not_known_are_gone() {
        let mut world = World::new(Size { nodes: 1, pods: 0 }, NOW);
        assert_eq!(world.since(Kind::Nodes, 1, 9).unwrap_err(), Gone);
        assert_eq!(world.since(Kind::Nodes, FIRST + 1, 9).unwrap_err(), Gone);
        for _ in 0..=REMEMBERED {
            world.heartbeat(NOW);
        }
        assert_eq!(world.since(Kind::Nodes, FIRST, 9).unwrap_err(), Gone);
        assert_eq!(world.since(Kind::Nodes, FIRST + 1, 9).unwrap().len(), 9);
    }
}
