//! The whole way of a job, as a person feels it: `levers9 run -- true` against
//! a warm local worker, beside starting the same command directly, in turns.
//! And how long `levers9 --help` takes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::report::{Better, Measure, Peer};
use crate::stats::{Spread, percentile};

/// How long `levers9 dev` may take to be ready.
const READY: Duration = Duration::from_secs(20);
/// What a job may take on top of the command itself, in milliseconds.
const JOB_GOAL_MS: f64 = 60.0;
/// What the help may take, in milliseconds.
const HELP_GOAL_MS: f64 = 10.0;

/// Measures with the `levers9` binary at `cli`.
pub(crate) fn measure(cli: &Path, quick: bool) -> Result<Vec<Measure>> {
    let (rounds, each) = if quick { (3, 15) } else { (5, 40) };
    let folder = tempfile::tempdir()?;
    let dev = Dev::start(cli, folder.path())?;
    let run = |dev: &Dev| timed(dev.command().args(["run", "--", "true"]));
    for _ in 0..3 {
        run(&dev)?;
    }
    let (mut jobs, mut bare, mut extra, mut help) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..each {
            a.push(run(&dev)?);
            b.push(timed(&mut Command::new("true"))?);
            c.push(timed(Command::new(cli).arg("--help"))?);
        }
        let (job, direct) = (median_ms(a), median_ms(b));
        jobs.push(job);
        bare.push(direct);
        extra.push(job - direct);
        help.push(median_ms(c));
    }
    Ok(vec![
        figure("job", "p50_above_fork_exec", &extra, JOB_GOAL_MS, vec![direct(&jobs, &bare)?])?,
        figure("help", "p50", &help, HELP_GOAL_MS, Vec::new())?,
    ])
}

fn figure(row: &str, metric: &str, values: &[f64], goal: f64, peers: Vec<Peer>) -> Result<Measure> {
    let ours = Spread::of(values).context("no rounds")?;
    let (row, metric) = (row.to_owned(), metric.to_owned());
    Ok(Measure { row, metric, unit: "ms", better: Better::Lower, ours, goal: Some(goal), peers })
}

/// The command started directly, for the table.
fn direct(jobs: &[f64], bare: &[f64]) -> Result<Peer> {
    let values = Spread::of(bare).context("no rounds")?;
    let ratio = Spread::of_ratios(jobs, bare).context("no rounds")?;
    Ok(Peer { name: "fork+exec".to_owned(), values, ratio, goal: None })
}

fn median_ms(mut micros: Vec<u64>) -> f64 {
    micros.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "a process does not run for centuries")]
    let median = percentile(&micros, 50) as f64;
    median / 1_000.0
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// How long a command takes from start to end, in microseconds.
fn timed(command: &mut Command) -> Result<u64> {
    let began = now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    let took = began.elapsed();
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(u64::try_from(took.as_micros()).unwrap_or(u64::MAX))
}

/// A running `levers9 dev`.
pub(crate) struct Dev {
    cli: PathBuf,
    config: PathBuf,
    process: Child,
}

impl Dev {
    pub(crate) fn start(cli: &Path, folder: &Path) -> Result<Self> {
        let data = folder.join("dev");
        let process = Command::new(cli)
            .args([
                "dev",
                "--quic",
                "127.0.0.1:0",
                "--grpc",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--data",
            ])
            .arg(&data)
            .env("HOME", folder)
            .env_remove("CONFIG_PATH")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", cli.display()))?;
        let dev = Self { cli: cli.to_owned(), config: data.join("cli").join("config"), process };
        let deadline = now() + READY;
        while !dev.config.exists() || timed(dev.command().args(["worker", "list"])).is_err() {
            if now() > deadline {
                bail!("levers9 dev was not ready after {READY:?}");
            }
            sleep(Duration::from_millis(50));
        }
        Ok(dev)
    }

    /// Its number, and where its contexts are.
    pub(crate) fn process(&self) -> (u32, &Path) {
        (self.process.id(), &self.config)
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.cli);
        command.env("CONFIG_PATH", &self.config);
        command
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}
