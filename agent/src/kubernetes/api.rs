//! One API server, asked over HTTP: requests, the service account's token,
//! sizes, times and the words for what went wrong. Retries nothing.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, DATE};
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use k8s_openapi::jiff::fmt::rfc2822;
use kube::client::Body;
use levers9_wire::clock;
use levers9_wire::name::printable;
use serde::Deserialize;
use tokio::time::timeout;

use super::token::TokenFile;

/// How long the head of an answer may take to come, and a whole small answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a page of a list may take.
const PAGE_PATIENCE: Duration = Duration::from_secs(60);
/// The largest answer, in bytes: a page of large objects.
const LARGEST: usize = 64 << 20;
/// The largest answer to anything that is not a list, in bytes.
const SMALL: usize = 4 << 20;
/// How much is said of a failure, in characters.
const WORDS: usize = 300;

/// What the API server answered.
pub type Answer = Result<Bytes, ApiError>;

/// Why there is no answer to work with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// There are no credentials or no address to try.
    #[error("there is no way to the API server: {0}")]
    NoAccess(String),
    /// No connection, or it broke.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// It took too long.
    #[error("the API server did not answer in {} s", .0.as_secs())]
    Slow(Duration),
    /// It said no.
    #[error("{code} {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// Kubernetes' one word for it, such as `AlreadyExists`.
        reason: String,
        /// What it said, one line.
        message: String,
    },
    /// It answered with something that means nothing.
    #[error("the API server answered with what cannot be read: {0}")]
    Garbage(String),
}

impl ApiError {
    /// An answer that cannot be read.
    pub fn garbage(error: impl fmt::Display) -> Self {
        Self::Garbage(printable(&error.to_string(), WORDS))
    }

    /// Whether the API server answered with this status.
    #[must_use]
    pub fn is(&self, code: u16) -> bool {
        matches!(self, Self::Refused { code: was, .. } if *was == code)
    }

    /// Whether what was asked may have been done all the same.
    #[must_use]
    pub fn leaves_open(&self) -> bool {
        match self {
            Self::NoAccess(_) => false,
            Self::Unreachable(_) | Self::Slow(_) | Self::Garbage(_) => true,
            Self::Refused { code, .. } => *code >= 500,
        }
    }

    /// What a `Status` object says, or a body that is none.
    pub(super) fn refused(code: u16, body: &[u8]) -> Self {
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        let canonical = StatusCode::from_u16(code).ok().and_then(|code| code.canonical_reason());
        let message = match status.message.lines().next().unwrap_or_default() {
            "" => canonical.unwrap_or("refused").to_owned(),
            said => printable(said, WORDS),
        };
        Self::Refused { code, reason: printable(&status.reason, 60), message }
    }
}

/// Kubernetes' object for failures.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) message: String,
}

/// A way to the API server; clones share it.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    token: Option<Arc<TokenFile>>,
    /// How far the API server's clock is ahead of this machine's, in milliseconds.
    ahead: Arc<AtomicI64>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("token", &self.token).finish_non_exhaustive()
    }
}

impl Api {
    /// Finds the API server: by `KUBECONFIG` where there is one, else from inside a cluster.
    ///
    /// # Errors
    /// When neither leads anywhere.
    pub async fn find() -> Result<Self, ApiError> {
        let config = kube::Config::infer().await.map_err(|e| ApiError::NoAccess(chain(&e)))?;
        Self::new(config)
    }

