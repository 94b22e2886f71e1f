//! A world whose worker and whose person are behind relays, with something of
//! every kind running through both: what a network does to a session is done
//! to all of it, and judged by what each kind promises.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use levers9_tests::http::Wire;
use levers9_tests::live::tail;
use levers9_tests::{Backend, Live, Person, Relay, Worker, World, binaries, port, wait};
use serde_json::Value;
use tokio::time::Instant;

use crate::support::{LONG, SOON, assert_counts, content, id_of, last_number, text};

/// Calls that are under way when it happens.
const CALLS: usize = 3;

/// A world with a worker behind one relay and a person behind another.
pub(crate) struct Scene {
    /// The world; its own command has no relay before it.
    pub(crate) world: World,
    /// Before the person.
    pub(crate) near: Relay,
    /// Before the worker.
    pub(crate) far: Relay,
    /// The worker.
    pub(crate) worker: Worker,
    /// The person.
    pub(crate) person: Person,
}

impl Scene {
    /// One where UDP passes, or does not.
    pub(crate) fn new(udp: bool) -> Self {
        let world = World::start(Backend::Sqlite);
        let (near, far) = (world.relay_of_both(), world.relay_of_both());
        if !udp {
            near.cut_udp();
            far.cut_udp();
        }
        let worker = world.worker_via("one", &far);
        let token = world.new_token("workspace").1;
        let person = Person::new(near.in_place_of(&world.controlplane.address()), token);
        Self { world, near, far, worker, person }
    }

    /// Waits until the worker rides on a kind of carrier.
    pub(crate) fn wait_carrier(&self, carrier: &str, within: Duration) {
        wait::until(&format!("the worker rides on {carrier}"), within, || {
            let list = self.world.cli(&["worker", "list", "--format", "json"]).ok().json();
            match &list[0] {
                row if row["carrier"] == carrier && row["state"] == "ready" => Ok(()),
                row => Err(format!("{row:#}\n{}", tail(&self.worker.log(), 1500))),
            }
        });
    }
}

/// A job that counts until a file is there, and two who follow it.
struct Counts {
    task: String,
    run: Live,
    logs: Live,
    enough: PathBuf,
    written: PathBuf,
}

impl Counts {
    fn start(scene: &Scene) -> Self {
        let file = |name| scene.world.home.path().join(name);
        let (enough, written) = (file("enough"), file("written"));
        let script = format!(
            "i=0; while [ ! -e {} ]; do i=$((i+1)); echo $i; echo $i >> {}; sleep 0.05; done",
            enough.display(),
            written.display()
        );
        let run = scene.person.cli_spawn(&["run", "--name", "numbers", "--", "sh", "-c", &script]);
        run.wait_text("numbers", SOON, |text| last_number(text) >= 3);
        let task = id_of(&scene.world, "numbers");
        let logs = scene.person.cli_spawn(&["logs", "-f", &task]);
        logs.wait_text("numbers", SOON, |text| last_number(text) >= 3);
        Self { task, run, logs, enough, written }
    }

    fn written(&self) -> u32 {
        last_number(&content(&self.written))
    }

    /// Waits until both have seen what was counted at this moment and more.
    fn wait_more(&self, within: Duration) {
        let now = self.written();
        for live in [&self.run, &self.logs] {
            live.wait_text(&format!("numbers after {now}"), within, |text| last_number(text) > now + 5);
        }
    }

    /// Ends it: everything came once, in one attempt.
    fn end(mut self, world: &World) {
        std::fs::write(&self.enough, "").expect("a file");
        assert_eq!(self.run.wait(LONG), 0, "{}", self.run.shown());
        assert_eq!(self.logs.wait(SOON), 0, "{}", self.logs.shown());
        let count = self.written();
        assert_counts(&content(&self.written), count, "what the job wrote itself");
        assert_counts(&self.run.text(), count, "run");
        assert_counts(&self.logs.text(), count, "logs -f");
        assert_counts(&world.cli(&["logs", &self.task]).ok().text(), count, "logs afterwards");
        let task = world.task(&self.task);
        assert_eq!((&task["attempts"], &task["status"]), (&1.into(), &"COMPLETE".into()), "{task:#}");
    }
}

/// Something of every kind, under way.
pub(crate) struct Everything {
    counts: Counts,
    origin: Origin,
    exec: Live,
    forward: Live,
    /// Where the command forwards from, and a connection there.
    forwarded: SocketAddr,
    tunnel: Wire,
    /// An answer that has begun, and a request that has none yet.
    half: Wire,
    asked: Wire,
    door: SocketAddr,
    through: Wire,
}

