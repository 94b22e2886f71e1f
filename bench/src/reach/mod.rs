//! Into a container and back: what a tunnel costs beside a bare QUIC download,
//! alone and through the product; HTTP through the ingress beside nginx in
//! front of the same target; keystrokes and streams beside bulk.
//!
//! - `tunnel`: two processes that only tunnel, as [`tunnel`] says.
//! - `port_forward`: `levers9 port-forward` to a controlplane and on to its
//!   worker, both in one `levers9 dev`: two hops over QUIC.
//! - `ingress`: HTTP through the controlplane's port and the worker.
//!
//! CPU is of the processes in the middle, never of target or visitor.

mod keys;
mod load;
mod nginx;
pub(crate) mod target;
pub(crate) mod tunnel;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use levers9_wire::ContainerId;
use tokio::runtime::Runtime;

use crate::job::Dev;
use crate::report::{Better, Measure, Peer};
use crate::stats::Spread;
use crate::transport::Variant;
use crate::transport::peer::Pair;
use crate::transport::protocol::Work;
use keys::Took;
use load::{Answered, At};
use nginx::Nginx;
use tunnel::Tunnel;

/// How long to measure.
#[derive(Debug, Clone, Copy)]
struct Plan {
    rounds: usize,
    bytes: u64,
    time: Duration,
}

const FULL: Plan = Plan { rounds: 5, bytes: 1 << 30, time: Duration::from_secs(3) };
const QUICK: Plan = Plan { rounds: 2, bytes: 256 << 20, time: Duration::from_secs(1) };
/// Connections that are kept alive.
const KEPT: usize = 32;
/// Connections made one after another, side by side.
const MADE: usize = 8;

/// Measures with the `levers9` binary at `cli`.
pub(crate) fn measure(cli: &Path, nginx: &Path, quick: bool) -> Result<Vec<Measure>> {
    let plan = if quick { QUICK } else { FULL };
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let world = World::start(cli, nginx, folder.path())?;
    let mut samples = Samples::default();
    for round in 0..plan.rounds {
        writeln!(std::io::stderr(), "round {} of {}", round + 1, plan.rounds)?;
        world.round(&runtime, plan, folder.path(), &mut samples)?;
    }
    samples.measures()
}

/// Everything that runs during the measurement.
struct World {
    dev: Dev,
    nginx: Nginx,
    _target: Target,
    forward: Forward,
    container: ContainerId,
    /// The port of the target outside any container, for the bare tunnel.
    bare: u16,
    ingress: At,
}

impl World {
    fn start(cli: &Path, nginx: &Path, folder: &Path) -> Result<Self> {
        let dev = Dev::start(cli, &folder.join("levers9"))?;
        let port = free_port()?;
        let program = std::env::current_exe()?;
        let submitted = dev
            .command()
            .args(["run", "--detach", "--format", "json", "--public", "--port", &port.to_string(), "--"])
            .arg(&program)
            .args(["target", "--port", &port.to_string()])
            .output()?;
        let task: serde_json::Value = serde_json::from_slice(&submitted.stdout)
            .with_context(|| format!("levers9 run failed: {}", String::from_utf8_lossy(&submitted.stderr)))?;
        let url = task["urls"][0].as_str().context("no URL")?;
        let ingress = at(url)?;
        let container = container(&dev)?;
        let target = Target::start(&program)?;
        let nginx = Nginx::start(nginx, &folder.join("nginx"), free_port()?, port)?;
        let forward = Forward::start(&dev, container, port)?;
        Ok(Self { bare: target.port, dev, nginx, _target: target, forward, container, ingress })
    }

