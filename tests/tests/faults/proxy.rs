//! The real binaries where nothing but an HTTP proxy leads out: one that leads,
//! wants a password, hangs, closes, forbids, talks nonsense, and is cut. UDP
//! and TCP of the address itself are cut by a relay.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use levers9_tests::live::tail;
use levers9_tests::{Backend, Counting, Live, Output, Relay, World, wait};
use serde_json::Value;

use crate::connect::{Manner, Proxy};
use crate::support::{LONG, SOON};

const PASSWORD: &str = "p4ss-w0rd";
/// `somebody:p4ss-w0rd`.
fn credentials() -> String {
    base64::engine::general_purpose::STANDARD.encode(format!("somebody:{PASSWORD}"))
}

/// A world that is reached through a proxy only.
struct Inside {
    world: World,
    /// The address that is dialed; cut.
    relay: Relay,
    proxy: Proxy,
    address: String,
    token: String,
}

impl Inside {
    fn new() -> Self {
        let world = World::start(Backend::Sqlite);
        let relay = world.relay_of_both();
        relay.cut();
        let proxy = Proxy::to(world.controlplane.quic());
        let address = relay.in_place_of(&world.controlplane.address());
        let token = world.new_token("workspace").1;
        Self { world, relay, proxy, address, token }
    }

    /// What is dialed.
    fn target(&self) -> SocketAddr {
        let rest = self.address.strip_prefix("levers9://").expect("an address");
        rest.split('#').next().expect("a host and port").parse().expect("an IP address")
    }

    fn spawn(&self, proxy: &str, env: &[(&str, &str)], args: &[&str]) -> Live {
        let mut command = self.world.home.command("levers9", args);
        command.env("LEVERS9_ADDRESS", &self.address).env("LEVERS9_TOKEN", &self.token);
        command.env("HTTPS_PROXY", proxy).envs(env.iter().copied());
        Live::spawn(command)
    }

    fn cli(&self, proxy: &str, env: &[(&str, &str)], args: &[&str]) -> Output {
        let mut live = self.spawn(proxy, env, args);
        let code = live.wait(LONG);
        Output { what: args.join(" "), code, stdout: live.stdout(), stderr: live.errors() }
    }

    /// A worker behind the proxy; its log is on its standard error.
    fn worker(&self, proxy: &str) -> Live {
        let enrolment = self.world.cli(&["worker", "enroll", "--format", "json"]).ok().json();
        let mut command = self.world.home.command("levers9-worker", &["--allow-unisolated"]);
        command.args(["--controlplane", &self.address]).env("HTTPS_PROXY", proxy);
        command.arg("--data").arg(self.world.home.path().join("worker-data"));
        command.env("LEVERS9_WORKER_TOKEN", enrolment["token"].as_str().expect("a token"));
        Live::spawn(command)
    }

    fn wait_worker(&self, worker: &Live, carrier: &str, within: Duration) -> Value {
        wait::until(&format!("the worker rides on {carrier}"), within, || {
            let list = self.world.cli(&["worker", "list", "--format", "json"]).ok().json();
            match &list[0] {
                row if row["carrier"] == carrier && row["state"] == "ready" => Ok(row.clone()),
                row => Err(format!("{row:#}\n{}", tail(&worker.errors(), 1500))),
            }
        })
    }
}

#[test]
fn through_a_proxy_everything_works_and_a_cut_is_survived() {
    let inside = Inside::new();
    let secret: &'static str = Box::leak(credentials().into_boxed_str());
    inside.proxy.be(Manner::Wants(secret));
    let url = inside.proxy.url(&format!("somebody:{PASSWORD}@"));
    let worker = inside.worker(&url);
    let row = inside.wait_worker(&worker, "proxy", LONG);
    assert!(
        row["carrier_why"].as_str().is_some_and(|why| why.contains("TCP did not get through")),
        "{row:#}"
    );
    let ran = inside.cli(&url, &[], &["run", "--", "sh", "-c", "seq 300000; exit 9"]).with_code(9);
    assert_eq!(ran.stdout.len(), 1_988_895);
    let shown = inside.cli(&url, &[], &["session", "show", "--format", "json"]).ok().json();
    assert_eq!(shown[0]["carrier"], "proxy", "{shown:#}");
    // Cut in the middle of it all.
    let counting = Counting::start(&inside.world, &[]);
    inside.proxy.cut();
    wait::until("the worker is back", SOON, || {
        let heads = inside.proxy.heads().len();
        if worker.errors().matches("online").count() > 1 { Ok(()) } else { Err(format!("{heads} heads")) }
    });
    inside.wait_worker(&worker, "proxy", SOON);
    counting.end();
    // It is told where to, and nothing else.
    let target = inside.target();
    for head in inside.proxy.heads() {
        let expected = format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {secret}\r\n\r\n"
        );
        assert_eq!(head, expected);
    }
    // Back, once there is a better way.
    inside.relay.restore();
    inside.wait_worker(&worker, "quic", LONG);
    let log = worker.errors();
    assert!(!log.contains(PASSWORD) && !log.contains(secret), "a password is in the log: {log}");
    assert!(!inside.world.controlplane.log().contains(PASSWORD));
}

