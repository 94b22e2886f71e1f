//! One container of a pod: its starts, its end, and when it is started again.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::environment::{self, expand, items, text};
use super::space::{self, Mount, User};
use super::state::{Process, Shared};
use super::volumes::Volumes;
use crate::Live;
use crate::controlplane::{logged, read};
use crate::live::tail;

/// How much of a log stands in for a message, as in a kubelet.
const MESSAGE_BYTES: usize = 2048;
const MESSAGE_LINES: usize = 80;
/// The pause before an image is asked for again.
const PULL_AGAIN: Duration = Duration::from_millis(1500);
/// The wait before the second restart of a container; it doubles from then on.
const BACKOFF: Duration = Duration::from_secs(1);
/// The longest wait before a restart.
const LONGEST_BACKOFF: Duration = Duration::from_secs(8);
/// The longest a process may take to be there.
const BEGINS: Duration = Duration::from_secs(20);

/// What a container needs to know of its pod to start.
#[derive(Debug)]
pub(super) struct Ground<'a> {
    pub(super) shared: &'a Shared,
    pub(super) pod: &'a Value,
    pub(super) volumes: &'a Volumes,
    pub(super) folder: &'a Path,
    pub(super) ip: &'a str,
}

/// A container of a pod.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) state: State,
    pub(super) last: Option<Value>,
    pub(super) starts: u32,
    /// How long the next restart is put off.
    backoff: Duration,
    due: Instant,
}

#[derive(Debug)]
pub(super) enum State {
    Waiting {
        reason: String,
        message: String,
    },
    Running(Running),
    /// As `state.terminated` says it.
    Ended(Value),
}

/// A process, from its start on.
#[derive(Debug)]
pub(super) struct Running {
    live: Live,
    pid: Pid,
    log: PathBuf,
    message: PathBuf,
    pub(super) since: String,
    started: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

impl Running {
    fn signal(&mut self, signal: Signal) {
        // Once it was waited for, its number may be another's.
        if self.live.poll().is_none() {
            let _ended = kill(self.pid, signal);
        }
    }
}

impl Container {
    pub(super) fn new(container: &Value) -> Self {
        Self {
            name: text(&container["name"]).to_owned(),
            image: text(&container["image"]).to_owned(),
            state: waiting("ContainerCreating", ""),
            last: None,
            starts: 0,
            backoff: Duration::ZERO,
            due: Instant::now(),
        }
    }

