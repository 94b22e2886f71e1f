//! What is said when no container answers, or one ends in the middle.

use std::net::TcpListener;

use levers9_tests::http::{Answer, Wire};
use levers9_tests::http2::Http2;
use levers9_tests::{World, port};
use tokio::time::Instant;

use crate::support::{ENDED, PATIENCE, Site, ask, in_time, mark, shared, site};

/// Fails unless the controlplane answered, for this reason.
#[track_caller]
fn refused(answer: Answer, status: u16, reason: &str) {
    let answer = answer.with(status);
    assert_eq!(answer.head.text("x-levers9-reason"), reason, "{}", answer.text());
    assert!(answer.head.says("content-type", "text/plain"));
}

/// A job that exposes a port and runs a script.
fn job(world: &World, port: u16, script: &str) -> Site {
    let number = port.to_string();
    let args = ["run", "-d", "--format", "json", "--public", "--port", &number, "--", "sh", "-c", script];
    let site = Site::of(&world.cli(&args).ok().json(), port);
    world.wait_status(&site.task, "RUNNING", PATIENCE);
    site
}

/// An own origin in the shared world, for a test that ends it.
fn mortal() -> Site {
    Site::start(&shared().world, &["--public"])
}

fn stop(site: &Site) {
    let _stopped = shared().world.cli(&["task", "stop", &site.task]).ok();
}

#[test]
fn a_port_where_nobody_listens_says_so() {
    let world = &shared().world;
    let site = job(world, port::free(), "sleep 600");
    refused(site.get("/x"), 502, "not-listening");
    stop(&site);
    // One that another process of this machine listens on is nobody's business.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let site = job(world, listener.local_addr().expect("an address").port(), "sleep 600");
    refused(site.get("/x"), 502, "not-own");
    listener.set_nonblocking(true).expect("a listener");
    let accepted = listener.accept().map_err(|error| error.kind());
    assert_eq!(accepted.err(), Some(std::io::ErrorKind::WouldBlock), "somebody connected to it");
    stop(&site);
}

#[test]
fn a_container_that_has_ended_says_so() {
    let site = mortal();
    assert_eq!(site.get("/x").with(200).text(), "ok /x");
    let mut wire = site.connect();
    assert_eq!(ask(&mut wire, "GET", &site.head("GET", "/x", "")).with(200).text(), "ok /x");
    stop(&site);
    shared().world.wait_task(&site.task, "has ended", PATIENCE, |task| task["status"] == "CANCELLED");
    // A connection that was made before leads nowhere either.
    refused(ask(&mut wire, "GET", &site.head("GET", "/x", "")), 503, "not-running");
    refused(site.get("/x"), 503, "not-running");
}

#[test]
fn an_answer_that_is_none_says_so_and_everything_goes_on() {
    let site = site();
    let mut wire = site.connect();
    let client = Http2::connect(site.at);
    for how in ["garbage", "bad-status", "bad-header", "two-lengths", "half-head", "nothing", "reset"] {
        for method in ["GET", "POST"] {
            let lines = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
            let head = site.head(method, &format!("/raw/{how}?{method}"), lines);
            let answer = ask(&mut wire, method, &head);
            assert_eq!(answer.status(), 502, "{how} to {method}: {}", answer.text());
            refused(answer, 502, "bad-answer");
            let next = ask(&mut wire, "GET", &site.head("GET", "/next", "")).with(200);
            assert_eq!(next.text(), "ok /next", "after {how}");
        }
        let request = site.request2("GET", &format!("/raw/{how}")).body(()).expect("a request");
        let answer = client.begin(request, true).answer();
        assert_eq!((answer.status, answer.field("x-levers9-reason").as_str()), (502, "bad-answer"), "{how}");
    }
}

/// How an answer that was under way ended, and when.
fn cut_in_time(wire: &mut Wire, what: &str) {
    let begun = Instant::now();
    let answer = wire.answer("GET").expect("the head came before");
    in_time(begun, ENDED, what);
    let (cut, bytes) = (answer.cut.is_some(), answer.body.len());
    assert!(cut, "{what}: {bytes} bytes of an answer that was cut look whole");
}

#[test]
fn a_container_that_ends_in_an_answer_never_ends_it_well() {
    for (by, framing) in [("itself", "length"), ("itself", "chunks"), ("stop", "length"), ("stop", "chunks")]
    {
        let (site, id) = (mortal(), mark());
        let what = format!("ended by {by}, {framing}");
        let how = if by == "itself" { "now" } else { "wait" };
        let path = format!("/die/{how}?framing={framing}&id={id}");
        let mut one = site.connect();
        one.send(&site.head("GET", &path, "")).expect("it is sent");
        let request = site.request2("GET", &format!("/die/wait?framing={framing}&id=2{id}"));
        let two = (by == "stop").then(|| {
            let exchange = Http2::connect(site.at).begin(request.body(()).expect("a request"), true);
            site.wait_event(&format!("dying 2{id}"), PATIENCE);
            exchange
        });
        if by == "stop" {
            site.wait_event(&format!("dying {id}"), PATIENCE);
            stop(&site);
        }
        cut_in_time(&mut one, &what);
        if let Some(two) = two {
            let whole = two.answer_if_any().is_ok_and(|answer| answer.cut.is_none());
            assert!(!whole, "HTTP/2, {what}: an answer that was cut looks whole");
        }
    }
}

#[test]
fn a_container_that_ends_in_an_upgrade_or_an_upload_ends_it() {
    let wish = "Connection: Upgrade\r\nUpgrade: echo\r\n";
    for how in ["die", "101"] {
        let site = mortal();
        let mut wire = site.connect();
        wire.send(&site.head("GET", &format!("/upgrade/{how}"), wish)).expect("it is sent");
        assert_eq!(wire.head().expect("a head").expect("an answer").status(), 101);
        assert_eq!(wire.exactly(6).expect("its first bytes"), b"hello ");
        match how {
            "die" => wire.send(b"go").expect("it is sent"),
            _ => stop(&site),
        }
        let begun = Instant::now();
        let ended = wire.rest();
        in_time(begun, ENDED, &format!("the end of an upgraded connection, {how}"));
        // `bye` would be an end in order.
        assert_ne!(ended.ok().as_deref(), Some(b"bye".as_slice()), "{how}");
    }

    let (site, id) = (mortal(), mark());
    let mut wire = site.connect();
    let head = site.head("POST", &format!("/sink?id={id}"), "Content-Length: 1000000\r\n");
    wire.send(&[&head, [1; 1000].as_slice()].concat()).expect("it is sent");
    site.wait_event(&format!("sinking {id}"), PATIENCE);
    stop(&site);
    let begun = Instant::now();
    match wire.answer("POST") {
        Ok(answer) => refused(answer, 502, "bad-answer"),
        Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "it hangs"),
    }
    in_time(begun, ENDED, "the end of an upload");
}
