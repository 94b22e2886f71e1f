//! A double of a Kubernetes API server: HTTP/1.1 over TLS, lists in pages,
//! watches with bookmarks, of a cluster in which things happen at a steady
//! pace. Each client gets a port of its own, so that what it was sent is
//! known. Knows nothing of rights, and takes nothing but reads.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use levers9_transport::cert::Authority;
use levers9_wire::clock::unix_millis;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_rustls::TlsAcceptor;

use super::objects::NAMESPACE;
use super::world::{Change, Kind, Size, World, Writer};
use crate::transport::tls;

/// How often a watch is told that its version is still good.
const BOOKMARK: Duration = Duration::from_secs(60);
/// How long a watch lasts that does not say how long.
const WATCH: Duration = Duration::from_secs(1_800);
/// The most changes that are written at once.
const BATCH: usize = 256;
/// How often every node's kubelet says that it lives.
const HEARTBEAT: f64 = 300.0;

/// The double.
#[derive(Debug)]
pub(super) struct Double {
    world: Mutex<World>,
    writer: Writer,
    changed: watch::Sender<()>,
}

/// What one client is given.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) address: SocketAddr,
    sent: Arc<AtomicU64>,
    serving: AbortHandle,
}

impl Door {
    /// Bytes of answers until now, without HTTP and TLS around them.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Double {
    pub(super) fn new(size: Size) -> Result<Arc<Self>> {
        let world = Mutex::new(World::new(size, unix_millis() / 1_000));
        Ok(Arc::new(Self { world, writer: Writer::new()?, changed: watch::Sender::new(()) }))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets things happen for ever, evenly: so many changes of pods a second,
    /// and the heartbeats of so many nodes.
    pub(super) async fn live(self: Arc<Self>, events: f64, nodes: u32) {
        let mut rng = StdRng::seed_from_u64(9);
        let pods = beats(&self, events, |world, now_s| world.pod_event(&mut rng, now_s));
        let nodes = beats(&self, f64::from(nodes) / HEARTBEAT, World::heartbeat);
        tokio::join!(pods, nodes);
    }

    /// Opens a port for one client.
    pub(super) async fn listen(self: &Arc<Self>, authority: &Authority) -> Result<Door> {
        let tls = TlsAcceptor::from(Arc::new(tls::server_config(authority.resolver(), b"http/1.1")?));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (double, sent) = (Arc::clone(self), Arc::<AtomicU64>::default());
        let counted = Arc::clone(&sent);
        let serving = tokio::spawn(async move {
            // Connections end with the port.
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let (tls, double, sent) = (tls.clone(), Arc::clone(&double), Arc::clone(&counted));
                connections.spawn(async move {
                    socket.set_nodelay(true)?;
                    let stream = TokioIo::new(tls.accept(socket).await?);
                    let service = service_fn(move |request| {
                        let (double, sent) = (Arc::clone(&double), Arc::clone(&sent));
                        async move { Ok::<_, Infallible>(double.answer(&request, sent)) }
                    });
                    http1::Builder::new()
                        .serve_connection(stream, service)
                        .await
                        .context("a connection broke")
                });
            }
        });
        Ok(Door { address, sent, serving: serving.abort_handle() })
    }

    fn answer(self: Arc<Self>, request: &Request<Incoming>, sent: Arc<AtomicU64>) -> Response<Reply> {
        let query = Query::of(request.uri().query().unwrap_or_default());
        let jobs = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs");
        let (code, text) = match (request.method(), request.uri().path()) {
            (&Method::GET, "/version") => (StatusCode::OK, version().to_string()),
            (&Method::GET, "/api/v1/nodes") => return self.objects(Kind::Nodes, &query, sent),
            (&Method::GET, "/api/v1/pods") => return self.objects(Kind::Pods, &query, sent),
            (&Method::GET, path) if path == jobs => return self.objects(Kind::Jobs, &query, sent),
            _ => (StatusCode::NOT_FOUND, status(404, "the double knows nothing of this").to_string()),
        };
        Reply::whole(text, sent).into_response(code)
    }

    fn objects(self: Arc<Self>, kind: Kind, query: &Query, sent: Arc<AtomicU64>) -> Response<Reply> {
        if query.watch {
            let body = Arc::clone(&self).watch(kind, query).map(Bytes::from);
            return Reply { pieces: Box::pin(body), sent }.into_response(StatusCode::OK);
        }
        Reply::whole(self.list(kind, query), sent).into_response(StatusCode::OK)
    }

