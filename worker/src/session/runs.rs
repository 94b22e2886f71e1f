//! Serves one Run stream: starts or finds the container, reports its events
//! from where the controlplane is, and takes stops and acknowledgements.

use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::v1::{self, ResetCode, run_event, run_order};
use levers9_wire::valid;

use super::{Session, doors, logs};
use crate::containers::{Handle, Refused};

pub(super) async fn serve(session: Session, open: v1::RunOpen, mut stream: Stream) {
    let run = match valid::Run::try_from(open) {
        Ok(run) => run,
        Err(error) => {
            tracing::warn!(%error, "the controlplane ordered something that makes no sense");
            return stream.abort(ResetCode::Protocol);
        }
    };
    let since = run.since_event;
    let told = match begin(&session, run) {
        Ok(handle) => report(handle, since, &mut stream).await,
        Err(refused) => refuse(refused, since, &mut stream).await,
    };
    if let Err(error) = told {
        // The container is not harmed; the controlplane attaches to it again.
        tracing::debug!(%error, "a run stream ended early");
    }
}

/// The container, started when it is new; its log is sent and its door served
/// from then on.
fn begin(session: &Session, run: valid::Run) -> Result<Handle, Refused> {
    if let Some(handle) = session.containers.get(run.container, run.generation) {
        return Ok(handle);
    }
    let handle = session.containers.run(run)?;
    session.tasks.spawn(logs::send(session.clone(), handle.clone()));
    if let Some(door) = handle.take_door() {
        session.tasks.spawn(doors::serve(session.clone(), handle.clone(), door));
    }
    Ok(handle)
}

async fn refuse(refused: Refused, since: u64, stream: &mut Stream) -> Result<(), StreamError> {
    let ended = run_event::Kind::Ended(refused.ended());
    stream
        .send
        .send(&v1::RunEvent { sequence: since + 1, kind: Some(ended), ..v1::RunEvent::default() })
        .await?;
    // Its acknowledgement ends the stream.
    while let Some(order) = stream.recv.next::<v1::RunOrder>().await? {
        if matches!(order.kind, Some(run_order::Kind::AckEvent(_))) {
            break;
        }
    }
    stream.send.finish_and_deliver().await
}

async fn report(mut handle: Handle, mut since: u64, stream: &mut Stream) -> Result<(), StreamError> {
    loop {
        tokio::select! {
            () = handle.changed() => {
                for event in handle.events_since(since) {
                    since = event.sequence;
                    stream.send.queue(&event)?;
                }
                stream.send.flush().await?;
            }
            order = stream.recv.next::<v1::RunOrder>() => match order? {
                Some(order) => obey(&handle, order),
                None => return stream.send.finish_and_deliver().await,
            },
        }
    }
}

fn obey(handle: &Handle, order: v1::RunOrder) {
    match order.kind {
        Some(run_order::Kind::Stop(stop)) => handle.stop(stop),
        Some(run_order::Kind::AckEvent(sequence)) => handle.acknowledge_event(sequence),
        None => tracing::warn!("the controlplane gave an order this build does not know"),
    }
}
