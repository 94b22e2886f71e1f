//! Attached clusters, their nodes, and why a task is not on one of them.

use levers9_wire::quantity::{show_cpu, show_memory};
use levers9_wire::v1;
use serde::Serialize;

use super::{age, id_text, with_carrier};
use crate::printer::Listing;

/// One attached cluster.
#[derive(Debug, Serialize)]
pub struct ClusterView {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// ready, stale, away, waiting or paused.
    pub state: String,
    /// What its cards are.
    pub gpu_type: String,
    /// Whom it serves.
    pub serves: String,
    /// Whether it serves every workspace.
    pub shared: bool,
    /// False for somebody else's: then namespace and image are left out.
    pub own: bool,
    /// Nodes that are lent.
    pub nodes: u32,
    /// Of those, ready ones.
    pub nodes_ready: u32,
    /// Cards on them.
    pub cards: u32,
    /// Of those, free ones.
    pub cards_free: u32,
    /// Workers that run there.
    pub workers: u32,
    /// Workers that are to start there.
    pub workers_pending: u32,
    /// When its agent was last heard.
    pub last_seen_unix_ms: Option<u64>,
    /// The agent's version; empty when it never came.
    pub agent_build: String,
    /// How long the agent has been running; `null` when it is not connected.
    pub agent_uptime_ms: Option<u64>,
    /// When it was attached.
    pub created_unix_ms: u64,
    /// The API server's version.
    pub kubernetes: String,
    /// gke, eks, aks or empty.
    pub flavor: String,
    /// What its workers run jobs with: process, runc or runsc.
    pub runtime: String,
    /// The agent's namespace.
    pub namespace: String,
    /// What its workers run from.
    pub worker_image: String,
    /// Which nodes it lends, item by item.
    pub selector: Vec<String>,
    /// What an operator should know; may be empty.
    pub note: String,
    /// What its agent's session rides on: quic, tcp or proxy; empty without one.
    pub carrier: String,
    /// Why it is no better one; empty for quic.
    pub carrier_why: String,
}

impl From<v1::Cluster> for ClusterView {
    fn from(cluster: v1::Cluster) -> Self {
        Self {
            id: id_text(&cluster.id),
            name: cluster.name,
            state: cluster.state,
            gpu_type: cluster.gpu_type,
            serves: cluster.serves,
            shared: cluster.shared,
            own: cluster.own,
            nodes: cluster.nodes,
            nodes_ready: cluster.nodes_ready,
            cards: cluster.cards,
            cards_free: cluster.cards_free,
            workers: cluster.workers,
            workers_pending: cluster.workers_pending,
            last_seen_unix_ms: Some(cluster.last_seen_unix_ms).filter(|at| *at > 0),
            agent_build: cluster.agent_build,
            agent_uptime_ms: Some(cluster.agent_uptime_ms).filter(|time| *time > 0),
            created_unix_ms: cluster.created_unix_ms,
            kubernetes: cluster.kubernetes,
            flavor: cluster.flavor,
            runtime: cluster.runtime,
            namespace: cluster.namespace,
            worker_image: cluster.worker_image,
            selector: cluster.selector.iter().map(item).collect(),
            note: cluster.note,
            carrier: cluster.carrier,
            carrier_why: cluster.carrier_why,
        }
    }
}

/// A selector's item as it is typed.
fn item(item: &v1::LabelRequirement) -> String {
    match item.values.as_slice() {
        [] => item.key.clone(),
        [value] => format!("{}={value}", item.key),
        values => format!("{}=in ({})", item.key, values.join(",")),
    }
}

impl Listing for ClusterView {
    const HEADS: &'static [&'static str] = &[
        "CLUSTER",
        "STATE",
        "GPU",
        "NODES READY",
        "CARDS FREE",
        "WORKERS",
        "SEEN",
        "AGENT",
        "UPTIME",
        "SERVES",
        "NOTE",
    ];
    const OPTIONAL: &'static [&'static str] = &["NOTE"];

    fn cells(&self, now: u64) -> Vec<String> {
        let seen = self.last_seen_unix_ms.map(|at| format!("{} ago", age(at, now)));
        let pending = match self.workers_pending {
            0 => String::new(),
            pending => format!("+{pending}"),
        };
        vec![
            self.name.clone(),
            self.state.clone(),
            self.gpu_type.clone(),
            format!("{}/{}", self.nodes_ready, self.nodes),
            format!("{}/{}", self.cards_free, self.cards),
            format!("{}{pending}", self.workers),
            seen.unwrap_or_else(|| "never".to_owned()),
            self.agent_build.clone(),
            self.agent_uptime_ms.map(|time| age(0, time)).unwrap_or_default(),
            self.serves.clone(),
            with_carrier(&self.note, &self.carrier, &self.carrier_why),
        ]
    }
}

/// So much of a node.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct AmountsView {
    /// Thousandths of a core.
    pub cpu_millis: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Cards.
    pub cards: u32,
    /// Pods.
    pub pods: u32,
}

