//! One log line per request: port, method, path, status and time. Never a
//! query string, a header or a body, where secrets travel.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use levers9_wire::name::printable;
use tokio::time::Instant;

/// Paths that machines ask for all day.
const QUIET: [&str; 2] = ["/healthz", "/metrics"];

/// Answers a request and logs that it did.
pub(super) async fn log(State(port): State<&'static str>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let path = printable(request.uri().path(), 200);
    let response = next.run(request).await;
    let (status, took) = (response.status(), started.elapsed());
    let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    if QUIET.contains(&path.as_str()) && status.is_success() {
        tracing::debug!(port, %method, path, status = status.as_u16(), ms, "request");
    } else {
        tracing::info!(port, %method, path, status = status.as_u16(), ms, "request");
    }
    response
}
