//! The `process` runtime: containers are plain processes under a supervisor
//! that is this binary again. Nothing is isolated; everything is ended. See
//! [`crate::supervisor`] for the other side of the socket.

use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use levers9_wire::quantity::{show_cpu, show_memory};
use levers9_wire::valid::Env;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::execs::{Base, Desk};
use super::reach::{Ports, Ways};
use super::recover::{self, Record, Recovered};
use super::{Control, End, How, Launch, Pressure, Running, Runtime, StartFailure, folder_name};
use crate::cgroup::{self, Cgroups, Group};
use crate::proc;
use crate::supervisor::channel::{self, LineRecv, LineSend};
use crate::supervisor::protocol::{Command, Ending, Order, Outcome, Report};
use crate::supervisor::{OUTER, OUTER_PLAIN, WORD};

/// The environment variable that marks every process of a container, so that
/// even those that left its process tree are found. Set last.
pub(super) const MARK: &str = "LEVERS9_PROCESS_GROUP";
/// How long the supervisor may take until the command runs.
const START: Duration = Duration::from_secs(30);
/// How long the supervisor may take to kill everything before it is killed.
const KILL: Duration = Duration::from_secs(5);
/// How long the last reports of a supervisor that has ended may take.
const LAST_REPORTS: Duration = Duration::from_secs(1);

/// Settings of the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The binary to execute as supervisor: one that calls
    /// [`crate::run_if_supervisor`] first.
    pub supervisor: PathBuf,
    /// Use a PID namespace where this process may make one.
    pub namespaces: bool,
    /// Use control groups where there are any.
    pub control_groups: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { supervisor: "/proc/self/exe".into(), namespaces: true, control_groups: true }
    }
}

/// The runtime.
#[derive(Debug)]
pub struct Process {
    settings: Settings,
    groups: Option<Cgroups>,
}

impl Process {
    /// A runtime with these settings; looks at the machine's control groups.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let groups = settings.control_groups.then(Cgroups::detect);
        Self { settings, groups }
    }

    /// Makes the groups, and the notes for what is not enforced by one.
    fn limit(&self, launch: &Launch) -> Limited {
        let (group, [memory, cpu]) = match &self.groups {
            Some(groups) => groups.create(&folder_name(launch.container, launch.generation), launch.limits),
            None => {
                let off = || "control groups are switched off".to_owned();
                let limits = launch.limits;
                (Group::default(), [limits.memory_bytes.map(|_| off()), limits.cpu_millis.map(|_| off())])
            }
        };
        let mut limited = Limited { group, memory: launch.limits.memory_bytes, ..Limited::default() };
        if let (Some(why), Some(bytes)) = (memory, launch.limits.memory_bytes) {
            limited.data_limit = Some(bytes);
            let limit = show_memory(bytes);
            let words =
                format!("the memory limit {limit} holds for each process, not for all together: {why}");
            limited.memory_note.clone_from(&words);
            limited.notes.push(words);
        }
        if let (Some(why), Some(millis)) = (cpu, launch.limits.cpu_millis) {
            limited.notes.push(format!("the CPU limit {} is not enforced: {why}", show_cpu(millis)));
        }
        limited
    }
}

/// How a container is limited.
#[derive(Debug, Default)]
struct Limited {
    group: Group,
    memory: Option<u64>,
    data_limit: Option<u64>,
    memory_note: String,
    notes: Vec<String>,
}

#[async_trait]
impl Runtime for Process {
    fn name(&self) -> &'static str {
        "process"
    }

    fn serves_one_workspace(&self) -> bool {
        true
    }

    async fn start(&self, launch: Launch) -> Result<Running, StartFailure> {
        let limited = self.limit(&launch);
        let groups = limited.group.folders();
        let started = match timeout(START, self.begin(launch, limited)).await {
            Ok(result) => result,
            Err(_) => Err(failed(format!("the supervisor did not start the command within {START:?}"))),
        };
        if started.is_err() {
            remove_groups(&groups).await;
        }
        started
    }

    async fn recover(&self, root: &Path) -> io::Result<Recovered> {
        recover::recover(root.to_owned()).await
    }
}

