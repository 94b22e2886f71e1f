//! Finding a command's program and starting it, with words for every way
//! that can fail. It never falls back to a shell.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{AccessFlags, access};

use super::protocol::{Command, Outcome};

/// Where programs are looked for when the environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Starts the command in a process group of its own, with the supervisor's
/// stdout and stderr and nothing else of it.
pub(super) fn start(command: &Command) -> Result<Child, Outcome> {
    let Some((program, _)) = command.argv.split_first() else {
        return Err(Outcome::StartFailed { words: "the command is empty".to_owned() });
    };
    check_workdir(&command.workdir)?;
    let path = resolve(program, &search_path(&command.env), &command.workdir)?;
    let mut process = process(&path, &command.argv, command);
    process.process_group(0).stdin(Stdio::null());
    with_data_limit(command.data_limit, || process.spawn()).map_err(|error| explain(&path, &error))
}

/// Finds the command, or a shell when it is empty, and becomes it. Calls
/// `ready` just before that; returns only when it fails.
pub(super) fn become_it(command: &Command, ready: impl FnOnce()) -> Outcome {
    let found = check_workdir(&command.workdir).and_then(|()| program_of(command));
    let (path, argv) = match found {
        Ok(found) => found,
        Err(outcome) => return outcome,
    };
    let mut process = process(&path, &argv, command);
    ready();
    match with_data_limit(command.data_limit, || Err::<(), _>(process.exec())) {
        Ok(()) => Outcome::StartFailed { words: "nothing was executed".to_owned() },
        Err(error) => explain(&path, &error),
    }
}

/// The file to execute, and its arguments.
fn program_of(command: &Command) -> Result<(PathBuf, Vec<String>), Outcome> {
    let search = search_path(&command.env);
    if let Some(program) = command.argv.first() {
        return Ok((resolve(program, &search, &command.workdir)?, command.argv.clone()));
    }
    let own = last(&command.env, "SHELL").and_then(|value| std::str::from_utf8(value).ok());
    let mut found =
        own.into_iter().filter(|shell| !shell.is_empty()).chain(["bash", "sh"]).filter_map(|shell| {
            let path = resolve(shell, &search, &command.workdir).ok()?;
            Some((path, vec![shell.to_owned()]))
        });
    found.next().ok_or_else(|| Outcome::NotFound {
        words: format!("there is no shell: neither SHELL is one, nor is bash or sh in PATH {search:?}"),
    })
}

fn process(path: &Path, argv: &[String], command: &Command) -> Process {
    let mut process = Process::new(path);
    if let Some((program, args)) = argv.split_first() {
        process.arg0(program).args(args);
    }
    process
        .env_clear()
        .envs(command.env.iter().map(|(name, value)| (name, OsStr::from_bytes(value))))
        .current_dir(&command.workdir);
    process
}

fn check_workdir(workdir: &Path) -> Result<(), Outcome> {
    match std::fs::metadata(workdir) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => {
            Err(Outcome::StartFailed { words: format!("working directory {workdir:?} is not a folder") })
        }
        Err(error) => Err(Outcome::StartFailed { words: format!("working directory {workdir:?}: {error}") }),
    }
}

/// A child takes its limits from its parent at its birth, so the supervisor
/// has them for that long.
fn with_data_limit<T>(limit: Option<u64>, spawn: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let Some(limit) = limit else { return spawn() };
    let (soft, hard) = getrlimit(Resource::RLIMIT_DATA)?;
    setrlimit(Resource::RLIMIT_DATA, limit.min(hard), hard)?;
    let result = spawn();
    setrlimit(Resource::RLIMIT_DATA, soft, hard)?;
    result
}

fn search_path(env: &[(String, Vec<u8>)]) -> OsString {
    last(env, "PATH").map_or_else(|| DEFAULT_PATH.into(), |value| OsStr::from_bytes(value).to_owned())
}

/// The value a variable ends up with.
fn last<'a>(env: &'a [(String, Vec<u8>)], name: &str) -> Option<&'a [u8]> {
    env.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.as_slice())
}

