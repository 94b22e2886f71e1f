//! Control groups, version 1 and 2: one group per container under a parent
//! named `levers9` below the worker's own group, for the limits a user asked
//! for. Where they cannot be had it says why, in words for the user. It never
//! touches a group it did not make, except to enable controllers in its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The parent of all groups made here.
const PARENT: &str = "levers9";
/// Where the worker's own processes go when version 2 wants its group empty.
const WORKER_LEAF: &str = "levers9-worker";
/// The span over which CPU time is rationed, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// How often and at what distance a group that is not empty yet is tried.
const REMOVE_TRIES: u32 = 200;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// What a group can limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Cpu,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }
}

/// Where the worker's own group of one controller is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Own {
    folder: PathBuf,
    version_2: bool,
    /// The top of what can be seen.
    top: bool,
}

/// The control groups this process can use.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    memory: Result<Own, String>,
    cpu: Result<Own, String>,
}

/// The groups of one container.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    memory: Option<(PathBuf, bool)>,
    cpu: Option<PathBuf>,
}

/// What limits a container is to have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// CPU in thousandths of a core.
    pub cpu_millis: Option<u64>,
}

impl Cgroups {
    /// Looks at what is mounted. Reads only.
    pub(crate) fn detect() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self {
            memory: locate(Controller::Memory, &mounts, &own),
            cpu: locate(Controller::Cpu, &mounts, &own),
        }
    }

    /// Makes the groups for a container. A limit that cannot be had is `None`
    /// in the group, and the second value says why, memory first.
    pub(crate) fn create(&self, name: &str, limits: Limits) -> (Group, [Option<String>; 2]) {
        let mut group = Group::default();
        let mut why = [None, None];
        if let Some(bytes) = limits.memory_bytes {
            match make(Controller::Memory, &self.memory, name, |own, folder| limit_memory(own, folder, bytes))
            {
                Ok(made) => group.memory = Some(made),
                Err(words) => why[0] = Some(words),
            }
        }
        if let Some(millis) = limits.cpu_millis {
            match make(Controller::Cpu, &self.cpu, name, |own, folder| limit_cpu(own, folder, millis)) {
                // Under version 2 both are one folder.
                Ok((folder, _)) => group.cpu = Some(folder),
                Err(words) => why[1] = Some(words),
            }
        }
        (group, why)
    }

    /// The memory limit of the worker's own group and those above, in bytes.
    pub(crate) fn own_memory_limit(&self) -> Option<u64> {
        let own = self.memory.as_ref().ok()?;
        let file = if own.version_2 { "memory.max" } else { "memory.limit_in_bytes" };
        least_on_the_way_up(&own.folder, |folder| read_number(&folder.join(file)))
    }

    /// The CPU quota of the worker's own group and those above, in thousandths
    /// of a core.
    pub(crate) fn own_cpu_limit(&self) -> Option<u64> {
        let own = self.cpu.as_ref().ok()?;
        least_on_the_way_up(&own.folder, |folder| {
            let (quota, period) = if own.version_2 {
                let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?)
            } else {
                (
                    read_number(&folder.join("cpu.cfs_quota_us"))?,
                    read_number(&folder.join("cpu.cfs_period_us"))?,
                )
            };
            (quota.saturating_mul(1_000)).checked_div(period)
        })
    }
}

impl Group {
    /// The files to write a process into.
    pub(crate) fn procs(&self) -> Vec<PathBuf> {
        self.folders().into_iter().map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// The group's folders, to be recorded and removed after a crash.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let memory = self.memory.as_ref().map(|(folder, _)| folder.clone());
        let mut folders: Vec<PathBuf> = memory.into_iter().chain(self.cpu.clone()).collect();
        folders.dedup();
        folders
    }

    /// How many processes the memory limit has killed so far.
    pub(crate) fn out_of_memory_kills(&self) -> u64 {
        let Some((folder, version_2)) = &self.memory else { return 0 };
        let file = if *version_2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }
}