/// A container that serves, with a door, as the task that it is.
struct Origin {
    task: String,
    port: u16,
    path: String,
}

fn ask(wire: &mut Wire, path: &str) -> Result<u16, String> {
    let sent = wire.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    sent.and_then(|()| wire.answer("GET")).map(|answer| answer.status()).map_err(|error| error.to_string())
}

impl Everything {
    /// Begins it all and waits until it runs.
    pub(crate) fn start(scene: &Scene) -> Self {
        let (world, person) = (&scene.world, &scene.person);
        let counts = Counts::start(scene);
        let port = port::free();
        let binary = binaries::path("levers9-test-origin");
        let says = world.home.path().join("door");
        let script = format!(
            "echo $LEVERS9_CONTROLPLANE_HOST:$LEVERS9_CONTROLPLANE_PORT > {}; exec {} {port}",
            says.display(),
            binary.display()
        );
        let exposed = port.to_string();
        let args = ["run", "--detach", "--format", "json", "--public", "--port", &exposed];
        let made = world.cli(&[&args[..], &["--", "sh", "-c", &script]].concat()).ok().json();
        let task = text(&made, "task").to_owned();
        world.wait_status(&task, "RUNNING", SOON);
        let url = made["urls"][0].as_str().expect("a URL");
        let path = url.split_once("/box/").map(|(_, path)| format!("/box/{}", path.trim_end_matches('/')));
        let origin = Origin { task, port, path: path.expect("a URL with a path") };
        let direct = || std::net::TcpStream::connect(("127.0.0.1", port)).map_err(|e| e.to_string());
        wait::until("the origin listens", SOON, || direct().map(drop));

        let exec = person.cli_spawn(&["exec", &origin.task, "--", "sh", "-c", "echo on; sleep 600"]);
        exec.wait_text("it runs", SOON, |text| text.contains("on"));
        let remote = format!(":{port}");
        let forward = person.cli_spawn(&["port-forward", &origin.task, &remote, "--format", "json"]);
        let forwarded = wait::until("the port is forwarded", SOON, || {
            let line: Value = serde_json::from_str(&forward.text()).map_err(|_| forward.shown())?;
            text(&line, "local").parse::<SocketAddr>().map_err(|error| error.to_string())
        });
        let mut tunnel = Wire::connect(forwarded);
        tunnel.send(b"POST /duplex HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").expect("it is sent");
        assert!(tunnel.head().expect("a head").is_some_and(|head| head.status() == 200));
        echo(&mut tunnel).expect("the tunnel answers");

        let http = world.controlplane.http();
        let begin = |what: &str| {
            let mut wire = Wire::connect(http);
            let head = format!("GET {}{what} HTTP/1.1\r\nHost: {http}\r\n\r\n", origin.path);
            wire.send(head.as_bytes()).expect("it is sent");
            wire.limit(Some(LONG));
            wire
        };
        let mut half = begin("/hang?id=half&first=length");
        assert!(half.head().expect("a head").is_some_and(|head| head.status() == 200));
        assert_eq!(half.exactly(5).expect("its first bytes"), b"first");
        let asked = begin("/hang?id=asked");
        wait::until("the container has both requests", SOON, || {
            let seen = origin.events();
            let both = seen.contains("hanging half") && seen.contains("hanging asked");
            if both { Ok(()) } else { Err(seen) }
        });

        let door = crate::support::wait_file(&says, SOON).trim().parse().expect("an address");
        let mut through = Wire::connect(door);
        assert_eq!(ask(&mut through, "/healthz"), Ok(401), "the door leads to the controlplane");
        through.limit(Some(LONG));
        Self { counts, origin, exec, forward, forwarded, tunnel, half, asked, door, through }
    }

