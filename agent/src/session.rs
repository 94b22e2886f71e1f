//! The agent's session with its controlplane: says who it is, reports what it
//! sees at the pace of [`crate::pace`], takes orders. It decides nothing about
//! nodes or Jobs.

mod reports;
mod taking;

use std::fmt;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use levers9_transport::link::Introduce;
use levers9_wire::token::Secret;
use levers9_wire::{InstanceId, limits, v1};

use crate::eyes::Eyes;

pub(crate) use reports::report;
pub(crate) use taking::take_orders;

/// Who this agent is, at every Hello.
pub(crate) struct Me {
    /// Where the cluster's token is; read at every attempt, since it is replaced.
    pub(crate) token_file: PathBuf,
    /// This start of the process.
    pub(crate) instance: InstanceId,
    /// What does not change.
    pub(crate) facts: v1::AgentFacts,
    /// What the API server says it is.
    pub(crate) kubernetes: Arc<Mutex<String>>,
    /// For how long this process runs.
    pub(crate) eyes: Eyes,
    /// What was wrong with the token last time, so that it is said once.
    pub(crate) said: Mutex<Option<String>>,
}

impl fmt::Debug for Me {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Me").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl Me {
    /// The token as it is now; empty when it cannot be read.
    fn token(&self) -> Secret {
        let (token, problem) = match read(&self.token_file) {
            Ok(token) if token.is_empty() => (token, Some("it is empty".to_owned())),
            Ok(token) => (token, None),
            Err(error) => (Secret::new(""), Some(error.to_string())),
        };
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(problem) = problem.as_ref().filter(|problem| said.as_ref() != Some(problem)) {
            tracing::warn!(file = %self.token_file.display(), problem, "there is no cluster token");
        }
        *said = problem;
        token
    }
}

fn read(path: &std::path::Path) -> std::io::Result<Secret> {
    let longest = u64::try_from(limits::TOKEN).unwrap_or(u64::MAX) + 64;
    let mut text = String::new();
    std::fs::File::open(path)?.take(longest).read_to_string(&mut text)?;
    Ok(Secret::new(text.trim()))
}

impl Introduce for Me {
    fn hello(&self) -> v1::Hello {
        let kubernetes = self.kubernetes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let uptime_ms = u64::try_from(self.eyes.uptime().as_millis()).unwrap_or(u64::MAX);
        v1::Hello {
            role: v1::Role::Agent.into(),
            token: self.token().expose().to_owned(),
            instance: self.instance.to_wire(),
            agent: Some(v1::AgentFacts { kubernetes, uptime_ms, ..self.facts.clone() }),
            ..v1::Hello::default()
        }
    }

    fn welcomed(&self, welcome: &v1::Welcome) {
        tracing::info!(workspace = %welcome.workspace_name, "online");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Terms;
    use crate::picture::facts::Eye;
    use crate::picture::lent::Lent;

    #[test]
    fn the_token_is_read_again_at_every_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let eye = Eye { lent: Lent::read::<&str>([]), terms: Terms::new("levers9", "c1") };
        let me = Me {
            token_file: folder.path().join("token"),
            instance: InstanceId::generate(),
            facts: v1::AgentFacts { namespace: "levers9".to_owned(), ..v1::AgentFacts::default() },
            kubernetes: Arc::new(Mutex::new("v1.35.0".to_owned())),
            eyes: Eyes::new(eye),
            said: Mutex::new(None),
        };
        assert_eq!(me.hello().token, "");
        for token in ["first", "second"] {
            std::fs::write(&me.token_file, format!("{token}\n")).unwrap();
            let hello = me.hello();
            assert_eq!((hello.token.as_str(), hello.role()), (token, v1::Role::Agent));
            let facts = hello.agent.unwrap();
            assert_eq!((facts.kubernetes.as_str(), facts.namespace.as_str()), ("v1.35.0", "levers9"));
            assert!(!format!("{me:?}").contains(token));
        }
    }
}
