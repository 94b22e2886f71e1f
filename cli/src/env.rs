//! The environment variables the command reads, and the environment as a
//! plain map, so that settings can be resolved without a process around them.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The context to use when `--context` is not given.
pub const CONTEXT: &str = "LEVERS9_CONTEXT";
/// The token to use instead of the one in the configuration file.
pub const TOKEN: &str = "LEVERS9_TOKEN";
/// The address (`levers9://…`) to use instead of the context's.
pub const ADDRESS: &str = "LEVERS9_ADDRESS";
/// What `login` trades for the first admin token.
pub const BOOTSTRAP_SECRET: &str = "LEVERS9_BOOTSTRAP_SECRET";
/// The configuration file, shared with the Python SDK.
pub const CONFIG_PATH: &str = "CONFIG_PATH";
/// What to log on standard error, for finding faults: `debug`, `levers9_transport=trace`.
pub const LOG: &str = "LEVERS9_LOG";
/// No colours, when set to anything.
pub const NO_COLOR: &str = "NO_COLOR";

/// Environment variables by name. A variable that is set but empty counts as
/// not set.
#[derive(Clone, Default)]
pub struct Env(BTreeMap<String, String>);

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Env {
    /// The environment of this process. Variables that are not Unicode are left out.
    #[must_use]
    pub fn of_process() -> Self {
        let pairs = std::env::vars_os();
        Self(pairs.filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect())
    }

    /// An environment of these variables.
    #[must_use]
    pub fn of(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    /// A variable, unless it is empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A variable, empty or not.
    #[must_use]
    pub fn get_even_empty(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The user's home folder.
    #[must_use]
    pub fn home(&self) -> Option<PathBuf> {
        self.get("HOME").map(PathBuf::from)
    }

    /// A path in which a leading `~` stands for the home folder.
    #[must_use]
    pub fn expand(&self, path: &str) -> PathBuf {
        match (path.strip_prefix('~'), self.home()) {
            (Some(""), Some(home)) => home,
            (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
            _ => PathBuf::from(path),
        }
    }

    /// Logs to standard error when [`LOG`] asks for it.
    pub fn start_logging(&self) {
        use tracing_subscriber::EnvFilter;
        if let Some(filter) = self.get(LOG) {
            let filter = EnvFilter::builder().parse_lossy(filter);
            // Only a second call fails, and the first one's choice then stands.
            let _set =
                tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_is_unset_and_home_is_expanded() {
        let env = Env::of(&[("A", ""), ("HOME", "/home/kim")]);
        assert_eq!(env.get("A"), None);
        assert_eq!(env.get_even_empty("A"), Some(""));
        assert_eq!(env.expand("~/x"), PathBuf::from("/home/kim/x"));
        assert_eq!(env.expand("~kim/x"), PathBuf::from("~kim/x"));
        assert_eq!(env.expand("/x"), PathBuf::from("/x"));
    }

    #[test]
    fn debug_shows_no_values() {
        assert_eq!(format!("{:?}", Env::of(&[("LEVERS9_TOKEN", "hunter2")])), r#"{"LEVERS9_TOKEN"}"#);
    }
}