    /// Does it to all of it, with calls under way, and judges what becomes of
    /// each within a time.
    pub(crate) fn judge(mut self, scene: &Scene, within: Duration, happen: impl FnOnce(&Scene)) {
        let name = |number| format!("call-{number}");
        let submit = |number| {
            let name = name(number);
            scene.person.cli_spawn(&["run", "--detach", "--name", &name, "--", "sh", "-c", "echo made"])
        };
        let mut calls: Vec<Live> = (0..CALLS).map(submit).collect();
        happen(scene);
        let began = Instant::now();
        calls.extend((CALLS..2 * CALLS).map(submit));
        self.judge_what_ends(within);
        let left = within.saturating_sub(began.elapsed()).max(Duration::from_secs(1));
        self.counts.wait_more(left);
        self.judge_what_comes_back(scene, left);
        for (number, call) in calls.iter_mut().enumerate() {
            assert_eq!(call.wait(LONG), 0, "{}", call.shown());
            let id = call.text().trim().to_owned();
            scene.world.wait_status(&id, "COMPLETE", LONG);
            let list = scene.world.cli(&["task", "list", "--format", "json"]).ok().json();
            let named = |row: &&Value| row["name"] == name(number).as_str();
            let made: Vec<_> = list.as_array().into_iter().flatten().filter(named).collect();
            assert!(made.len() == 1 && made[0]["id"] == id.as_str(), "{id}: {made:#?}");
        }
        self.counts.end(&scene.world);
        let origin = scene.world.task(&self.origin.task);
        assert_eq!((&origin["attempts"], &origin["status"]), (&1.into(), &"RUNNING".into()), "{origin:#}");
        assert_eq!(scene.worker.poll(), None, "the worker ran through");
    }

    /// What is never moved: it ends, and not as if all were well.
    fn judge_what_ends(&mut self, within: Duration) {
        let code = self.exec.wait(within);
        assert_eq!((code, self.exec.text().as_str()), (125, "on\n"), "{}", self.exec.shown());
        let errors = self.exec.errors();
        assert!(errors.contains("lost") || errors.contains("ended"), "exec says why: {errors}");

        self.tunnel.limit(Some(within));
        let ended = wait::until("the tunnel ends", within, || match self.tunnel.some() {
            Ok(bytes) if !bytes.is_empty() => Err(format!("{bytes:?}")),
            Ok(_) => Ok("an end in order".to_owned()),
            Err(error) => Ok(format!("{:?}", error.kind())),
        });
        assert_eq!(ended, format!("{:?}", ErrorKind::ConnectionReset), "{}", self.forward.shown());

        self.half.limit(Some(within));
        match self.half.rest() {
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "half an answer hangs"),
            Ok(rest) => assert!(rest.len() < 995, "{} bytes after the first five look whole", rest.len()),
        }
        self.asked.limit(Some(within));
        match self.asked.answer("GET") {
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "a request hangs"),
            Ok(answer) => assert!(
                matches!(answer.status(), 502 | 503),
                "{}: {:?} {}",
                answer.status(),
                answer.cut,
                answer.text()
            ),
        }
        self.through.limit(Some(within));
        // It may have ended already, or end with this; it hangs never.
        if let Err(error) = self.through.rest() {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "a connection through a door hangs");
        }
    }

    /// All of it can be had again, without anybody doing anything.
    fn judge_what_comes_back(&mut self, scene: &Scene, within: Duration) {
        let within = within.max(SOON);
        wait::until("the door leads to the controlplane again", within, || {
            let mut wire = Wire::connect(self.door);
            match ask(&mut wire, "/healthz") {
                Ok(401) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        wait::until("the port is forwarded again", within, || {
            let mut wire = Wire::connect(self.forwarded);
            wire.limit(Some(SOON));
            ask(&mut wire, "/again")
                .and_then(|status| if status == 200 { Ok(()) } else { Err(status.to_string()) })
        });
        assert_eq!(self.forward.poll(), None, "{}", self.forward.shown());
        let http = scene.world.controlplane.http();
        wait::until("requests reach the container again", within, || {
            let mut wire = Wire::connect(http);
            match ask(&mut wire, &format!("{}/again", self.origin.path)) {
                Ok(200) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        let did = scene.person.cli(&["exec", &self.origin.task, "--", "echo", "again"]).ok();
        assert_eq!(did.text(), "again\n");
    }
}

impl Origin {
    /// What it has seen.
    fn events(&self) -> String {
        let mut wire = Wire::connect(SocketAddr::from(([127, 0, 0, 1], self.port)));
        wire.send(b"GET /events HTTP/1.1\r\nHost: origin\r\n\r\n").expect("it is sent");
        wire.answer("GET").expect("an answer").text()
    }
}

/// A chunk that comes back.
fn echo(tunnel: &mut Wire) -> std::io::Result<()> {
    tunnel.send_chunk(b"x")?;
    tunnel.exactly(6).map(drop)
}
