//! Keeps one kind of object in the picture up to date: lists it in pages,
//! watches it from there, goes on from where a watch ended, and lists again
//! when the API server no longer knows that place. A watch that says nothing
//! for longer than it may is taken for dead. Never gives up.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use kube::core::Request;
use kube::core::params::{ListParams, WatchParams};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep, timeout};

use super::api::{Api, ApiError, Pieces, Status};
use super::lines::Lines;
use super::pauses::Pauses;
use crate::eyes::Eyes;
use crate::picture::facts::{Event, Fact, Kind, Page, Versioned};

/// Objects on one page of a list.
const PAGE: u32 = 500;
/// The most pages of one list: more is no cluster that Kubernetes can run.
const PAGES: usize = 2_000;
/// How long the API server is asked to keep a watch, in seconds: a quiet
/// cluster proves itself by ending it.
const WATCH_SECONDS: u32 = 20;
/// The same after a failure, so that the picture is proved again at once.
const PROBE_SECONDS: u32 = 2;
/// How much longer a watch may say nothing before it is dead. A dead watch is
/// found within half a minute, well before its picture is too old.
const SILENCE: Duration = Duration::from_secs(8);
/// A watch that ends sooner than this has not worked.
const SHORTEST: Duration = Duration::from_secs(1);

/// What to watch, and how patiently.
#[derive(Debug, Clone)]
pub struct Watch {
    /// What.
    pub kind: Kind,
    /// Where, as a path of the API.
    pub path: String,
    /// Only objects with these labels.
    pub labels: Option<String>,
    /// How long the API server is asked to keep a watch, in seconds.
    pub seconds: u32,
    /// How much longer it may say nothing.
    pub silence: Duration,
}

impl Watch {
    /// The watch that an agent of a cluster keeps in its namespace.
    #[must_use]
    pub fn of(kind: Kind, namespace: &str, cluster: &str) -> Self {
        let (path, labels) = match kind {
            Kind::Nodes => ("/api/v1/nodes".to_owned(), None),
            Kind::Pods => ("/api/v1/pods".to_owned(), None),
            Kind::Jobs => (
                format!("/apis/batch/v1/namespaces/{namespace}/jobs"),
                Some(format!("{}={cluster}", crate::capacity::CLUSTER_LABEL)),
            ),
        };
        Self { kind, path, labels, seconds: WATCH_SECONDS, silence: SILENCE }
    }
}

/// How a watch ended that has not failed.
enum Ended {
    /// In order.
    Orderly,
    /// The API server does not know the version any more.
    Expired,
}

/// Keeps a watch, for ever.
pub async fn run(api: Api, watch: Watch, eyes: Eyes) -> Infallible {
    let mut watcher = Watcher { api, watch, eyes, version: None, failing: Pauses::default() };
    let mut rng = StdRng::from_os_rng();
    loop {
        let Err(error) = watcher.round().await else { continue };
        let pause = watcher.failing.failed(&mut rng);
        let kind = watcher.watch.kind;
        let words = format!("cannot watch {}: {error}", kind.word());
        if watcher.failing.lasts() {
            if watcher.eyes.failed(kind, &words) {
                tracing::warn!(problem = %words, "the picture of the cluster grows old");
            }
        } else {
            tracing::debug!(problem = %words, "a watch ended");
        }
        sleep(pause).await;
    }
}

struct Watcher {
    api: Api,
    watch: Watch,
    eyes: Eyes,
    /// What is known is of this version; none before everything was listed.
    version: Option<String>,
    failing: Pauses,
}

impl Watcher {
    /// One list where it is needed, and one watch.
    async fn round(&mut self) -> Result<(), ApiError> {
        if self.version.is_none() {
            self.version = Some(self.list().await?);
        }
        let begun = Instant::now();
        match self.follow().await {
            Ok(Ended::Orderly) => {
                self.proved(Instant::now());
                if begun.elapsed() < SHORTEST {
                    sleep(SHORTEST).await;
                }
                Ok(())
            }
            Ok(Ended::Expired) => {
                tracing::debug!(kind = self.watch.kind.word(), "too old to be watched; listing again");
                self.version = None;
                // Where this happens over and over, it is a failure like others.
                if begun.elapsed() < SHORTEST && self.failing.lasts() {
                    return Err(ApiError::Garbage("every version is too old".to_owned()));
                }
                if begun.elapsed() < SHORTEST {
                    let mut rng = StdRng::from_os_rng();
                    sleep(self.failing.failed(&mut rng)).await;
                }
                Ok(())
            }
            Err(error) => {
                if matches!(error, ApiError::Garbage(_)) {
                    // Something was missed.
                    self.version = None;
                }
                Err(error)
            }
        }
    }

