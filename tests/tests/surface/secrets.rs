//! What must not be seen: secrets in logs, arguments, files and errors; and
//! that a worker listens on nothing but its containers' doors.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use levers9_tests::{Home, Live, Output, World};

use crate::support::{Operator, PATIENCE, start_worker, text, wait_lines};

const DEBUG: (&str, &str) = ("LEVERS9_LOG", "trace");

/// An installation that logs all it can, with every secret there is in it.
struct Told {
    operator: Operator,
    admin: Home,
    worker: Live,
    worker_home: Home,
    /// What each secret is, and itself.
    secrets: Vec<(&'static str, String)>,
    /// What commands have said at the same level.
    said: String,
}

impl Told {
    fn new() -> Self {
        let bootstrap = format!("bootstrap-{}", unique());
        let operator = Operator::start(Home::new(), "", &[DEBUG, ("LEVERS9_BOOTSTRAP_SECRET", &bootstrap)]);
        let admin = Home::new();
        let mut login = admin.command("levers9", &["login", &operator.dial]);
        login.env("LEVERS9_BOOTSTRAP_SECRET", &bootstrap).env(DEBUG.0, DEBUG.1);
        let mut said = Output::of(login).ok().stderr;
        let config = fs::read_to_string(crate::support::config_file(&admin)).expect("a file");
        let key = config.lines().find_map(|line| line.strip_prefix("token = ")).expect("a token").to_owned();
        let enrolment = admin.cli(&["worker", "enroll", "--format", "json"]).ok().json();
        let enrolment = text(&enrolment["token"]).to_owned();
        let worker_home = Home::new();
        let worker = start_with_state(&worker_home, &operator.dial, &enrolment);
        worker.wait_errors("online", PATIENCE);
        let kept = fs::read_to_string(worker_home.path().join("state/worker.token")).expect("a file");
        let made = admin.cli(&["token", "create", "--format", "json"]).ok().json();
        let member = text(&made["key"]).to_owned();
        let value = format!("value-{}", unique());
        let mut run = admin.command(
            "levers9",
            &["run", "--env", "JOB_SECRET", "--", "sh", "-c", "echo $JOB_SECRET | wc -c"],
        );
        run.env("JOB_SECRET", &value).env(DEBUG.0, DEBUG.1);
        let ran = Output::of(run).ok();
        assert_eq!(ran.text().trim(), (value.len() + 1).to_string());
        said.push_str(&ran.stderr);
        let secrets = vec![
            ("the bootstrap secret", bootstrap),
            ("the admin's token", key),
            ("the enrolment token", enrolment),
            ("the worker's token", kept.trim().to_owned()),
            ("a workspace token", member),
            ("a value of a job's environment", value),
        ];
        Self { operator, admin, worker, worker_home, secrets, said }
    }
}

/// Text that is nowhere else on this machine.
fn unique() -> String {
    levers9_wire::InstanceId::generate().to_string().replace('-', "x")
}

fn start_with_state(home: &Home, address: &str, token: &str) -> Live {
    let args = ["--allow-unisolated", "--controlplane", address, "--data", "data", "--state", "state"];
    let mut command = home.command("levers9-worker", &args);
    command.env("LEVERS9_WORKER_TOKEN", token).env(DEBUG.0, DEBUG.1);
    Live::spawn(command)
}

#[test]
fn no_log_or_file_holds_a_secret_that_is_not_its_own() {
    let told = Told::new();
    let logs = [
        ("the controlplane's log", told.operator.live.errors()),
        ("the worker's log", told.worker.errors()),
        ("what commands said", told.said.clone()),
    ];
    for (whose, log) in &logs {
        assert!(log.lines().count() > 20, "{whose} has only {} lines", log.lines().count());
        for (what, secret) in &told.secrets {
            let line = log.lines().find(|line| line.contains(secret.as_str()));
            assert!(
                line.is_none(),
                "{what} is in {whose}: {}",
                line.unwrap_or_default().replace(secret, "[HERE]")
            );
        }
    }
    // On disk a secret is where its owner keeps it, and nowhere else.
    let mut read = 0;
    for (folder, own) in [
        (told.operator.home.path().to_owned(), ""),
        (told.worker_home.path().to_owned(), "state/worker.token"),
        (told.admin.path().to_owned(), "home/.levers9/config"),
    ] {
        for file in files(&folder).into_iter().filter(|file| !file.ends_with(own) || own.is_empty()) {
            let bytes = fs::read(&file).unwrap_or_default();
            read += bytes.len();
            for (what, secret) in &told.secrets {
                let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
                assert!(!found, "{what} is in {}", file.display());
            }
        }
    }
    assert!(read > 10_000, "only {read} bytes were searched");
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files(&path)),
            Ok(kind) if kind.is_file() => found.push(path),
            _ => {}
        }
    }
    found
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode()
        & 0o777
}

