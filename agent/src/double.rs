//! A double of a Kubernetes API server, in this process and on the test's own
//! clock. It is there for what no real one does when told to: lose an answer,
//! leave a watch open and say nothing on it, forget versions, refuse a token
//! that was good a moment ago. Whatever a real one does is tested on a real one.

mod serve;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch as channel;
use tokio::time::Instant;

use crate::kubernetes::Api;
use crate::manifest::rbac::{LAUNCHES, OBSERVES};

/// The namespace its agents work in.
pub(crate) const NAMESPACE: &str = "gpus";

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) body: Value,
    /// What was answered; none where nothing was.
    pub(crate) code: Option<u16>,
}

impl Asked {
    pub(crate) fn is_watch(&self) -> bool {
        self.query.contains_key("watch")
    }

    /// The last word of the path that names a kind.
    pub(crate) fn plural(&self) -> &'static str {
        ["nodes", "pods", "jobs", "version"].into_iter().find(|word| self.path.contains(word)).unwrap_or("?")
    }

    /// Whether the rights that the manifest grants allow it.
    fn is_allowed(&self) -> bool {
        let words: Vec<&str> = self.path.trim_start_matches('/').split('/').collect();
        let (group, namespace, resource, named) = match words.as_slice() {
            // Everybody who is somebody may ask this.
            ["version"] => return self.method == Method::GET,
            ["api", "v1", resource] => ("", None, *resource, false),
            ["apis", group, "v1", "namespaces", namespace, resource, rest @ ..] => {
                (*group, Some(*namespace), *resource, !rest.is_empty())
            }
            _ => return false,
        };
        let verb = match (&self.method, named) {
            (&Method::GET, true) => "get",
            (&Method::GET, false) if self.is_watch() => "watch",
            (&Method::GET, false) => "list",
            (&Method::POST, false) => "create",
            (&Method::DELETE, true) => "delete",
            _ => return false,
        };
        let launches = if namespace == Some(NAMESPACE) { LAUNCHES.as_slice() } else { &[] };
        OBSERVES.iter().chain(launches).any(|right| {
            right.group == group && right.resources.contains(&resource) && right.verbs.contains(&verb)
        })
    }
}

/// What goes wrong.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Nobody answers at all.
    pub(crate) away: bool,
    /// Requests are taken and never answered.
    pub(crate) hangs: bool,
    /// What is created is, and the connection breaks before the answer.
    pub(crate) lost_answers: usize,
    /// The answer to every creation is this.
    pub(crate) creates: Option<(u16, &'static str)>,
    /// The one token that is good.
    pub(crate) token: Option<String>,
    /// Every list ends in something that is none.
    pub(crate) garbage: bool,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<(&'static str, String), Value>,
    version: u64,
    /// Every change since the start.
    changes: Vec<Change>,
    /// Versions older than this are forgotten.
    oldest: u64,
    /// Watches begun before this one say nothing any more.
    deaf_before: u64,
    watches: u64,
    asked: Vec<Asked>,
    faults: Faults,
}

#[derive(Debug, Clone)]
struct Change {
    version: u64,
    plural: &'static str,
    what: &'static str,
    object: Value,
}

/// The double itself.
#[derive(Debug)]
pub(crate) struct Double {
    state: Mutex<State>,
    changed: channel::Sender<()>,
    begun: Instant,
    /// Unix milliseconds at `begun`.
    wall: i64,
}

impl Double {
    pub(crate) fn new() -> Arc<Self> {
        let wall = i64::try_from(levers9_wire::clock::unix_millis()).unwrap();
        let state = Mutex::new(State { version: 10, ..State::default() });
        Arc::new(Self { state, changed: channel::Sender::new(()), begun: Instant::now(), wall })
    }

    /// A way to it; the token is read from a file.
    pub(crate) fn api(self: &Arc<Self>, token: Option<PathBuf>) -> Api {
        let double = Arc::clone(self);
        let service =
            tower::service_fn(move |request: Request<Body>| serve::answer(Arc::clone(&double), request));
        Api::of(kube::Client::new(service, NAMESPACE), token)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Its clock, which follows the test's.
    pub(crate) fn now_ms(&self) -> i64 {
        self.wall + i64::try_from(self.begun.elapsed().as_millis()).unwrap()
    }

    fn timestamp(&self) -> String {
        k8s_openapi::jiff::Timestamp::from_second(self.now_ms() / 1000).unwrap().to_string()
    }

    /// An object comes or changes.
    pub(crate) fn put(&self, plural: &'static str, object: Value) {
        self.state().put(plural, object);
        self.changed.send_replace(());
    }

    /// An object is gone.
    pub(crate) fn remove(&self, plural: &'static str, name: &str) {
        self.state().remove(plural, name);
        self.changed.send_replace(());
    }

    pub(crate) fn get(&self, plural: &'static str, name: &str) -> Option<Value> {
        let state = self.state();
        let found = state.objects.iter().find(|((p, key), _)| *p == plural && name_of(key) == name);
        found.map(|(_, object)| object.clone())
    }

    /// What goes wrong from now on.
    pub(crate) fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state().faults);
    }

    /// No version from before now is known any more, also to watches that are open.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.version += 1;
        state.oldest = state.version;
        drop(state);
        self.changed.send_replace(());
    }

    /// Watches that are open stay so and say nothing more.
    pub(crate) fn deafen(&self) {
        let mut state = self.state();
        state.deaf_before = state.watches;
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    /// Requests of a method about a kind.
    pub(crate) fn count_asked(&self, method: &Method, plural: &str) -> usize {
        self.asked().iter().filter(|asked| asked.method == method && asked.plural() == plural).count()
    }

    /// What was asked that the manifest grants no right to.
    pub(crate) fn beyond_rights(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| !asked.is_allowed()).collect()
    }
}

impl State {
    fn put(&mut self, plural: &'static str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let key = (plural, key_of(&object));
        let what = if self.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        self.changes.push(Change { version: self.version, plural, what, object: object.clone() });
        self.objects.insert(key, object);
    }

    fn remove(&mut self, plural: &'static str, name: &str) {
        let key = self.objects.keys().find(|(p, key)| *p == plural && name_of(key) == name).cloned();
        let Some(mut object) = key.and_then(|key| self.objects.remove(&key)) else { return };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.changes.push(Change { version: self.version, plural, what: "DELETED", object });
    }
}

fn key_of(object: &Value) -> String {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&metadata["namespace"]), text(&metadata["name"]))
}

fn name_of(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}

/// Whether an object has the label of a selector `key=value`.
fn is_selected(object: &Value, selector: Option<&String>) -> bool {
    let Some((key, value)) = selector.and_then(|selector| selector.split_once('=')) else { return true };
    object["metadata"]["labels"][key] == value
}

/// Waits, on the test's clock, until something holds.
pub(crate) async fn until(what: &str, within: Duration, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(within, waiting).await.is_ok(), "not within {within:?}: {what}");
}

/// A node with this much room that is ready.
pub(crate) fn node(name: &str, cards: u32) -> Value {
    json!({
        "metadata": { "name": name, "uid": format!("uid-{name}"), "labels": { "pool": "a" } },
        "status": {
            "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": cards.to_string() },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

/// A pod of another tenant that runs on a node.
pub(crate) fn pod(name: &str, node: &str, cards: u32) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "tenant" },
        "spec": {
            "nodeName": node,
            "containers": [{ "resources": { "limits": { "nvidia.com/gpu": cards.to_string() } } }],
        },
        "status": { "phase": "Running" },
    })
}

type Answer = Result<Response<watch::Pieces>, tower::BoxError>;