    /// Lists everything, a page at a time. Returns the version it is of.
    async fn list(&self) -> Result<String, ApiError> {
        let asked = Instant::now();
        let mut facts = Vec::new();
        let mut go_on = None;
        for _ in 0..PAGES {
            let params = ListParams {
                label_selector: self.watch.labels.clone(),
                limit: Some(PAGE),
                continue_token: go_on.take(),
                ..ListParams::default()
            };
            let request = Request::new(self.watch.path.as_str()).list(&params).map_err(ApiError::garbage)?;
            let body = self.api.page(request).await?;
            let page: Page<'_> = serde_json::from_slice(&body).map_err(ApiError::garbage)?;
            let Some(items) = page.items else {
                return Err(ApiError::Garbage("a list without items".to_owned()));
            };
            for item in items {
                let fact = self.eyes.eye().read(self.watch.kind, item.get());
                facts.push(fact.map_err(ApiError::garbage)?);
            }
            if page.metadata.go_on.is_empty() {
                if page.metadata.resource_version.is_empty() {
                    return Err(ApiError::Garbage("a list without a version".to_owned()));
                }
                tracing::debug!(kind = self.watch.kind.word(), objects = facts.len(), "listed");
                self.eyes.replace(self.watch.kind, facts, asked);
                return Ok(page.metadata.resource_version);
            }
            go_on = Some(page.metadata.go_on);
        }
        Err(ApiError::Garbage("a list without an end".to_owned()))
    }

    /// Watches until the watch ends.
    async fn follow(&mut self) -> Result<Ended, ApiError> {
        let seconds = if self.failing.any() { PROBE_SECONDS } else { self.watch.seconds };
        let params = WatchParams {
            label_selector: self.watch.labels.clone(),
            timeout: Some(seconds),
            bookmarks: true,
            ..WatchParams::default()
        };
        let version = self.version.clone().unwrap_or_default();
        let request = Request::new(self.watch.path.as_str()).watch(&params, &version);
        let mut pieces = match self.api.follow(request.map_err(ApiError::garbage)?).await {
            Err(error) if error.is(410) => return Ok(Ended::Expired),
            followed => followed?,
        };
        let mut lines = Lines::default();
        loop {
            while let Some(line) =
                lines.next().map_err(|_| ApiError::Garbage("an endless event".to_owned()))?
            {
                if let Some(ended) = self.event(&line)? {
                    return Ok(ended);
                }
            }
            match self.piece(&mut pieces, seconds).await? {
                Some(piece) => lines.feed(&piece),
                None if lines.is_empty() => return Ok(Ended::Orderly),
                None => return Err(ApiError::Unreachable("the watch broke off in an event".to_owned())),
            }
        }
    }

    async fn piece(&self, pieces: &mut Pieces, seconds: u32) -> Result<Option<Bytes>, ApiError> {
        let patience = Duration::from_secs(seconds.into()) + self.watch.silence;
        timeout(patience, pieces.next()).await.unwrap_or(Err(ApiError::Slow(patience)))
    }

    /// Takes in one event.
    fn event(&mut self, line: &[u8]) -> Result<Option<Ended>, ApiError> {
        let event: Event<'_> = serde_json::from_slice(line).map_err(ApiError::garbage)?;
        let object = event.object.get();
        if event.what == "ERROR" {
            let status: Status = serde_json::from_str(object).map_err(ApiError::garbage)?;
            return match status.code {
                410 => Ok(Some(Ended::Expired)),
                code => Err(ApiError::refused(code, object.as_bytes())),
            };
        }
        let versioned: Versioned = serde_json::from_str(object).map_err(ApiError::garbage)?;
        match event.what {
            "BOOKMARK" => {}
            "ADDED" | "MODIFIED" => self.eyes.put(self.read(object)?),
            "DELETED" => self.eyes.remove(&self.read(object)?),
            other => return Err(ApiError::garbage(format!("an event of type {other:?}"))),
        }
        if !versioned.metadata.resource_version.is_empty() {
            self.version = Some(versioned.metadata.resource_version);
        }
        self.proved(Instant::now());
        Ok(None)
    }

    fn read(&self, object: &str) -> Result<Fact, ApiError> {
        self.eyes.eye().read(self.watch.kind, object).map_err(ApiError::garbage)
    }

    fn proved(&mut self, at: Instant) {
        self.failing.worked();
        self.eyes.proved(self.watch.kind, at);
    }
}
