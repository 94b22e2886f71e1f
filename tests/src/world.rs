//! A controlplane with what belongs to it.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::live::tail;
use crate::{Controlplane, Home, Live, Output, Relay, Worker, postgres, wait};

/// The secret the first token is traded for.
pub const BOOTSTRAP_SECRET: &str = "a-secret-that-only-tests-know-0123456789";
/// The longest a worker may take to connect.
const CONNECT: Duration = Duration::from_secs(20);

/// Which database the controlplane has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// SQLite in its data folder.
    Sqlite,
    /// A fresh database of the tests' own PostgreSQL.
    Postgres,
}

/// How a world is to be, where it is not as usual.
#[derive(Debug, Default)]
pub struct Setup {
    /// The controlplane's data folder, where it is not in the world's own.
    pub data: Option<PathBuf>,
    /// More lines for its configuration, as YAML.
    pub config: String,
    /// A name under which the controlplane is dialed, for all programs of this
    /// world; see [`Home::resolve`].
    pub name: Option<&'static str>,
}

/// A running controlplane, a home that is logged in to it as admin, and the
/// means to add workers.
#[derive(Debug)]
pub struct World {
    /// The controlplane: `kill9()`, `terminate()`, `start()`.
    pub controlplane: Controlplane,
    /// Where the command is run from.
    pub home: Arc<Home>,
}

impl World {
    /// Starts a controlplane and logs in with the bootstrap secret.
    #[must_use]
    pub fn start(backend: Backend) -> Self {
        Self::start_with(backend, Setup::default())
    }

    /// Starts a controlplane that is not as usual.
    #[must_use]
    pub fn start_with(backend: Backend, setup: Setup) -> Self {
        let home = Arc::new(setup.name.map_or_else(Home::new, |name| {
            let home = Home::with_names();
            home.resolve(name, &[Ipv4Addr::LOCALHOST.into()]);
            home
        }));
        let database = match backend {
            Backend::Sqlite => None,
            Backend::Postgres => Some(postgres::fresh_database()),
        };
        let data = setup.data.unwrap_or_else(|| home.path().join("controlplane"));
        let names = setup.name.map(|name| format!("names: [{name}]\n")).unwrap_or_default();
        let config = format!("{names}{}", setup.config);
        let controlplane = Controlplane::new(Arc::clone(&home), data, database, config);
        controlplane.start();
        let world = Self { controlplane, home };
        let mut login = world.home.command("levers9", &["login", &world.controlplane.address()]);
        login.env("LEVERS9_BOOTSTRAP_SECRET", BOOTSTRAP_SECRET);
        let _logged_in = Output::of(login).ok();
        world
    }

    /// Adds a worker and waits until it is connected.
    #[must_use]
    pub fn worker(&self, name: &str) -> Worker {
        self.worker_with(name, &[])
    }

    /// Adds a worker with more arguments and waits until it is connected.
    #[must_use]
    pub fn worker_with(&self, name: &str, args: &[&str]) -> Worker {
        self.enroll(name, None, args)
    }

    /// Adds a worker that reaches the controlplane through a relay, and waits
    /// until it is connected.
    #[must_use]
    pub fn worker_via(&self, name: &str, relay: &Relay) -> Worker {
        self.enroll(name, Some(relay), &[])
    }

    /// A relay to the controlplane's UDP port.
    #[must_use]
    pub fn relay(&self) -> Relay {
        Relay::to(self.controlplane.quic())
    }

    /// A relay to the controlplane's port, for UDP and TCP.
    #[must_use]
    pub fn relay_of_both(&self) -> Relay {
        Relay::both_to(self.controlplane.quic())
    }

    fn enroll(&self, name: &str, relay: Option<&Relay>, args: &[&str]) -> Worker {
        let address = |told: &str| relay.map_or_else(|| told.to_owned(), |relay| relay.in_place_of(told));
        self.enroll_at(name, address, args)
    }

