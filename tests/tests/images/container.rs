//! Runs a program of an image the way a kubelet has it run: as the image's
//! user, on a read-only root, without a capability and without a way to gain
//! one.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use levers9_tests::{Home, Live, Output};
use serde_json::{Value, json};

use crate::engine::Image;

/// Whom pods run as.
const USER: u32 = 65_532;

/// A container that is being put together, or runs.
pub(crate) struct Container {
    home: Home,
    id: String,
    spec: Value,
}

impl Container {
    /// One that is to run these words from an image.
    pub(crate) fn of(image: &Image, words: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("levers9-test-{}-{number}", std::process::id());
        let ids: Vec<u32> =
            image.config.user.split(':').map(|id| id.parse().expect("ids are numbers")).collect();
        let none: [&str; 0] = [];
        let mount = |kind: &str, at: &str, options: &[&str]| json!({"type": kind, "source": kind, "destination": at, "options": options});
        let spaces = ["cgroup", "ipc", "mount", "network", "pid", "uts"].map(|kind| json!({"type": kind}));
        let spec = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": ids[0], "gid": ids[1]},
                "args": words,
                "env": image.config.env,
                "cwd": "/",
                "noNewPrivileges": true,
                "capabilities": {"bounding": none, "effective": none, "inheritable": none, "permitted": none, "ambient": none},
            },
            "root": {"path": image.root, "readonly": true},
            "hostname": "pod",
            "mounts": [
                mount("proc", "/proc", &["nosuid", "noexec", "nodev"]),
                mount("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            ],
            "linux": {"cgroupsPath": format!("/{id}"), "namespaces": spaces[1..]},
        });
        Self { home: Home::new(), id, spec }
    }

    fn list(&mut self, at: &str) -> &mut Vec<Value> {
        self.spec.pointer_mut(at).and_then(Value::as_array_mut).expect("a list of the specification")
    }

    /// Adds a variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.list("/process/env").push(json!(format!("{name}={value}")));
        self
    }

    /// Adds an empty folder that the user may write to, of root and the user's
    /// group, as pods with an `fsGroup` get it.
    pub(crate) fn empty_dir(mut self, at: &str) -> Self {
        let path = self.folder().join(at.replace('/', "-"));
        fs::create_dir(&path).expect("a folder to mount");
        chown(&path, Some(0), Some(USER)).expect("root may give it away");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2777)).expect("root may open it");
        self.bind(path, at, &["rbind", "rw", "nosuid", "nodev"]);
        self
    }

    fn bind(&mut self, path: PathBuf, at: &str, options: &[&str]) {
        self.list("/mounts")
            .push(json!({"type": "bind", "source": path, "destination": at, "options": options}));
    }

    /// Adds a file that can be read there.
    pub(crate) fn file(mut self, at: &str, content: &str) -> Self {
        let path = self.folder().join(at.rsplit('/').next().unwrap_or(at));
        fs::write(&path, content).expect("a file to mount");
        self.bind(path, at, &["bind", "ro"]);
        self
    }

    /// Shares the network of this machine, as a way to a controlplane on it.
    pub(crate) fn host_network(mut self) -> Self {
        self.list("/linux/namespaces").retain(|space| space["type"] != "network");
        self
    }

    fn folder(&self) -> PathBuf {
        self.home.path().to_owned()
    }

    /// In a PID namespace that ends with its first process: no container
    /// outlives the test, whichever way that goes.
    fn command(&self) -> Command {
        fs::write(self.folder().join("config.json"), self.spec.to_string()).expect("a specification");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "runc", "--root"]);
        command.arg(self.folder().join("runc")).args(["run", "--bundle"]).arg(self.folder()).arg(&self.id);
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(self) -> Output {
        Output::of(self.command())
    }

    /// Starts it.
    pub(crate) fn start(self) -> Running {
        Running { live: Live::spawn(self.command()), container: self }
    }
}

/// A container that runs until it is dropped.
pub(crate) struct Running {
    /// Its program, or what stands for it out here.
    pub(crate) live: Live,
    container: Container,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.live.kill9();
        // Killed as it is, runc leaves the groups, which go once the last process is gone.
        for _ in 0..100 {
            let groups = groups(&self.container.id);
            if groups.iter().filter(|group| fs::remove_dir(group).is_err()).count() == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The control groups of a container, in either layout.
fn groups(id: &str) -> Vec<PathBuf> {
    let top = PathBuf::from("/sys/fs/cgroup");
    let below = fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
    below.chain([top.clone()]).map(|folder| folder.join(id)).filter(|group| group.is_dir()).collect()
}