    pub(super) fn restarts(&self) -> u32 {
        self.starts.saturating_sub(1)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Its exit code, once it has ended for good.
    pub(super) fn code(&self) -> Option<i64> {
        match &self.state {
            State::Ended(terminated) => terminated["exitCode"].as_i64(),
            _ => None,
        }
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        if let State::Running(running) = &mut self.state {
            running.signal(signal);
        }
    }

    /// Sees whether it has ended, and what is to follow.
    pub(super) fn look(&mut self, ground: &Ground<'_>, may_restart: bool) {
        let id = self.id(ground.pod);
        let State::Running(running) = &mut self.state else { return };
        let Some(code) = running.live.poll() else { return };
        let definition = definition(ground.pod, &self.name);
        let terminated = json!({
            "exitCode": code,
            "reason": if code == 0 { "Completed" } else { "Error" },
            "message": message(definition, running, code),
            "startedAt": running.since,
            "finishedAt": Timestamp::now().to_string(),
            "containerID": id,
        });
        if running.started.elapsed() > LONGEST_BACKOFF * 2 {
            self.backoff = Duration::ZERO;
        }
        let key = (text(&ground.pod["metadata"]["uid"]).to_owned(), self.name.clone());
        ground.shared.state().processes.remove(&key);
        let policy = text(&ground.pod["spec"]["restartPolicy"]);
        if !may_restart || policy == "Never" || (policy == "OnFailure" && code == 0) {
            self.state = State::Ended(terminated);
            return;
        }
        self.last = Some(terminated);
        self.due = Instant::now() + self.backoff;
        let metadata = &ground.pod["metadata"];
        let whose = format!("{}_{}({})", text(&metadata["name"]), text(&metadata["namespace"]), key.0);
        let wait = self.backoff;
        let words = format!("back-off {wait:?} restarting failed container={} pod={whose}", self.name);
        self.state = waiting("CrashLoopBackOff", &words);
        self.backoff = (self.backoff * 2).clamp(BACKOFF, LONGEST_BACKOFF);
    }

    /// Starts it, when it is to run and can.
    pub(super) fn begin(&mut self, ground: &Ground<'_>) {
        if !matches!(self.state, State::Waiting { .. }) || Instant::now() < self.due {
            return;
        }
        if ground.shared.state().unpullable.contains(&self.image) {
            self.state = not_pulled(&self.image, &self.state);
            self.due = Instant::now() + PULL_AGAIN;
            return;
        }
        match self.try_start(ground) {
            Ok(running) => self.state = State::Running(running),
            Err(why) => {
                self.state = waiting("CreateContainerConfigError", &why);
                self.due = Instant::now() + PULL_AGAIN;
            }
        }
    }

    fn try_start(&mut self, ground: &Ground<'_>) -> Result<Running, String> {
        let definition = definition(ground.pod, &self.name);
        let variables = environment::of(ground.shared, ground.pod, definition, ground.ip)?;
        let user = user(ground, definition)?;
        let argv = argv(definition, &variables)?;
        self.starts += 1;
        let folder = ground.folder.join(format!("{}-{}", self.name, self.starts));
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let message = folder.join("termination-log");
        std::fs::write(&message, "").map_err(|error| error.to_string())?;
        let all = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(&message, all).map_err(|error| error.to_string())?;
        let mut mounts = mounts(ground, definition)?;
        let target = definition["terminationMessagePath"].as_str().unwrap_or("/dev/termination-log");
        mounts.push(Mount { source: message.clone(), target: target.to_owned(), read_only: false });
        if let Some(hosts) = ground.shared.state().hosts.clone() {
            mounts.push(Mount { source: hosts, target: "/etc/hosts".to_owned(), read_only: true });
        }
        let working_folder = definition["workingDir"].as_str().unwrap_or("/");
        let mut command = space::command(&folder, &mounts, &user, working_folder, &argv);
        command.envs(variables);
        let log = ground.shared.log_of(ground.pod, &self.name, self.starts);
        let mut live = logged(command, &log);
        let pid = first_process(&mut live, &space::began(&folder))
            .ok_or_else(|| format!("it did not start: {}", read(&log)))?;
        let metadata = &ground.pod["metadata"];
        let process = Process {
            namespace: text(&metadata["namespace"]).to_owned(),
            pod: text(&metadata["name"]).to_owned(),
            uid: text(&metadata["uid"]).to_owned(),
            container: self.name.clone(),
            node: text(&ground.pod["spec"]["nodeName"]).to_owned(),
            pid: u32::try_from(pid.as_raw()).unwrap_or_default(),
            log: log.clone(),
            restarts: self.restarts(),
        };
        ground.shared.state().processes.insert((process.uid.clone(), self.name.clone()), process);
        let since = Timestamp::now().to_string();
        Ok(Running { live, pid, log, message, since, started: Instant::now() })
    }

    pub(super) fn id(&self, pod: &Value) -> String {
        format!("processes://{}/{}/{}", text(&pod["metadata"]["uid"]), self.name, self.starts)
    }
}

fn waiting(reason: &str, message: &str) -> State {
    State::Waiting { reason: reason.to_owned(), message: message.to_owned() }
}

/// An image that is not to be had, in a kubelet's and containerd's words; every
/// other time it is waited for.
fn not_pulled(image: &str, before: &State) -> State {
    let why = format!(
        "rpc error: code = NotFound desc = failed to pull and unpack image \"{image}\": failed to resolve \
         reference \"{image}\": {image}: not found"
    );
    match before {
        State::Waiting { reason, .. } if reason == "ErrImagePull" => {
            waiting("ImagePullBackOff", &format!("Back-off pulling image \"{image}\": ErrImagePull: {why}"))
        }
        _ => waiting("ErrImagePull", &why),
    }
}

fn definition<'p>(pod: &'p Value, name: &str) -> &'p Value {
    let found = items(&pod["spec"]["containers"]).iter().find(|container| container["name"] == name);
    found.expect("the containers of a pod do not change")
}