#[test]
fn a_proxy_that_does_not_lead_is_named_with_the_reason() {
    let inside = Inside::new();
    let to = inside.world.controlplane.quic();
    let credentials = format!("somebody:{PASSWORD}@");
    let manners = [Manner::Wants("nothing"), Manner::Hangs, Manner::Closes, Manner::Forbids, Manner::Babbles];
    let proxies = manners.map(|manner| {
        let proxy = Proxy::to(to);
        proxy.be(manner);
        let at = proxy.address;
        let words = match manner {
            Manner::Hangs => format!("the proxy {at} does not answer"),
            Manner::Closes => format!("the proxy {at} closed the connection"),
            Manner::Forbids => format!("the proxy {at} refuses: 403 Not Here"),
            Manner::Babbles => format!("{at} does not answer as an HTTP proxy does"),
            _ => format!("the proxy {at} wants a name and a password (407)"),
        };
        (proxy, words)
    });
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address")
    };
    // All of them try beside each other: each takes its ten seconds.
    let list = ["task", "list"];
    let mut tries = Vec::new();
    for (proxy, words) in &proxies {
        let url = proxy.url(&credentials);
        tries.push((inside.spawn(&url, &[], &list), 3, words.clone()));
        tries.push((inside.spawn(&url, &[], &["run", "--", "true"]), 125, words.clone()));
    }
    let nobody = format!("http://{credentials}{closed}");
    tries.push((inside.spawn(&nobody, &[], &list), 3, format!("cannot reach the proxy {closed}")));
    // What is no proxy of a kind there is, leads nowhere.
    let socks = format!("socks5://{credentials}127.0.0.1:1");
    tries.push((inside.spawn(&socks, &[], &list), 3, String::new()));
    // An exception leads past the proxy, where nothing answers.
    let leads = inside.proxy.url(&credentials);
    tries.push((inside.spawn(&leads, &[("NO_PROXY", "127.0.0.0/8")], &list), 3, String::new()));
    for (live, code, words) in &mut tries {
        assert_eq!(live.wait(LONG), *code, "{}", live.shown());
        let said = live.errors();
        assert!(said.contains(&*words), "{words:?} is not in: {said}");
        assert!(said.contains(&format!("UDP {}", inside.target())), "{said}");
        assert!(!said.contains(PASSWORD), "{said}");
    }
    assert!(inside.proxy.heads().is_empty(), "a proxy that is excepted is not asked");
    // And without the exception it works now.
    let _list = inside.cli(&leads, &[], &list).ok();
    // Where TCP passes, nobody asks a proxy.
    inside.relay.restore();
    let asked = inside.proxy.heads().len();
    let _list = inside.cli(&leads, &[], &list).ok();
    assert_eq!(inside.proxy.heads().len(), asked, "the proxy is the last way");
}

/// A worker whose proxy comes to its senses is online without a restart.
#[test]
fn a_worker_outlives_a_proxy_that_does_not_lead() {
    let inside = Inside::new();
    inside.proxy.be(Manner::Forbids);
    let mut worker = inside.worker(&inside.proxy.url(&format!("somebody:{PASSWORD}@")));
    worker.wait_errors(&format!("the proxy {} refuses: 403", inside.proxy.address), SOON);
    inside.proxy.be(Manner::Leads);
    inside.wait_worker(&worker, "proxy", Duration::from_secs(35));
    assert_eq!(worker.poll(), None);
    assert!(!worker.errors().contains(PASSWORD), "{}", worker.errors());
}
