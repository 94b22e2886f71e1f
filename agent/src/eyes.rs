//! The picture as all parts of the agent share it: the watches put in what
//! they see, the session is woken when there may be something to report. The
//! lock is never held across a wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use levers9_wire::v1;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::picture::Picture;
use crate::picture::facts::{Eye, Fact, Kind};

/// A handle on the picture; clones share it.
#[derive(Debug, Clone)]
pub struct Eyes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    eye: Eye,
    picture: Mutex<Picture>,
    touched: watch::Sender<()>,
    begun: Instant,
    /// What was said of nodes that cannot be counted, so that it is said once.
    unreadable: Mutex<BTreeMap<String, String>>,
}

impl Eyes {
    /// Eyes that have not seen anything.
    #[must_use]
    pub fn new(eye: Eye) -> Self {
        let picture = Mutex::new(Picture::new(eye.lent.problem()));
        let (touched, unreadable) = (watch::Sender::new(()), Mutex::default());
        Self(Arc::new(Shared { eye, picture, touched, begun: Instant::now(), unreadable }))
    }

    /// What decides which facts are kept.
    #[must_use]
    pub fn eye(&self) -> &Eye {
        &self.0.eye
    }

    /// How long this process has eyes.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.0.begun.elapsed()
    }

    /// The picture itself, for a moment.
    pub fn picture(&self) -> MutexGuard<'_, Picture> {
        self.0.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Picture::replace`].
    pub fn replace(&self, kind: Kind, facts: Vec<Fact>, asked: Instant) {
        self.picture().replace(kind, facts, asked);
        self.0.touched.send_replace(());
    }

    /// See [`Picture::put`].
    pub fn put(&self, fact: Fact) {
        self.picture().put(fact);
        self.0.touched.send_replace(());
    }

    /// See [`Picture::remove`].
    pub fn remove(&self, fact: &Fact) {
        self.picture().remove(fact);
        self.0.touched.send_replace(());
    }

    /// See [`Picture::proved`].
    pub fn proved(&self, kind: Kind, at: Instant) {
        self.picture().proved(kind, at);
        self.0.touched.send_replace(());
    }

    /// See [`Picture::failed`].
    pub fn failed(&self, kind: Kind, problem: &str) -> bool {
        let news = self.picture().failed(kind, problem);
        self.0.touched.send_replace(());
        news
    }

    /// See [`Picture::access`].
    pub fn access(&self, problem: Option<String>) -> bool {
        let news = self.picture().access(problem);
        self.0.touched.send_replace(());
        news
    }

    /// Changes whenever what is seen may have.
    #[must_use]
    pub fn touches(&self) -> watch::Receiver<()> {
        self.0.touched.subscribe()
    }

    /// Whether there is anything to report yet.
    #[must_use]
    pub fn says_something(&self) -> bool {
        self.picture().says_something()
    }

    /// Whether the cluster is seen as it is: everything was listed, and nothing keeps it from being seen.
    #[must_use]
    pub fn sees(&self) -> bool {
        self.picture().sees()
    }

    /// Counts what has changed; see [`Picture::revision`].
    pub fn settle(&self) -> u64 {
        let (unreadable, revision) = {
            let mut picture = self.picture();
            (picture.settle(), picture.revision())
        };
        let mut said = self.0.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        if !unreadable.is_empty() && said.len() > 1_000 {
            said.clear();
        }
        for (node, why) in unreadable {
            if said.get(&node) != Some(&why) {
                tracing::warn!(node, why, "a node is withheld: it cannot be counted");
                said.insert(node, why);
            }
        }
        revision
    }

    /// What is reported now; `now_ms` is the API server's time.
    #[must_use]
    pub fn report(&self, now_ms: i64) -> v1::NodeReport {
        self.picture().report(Instant::now(), now_ms, self.uptime())
    }
}