impl From<v1::NodeAmounts> for AmountsView {
    fn from(amounts: v1::NodeAmounts) -> Self {
        let v1::NodeAmounts { cpu_millis, memory_bytes, cards, pods } = amounts;
        Self { cpu_millis, memory_bytes, cards, pods }
    }
}

impl AmountsView {
    /// For people: `4 CPU, 8Gi, 1 card`.
    fn words(self) -> String {
        let mut words = Vec::new();
        if self.cpu_millis > 0 {
            words.push(format!("{} CPU", show_cpu(self.cpu_millis)));
        }
        if self.memory_bytes > 0 {
            words.push(show_memory(self.memory_bytes));
        }
        match self.cards {
            0 => {}
            1 => words.push("1 card".to_owned()),
            cards => words.push(format!("{cards} cards")),
        }
        words.join(", ")
    }
}

/// Something a node has beside whole cards.
#[derive(Debug, Serialize)]
pub struct OtherView {
    /// What the cluster calls it.
    pub name: String,
    /// How many there are.
    pub allocatable: u64,
    /// Of those, free.
    pub free: u64,
}

/// One node. Amounts are `null` when they cannot be read.
#[derive(Debug, Serialize)]
pub struct NodeView {
    /// Its name; empty in somebody else's cluster.
    pub name: String,
    /// Whether Kubernetes can start pods on it.
    pub ready: bool,
    /// Whether a worker may be started there now.
    pub offered: bool,
    /// Why not, in one word; empty when it is offered: deleting, not-ready,
    /// cordoned, tainted, unreadable, no-pod-slot, no-free-card.
    pub withheld: &'static str,
    /// The same in words, and what else there is to say of it.
    pub why: String,
    /// What its cards are taken for.
    pub gpu_type: String,
    /// What its labels call its cards.
    pub gpu_label: String,
    /// Cards are time-sliced.
    pub shared_cards: bool,
    /// What there is for pods.
    pub allocatable: Option<AmountsView>,
    /// Of that, free.
    pub free: Option<AmountsView>,
    /// Of that, taken by levers9's own workers.
    pub levers9: Option<AmountsView>,
    /// Of that, taken by everybody else.
    pub others: Option<AmountsView>,
    /// Kept back for pods that are about to come.
    pub reserved: Option<AmountsView>,
    /// What it has beside whole cards.
    pub other: Vec<OtherView>,
    /// Workers that run there.
    pub workers: u32,
    /// Workers that are to start there.
    pub workers_pending: u32,
}

impl From<v1::ClusterNode> for NodeView {
    fn from(node: v1::ClusterNode) -> Self {
        let state = node.state.unwrap_or_default();
        let (ready, withheld) = withheld(state.withheld());
        let others = state.other.into_iter();
        Self {
            name: state.name,
            ready,
            offered: node.offered,
            withheld,
            why: node.why,
            gpu_type: node.gpu_type,
            gpu_label: state.gpu_label,
            shared_cards: state.shared_cards,
            allocatable: state.allocatable.map(AmountsView::from),
            free: state.free.map(AmountsView::from),
            levers9: state.levers9.map(AmountsView::from),
            others: state.others.map(AmountsView::from),
            reserved: state.reserved.map(AmountsView::from),
            other: others
                .map(|v1::NamedAmount { name, allocatable, free }| OtherView { name, allocatable, free })
                .collect(),
            workers: node.workers,
            workers_pending: node.workers_pending,
        }
    }
}

/// Whether a node counts as ready, and the word for why it is not offered.
fn withheld(reason: v1::WithheldReason) -> (bool, &'static str) {
    use v1::WithheldReason as R;
    match reason {
        R::Unspecified => (true, ""),
        R::Deleting => (false, "deleting"),
        R::NotReady => (false, "not-ready"),
        R::Cordoned => (true, "cordoned"),
        R::Tainted => (true, "tainted"),
        R::Unreadable => (true, "unreadable"),
        R::NoPodSlot => (true, "no-pod-slot"),
        R::NoFreeCard => (true, "no-free-card"),
    }
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

impl NodeView {
    /// `1/4 L40S`, or nothing for a node without cards.
    fn cards(&self) -> String {
        let all = self.allocatable.unwrap_or_default().cards;
        if all == 0 {
            return String::new();
        }
        let kind = if self.gpu_type.is_empty() { &self.gpu_label } else { &self.gpu_type };
        format!("{}/{all} {kind}", self.free.unwrap_or_default().cards)
    }

    /// Free of all, or nothing when it cannot be read.
    fn of(&self, show: impl Fn(&AmountsView) -> String) -> String {
        match (&self.free, &self.allocatable) {
            (Some(free), Some(all)) => format!("{}/{}", show(free), show(all)),
            (Some(free), None) => show(free),
            _ => String::new(),
        }
    }

    fn worker_count(&self) -> String {
        match self.workers_pending {
            0 => self.workers.to_string(),
            pending => format!("{}+{pending}", self.workers),
        }
    }

    fn common(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            yes_no(self.ready),
            yes_no(self.offered),
            self.cards(),
            self.of(|amounts| show_cpu(amounts.cpu_millis)),
            self.of(|amounts| show_memory(amounts.memory_bytes)),
            self.worker_count(),
        ]
    }
}