/// Removes a container's groups, and the parent when it was the last one.
/// Waits for processes that are on their way out.
pub(crate) async fn remove(folders: &[PathBuf]) -> io::Result<()> {
    for folder in folders {
        for attempt in 1.. {
            match fs::remove_dir(folder) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) if attempt >= REMOVE_TRIES => return Err(error),
                Err(_) => tokio::time::sleep(REMOVE_PAUSE).await,
            }
        }
        if let Some(parent) = folder.parent().filter(|parent| parent.ends_with(PARENT)) {
            // Others may still be in it.
            let _shared = fs::remove_dir(parent);
        }
    }
    Ok(())
}

fn locate(controller: Controller, mounts: &str, own: &str) -> Result<Own, String> {
    let name = controller.name();
    let found = locate_1(name, mounts, own).or_else(|| locate_2(mounts, own));
    found.ok_or_else(|| format!("no {name} control groups are mounted"))
}

fn locate_1(name: &str, mounts: &str, own: &str) -> Option<Own> {
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        parts.next()?.split(',').any(|one| one == name).then(|| parts.next())?
    })?;
    let has = |mount: &Mount<'_>| mount.kind == "cgroup" && mount.options.split(',').any(|o| o == name);
    place(mounts, has, path, false)
}

fn locate_2(mounts: &str, own: &str) -> Option<Own> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    place(mounts, |mount| mount.kind == "cgroup2", path, true)
}

struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

/// The folder of a group, given which mount shows it.
fn place(mounts: &str, wanted: impl Fn(&Mount<'_>) -> bool, path: &str, version_2: bool) -> Option<Own> {
    let mount = mounts.lines().filter_map(read_mount).find(wanted)?;
    let below =
        Path::new(path).strip_prefix(mount.root).or_else(|_| Path::new(path).strip_prefix("/")).ok()?;
    let top = below.as_os_str().is_empty();
    Some(Own { folder: Path::new(mount.point).join(below), version_2, top })
}

fn read_mount(line: &str) -> Option<Mount<'_>> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let mut right = right.split(' ');
    Some(Mount { root: left.next()?, point: left.next()?, kind: right.next()?, options: right.nth(1)? })
}

fn make(
    controller: Controller,
    own: &Result<Own, String>,
    name: &str,
    limit: impl FnOnce(&Own, &Path) -> io::Result<()>,
) -> Result<(PathBuf, bool), String> {
    let own = own.as_ref().map_err(Clone::clone)?;
    let folder = own.folder.join(PARENT).join(name);
    let attempt = || {
        if own.version_2 {
            enable(controller, &own.folder, own.top)?;
            fs::create_dir_all(own.folder.join(PARENT))?;
            enable(controller, &own.folder.join(PARENT), false)?;
        }
        // Again when another container's end removed the parent in between.
        fs::create_dir_all(&folder).or_else(|_| fs::create_dir_all(&folder))?;
        limit(own, &folder).inspect_err(|_| {
            // Best effort: the error that matters is the first one.
            let _other = fs::remove_dir(&folder);
        })
    };
    attempt().map(|()| (folder.clone(), own.version_2)).map_err(|error: io::Error| {
        format!("no {} control group at {}: {error}", controller.name(), folder.display())
    })
}

/// Lets the children of a version 2 group have a controller. Such a group may
/// not hold processes, so the worker's own go into a leaf: all of them when
/// the group is the top of what can be seen (a pod's), else only if it is alone.
fn enable(controller: Controller, folder: &Path, top: bool) -> io::Result<()> {
    let file = folder.join("cgroup.subtree_control");
    let name = controller.name();
    if fs::read_to_string(&file)?.split_ascii_whitespace().any(|enabled| enabled == name) {
        return Ok(());
    }
    let word = format!("+{name}");
    let Err(error) = fs::write(&file, &word) else { return Ok(()) };
    if error.kind() != io::ErrorKind::ResourceBusy {
        return Err(error);
    }
    let inside = fs::read_to_string(folder.join("cgroup.procs"))?;
    let own = std::process::id().to_string();
    if !top && inside.lines().any(|pid| pid != own) {
        return Err(error);
    }
    let leaf = folder.join(WORKER_LEAF);
    fs::create_dir_all(&leaf)?;
    for pid in inside.lines() {
        match fs::write(leaf.join("cgroup.procs"), pid) {
            Err(error) if pid == own => return Err(error),
            // Another that ended meanwhile; if it lives, the next write tells.
            _ => {}
        }
    }
    fs::write(&file, &word)
}

