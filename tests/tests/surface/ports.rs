//! The other ports of a controlplane: health that is true, figures for those
//! who may see them, and the doors of the Python SDK.

use bytes::{BufMut as _, Bytes, BytesMut};
use levers9_tests::live::Signal;
use levers9_tests::{Backend, World, wait};
use serde_json::{Value, json};

use crate::support::{PATIENCE, fails, request, shared, unknown_token};

fn health(world: &World) -> (u16, Value) {
    let (code, body) = world.get("/healthz");
    (code, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

#[test]
fn health_tells_the_truth() {
    let good = |name: &str| json!({"name": name, "ok": true, "problem": ""});
    let parts = json!([good("database"), good("storage"), good("certificate"), good("running")]);
    assert_eq!(health(&shared().world), (200, json!({"ready": true, "parts": parts})));
}

#[test]
fn health_says_when_the_database_is_gone() {
    // The server is this test program's own; no other test of it uses PostgreSQL.
    let world = World::start(Backend::Postgres);
    assert_eq!(health(&world).0, 200);
    let config = std::fs::read_to_string(world.home.path().join("controlplane.yaml")).expect("a file");
    let folder = config.split("host=").nth(1).and_then(|rest| rest.split('"').next()).expect("a folder");
    let file = std::path::Path::new(folder).join("data/postmaster.pid");
    let pid = std::fs::read_to_string(file).expect("the server's pid");
    let pid: i32 = pid.lines().next().expect("a line").parse().expect("a number");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGINT)
        .expect("the server is told to stop");
    let down = wait::until("health says so", PATIENCE, || match health(&world) {
        (503, body) => Ok(body),
        (code, body) => Err(format!("{code}: {body:#}")),
    });
    assert_eq!(down["ready"], false);
    let database = &down["parts"][0];
    assert_eq!((&database["name"], &database["ok"]), (&json!("database"), &json!(false)));
    assert_ne!(database["problem"], "");
    let did = world.cli(&["task", "list"]);
    fails(
        &did,
        1,
        "error: the controlplane at 127.0.0.1:[PORT] refuses: the controlplane cannot check the token now",
    );
}

#[test]
fn figures_are_for_this_machine_and_for_admins() {
    let world = &shared().world;
    let http = world.controlplane.http();
    let (code, body) = request(http, "GET /metrics", &[]);
    assert_eq!(code, 200, "{body}");
    for name in [
        "levers9_sessions",
        "levers9_workers_connected ",
        "levers9_tasks_running",
        "levers9_database_connections",
    ] {
        assert!(body.contains(&format!("\n{name}")), "{name} is not in {body}");
    }
    let (_, admin) = world.new_token("admin");
    let (_, member) = world.new_token("workspace");
    let bearer = |token: &str| format!("Bearer {token}");
    let proxy = ("X-Forwarded-For", "203.0.113.7");
    for (token, expected) in [
        (None, 401),
        (Some(bearer(&admin)), 200),
        (Some(bearer(&member)), 403),
        (Some(bearer(&unknown_token())), 403),
    ] {
        let header = token.as_ref().map(|token| ("Authorization", token.as_str()));
        let headers: Vec<(&str, &str)> = std::iter::once(proxy).chain(header).collect();
        let (code, body) = request(http, "GET /metrics", &headers);
        assert_eq!(code, expected, "{body}");
        assert_eq!(body.contains("levers9_sessions"), expected == 200, "{body}");
    }
}

#[test]
fn rest_authorizes_and_says_what_is_not_built() {
    let world = &shared().world;
    let http = world.controlplane.http();
    let path = "POST /api/v1/controlplane/auth/authorize";
    let (_, key) = world.new_token("workspace");
    let bearer = format!("Bearer {key}");
    let (code, body) = request(http, path, &[("Authorization", &bearer), ("Content-Length", "0")]);
    let answer: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, &answer["ok"], &answer["newToken"]), (200, &json!(true), &json!("")), "{body}");
    assert_eq!(answer["workspaceName"], "default");
    let bearer = format!("Bearer {}", unknown_token());
    let (code, body) = request(http, path, &[("Authorization", &bearer), ("Content-Length", "0")]);
    assert_eq!(code, 401, "{body}");
    assert!(body.contains("the token is not valid") && !body.contains("uuuu"), "{body}");
    assert_eq!(request(http, path, &[("Content-Length", "0")]).0, 401);
    let secret = ("X-Levers9-Bootstrap-Secret", levers9_tests::world::BOOTSTRAP_SECRET);
    let (code, body) = request(http, path, &[secret, ("Content-Length", "0")]);
    assert_eq!(code, 403, "{body}");
    assert!(body.contains("a workspace exists already") && !body.contains("l9_"), "{body}");
    for (head, expected) in
        [("GET /api/v1/tasks", 501), ("GET /nowhere", 404), ("DELETE /healthz", 405), ("GET /", 404)]
    {
        let (code, body) = request(http, head, &[]);
        assert_eq!(code, expected, "{head}: {body}");
    }
}

#[test]
fn grpc_authorizes_and_answers_unimplemented() {
    let world = &shared().world;
    let (_, key) = world.new_token("workspace");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let call = |method: &str, token: Option<&str>| runtime.block_on(grpc(world, method, token));
    let authorize = "/controlplane.ControlPlaneService/Authorize";
    let (status, message) = call(authorize, Some(&key));
    assert_eq!(status, "0");
    // Field 1, a bool that is true; then field 2, the workspace's id as 36 characters of text.
    assert_eq!(message[..4], [0x08, 1, 0x12, 36], "{message:?}");
    assert_eq!(call(authorize, Some(&unknown_token())).0, "16", "an unknown token is UNAUTHENTICATED");
    assert_eq!(call(authorize, None).0, "16", "no token is UNAUTHENTICATED");
    assert_eq!(call("/controlplane.ControlPlaneService/SignPayload", Some(&key)).0, "12");
    assert_eq!(call("/nothing.at.All/Ever", None).0, "12");
}

/// One unary call with an empty message, over plain HTTP/2: the status and
/// the answer's bytes.
async fn grpc(world: &World, method: &str, token: Option<&str>) -> (String, Vec<u8>) {
    let address = world.controlplane.grpc();
    let stream = tokio::net::TcpStream::connect(address).await.expect("the gRPC port accepts");
    let (client, connection) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.expect("it takes requests");
    let mut ask = http::Request::post(format!("http://{address}{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(token) = token {
        ask = ask.header("authorization", format!("Bearer {token}"));
    }
    let (answer, mut body) =
        client.send_request(ask.body(()).expect("a request"), false).expect("it is sent");
    let mut empty = BytesMut::new();
    empty.put_bytes(0, 5);
    body.send_data(empty.freeze(), true).expect("it is sent");
    let answer = answer.await.expect("an answer");
    let in_headers = answer.headers().get("grpc-status").cloned();
    let mut body = answer.into_body();
    let mut message = Vec::new();
    while let Some(part) = body.data().await {
        let part: Bytes = part.expect("bytes");
        body.flow_control().release_capacity(part.len()).expect("it was received");
        message.extend_from_slice(&part);
    }
    let trailers = body.trailers().await.expect("trailers").unwrap_or_default();
    let status = in_headers.or_else(|| trailers.get("grpc-status").cloned()).expect("a status");
    drop(client);
    driver.abort();
    // The message follows a flag and its length.
    (status.to_str().expect("a number").to_owned(), message.split_off(message.len().min(5)))
}