/// What is run: the pod's command, or the image's, and the pod's arguments.
fn argv(definition: &Value, variables: &[(String, String)]) -> Result<Vec<String>, String> {
    let words = |key: &str| -> Vec<String> {
        items(&definition[key]).iter().map(|word| expand(text(word), variables)).collect()
    };
    let mut argv = words("command");
    if argv.is_empty() {
        let image = text(&definition["image"]);
        // registry.example:5000/levers9-agent:1.0@sha256:...
        let last = image.rsplit('/').next().unwrap_or_default();
        let name = last.split(['@', ':']).next().unwrap_or_default();
        if !name.starts_with("levers9") {
            return Err(format!("no command specified, and the tests do not know what {image} runs"));
        }
        argv = vec![name.to_owned()];
    }
    argv.extend(words("args"));
    // Wherever an image may have them, the binaries under test are in one place.
    if let Some(name) = argv[0].rsplit('/').next().filter(|name| name.starts_with("levers9")) {
        argv[0] = format!("/usr/local/bin/{name}");
    }
    Ok(argv)
}

fn user(ground: &Ground<'_>, definition: &Value) -> Result<User, String> {
    let (own, pods) = (&definition["securityContext"], &ground.pod["spec"]["securityContext"]);
    let number = |key: &str| own[key].as_u64().or(pods[key].as_u64());
    let uid = number("runAsUser").unwrap_or(0);
    if uid == 0
        && (own["runAsNonRoot"] == true || (own["runAsNonRoot"].is_null() && pods["runAsNonRoot"] == true))
    {
        return Err("container has runAsNonRoot and image will run as root".to_owned());
    }
    let supplemental = items(&pods["supplementalGroups"]).iter().filter_map(Value::as_u64);
    let groups = supplemental.chain(pods["fsGroup"].as_u64()).collect();
    Ok(User { uid, gid: number("runAsGroup").unwrap_or(0), groups })
}

fn mounts(ground: &Ground<'_>, definition: &Value) -> Result<Vec<Mount>, String> {
    let mut mounts = Vec::new();
    for mount in items(&definition["volumeMounts"]) {
        let mut source = ground.volumes.source(ground.pod, text(&mount["name"]));
        if let Some(path) = mount["subPath"].as_str() {
            source = source.join(path);
            if !source.exists() {
                std::fs::create_dir_all(&source).map_err(|error| error.to_string())?;
            }
            // What a link leads to now stays mounted.
            source = source.canonicalize().map_err(|error| error.to_string())?;
        }
        let target = text(&mount["mountPath"]).to_owned();
        mounts.push(Mount { source, target, read_only: mount["readOnly"] == true });
    }
    Ok(mounts)
}

/// The first process in the new space, the only child of the one that made it,
/// once it is the container's own: a signal before that would be lost.
fn first_process(live: &mut Live, began: &Path) -> Option<Pid> {
    let maker = live.pid();
    let children = format!("/proc/{maker}/task/{maker}/children");
    let pid = crate::wait::until("the first process of a container", BEGINS, || {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        match text.split_whitespace().next().and_then(|pid| pid.parse().ok()) {
            Some(pid) => Ok(Some(Pid::from_raw(pid))),
            None if live.poll().is_some() => Ok(None),
            None => Err(text),
        }
    })?;
    crate::wait::until("the command of a container", BEGINS, || {
        let ended = live.poll();
        match (read(began).is_empty(), ended) {
            (false, _) => Ok(Some(pid)),
            (true, Some(_)) => Ok(None),
            (true, None) => Err("its space is being made".to_owned()),
        }
    })
}

/// What a container has said of its end, in its file or, where its pod wants
/// so, at the end of its log.
fn message(definition: &Value, running: &Running, code: i32) -> String {
    let said = read(&running.message);
    if !said.is_empty() {
        return tail(&said, 4096).to_owned();
    }
    if code == 0 || definition["terminationMessagePolicy"] != "FallbackToLogsOnError" {
        return String::new();
    }
    let log = read(&running.log);
    let end = tail(&log, MESSAGE_BYTES);
    let lines: Vec<&str> = end.split_inclusive('\n').collect();
    lines[lines.len().saturating_sub(MESSAGE_LINES)..].concat()
}
