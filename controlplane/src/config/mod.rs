//! The controlplane's configuration: one YAML file with the documents' key
//! names, and two things the environment may say instead. A [`Config`] has
//! been checked, or it does not exist: it comes from [`Config::load`], or from
//! [`Values`] that a program filled in (`levers9 dev`), and cannot be changed.
//!
//! Everything that is wrong is told at once, with line, key and what to write
//! instead. Nothing here opens a port or a database, creates a file or a key,
//! or ever shows a secret. Relative paths count from the working folder.

mod check;
mod keys;
mod read;
mod report;
mod section;
#[cfg(test)]
mod tests;
mod yaml;

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use levers9_transport::{Address, Settings, Trust};
use levers9_wire::token::Secret;

use crate::ingress::route::Suffix;

use crate::store::DEFAULT_POOL_SIZE;
use report::Report;
pub use report::{ConfigError, Problems};

/// The variable that wins over `controlplane.auth.bootstrapSecret`.
pub const BOOTSTRAP_SECRET: &str = "LEVERS9_BOOTSTRAP_SECRET";
/// Where data goes when nothing is said.
pub const DEFAULT_DATA: &str = "/var/lib/levers9";
/// How long a drain lasts when nothing is said.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(60);
/// No drain may be longer.
pub(crate) const MAX_DRAIN: Duration = Duration::from_secs(3600);
/// No configuration is longer.
const MAX_FILE: u64 = 1 << 20;

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct Config(Values);

/// What a configuration says, before it is checked.
#[derive(Debug, Clone)]
pub struct Values {
    /// The folder for everything kept on this machine.
    pub data: PathBuf,
    /// The database's URL; it may hold a password.
    pub database: Secret,
    /// The most connections to the database.
    pub database_pool: u32,
    /// Where sessions come in, over UDP.
    pub quic: SocketAddr,
    /// Where those come in whom UDP does not reach.
    pub tcp: TcpListen,
    /// Where the Python SDK comes in.
    pub grpc: SocketAddr,
    /// Where REST, the dashboard and `/metrics` are.
    pub http: SocketAddr,
    /// Serve `grpc` and `http` in plain text on other addresses than loopback.
    pub insecure_listen: bool,
    /// How long what runs may go on here once another controlplane on the same
    /// database is to take over.
    pub drain: Duration,
    /// Under which names HTTP requests reach containers.
    pub container_url: Option<Suffix>,
    /// What clients are told to dial; see [`Config::address`].
    pub public_address: Option<HostPort>,
    /// The names in the certificate; the first is what clients are told to
    /// dial when nothing else is.
    pub names: Vec<String>,
    /// Which certificate to show.
    pub certificate: Certificate,
    /// What the first token is traded for. Without it there is none to be had.
    pub bootstrap_secret: Option<Secret>,
    /// What secrets in the database are sealed with.
    pub sealing: Sealing,
    /// How much of logs is kept.
    pub logs: LogLimits,
    /// The tuning of sessions.
    pub transport: Settings,
    /// Workers that are started on attached clusters.
    pub worker: WorkerDefaults,
}

/// Where sessions come in over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TcpListen {
    /// On the address and port of QUIC, where peers look for it.
    #[default]
    Same,
    /// Elsewhere: something in front of it brings peers there.
    At(SocketAddr),
    /// Nowhere.
    Off,
}

/// How workers on attached clusters are started, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerDefaults {
    /// Their image where a cluster names none.
    pub image: Option<String>,
    /// Clusters a workspace may attach; 0 for any number.
    pub clusters_per_workspace: u32,
    /// Privileged workers share their node's network.
    pub host_network: bool,
    /// A pool with this many workers on their way gets no further one; 0 lets
    /// none be started, a negative number any.
    pub guard_pending: i64,
    /// The most workers a pool gets in one minute, likewise.
    pub guard_per_minute: i64,
}

impl Default for WorkerDefaults {
    fn default() -> Self {
        Self {
            image: None,
            clusters_per_workspace: 5,
            host_network: true,
            guard_pending: 20,
            guard_per_minute: 30,
        }
    }
}