    fn round(&self, runtime: &Runtime, plan: Plan, folder: &Path, samples: &mut Samples) -> Result<()> {
        let gb = plan.bytes as f64 / 1e9;
        let mut pair = Pair::start(Variant::Quinn, folder)?;
        let bare = pair.work(Work::Bulk { streams: 1, bytes: plan.bytes })?;
        drop(pair);
        samples.quinn.push(bare.cpu_us as f64 / 1e6 / gb);
        let mut tunnel = Tunnel::start(folder, self.bare)?;
        let through = At { address: tunnel.listener, path: "/".to_owned() };
        runtime.block_on(through.download(32 << 20))?;
        let before = tunnel.cpu_us()?;
        runtime.block_on(through.download(plan.bytes))?;
        samples.tunnel.push((tunnel.cpu_us()? - before) as f64 / 1e6 / gb);
        drop(tunnel);
        let (dev, _) = self.dev.process();
        let forwarded = At { address: self.forward.at, path: "/".to_owned() };
        let used = || Ok::<_, anyhow::Error>(cpu_s(dev)? + cpu_s(self.forward.process.id())?);
        runtime.block_on(forwarded.download(32 << 20))?;
        let before = used()?;
        runtime.block_on(forwarded.download(plan.bytes))?;
        samples.forward.push((used()? - before) / gb);
        let before = cpu_s(dev)?;
        runtime.block_on(self.ingress.download(plan.bytes))?;
        samples.ingress.push((cpu_s(dev)? - before) / gb);
        self.requests(runtime, plan, samples)?;
        let (_, config) = self.dev.process();
        samples.keys.push(keys::press(config, self.container, false, plan.time)?);
        samples.keys_beside.push(keys::press(config, self.container, true, plan.time)?);
        Ok(())
    }

    fn requests(&self, runtime: &Runtime, plan: Plan, samples: &mut Samples) -> Result<()> {
        let (dev, _) = self.dev.process();
        let peer = At { address: self.nginx.at, path: "/".to_owned() };
        for (at, pid, kept, made, first) in [
            (&self.ingress, dev, &mut samples.kept, &mut samples.made, &mut samples.first),
            (
                &peer,
                self.nginx.pid(),
                &mut samples.nginx_kept,
                &mut samples.nginx_made,
                &mut samples.nginx_first,
            ),
        ] {
            runtime.block_on(at.keep_alive(KEPT, Duration::from_millis(200)))?;
            let before = cpu_s(pid)?;
            let answered = runtime.block_on(at.keep_alive(KEPT, plan.time))?;
            kept.push((answered, (cpu_s(pid)? - before) * 1e6 / answered.count as f64));
            made.push(runtime.block_on(at.one_each(MADE, plan.time))?);
            first.push(runtime.block_on(at.one_each(1, plan.time / 3))?);
        }
        Ok(())
    }
}

/// What came of the rounds.
#[derive(Default)]
struct Samples {
    quinn: Vec<f64>,
    tunnel: Vec<f64>,
    forward: Vec<f64>,
    ingress: Vec<f64>,
    kept: Vec<(Answered, f64)>,
    nginx_kept: Vec<(Answered, f64)>,
    made: Vec<Answered>,
    nginx_made: Vec<Answered>,
    first: Vec<Answered>,
    nginx_first: Vec<Answered>,
    keys: Vec<Took>,
    keys_beside: Vec<Took>,
}

