//! The life of one pod, from when it is bound to a node until its object is
//! gone: volumes, containers, the word to the API server, the end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::container::{Container, Ground};
use super::environment::{items, text};
use super::state::{Seen, Shared};
use super::status::{self, About, HOST_IP};
use super::volumes::Volumes;

/// The pause between two looks at processes, when nothing is heard.
const LOOK: Duration = Duration::from_millis(50);
/// How often volumes are compared with what they are made of.
const REFRESH: Duration = Duration::from_secs(1);
/// The pause before a word to the API server is said again.
const AGAIN: Duration = Duration::from_millis(200);

/// Lives one pod to its end.
pub(super) fn live(shared: &Shared, uid: &str) {
    let mut life: Option<Life<'_>> = None;
    let mut pause = Duration::ZERO;
    loop {
        match shared.look(uid, pause) {
            Seen::Gone => break,
            Seen::Paused => {}
            Seen::Pod(pod) => {
                let life = life.get_or_insert_with(|| Life::new(shared, uid, &pod));
                life.pod = pod;
                if life.step() {
                    break;
                }
            }
        }
        pause = LOOK;
    }
    // Whatever of it still runs ends with it.
    drop(life);
    shared.state().processes.retain(|(of, _), _| of != uid);
}

#[derive(Debug)]
struct Life<'s> {
    shared: &'s Shared,
    pod: Value,
    folder: PathBuf,
    ip: String,
    started: String,
    volumes: Volumes,
    containers: Vec<Container>,
    /// Why no container can be made yet.
    blocked: Option<String>,
    refresh: Instant,
    /// When what has been asked to end is killed.
    end: Option<Instant>,
    reported: Value,
    report: Instant,
    /// It was over before this kubelet saw it, or others have declared it so.
    over: bool,
}

impl<'s> Life<'s> {
    fn new(shared: &'s Shared, uid: &str, pod: &Value) -> Self {
        let folder = shared.folder.join("pods").join(uid);
        let ip = if pod["spec"]["hostNetwork"] == true { HOST_IP.to_owned() } else { address() };
        Self {
            shared,
            pod: pod.clone(),
            ip,
            started: Timestamp::now().to_string(),
            volumes: Volumes::new(folder.join("volumes")),
            folder,
            containers: items(&pod["spec"]["containers"]).iter().map(Container::new).collect(),
            blocked: Some(String::new()),
            refresh: Instant::now(),
            end: None,
            reported: Value::Null,
            report: Instant::now(),
            over: false,
        }
    }

    /// Does what is to be done now; true when nothing is left of it.
    fn step(&mut self) -> bool {
        let ending = !self.pod["metadata"]["deletionTimestamp"].is_null();
        let phase = status::phase(&self.containers);
        let declared = ["Succeeded", "Failed"].iter().any(|it| self.pod["status"]["phase"] == *it);
        self.over = self.over || (declared && phase != "Succeeded" && phase != "Failed");
        if ending || self.over {
            self.stop();
        } else {
            self.refresh_volumes();
        }
        self.look_at_containers(!ending && !self.over);
        let runs = self.containers.iter().any(Container::is_running);
        if !self.over {
            self.say();
        }
        ending && !runs && self.remove()
    }

    /// Asks what runs to end, and kills it when its time is up.
    fn stop(&mut self) {
        let grace = self.pod["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(1);
        let end = match self.end {
            Some(end) => end,
            None => {
                self.signal(Signal::SIGTERM);
                let end = Instant::now() + Duration::from_secs(grace);
                *self.end.insert(end)
            }
        };
        // A second deletion may shorten it.
        if Instant::now() >= end || grace == 0 {
            self.signal(Signal::SIGKILL);
        }
    }

    fn signal(&mut self, signal: Signal) {
        for container in &mut self.containers {
            container.signal(signal);
        }
    }

    fn refresh_volumes(&mut self) {
        if Instant::now() < self.refresh {
            return;
        }
        self.refresh = Instant::now() + REFRESH;
        match self.volumes.refresh(self.shared, &self.pod, &self.ip) {
            Ok(()) => self.blocked = None,
            // What was there stays, as in a kubelet.
            Err(why) if self.blocked.is_some() => self.blocked = Some(why),
            Err(_) => {}
        }
        if !items(&self.pod["spec"]["initContainers"]).is_empty() {
            self.blocked = Some("the kubelet of the tests runs no init containers".to_owned());
        }
    }

    fn look_at_containers(&mut self, may_start: bool) {
        let ground = Ground {
            shared: self.shared,
            pod: &self.pod,
            volumes: &self.volumes,
            folder: &self.folder,
            ip: &self.ip,
        };
        for container in &mut self.containers {
            container.look(&ground, may_start);
            if may_start && self.blocked.is_none() {
                container.begin(&ground);
            }
        }
    }

    /// Tells the API server what has changed.
    fn say(&mut self) {
        let about =
            About { pod: &self.pod, ip: &self.ip, started: &self.started, blocked: self.blocked.as_deref() };
        let status = status::of(&about, &self.containers, &self.reported);
        if status == self.reported || Instant::now() < self.report {
            return;
        }
        self.report = Instant::now() + AGAIN;
        let metadata = &self.pod["metadata"];
        let path = format!("{}/status", text(&metadata["name"]));
        let patch = json!({ "metadata": { "uid": metadata["uid"] }, "status": status });
        if self.shared.api.strategic("pods", text(&metadata["namespace"]), &path, &patch).is_ok() {
            self.reported = status;
            self.report = Instant::now();
        }
    }

    /// Removes the object; true when it is not there any more.
    fn remove(&mut self) -> bool {
        if Instant::now() < self.report {
            return false;
        }
        self.report = Instant::now() + AGAIN;
        let metadata = &self.pod["metadata"];
        let options = json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": metadata["uid"] } });
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        match self.shared.api.delete_with("pods", namespace, name, &options) {
            Ok(_) => true,
            Err(refused) => refused.code == 404 || refused.code == 409,
        }
    }
}

/// An address of its own for a pod, on loopback.
fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Test programs that run beside each other have others.
    format!("127.{}.{}.{}", 64 + std::process::id() % 128, number / 250 % 250, number % 250 + 1)
}
