//! What the tests of the surface share: one world for those that can, an
//! operator who starts a controlplane by hand, and text in a form that is the
//! same on every machine.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use levers9_tests::live::{Signal, tail};
use levers9_tests::{Backend, Home, Live, Output, Person, Worker, World};

/// How long anything may take that has no promise of its own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A world with one worker.
pub(crate) struct Shared {
    pub(crate) world: World,
    pub(crate) worker: Worker,
}

/// The world that tests share which neither stop nor count anything in it.
pub(crate) fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let world = World::start(Backend::Sqlite);
        let worker = world.worker("one");
        Shared { world, worker }
    })
}

/// A worker process of somebody's own workspace, connected.
pub(crate) fn worker_of(person: &Person, data: &str) -> Live {
    let enrolment = person.json(&["worker", "enroll"]);
    let worker = start_worker(&person.home, person.address(), text(&enrolment["token"]), data, &[]);
    worker.wait_errors("online", PATIENCE);
    worker
}

/// Starts a worker by hand; its log is on its standard error.
pub(crate) fn start_worker(
    home: &Home,
    address: &str,
    token: &str,
    data: &str,
    env: &[(&str, &str)],
) -> Live {
    let mut command = home.command("levers9-worker", &["--allow-unisolated", "--controlplane", address]);
    command.arg("--data").arg(home.path().join(data)).env("LEVERS9_WORKER_TOKEN", token);
    command.envs(env.iter().copied());
    Live::spawn(command)
}

