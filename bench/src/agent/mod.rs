//! The agent in a cluster of 5,000 nodes and 50,000 pods, beside what a plain
//! controller does: kube's `reflector` with whole objects.
//!
//! Both are processes of their own and look at the same double of an API server
//! (HTTP over TLS, pages of a list, watches) in which the same things happen:
//!
//! - pods change 50 times a second; half of it is turnover (a pod ends, another
//!   comes in its place; every pod is replaced once in some four hours), half
//!   statuses that change nothing that is counted;
//! - each node's kubelet says every 5 minutes that it lives;
//! - changes come evenly spaced, which wakes a watcher most often.
//!
//! Every node is lent, each fourth has 8 cards, each twentieth runs a worker of
//! the agent. The reflector neither counts nor reports. Reports go to a
//! controlplane's side in this process that reads and answers them.
//!
//! - `start`: from the start of the process until the first report of the whole
//!   cluster has come; of the peer, until both its stores are complete. The
//!   peak is the process's largest resident size until then.
//! - `steady`: both at once, in slices of `--duration`.

mod double;
mod objects;
pub(crate) mod reflector;
mod sink;
mod template;
mod world;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use levers9_transport::cert::Authority;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::Format;
use crate::process::{Helper, Usage, peak_kib};
use crate::report::{Better, Measure, Peer};
use crate::stats::Spread;
use crate::transport::open_authority;
use double::{Door, Double};
use reflector::Listed;
use sink::{Reports, Sink};
use world::Size;

/// The most memory an agent may have, in MB.
const MEMORY_GOAL_MB: f64 = 200.0;
/// The most of a core it may use in steady state, in percent.
const CPU_GOAL: f64 = 5.0;
/// How long either may take to know its cluster.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long both run before their steady state is measured.
const SETTLE: Duration = Duration::from_secs(15);
/// Parts of the duration, for the spread.
const SLICES: u32 = 6;

/// What to measure.
#[derive(Debug, Parser)]
pub(crate) struct AgentArgs {
    /// The `levers9-agent` binary
    #[arg(long, value_name = "FILE")]
    agent: PathBuf,
    /// Nodes of the cluster
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: u32,
    /// Pods of the cluster
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pods: u32,
    /// Changes of pods a second
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(..=10_000))]
    events: u32,
    /// Seconds of steady state
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(6..=86_400))]
    duration: u32,
    /// Starts of each of the two
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    starts: u32,
    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// Measures.
pub(crate) fn measure(args: &AgentArgs) -> Result<Vec<Measure>> {
    ensure!(args.agent.is_file(), "--agent {}: there is no such file", args.agent.display());
    let folder = tempfile::tempdir()?;
    let stage = Stage::build(args, folder.path())?;
    let mut samples = Samples::default();
    // In turns, in reverse order every other time, and never both at once.
    for start in 1..args.starts {
        say(&format!("start {start} of {}", args.starts))?;
        if start % 2 == 1 {
            drop(stage.start_agent(&mut samples)?);
            drop(stage.start_peer(&mut samples)?);
        } else {
            drop(stage.start_peer(&mut samples)?);
            drop(stage.start_agent(&mut samples)?);
        }
    }
    // The last ones stay.
    say(&format!("start {} of {}", args.starts, args.starts))?;
    let agent = stage.start_agent(&mut samples)?;
    let peer = stage.start_peer(&mut samples)?;
    say(&format!("steady state, {} s", args.duration))?;
    stage.steady(agent.0.id(), peer.id(), args.duration, &mut samples)?;
    samples.measures()
}

/// Everything around the two that are measured.
struct Stage {
    runtime: Runtime,
    folder: PathBuf,
    agent: PathBuf,
    controlplane: String,
    size: Size,
    sink: Sink,
    agents_door: Door,
    peers_door: Door,
    living: AbortHandle,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.living.abort();
    }
}

impl Stage {
    fn build(args: &AgentArgs, folder: &Path) -> Result<Self> {
        let size = Size { nodes: args.nodes, pods: args.pods };
        let authority = open_authority(folder)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let double = Double::new(size)?;
        let living = runtime.spawn(Arc::clone(&double).live(f64::from(args.events), args.nodes));
        let (sink, agents_door, peers_door) = runtime.block_on(async {
            let sink = Sink::listen(&authority, usize::try_from(args.nodes)?)?;
            anyhow::Ok((sink, double.listen(&authority).await?, double.listen(&authority).await?))
        })?;
        fs::write(folder.join("token"), "a.bearer.token")?;
        for (name, door) in [("agent", &agents_door), ("peer", &peers_door)] {
            fs::write(folder.join(name), kubeconfig(folder, door))?;
        }
        Ok(Self {
            runtime,
            folder: folder.to_owned(),
            agent: args.agent.clone(),
            controlplane: controlplane(&authority, &sink),
            size,
            sink,
            agents_door,
            peers_door,
            living: living.abort_handle(),
        })
    }

