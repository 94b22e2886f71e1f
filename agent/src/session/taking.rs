//! Takes the streams the controlplane opens: orders, a bounded number at once.

use std::sync::Arc;
use std::time::Duration;

use levers9_transport::link::Opened;
use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::v1::{self, FailureCode, ResetCode, stream_open};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::orders::{Orders, failure};

/// Orders under way at once.
const ORDERS: usize = 64;
/// How long an order may take, and how long its answer to be taken.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(45), Duration::from_secs(10));

/// Takes orders until the link is closed. Those under way are tracked.
pub(crate) async fn take_orders(
    mut incoming: mpsc::Receiver<Box<Opened>>,
    orders: Orders,
    tasks: TaskTracker,
) {
    let room = Arc::new(Semaphore::new(ORDERS));
    while let Some(opened) = incoming.recv().await {
        let Opened { kind, mut stream } = *opened;
        let stream_open::Kind::Order(order) = kind else {
            stream.abort(ResetCode::Unsupported);
            continue;
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            stream.abort(ResetCode::Busy);
            continue;
        };
        let orders = orders.clone();
        tasks.spawn(async move {
            if let Err(error) = serve(&orders, order, stream).await {
                tracing::debug!(%error, "the answer to an order was not taken");
            }
            drop(permit);
        });
    }
}

/// Carries out one order. What is begun is finished, even if nobody waits for
/// the answer any more.
async fn serve(orders: &Orders, order: v1::OrderOpen, mut stream: Stream) -> Result<(), StreamError> {
    let answer = timeout(PATIENCE.0, orders.serve(order)).await.unwrap_or_else(|_| v1::OrderAnswer {
        failure: Some(failure(FailureCode::Unavailable, "the order took too long; order it again")),
        jobs: Vec::new(),
    });
    let told = async {
        stream.send.send(&answer).await?;
        stream.send.finish_and_deliver().await
    };
    let told = timeout(PATIENCE.1, told).await;
    if told.is_err() {
        stream.abort(ResetCode::Timeout);
    }
    stream.recv.stop(ResetCode::Done);
    told.unwrap_or(Ok(()))
}
