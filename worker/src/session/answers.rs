//! What the streams that reach into a container have in common: finding the
//! container, the words when it cannot be, and an end that loses nothing.

use std::time::Duration;

use levers9_transport::quic::{RecvHalf, SendHalf};
use levers9_wire::v1::{self, FailureCode, ResetCode};
use levers9_wire::{ContainerId, Generation};
use tokio::time::timeout;

use super::Session;
use crate::containers::{Handle, NotRunning, Refused};

/// How long a peer may take to have the last frame and to end its own side.
const PARTING: Duration = Duration::from_secs(10);
/// What is read at once to be thrown away, in bytes.
const READ: usize = 64 * 1024;

pub(super) fn failure(code: FailureCode, text: impl ToString) -> v1::Failure {
    v1::Failure { code: code.into(), text: text.to_string(), hint: String::new() }
}

impl From<NotRunning> for v1::Failure {
    fn from(why: NotRunning) -> Self {
        failure(FailureCode::NotRunning, why)
    }
}

/// The container that is meant.
pub(super) fn find(
    session: &Session,
    container: ContainerId,
    generation: Option<Generation>,
) -> Result<Handle, v1::Failure> {
    let Some(generation) = generation else {
        return Err(failure(FailureCode::Invalid, "the container's generation is missing"));
    };
    session
        .containers
        .get(container, generation)
        .ok_or_else(|| failure(FailureCode::NotFound, Refused::Unknown(container, generation)))
}

/// Ends a stream whose last frame is written. What the peer still sends is
/// read and thrown away until it has ended its side, too: stopping it would
/// break the stream for whoever relays it, and the last frame with it.
pub(super) async fn part(mut send: SendHalf, mut recv: RecvHalf) {
    send.finish();
    let both = async {
        let rest = async { while let Ok(Some(_)) = recv.read(READ).await {} };
        tokio::join!(send.delivered(), rest)
    };
    if timeout(PARTING, both).await.is_err() {
        send.reset(ResetCode::Timeout);
        recv.stop(ResetCode::Done);
    }
}