    /// Starts an agent, and waits until it has told of the whole cluster.
    fn start_agent(&self, samples: &mut Samples) -> Result<Running> {
        let mut reports = self.sink.reports.clone();
        let before = reports.borrow().whole;
        let began = Instant::now();
        let process = Command::new(&self.agent)
            // No proxy and no setting of whoever runs this.
            .env_clear()
            .env("KUBECONFIG", self.folder.join("agent"))
            .env("LEVERS9_LOG", "warn")
            .args(["--controlplane", &self.controlplane, "--cluster", objects::CLUSTER])
            .args(["--namespace", objects::NAMESPACE, "--image-repository", objects::REPOSITORY])
            .arg("--token-file")
            .arg(self.folder.join("token"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", self.agent.display()))?;
        let running = Running(process);
        let whole = async { reports.wait_for(|reports| reports.whole > before).await.map(drop) };
        if self.runtime.block_on(async { timeout(PATIENCE, whole).await }).is_err() {
            let Reports { count, problem, .. } = self.sink.reports.borrow().clone();
            bail!(
                "the agent did not tell of the whole cluster in {PATIENCE:?}: {count} reports, {problem:?}"
            );
        }
        samples.start.push(seconds(began.elapsed()));
        samples.peak.push(megabytes(peak_kib(running.0.id())?));
        Ok(running)
    }

    /// Starts the peer, and waits until it has listed everything.
    fn start_peer(&self, samples: &mut Samples) -> Result<Helper> {
        let file = self.folder.join("peer");
        let began = Instant::now();
        let mut peer = Helper::start(["reflector".as_ref(), "--kubeconfig".as_ref(), file.as_os_str()])?;
        let Listed { nodes, pods } = peer.listen()?;
        samples.peers_start.push(seconds(began.elapsed()));
        samples.peers_peak.push(megabytes(peak_kib(peer.id())?));
        let Size { nodes: all_nodes, pods: all_pods } = self.size;
        // A few pods may be gone while they are replaced.
        let complete = nodes == usize::try_from(all_nodes)? && pods + 100 > usize::try_from(all_pods)?;
        ensure!(complete, "the peer listed {nodes} nodes and {pods} pods of {all_nodes} and {all_pods}");
        Ok(peer)
    }

    /// What both use while nothing but the usual happens.
    fn steady(&self, agent: u32, peer: u32, duration: u32, samples: &mut Samples) -> Result<()> {
        let pause = |time| self.runtime.block_on(async { sleep(time).await });
        pause(SETTLE);
        let mut before = self.look(agent, peer)?;
        for _ in 0..SLICES {
            pause(Duration::from_secs(duration.into()) / SLICES);
            let after = self.look(agent, peer)?;
            samples.slice(&before, &after);
            before = after;
        }
        samples.last_peak = megabytes(peak_kib(agent)?);
        let problem = &before.reports.problem;
        ensure!(problem.is_empty(), "the agent's last report has a problem: {problem}");
        Ok(())
    }

    fn look(&self, agent: u32, peer: u32) -> Result<Look> {
        let of = |pid, name| Usage::of(pid).with_context(|| format!("the {name} has ended"));
        Ok(Look {
            at: Instant::now(),
            agent: of(agent, "agent")?,
            peer: of(peer, "peer")?,
            sent: self.agents_door.sent(),
            peers_sent: self.peers_door.sent(),
            reports: self.sink.reports.borrow().clone(),
        })
    }
}

fn controlplane(authority: &Authority, sink: &Sink) -> String {
    format!("levers9://{}#{}", sink.address, authority.pin())
}

/// A way to a door, as JSON, which YAML includes.
fn kubeconfig(folder: &Path, door: &Door) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{ "name": "bench", "cluster": {
            "server": format!("https://{}", door.address), "certificate-authority": folder.join("ca.pem"),
        } }],
        "users": [{ "name": "bench", "user": { "tokenFile": folder.join("token") } }],
        "contexts": [{ "name": "bench", "context": { "cluster": "bench", "user": "bench" } }],
    })
    .to_string()
}

/// An agent; killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// How things are at one moment.
#[derive(Debug)]
struct Look {
    at: Instant,
    agent: Usage,
    peer: Usage,
    sent: u64,
    peers_sent: u64,
    reports: Reports,
}

