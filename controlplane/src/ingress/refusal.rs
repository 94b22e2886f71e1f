//! Why the controlplane answers a request in the place of a container: a
//! status, a plain sentence and a code that programs can tell apart.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use levers9_wire::v1::{Failure, FailureCode};

use super::headers::REASON;

/// A request that no container answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// For programs: lower case, with dashes.
    pub(super) code: &'static str,
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &'static str, text: impl Into<String>) -> Self {
        Self { status, code, text: text.into() }
    }

    /// No token, or none that is good.
    pub(super) fn unauthorized(text: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "token", text)
    }

    pub(super) fn not_found() -> Self {
        let text =
            "there is no such container, or it does not expose the port; levers9 task show names its URLs";
        Self::new(StatusCode::NOT_FOUND, "not-found", text)
    }

    pub(super) fn wrong_host() -> Self {
        let text = "containers are not served under this host name here";
        Self::new(StatusCode::MISDIRECTED_REQUEST, "wrong-host", text)
    }

    /// The container's side broke before there was an answer.
    pub(super) fn broken(problem: &str) -> Self {
        let text = format!("the container broke the connection without a valid answer: {problem}");
        Self::new(StatusCode::BAD_GATEWAY, "bad-answer", text)
    }

    pub(super) fn response(&self) -> Response {
        let mut response = Response::new(Body::from(format!("{}\n", self.text)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(REASON, HeaderValue::from_static(self.code));
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("2"));
            }
            StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
            }
            _ => {}
        }
        response
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        use FailureCode as F;
        let (status, code) = match failure.code() {
            F::NotFound | F::Invalid | F::Denied => return Self::not_found(),
            F::NotListening => (StatusCode::BAD_GATEWAY, "not-listening"),
            F::NotOwn => (StatusCode::BAD_GATEWAY, "not-own"),
            F::NotRunning => (StatusCode::SERVICE_UNAVAILABLE, "not-running"),
            F::WorkerAway => (StatusCode::SERVICE_UNAVAILABLE, "worker-away"),
            F::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            F::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            F::Timeout => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            _ => (StatusCode::BAD_GATEWAY, "failed"),
        };
        Self::new(status, code, failure.text)
    }
}
