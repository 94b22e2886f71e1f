//! The Kubernetes API of the user's own context, for the few commands that
//! attach and detach clusters: the thin part that does I/O.
//!
//! A [`Kube`] is made only when a command needs one. Every request has a time
//! limit, and every failure says in one sentence what could not be done and
//! why ([`words`]). What is decided about what was found is pure: [`survey`]
//! about nodes and namespaces, [`rights`], and [`findings`] about an agent
//! that does not come.

pub(crate) mod api;
pub(crate) mod findings;
pub(crate) mod remove;
pub(crate) mod rights;
pub(crate) mod survey;
mod words;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use ::kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use ::kube::{Client, Config};
use levers9_wire::name::printable;
use tokio::time::timeout;

use crate::error::Error;

/// How long one request may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The longest version of an API server that is shown.
const VERSION: usize = 64;

/// An API server, by the context it was found with.
#[derive(Clone)]
pub(crate) struct Kube {
    client: Client,
    /// The name of the context.
    pub(crate) context: String,
    /// Where the API server is.
    pub(crate) server: String,
}

impl Kube {
    /// Reads the kubeconfig and gets the credentials of a context: the one of
    /// this name, or the current one. Nothing is asked of the API server yet.
    ///
    /// # Errors
    /// When there is no kubeconfig or no such context, or the credentials are
    /// not to be had.
    pub(crate) async fn of_context(name: Option<&str>) -> Result<Self, Error> {
        use_our_cryptography();
        check_text()?;
        let kubeconfig = Kubeconfig::read().map_err(|problem| unreadable(&problem))?;
        let context = choose(&kubeconfig, name)?;
        let plugin =
            plugin(&kubeconfig, &context).map(|command| format!("its credential plugin is {command:?}; "));
        let plugin = plugin.unwrap_or_default();
        let options = KubeConfigOptions { context: Some(context.clone()), ..KubeConfigOptions::default() };
        let useless = |cause: String| {
            Error::failed(format!("the kube context {context:?} cannot be used"))
                .because(cause)
                .hint(format!("{plugin}does it work with kubectl? kubectl --context {context} get nodes"))
        };
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|problem| useless(words::plain(&problem)))?;
        config.connect_timeout = Some(PATIENCE);
        config.read_timeout = Some(PATIENCE);
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        // A credential plugin is run here, which may take its time.
        let made = tokio::task::spawn_blocking(move || Client::try_from(config)).await;
        match made {
            Ok(Ok(client)) => Ok(Self { client, context, server }),
            Ok(Err(problem)) => Err(useless(words::plain(&problem))),
            Err(_) => Err(useless("its credentials could not be read".to_owned())),
        }
    }

    /// The same, and makes sure that there is an API server that lets it in;
    /// gives the server's version.
    ///
    /// # Errors
    /// As [`Kube::of_context`], and when the API server is not reached, does
    /// not answer, or answers something else.
    pub(crate) async fn connect(name: Option<&str>) -> Result<(Self, String), Error> {
        let kube = Self::of_context(name).await?;
        let version = kube.ask("be asked for its version", kube.client.apiserver_version()).await?;
        Ok((kube, printable(&version.git_version, VERSION)))
    }

    /// Waits for an answer, in bounded time.
    async fn ask<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, ::kube::Error>>,
    ) -> Result<T, Error> {
        match timeout(PATIENCE, work).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(problem)) => Err(words::explain(self, what, &problem)),
            Err(_) => Err(words::silent(self, what)),
        }
    }
}

