//! What these tests share: a world with a worker, the origin as a job in it,
//! and short ways to ask it something through the controlplane or directly.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use levers9_tests::http::{Answer, Wire};
use levers9_tests::{Backend, Worker, World, binaries, port, wait};
use serde_json::Value;
use tokio::time::Instant;

/// Long enough for anything that has no promise of its own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Who goes away, the other side learns it within this.
pub(crate) const LEARNT: Duration = Duration::from_secs(1);
/// The end of a container or a worker is known within this.
pub(crate) const ENDED: Duration = Duration::from_secs(2);

/// A world with one worker, a public origin and a private one.
pub(crate) struct Shared {
    pub(crate) world: World,
    pub(crate) _worker: Worker,
    pub(crate) public: Site,
    pub(crate) private: Site,
}

/// The world that tests share which stop nothing in it.
pub(crate) fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let world = World::start(Backend::Sqlite);
        let worker = world.worker("one");
        let public = Site::start(&world, &["--name", "open", "--public"]);
        let private = Site::start(&world, &["--name", "closed"]);
        Shared { world, _worker: worker, public, private }
    })
}

/// The public origin of the shared world.
pub(crate) fn site() -> &'static Site {
    &shared().public
}

/// An origin in a job, and where it is reached.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// The controlplane's HTTP port.
    pub(crate) at: SocketAddr,
    /// `/box/SLUG/PORT`.
    pub(crate) prefix: String,
    /// Past the controlplane.
    pub(crate) origin: SocketAddr,
    /// Its task.
    pub(crate) task: String,
}

impl Site {
    /// Starts an origin with more options of `run`, and waits until it listens.
    pub(crate) fn start(world: &World, options: &[&str]) -> Self {
        let site = Self::submit(world, options);
        wait::until("the origin listens", PATIENCE, || {
            let connected = std::net::TcpStream::connect(site.origin);
            connected.map(drop).map_err(|error| format!("{error}; {:#}", world.task(&site.task)))
        });
        world.wait_status(&site.task, "RUNNING", PATIENCE);
        site
    }

    /// Submits an origin with more options of `run`.
    pub(crate) fn submit(world: &World, options: &[&str]) -> Self {
        let port = port::free();
        let words = port.to_string();
        let origin = binaries::path("levers9-test-origin");
        let origin = origin.to_str().expect("a path that is text");
        let begin = ["run", "--detach", "--format", "json", "--port", words.as_str()];
        let args = [&begin, options, &["--", origin, words.as_str()]].concat();
        Self::of(&world.cli(&args).ok().json(), port)
    }

    /// What `run --format json` says of a job with this port.
    pub(crate) fn of(submitted: &Value, port: u16) -> Self {
        let url = text(&submitted["urls"][0]);
        let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("a URL of HTTP: {url}"));
        let (at, path) = rest.split_once('/').unwrap_or_else(|| panic!("a URL with a path: {url}"));
        Self {
            at: at.parse().unwrap_or_else(|error| panic!("{url}: {error}")),
            prefix: format!("/{}", path.trim_end_matches('/')),
            origin: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            task: text(&submitted["task"]).to_owned(),
        }
    }

    /// The task's slug.
    pub(crate) fn slug(&self) -> &str {
        self.prefix.split('/').nth(2).expect("/box/SLUG/PORT")
    }

    /// The head of a request with more lines before its end.
    pub(crate) fn head(&self, method: &str, path: &str, lines: &str) -> Vec<u8> {
        let (at, prefix) = (self.at, &self.prefix);
        format!("{method} {prefix}{path} HTTP/1.1\r\nHost: {at}\r\n{lines}\r\n").into_bytes()
    }

    /// A connection to the controlplane.
    pub(crate) fn connect(&self) -> Wire {
        Wire::connect(self.at)
    }

    /// One request on a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, lines: &str, body: &[u8]) -> Answer {
        ask(&mut self.connect(), method, &[&self.head(method, path, lines), body].concat())
    }

    /// One GET on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", b"")
    }

    /// A request of HTTP/2.
    pub(crate) fn request2(&self, method: &str, path: &str) -> http::request::Builder {
        http::Request::builder().method(method).uri(format!("http://{}{}{path}", self.at, self.prefix))
    }

    /// One GET to the origin itself.
    pub(crate) fn direct(&self, path: &str) -> String {
        let head = format!("GET {path} HTTP/1.1\r\nHost: origin\r\n\r\n");
        ask(&mut Wire::connect(self.origin), "GET", head.as_bytes()).with(200).text()
    }

    /// What the origin has seen that starts like this.
    pub(crate) fn events(&self, start: &str) -> Vec<String> {
        let events = self.direct("/events");
        events.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }

    /// Waits until the origin has seen something that starts like this.
    #[track_caller]
    pub(crate) fn wait_event(&self, start: &str, within: Duration) -> String {
        wait::until(&format!("the origin says {start:?}"), within, || {
            self.events(start).pop().ok_or_else(|| "nothing of that kind".to_owned())
        })
    }

    /// The requests with a mark in their target that came to the origin.
    pub(crate) fn requests(&self, mark: &str) -> Vec<String> {
        let requests = self.events("request ");
        requests.into_iter().filter(|line| line.contains(mark)).collect()
    }
}

/// Sends some bytes and reads one answer.
#[track_caller]
pub(crate) fn ask(wire: &mut Wire, method: &str, request: &[u8]) -> Answer {
    wire.send(request).expect("the request is sent");
    wire.answer(method).unwrap_or_else(|error| {
        let line = request.split(|b| *b == b'\r').next().unwrap_or_default();
        panic!("no answer to {:?}: {error}", String::from_utf8_lossy(line))
    })
}

/// A word that is in no other request.
pub(crate) fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("m{}-", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The text of a JSON string.
#[track_caller]
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Fails when something took longer than it may.
#[track_caller]
pub(crate) fn in_time(since: Instant, within: Duration, what: &str) {
    let took = since.elapsed();
    assert!(took <= within, "{what} took {took:?}, not {within:?}");
}

/// Bytes without a pattern, the same ones each time.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
