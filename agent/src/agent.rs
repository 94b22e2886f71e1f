//! One agent from its start to its end: finds the API server, keeps the
//! watches, the session and the clean-up going whatever happens to them, and
//! stops them in order. Nothing that goes wrong with the API server or the
//! controlplane ends it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use http::Request;
use levers9_transport::Address;
use levers9_transport::dial::Dialer;
use levers9_transport::link::{EndpointSource, Link, Status};
use levers9_transport::quic::{Endpoint, Settings as Tuning};
use levers9_transport::tcp::{Fallback, Proxies};
use levers9_wire::name::printable;
use levers9_wire::{InstanceId, v1};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::eyes::Eyes;
use crate::kubernetes::{self, Api, ApiError, Pauses, Watch};
use crate::orders::{Orders, Own};
use crate::picture::facts::{Eye, Kind};
use crate::picture::lent::Lent;
use crate::probe;
use crate::session::{Me, report, take_orders};
use crate::template;

/// How long the first Hello waits for the API server to say its version.
const INTRODUCTION: Duration = Duration::from_secs(3);
/// How often Jobs that are to be removed are looked for.
const CLEAN_UP: Duration = Duration::from_secs(5);
/// How often the API server's version is asked for.
const VERSION: Duration = Duration::from_secs(3600);
/// How long orders under way may take when the agent stops, and the goodbye.
const GOODBYE: Duration = Duration::from_secs(2);
/// How long a part that has failed stays down.
const DOWN: Duration = Duration::from_secs(1);

/// What an agent is started with.
#[derive(Debug)]
pub struct Settings {
    /// The controlplane.
    pub address: Address,
    /// Where the cluster's token is.
    pub token_file: PathBuf,
    /// Which nodes are lent.
    pub lent: Lent,
    /// The image repository it starts workers from.
    pub repository: String,
    /// What its workers have in common.
    pub workers: template::Settings,
    /// The way to the API server; looked for where there is none.
    pub kubernetes: Option<Api>,
    /// Where signs of life are left, for [`crate::probe`]; nowhere otherwise.
    pub signs: Option<PathBuf>,
    /// The tuning of the session.
    pub tuning: Tuning,
    /// Which proxies lead out, where nothing else does.
    pub proxies: Proxies,
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    link: Link,
    orders: TaskTracker,
    stop: CancellationToken,
    parts: TaskTracker,
}

/// What the parts share that reach the API server.
#[derive(Clone)]
struct Reach {
    api: Arc<OnceLock<Api>>,
    eyes: Eyes,
    version: Arc<Mutex<String>>,
    /// Whether the version was asked for, with or without an answer.
    introduced: watch::Sender<bool>,
}

impl Agent {
    /// Starts an agent. Must be called within the runtime it is to live on.
    pub async fn start(settings: Settings) -> Self {
        let Settings { address, token_file, lent, repository, workers, kubernetes, signs, tuning, proxies } =
            settings;
        if let Some(problem) = lent.problem() {
            tracing::error!(problem, "the selector lends nothing");
        }
        let eyes = Eyes::new(Eye { lent, terms: workers.terms() });
        let (introduced, mut heard) = watch::channel(false);
        let reach = Reach { api: Arc::default(), eyes: eyes.clone(), version: Arc::default(), introduced };
        let facts = v1::AgentFacts {
            cluster: workers.cluster.to_wire(),
            namespace: workers.namespace.clone(),
            flavor: workers.flavor.map(|flavor| flavor.word().to_owned()).unwrap_or_default(),
            image_repository: repository.clone(),
            runtime: workers.runtime.word().to_owned(),
            ..v1::AgentFacts::default()
        };
        let me = Me {
            token_file,
            instance: InstanceId::generate(),
            facts,
            kubernetes: Arc::clone(&reach.version),
            eyes: eyes.clone(),
            said: Mutex::new(None),
        };
        let (parts, stop) = (TaskTracker::new(), CancellationToken::new());
        let keep = Keeper { parts: &parts, stop: &stop };
        for kind in Kind::ALL {
            let watch = Watch::of(kind, &workers.namespace, &workers.cluster.to_string());
            let reach = reach.clone();
            keep.up(kind.word(), move || see(reach.clone(), watch.clone()));
        }
        let own = Own { workers, repository };
        let orders = Orders::new(own, eyes.clone(), Arc::clone(&reach.api));
        let cleaning = orders.clone();
        keep.up("clean-up", move || clean_up(cleaning.clone()));
        keep.up("access", move || access(reach.clone(), kubernetes.clone()));

        let _late = timeout(INTRODUCTION, heard.wait_for(|heard| *heard)).await;
        let endpoints: EndpointSource = Box::new(move || Endpoint::dialing(&tuning));
        let dialer = Dialer::new(address).with_fallback(Fallback::default().with_proxies(proxies));
        let (link, incoming) = Link::start(dialer, endpoints, Arc::new(me), StdRng::from_os_rng());
        if let Some(signs) = signs {
            let (eyes, status) = (eyes.clone(), link.status());
            keep.up("signs", move || probe::keep(signs.clone(), eyes.clone(), status.clone()));
        }
        let under_way = TaskTracker::new();
        parts.spawn(take_orders(incoming, orders.clone(), under_way.clone()));
        let reporting = link.clone();
        keep.up("reports", move || report(reporting.clone(), eyes.clone(), orders.clone()));
        Self { link, orders: under_way, stop, parts }
    }

