//! The command line of `levers9-agent`, as the join manifest writes it: what
//! may be said, and what it means.

use std::path::PathBuf;

use clap::Parser;
use levers9_transport::Address;
use levers9_transport::quic::Settings as Tuning;
use levers9_transport::tcp::Proxies;
use levers9_wire::{ClusterId, valid};

use crate::agent::Settings;
use crate::picture::lent::Lent;
use crate::template::{self, Flavor, Runtime};

/// Where the manifest puts the cluster's token.
const TOKEN_FILE: &str = "/var/run/levers9/token";

/// Lends a Kubernetes cluster's nodes to a levers9 controlplane. It dials out, and nobody can dial in.
#[derive(Debug, Parser)]
#[command(
    name = "levers9-agent",
    version,
    after_help = "`levers9-agent probe` says how the agent beside it is; see its own --help."
)]
pub struct Args {
    /// The controlplane: levers9://host:443#sha256:…
    #[arg(long, env = "LEVERS9_CONTROLPLANE", value_name = "ADDRESS")]
    controlplane: Address,
    /// The id of the cluster this agent is of
    #[arg(long, value_name = "ID")]
    cluster: ClusterId,
    /// The namespace it works in, and the only one it creates workers in
    #[arg(long, value_name = "NS")]
    namespace: String,
    /// A file with the cluster's token, read at every attempt to connect
    #[arg(long, value_name = "FILE", default_value = TOKEN_FILE)]
    token_file: PathBuf,
    /// Lend only nodes with this label: key=value, key=in (a,b) or key; may be given several times
    #[arg(long, value_name = "ITEM")]
    selector: Vec<String>,
    /// The image repository workers are started from, without tag or digest
    #[arg(long, value_name = "REPOSITORY")]
    image_repository: String,
    /// The cloud the cluster is in, which decides what workers tolerate
    #[arg(long, value_name = "FLAVOR")]
    flavor: Option<Flavor>,
    /// What workers run jobs with
    #[arg(long, value_name = "RUNTIME", default_value = "process")]
    runtime: Runtime,
    /// The Secret that workers' images are pulled with
    #[arg(long, value_name = "NAME")]
    pull_secret: Option<String>,
    /// Leave signs of life here, for `levers9-agent probe`
    #[arg(long, value_name = "DIR")]
    signs: Option<PathBuf>,
}

/// What is wrong with a command line beyond its grammar.
#[derive(Debug, thiserror::Error)]
pub enum BadArgs {
    /// A repository with a tag, a digest, or characters that none has.
    #[error("--image-repository {0:?} is not an image's reference without tag and digest")]
    Repository(String),
    /// Not the name of a namespace.
    #[error("--namespace {0:?} is not the name of a namespace")]
    Namespace(String),
}

impl Args {
    /// The settings they mean. A selector that cannot be read is no error: the
    /// agent runs, lends nothing and says why.
    ///
    /// # Errors
    /// When a value makes no sense.
    pub fn settings(self) -> Result<Settings, BadArgs> {
        let repository = self.image_repository;
        if valid::image(repository.clone()).is_err() || valid::repository(&repository) != repository {
            return Err(BadArgs::Repository(repository));
        }
        if valid::node_name(&self.namespace).is_err() || self.namespace.contains('.') {
            return Err(BadArgs::Namespace(self.namespace));
        }
        Ok(Settings {
            token_file: self.token_file,
            lent: Lent::read(&self.selector),
            repository,
            workers: template::Settings {
                cluster: self.cluster,
                namespace: self.namespace,
                flavor: self.flavor,
                runtime: self.runtime,
                pull_secret: self.pull_secret.filter(|name| !name.is_empty()),
                controlplane: self.controlplane.to_string(),
            },
            kubernetes: None,
            signs: self.signs,
            address: self.controlplane,
            tuning: Tuning::default(),
            proxies: Proxies::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const LEAST: [&str; 9] = [
        "levers9-agent",
        "--controlplane",
        "levers9://control.example:443",
        "--cluster",
        "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a",
        "--namespace",
        "levers9",
        "--image-repository",
        "r.example:5000/levers9/worker",
    ];

    fn settings(more: &[&str]) -> Result<Settings, BadArgs> {
        Args::try_parse_from(LEAST.iter().chain(more)).expect("the grammar is right").settings()
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let settings = settings(&[]).unwrap();
        assert_eq!(settings.token_file.to_str(), Some(TOKEN_FILE));
        assert_eq!(settings.workers.runtime, Runtime::Process);
        assert_eq!((settings.workers.flavor, settings.workers.pull_secret), (None, None));
        assert!(settings.lent.matches(&BTreeMap::new()));
        assert_eq!(settings.workers.controlplane, "levers9://control.example:443");
    }

    #[test]
    fn selectors_are_whole_items_and_a_bad_one_lends_nothing() {
        let labels = BTreeMap::from([("pool".to_owned(), "b".to_owned())]);
        let lent = |items: &[&str]| settings(items).unwrap().lent.matches(&labels);
        assert!(lent(&["--selector", "pool=in (a,b)", "--selector", "pool"]));
        assert!(!lent(&["--selector", "pool=a"]));
        assert!(!lent(&["--selector", "pool in (a,b)"]));
        assert!(!lent(&["--selector", ""]));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let with = |index: usize, value: &'static str| {
            let mut args = LEAST;
            args[index] = value;
            Args::try_parse_from(args).map(Args::settings)
        };
        assert!(with(2, "https://a").is_err() && with(4, "c1").is_err());
        for bad in ["r.example/worker:1", "a b", "", "r.example/worker@sha256:00"] {
            assert!(matches!(with(8, bad), Ok(Err(BadArgs::Repository(_)))), "{bad}");
        }
        for bad in ["", "Levers9", "a.b", "a/b"] {
            assert!(matches!(with(6, bad), Ok(Err(BadArgs::Namespace(_)))), "{bad}");
        }
    }
}