impl Process {
    async fn begin(&self, launch: Launch, limited: Limited) -> Result<Running, StartFailure> {
        let mark = folder_name(launch.container, launch.generation);
        let cannot = |error: io::Error| failed(format!("cannot start the supervisor: {error}"));
        let (mut supervisor, stdout, stderr) = self.spawn(&launch.folder).map_err(cannot)?;
        let Some(Report::Inner { pid: inner }) = supervisor.report().await else {
            return Err(supervisor.explain(&launch.folder).await);
        };
        // Written down before anything runs, so that nothing runs unrecorded.
        let outer = supervisor.child.id().and_then(|pid| i32::try_from(pid).ok());
        let record = Record {
            boot: proc::boot_id(),
            supervisors: outer.into_iter().chain([inner]).filter_map(proc::Identity::of).collect(),
            groups: limited.group.folders(),
        };
        record.write(&launch.folder).map_err(cannot)?;

        let (argv, workdir, data_limit) = (launch.argv, launch.workdir, limited.data_limit);
        let base = Base {
            env: Env(launch.env.clone()),
            last: (MARK.to_owned(), mark.clone().into_bytes()),
            workdir: workdir.clone(),
            data_limit,
        };
        let mut env = launch.env;
        env.push(base.last.clone());
        let order = Order::Run(Command { argv, env, workdir, cgroups: limited.group.procs(), data_limit });
        supervisor.order(&order).await.map_err(cannot)?;
        let Some(Report::Started { pid }) = supervisor.report().await else {
            return Err(supervisor.explain(&launch.folder).await);
        };
        let pid = u32::try_from(seen_from_here(pid, inner)).unwrap_or(0);
        let (control, pressure) = Control::new();
        let notes = limited.notes.clone();
        let desk = Arc::new(Desk::default());
        let inside = Arc::new(Ways { ports: Ports::new(inner), desk: Arc::clone(&desk), base });
        let (folder, desk) = (launch.folder, Open(desk));
        let keeper = Keeper { supervisor, record, mark, folder, limited, pressure, desk };
        Ok(Running { pid, stdout, stderr, notes, control, inside, end: Box::pin(keeper.keep()) })
    }

    fn spawn(&self, folder: &Path) -> io::Result<(Supervisor, PipeReader, PipeReader)> {
        let (stdout, stdout_end) = io::pipe()?;
        let (stderr, stderr_end) = io::pipe()?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        let (orders, reports) = channel::split(ours)?;
        let part = if self.settings.namespaces { OUTER } else { OUTER_PLAIN };
        // The command holds the pipes' other ends and is gone after this.
        let child = tokio::process::Command::new(&self.settings.supervisor)
            .arg0("levers9-supervisor")
            .args([WORD, part])
            .arg(folder)
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(stdout_end)
            .stderr(stderr_end)
            .kill_on_drop(true)
            .spawn()?;
        Ok((Supervisor { child, orders, reports }, stdout, stderr))
    }
}

/// The worker's end of a supervisor.
#[derive(Debug)]
struct Supervisor {
    child: Child,
    orders: LineSend,
    reports: LineRecv,
}

impl Supervisor {
    /// The next report; `None` when both supervisors have ended.
    async fn report(&mut self) -> Option<Report> {
        self.reports.next().await.ok()?
    }

    async fn order(&mut self, order: &Order) -> io::Result<()> {
        self.orders.queue(order, Vec::new())?;
        self.orders.flush().await
    }

    /// Why the command did not start.
    async fn explain(&mut self, folder: &Path) -> StartFailure {
        let status = self.child.wait().await;
        match (Ending::read(folder).map(|ending| ending.map(|ending| ending.outcome)), status) {
            (Ok(Some(Outcome::NotFound { words })), _) => StartFailure { exit_code: 127, words },
            (Ok(Some(Outcome::NotExecutable { words })), _) => StartFailure { exit_code: 126, words },
            (Ok(Some(Outcome::StartFailed { words } | Outcome::Lost { words })), _) => failed(words),
            (Ok(outcome), Ok(status)) => {
                failed(format!("the supervisor failed before the command ran: {status}, outcome {outcome:?}"))
            }
            (Err(error), _) | (_, Err(error)) => {
                failed(format!("the supervisor failed before the command ran: {error}"))
            }
        }
    }
}

