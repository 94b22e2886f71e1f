//! The bodies of a message on its way through: an upload that waits until the
//! container asks for it, and an answer that holds on to its connection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::watch;
use tokio::time::Sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::reach::Counted;

/// How long an upload waits for a container that asks for none.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether an upload may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// Not yet.
    Closed,
    /// The container wants it.
    Open,
    /// The container has answered without it.
    Unwanted,
}

/// Opens or shuts an upload.
#[derive(Debug, Clone)]
pub(super) struct Opener(watch::Sender<Gate>);

impl Opener {
    /// The container asks for it.
    pub(super) fn open(&self) {
        self.set(Gate::Open);
    }

    /// The container has answered; what did not start does not start any more.
    pub(super) fn answered(&self) {
        self.set(Gate::Unwanted);
    }

    fn set(&self, to: Gate) {
        self.0.send_if_modified(|gate| {
            let first = *gate == Gate::Closed;
            if first {
                *gate = to;
            }
            first
        });
    }
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct Upload {
    body: Option<Incoming>,
    waiting: Option<Waiting>,
}

struct Waiting {
    opened: Pin<Box<dyn Future<Output = Gate> + Send>>,
    patience: Pin<Box<Sleep>>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiting")
    }
}

impl Upload {
    /// One that starts at once.
    pub(super) fn new(body: Incoming) -> Self {
        Self { body: Some(body), waiting: None }
    }

    /// None.
    pub(super) fn empty() -> Self {
        Self { body: None, waiting: None }
    }

    /// One that starts when it is asked for, or nobody has said anything for a second.
    pub(super) fn on_demand(body: Incoming) -> (Self, Opener) {
        let (opener, mut gate) = watch::channel(Gate::Closed);
        let opened = Box::pin(async move {
            match gate.wait_for(|gate| *gate != Gate::Closed).await {
                Ok(gate) => *gate,
                Err(_) => Gate::Unwanted,
            }
        });
        let waiting = Waiting { opened, patience: Box::pin(tokio::time::sleep(PATIENCE)) };
        (Self { body: Some(body), waiting: Some(waiting) }, Opener(opener))
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(waiting) = &mut self.waiting {
            match waiting.opened.as_mut().poll(context) {
                // The connection ends with the answer; until then it must not break.
                Poll::Ready(Gate::Unwanted | Gate::Closed) => {
                    waiting.opened = Box::pin(std::future::pending());
                    waiting.patience.as_mut().reset(tokio::time::Instant::now() + NEVER);
                    return Poll::Pending;
                }
                Poll::Ready(Gate::Open) => {}
                Poll::Pending => ready!(waiting.patience.as_mut().poll(context)),
            }
            self.waiting = None;
        }
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

/// The body of an answer, counted as open until its end. Its connection, when
/// it is good for nothing else, ends with it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) body: Incoming,
    pub(super) _connection: Option<AbortOnDropHandle<()>>,
    pub(super) _open: Counted,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Longer than any answer.
const NEVER: Duration = Duration::from_secs(30 * 86_400);