    /// Adds a worker with more arguments that dials what is made of the
    /// address it is told, and waits until it is connected.
    #[must_use]
    pub fn enroll_at(&self, name: &str, address: impl FnOnce(&str) -> String, args: &[&str]) -> Worker {
        let enrolment = self.cli(&["worker", "enroll", "--format", "json"]).ok().json();
        let address = address(enrolment["address"].as_str().expect("an address"));
        let worker = Worker::new(Arc::clone(&self.home), name, &enrolment, &address, args);
        worker.start();
        self.wait_worker(&worker, "ready", CONNECT);
        worker
    }

    /// Waits until `worker list` shows a worker in a state: ready, away, lost.
    pub fn wait_worker(&self, worker: &Worker, state: &str, within: Duration) {
        wait::until(&format!("worker {} is {state}", worker.id), within, || {
            if let Some(code) = worker.poll() {
                panic!("worker {} has ended with {code}:\n{}", worker.id, tail(&worker.log(), 2000));
            }
            let list = self.cli(&["worker", "list", "--format", "json"]);
            if list.code != 0 {
                return Err(list.stderr);
            }
            let list = list.json();
            let rows = list.as_array().map(Vec::as_slice).unwrap_or_default();
            let row = rows.iter().find(|row| row["id"] == worker.id.as_str());
            match row {
                Some(row) if row["state"] == state => Ok(()),
                other => Err(format!("{other:?}\n{}", tail(&worker.log(), 1000))),
            }
        });
    }

    /// Runs `levers9` with arguments to its end.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> Output {
        self.home.cli(args)
    }

    /// Starts `levers9` with arguments.
    #[must_use]
    pub fn cli_spawn(&self, args: &[&str]) -> Live {
        self.home.cli_spawn(args)
    }

    /// Makes a token of a kind in the first workspace: its id and itself.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new_token(&self, kind: &str) -> (String, String) {
        let made = self.cli(&["token", "create", "--kind", kind, "--format", "json"]).ok().json();
        let field = |name: &str| made[name].as_str().expect("an id and a key").to_owned();
        (field("id"), field("key"))
    }

    /// Submits a shell script as a detached task and returns its id.
    #[must_use]
    pub fn submit(&self, script: &str) -> String {
        self.submit_with(&[], script)
    }

    /// Submits a shell script with more options of `run`.
    #[must_use]
    pub fn submit_with(&self, options: &[&str], script: &str) -> String {
        let args = [&["run", "--detach"], options, &["--", "sh", "-c", script]].concat();
        self.cli(&args).ok().text().trim().to_owned()
    }

    /// `task show` of a task.
    #[must_use]
    pub fn task(&self, id: &str) -> Value {
        self.cli(&["task", "show", id, "--format", "json"]).ok().json()
    }

    /// Waits until a task is as wanted, and returns it. A controlplane that
    /// does not answer meanwhile is waited for as well.
    pub fn wait_task(
        &self,
        id: &str,
        what: &str,
        within: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        wait::until(&format!("task {id}: {what}"), within, || {
            let shown = self.cli(&["task", "show", id, "--format", "json"]);
            if shown.code != 0 {
                return Err(shown.stderr);
            }
            let task = shown.json();
            if wanted(&task) { Ok(task) } else { Err(format!("{task:#}")) }
        })
    }

    /// Waits until a task has a status, and returns it.
    pub fn wait_status(&self, id: &str, status: &str, within: Duration) -> Value {
        self.wait_task(id, status, within, |task| task["status"] == status)
    }

    /// Sends an HTTP/1.1 GET to the controlplane: its status code and body.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn get(&self, path: &str) -> (u16, String) {
        use std::io::{Read as _, Write as _};
        let address = self.controlplane.http();
        let mut stream = std::net::TcpStream::connect(address).expect("the HTTP port accepts");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
            .expect("it is sent");
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let code = code.unwrap_or_else(|| panic!("no answer to GET {path}: {read:?} {answer:?}"));
        (code, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.controlplane.kill9();
        if std::thread::panicking() {
            crate::live::show(&format!(
                "--- the end of the controlplane's log:\n{}",
                tail(&self.controlplane.log(), 4000)
            ));
        }
    }
}