/// Whether a file holds a key or a whole token.
fn holds_secrets(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let long = |rest: &str| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').count() >= 64;
    let key = ["PRIVATE KEY", "levers9 sealing keys"].iter().any(|words| text.contains(words));
    key || text.split("l9_").skip(1).any(long)
}

#[test]
fn keys_and_tokens_are_for_their_owner_only() {
    let told = Told::new();
    let mut seen = BTreeSet::new();
    for home in [&told.operator.home, &told.worker_home, &told.admin] {
        for file in files(home.path()).into_iter().filter(|file| holds_secrets(file)) {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
            seen.insert(file.file_name().expect("a name").to_string_lossy().into_owned());
        }
    }
    let expected = ["ca.key", "config", "leaf.key", "reset.key", "sealing.key", "worker.token"];
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    for folder in [told.operator.home.path().join("data"), told.admin.path().join("home/.levers9")] {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
    }
    let data = told.worker_home.path().join("data");
    assert_eq!(mode(&data) & 0o077, 0, "others can look into {}: {:o}", data.display(), mode(&data));
}

#[test]
fn a_folder_that_is_open_to_all_shows_no_output_of_jobs() {
    let home = Home::new();
    let data = home.path().join("data");
    fs::create_dir(&data).expect("a folder");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).expect("its mode");
    let operator = Operator::start(home, "", &[]);
    let open = |path: &PathBuf| mode(path) & 0o077 != 0;
    let shut = |path: &Path| {
        path.ancestors().skip(1).take_while(|folder| *folder != data).any(|folder| mode(folder) & 0o077 == 0)
    };
    let readable: Vec<PathBuf> = files(&data).into_iter().filter(|file| open(file) && !shut(file)).collect();
    // The CA's own certificate and the leaf's are public.
    let secret: Vec<&PathBuf> =
        readable.iter().filter(|file| file.extension().is_none_or(|ext| ext != "pem")).collect();
    let empty = |file: &&&PathBuf| fs::metadata(file).is_ok_and(|meta| meta.len() > 0);
    let secret: Vec<_> = secret.iter().filter(empty).collect();
    assert!(secret.is_empty() || mode(&data) == 0o700, "others can read {secret:?}");
    drop(operator);
}

#[test]
fn no_process_has_a_secret_among_its_arguments() {
    let told = Told::new();
    let value = format!("value-{}", unique());
    let mut run = told
        .admin
        .command("levers9", &["run", "--env", "JOB_SECRET", "--", "sh", "-c", "echo on; exec sleep 300"]);
    run.env("JOB_SECRET", &value);
    let run = Live::spawn(run);
    wait_lines(&run, 1);
    let mut looked_at = 0;
    for entry in fs::read_dir("/proc").expect("/proc is there").flatten() {
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        looked_at += usize::from(line.contains("levers9"));
        for (what, secret) in
            told.secrets.iter().map(|(what, secret)| (*what, secret)).chain([("a value", &value)])
        {
            assert!(!line.contains(secret.as_str()), "{what} is in: {}", line.replace(secret, "[HERE]"));
        }
    }
    assert!(looked_at >= 4, "only {looked_at} processes of levers9 were seen");
}

/// The socket inodes a process holds.
fn sockets(pid: u32) -> BTreeSet<String> {
    let folder = format!("/proc/{pid}/fd");
    let links = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}")).flatten();
    let inode = |path: PathBuf| {
        let target = fs::read_link(path).ok()?;
        Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    links.filter_map(|link| inode(link.path())).collect()
}

