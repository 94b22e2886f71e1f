//! Sends the reports of one session after another, one stream each.

use std::time::Duration;

use levers9_transport::link::{Link, Status, open_on};
use levers9_transport::quic::Carrier;
use levers9_transport::stream::StreamError;
use levers9_wire::limits;
use levers9_wire::name::printable;
use levers9_wire::v1::{self, FailureCode, stream_open};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::eyes::Eyes;
use crate::orders::Orders;
use crate::pace::{Due, Pace};

/// How long a report may be on its way.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reports for as long as the link is not closed.
pub(crate) async fn report(link: Link, eyes: Eyes, orders: Orders) {
    let mut refusal = None;
    while link.online().await.is_ok() {
        in_session(link.status(), &eyes, &orders, &mut refusal).await;
    }
}

/// Reports until the session is lost, on whatever carrier it rides then.
/// `refusal` is what the controlplane had against the last report.
async fn in_session(
    mut status: watch::Receiver<Status>,
    eyes: &Eyes,
    orders: &Orders,
    refusal: &mut Option<String>,
) {
    let (mut pace, mut rides_on) = (Pace::new(Instant::now()), None);
    let mut touches = eyes.touches();
    let mut sending: JoinSet<Result<Option<v1::Failure>, StreamError>> = JoinSet::new();
    let mut reported = None;
    loop {
        let now = Instant::now();
        let Some(carrier) = carrier_of(&status.borrow_and_update()) else { return };
        // Another carrier may be one of another controlplane, which knows nothing.
        if rides_on.replace(carrier.number()) != Some(carrier.number()) {
            (pace, reported) = (Pace::new(now), None);
        }
        if let Some(due) = pace.due(now, eyes.says_something()) {
            let revision = eyes.settle();
            if due == Due::Report || reported != Some(revision) {
                reported = Some(revision);
                // Dropping an older one resets its stream.
                sending.abort_all();
                sending.spawn(send(carrier, eyes.report(orders.now_ms())));
                pace.began(now);
            } else {
                pace.looked(now);
            }
        }
        tokio::select! {
            biased;
            changed = status.changed() => if changed.is_err() { return },
            Some(sent) = sending.join_next() => match sent {
                Ok(sent) => {
                    if sending.is_empty() {
                        pace.ended();
                    }
                    told(sent, refusal);
                }
                Err(aborted) if aborted.is_cancelled() => {}
                Err(_panicked) => pace.ended(),
            },
            // The sender lives as long as the eyes.
            Ok(()) = touches.changed() => pace.touched(),
            () = sleep_until(pace.next()) => {}
        }
    }
}

fn carrier_of(status: &Status) -> Option<Carrier> {
    match status {
        Status::Online { carrier, .. } => Some(carrier.clone()),
        _ => None,
    }
}

/// Says what became of a report, once per change.
fn told(sent: Result<Option<v1::Failure>, StreamError>, refusal: &mut Option<String>) {
    let now = match sent {
        Ok(None) => None,
        Ok(Some(failure)) => Some(printable(&failure.text, 300)),
        // The link says what happened to the carrier.
        Err(StreamError::Lost(_)) => return,
        Err(error) => Some(error.to_string()),
    };
    if let Some(problem) = now.as_ref().filter(|now| refusal.as_ref() != Some(now)) {
        tracing::warn!(problem, "the controlplane did not take a report");
    }
    *refusal = now;
}

async fn send(carrier: Carrier, report: v1::NodeReport) -> Result<Option<v1::Failure>, StreamError> {
    let sent = async {
        let mut stream = open_on(&carrier, stream_open::Kind::NodeReport(v1::NodeReportOpen {})).await?;
        stream.send = stream.send.with_limit(limits::NODE_REPORT);
        stream.send.send(&report).await?;
        drop(report);
        stream.send.finish();
        let answer = stream.recv.expect::<v1::NodeReportAnswer>().await?;
        Ok(answer.failure)
    };
    let late = || v1::Failure {
        code: FailureCode::Timeout.into(),
        text: "no answer in time".to_owned(),
        hint: String::new(),
    };
    timeout(PATIENCE, sent).await.unwrap_or_else(|_| Ok(Some(late())))
}