/// Everything that was measured, by start or slice.
#[derive(Debug, Default)]
struct Samples {
    start: Vec<f64>,
    peers_start: Vec<f64>,
    peak: Vec<f64>,
    peers_peak: Vec<f64>,
    last_peak: f64,
    rss: Vec<f64>,
    peers_rss: Vec<f64>,
    cpu: Vec<f64>,
    peers_cpu: Vec<f64>,
    read: Vec<f64>,
    peers_read: Vec<f64>,
    reports: Vec<f64>,
    report_kb: Vec<f64>,
}

impl Samples {
    #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are small")]
    fn slice(&mut self, before: &Look, after: &Look) {
        let seconds = seconds(after.at - before.at);
        let cpu = |before: Usage, after: Usage| (after.cpu_us - before.cpu_us) as f64 / 1e6 / seconds * 100.0;
        self.cpu.push(cpu(before.agent, after.agent));
        self.peers_cpu.push(cpu(before.peer, after.peer));
        self.rss.push(megabytes(after.agent.rss_kib));
        self.peers_rss.push(megabytes(after.peer.rss_kib));
        self.read.push((after.sent - before.sent) as f64 / 1e3 / seconds);
        self.peers_read.push((after.peers_sent - before.peers_sent) as f64 / 1e3 / seconds);
        let count = (after.reports.count - before.reports.count) as f64;
        self.reports.push(count / seconds);
        self.report_kb.push((after.reports.bytes - before.reports.bytes) as f64 / 1e3 / count.max(1.0));
    }

    fn measures(&self) -> Result<Vec<Measure>> {
        let peer = |values: &[f64]| Some(values.to_vec());
        let (memory, cpu) = (Some(MEMORY_GOAL_MB), Some(CPU_GOAL));
        let all = [
            figure(("start", "first_report_s", "s", None), &self.start, peer(&self.peers_start)),
            figure(("start", "peak_rss_mb", "MB", memory), &self.peak, peer(&self.peers_peak)),
            figure(("steady", "rss_mb", "MB", memory), &self.rss, peer(&self.peers_rss)),
            figure(("steady", "peak_rss_mb", "MB", memory), &[self.last_peak], None),
            figure(("steady", "cpu_percent", "% of a core", cpu), &self.cpu, peer(&self.peers_cpu)),
            figure(("steady", "api_kb_per_s", "KB/s", None), &self.read, peer(&self.peers_read)),
            figure(("steady", "reports_per_s", "1/s", None), &self.reports, None),
            figure(("steady", "report_kb", "KB", None), &self.report_kb, None),
        ];
        all.into_iter().collect()
    }
}

/// Row, metric, unit and goal; less is better in all of them.
type Head = (&'static str, &'static str, &'static str, Option<f64>);

fn figure(head: Head, ours: &[f64], theirs: Option<Vec<f64>>) -> Result<Measure> {
    let (row, metric, unit, goal) = head;
    let peer = |theirs: Vec<f64>| {
        Ok::<_, anyhow::Error>(Peer {
            name: "kube reflector".to_owned(),
            values: Spread::of(&theirs).context("nothing was measured")?,
            ratio: Spread::of_ratios(ours, &theirs).context("a sample is missing")?,
            goal: None,
        })
    };
    Ok(Measure {
        row: format!("agent_{row}"),
        metric: metric.to_owned(),
        unit,
        better: Better::Lower,
        ours: Spread::of(ours).context("nothing was measured")?,
        goal,
        peers: theirs.map(peer).transpose()?.into_iter().collect(),
    })
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// From KiB.
#[expect(clippy::cast_precision_loss, reason = "no process has so much memory")]
fn megabytes(kib: u64) -> f64 {
    (kib * 1024) as f64 / 1e6
}

fn say(what: &str) -> Result<()> {
    Ok(writeln!(io::stderr(), "{what}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_counted_by_the_second() {
        let look = |at, cpu_us, sent, count| Look {
            at,
            agent: Usage { cpu_us, rss_kib: 1_000 },
            peer: Usage { cpu_us: 4 * cpu_us, rss_kib: 4_000 },
            sent,
            peers_sent: sent,
            reports: Reports { count, bytes: 500_000 * count, ..Reports::default() },
        };
        let began = Instant::now();
        let mut samples = Samples::default();
        let two_later = look(began + Duration::from_secs(2), 150_000, 1_000_000, 4);
        samples.slice(&look(began, 50_000, 0, 2), &two_later);
        let spread = |values: &[f64]| Spread::of(values).map(|spread| spread.median);
        assert_eq!(spread(&samples.cpu), Some(5.0));
        assert_eq!(spread(&samples.peers_cpu), Some(20.0));
        assert_eq!(spread(&samples.read), Some(500.0));
        assert_eq!((spread(&samples.reports), spread(&samples.report_kb)), (Some(1.0), Some(500.0)));
        assert_eq!(spread(&samples.rss), Some(1.024));
    }
}