    /// A page. Its version is that of the first page: what happened since
    /// comes again on the watch from there.
    fn list(&self, kind: Kind, query: &Query) -> String {
        let (objects, next, version) = {
            let world = self.world();
            let (from, version) = query.go_on.unwrap_or((0, world.version()));
            let (objects, next) = world.page(kind, from, query.limit.unwrap_or(usize::MAX));
            (objects, next, version)
        };
        let (list, group) = match kind {
            Kind::Nodes => ("NodeList", "v1"),
            Kind::Pods => ("PodList", "v1"),
            Kind::Jobs => ("JobList", "batch/v1"),
        };
        let mut metadata = json!({ "resourceVersion": version.to_string() });
        if let Some(next) = next {
            metadata["continue"] = json!(format!("{next}.{version}"));
        }
        let mut text =
            format!("{{\"kind\":\"{list}\",\"apiVersion\":\"{group}\",\"metadata\":{metadata},\"items\":[");
        text.reserve(objects.len() * 6_000);
        for (index, object) in objects.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            self.writer.write(object, &mut text);
        }
        text.push_str("]}\n");
        text
    }

    /// The events of a watch, each a piece of its own.
    fn watch(self: Arc<Self>, kind: Kind, query: &Query) -> impl Stream<Item = String> + Send + use<> {
        let now = Instant::now();
        let watcher = Watcher {
            kind,
            version: query.version.unwrap_or_else(|| self.world().version()),
            changed: self.changed.subscribe(),
            bookmark: query.bookmarks.then(|| now + BOOKMARK),
            end: now + query.seconds.map_or(WATCH, Duration::from_secs),
            over: false,
            double: self,
        };
        stream::unfold(watcher, async |mut watcher| {
            let events = watcher.next().await?;
            Some((stream::iter(events), watcher))
        })
        .flatten()
    }

    fn event(&self, kind: &str, object: impl FnOnce(&mut String)) -> String {
        let mut text = format!("{{\"type\":\"{kind}\",\"object\":");
        object(&mut text);
        text.push_str("}\n");
        text
    }
}

/// Lets something happen so many times a second.
async fn beats(double: &Double, rate: f64, mut beat: impl FnMut(&mut World, u64)) {
    if rate <= 0.0 {
        return;
    }
    let mut ticks = interval(Duration::from_secs_f64(1.0 / rate));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        ticks.tick().await;
        beat(&mut double.world(), unix_millis() / 1_000);
        double.changed.send_replace(());
    }
}

/// One watch.
struct Watcher {
    double: Arc<Double>,
    kind: Kind,
    version: u64,
    changed: watch::Receiver<()>,
    /// When the next one goes, where they are wanted.
    bookmark: Option<Instant>,
    end: Instant,
    over: bool,
}

impl Watcher {
    /// What to say next; nothing at the end.
    async fn next(&mut self) -> Option<Vec<String>> {
        loop {
            if self.over {
                return None;
            }
            self.changed.borrow_and_update();
            let changes = {
                let world = self.double.world();
                let changes = world.since(self.kind, self.version, BATCH);
                // What is of other kinds need not be looked through again.
                let through = world.version();
                changes.map(|changes| (changes, through))
            };
            let Ok((changes, through)) = changes else { return Some(vec![self.too_old()]) };
            if !changes.is_empty() {
                let last = changes.last().map_or(through, |change| change.version);
                self.version = if changes.len() < BATCH { through } else { last };
                let double = &self.double;
                let event = |change: &Change| {
                    double.event(change.what.word(), |text| double.writer.write(&change.object, text))
                };
                return Some(changes.iter().map(event).collect());
            }
            self.version = through;
            let next = self.bookmark.map_or(self.end, |at| at.min(self.end));
            tokio::select! {
                // The sender lives as long as the double.
                _changed = self.changed.changed() => {}
                () = sleep_until(next) => {
                    self.over = next == self.end;
                    if let Some(at) = &mut self.bookmark {
                        *at += BOOKMARK;
                        return Some(vec![self.bookmarked()]);
                    }
                }
            }
        }
    }

    fn bookmarked(&self) -> String {
        let (kind, group) = match self.kind {
            Kind::Nodes => ("Node", "v1"),
            Kind::Pods => ("Pod", "v1"),
            Kind::Jobs => ("Job", "batch/v1"),
        };
        let mut object = json!({
            "kind": kind, "apiVersion": group,
            "metadata": { "resourceVersion": self.version.to_string(), "creationTimestamp": null },
            "spec": {}, "status": {},
        });
        if self.kind == Kind::Pods {
            object["spec"] = json!({ "containers": null });
        }
        self.double.event("BOOKMARK", |text| text.push_str(&object.to_string()))
    }