    /// How the session is doing, to be watched.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.link.status()
    }

    /// Stops in order: says that it takes nothing new, finishes the orders it
    /// has begun, says goodbye.
    pub async fn shutdown(self) {
        self.link.drain();
        self.orders.close();
        if timeout(GOODBYE, self.orders.wait()).await.is_err() {
            tracing::warn!(orders = self.orders.len(), "orders were late; their Jobs may come all the same");
        }
        self.stop.cancel();
        self.link.shutdown(GOODBYE).await;
        self.parts.close();
        if timeout(GOODBYE, self.parts.wait()).await.is_err() {
            tracing::warn!(parts = self.parts.len(), "parts of the agent were late");
        }
    }
}

/// Keeps parts up until the agent stops.
struct Keeper<'a> {
    parts: &'a TaskTracker,
    stop: &'a CancellationToken,
}

impl Keeper<'_> {
    /// Starts a part, and starts it again should it ever end.
    fn up<F>(&self, name: &'static str, start: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        let kept = async move {
            loop {
                if AbortOnDropHandle::new(tokio::spawn(start())).await.is_err() {
                    tracing::error!(part = name, "a part of the agent failed; starting it again");
                }
                sleep(DOWN).await;
            }
        };
        self.parts.spawn(async move {
            let _stopped = stop.run_until_cancelled(kept).await;
        });
    }
}

/// Keeps one watch, once there is an API server.
async fn see(reach: Reach, watch: Watch) {
    if let Some(api) = reach.api.get().cloned() {
        match kubernetes::run(api, watch, reach.eyes).await {}
    }
}

/// Deletes the Jobs that are to be removed, now and then.
async fn clean_up(orders: Orders) {
    loop {
        sleep(CLEAN_UP).await;
        orders.clean_up().await;
    }
}

/// Finds the API server, however long that takes, and keeps its version.
async fn access(reach: Reach, given: Option<Api>) {
    let mut rng = StdRng::from_os_rng();
    let mut pauses = Pauses::default();
    let api = loop {
        if let Some(api) = reach.api.get() {
            break api.clone();
        }
        let found = match &given {
            Some(api) => Ok(api.clone()),
            None => Api::find().await,
        };
        match found {
            Ok(api) => {
                reach.eyes.access(None);
                let _set_before = reach.api.set(api);
            }
            Err(error) => {
                let problem = error.to_string();
                if reach.eyes.access(Some(problem.clone())) {
                    tracing::warn!(problem, "the cluster cannot be seen");
                }
                sleep(pauses.failed(&mut rng)).await;
            }
        }
    };
    loop {
        let pause = match version(&api).await {
            Ok(version) => {
                pauses.worked();
                *reach.version.lock().unwrap_or_else(PoisonError::into_inner) = version;
                VERSION
            }
            Err(_) => pauses.failed(&mut rng),
        };
        reach.introduced.send_replace(true);
        sleep(pause).await;
    }
}

/// What the API server calls its version.
async fn version(api: &Api) -> Result<String, ApiError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        git_version: String,
    }
    let request = Request::get("/version").body(Vec::new()).map_err(ApiError::garbage)?;
    let body = api.ask(request).await?;
    let version: Version = serde_json::from_slice(&body).map_err(ApiError::garbage)?;
    Ok(printable(&version.git_version, 64))
}

#[cfg(test)]
mod tests;
