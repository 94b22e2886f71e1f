//! A `levers9-controlplane` process that can be killed and started again on
//! the same data and ports.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::live::{Signal, tail};
use crate::{Home, Live, wait};

/// The longest a start may take, the wait for a port included.
const START: Duration = Duration::from_secs(20);
/// The longest an orderly stop may take.
const STOP: Duration = Duration::from_secs(40);

/// The controlplane of a world.
#[derive(Debug)]
pub struct Controlplane {
    home: Arc<Home>,
    /// Names its files.
    name: String,
    data: PathBuf,
    database: Option<String>,
    extra: String,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    live: Option<Live>,
    starts: u32,
    at: Option<At>,
}

/// Where it was first, and is at every start from then on.
#[derive(Debug, Clone)]
struct At {
    dial: String,
    quic: SocketAddr,
    grpc: SocketAddr,
    http: SocketAddr,
}

impl Controlplane {
    /// One that is to run with its data in `data`; not started yet.
    pub(crate) fn new(home: Arc<Home>, data: PathBuf, database: Option<String>, extra: String) -> Self {
        Self { home, name: "controlplane".to_owned(), data, database, extra, inner: Mutex::default() }
    }

    /// Another one on the same data and database, that is to listen on the
    /// same ports of another address of this machine; not started yet.
    #[must_use]
    pub fn beside(&self, name: &str, ip: IpAddr) -> Self {
        let at = self.at();
        let there = |socket: SocketAddr| SocketAddr::new(ip, socket.port());
        let at = At { dial: at.dial, quic: there(at.quic), grpc: there(at.grpc), http: there(at.http) };
        Self {
            home: Arc::clone(&self.home),
            name: name.to_owned(),
            data: self.data.clone(),
            database: self.database.clone(),
            extra: self.extra.clone(),
            inner: Mutex::new(Inner { at: Some(at), ..Inner::default() }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it and waits until it is ready; the second time with the ports
    /// of the first.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(&self) {
        let mut inner = self.inner();
        assert!(inner.live.is_none(), "the controlplane runs already");
        std::fs::write(self.config_file(), self.config(inner.at.as_ref()))
            .expect("the configuration is written");
        let at = wait::until("the start of the controlplane", START, || {
            inner.starts += 1;
            let log = self.log_of(inner.starts);
            let mut command = self.home.command("levers9-controlplane", &["--config"]);
            command.arg(self.config_file());
            let mut live = logged(command, &log);
            // Another process may have its port for a moment; then it says so and ends.
            let at = wait::until("a word of the controlplane", START, || {
                let text = read(&log);
                match (ready(&text), live.poll()) {
                    (Some(at), None) => Ok(Ok(at)),
                    (_, Some(code)) => Ok(Err(format!("it ended with {code}: {text}"))),
                    (None, None) => Err(tail(&text, 2000).to_owned()),
                }
            })?;
            inner.live = Some(live);
            Ok(at)
        });
        inner.at = Some(at);
    }

    /// Kills it at once.
    pub fn kill9(&self) {
        if let Some(mut live) = self.inner().live.take() {
            live.kill9();
        }
    }

    /// Stops it in order (SIGTERM) and returns its exit code.
    ///
    /// # Panics
    /// When it does not run or does not stop.
    pub fn terminate(&self) -> i32 {
        let mut live = self.inner().live.take().expect("the controlplane runs");
        live.signal(Signal::SIGTERM);
        live.wait(STOP)
    }

    /// Asks it to stop (SIGTERM) and does not wait.
    pub fn begin_to_stop(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Waits until it has ended by itself, and returns its exit code.
    ///
    /// # Panics
    /// When it does not run or does not end in time.
    pub fn wait_end(&self, within: Duration) -> i32 {
        let mut live = self.inner().live.take().expect("the controlplane runs");
        live.wait(within)
    }

    /// Whether it runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.inner().live.as_mut().is_some_and(|live| live.poll().is_none())
    }

    /// Sends it a signal, such as `SIGSTOP`.
    pub fn signal(&self, signal: Signal) {
        if let Some(live) = &mut self.inner().live {
            live.signal(signal);
        }
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.inner().live.as_ref().expect("the controlplane runs").pid()
    }

    /// What to dial: `levers9://host:port#sha256:…`.
    #[must_use]
    pub fn address(&self) -> String {
        self.at().dial
    }

    /// Its UDP port.
    #[must_use]
    pub fn quic(&self) -> SocketAddr {
        self.at().quic
    }

    /// Its port for the Python SDK.
    #[must_use]
    pub fn grpc(&self) -> SocketAddr {
        self.at().grpc
    }

    /// Its port for REST, health and metrics.
    #[must_use]
    pub fn http(&self) -> SocketAddr {
        self.at().http
    }

    /// Its data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// All it has logged, of all starts.
    #[must_use]
    pub fn log(&self) -> String {
        let starts = self.inner().starts;
        (1..=starts).map(|start| read(&self.log_of(start))).collect()
    }

    fn at(&self) -> At {
        self.inner().at.clone().expect("the controlplane was started")
    }

    fn log_of(&self, start: u32) -> PathBuf {
        self.home.path().join(format!("{}-{start}.log", self.name))
    }

    fn config_file(&self) -> PathBuf {
        self.home.path().join(format!("{}.yaml", self.name))
    }

    fn config(&self, at: Option<&At>) -> String {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (quic, grpc, http) = at.map_or((any, any, any), |at| (at.quic, at.grpc, at.http));
        let data = self.data.display();
        let database = self.database.as_ref().map(|url| format!("database: \"{url}\"\n")).unwrap_or_default();
        let secret = crate::world::BOOTSTRAP_SECRET;
        let auth = format!("controlplane:\n  auth:\n    bootstrapSecret: {secret}\n");
        format!("data: {data}\n{database}quic: {quic}\ngrpc: {grpc}\nhttp: {http}\n{auth}{}", self.extra)
    }
}

/// Starts a command with both outputs in a file.
pub(crate) fn logged(mut command: Command, log: &Path) -> Live {
    let out = File::create(log).expect("a log file");
    command.stderr(Stdio::from(out.try_clone().expect("a second handle"))).stdout(Stdio::from(out));
    Live::spawn_as_is(command)
}

/// What a log holds now.
pub(crate) fn read(log: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned()
}

/// Where a controlplane says it is.
fn ready(log: &str) -> Option<At> {
    let line = log.lines().find(|line| line.contains(": ready dial="))?;
    let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let port = |name: &str| field(name)?.parse().ok();
    Some(At {
        dial: field("dial")?.to_owned(),
        quic: port("quic")?,
        grpc: port("grpc")?,
        http: port("http")?,
    })
}