    fn too_old(&mut self) -> String {
        self.over = true;
        let words = format!("too old resource version: {}", self.version);
        self.double.event("ERROR", |text| text.push_str(&status(410, &words).to_string()))
    }
}

fn version() -> Value {
    json!({ "major": "1", "minor": "33", "gitVersion": "v1.33.5", "platform": "linux/amd64" })
}

fn status(code: u16, message: &str) -> Value {
    let reason = if code == 410 { "Expired" } else { "NotFound" };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code,
    })
}

/// What a request asks for beyond its path.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query {
    watch: bool,
    bookmarks: bool,
    limit: Option<usize>,
    /// Where a list goes on, and its version.
    go_on: Option<(usize, u64)>,
    version: Option<u64>,
    seconds: Option<u64>,
}

impl Query {
    fn of(text: &str) -> Self {
        let mut query = Self::default();
        for (name, value) in text.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "watch" => query.watch = matches!(value, "1" | "true"),
                "allowWatchBookmarks" => query.bookmarks = matches!(value, "1" | "true"),
                "limit" => query.limit = value.parse().ok().filter(|limit| *limit > 0),
                "resourceVersion" => query.version = value.parse().ok().filter(|version| *version > 0),
                "timeoutSeconds" => query.seconds = value.parse().ok(),
                "continue" => {
                    let parts = value.split_once('.');
                    query.go_on = parts.and_then(|(from, of)| Some((from.parse().ok()?, of.parse().ok()?)));
                }
                _ => {}
            }
        }
        query
    }
}

/// The body of an answer, counted as it goes.
struct Reply {
    pieces: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
    sent: Arc<AtomicU64>,
}

impl Reply {
    fn whole(text: String, sent: Arc<AtomicU64>) -> Self {
        Self { pieces: Box::pin(stream::iter([Bytes::from(text)])), sent }
    }

    fn into_response(self, code: StatusCode) -> Response<Self> {
        let mut response = Response::new(self);
        *response.status_mut() = code;
        let json = http::HeaderValue::from_static("application/json");
        response.headers_mut().insert(http::header::CONTENT_TYPE, json);
        response
    }
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.pieces.as_mut().poll_next(cx).map(|piece| {
            let piece = piece?;
            self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
            Some(Ok(Frame::data(piece)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_say_what_is_wanted() {
        let list = Query::of("limit=500&continue=1000.77&labelSelector=a%3Db");
        assert_eq!(list, Query { limit: Some(500), go_on: Some((1_000, 77)), ..Query::default() });
        let watch = Query::of("watch=true&timeoutSeconds=20&allowWatchBookmarks=true&resourceVersion=12");
        let (version, seconds) = (Some(12), Some(20));
        assert_eq!(watch, Query { watch: true, bookmarks: true, version, seconds, ..Query::default() });
        // An unset version is written as 0.
        assert_eq!(Query::of("resourceVersion=0&limit=0"), Query::default());
    }

    #[tokio::test]
    async fn lists_come_in_pages_and_watches_go_on_from_them() {
        let double = Double::new(Size { nodes: 3, pods: 4 }).unwrap();
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let first = read(&double.list(Kind::Nodes, &Query::of("limit=2")));
        assert_eq!(first["items"].as_array().unwrap().len(), 2);
        let go_on = first["metadata"]["continue"].as_str().unwrap();
        let second = read(&double.list(Kind::Nodes, &Query::of(&format!("limit=2&continue={go_on}"))));
        assert_eq!(second["items"].as_array().unwrap().len(), 1);
        assert!(second["metadata"].get("continue").is_none());
        let from = second["metadata"]["resourceVersion"].as_str().unwrap();
        double.world().heartbeat(1_790_000_000);
        let query = format!("watch=1&resourceVersion={from}&timeoutSeconds=0&allowWatchBookmarks=1");
        let events: Vec<Value> = Arc::clone(&double)
            .watch(Kind::Nodes, &Query::of(&query))
            .map(|event| read(&event))
            .collect()
            .await;
        let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
        assert_eq!(kinds, ["MODIFIED", "BOOKMARK"]);
        let version = |event: &Value| event["object"]["metadata"]["resourceVersion"].clone();
        assert_eq!(version(&events[0]), version(&events[1]));
        let old = Arc::clone(&double).watch(Kind::Pods, &Query::of("watch=1&resourceVersion=5"));
        let events: Vec<String> = old.collect().await;
        assert!(matches!(events.as_slice(), [only] if read(only)["object"]["code"] == 410), "{events:?}");
    }
}