    /// The API server of a configuration. Must be called within a runtime.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub fn new(mut config: kube::Config) -> Result<Self, ApiError> {
        // Read here at every request: the client's own reader keeps one for up to a minute.
        let token = config.auth_info.token_file.take().map(|path| Arc::new(TokenFile::new(path.into())));
        config.connect_timeout = Some(PATIENCE);
        // Who asks knows better what to do about a failure.
        config.default_retry = false;
        let client = kube::Client::try_from(config).map_err(|e| ApiError::NoAccess(chain(&e)))?;
        Ok(Self { client, token, ahead: Arc::new(AtomicI64::new(0)) })
    }

    /// The API server behind a client.
    #[cfg(test)]
    pub(crate) fn of(client: kube::Client, token: Option<std::path::PathBuf>) -> Self {
        Self {
            client,
            token: token.map(|path| Arc::new(TokenFile::new(path))),
            ahead: Arc::new(AtomicI64::new(0)),
        }
    }

    /// The time by the API server's clock, in Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        let own = i64::try_from(clock::unix_millis()).unwrap_or(i64::MAX);
        own.saturating_add(self.ahead.load(Ordering::Relaxed))
    }

    /// Asks and reads the answer.
    ///
    /// # Errors
    /// With anything but a good answer of a bounded size in a bounded time.
    pub async fn ask(&self, request: Request<Vec<u8>>) -> Answer {
        self.within(PATIENCE, SMALL, request).await
    }

    /// Asks for a page of a list.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub(super) async fn page(&self, request: Request<Vec<u8>>) -> Answer {
        self.within(PAGE_PATIENCE, LARGEST, request).await
    }

    async fn within(&self, patience: Duration, largest: usize, request: Request<Vec<u8>>) -> Answer {
        let asked = async {
            let answer = self.send(request).await?;
            collect(answer.into_body(), largest).await
        };
        timeout(patience, asked).await.unwrap_or(Err(ApiError::Slow(patience)))
    }

    /// Begins a watch. What is said on it is read piece by piece.
    ///
    /// # Errors
    /// When it is refused or its head does not come.
    pub(super) async fn follow(&self, request: Request<Vec<u8>>) -> Result<Pieces, ApiError> {
        let answer = timeout(PATIENCE, self.send(request)).await;
        Ok(Pieces(answer.unwrap_or(Err(ApiError::Slow(PATIENCE)))?.into_body()))
    }

    /// Sends a request; what is not a success is an error.
    async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Body>, ApiError> {
        let mut request = request.map(Body::from);
        if let Some(value) = self.token.as_ref().and_then(|token| token.header()) {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let answer = self.client.send(request).await.map_err(|e| unreachable(&e))?;
        self.set_clock(&answer);
        let code = answer.status();
        if code.is_success() {
            return Ok(answer);
        }
        let body = collect(answer.into_body(), SMALL).await.unwrap_or_default();
        Err(ApiError::refused(code.as_u16(), &body))
    }

    fn set_clock(&self, answer: &Response<Body>) {
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
        let parser = rfc2822::DateTimeParser::new();
        let Some(date) = date.and_then(|date| parser.parse_timestamp(date).ok()) else { return };
        let own = i64::try_from(clock::unix_millis()).unwrap_or(i64::MAX);
        let ahead = date.as_millisecond().saturating_sub(own);
        // The header knows whole seconds, and took a moment to come.
        let ahead = if ahead.abs() <= 2_000 { 0 } else { ahead };
        self.ahead.store(ahead, Ordering::Relaxed);
    }
}

/// An answer that comes piece by piece.
#[derive(Debug)]
pub(super) struct Pieces(Body);

impl Pieces {
    /// The next piece, or none at an orderly end. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        next(&mut self.0).await
    }
}

async fn next(body: &mut Body) -> Result<Option<Bytes>, ApiError> {
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(unreachable(&error)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

async fn collect(mut body: Body, largest: usize) -> Answer {
    let mut whole = BytesMut::new();
    while let Some(piece) = next(&mut body).await? {
        if whole.len() + piece.len() > largest {
            return Err(ApiError::Garbage(format!("more than {largest} bytes")));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

fn unreachable(error: &kube::Error) -> ApiError {
    ApiError::Unreachable(chain(error))
}

/// An error with its causes, as one line. Errors of connections carry no
/// header and no body.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !words.contains(&said) {
            words = format!("{words}: {said}");
        }
        cause = error.source();
    }
    printable(&words, WORDS)
}