/// TLS libraries of the process share one choice of cryptography; it is made
/// here when nobody has made it.
fn use_our_cryptography() {
    // Only a second call fails, and the first one's choice then stands.
    let _chosen = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// The name of the context to use.
fn choose(kubeconfig: &Kubeconfig, name: Option<&str>) -> Result<String, Error> {
    let names: Vec<&str> = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect();
    let known =
        if names.is_empty() { "it holds none".to_owned() } else { format!("there are {}", names.join(", ")) };
    match name.or(kubeconfig.current_context.as_deref().filter(|name| !name.is_empty())) {
        Some(name) if names.contains(&name) => Ok(name.to_owned()),
        Some(name) => Err(Error::failed(format!("the kubeconfig has no context {name:?}")).hint(known)),
        None => Err(Error::failed("the kubeconfig has no current context")
            .hint(format!("pass one: --kube-context CONTEXT; {known}"))),
    }
}

/// The program a context's credentials come from, if they come from one.
fn plugin(kubeconfig: &Kubeconfig, context: &str) -> Option<String> {
    let context = kubeconfig.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    let user = kubeconfig.auth_infos.iter().find(|named| Some(&named.name) == context.user.as_ref())?;
    user.auth_info.as_ref()?.exec.as_ref()?.command.clone()
}

/// UTF-16 text that ends in the middle of a character would end the process
/// that reads it.
fn check_text() -> Result<(), Error> {
    let named = std::env::var_os("KUBECONFIG").filter(|named| !named.is_empty());
    let paths = match &named {
        Some(named) => std::env::split_paths(named).collect(),
        None => std::env::home_dir().map(|home| vec![home.join(".kube/config")]).unwrap_or_default(),
    };
    match paths.iter().find(|path| is_cut(path).unwrap_or(false)) {
        Some(path) => Err(Error::failed(format!("the kubeconfig {} cannot be read", path.display()))
            .because("it is UTF-16 and ends within a character")
            .hint("point KUBECONFIG at another, or write it again")),
        None => Ok(()),
    }
}

fn is_cut(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut mark = [0; 2];
    file.read_exact(&mut mark)?;
    Ok(matches!(mark, [0xFF, 0xFE] | [0xFE, 0xFF]) && file.metadata()?.len() % 2 == 1)
}

fn unreadable(problem: &KubeconfigError) -> Error {
    let hint = "point KUBECONFIG at one";
    match problem {
        KubeconfigError::FindPath => Error::failed("there is no kubeconfig").hint(hint),
        KubeconfigError::ReadConfig(cause, path) if cause.kind() == io::ErrorKind::NotFound => {
            Error::failed(format!("there is no kubeconfig at {}", path.display())).hint(hint)
        }
        // The whole of this error shows the lines around the place, which may hold credentials.
        KubeconfigError::Parse(problem) => {
            let place = problem.location().map(|at| format!("line {}, column {}: ", at.line(), at.column()));
            Error::failed("the kubeconfig cannot be understood")
                .because(format!("{}this is no YAML, or not that of a kubeconfig", place.unwrap_or_default()))
        }
        other => Error::failed("the kubeconfig cannot be read").because(words::plain(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(current: &str, contexts: &[&str]) -> Kubeconfig {
        let contexts: Vec<_> = contexts.iter().map(|name| serde_json::json!({ "name": name })).collect();
        serde_json::from_value(serde_json::json!({ "current-context": current, "contexts": contexts }))
            .unwrap()
    }

    #[test]
    fn the_named_context_counts_before_the_current_one() {
        let kubeconfig = kubeconfig("a", &["a", "b"]);
        assert_eq!(choose(&kubeconfig, None).unwrap(), "a");
        assert_eq!(choose(&kubeconfig, Some("b")).unwrap(), "b");
        let error = choose(&kubeconfig, Some("c")).unwrap_err();
        assert_eq!(error.chain(), "the kubeconfig has no context \"c\"");
        assert_eq!(error.hint_text(), Some("there are a, b"));
    }

    #[test]
    fn without_a_current_context_the_ones_there_are_are_listed() {
        let error = choose(&kubeconfig("", &["a", "b"]), None).unwrap_err();
        assert_eq!(error.hint_text(), Some("pass one: --kube-context CONTEXT; there are a, b"));
        let error = choose(&Kubeconfig::default(), None).unwrap_err();
        assert_eq!(error.hint_text(), Some("pass one: --kube-context CONTEXT; it holds none"));
    }
}