/// The rows of a table under `/proc/net` that are of these sockets, as words.
fn rows(table: &str, inode_at: usize, inodes: &BTreeSet<String>) -> Vec<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let of_these = |row: &Vec<String>| row.get(inode_at).is_some_and(|inode| inodes.contains(inode));
    text.lines().skip(1).map(words).filter(of_these).collect()
}

/// Every process below one, and itself.
fn family(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let below = children.split_whitespace().filter_map(|child| child.parse().ok()).flat_map(family);
    std::iter::once(pid).chain(below).collect()
}

#[test]
fn a_worker_listens_on_nothing_but_a_door_that_wants_a_token() {
    let world = World::start(levers9_tests::Backend::Sqlite);
    let worker = world.worker("one");
    let run = world.cli_spawn(&["run", "--", "sh", "-c", "echo on; exec sleep 300"]);
    wait_lines(&run, 1);
    let processes = family(worker.pid());
    assert!(processes.len() >= 2, "the job is not below its worker: {processes:?}");
    let inodes: BTreeSet<String> = processes.iter().flat_map(|pid| sockets(*pid)).collect();
    let tcp = [rows("tcp", 9, &inodes), rows("tcp6", 9, &inodes)].concat();
    let [door] = &tcp[..] else { panic!("one container has one door: {tcp:?}") };
    let (address, port) = door[1].split_once(':').expect("an address");
    assert_eq!((address, door[3].as_str()), ("0100007F", "0A"), "it listens on loopback alone: {door:?}");
    let port = u16::from_str_radix(port, 16).expect("a port");
    assert_eq!(through_door(port, "/healthz"), 401);
    // 00010000 marks a Unix socket that accepts.
    let unix = rows("unix", 6, &inodes);
    let listening: Vec<_> = unix.iter().filter(|row| row[3] == "00010000").collect();
    assert!(listening.is_empty(), "it listens on Unix sockets: {listening:?}");
    let udp = [rows("udp", 9, &inodes), rows("udp6", 9, &inodes)].concat();
    assert_eq!(udp.len(), 1, "one socket to dial from: {udp:?}");
    let port = udp[0][1].rsplit(':').next().expect("a port");
    let port = u16::from_str_radix(port, 16).expect("a port");
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("a range");
    let range: Vec<u16> = range.split_whitespace().map(|end| end.parse().expect("a port")).collect();
    assert!((range[0]..=range[1]).contains(&port), "port {port} was chosen, not given out from {range:?}");
    // The other way round the method sees what there is: the controlplane does listen.
    let inodes = sockets(world.controlplane.pid());
    let listening = rows("tcp", 9, &inodes).iter().filter(|row| row[3] == "0A").count();
    assert_eq!(listening, 3, "the controlplane's own ports are not seen");
}

/// What a stranger on this machine is answered who knocks at a container's door.
fn through_door(port: u16, path: &str) -> u16 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the door takes connections");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it can be asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
}

#[test]
fn debug_of_the_command_shows_no_token_either() {
    let told = Told::new();
    let home = Home::new();
    let (what, token) = told.secrets[4].clone();
    for args in [&["task", "list"][..], &["run", "--", "true"], &["token", "create"], &["worker", "enroll"]] {
        let mut command = home.command("levers9", args);
        command
            .env("LEVERS9_ADDRESS", &told.operator.dial)
            .env("LEVERS9_TOKEN", &token)
            .env(DEBUG.0, DEBUG.1);
        let did = Output::of(command).ok();
        assert!(did.stderr.lines().count() > 10, "{args:?} logs nothing: {}", did.stderr);
        assert!(!did.stderr.contains(&token), "{what} is in the log of {args:?}");
        // What it has just made is on standard output, once, and not in its log.
        for word in did.text().split([' ', '=', '\n']).filter(|word| word.starts_with("l9_")) {
            assert!(!did.stderr.contains(word), "a new token is in the log of {args:?}");
        }
    }
    let refused = start_worker(&home, &told.operator.dial, &token, "worker", &[DEBUG]);
    refused.wait_errors("cannot start a worker", PATIENCE);
    assert!(!refused.errors().contains(&token), "{what} is in the worker's log");
}
