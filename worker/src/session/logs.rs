//! Sends one log until all of it is acknowledged: from where the controlplane
//! wants it, over as many carriers as it takes. Nothing is dropped here; what
//! is not acknowledged stays in the spool.

use std::time::Duration;

use levers9_transport::link::Link;
use levers9_transport::stream::{Stream, StreamError};
use levers9_wire::v1::{self, stream_open};
use levers9_wire::{ContainerId, Generation, limits};
use tokio::time::{Instant, sleep, timeout};

use super::Session;
use crate::containers::{Handle, LeftLog};
use crate::spool::Spool;

/// Less than this is worth a short wait for more, in bytes.
const SMALL: usize = 16 * 1024;
/// That wait.
const COALESCE: Duration = Duration::from_millis(5);
/// The pause before another stream after one broke; it doubles while streams
/// break sooner than the longest pause.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a controlplane that is left may take to make durable what it has.
const HAND_OVER: Duration = Duration::from_secs(5);
/// The position that says that nobody wants any of it.
const NOTHING: u64 = u64::MAX;

/// A log to be sent.
#[derive(Debug)]
pub(super) struct Log {
    container: ContainerId,
    generation: Generation,
    /// The task, as it stands in a message; empty when it is not known any more.
    task: Vec<u8>,
    /// Which try of the task; 0 when it is not known any more.
    attempt: u32,
    spool: Spool,
}

impl From<Handle> for Log {
    fn from(handle: Handle) -> Self {
        Self {
            container: handle.container(),
            generation: handle.generation(),
            task: handle.task().to_wire(),
            attempt: handle.attempt().0,
            spool: handle.log(),
        }
    }
}

impl From<LeftLog> for Log {
    fn from(LeftLog { container, generation, spool }: LeftLog) -> Self {
        Self { container, generation, task: Vec::new(), attempt: 0, spool }
    }
}

/// Sends until the log is settled or the worker stops.
pub(super) async fn send(session: Session, log: impl Into<Log>) {
    let log = log.into();
    let _stopped = session.stop.run_until_cancelled(send_all(&session.link, &log)).await;
}

async fn send_all(link: &Link, log: &Log) {
    let mut pause = PAUSE;
    loop {
        let begun = Instant::now();
        let error = match once(link, log).await {
            Ok(Sent::All) => return,
            Ok(Sent::SoFar) => continue,
            Err(error) => error,
        };
        if log.spool.progress().borrow().is_settled() {
            return;
        }
        tracing::debug!(%error, container = %log.container, "a log stream broke; opening another");
        if begun.elapsed() > PAUSE_MAX {
            pause = PAUSE;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// What one stream has come to.
enum Sent {
    /// All of the log is settled.
    All,
    /// The rest is for another controlplane.
    SoFar,
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

/// One stream, until the whole log is acknowledged, or until the session has
/// moved to another controlplane and what was sent is acknowledged.
async fn once(link: &Link, log: &Log) -> Result<Sent, SendError> {
    let open = v1::LogOpen { container: log.container.to_wire(), generation: log.generation.0 };
    let (mut stream, mut moved) = link.open_until_moved(stream_open::Kind::Log(open)).await?;
    let wanted: v1::LogAck = stream.recv.expect().await?;
    if wanted.next_index == NOTHING {
        stream.send.finish();
        discard(&log.spool).await;
        return Ok(Sent::All);
    }
    // What comes before is durable there.
    log.spool.acknowledge(wanted.next_index).await;
    let mut sender = Sender { log, next: wanted.next_index, ended: false };
    let mut progress = log.spool.progress();
    loop {
        progress.mark_unchanged();
        if moved.has_moved() && !sender.ended {
            stream.send.finish();
            return hand_over(log, &mut stream).await;
        }
        if sender.send_what_is_there(&mut stream).await? {
            continue;
        }
        tokio::select! {
            _changed = progress.changed(), if !sender.ended => {}
            () = moved.wait(), if !sender.ended => {}
            ack = stream.recv.next::<v1::LogAck>() => match ack? {
                Some(ack) => log.spool.acknowledge(ack.next_index).await,
                // The controlplane has been told of the end and is content
                // with what it has.
                None if sender.ended => {
                    stream.send.finish();
                    log.spool.acknowledge(NOTHING).await;
                    return Ok(Sent::All);
                }
                None => return Err(StreamError::Early.into()),
            },
        }
    }
}

/// Waits until what was sent is durable there: the rest is sent elsewhere.
async fn hand_over(log: &Log, stream: &mut Stream) -> Result<Sent, SendError> {
    let acknowledged = async {
        while let Some(ack) = stream.recv.next::<v1::LogAck>().await? {
            log.spool.acknowledge(ack.next_index).await;
        }
        Ok(Sent::SoFar)
    };
    // What is not is sent again.
    timeout(HAND_OVER, acknowledged).await.unwrap_or(Ok(Sent::SoFar))
}

/// Lets go of a log that nobody wants as it comes, to its end.
async fn discard(spool: &Spool) {
    let mut progress = spool.progress();
    loop {
        let now = *progress.borrow_and_update();
        if now.acknowledged < now.next_index {
            spool.acknowledge(now.next_index).await;
        }
        // The sender is in the spool: it does not go away meanwhile.
        if now.ended || progress.changed().await.is_err() {
            return;
        }
    }
}

struct Sender<'a> {
    log: &'a Log,
    next: u64,
    ended: bool,
}

impl Sender<'_> {
    /// Sends the next records, or the end; `false` when there is nothing now.
    async fn send_what_is_there(&mut self, stream: &mut Stream) -> Result<bool, SendError> {
        let progress = *self.log.spool.progress().borrow();
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
        let records = self.log.spool.read(self.next, limits::LOG_BATCH).await?;
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
        v1::LogBatch { task: self.log.task.clone(), attempt: self.log.attempt, records, end }
    }
}