/// A desk that takes execs for as long as there is a keeper.
struct Open(Arc<Desk>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Keeps one running container: passes signals and execs on, waits for the
/// end, kills what does not die, reads the outcome, removes the groups.
struct Keeper {
    supervisor: Supervisor,
    record: Record,
    mark: String,
    folder: PathBuf,
    limited: Limited,
    pressure: watch::Receiver<Pressure>,
    desk: Open,
}

impl Keeper {
    async fn keep(mut self) -> End {
        let status = self.watch().await;
        let last =
            async { while self.supervisor.report().await.is_some_and(|report| self.desk.0.take(report)) {} };
        let _late = timeout(LAST_REPORTS, last).await;
        // Ends the inner supervisor should it still be there.
        let Self { supervisor, record, mark, folder, limited, desk, .. } = self;
        drop((supervisor, desk));
        let known = match Ending::read(&folder) {
            Ok(Some(ending)) => ending,
            Ok(None) => lost(format!("the supervisor ended without an outcome: {}", show_status(&status))),
            Err(error) => lost(format!("cannot read the outcome in {}: {error}", folder.display())),
        };
        let mut stuck = known.stuck;
        if !stuck.is_empty() || matches!(known.outcome, Outcome::Lost { .. }) {
            stuck = sweep(record, mark).await;
        }
        // The counter goes with the group: read it first.
        let kills = limited.group.out_of_memory_kills();
        remove_groups(&limited.group.folders()).await;
        conclude(known.outcome, &stuck, kills, &limited)
    }

    async fn watch(&mut self) -> io::Result<ExitStatus> {
        let (mut killed_at, mut listening, mut reading) = (None, true, true);
        loop {
            let patience = async {
                match killed_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let Supervisor { child, orders, reports } = &mut self.supervisor;
            let pending = orders.has_pending();
            tokio::select! {
                status = child.wait() => return status,
                changed = self.pressure.changed(), if listening => {
                    listening = changed.is_ok();
                    let pressure = *self.pressure.borrow_and_update();
                    let order = if pressure == Pressure::Kill { Order::Kill } else { Order::Terminate };
                    if pressure == Pressure::Kill {
                        killed_at = Some(Instant::now() + KILL);
                    }
                    if pressure > Pressure::None {
                        orders.queue(&order, Vec::new())?;
                    }
                }
                flushed = orders.flush(), if pending => if let Err(error) = flushed {
                    tracing::debug!(container = %self.mark, %error, "the supervisor takes no orders");
                    orders.clear();
                },
                // No more are in line than are on the desk.
                () = self.desk.0.work(), if !pending => {
                    for (order, socket) in self.desk.0.orders() {
                        orders.queue(&order, socket.into_iter().collect())?;
                    }
                }
                report = reports.next::<Report>(), if reading => match report.ok().flatten() {
                    Some(report) => reading = self.desk.0.take(report),
                    None => reading = false,
                },
                () = patience => {
                    killed_at = None;
                    tracing::warn!(container = %self.mark, "the supervisor does not kill; doing it for it");
                    sweep(self.record.clone(), self.mark.clone()).await;
                }
            }
        }
    }
}

/// Kills what is left of a container whose supervisor failed.
async fn sweep(record: Record, mark: String) -> Vec<i32> {
    let name = mark.clone();
    let (killed, stuck) = tokio::task::spawn_blocking(move || record.kill(&mark)).await.unwrap_or_default();
    if !killed.is_empty() {
        tracing::warn!(container = %name, ?killed, "killed what the supervisor left");
    }
    stuck
}

async fn remove_groups(folders: &[PathBuf]) {
    if let Err(error) = cgroup::remove(folders).await {
        tracing::warn!(?folders, %error, "cannot remove a control group");
    }
}

fn conclude(outcome: Outcome, stuck: &[i32], kills: u64, limited: &Limited) -> End {
    let limit = || show_memory(limited.memory.unwrap_or(0));
    let mut notes = Vec::new();
    let how = match outcome {
        Outcome::Signaled { signal: 9 } | Outcome::Lost { .. } if kills > 0 => {
            How::OutOfMemory(format!("out of memory: limit {}", limit()))
        }
        Outcome::Exited { code } => How::Exited(code),
        Outcome::Signaled { signal } => How::Signaled(signal),
        Outcome::Lost { words }
        | Outcome::NotFound { words }
        | Outcome::NotExecutable { words }
        | Outcome::StartFailed { words } => How::Lost(words),
    };
    if kills > 0 && !matches!(how, How::OutOfMemory(_)) {
        let (count, processes) = (kills, if kills == 1 { "process was" } else { "processes were" });
        notes.push(format!("{count} {processes} killed for lack of memory: limit {}", limit()));
    }
    if !matches!(how, How::Exited(0)) && !limited.memory_note.is_empty() {
        notes.push(limited.memory_note.clone());
    }
    if !stuck.is_empty() {
        notes.push(format!("processes that do not die of SIGKILL: {stuck:?}"));
    }
    End { how, note: notes.join("; ") }
}

/// The command's number outside its PID namespace: it is the first child of
/// the namespace's process 1.
fn seen_from_here(pid: i32, inner: i32) -> i32 {
    match proc::stat(pid) {
        Some(stat) if stat.parent == inner => pid,
        _ => proc::children(inner).first().copied().unwrap_or(inner),
    }
}

fn failed(words: String) -> StartFailure {
    StartFailure { exit_code: 125, words }
}

fn lost(words: String) -> Ending {
    Ending { outcome: Outcome::Lost { words }, stuck: Vec::new() }
}

fn show_status(status: &io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}
