//! The watches of the double.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::{Asked, Double, is_selected};

/// A body that comes piece by piece.
#[derive(Debug)]
pub(crate) struct Pieces(mpsc::Receiver<Bytes>);

impl Pieces {
    pub(super) fn whole(value: &Value) -> Self {
        let (send, pieces) = mpsc::channel(1);
        send.try_send(Bytes::from(value.to_string())).unwrap();
        Self(pieces)
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// Begins the watch that was asked for.
pub(super) fn follow(double: Arc<Double>, asked: &Asked) -> Pieces {
    let (send, pieces) = mpsc::channel(16);
    let number = |key: &str| asked.query.get(key).and_then(|text| text.parse::<u64>().ok());
    let watch = Watch {
        nth: {
            let mut state = double.state();
            state.watches += 1;
            state.watches
        },
        plural: asked.plural(),
        selector: asked.query.get("labelSelector").cloned(),
        at: number("resourceVersion").unwrap_or_default(),
        until: Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(1_800)),
    };
    tokio::spawn(watch.run(double, send));
    Pieces(pieces)
}

struct Watch {
    nth: u64,
    plural: &'static str,
    selector: Option<String>,
    at: u64,
    until: Instant,
}

impl Watch {
    async fn run(mut self, double: Arc<Double>, send: mpsc::Sender<Bytes>) {
        let mut changed = double.changed.subscribe();
        loop {
            if self.is_deaf(&double) {
                return send.closed().await;
            }
            let (events, expired) = self.news(&double);
            for event in events {
                // In two halves, as a network may cut it.
                let line = Bytes::from(format!("{event}\n"));
                let middle = line.len() / 2;
                for piece in [line.slice(..middle), line.slice(middle..)] {
                    if send.send(piece).await.is_err() {
                        return;
                    }
                }
            }
            if expired {
                return;
            }
            let closed = tokio::select! {
                waited = timeout_at(self.until, changed.changed()) => waited.is_err(),
                () = send.closed() => return,
            };
            if closed && !self.is_deaf(&double) {
                return;
            }
        }
    }

    fn is_deaf(&self, double: &Double) -> bool {
        self.nth <= double.state().deaf_before
    }

    fn news(&mut self, double: &Double) -> (Vec<Value>, bool) {
        let state = double.state();
        if self.at < state.oldest {
            let gone = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old" });
            return (vec![json!({ "type": "ERROR", "object": gone })], true);
        }
        let new = state.changes.iter().filter(|c| c.version > self.at && c.plural == self.plural);
        let new = new.filter(|c| is_selected(&c.object, self.selector.as_ref()));
        let events = new.map(|c| json!({ "type": c.what, "object": c.object })).collect();
        self.at = state.version;
        (events, false)
    }
}
