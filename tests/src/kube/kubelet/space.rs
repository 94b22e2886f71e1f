//! The space a container's process lives in: mounts and process ids of its
//! own, over the machine's files, whose changes go to memory and are gone with
//! it. Two short scripts make it, outside the new root and inside.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::binaries;

/// What a container sees of this machine beside its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) source: PathBuf,
    pub(super) target: String,
    pub(super) read_only: bool,
}

/// Whom a container runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) groups: Vec<u64>,
}

/// Whose only child is the first process of the new space, and who ends as it
/// does: `unshare --fork` takes a killed child for one that has failed. It
/// says nothing of its own: a shell would tell the log that its child was killed.
const MAKER: &str = r#"sh -c "$@" & exec 2>/dev/null; wait $!"#;

/// Where the new root is prepared.
const OUTER: &str = r#"
set -eu
asked=$PATH
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
space=$1 list=$2 inner=$3
exec 9>"$4"
shift 4
root=$space/root
mount -t tmpfs -o mode=0755 tmpfs "$space"
mkdir "$space/upper" "$space/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$space/upper,workdir=$space/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /tmp "$root/tmp"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for device in null zero full random urandom tty fuse; do
    [ -e "/dev/$device" ] || continue
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts"
chmod 1777 "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mkdir -m 0700 "$root/.sources"
tab=$(printf '\t')
number=0
while IFS="$tab" read -r source target mode; do
    number=$((number + 1))
    if [ -d "$source" ]; then mkdir "$root/.sources/$number"; else : >"$root/.sources/$number"; fi
    mount --rbind "$source" "$root/.sources/$number"
done <"$list"
cp "$list" "$root/.mounts"
exec chroot "$root" sh -c "$inner" inner "$asked" "$@"
"#;

/// Where each mount goes to its place, as links in the new root lead there.
const INNER: &str = r#"
set -eu
asked=$1 uid=$2 gid=$3 groups=$4 folder=$5
shift 5
tab=$(printf '\t')
number=0
while IFS="$tab" read -r source target mode; do
    number=$((number + 1))
    if [ -d "/.sources/$number" ]; then
        mkdir -p "$target"
    else
        mkdir -p "${target%/*}"
        [ -e "$target" ] || : >"$target"
    fi
    mount --rbind "/.sources/$number" "$target"
    [ "$mode" = rw ] || mount -o remount,bind,ro "$target"
done </.mounts
[ -d "$folder" ] || mkdir -p "$folder"
echo began >&9
exec 9>&-
if [ "$uid" = 0 ]; then
    exec env -C "$folder" "PATH=$asked" "$@"
fi
exec setpriv --reuid "$uid" --regid "$gid" ${groups:---clear-groups} -- env -C "$folder" "PATH=$asked" "$@"
"#;

/// The file in `folder` that is empty until the container's own command begins.
pub(super) fn began(folder: &Path) -> PathBuf {
    folder.join("began")
}

/// The command that starts a container in a new space under `folder`.
pub(super) fn command(
    folder: &Path,
    mounts: &[Mount],
    user: &User,
    working_folder: &str,
    argv: &[String],
) -> Command {
    let space = folder.join("space");
    std::fs::create_dir_all(&space).expect("a folder for a container");
    let list = folder.join("mounts");
    let mut lines = String::new();
    for mount in binary_mounts().iter().chain(mounts) {
        let mode = if mount.read_only { "ro" } else { "rw" };
        writeln!(lines, "{}\t{}\t{mode}", mount.source.display(), mount.target).expect("text grows");
    }
    std::fs::write(&list, lines).expect("the list of mounts is written");
    let groups: Vec<String> = user.groups.iter().map(u64::to_string).collect();
    let groups = if groups.is_empty() { String::new() } else { format!("--groups={}", groups.join(",")) };
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--", "sh", "-c", MAKER, "maker", OUTER, "outer"]);
    command.arg(&space).arg(&list).arg(INNER).arg(began(folder));
    command.args([&user.uid.to_string(), &user.gid.to_string(), &groups, working_folder]);
    command.args(argv).env_clear().stdin(Stdio::null());
    command
}

/// The binaries under test, where an image of the product has them.
fn binary_mounts() -> Vec<Mount> {
    let mounted = |source: PathBuf| {
        let name = source.file_name()?.to_str()?;
        let target = format!("/usr/local/bin/{name}");
        Some(Mount { target, source, read_only: true })
    };
    binaries::all().into_iter().filter_map(mounted).collect()
}
