//! Ends what a test started when the test process is gone, however it went: a
//! shell that is told of every process and folder, and sees its input end.

use std::io::Write as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
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
    kill -9 -- "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null
done
sleep 1
for folder in $folders; do
    umount "$folder"/* 2>/dev/null
    rm -rf "$folder"
done
"#;

fn tell(line: &str) {
    static WATCHDOG: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
    let watchdog = WATCHDOG.get_or_init(|| {
        use std::os::unix::process::CommandExt as _;
        let mut shell = Command::new("sh");
        // A group of its own: Ctrl-C in a terminal reaches it through the pipe alone.
        shell.args(["-c", SCRIPT]).process_group(0).stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        Mutex::new(shell.spawn().expect("sh starts").stdin.take().expect("a pipe"))
    });
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
