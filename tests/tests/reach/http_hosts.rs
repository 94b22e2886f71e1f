//! Containers under names of a host suffix, as where they are served to
//! others: each has an origin of its own, and none shares the dashboard's.

use std::net::SocketAddr;

use levers9_tests::http::{Answer, Wire};
use levers9_tests::{Backend, Setup, World, binaries, port, wait};

use crate::support::{PATIENCE, ask, text};

/// A world that serves containers under a suffix, with an origin in it.
struct Hosted {
    world: World,
    _worker: levers9_tests::Worker,
    at: SocketAddr,
    /// The URLs of the origin's two ports.
    urls: Vec<String>,
}

const OPTIONS: [&str; 4] = ["run", "--detach", "--format", "json"];

fn hosted() -> Hosted {
    let config = "containerUrl: https://*.Apps.Example.org:8443\n".to_owned();
    let world = World::start_with(Backend::Sqlite, Setup { config, ..Setup::default() });
    let worker = world.worker("one");
    let at = world.controlplane.http();
    let (one, other) = (port::free().to_string(), port::free().to_string());
    let origin = binaries::path("levers9-test-origin");
    let origin = origin.to_str().expect("a path that is text");
    let script = format!("{origin} {other} & exec {origin} {one}");
    let mine = ["--name", "My App", "--public", "--port", &one, "--port", &other, "--", "sh", "-c", &script];
    let submitted = world.cli(&[&OPTIONS[..], &mine].concat()).ok().json();
    let urls: Vec<String> =
        submitted["urls"].as_array().expect("URLs").iter().map(|url| text(url).to_owned()).collect();
    for port in [&one, &other] {
        let to = format!("127.0.0.1:{port}");
        wait::until("the origin listens", PATIENCE, || {
            std::net::TcpStream::connect(&to).map(drop).map_err(|error| error.to_string())
        });
    }
    world.wait_status(text(&submitted["task"]), "RUNNING", PATIENCE);
    Hosted { world, _worker: worker, at, urls }
}

impl Hosted {
    fn get(&self, host: &str, path: &str, more: &str) -> Answer {
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
        ask(&mut Wire::connect(self.at), "GET", head.as_bytes())
    }
}

#[test]
fn each_container_has_names_of_its_own() {
    let hosted = hosted();
    let [first, second] = &hosted.urls[..] else { panic!("{:?}", hosted.urls) };
    let host = |url: &str| {
        let name = url.strip_prefix("https://").and_then(|rest| rest.strip_suffix(":8443/"));
        name.unwrap_or_else(|| panic!("{url}")).to_owned()
    };
    let (first, second) = (host(first), host(second));
    assert!(first.starts_with("my-app-") && first.ends_with(".apps.example.org"), "{first}");
    let slug = first.split('.').next().expect("a label").to_owned();
    assert!(second.starts_with(&format!("{slug}--")), "{second}");
    for (name, path) in [(&first, "/x"), (&second, "/y"), (&first.to_uppercase(), "/z")] {
        let answer = hosted.get(&format!("{name}:8443"), path, "").with(200);
        assert_eq!(answer.text(), format!("ok {path}"), "nothing is taken off the path");
    }
    // The name of it as the origin sees it, and that nothing was taken off.
    let head = hosted.get(&first, "/echo-head", "").with(200).text().to_lowercase();
    assert!(head.contains(&format!("host: {first}")) && !head.contains("x-forwarded-prefix"), "{head}");
    // A port that is not exposed, a name nobody has, one that cannot be.
    assert_eq!(hosted.get(&format!("{slug}--1.apps.example.org"), "/x", "").status(), 404);
    let answer = hosted.get("nobody.apps.example.org", "/x", "").with(401);
    assert_eq!(answer.head.text("x-levers9-reason"), "token");
    assert_eq!(hosted.get("a.b.apps.example.org", "/x", "").status(), 404);
    assert_eq!(hosted.get(&format!("{slug}--nan.apps.example.org"), "/x", "").status(), 404);
    // The controlplane's own pages are not there, and containers are not on its own name.
    assert_eq!(hosted.get(&first, "/healthz", "").with(200).text(), "ok /healthz");
    assert_eq!(hosted.get("levers9.example.org", "/healthz", "").status(), 200);
    assert_eq!(hosted.get("levers9.example.org", &format!("/box/{slug}/8000/"), "").status(), 404);
    assert_eq!(hosted.get("127.0.0.1", &format!("/box/{slug}/8000/"), "").status(), 404);
    let log = hosted.world.controlplane.log();
    assert!(log.contains("request to a container"), "{log}");
}
