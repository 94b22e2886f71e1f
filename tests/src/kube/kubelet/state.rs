//! What the parts of a kubelet share: the pods as the API server has them, and
//! what runs. [`super::watch`] writes the pods, each [`super::life`] its own
//! processes, the test the switches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::life;
use crate::kube::{Api, Cluster};

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod's name.
    pub pod: String,
    /// Its pod's uid.
    pub uid: String,
    /// Its name.
    pub container: String,
    /// Its node.
    pub node: String,
    /// The first process in it, as this machine numbers it.
    pub pid: u32,
    /// What it has written since this start.
    pub log: PathBuf,
    /// How often it was started again.
    pub restarts: u32,
}

/// What all parts of a kubelet know.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) api: Api,
    /// The API server's port.
    pub(super) port: u16,
    /// The port where the API server finds this kubelet.
    pub(super) door: u16,
    pub(super) folder: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) nodes: BTreeSet<String>,
    pub(super) paused: bool,
    pub(super) unpullable: BTreeSet<String>,
    /// What pods take for `/etc/hosts`, where it is not this machine's.
    pub(super) hosts: Option<PathBuf>,
    /// How often new tokens were asked for.
    pub(super) rotations: u64,
    /// By uid and container.
    pub(super) processes: BTreeMap<(String, String), Process>,
    stopped: bool,
    /// Pods of its nodes as the API server has them, by uid.
    pods: HashMap<String, Value>,
    lives: HashMap<String, JoinHandle<()>>,
}

/// What a life of a pod sees when it looks.
#[derive(Debug)]
pub(super) enum Seen {
    Pod(Value),
    /// Nothing may be done now.
    Paused,
    /// It is not there any more, or its node is not, or the kubelet.
    Gone,
}

impl Shared {
    pub(super) fn new(cluster: &Cluster, folder: &Path, nodes: &[&str], door: u16) -> Self {
        let state =
            State { nodes: nodes.iter().map(|node| (*node).to_owned()).collect(), ..State::default() };
        Self {
            api: cluster.kubelet_api(),
            port: cluster.port(),
            door,
            folder: folder.to_owned(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    /// All pods of the cluster, as they are now. One that is still there is
    /// there all the time, or its life would end.
    pub(super) fn replace(self: &Arc<Self>, pods: Vec<Value>) {
        let there: BTreeSet<&str> = pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).collect();
        self.state().pods.retain(|uid, _| there.contains(uid.as_str()));
        for pod in pods {
            self.put(pod);
        }
        self.wake();
    }

    /// A pod as it is now; it comes to life when it is on one of the nodes.
    pub(super) fn put(self: &Arc<Self>, pod: Value) {
        let mut state = self.state();
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        let Some(uid) = pod["metadata"]["uid"].as_str().map(str::to_owned) else { return };
        if !state.nodes.contains(node) || state.stopped {
            return;
        }
        state.pods.insert(uid.clone(), pod);
        let shared = Arc::clone(self);
        state.lives.entry(uid.clone()).or_insert_with(move || {
            let thread = std::thread::Builder::new().name("kubelet".to_owned());
            thread.spawn(move || life::live(&shared, &uid)).expect("a thread")
        });
        drop(state);
        self.wake();
    }

    /// A pod is not there any more.
    pub(super) fn remove(&self, pod: &Value) {
        if let Some(uid) = pod["metadata"]["uid"].as_str() {
            self.state().pods.remove(uid);
        }
        self.wake();
    }

    pub(super) fn add_node(&self, node: &str) {
        self.state().nodes.insert(node.to_owned());
        self.wake();
    }

    pub(super) fn forget_node(&self, node: &str) {
        let mut state = self.state();
        state.nodes.remove(node);
        state.pods.retain(|_, pod| pod["spec"]["nodeName"] != node);
        drop(state);
        self.wake();
    }

    /// What there is of a pod, at once or after a change or a pause.
    pub(super) fn look(&self, uid: &str, pause: Duration) -> Seen {
        let state = self.state();
        let state = if state.stopped {
            state
        } else {
            self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
        };
        match state.pods.get(uid) {
            _ if state.stopped => Seen::Gone,
            None => Seen::Gone,
            Some(_) if state.paused => Seen::Paused,
            Some(pod) => Seen::Pod(pod.clone()),
        }
    }

    /// Ends all lives and waits for them.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        let lives: Vec<_> = state.lives.drain().collect();
        drop(state);
        self.wake();
        for (_, life) in lives {
            // One that failed has said so.
            let _ended = life.join();
        }
    }

    /// Where a container of a pod writes at its nth start.
    pub(super) fn log_of(&self, pod: &Value, container: &str, start: u32) -> PathBuf {
        let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
        let folder = self.folder.join("logs").join(text("name")).join(text("uid"));
        std::fs::create_dir_all(&folder).expect("a folder for logs");
        folder.join(format!("{container}-{start:04}.log"))
    }

    /// The uid of a pod of its nodes that is there.
    pub(super) fn uid_of(&self, namespace: &str, name: &str) -> Option<String> {
        let state = self.state();
        let named =
            |pod: &Value| pod["metadata"]["namespace"] == namespace && pod["metadata"]["name"] == name;
        state.pods.iter().find(|(_, pod)| named(pod)).map(|(uid, _)| uid.clone())
    }

    /// The logs of all pods of a name, oldest start first.
    pub(super) fn logs(&self, pod: &str) -> Vec<PathBuf> {
        let within = |folder: PathBuf| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            paths.sort();
            paths
        };
        within(self.folder.join("logs").join(pod)).into_iter().flat_map(within).collect()
    }
}
