//! Serves one Tunnel stream: a connection to a port of a container, and its
//! bytes as they are from then on. Who may be reached is the runtime's to know.

use std::time::Duration;

use levers9_transport::quic::HalfError;
use levers9_transport::stream::Stream;
use levers9_transport::tunnel::{Raw, splice};
use levers9_wire::v1::{self, FailureCode};
use levers9_wire::{frame, limits, valid};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::Session;
use super::answers::{self, failure};
use crate::containers::Handle;
use crate::runtime::Unreachable;

/// How long a container may take to answer.
const CONNECT: Duration = Duration::from_secs(10);

/// A connection that is made, and what it is counted with.
struct Reached {
    tcp: TcpStream,
    handle: Handle,
    _permit: OwnedSemaphorePermit,
}

pub(super) async fn serve(session: Session, open: v1::TunnelOpen, stream: Stream) {
    let Ok(mut raw) = Raw::of(stream).await else { return };
    let reached = tokio::select! {
        reached = reach(&session, open) => reached,
        // Nobody waits for it any more: what is dialled is given up.
        broken = raw.send.stopped() => return tracing::debug!(%broken, "a tunnel was given up early"),
        broken = raw.recv.broken() => return tracing::debug!(%broken, "a tunnel was given up early"),
    };
    match reached {
        Ok(Reached { tcp, handle, _permit }) => {
            if let Err(error) = answer(&mut raw, None).await {
                return tracing::debug!(%error, "a tunnel broke before its answer");
            }
            // Dropped, it resets both ends.
            tokio::select! {
                moved = splice(tcp, raw) => if let Err(cut) = moved {
                    tracing::debug!(%cut, container = %handle.container(), "a tunnel was cut");
                },
                () = handle.over() => {}
            }
        }
        Err(failure) => {
            tracing::debug!(reason = %failure.text, "a tunnel was refused");
            if answer(&mut raw, Some(failure)).await.is_ok() {
                answers::part(raw.send, raw.recv).await;
            }
        }
    }
}

async fn answer(raw: &mut Raw, failure: Option<v1::Failure>) -> Result<(), HalfError> {
    // A failure is short: it always fits.
    let bytes = frame::to_bytes(&v1::TunnelAnswer { failure }, limits::FRAME).unwrap_or_default();
    raw.send.write_all(bytes).await
}

async fn reach(session: &Session, open: v1::TunnelOpen) -> Result<Reached, v1::Failure> {
    let tunnel = valid::Tunnel::try_from(open).map_err(|error| failure(FailureCode::Invalid, error))?;
    let handle = answers::find(session, tunnel.container, tunnel.generation)?;
    let inside = handle.inside()?;
    let Some(permit) = handle.tunnel_permit() else {
        let text = "the container has as many connections through tunnels as it may";
        return Err(failure(FailureCode::Busy, text));
    };
    let port = tunnel.port;
    match timeout(CONNECT, inside.connect(port)).await {
        Ok(Ok(tcp)) => Ok(Reached { tcp, handle, _permit: permit }),
        Ok(Err(why)) => Err(unreachable(&handle, &why)),
        Err(_) => {
            let text = format!("port {port} of the container did not answer within {CONNECT:?}");
            Err(failure(FailureCode::Timeout, text))
        }
    }
}

fn unreachable(handle: &Handle, why: &Unreachable) -> v1::Failure {
    // It may have ended while it was looked for.
    if let Err(ended) = handle.inside() {
        return ended.into();
    }
    let code = match why {
        Unreachable::NotListening(_) => FailureCode::NotListening,
        Unreachable::NotOwn(_) => FailureCode::NotOwn,
        Unreachable::Failed { .. } => FailureCode::Internal,
    };
    failure(code, why)
}
