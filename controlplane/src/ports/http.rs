//! Port 1994: health, metrics, and the REST door that the JSON gateway of the
//! documents describes. Field names are the gateway's camelCase, and every
//! field is there even when empty. What is not built yet says so.
//!
//! It decides nothing: who may see what, it asks of [`Front`].

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, StatusCode, Uri};
use levers9_wire::name::printable;
use serde::Serialize;
use tonic::Code;

use super::front::{AuthorizeError, Front, Health};
use super::serve::Peer;
use super::{access, credentials};

/// Everything on the port.
pub(super) fn router<F: Front>(front: Arc<F>) -> Router {
    Router::new()
        .route("/healthz", get(health::<F>))
        .route("/metrics", get(metrics::<F>))
        .route("/api/v1/controlplane/auth/authorize", post(authorize::<F>))
        .route("/api/v1/{*rest}", axum::routing::any(not_built))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(in_time))
        .layer(middleware::from_fn_with_state("http", access::log))
        .with_state(front)
}

/// What went wrong, as the gateway tells it: the gRPC code and words.
#[derive(Serialize)]
struct Failure {
    code: i32,
    message: String,
}

fn failure(status: StatusCode, code: Code, message: impl Into<String>) -> Response {
    (status, Json(Failure { code: code.into(), message: message.into() })).into_response()
}

async fn in_time(request: Request, next: Next) -> Response {
    tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await.unwrap_or_else(|_| {
        let seconds = REQUEST_TIMEOUT.as_secs();
        failure(StatusCode::GATEWAY_TIMEOUT, Code::DeadlineExceeded, format!("no answer within {seconds} s"))
    })
}

#[derive(Serialize)]
struct HealthAnswer {
    ready: bool,
    parts: Vec<PartAnswer>,
}

#[derive(Serialize)]
struct PartAnswer {
    name: String,
    ok: bool,
    problem: String,
}

async fn health<F: Front>(State(front): State<Arc<F>>) -> Response {
    let health = tokio::time::timeout(HEALTH_TIMEOUT, front.health()).await.unwrap_or_else(|_| Health {
        ready: false,
        parts: vec![("health".to_owned(), Err(format!("no answer within {} s", HEALTH_TIMEOUT.as_secs())))],
    });
    let part = |(name, state): (String, Result<(), String>)| PartAnswer {
        name,
        ok: state.is_ok(),
        problem: state.err().unwrap_or_default(),
    };
    let status = if health.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let parts = health.parts.into_iter().map(part).collect();
    (status, Json(HealthAnswer { ready: health.ready, parts })).into_response()
}

async fn metrics<F: Front>(
    State(front): State<Arc<F>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
) -> Response {
    // Through a proxy on this machine everybody comes from loopback.
    let forwarded = FORWARDED.iter().any(|name| headers.contains_key(*name));
    if forwarded || !peer.ip().to_canonical().is_loopback() {
        let token = match credentials::bearer(&headers) {
            Ok(Some(token)) => token,
            Ok(None) => return unauthenticated("metrics are shown on loopback, or to an admin's token"),
            Err(error) => return unauthenticated(error.to_string()),
        };
        if !front.is_admin(token).await {
            let message = "metrics are shown to an admin's token alone";
            return failure(StatusCode::FORBIDDEN, Code::PermissionDenied, message);
        }
    }
    ([(CONTENT_TYPE, PROMETHEUS)], front.metrics().await).into_response()
}

fn unauthenticated(message: impl Into<String>) -> Response {
    let answer = failure(StatusCode::UNAUTHORIZED, Code::Unauthenticated, message);
    ([(WWW_AUTHENTICATE, "Bearer")], answer).into_response()
}

/// The answer to Authorize, refusals included.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct AuthorizeAnswer {
    ok: bool,
    workspace_id: String,
    workspace_name: String,
    new_token: String,
    error_msg: String,
}

async fn authorize<F: Front>(
    State(front): State<Arc<F>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match body {
        Ok(body) if body.is_empty() || is_object(&body) => {}
        Ok(_) => {
            let message = "the body must be a JSON object or empty";
            return failure(StatusCode::BAD_REQUEST, Code::InvalidArgument, message);
        }
        Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let message = "a body may have 1 MiB";
            return failure(StatusCode::PAYLOAD_TOO_LARGE, Code::ResourceExhausted, message);
        }
        Err(_) => return failure(StatusCode::BAD_REQUEST, Code::InvalidArgument, "the body ended early"),
    }
    let authorized = match credentials::asked(&headers, peer) {
        Ok(asked) => front.authorize(asked).await,
        Err(error) => Err(error),
    };
    let (status, answer) = match authorized {
        Ok(authorized) => (
            StatusCode::OK,
            AuthorizeAnswer {
                ok: true,
                workspace_id: authorized.workspace.to_string(),
                workspace_name: authorized.workspace_name,
                new_token: authorized.new_token.map_or_else(String::new, |token| token.expose().to_owned()),
                error_msg: String::new(),
            },
        ),
        Err(error) => (
            status_of(&error),
            AuthorizeAnswer { error_msg: error.to_string(), ..AuthorizeAnswer::default() },
        ),
    };
    let mut response = (status, [(CACHE_CONTROL, "no-store")], Json(answer)).into_response();
    match status {
        StatusCode::UNAUTHORIZED => drop(response.headers_mut().insert(WWW_AUTHENTICATE, BEARER)),
        StatusCode::TOO_MANY_REQUESTS => drop(response.headers_mut().insert(RETRY_AFTER, ONE_MINUTE)),
        _ => {}
    }
    response
}

fn is_object(body: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(body).is_ok()
}

fn status_of(error: &AuthorizeError) -> StatusCode {
    match error {
        AuthorizeError::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
        AuthorizeError::Denied(_) => StatusCode::FORBIDDEN,
        AuthorizeError::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
        AuthorizeError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn not_built(method: Method, uri: Uri) -> Response {
    let message = format!("{method} {} is not built yet", printable(uri.path(), 200));
    failure(StatusCode::NOT_IMPLEMENTED, Code::Unimplemented, message)
}

async fn not_found(uri: Uri) -> Response {
    let message = format!("there is nothing at {}", printable(uri.path(), 200));
    failure(StatusCode::NOT_FOUND, Code::NotFound, message)
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let message = format!("{method} is not what {} answers", printable(uri.path(), 200));
    failure(StatusCode::METHOD_NOT_ALLOWED, Code::Unimplemented, message)
}

const MAX_BODY: usize = 1 << 20;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Who asks is a probe that gives up sooner than people do.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const FORWARDED: [&str; 2] = ["forwarded", "x-forwarded-for"];
const BEARER: http::HeaderValue = http::HeaderValue::from_static("Bearer");
const ONE_MINUTE: http::HeaderValue = http::HeaderValue::from_static("60");