impl Listing for NodeView {
    const HEADS: &'static [&'static str] =
        &["NODE", "READY", "OFFERED", "CARDS FREE", "CPU FREE", "MEMORY FREE", "WORKERS"];
    const OPTIONAL: &'static [&'static str] = &["NODE"];

    fn cells(&self, _now: u64) -> Vec<String> {
        self.common()
    }
}

/// One node, with what is taken by whom.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct NodeWhyView(pub NodeView);

impl Listing for NodeWhyView {
    const HEADS: &'static [&'static str] = &[
        "NODE",
        "READY",
        "OFFERED",
        "CARDS FREE",
        "CPU FREE",
        "MEMORY FREE",
        "WORKERS",
        "LEVERS9",
        "OTHERS",
        "RESERVED",
        "WHY",
    ];
    const OPTIONAL: &'static [&'static str] = &["NODE"];
    const LONGEST: usize = 160;

    fn cells(&self, _now: u64) -> Vec<String> {
        let words = |amounts: Option<AmountsView>| amounts.map(AmountsView::words).unwrap_or_default();
        let Self(node) = self;
        let mut cells = node.common();
        cells.extend([words(node.levers9), words(node.others), words(node.reserved)]);
        cells.push(if node.why.is_empty() { node.withheld.to_owned() } else { node.why.clone() });
        cells
    }
}

/// A worker Job the controlplane knows nothing of.
#[derive(Debug, Serialize)]
pub struct OrphanView {
    /// The worker it was started for.
    pub worker: String,
    /// Where it is.
    pub node: String,
    /// pending, running, succeeded or failed.
    pub phase: &'static str,
    /// Why it does not start, or has failed.
    pub reason: String,
    /// How long ago it was created, in milliseconds.
    pub age_ms: u64,
}

impl From<v1::WorkerJob> for OrphanView {
    fn from(job: v1::WorkerJob) -> Self {
        use v1::JobPhase as P;
        let phase = match job.phase() {
            P::Unspecified => "",
            P::Pending => "pending",
            P::Running => "running",
            P::Succeeded => "succeeded",
            P::Failed => "failed",
        };
        Self { worker: id_text(&job.worker), node: job.node, phase, reason: job.reason, age_ms: job.age_ms }
    }
}

/// `cluster nodes`: the cluster, how old the picture is, and the nodes.
#[derive(Debug, Serialize)]
pub struct NodesView {
    /// The cluster.
    pub cluster: ClusterView,
    /// How old what follows is; `null` when nothing was reported yet.
    pub age_ms: Option<u64>,
    /// Its nodes.
    pub nodes: Vec<NodeView>,
    /// Worker Jobs the controlplane knows nothing of.
    pub orphans: Vec<OrphanView>,
}

impl From<v1::ClusterNodesAnswer> for NodesView {
    fn from(answer: v1::ClusterNodesAnswer) -> Self {
        Self {
            cluster: answer.cluster.unwrap_or_default().into(),
            age_ms: answer.age_ms,
            nodes: answer.nodes.into_iter().map(NodeView::from).collect(),
            orphans: answer.orphans.into_iter().map(OrphanView::from).collect(),
        }
    }
}

/// `why`: where a task is not, and why.
#[derive(Debug, Serialize)]
pub struct WhyView {
    /// The task.
    pub task: String,
    /// Its status.
    pub status: String,
    /// The answer in one sentence.
    pub summary: String,
    /// Place by place.
    pub places: Vec<WhyPlaceView>,
}

/// Why a task is not in one place.
#[derive(Debug, Serialize)]
pub struct WhyPlaceView {
    /// The pool.
    pub pool: String,
    /// A worker's host, a node, or empty for the pool as a whole.
    pub node: String,
    /// One word.
    pub reason: String,
    /// In words.
    pub text: String,
    /// What would free it; empty when nobody can say.
    pub frees: String,
}

impl From<v1::WhyPlace> for WhyPlaceView {
    fn from(place: v1::WhyPlace) -> Self {
        let v1::WhyPlace { pool, node, reason, text, frees } = place;
        Self { pool, node, reason, text, frees }
    }
}

impl Listing for WhyPlaceView {
    const HEADS: &'static [&'static str] = &["POOL", "NODE", "REASON", "WHY", "FREES"];
    const LONGEST: usize = 160;

    fn cells(&self, _now: u64) -> Vec<String> {
        vec![self.pool.clone(), self.node.clone(), self.reason.clone(), self.text.clone(), self.frees.clone()]
    }
}
