//! Port 1994: what is answered to whom.

use std::sync::atomic::Ordering;

use crate::desk::{WORKSPACE, ask, get, parts, request, serve};
use crate::log;

const AUTHORIZE: &str = "/api/v1/controlplane/auth/authorize";

#[tokio::test]
async fn health_is_a_fact() {
    let served = serve().await;
    let well = get(served.http, "/healthz", &[]).await;
    assert_eq!(
        parts(&well),
        (
            200,
            r#"{"ready":true,"parts":[{"name":"database","ok":true,"problem":""},{"name":"quic","ok":true,"problem":""}]}"#
        )
    );
    served.desk.broken.store(true, Ordering::Relaxed);
    let ill = get(served.http, "/healthz", &[]).await;
    let (status, body) = parts(&ill);
    assert_eq!(status, 503);
    assert!(body.contains(r#""ready":false"#) && body.contains(r#""problem":"unreachable""#), "{body}");
}

#[tokio::test]
async fn metrics_are_for_loopback_and_admins() {
    let served = serve().await;
    assert_eq!(parts(&get(served.http, "/metrics", &[]).await), (200, "levers9_sessions 3\n"));
    // Behind a proxy on the same machine loopback says nothing.
    let proxied = |authorization: &'static str| async move {
        let answer = get(served.http, "/metrics", &["x-forwarded-for: 203.0.113.9", authorization]).await;
        parts(&answer).0
    };
    assert_eq!(proxied("accept: */*").await, 401);
    assert_eq!(proxied("authorization: Basic YWRtaW4=").await, 401);
    assert_eq!(proxied("authorization: Bearer good").await, 403);
    assert_eq!(proxied("authorization: Bearer admin").await, 200);
}

#[tokio::test]
async fn the_bootstrap_secret_is_traded_for_a_token() {
    let served = serve().await;
    let text = request("POST", AUTHORIZE, &["Grpc-Metadata-X-Levers9-Bootstrap-Secret: hunter2"], "{}");
    let answer = ask(served.http, &text).await;
    assert!(answer.to_ascii_lowercase().contains("cache-control: no-store"), "{answer}");
    let expected = format!(
        r#"{{"ok":true,"workspaceId":"{WORKSPACE}","workspaceName":"first","newToken":"l9_admin_new","errorMsg":""}}"#
    );
    assert_eq!(parts(&answer), (200, expected.as_str()));
}

#[tokio::test]
async fn each_refusal_has_its_status_and_words() {
    let served = serve().await;
    for (token, status, words) in [
        ("Bearer no", 401, "the token is not valid"),
        ("Digest x", 401, "the authorization header is not \\\"Bearer TOKEN\\\""),
        ("Bearer denied", 403, "a workspace exists already"),
        ("Bearer many", 429, "wait a minute"),
        ("Bearer down", 503, "the database is unavailable"),
    ] {
        let answer =
            ask(served.http, &request("POST", AUTHORIZE, &[&format!("authorization: {token}")], "")).await;
        let (got, body) = parts(&answer);
        assert_eq!(got, status, "{token}");
        assert!(
            body.contains(&format!(r#""errorMsg":"{words}""#)) && body.contains(r#""ok":false"#),
            "{body}"
        );
    }
}

#[tokio::test]
async fn bodies_are_small_and_json() {
    let served = serve().await;
    let token = ["authorization: Bearer good"];
    let status = |body: String| async move {
        let answer = ask(served.http, &request("POST", AUTHORIZE, &token, &body)).await;
        parts(&answer).0
    };
    assert_eq!(status(String::new()).await, 200);
    assert_eq!(status("{}".to_owned()).await, 200);
    assert_eq!(status("garbage".to_owned()).await, 400);
    assert_eq!(status(format!("{{\"a\":\"{}\"}}", "a".repeat((1 << 20) - 8))).await, 200);
    assert_eq!(status(format!("{{\"a\":\"{}\"}}", "a".repeat((1 << 20) - 7))).await, 413);
}

#[tokio::test]
async fn what_is_not_there_says_so() {
    let served = serve().await;
    let not_built = get(served.http, "/api/v1/clusters?token=hunter2", &[]).await;
    assert_eq!(parts(&not_built), (501, r#"{"code":12,"message":"GET /api/v1/clusters is not built yet"}"#));
    let nothing = get(served.http, "/x", &[]).await;
    assert_eq!(parts(&nothing), (404, r#"{"code":5,"message":"there is nothing at /x"}"#));
    let delete = ask(served.http, &request("DELETE", "/healthz", &[], "")).await;
    assert_eq!(parts(&delete), (405, r#"{"code":12,"message":"DELETE is not what /healthz answers"}"#));
}

#[tokio::test]
async fn the_log_has_a_line_per_request_and_no_secret() {
    let served = serve().await;
    let headers = ["authorization: Bearer tokensecret", "x-levers9-bootstrap-secret: hunter2"];
    ask(served.http, &request("POST", &format!("{AUTHORIZE}?key=querysecret"), &headers, "{}")).await;
    get(served.http, "/%1b[2J?key=querysecret", &headers).await;
    let log = log::of_this_thread();
    let ours: Vec<&str> = log.lines().filter(|line| line.contains("levers9_controlplane")).collect();
    assert!(
        ours.iter().any(|l| l.contains("method=POST") && l.contains(AUTHORIZE) && l.contains("status=200")),
        "{log}"
    );
    assert!(ours.iter().any(|l| l.contains("status=404") && l.contains("ms=")), "{log}");
    for secret in ["tokensecret", "hunter2", "querysecret"] {
        assert!(!log.contains(secret), "{log}");
    }
}
