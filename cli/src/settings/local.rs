//! Settings of the commands that are about this machine: contexts, logging
//! in, the version, and `dev`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use levers9_transport::Address;
use levers9_transport::tcp::Proxies;
use levers9_wire::token::Secret;

use super::manage::label;
use super::{Target, address, named, target, unknown};
use crate::args::{ConfigCommand, DevArgs, EndpointArgs, Format, LoginArgs};
use crate::config::{DEFAULT, Section};
use crate::contexts::{Context, Contexts, Store};
use crate::env::{self, Env};
use crate::error::Error;

/// The gRPC port when none is given.
const GRPC_PORT: u16 = 1993;
/// Where `levers9 dev` serves REST.
const HTTP_PORT: u16 = 1994;
/// Where `levers9 dev` takes QUIC sessions; 443 is not for everyone.
const QUIC_PORT: u16 = 4433;

/// Where a token comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// From standard input.
    Stdin,
    /// From the environment.
    Given(Secret),
    /// From whoever sits at the terminal.
    Ask,
}

/// Where the Python SDK finds a controlplane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SdkEndpoint {
    /// The host of the gRPC port.
    pub host: String,
    /// The gRPC port.
    pub port: String,
    /// The URL of the REST API; empty to follow from the host.
    pub http_url: String,
    /// `true`, `false`, or empty to follow from the port.
    pub tls: String,
}

/// A context to be stored once its token is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewContext {
    /// Its name.
    pub name: String,
    /// Where to dial and whom to trust there.
    pub address: Address,
    /// The SDK's side of it.
    pub endpoint: SdkEndpoint,
}

impl NewContext {
    /// The context with its token.
    #[must_use]
    pub fn with_token(&self, token: Secret) -> Context {
        let section = Section {
            token,
            controlplane_host: self.endpoint.host.clone(),
            controlplane_port: self.endpoint.port.clone(),
            controlplane_http_url: self.endpoint.http_url.clone(),
            tls: self.endpoint.tls.clone(),
        };
        Context { section, address: Some(self.address.clone()) }
    }
}

/// `levers9 login`
#[derive(Debug, Clone)]
pub struct LoginSettings {
    /// The context to store.
    pub context: NewContext,
    /// Where its token comes from.
    pub token: TokenSource,
    /// What to trade for the first admin token when there is no token.
    pub bootstrap_secret: Option<Secret>,
    /// Which proxies lead there, where nothing else does.
    pub proxies: Proxies,
    /// The files.
    pub store: Store,
}

/// `levers9 config`
#[derive(Debug, Clone)]
pub struct ConfigSettings {
    /// The files.
    pub store: Store,
    /// What to do.
    pub action: ConfigAction,
}

/// What to do with contexts.
#[derive(Debug, Clone)]
pub enum ConfigAction {
    /// List them.
    List {
        /// How to print.
        format: Format,
    },
    /// Store one.
    Create {
        /// What to store.
        context: NewContext,
        /// Where its token comes from.
        token: TokenSource,
        /// Replace one of this name.
        overwrite: bool,
    },
    /// Make one the default.
    Select(String),
    /// Forget one.
    Delete(String),
}

/// `levers9 version`
#[derive(Debug, Clone)]
pub struct VersionSettings {
    /// Whom to ask for its version, where one is configured.
    pub target: Option<Target>,
    /// How to print.
    pub format: Format,
}

/// `levers9 dev`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevSettings {
    /// Where workers and commands connect.
    pub quic: SocketAddr,
    /// Where REST is served.
    pub http: SocketAddr,
    /// Where gRPC is served.
    pub grpc: SocketAddr,
    /// Where the data is kept.
    pub data: PathBuf,
    /// The files of the user's own contexts, where they can be known.
    pub store: Option<Store>,
    /// The command to run as one job; empty to serve until interrupted.
    pub command: Vec<String>,
}