fn limit_memory(own: &Own, folder: &Path, bytes: u64) -> io::Result<()> {
    let (limit, swap, no_swap) = if own.version_2 {
        ("memory.max", "memory.swap.max", 0)
    } else {
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", bytes)
    };
    fs::write(folder.join(limit), bytes.to_string())?;
    // Not every kernel counts swap.
    let _uncounted = fs::write(folder.join(swap), no_swap.to_string());
    Ok(())
}

fn limit_cpu(own: &Own, folder: &Path, millis: u64) -> io::Result<()> {
    // The kernel takes no quota below a millisecond.
    let quota = (millis.saturating_mul(CPU_PERIOD_US) / 1_000).max(1_000);
    if own.version_2 {
        return fs::write(folder.join("cpu.max"), format!("{quota} {CPU_PERIOD_US}"));
    }
    fs::write(folder.join("cpu.cfs_period_us"), CPU_PERIOD_US.to_string())?;
    fs::write(folder.join("cpu.cfs_quota_us"), quota.to_string())
}

fn least_on_the_way_up(folder: &Path, read: impl Fn(&Path) -> Option<u64>) -> Option<u64> {
    folder.ancestors().take_while(|folder| folder.join("cgroup.procs").exists()).filter_map(read).min()
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 23 0:25 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 23 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn own(folder: &str, version_2: bool, top: bool) -> Result<Own, String> {
        Ok(Own { folder: folder.into(), version_2, top })
    }

    #[test]
    fn finds_version_1_before_version_2() {
        let groups = "4:memory:/a/b\n1:cpu,cpuacct:/\n0::/\n";
        assert_eq!(
            locate(Controller::Memory, HYBRID, groups),
            own("/sys/fs/cgroup/memory/a/b", false, false)
        );
        assert_eq!(locate(Controller::Cpu, HYBRID, groups), own("/sys/fs/cgroup/cpu,cpuacct", false, true));
        assert!(locate(Controller::Cpu, "", groups).is_err());
    }

    #[test]
    fn finds_version_2_through_the_root_of_its_mount() {
        let mounts = "30 23 0:25 /pods/x /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate\n";
        assert_eq!(locate(Controller::Memory, mounts, "0::/pods/x\n"), own("/sys/fs/cgroup", true, true));
        assert_eq!(
            locate(Controller::Memory, mounts, "0::/pods/x/y\n"),
            own("/sys/fs/cgroup/y", true, false)
        );
    }

    #[test]
    fn writes_version_2_limits_into_one_folder() {
        let root = tempfile::tempdir().expect("a folder");
        for folder in [root.path().to_owned(), root.path().join(PARENT)] {
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("cgroup.subtree_control"), "cpu memory\n").expect("written");
        }
        let own = Own { folder: root.path().to_owned(), version_2: true, top: true };
        let groups = Cgroups { memory: Ok(own.clone()), cpu: Ok(own) };
        let (group, why) =
            groups.create("c", Limits { memory_bytes: Some(1 << 20), cpu_millis: Some(1_500) });
        assert_eq!(why, [None, None]);
        let folder = root.path().join(PARENT).join("c");
        assert_eq!(group.folders(), std::slice::from_ref(&folder));
        assert_eq!(fs::read_to_string(folder.join("cpu.max")).expect("readable"), "150000 100000");
        assert_eq!(fs::read_to_string(folder.join("memory.max")).expect("readable"), "1048576");
        fs::write(folder.join("memory.events"), "oom 2\noom_kill 1\n").expect("written");
        assert_eq!(group.out_of_memory_kills(), 1);
    }

    #[test]
    fn says_why_there_is_no_group() {
        let nowhere = Own { folder: "/proc/no-such-place".into(), version_2: false, top: false };
        let groups = Cgroups { memory: Ok(nowhere), cpu: Err("no cpu control groups are mounted".into()) };
        let (group, why) = groups.create("c", Limits { memory_bytes: Some(1), cpu_millis: Some(1) });
        assert!(group.procs().is_empty());
        let [Some(memory), Some(cpu)] = why else { panic!("both must be explained: {why:?}") };
        assert!(memory.starts_with("no memory control group at /proc/no-such-place/levers9/c"), "{memory}");
        assert_eq!(cpu, "no cpu control groups are mounted");
    }
}
