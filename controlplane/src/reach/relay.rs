//! Tunnels and execs of a CLI: the stream it opened and one opened on to the
//! worker, with their bytes moved across. What breaks one breaks the other.

use levers9_transport::stream::{Stream, StreamError};
use levers9_transport::tunnel::{Raw, relay_until};
use levers9_wire::v1::{self, FailureCode, ResetCode, exec_output, stream_open};
use levers9_wire::valid;
use prost::Message;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::{OPEN, What, failure, find, open as open_on};
use crate::auth::{Action, Identity};
use crate::state::Shared;

/// Serves a Tunnel stream of somebody.
pub async fn tunnel(state: Shared, who: Identity, asked: v1::TunnelOpen, mut stream: Stream) {
    let onward = async {
        let tunnel = valid::Tunnel::try_from(asked).map_err(|e| invalid(&e))?;
        let place = find(&state, &who, Action::Reach, tunnel.container, tunnel.generation).await?;
        let onward = v1::TunnelOpen {
            container: place.container().to_wire(),
            generation: place.generation().0,
            port: u32::from(tunnel.port.get()),
        };
        open_on(&place.session, stream_open::Kind::Tunnel(onward)).await
    };
    match unless_left(&stream, onward).await {
        Some(Ok(onward)) => {
            let _open = state.open.one(What::Tunnel);
            across(&state, stream, onward).await;
        }
        Some(Err(failure)) => {
            refuse(&mut stream, &v1::TunnelAnswer { failure: Some(failure) }).await;
        }
        None => {}
    }
}

/// Serves an Exec stream of somebody.
pub async fn exec(state: Shared, who: Identity, asked: v1::ExecOpen, mut stream: Stream) {
    let onward = async {
        let exec = valid::Exec::try_from(asked.clone()).map_err(|e| invalid(&e))?;
        let place = find(&state, &who, Action::Reach, exec.container, exec.generation).await?;
        let (container, generation) = (place.container().to_wire(), place.generation().0);
        tracing::info!(container = %place.container(), token = %who.token, "a command is run in a container");
        let onward = v1::ExecOpen { container, generation, ..asked };
        open_on(&place.session, stream_open::Kind::Exec(onward)).await
    };
    match unless_left(&stream, onward).await {
        Some(Ok(onward)) => {
            let _open = state.open.one(What::Exec);
            across(&state, stream, onward).await;
        }
        Some(Err(failure)) => {
            let kind = Some(exec_output::Kind::Failure(failure));
            refuse(&mut stream, &v1::ExecOutput { kind }).await;
        }
        None => {}
    }
}

/// What comes of the way on, unless whoever asked has left before.
async fn unless_left<T>(stream: &Stream, way: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        way = way => Some(way),
        _left = stream.send.stopped() => None,
    }
}

fn invalid(error: &valid::Invalid) -> v1::Failure {
    failure(FailureCode::Invalid, error.to_string(), "")
}

/// Moves bytes between two streams, on the thread of their sessions.
pub(super) async fn across(state: &Shared, stream: Stream, onward: Stream) {
    let stopping = state.stopping.clone();
    let moved = async move {
        let (one, other) = (Raw::of(stream).await?, Raw::of(onward).await?);
        let over = async {
            stopping.cancelled().await;
            ResetCode::Draining
        };
        if let Err(cut) = relay_until(one, other, over).await {
            tracing::debug!(%cut, "a relayed stream ended early");
        }
        Ok::<_, StreamError>(())
    };
    let moving = AbortOnDropHandle::new(state.tasks.spawn_on(moved, &state.transport));
    if let Ok(Err(error)) = moving.await {
        tracing::debug!(%error, "a stream broke before it was relayed");
    }
}

/// Says no, in bounded time. What the caller sends meanwhile is not read.
pub(super) async fn refuse(stream: &mut Stream, answer: &impl Message) {
    let said = async {
        stream.send.send(answer).await?;
        stream.send.finish_and_deliver().await
    };
    stream.recv.stop(ResetCode::Refused);
    let _read = timeout(OPEN, said).await;
}
