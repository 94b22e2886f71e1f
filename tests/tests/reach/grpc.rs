//! gRPC through the controlplane is as it is without it (B39).

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use levers9_tests::http2::{Answer2, Http2};
use tokio::time::Instant;

use crate::support::{LEARNT, PATIENCE, in_time, mark, noise, shared, site, text};

/// A client, and what goes before the path of a method.
struct Caller {
    client: Http2,
    base: String,
    token: Option<String>,
}

impl Caller {
    fn new(at: SocketAddr, prefix: &str) -> Self {
        Self { client: Http2::connect(at), base: format!("http://{at}{prefix}"), token: None }
    }

    fn through() -> Self {
        Self::new(site().at, &site().prefix)
    }

    fn directly() -> Self {
        Self::new(site().origin, "")
    }

    fn request(&self, method: &str) -> http::Request<()> {
        let mut request = http::Request::post(format!("{}/test.Echo/{method}", self.base))
            .header("content-type", "application/grpc+proto")
            .header("te", "trailers")
            .header("grpc-timeout", "30S");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.body(()).expect("a request")
    }

    fn unary(&self, method: &str, body: impl Into<Bytes>) -> Answer2 {
        let mut exchange = self.client.begin(self.request(method), false);
        exchange.send(body, true);
        exchange.answer()
    }
}

/// What a gRPC client tells its user.
fn outcome(answer: &Answer2) -> (u16, String, String, String, usize, bool) {
    let field = |name| answer.field(name);
    let cut = answer.cut.is_some();
    (
        answer.status,
        field("grpc-status"),
        field("grpc-message"),
        field("x-detail-bin"),
        answer.body.len(),
        cut,
    )
}

#[test]
fn calls_end_as_they_do_without_a_tunnel() {
    let (through, directly) = (Caller::through(), Caller::directly());
    let message = noise(100_000);
    for (method, status) in [("Unary", "0"), ("NotFound", "5"), ("Stream", "13")] {
        let answer = through.unary(method, message.clone());
        assert_eq!(outcome(&answer), outcome(&directly.unary(method, message.clone())), "{method}");
        assert_eq!(answer.field("grpc-status"), status, "{method}");
        assert!(answer.field("content-type").starts_with("application/grpc"), "{method}");
        if method == "Unary" {
            assert!(answer.body == message, "another message came back");
        }
    }
    // An error without a message has no trailers to lose: it is all in the head.
    let answer = through.unary("NotFound", "");
    assert_eq!(answer.headers.get("grpc-status"), Some(&HeaderValue::from_static("5")));
    assert!(answer.trailers.is_empty(), "{:?}", answer.trailers);
}

#[test]
fn a_thousand_messages_come_before_the_error() {
    let answer = Caller::through().unary("Stream", "");
    let (mut rest, mut count) = (answer.body.as_slice(), 0);
    while let [_, a, b, c, d, after @ ..] = rest {
        let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).expect("a length");
        assert_eq!(after[..length], *format!("message {count}").as_bytes());
        (rest, count) = (&after[length..], count + 1);
    }
    assert_eq!((count, answer.field("grpc-status").as_str()), (1000, "13"));
    assert_eq!(answer.field("grpc-message"), "broken on purpose");
}

#[test]
fn both_directions_stream_and_the_client_s_trailers_pass() {
    let caller = Caller::through();
    let mut exchange = caller.client.begin(caller.request("Bidi"), false);
    for index in 0..50 {
        let piece = format!("piece {index}");
        exchange.send(piece.clone(), false);
        if index == 0 {
            assert_eq!(exchange.head().expect("a head before the end").status.as_u16(), 200);
        }
        let back = exchange.data().expect("it goes on").expect("a piece");
        assert_eq!(String::from_utf8_lossy(&back), piece);
    }
    let mut sum = HeaderMap::new();
    sum.insert("x-client-sum", HeaderValue::from_static("42"));
    exchange.send_trailers(sum);
    assert!(exchange.data().expect("it ends").is_none());
    let trailers = exchange.trailers().expect("trailers").expect("some");
    assert_eq!(trailers["grpc-status"], "0");
    assert_eq!(trailers.get("x-client-sum"), Some(&HeaderValue::from_static("42")));
}