/// A host, without brackets, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// A DNS name or an IP address.
    pub host: String,
    /// The UDP port.
    pub port: u16,
}

/// Where the certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    /// From a CA of the controlplane's own, kept in this folder.
    Own(PathBuf),
    /// From files that somebody else renews.
    Files {
        /// A PEM chain, the leaf first.
        certificate: PathBuf,
        /// Its PEM key.
        key: PathBuf,
    },
}

/// Where sealing keys come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sealing {
    /// From this file, made when it is not there.
    File(PathBuf),
    /// From the configuration.
    Keys {
        /// Seals and opens.
        current: SealingKey,
        /// Open what was sealed before.
        previous: Vec<SealingKey>,
    },
}

/// A key; `Debug` shows nothing of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealingKey([u8; 32]);

impl SealingKey {
    /// The key itself, for the cipher.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(…)")
    }
}

/// How much of logs is kept, in all workspaces together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// In bytes; what is oldest goes first.
    pub max_bytes: u64,
    /// No record stays longer.
    pub max_age: Duration,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { max_bytes: 10 << 30, max_age: Duration::from_secs(7 * 86_400) }
    }
}

impl Values {
    /// The defaults, with database, certificates and keys in `data`.
    #[must_use]
    pub fn in_folder(data: impl Into<PathBuf>) -> Self {
        let data = data.into();
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            database: Secret::new(format!("sqlite://{}", data.join("levers9.db").display())),
            database_pool: DEFAULT_POOL_SIZE,
            quic: SocketAddr::from((Ipv4Addr::UNSPECIFIED, levers9_transport::address::DEFAULT_PORT)),
            tcp: TcpListen::Same,
            grpc: loopback(1993),
            http: loopback(1994),
            insecure_listen: false,
            drain: DEFAULT_DRAIN,
            container_url: None,
            public_address: None,
            names: ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec(),
            certificate: Certificate::Own(data.join("tls")),
            bootstrap_secret: None,
            sealing: Sealing::File(data.join("sealing.key")),
            logs: LogLimits::default(),
            transport: Settings::default(),
            worker: WorkerDefaults::default(),
            data,
        }
    }
}

impl Config {
    /// Reads a file and what `env` says of the environment. A variable that is
    /// empty counts as not set.
    ///
    /// # Errors
    /// With everything that is wrong, one line each.
    pub fn load(path: &Path, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
            .map_err(|source| ConfigError::Read { path: name.clone(), source })?;
        Self::parse(&name, &bytes, env)
    }

    /// Reads a file's content; `name` is what problems call it.
    ///
    /// # Errors
    /// With everything that is wrong, one line each.
    pub fn parse(
        name: &str,
        bytes: &[u8],
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut report = Report::new(name);
        if bytes.len() as u64 > MAX_FILE {
            report.line(1, "longer than 1 MiB: this is no configuration file");
        }
        let values = read::values(bytes, &env, &mut report);
        check::check(&values, &mut report);
        report.finish().map(|()| Self(values))
    }

    /// Checks values that did not come from a file.
    ///
    /// # Errors
    /// With everything that is wrong, one line each.
    pub fn new(values: Values) -> Result<Self, ConfigError> {
        let mut report = Report::new("configuration");
        check::check(&values, &mut report);
        report.finish().map(|()| Self(values))
    }

    /// What clients are told to dial: `publicAddress`, or else the address QUIC
    /// is bound to where the certificate names it, or else the first name; then
    /// with the port that QUIC is bound to.
    #[must_use]
    pub fn address(&self, bound_port: u16, trust: Trust) -> Address {
        let bound = self.quic.ip().to_string();
        let (host, port) = match (&self.public_address, self.names.first()) {
            (Some(public), _) => (public.host.clone(), public.port),
            (None, Some(first)) if !self.names.contains(&bound) => (first.clone(), bound_port),
            (None, _) => (bound, bound_port),
        };
        Address { host, port, trust }
    }
}

impl Deref for Config {
    type Target = Values;

    fn deref(&self) -> &Values {
        &self.0
    }
}
