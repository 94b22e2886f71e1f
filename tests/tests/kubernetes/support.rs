//! A Kubernetes cluster, a controlplane, and the first attached to the second.

use std::time::Duration;

use levers9_tests::kube::{Cluster, Kubelet, Setup};
use levers9_tests::live::tail;
use levers9_tests::wait;
use levers9_tests::world::{self, Backend, World};
use levers9_tests::{Live, Output};
use serde_json::Value;

/// The longest that anything of a cluster's own may take.
pub(crate) const SOON: Duration = Duration::from_secs(40);
/// The label by which cards are known.
pub(crate) const PRODUCT: &str = "nvidia.com/gpu.product";
/// The image that workers and agents run from.
pub(crate) const IMAGE: &str = "registry.example/levers9-worker:test";
/// Where the agent and its workers are, unless a test says otherwise.
pub(crate) const NAMESPACE: &str = "levers9";

/// A cluster of one's own, with a controlplane beside it.
pub(crate) struct Site {
    // First: nothing of it is to be told to a controlplane that is gone.
    pub(crate) kubelet: Kubelet,
    pub(crate) world: World,
    pub(crate) cluster: Cluster,
}

/// A node to be made: its name, its cards and what they are called.
pub(crate) type NodeSpec<'a> = (&'a str, u32, &'a str);

impl Site {
    /// A cluster of these nodes and a controlplane, which do not know each other.
    pub(crate) fn new(nodes: &[NodeSpec<'_>]) -> Self {
        Self::with(nodes, Setup::default(), world::Setup::default())
    }

    pub(crate) fn with(nodes: &[NodeSpec<'_>], setup: Setup, world: world::Setup) -> Self {
        Self::on(Backend::Sqlite, nodes, setup, world)
    }

    pub(crate) fn on(
        backend: Backend,
        nodes: &[NodeSpec<'_>],
        setup: Setup,
        mut world: world::Setup,
    ) -> Self {
        let cluster = Cluster::start_with(setup);
        for (name, cards, product) in nodes {
            add_node(&cluster, name, *cards, product);
        }
        let names: Vec<&str> = nodes.iter().map(|(name, ..)| *name).collect();
        let kubelet = Kubelet::start(&cluster, &names);
        if !world.config.contains("worker:") {
            world.config.push_str(&format!("\nworker:\n  image: {IMAGE}\n"));
        }
        Self { kubelet, world: World::start_with(backend, world), cluster }
    }

    /// The same with the cluster attached as `lab`.
    pub(crate) fn joined(nodes: &[NodeSpec<'_>], gpu: &str) -> Self {
        let site = Self::new(nodes);
        let _nodes = site.join("lab", gpu, &[]).ok();
        site
    }

    /// `levers9 …` with the kubeconfig of the cluster.
    pub(crate) fn kube(&self, args: &[&str]) -> Output {
        Output::of(self.kube_command(args))
    }

    pub(crate) fn kube_spawn(&self, args: &[&str]) -> Live {
        Live::spawn(self.kube_command(args))
    }

    fn kube_command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.world.home.command("levers9", args);
        command.env("KUBECONFIG", self.cluster.kubeconfig());
        command
    }

    /// `levers9 cluster join NAME --gpu GPU …`
    pub(crate) fn join(&self, name: &str, gpu: &str, more: &[&str]) -> Output {
        let mut args = vec!["cluster", "join", name, "--gpu", gpu, "--timeout", "45"];
        args.extend(more);
        self.kube(&args)
    }

    /// What `levers9 … --format json` prints.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let mut args = args.to_vec();
        args.extend(["--format", "json"]);
        self.world.cli(&args).ok().json()
    }

    /// The row of a cluster in `cluster list`, once it is as wanted.
    pub(crate) fn wait_cluster(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait::until(&format!("cluster {name}: {what}"), SOON, || {
            let rows = self.json(&["cluster", "list"]);
            let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["name"] == name));
            match row {
                Some(row) if wanted(row) => Ok(row.clone()),
                other => Err(format!("{other:#?}")),
            }
        })
    }

    /// The row of a node in `cluster nodes`, once it is as wanted.
    pub(crate) fn wait_node(
        &self,
        cluster: &str,
        node: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        wait::until(&format!("node {node}: {what}"), SOON, || {
            let answer = self.json(&["cluster", "nodes", cluster]);
            let row = answer["nodes"]
                .as_array()
                .and_then(|rows| rows.iter().find(|row| row["name"] == node).cloned());
            match row {
                Some(row) if wanted(&row) => Ok(row),
                _ => Err(format!("{answer:#}")),
            }
        })
    }

    /// The pods of workers in the namespace, by name.
    pub(crate) fn worker_pods(&self) -> Vec<Value> {
        let pods = self.cluster.api().list_where("pods", NAMESPACE, "levers9/worker");
        pods.expect("pods are listed")
    }

    /// Waits until there is one worker pod and it is as wanted.
    pub(crate) fn wait_worker_pod(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait::until(&format!("a worker's pod {what}"), SOON, || {
            let pods = self.worker_pods();
            pods.iter().find(|pod| wanted(pod)).cloned().ok_or_else(|| format!("{pods:#?}"))
        })
    }

    /// Waits until no worker's pod is left.
    pub(crate) fn wait_no_worker_pods(&self) {
        wait::until("no worker's pod is left", SOON, || {
            let pods = self.worker_pods();
            if pods.is_empty() { Ok(()) } else { Err(format!("{pods:#?}")) }
        });
    }

    /// The name of the agent's pod, once it runs.
    pub(crate) fn agent_pod(&self) -> String {
        wait::until("the agent's pod runs", SOON, || {
            let pods = self.cluster.api().list("pods", NAMESPACE).map_err(|refused| refused.to_string())?;
            let running = pods.iter().find(|pod| {
                name(pod).starts_with("levers9-agent")
                    && pod["status"]["phase"] == "Running"
                    && pod["metadata"]["deletionTimestamp"].is_null()
            });
            running.map(|pod| name(pod).to_owned()).ok_or_else(|| format!("{pods:#?}"))
        })
    }
}

impl Drop for Site {
    /// What a failure leaves to read.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        eprintln!("--- controlplane\n{}", tail(&self.world.controlplane.log(), 4000));
        for pod in self.cluster.api().list("pods", NAMESPACE).unwrap_or_default() {
            let name = name(&pod);
            eprintln!("--- pod {name}: {}\n{}", pod["status"], tail(&self.kubelet.log(name), 4000));
        }
    }
}

/// Makes a node that has so many cards.
pub(crate) fn add_node(cluster: &Cluster, name: &str, cards: u32, product: &str) {
    let mut node = cluster.node(name).allocatable("cpu", "8").allocatable("memory", "32Gi");
    // Clouds give hosts names of their own, and sometimes twice the same.
    node = node.label("kubernetes.io/hostname", "ip-10-0-0-1");
    if cards > 0 {
        node = node.allocatable("nvidia.com/gpu", cards).label(PRODUCT, product).taint(
            "nvidia.com/gpu",
            "present",
            "NoSchedule",
        );
    }
    node.create();
}

/// An object's name.
pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}