/// B36: a call that is given up is given up in the container.
#[test]
fn a_call_that_is_cancelled_is_cancelled_in_the_container() {
    let site = site();
    for method in ["Hang", "StreamHang"] {
        let (caller, id) = (Caller::through(), mark());
        let mut exchange = caller.client.begin(caller.request(&format!("{method}?{id}")), true);
        site.wait_event(&format!("hanging {id}"), PATIENCE);
        if method == "StreamHang" {
            assert_eq!(exchange.head().expect("a head").status.as_u16(), 200);
        }
        let begun = Instant::now();
        exchange.cancel();
        let event = site.wait_event(&format!("cancelled {id}"), PATIENCE);
        in_time(begun, LEARNT, "the container's notice");
        assert!(event.contains("CANCEL"), "{event}");
        // The connection goes on.
        assert_eq!(caller.unary("Unary", "x").field("grpc-status"), "0");
    }
}

/// Many calls share one connection to the container.
#[test]
fn calls_share_a_connection() {
    let own = crate::support::Site::start(&shared().world, &["--public"]);
    let caller = Caller::new(own.at, &own.prefix);
    let calls: Vec<_> = (0..100)
        .map(|index| {
            let mut exchange = caller.client.begin(caller.request("Unary"), false);
            exchange.send(format!("call {index}"), true);
            exchange
        })
        .collect();
    for (index, call) in calls.into_iter().enumerate() {
        let answer = call.answer();
        assert_eq!((answer.text(), answer.field("grpc-status")), (format!("call {index}"), "0".to_owned()));
    }
    let connections = own.events("http2 connection").len();
    assert_eq!(connections, 1, "connections for 100 calls");
    let _stopped = shared().world.cli(&["task", "stop", &own.task]).ok();
}

/// What passes of a call's own headers, and what does not.
#[test]
fn a_call_s_headers_pass_without_the_token() {
    let shared = shared();
    let made = shared.world.cli(&["token", "create", "--format", "json"]).ok().json();
    let site = &shared.private;
    let mut caller = Caller::new(site.at, &site.prefix);
    let refused = caller.unary("Headers", "");
    assert_eq!((refused.status, refused.field("x-levers9-reason").as_str()), (401, "token"));
    caller.token = Some(text(&made["key"]).to_owned());
    let seen = caller.unary("Headers", "");
    assert_eq!(seen.field("grpc-status"), "0");
    let seen = seen.text();
    for line in ["te: trailers\n", "grpc-timeout: 30S\n", "content-type: application/grpc+proto\n"] {
        assert!(seen.contains(line), "{line:?} is not in\n{seen}");
    }
    assert!(seen.contains("/test.Echo/Headers\n"), "the container sees its own path:\n{seen}");
    assert!(!seen.contains("/box/") || seen.contains("x-forwarded-prefix: /box/"), "{seen}");
    assert!(!seen.contains("authorization") && !seen.contains("l9_"), "{seen}");
}

/// A connection that takes no new calls for a while is let go, but not under a
/// call that goes on.
#[test]
fn a_long_call_outlives_the_keeping_of_its_connection() {
    let caller = Caller::through();
    let mut exchange = caller.client.begin(caller.request("Bidi"), false);
    for round in 0..3 {
        exchange.send(format!("round {round}"), false);
        if round == 0 {
            assert_eq!(exchange.head().expect("a head").status.as_u16(), 200);
        }
        let back = exchange.data().expect("it goes on").expect("a piece");
        assert_eq!(String::from_utf8_lossy(&back), format!("round {round}"));
        if round == 1 {
            // Longer than the 10 s for which connections are kept: that is the point.
            std::thread::sleep(std::time::Duration::from_secs(12));
        }
    }
    exchange.send("", true);
    assert!(exchange.data().expect("it ends").is_none());
    assert_eq!(exchange.trailers().expect("trailers").expect("some")["grpc-status"], "0");
}

/// What browsers call gRPC is HTTP like any other, and spoken in HTTP/1.1.
#[test]
fn grpc_for_browsers_is_no_grpc() {
    let site = site();
    for kind in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text"] {
        let request = site.request2("POST", "/sha").header("content-type", kind);
        let mut exchange = Http2::connect(site.at).begin(request.body(()).expect("a request"), false);
        exchange.send("abc", true);
        let answer = exchange.answer();
        assert_eq!((answer.status, answer.text().split(' ').nth(2)), (200, Some("chunked")), "{kind}");
    }
}
