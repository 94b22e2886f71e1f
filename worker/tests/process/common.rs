//! A worker's containers without a network, with `levers9-worker` itself as
//! supervisor, and ways to look at what they leave behind.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use levers9_wire::valid::{Env, Run, Spec};
use levers9_wire::{AttemptNumber, ContainerId, Generation, TaskId, WorkspaceId, v1};
use levers9_worker::runtime::{Process, Settings};
use levers9_worker::spool::Spool;
use levers9_worker::{Config, Containers, Handle};

/// How long anything may take before a test fails; nothing waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Worker {
    pub(crate) containers: Containers,
    pub(crate) data: Arc<tempfile::TempDir>,
}

pub(crate) fn settings(namespaces: bool) -> Settings {
    Settings { supervisor: env!("CARGO_BIN_EXE_levers9-worker").into(), namespaces, ..Settings::default() }
}

pub(crate) fn config(data: &Path) -> Config {
    let facts = v1::WorkerFacts {
        cpu_millis: 64_000,
        memory_bytes: 1 << 40,
        gpu_type: "T4".into(),
        gpu_count: 3,
        ..Default::default()
    };
    Config::new(data.to_owned(), facts)
}

pub(crate) async fn worker_with(settings: Settings, adjust: impl FnOnce(&mut Config)) -> Worker {
    let data = Arc::new(tempfile::tempdir().expect("a folder"));
    let mut config = config(data.path());
    adjust(&mut config);
    let (containers, _) = Containers::open(config, Arc::new(Process::new(settings))).await.expect("opens");
    Worker { containers, data }
}

pub(crate) async fn worker() -> Worker {
    worker_with(settings(true), |_| {}).await
}

/// One workspace for all tests of a process.
pub(crate) fn workspace() -> WorkspaceId {
    static ONE: std::sync::OnceLock<WorkspaceId> = std::sync::OnceLock::new();
    *ONE.get_or_init(WorkspaceId::generate)
}

pub(crate) fn command(words: &[&str]) -> Run {
    let spec = Spec {
        token: levers9_wire::token::Secret::new(""),
        workspace: workspace(),
        command: words.iter().map(|word| (*word).to_owned()).collect(),
        env: Env::default(),
        resources: v1::Resources::default(),
        task: TaskId::generate(),
        attempt: AttemptNumber(1),
        timeout: None,
        name: String::new(),
    };
    Run { container: ContainerId::generate(), generation: Generation(1), since_event: 0, spec: Some(spec) }
}

pub(crate) fn shell(script: &str) -> Run {
    command(&["sh", "-c", script])
}

pub(crate) fn spec(run: &mut Run) -> &mut Spec {
    run.spec.as_mut().expect("a container to run")
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

/// Runs one test of this binary in a process of its own.
pub(crate) fn alone(test: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().expect("known"));
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Waits until a condition that nothing tells of holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Waits for the last event.
pub(crate) async fn end(handle: &Handle) -> v1::RunEnded {
    let mut handle = handle.clone();
    within("the end", async {
        loop {
            handle.changed().await;
            if let Some(v1::run_event::Kind::Ended(ended)) = handle.events_since(0).pop().and_then(|e| e.kind)
            {
                return ended;
            }
        }
    })
    .await
}

pub(crate) async fn pid(handle: &Handle) -> i32 {
    let mut handle = handle.clone();
    within("the start", async {
        loop {
            handle.changed().await;
            match handle.events_since(0).into_iter().next().and_then(|event| event.kind) {
                Some(v1::run_event::Kind::Started(started)) => {
                    return i32::try_from(started.pid).expect("small");
                }
                Some(other) => panic!("did not start: {other:?}"),
                None => {}
            }
        }
    })
    .await
}

/// All records there are now.
pub(crate) async fn records(handle: &Handle) -> Vec<v1::LogRecord> {
    records_of(&handle.log()).await
}

/// All records there are now of a log.
pub(crate) async fn records_of(log: &Spool) -> Vec<v1::LogRecord> {
    let mut all: Vec<v1::LogRecord> = Vec::new();
    loop {
        let next = all.last().map_or(0, |record| record.index + 1);
        let more = log.read(next, 1 << 20).await.expect("readable");
        if more.is_empty() {
            return all;
        }
        all.extend(more);
    }
}

pub(crate) async fn output(handle: &Handle, stream: v1::LogStream) -> Vec<u8> {
    let records = records(handle).await;
    records
        .iter()
        .filter(|record| record.stream() == stream)
        .flat_map(|record| record.data.to_vec())
        .collect()
}

pub(crate) async fn stdout(handle: &Handle) -> String {
    String::from_utf8_lossy(&output(handle, v1::LogStream::Stdout).await).into_owned()
}

/// Waits until the output so far holds a text.
pub(crate) async fn says(handle: &Handle, text: &str) {
    let mut progress = handle.log().progress();
    within(text, async {
        while !stdout(handle).await.contains(text) {
            progress.changed().await.expect("the log is open");
        }
    })
    .await;
}

/// Runs something to its end: how it ended, and what it wrote to stdout.
pub(crate) async fn run(containers: &Containers, run: Run) -> (v1::RunEnded, String) {
    let handle = containers.run(run).expect("taken");
    let ended = end(&handle).await;
    (ended, stdout(&handle).await)
}

/// Living processes of a container, wherever they have gone: they carry its
/// id in the environment or on the command line.
pub(crate) fn survivors(container: ContainerId) -> Vec<i32> {
    let id = container.to_string();
    let holds = |pid: i32, file: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(id.len()).any(|window| window == id.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").expect("readable").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| holds(*pid, "environ") || holds(*pid, "cmdline"))
        // What holds the id and is dead, or a supervisor: its folder has the id as its name.
        .filter(|pid| !matches!(state(*pid), None | Some('Z' | 'X')) && !is_supervisor(*pid))
        .collect()
}

/// Whether a process is a supervisor.
pub(crate) fn is_supervisor(pid: i32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.windows(9).any(|window| window == b"supervise")
}

/// The letter of a process's state.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim().chars().next()
}

/// Control groups with this container's name.
pub(crate) fn groups(container: ContainerId) -> Vec<std::path::PathBuf> {
    fn walk(folder: &Path, name: &str, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(name) {
                    found.push(entry.path());
                }
                walk(&entry.path(), name, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), &container.to_string(), &mut found);
    found
}