/// One figure: its row, its name, unit, direction, what levers9's own value has to reach.
type Head = (&'static str, &'static str, &'static str, Better, Option<f64>);

impl Samples {
    fn measures(&self) -> Result<Vec<Measure>> {
        use Better::{Higher, Lower};
        let quinn = |goal| Some(("quinn", self.quinn.clone(), goal));
        let per_s = |answered: &Answered| answered.count as f64 / answered.wall_s;
        let each = |of: &[Answered], pick: fn(&Answered) -> f64| of.iter().map(pick).collect::<Vec<_>>();
        let kept = |of: &[(Answered, f64)], pick: fn(&Answered) -> f64| {
            of.iter().map(|(answered, _)| pick(answered)).collect::<Vec<_>>()
        };
        let cpu = |of: &[(Answered, f64)]| of.iter().map(|(_, cpu)| *cpu).collect::<Vec<_>>();
        let nginx = |values| Some(("nginx", values, None));
        let took = |of: &[Took], pick: fn(&Took) -> f64| of.iter().map(pick).collect::<Vec<_>>();
        let all = [
            figure(("tunnel", "cpu_s_per_gb", "CPU-s/GB", Lower, None), &self.tunnel, quinn(Some(1.35))),
            figure(
                ("port_forward", "cpu_s_per_gb", "CPU-s/GB", Lower, None),
                &self.forward,
                quinn(Some(2.6)),
            ),
            figure(("ingress_download", "cpu_s_per_gb", "CPU-s/GB", Lower, None), &self.ingress, quinn(None)),
            figure(
                ("keep_alive", "per_s", "1/s", Higher, None),
                &kept(&self.kept, per_s),
                nginx(kept(&self.nginx_kept, per_s)),
            ),
            figure(
                // A stall of Nagle's and a delayed acknowledgement is 40 ms.
                ("keep_alive", "p99_ms", "ms", Lower, Some(20.0)),
                &kept(&self.kept, |a| a.p99_ms),
                nginx(kept(&self.nginx_kept, |a| a.p99_ms)),
            ),
            figure(
                ("keep_alive", "cpu_us", "CPU µs each", Lower, None),
                &cpu(&self.kept),
                nginx(cpu(&self.nginx_kept)),
            ),
            figure(
                ("connection_each", "per_s", "1/s", Higher, None),
                &each(&self.made, per_s),
                nginx(each(&self.nginx_made, per_s)),
            ),
            figure(
                ("connect_and_answer", "p50_ms", "ms", Lower, None),
                &each(&self.first, |a| a.p50_ms),
                nginx(each(&self.nginx_first, |a| a.p50_ms)),
            ),
            figure(("keystroke", "p50_ms", "ms", Lower, None), &took(&self.keys, |t| t.key_p50_ms), None),
            figure(("keystroke", "p99_ms", "ms", Lower, None), &took(&self.keys, |t| t.key_p99_ms), None),
            figure(
                ("beside_bulk", "keystroke_p99_ms", "ms", Lower, None),
                &took(&self.keys_beside, |t| t.key_p99_ms),
                None,
            ),
            figure(
                ("beside_bulk", "stream_p99_ms", "ms", Lower, None),
                &took(&self.keys_beside, |t| t.ping_p99_ms),
                None,
            ),
            figure(
                ("beside_bulk", "bulk_mb_per_s", "MB/s", Higher, None),
                &took(&self.keys_beside, |t| t.bulk_mb_s),
                None,
            ),
        ];
        all.into_iter().collect()
    }
}

fn figure(head: Head, ours: &[f64], peer: Option<(&str, Vec<f64>, Option<f64>)>) -> Result<Measure> {
    let (row, metric, unit, better, goal) = head;
    let spread = Spread::of(ours).context("no rounds")?;
    let peers = match peer {
        None => Vec::new(),
        Some((name, theirs, goal)) => vec![Peer {
            name: name.to_owned(),
            values: Spread::of(&theirs).context("no rounds")?,
            ratio: Spread::of_ratios(ours, &theirs).context("a round is missing")?,
            goal,
        }],
    };
    Ok(Measure { row: row.to_owned(), metric: metric.to_owned(), unit, better, ours: spread, goal, peers })
}

/// The target outside any container.
struct Target {
    process: Child,
    port: u16,
}

impl Target {
    fn start(program: &Path) -> Result<Self> {
        let mut process = Command::new(program)
            .args(["target", "--port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("no stdout")?).read_line(&mut line)?;
        Ok(Self { process, port: line.trim().parse()? })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// A running `levers9 port-forward`.
struct Forward {
    process: Child,
    at: SocketAddr,
}

impl Forward {
    fn start(dev: &Dev, container: ContainerId, port: u16) -> Result<Self> {
        let mut process = dev
            .command()
            .args(["port-forward", "--format", "json", &container.to_string(), &format!("0:{port}")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("no stdout")?).read_line(&mut line)?;
        let said: serde_json::Value =
            serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))?;
        let at = said["local"].as_str().context("no local address")?.parse()?;
        Ok(Self { process, at })
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// The one container there is, once it runs.
fn container(dev: &Dev) -> Result<ContainerId> {
    for _ in 0..100 {
        let listed = dev.command().args(["container", "list", "--format", "json"]).output()?;
        let list: serde_json::Value = serde_json::from_slice(&listed.stdout)?;
        if list[0]["state"] == "running" {
            return Ok(list[0]["id"].as_str().context("no id")?.parse()?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("the container does not run")
}

/// Where a URL leads.
fn at(url: &str) -> Result<At> {
    let rest = url.strip_prefix("http://").with_context(|| format!("{url:?} is not http"))?;
    let (address, path) = rest.split_once('/').context("no path")?;
    Ok(At { address: address.parse()?, path: format!("/{path}") })
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// What a process has used of the CPU, in seconds, to a hundredth.
fn cpu_s(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(')').context("no name in stat")?.1;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |index: usize| -> Result<u64> { Ok(fields.get(index).context("a short stat")?.parse()?) };
    // User and system time, in ticks of which Linux shows a hundred a second.
    Ok((ticks(11)? + ticks(12)?) as f64 / 100.0)
}