/// The text of a JSON string.
#[track_caller]
pub(crate) fn text(value: &serde_json::Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// A token that looks like one and is none.
pub(crate) fn unknown_token() -> String {
    format!("l9_ws_{}", "u".repeat(64))
}

/// The path of a file of a person's own configuration.
pub(crate) fn config_file(home: &Home) -> PathBuf {
    home.path().join("home/.levers9/config")
}

/// A UDP port nobody listens on, below those that systems give out by themselves.
pub(crate) fn closed_port() -> SocketAddr {
    let free = |port: &u16| UdpSocket::bind(("127.0.0.1", *port)).is_ok();
    let from = 20_000 + u16::try_from(std::process::id() % 8_000).expect("a small number");
    let port = (from..32_000).find(free).expect("a free port");
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A controlplane an operator starts from a configuration of their own.
pub(crate) struct Operator {
    pub(crate) home: Home,
    pub(crate) live: Live,
    pub(crate) dial: String,
    pub(crate) http: SocketAddr,
}

impl Operator {
    /// Starts one on free ports with more lines of configuration.
    pub(crate) fn start(home: Home, config: &str, env: &[(&str, &str)]) -> Self {
        let config = format!("{}{config}", config_in(&home.path().join("data")));
        let live = start_controlplane(&home, &config, env);
        live.wait_errors(": ready dial=", PATIENCE);
        let log = live.errors();
        let line = log.lines().find(|line| line.contains(": ready dial=")).expect("the line waited for");
        let field = |name: &str| {
            let word = line.split(' ').find_map(|word| word.strip_prefix(name));
            word.unwrap_or_else(|| panic!("no {name} in {line}")).to_owned()
        };
        let http = field("http=").parse().expect("an address");
        Self { home, live, dial: field("dial="), http }
    }

    /// Somebody with a token.
    pub(crate) fn person(&self, token: impl Into<String>) -> Person {
        Person::new(&self.dial, token)
    }
}

/// Configuration for free ports and a data folder.
pub(crate) fn config_in(data: &Path) -> String {
    let ports = "quic: 127.0.0.1:0\ngrpc: 127.0.0.1:0\nhttp: 127.0.0.1:0\nnames: [127.0.0.1]\n";
    format!("data: {}\n{ports}", data.display())
}

/// Starts a controlplane from this configuration; its log is on its standard error.
pub(crate) fn start_controlplane(home: &Home, config: &str, env: &[(&str, &str)]) -> Live {
    let file = home.path().join("config.yaml");
    std::fs::write(&file, config).expect("the configuration is written");
    let mut command = home.command("levers9-controlplane", &["--config", "config.yaml"]);
    command.envs(env.iter().copied());
    Live::spawn(command)
}

/// Compares the whole of what a command said and how it ended.
#[track_caller]
pub(crate) fn fails(output: &Output, code: i32, errors: &str) {
    says(output, code, "", errors);
}

/// Compares the whole of what a command printed, said and ended with.
#[track_caller]
pub(crate) fn says(output: &Output, code: i32, printed: &str, errors: &str) {
    let (out, err) = (normal(&output.text()), normal(&output.stderr));
    let did = (output.code, out.trim_end(), err.trim_end());
    assert_eq!(did, (code, printed, errors), "{}", output.what);
}

/// Text without what differs from run to run: folders, ports, ids, pins, tokens.
pub(crate) fn normal(text: &str) -> String {
    let folder = std::env::temp_dir().join("levers9-test-").display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric();
    let text = replace(text, &folder, plain, "[HOME]");
    let text = replace(&text, "127.0.0.1:", |c| c.is_ascii_digit(), "127.0.0.1:[PORT]");
    let text = replace(&text, "sha256:", |c| c.is_ascii_hexdigit(), "sha256:[PIN]");
    let mut text = replace(&text, "l9_", |c| plain(c) || "_-".contains(c), "[TOKEN]");
    while let Some(at) = (0..text.len()).find(|at| is_id(text.as_bytes().get(*at..at + 36))) {
        text.replace_range(at..at + 36, "[ID]");
    }
    text
}

/// Replaces `start` and what follows of `more`, where something does, by `with`.
fn replace(text: &str, start: &str, more: impl Fn(char) -> bool, with: &str) -> String {
    let mut parts = text.split(start);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(&more);
        out.push_str(if rest.len() < part.len() { with } else { start });
        out.push_str(rest);
    }
    out
}

fn is_id(bytes: Option<&[u8]>) -> bool {
    let dash = |at: usize| [8, 13, 18, 23].contains(&at);
    let good = |(at, byte): (usize, &u8)| if dash(at) { *byte == b'-' } else { byte.is_ascii_hexdigit() };
    bytes.is_some_and(|bytes| bytes.iter().enumerate().all(good))
}

/// Waits until a process has ended and compares all it said.
#[track_caller]
pub(crate) fn ends(live: &mut Live, code: i32, printed: &str, errors: &str) {
    let ended = live.wait(PATIENCE);
    let (out, err) = (normal(&live.text()), normal(&live.errors()));
    assert_eq!((ended, out.trim_end(), err.trim_end()), (code, printed, errors));
}

/// Stops a process in order.
pub(crate) fn terminate(live: &mut Live) -> i32 {
    live.signal(Signal::SIGTERM);
    live.wait(Duration::from_secs(40))
}

/// Looks until a file or log of a process holds some words.
pub(crate) fn wait_lines(live: &Live, lines: usize) {
    live.wait_text(&format!("{lines} lines"), PATIENCE, |text| text.lines().count() >= lines);
}

/// An HTTP/1.1 request with headers: status code and body.
pub(crate) fn request(address: SocketAddr, head: &str, headers: &[(&str, &str)]) -> (u16, String) {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).expect("the HTTP port accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let asked = format!("{head} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{lines}\r\n");
    stream.write_all(asked.as_bytes()).expect("it is sent");
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.unwrap_or_else(|| panic!("no answer to {head}: {read:?} {}", tail(&answer, 500)));
    (code, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// The first number a statement answers, from an SQLite file.
pub(crate) fn sql(file: &Path, statement: &'static str) -> i64 {
    use sqlx::{AnyConnection, Connection as _};
    sqlx::any::install_default_drivers();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection =
            AnyConnection::connect(&format!("sqlite:{}", file.display())).await.expect("the file opens");
        let answered = sqlx::query_scalar(statement).fetch_one(&mut connection).await;
        connection.close().await.expect("the file closes");
        answered.unwrap_or_else(|error| panic!("{statement}: {error}"))
    })
}

/// Waits until a task of the world runs.
pub(crate) fn running(world: &World, task: &str) {
    let _task = world.wait_status(task, "RUNNING", PATIENCE);
}
