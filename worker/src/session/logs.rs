//! Sends one container's log for as long as the container is not forgotten:
//! from where the controlplane wants it, over as many carriers as it takes.
//! Nothing is dropped here; what is not acknowledged stays in the spool.

use std::time::Duration;

use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::limits;
use levers9_wire::v1::{self, stream_open};
use tokio::time::sleep;

use super::Session;
use crate::containers::Handle;
use crate::spool::Spool;

/// Less than this is worth a short wait for more, in bytes.
const SMALL: usize = 16 * 1024;
/// That wait.
const COALESCE: Duration = Duration::from_millis(5);
/// The pause before another stream after one broke.
const PAUSE: Duration = Duration::from_millis(500);

/// Sends until the log is settled, the container is gone, or the worker stops.
pub(super) async fn send(session: Session, handle: Handle) {
    let stop = session.stop.clone();
    let sending = async {
        let spool = handle.log();
        while session.containers.get(handle.container(), handle.generation()).is_some() {
            match once(&session, &handle, &spool).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(%error, container = %handle.container(), "a log stream broke; opening another")
                }
            }
            sleep(PAUSE).await;
        }
    };
    let _stopped = stop.run_until_cancelled(sending).await;
}

#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Open(#[from] levers9_transport::link::OpenError),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Read(#[from] crate::spool::ReadError),
}

/// One stream, until the whole log is acknowledged.
async fn once(session: &Session, handle: &Handle, spool: &Spool) -> Result<(), SendError> {
    let open = v1::LogOpen { container: handle.container().to_wire(), generation: handle.generation().0 };
    let mut stream = session.link.open(stream_open::Kind::Log(open)).await?;
    let wanted: v1::LogAck = stream.recv.expect().await?;
    // What comes before is durable there, or not wanted.
    spool.acknowledge(wanted.next_index).await;
    let mut sender = Sender { handle, spool, next: wanted.next_index, ended: false };
    let mut progress = spool.progress();
    loop {
        progress.mark_unchanged();
        if sender.send_what_is_there(&mut stream).await? {
            continue;
        }
        tokio::select! {
            _changed = progress.changed(), if !sender.ended => {}
            ack = stream.recv.next::<v1::LogAck>() => match ack? {
                Some(ack) => spool.acknowledge(ack.next_index).await,
                // The controlplane has it all.
                None if sender.ended => {
                    stream.send.finish();
                    return Ok(());
                }
                None => return Err(StreamError::Early.into()),
            },
        }
    }
}

struct Sender<'a> {
    handle: &'a Handle,
    spool: &'a Spool,
    next: u64,
    ended: bool,
}

impl Sender<'_> {
    /// Sends the next records, or the end; `false` when there is nothing now.
    async fn send_what_is_there(&mut self, stream: &mut Stream) -> Result<bool, SendError> {
        let progress = *self.spool.progress().borrow();
        if self.ended {
            return Ok(false);
        }
        if self.next >= progress.next_index {
            self.ended = progress.ended;
            if self.ended {
                stream.send.send(&self.batch(Vec::new(), true)).await?;
            }
            return Ok(self.ended);
        }
        let records = self.spool.read(self.next, limits::LOG_BATCH).await?;
        let Some(last) = records.last() else { return Ok(false) };
        self.next = last.index + 1;
        let bytes: usize = records.iter().map(|record| record.data.len()).sum();
        stream.send.send(&self.batch(records, false)).await?;
        if bytes < SMALL && !progress.ended {
            sleep(COALESCE).await;
        }
        Ok(true)
    }

    fn batch(&self, records: Vec<v1::LogRecord>, end: bool) -> v1::LogBatch {
        v1::LogBatch { task: self.handle.task().to_wire(), attempt: self.handle.attempt().0, records, end }
    }
}