pub(super) fn login(args: LoginArgs, context: Option<&str>, env: &Env) -> Result<LoginSettings, Error> {
    let given = args.address.as_deref().map(|text| address(text, "ADDRESS")).transpose()?;
    let name = label("context", named(context, env).0.unwrap_or(DEFAULT).to_owned())?;
    let store = Store::of_env(env)?;
    let known = store.load()?.get(&name);
    let known_address = known.as_ref().and_then(|context| context.address.clone());
    let address = given.or_else(|| known_address.clone()).ok_or_else(|| {
        Error::usage(format!("the address of context {name:?} is not known"))
            .hint("give it: levers9 login levers9://HOST:443#sha256:…")
    })?;
    // What the SDK's side was told stays as long as the controlplane is the same.
    let kept = known.filter(|_| known_address.is_some_and(|old| old.authority() == address.authority()));
    let endpoint = endpoint(args.endpoint, &address, kept.as_ref().map(|context| &context.section));
    Ok(LoginSettings {
        context: NewContext { name, address, endpoint },
        token: token_source(args.token_stdin, env),
        bootstrap_secret: env.get(env::BOOTSTRAP_SECRET).map(Secret::new),
        proxies: super::proxies(env),
        store,
    })
}

pub(super) fn config(command: ConfigCommand, env: &Env) -> Result<ConfigSettings, Error> {
    let action = match command {
        ConfigCommand::List { output } => ConfigAction::List { format: output.format },
        ConfigCommand::Create(args) => {
            let name = label("context", args.name)?;
            let address = address(&args.address, "ADDRESS")?;
            let endpoint = endpoint(args.endpoint, &address, None);
            ConfigAction::Create {
                context: NewContext { name, address, endpoint },
                token: token_source(args.token_stdin, env),
                overwrite: args.overwrite,
            }
        }
        ConfigCommand::Select { name } => ConfigAction::Select(name),
        ConfigCommand::Delete { name } => ConfigAction::Delete(name),
    };
    Ok(ConfigSettings { store: Store::of_env(env)?, action })
}

pub(super) fn dev(args: DevArgs, env: &Env) -> Result<DevSettings, Error> {
    let shared =
        || env.get("XDG_DATA_HOME").map(PathBuf::from).or_else(|| Some(env.home()?.join(".local/share")));
    let data = args.data.or_else(|| Some(shared()?.join("levers9/dev"))).ok_or_else(|| {
        Error::usage("there is no home folder to keep the data in")
            .hint("name a folder: levers9 dev --data DIR")
    })?;
    // One that serves is found where it always is; one that only runs a
    // command needs no known ports, and must not clash with the other.
    let once = !args.command.is_empty();
    let local = |given: Option<SocketAddr>, port| {
        given.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, if once { 0 } else { port })))
    };
    Ok(DevSettings {
        quic: local(args.quic, QUIC_PORT),
        http: local(args.http, HTTP_PORT),
        grpc: local(args.grpc, GRPC_PORT),
        data,
        store: Store::of_env(env).ok(),
        command: args.command,
    })
}

/// Whom to talk to, or nobody when nothing was named and nothing is configured.
pub(super) fn target_if_any(context: Option<&str>, env: &Env) -> Result<Option<Target>, Error> {
    let named = named(context, env).0.is_some() || env.get(env::ADDRESS).is_some();
    if !named && !Store::of_env(env)?.load()?.has_default() {
        return Ok(None);
    }
    target(context, env).map(Some)
}

impl ConfigSettings {
    /// The failure to find a context of this name.
    #[must_use]
    pub fn unknown(&self, name: &str, contexts: &Contexts) -> Error {
        unknown(name, contexts, &self.store)
    }
}

fn token_source(stdin: bool, env: &Env) -> TokenSource {
    match env.get(env::TOKEN) {
        _ if stdin => TokenSource::Stdin,
        Some(token) => TokenSource::Given(Secret::new(token)),
        None => TokenSource::Ask,
    }
}

fn endpoint(args: EndpointArgs, address: &Address, kept: Option<&Section>) -> SdkEndpoint {
    let kept = |pick: fn(&Section) -> &String| kept.map(pick).filter(|text| !text.is_empty()).cloned();
    SdkEndpoint {
        host: args
            .controlplane_host
            .or_else(|| kept(|s| &s.controlplane_host))
            .unwrap_or_else(|| address.host.clone()),
        port: args
            .controlplane_port
            .map(|port| port.to_string())
            .or_else(|| kept(|s| &s.controlplane_port))
            .unwrap_or_else(|| GRPC_PORT.to_string()),
        http_url: args
            .controlplane_http_url
            .or_else(|| kept(|s| &s.controlplane_http_url))
            .unwrap_or_default(),
        tls: args.tls.map(|tls| tls.to_string()).or_else(|| kept(|s| &s.tls)).unwrap_or_default(),
    }
}
