//! A private PostgreSQL for tests, from the distribution's binaries: one per
//! test binary, on a Unix socket in a temporary folder, with a fresh database
//! for whoever asks. A watchdog holds the end of a pipe; when the test process
//! is gone, however it went, the server and its folder go too.
//!
//! A machine without the binaries fails the tests. It never skips them.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::wait;

/// The longest the server may take to start.
const START: Duration = Duration::from_secs(30);

/// The URL of a database nobody else uses.
///
/// # Panics
/// When there is no PostgreSQL, or it does not work.
#[must_use]
pub fn fresh_database() -> String {
    static SERVER: OnceLock<Server> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let server = SERVER.get_or_init(Server::start);
    let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    wait::until("CREATE DATABASE in the test PostgreSQL", START, || server.create(&name));
    format!("postgres://tester@localhost/{name}?host={}", server.folder.display())
}

#[derive(Debug)]
struct Server {
    binaries: PathBuf,
    folder: PathBuf,
    /// Closed by the system when this process ends: the watchdog's sign.
    _life: ChildStdin,
}

/// Who the server runs as: it refuses to be root.
#[derive(Debug)]
struct User {
    uid: u32,
    gid: u32,
}

const WATCHDOG: &str = r#"
"$1"/postgres -D "$2"/data -k "$2" -c listen_addresses= -c fsync=off -c full_page_writes=off \
    -c synchronous_commit=off -c max_connections=200 >"$2"/log 2>&1 &
server=$!
cat >/dev/null
kill -QUIT $server
wait $server
rm -rf "$2"
"#;

impl Server {
    fn create(&self, name: &str) -> Result<(), String> {
        let mut create = Command::new(self.binaries.join("createdb"));
        create.arg("-h").arg(&self.folder).args(["-U", "tester", name]).stdin(Stdio::null());
        let made = create.output().expect("createdb starts");
        let log = || std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        if made.status.success() {
            Ok(())
        } else {
            Err(format!("{}{}", String::from_utf8_lossy(&made.stderr), log()))
        }
    }

    fn start() -> Self {
        let binaries = binaries();
        let user = nix::unistd::geteuid().is_root().then(unprivileged);
        let folder =
            tempfile::Builder::new().prefix("levers9-pg-").tempdir().expect("a temporary folder").keep();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).expect("chmod");
        if let Some(user) = &user {
            chown(&folder, Some(user.uid), Some(user.gid)).expect("chown");
        }
        let mut init = Command::new(binaries.join("initdb"));
        init.args(["--auth=trust", "--username=tester", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]);
        let made =
            run_as(init.arg(folder.join("data")), user.as_ref(), &folder).output().expect("initdb starts");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut watchdog = Command::new("sh");
        watchdog.args(["-c", WATCHDOG, "watchdog"]).arg(&binaries).arg(&folder);
        // A group of its own: Ctrl-C reaches it through the pipe alone.
        run_as(&mut watchdog, user.as_ref(), &folder)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let life = watchdog.stderr(Stdio::null()).spawn().expect("sh starts").stdin.take().expect("a pipe");
        Self { binaries, folder, _life: life }
    }
}

/// The binaries `PG_BIN` names, or the distribution's newest.
fn binaries() -> PathBuf {
    let complete =
        |folder: &PathBuf| ["postgres", "initdb", "createdb"].iter().all(|it| folder.join(it).exists());
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin")))
        })
        .filter(|(_, folder)| complete(folder))
        .max();
    let given = std::env::var_os("PG_BIN").map(PathBuf::from);
    let found = given.or(newest.map(|(_, folder)| folder)).filter(complete);
    found.expect("no PostgreSQL binaries in PG_BIN or /usr/lib/postgresql: install postgresql")
}

fn unprivileged() -> User {
    let found =
        ["postgres", "nobody"].iter().find_map(|name| nix::unistd::User::from_name(name).ok().flatten());
    let user = found.expect("root needs a user `postgres` or `nobody` to run PostgreSQL as");
    User { uid: user.uid.as_raw(), gid: user.gid.as_raw() }
}

fn run_as<'c>(command: &'c mut Command, user: Option<&User>, folder: &Path) -> &'c mut Command {
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    command.current_dir(folder)
}
