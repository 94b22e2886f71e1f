//! Ends what a test started when the test process is gone, however it went: a
//! shell that is told of every process and folder, and sees its input end.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

const SCRIPT: &str = r#"
pids=" "
folders=""
while read -r sign what; do
    case $sign in
        +) pids="$pids$what " ;;
        -) pids="${pids%% $what *} ${pids#* $what }" ;;
        f) folders="$folders $what" ;;
    esac
done
for pid in $pids; do
    kill -s KILL -- "-$pid" 2>/dev/null || kill -s KILL "$pid" 2>/dev/null
done
sleep 1
for folder in $folders; do
    umount "$folder"/* 2>/dev/null
    rm -rf "$folder"
done
"#;

fn start() -> Child {
    use std::os::unix::process::CommandExt as _;
    let mut shell = Command::new("sh");
    // A group of its own: Ctrl-C in a terminal reaches it through the pipe alone.
    shell.args(["-c", SCRIPT]).process_group(0).stdin(Stdio::piped());
    shell.stdout(Stdio::null()).stderr(Stdio::null());
    shell.spawn().expect("sh starts")
}

fn tell(line: &str) {
    static WATCHDOG: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
    let watchdog = WATCHDOG.get_or_init(|| Mutex::new(start().stdin.take().expect("a pipe")));
    let mut watchdog = watchdog.lock().unwrap_or_else(PoisonError::into_inner);
    watchdog.write_all(line.as_bytes()).expect("the watchdog of the tests listens");
}

/// Kills the group of this process when the test process is gone.
pub fn watch(pid: u32) {
    tell(&format!("+ {pid}\n"));
}

/// This process has ended.
pub fn forget(pid: u32) {
    tell(&format!("- {pid}\n"));
}

/// Removes this folder when the test process is gone.
pub fn watch_folder(folder: &Path) {
    tell(&format!("f {}\n", folder.display()));
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::start;
    use crate::wait;

    #[test]
    fn a_process_ends_with_all_of_its_group_and_a_folder_goes() {
        let folder = tempfile::tempdir().unwrap().keep();
        let mut group = Command::new("sh");
        group.args(["-c", "sleep 100 & echo $!; wait"]).process_group(0).stdout(Stdio::piped());
        let mut group = group.spawn().unwrap();
        let mut child = String::new();
        BufReader::new(group.stdout.take().unwrap()).read_line(&mut child).unwrap();
        let mut other = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        let mut watchdog = start();
        let mut pipe = watchdog.stdin.take().unwrap();
        // One that is forgotten is left alone.
        let (ended, forgotten, folder_name) = (group.id(), other.id(), folder.display());
        write!(pipe, "+ {forgotten}\n+ {ended}\nf {folder_name}\n- {forgotten}\n").unwrap();
        drop(pipe);
        assert!(!group.wait().unwrap().success());
        let child = format!("/proc/{}/stat", child.trim());
        wait::until("the child has ended", Duration::from_secs(10), || {
            match std::fs::read_to_string(&child) {
                Ok(stat) if !stat.contains(") Z ") => Err(stat),
                _ => Ok(()),
            }
        });
        assert!(watchdog.wait().is_ok());
        assert!(!folder.exists());
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