/// The file that a program's name means.
fn resolve(program: &str, search: &OsStr, workdir: &Path) -> Result<PathBuf, Outcome> {
    if program.contains('/') {
        let path = workdir.join(program);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {
                Err(Outcome::NotFound { words: format!("command not found: {program:?}") })
            }
            Err(errno) => Err(not_executable(&path, errno.desc())),
        };
    }
    let mut refused = None;
    for folder in std::env::split_paths(search).filter(|folder| folder.is_absolute()) {
        let path = folder.join(program);
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) => refused = refused.or(Some(not_executable(&path, errno.desc()))),
        }
    }
    Err(refused.unwrap_or_else(|| Outcome::NotFound {
        words: format!("command not found: {program:?} is in no folder of PATH {search:?}"),
    }))
}

fn executable(path: &Path) -> Result<(), Errno> {
    access(path, AccessFlags::X_OK)?;
    if path.is_dir() { Err(Errno::EISDIR) } else { Ok(()) }
}

fn not_executable(path: &Path, why: &str) -> Outcome {
    Outcome::NotExecutable { words: format!("not executable: {path:?}: {why}") }
}

/// Words for a program that was found and still did not start.
fn explain(path: &Path, error: &io::Error) -> Outcome {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => not_executable(path, "its interpreter or loader does not exist"),
        Some(Errno::ENOEXEC) => {
            not_executable(path, "exec format error; a script needs a first line like #!/bin/sh")
        }
        Some(errno @ (Errno::EACCES | Errno::EPERM | Errno::ELIBBAD | Errno::ETXTBSY)) => {
            not_executable(path, errno.desc())
        }
        _ => Outcome::StartFailed { words: format!("cannot start {path:?}: {error}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn folder_with(name: &str, mode: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, "#!/bin/true\n").expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("permissions");
        folder
    }

    #[test]
    fn looks_in_path_only_for_bare_names() {
        let folder = folder_with("tool", 0o755);
        let search = folder.path().as_os_str();
        assert_eq!(resolve("tool", search, Path::new("/")), Ok(folder.path().join("tool")));
        assert_eq!(resolve("./tool", OsStr::new("/bin"), folder.path()), Ok(folder.path().join("./tool")));
        assert!(matches!(resolve("./tool", search, Path::new("/")), Err(Outcome::NotFound { .. })));
        assert!(matches!(resolve("tool", OsStr::new(""), folder.path()), Err(Outcome::NotFound { .. })));
    }

    #[test]
    fn an_empty_command_is_a_shell_the_own_one_first() {
        let folder = folder_with("mine", 0o755);
        let mine = folder.path().join("mine").to_str().expect("text").to_owned();
        let shell = |own: &str, path: &str| {
            let env = vec![("SHELL".into(), own.into()), ("PATH".into(), path.into())];
            program_of(&Command { argv: vec![], env, workdir: "/".into(), cgroups: vec![], data_limit: None })
        };
        assert_eq!(shell(&mine, "/bin"), Ok((mine.clone().into(), vec![mine])));
        for own in ["", "/no/such/shell", "/etc/passwd"] {
            let (_, argv) = shell(own, "/usr/bin:/bin").expect("found");
            assert!(["bash", "sh"].contains(&argv[0].as_str()));
        }
        assert!(matches!(shell("/none", "/nowhere"), Err(Outcome::NotFound { .. })));
    }

    #[test]
    fn a_file_that_is_not_executable_is_not_missing() {
        let folder = folder_with("tool", 0o644);
        let search = folder.path().as_os_str();
        assert!(matches!(resolve("tool", search, Path::new("/")), Err(Outcome::NotExecutable { .. })));
        assert!(matches!(resolve("/usr", search, Path::new("/")), Err(Outcome::NotExecutable { .. })));
        // A later folder of PATH may still have it.
        let good = folder_with("tool", 0o755);
        let both = std::env::join_paths([folder.path(), good.path()]).expect("no colon in temporary paths");
        assert_eq!(resolve("tool", &both, Path::new("/")), Ok(good.path().join("tool")));
    }
}
