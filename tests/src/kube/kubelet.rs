//! A kubelet for tests: it runs the pods that are bound to its nodes as real
//! processes on this machine and tells the API server of them as a real one
//! would, so that the real scheduler and controllers drive the real binaries.
//!
//! A container is its command in namespaces of its own for mounts and
//! processes, over the machine's files: what it writes is gone with it, except
//! in its volumes and in `/tmp`, which is the machine's. Its network is the
//! machine's as well; each pod has a loopback address of its own. Images are
//! names only: `levers9-…` as the command, or as the last part of an image
//! without a command, is the binary under test. Users and groups of a security
//! context are honoured, the rest of it is not. Logs can be read through the
//! API, but not followed, and nothing can be run in a container. Probes are
//! not made, a container is ready when it runs. Init containers and volumes of
//! other kinds than those in [`volumes`] are refused, with words in the pod's
//! status.
//!
//! It needs root, and `unshare`, `setpriv` and `mount` of util-linux.

mod container;
mod door;
mod environment;
mod life;
mod space;
mod state;
mod status;
mod volumes;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use tokio::task::JoinHandle;

use door::Door;
pub use state::Process;
use state::Shared;

use super::{Cluster, api};
use crate::controlplane::read;
use crate::{Home, wait};

/// The longest a pod may take to have a process, for those who ask for it.
const RUNS: Duration = Duration::from_secs(30);

/// The kubelet of some nodes. Its processes end with it.
#[derive(Debug)]
pub struct Kubelet {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
    // Last: the lives of pods end before it is removed.
    home: Home,
}

impl Kubelet {
    /// Starts the kubelet of nodes that are there.
    ///
    /// # Panics
    /// When this is not root, or the cluster does not answer.
    #[must_use]
    pub fn start(cluster: &Cluster, nodes: &[&str]) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "the kubelet of the tests needs root, for namespaces and mounts"
        );
        let home = Home::new();
        let door = api::block_on(Door::open());
        let shared = Arc::new(Shared::new(cluster, home.path(), nodes, door.port));
        api::block_on(watch::beat_once(&shared));
        let runtime = api::runtime();
        let answers = runtime.spawn(door.answer(Arc::clone(&shared), cluster.kubelet_identity()));
        let pods = runtime.spawn(watch::follow(Arc::clone(&shared)));
        let beats = runtime.spawn(watch::beat(Arc::clone(&shared)));
        Self { shared, tasks: vec![answers, pods, beats], home }
    }

    /// The containers that run.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        self.shared.state().processes.values().cloned().collect()
    }

    /// Waits until a pod's first container runs, and returns it.
    ///
    /// # Panics
    /// When none does in time.
    #[must_use]
    pub fn process(&self, pod: &str) -> Process {
        wait::until(&format!("a process of pod {pod}"), RUNS, || {
            let all = self.processes();
            all.iter().find(|it| it.pod == pod).cloned().ok_or_else(|| format!("{all:?}"))
        })
    }

    /// Kills the first process of each container of a pod at once, as the
    /// kernel would that is out of memory.
    ///
    /// # Panics
    /// When it has none.
    pub fn kill9(&self, pod: &str) {
        let mut found = 0;
        for process in self.processes().into_iter().filter(|it| it.pod == pod) {
            found += 1;
            let pid = i32::try_from(process.pid).expect("a process id");
            // It may end at this moment.
            let _ended = kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
        }
        assert!(found > 0, "pod {pod} has no process");
    }

    /// All that the containers of a pod have written, of all their starts,
    /// also when it is gone.
    #[must_use]
    pub fn log(&self, pod: &str) -> String {
        self.shared.logs(pod).iter().map(|log| read(log)).collect()
    }

    /// Waits until the log of a pod contains some words.
    ///
    /// # Panics
    /// When it does not within that time.
    pub fn wait_log(&self, pod: &str, words: &str, within: Duration) {
        wait::until(&format!("{words:?} in the log of pod {pod}"), within, || {
            let log = self.log(pod);
            if log.contains(words) { Ok(()) } else { Err(crate::live::tail(&log, 3000).to_owned()) }
        });
    }

    /// Where the volumes of a pod are on this machine, by its uid.
    #[must_use]
    pub fn volumes(&self, uid: &str) -> PathBuf {
        self.home.path().join("pods").join(uid).join("volumes")
    }

    /// Makes an image unpullable, or pullable again.
    pub fn set_pullable(&self, image: &str, pullable: bool) {
        let mut state = self.shared.state();
        if pullable {
            state.unpullable.remove(image);
        } else {
            state.unpullable.insert(image.to_owned());
        }
    }

    /// What every pod that starts from now on takes for `/etc/hosts`.
    pub fn share_hosts(&self, hosts: &Path) {
        self.shared.state().hosts = Some(hosts.to_owned());
    }

    /// Gives every pod new tokens of its service account, within a second or two.
    pub fn rotate_tokens(&self) {
        self.shared.state().rotations += 1;
    }

    /// Says and does nothing until [`Kubelet::resume`]: as if the nodes were cut
    /// off. What runs goes on.
    pub fn pause(&self) {
        self.shared.state().paused = true;
    }

    /// Goes on after [`Kubelet::pause`].
    pub fn resume(&self) {
        self.shared.state().paused = false;
        self.shared.wake();
    }

    /// Takes on another node.
    pub fn add_node(&self, node: &str) {
        self.shared.add_node(node);
    }

    /// A node's machine is lost: its processes end at once, and nothing is said
    /// of it or its pods any more.
    pub fn forget_node(&self, node: &str) {
        self.shared.forget_node(node);
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for process in self.processes() {
                let log = read(&process.log);
                let end = crate::live::tail(&log, 2000);
                crate::live::show(&format!("--- the end of the log of pod {}:\n{end}", process.pod));
            }
        }
        for task in &self.tasks {
            task.abort();
        }
        self.shared.stop();
    }
}
