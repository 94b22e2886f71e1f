//! The command line of `levers9-worker`: what may be said, and what it means.

use std::path::PathBuf;

use clap::Parser;
use levers9_transport::Address;
use levers9_transport::tcp::Proxies;
use levers9_wire::token::Secret;
use levers9_wire::{quantity, valid};

use crate::containers::Config;
use crate::facts::{self, Gpus};
use crate::session::Settings;

/// Where a worker keeps its containers when nothing else is said.
const DATA: &str = "/var/lib/levers9/worker";

/// Runs containers for a levers9 controlplane. It dials out, and nobody can dial in.
#[derive(Debug, Parser)]
#[command(name = "levers9-worker", version)]
pub struct Args {
    /// The controlplane: levers9://host:443#sha256:…
    #[arg(long, env = "LEVERS9_CONTROLPLANE", value_name = "ADDRESS")]
    controlplane: Address,
    /// A file with the token; else LEVERS9_WORKER_TOKEN is read from the environment
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Keep the worker's identity here, so that a restarted machine is the same worker
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The folder for containers and their logs
    #[arg(long, value_name = "DIR", default_value = DATA)]
    data: PathBuf,
    /// The type of this machine's GPUs, as in T4 or A100-80
    #[arg(long, value_name = "TYPE", requires = "gpus")]
    gpu_type: Option<String>,
    /// How many GPUs this machine has
    #[arg(long, value_name = "N", requires = "gpu_type")]
    gpus: Option<u32>,
    /// Offer this much CPU instead of what the machine has: 4 or 500m
    #[arg(long, value_name = "CPU", value_parser = quantity::cpu_millis)]
    cpu: Option<u64>,
    /// Offer this much memory instead of what the machine has: 8Gi
    #[arg(long, value_name = "MEMORY", value_parser = quantity::memory_bytes)]
    memory: Option<u64>,
    /// The Kubernetes node this worker's pod is on
    #[arg(long, env = "LEVERS9_NODE", value_name = "NAME", default_value = "", hide_default_value = true)]
    node: String,
    /// End when the controlplane refuses this worker, instead of trying again: for a pod of its own
    #[arg(long)]
    exit_when_refused: bool,
    /// Run jobs as plain processes of this machine, without isolation
    #[arg(long)]
    allow_unisolated: bool,
}

/// What is wrong with a command line beyond its grammar.
#[derive(Debug, thiserror::Error)]
pub enum BadArgs {
    /// The token file cannot be read.
    #[error("--token-file {path:?}: {source}")]
    TokenFile {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The GPU type is not one.
    #[error("--gpu-type: {0}")]
    GpuType(#[from] valid::Invalid),
    /// Only unisolated jobs can be run.
    #[error(
        "the only runtime of this build is `process`, which does not isolate jobs from this machine or from each other; say --allow-unisolated if that is what you want"
    )]
    Unisolated,
}

impl Args {
    /// Whether the worker is to end when it is refused.
    #[must_use]
    pub fn exits_when_refused(&self) -> bool {
        self.exit_when_refused
    }

    /// The settings they mean; `token` is what the environment holds.
    ///
    /// # Errors
    /// When a file cannot be read or a value makes no sense.
    pub fn settings(self, token: Option<String>) -> Result<Settings, BadArgs> {
        if !self.allow_unisolated {
            return Err(BadArgs::Unisolated);
        }
        let token = match self.token_file {
            Some(path) => {
                let read = std::fs::read_to_string(&path);
                Some(read.map_err(|source| BadArgs::TokenFile { path, source })?)
            }
            None => token,
        };
        let kind = valid::gpu_type(&self.gpu_type.unwrap_or_default())?;
        let mut facts = facts::measure("process", &self.node, Gpus { kind, count: self.gpus.unwrap_or(0) });
        facts.cpu_millis = self.cpu.unwrap_or(facts.cpu_millis);
        facts.memory_bytes = self.memory.unwrap_or(facts.memory_bytes);
        Ok(Settings {
            address: self.controlplane,
            token: token.map(|token| Secret::new(token.trim())).filter(|token| !token.is_empty()),
            state: self.state,
            containers: Config::new(self.data, facts),
            process: crate::runtime::Settings::default(),
            tuning: crate::session::tuning(),
            proxies: Proxies::default(),
        })
    }
}
