//! The carrier for where UDP does not get through: TLS 1.3 over TCP, with
//! streams that both sides open, each with its own flow control, ends, resets
//! and stop codes, so that nobody above can tell it from QUIC. `core` is the
//! state, `code` the bytes, `driver` moves them; `listen` and `connect`
//! make connections. It knows nothing of sessions, frames or tokens.

mod code;
mod connect;
mod core;
mod driver;
mod entry;
mod listen;
mod proxy;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use levers9_wire::v1::ResetCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub(crate) use self::connect::{ConnectFailed, Unconnected, encrypt, start};
pub use self::connect::{Fallback, Via};
use self::core::{Bounds, Core};
pub use self::listen::{Inbound, Listener, bind};
pub use self::proxy::{BadProxy, Proxies, Proxy, ProxyProblem};
use crate::carrier::{CarrierKind, HalfError, Lost};
use crate::quic::Settings;

/// What a carrier runs over.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// The state of a carrier with what wakes those who wait for it.
#[derive(Debug)]
struct Shared {
    core: Mutex<Core>,
    driver: AtomicWaker,
    may_open: Notify,
    may_accept: Notify,
    gone: Notify,
}

impl Shared {
    /// Does something with the state, then wakes whom that concerns.
    fn with<T>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        let (done, effects) = {
            let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
            let done = act(&mut core);
            (done, std::mem::take(&mut core.effects))
        };
        effects.wakes.into_iter().for_each(std::task::Waker::wake);
        if effects.may_open {
            self.may_open.notify_waiters();
        }
        if effects.may_accept {
            self.may_accept.notify_waiters();
        }
        if effects.gone {
            self.gone.notify_waiters();
        }
        if effects.driver {
            self.driver.wake();
        }
        done
    }

    /// Waits until `look` finds something, looking whenever told.
    async fn wait<T>(&self, told: &Notify, mut look: impl FnMut(&mut Core) -> Option<T>) -> T {
        loop {
            let mut notified = pin!(told.notified());
            notified.as_mut().enable();
            if let Some(found) = self.with(&mut look) {
                return found;
            }
            notified.await;
        }
    }
}

/// A carrier as long as somebody holds it or one of its streams.
#[derive(Debug)]
struct Held {
    shared: Arc<Shared>,
    peer: SocketAddr,
    /// Whether the driver is done.
    done: watch::Receiver<bool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // The driver tells the peer and ends.
        self.shared.with(|core| core.close(ResetCode::Done, ""));
    }
}

/// One TLS connection over TCP; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct TcpCarrier {
    held: Arc<Held>,
}

/// Which end of a connection this is.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// It dialed, this way and for this reason.
    Dialer(CarrierKind, String),
    /// It was dialed.
    Acceptor,
}

impl TcpCarrier {
    /// A carrier over an encrypted connection; its driver runs among `tasks`.
    fn start(
        io: impl Io + 'static,
        end: End,
        peer: SocketAddr,
        settings: &Settings,
        tasks: &TaskTracker,
    ) -> Self {
        let bounds = Bounds {
            streams: settings.max_streams,
            stream_window: u64::from(settings.stream_window),
            budget: u64::from(settings.window_max),
            idle: settings.idle_timeout,
        };
        let (dialer, kind, why) = match end {
            End::Dialer(kind, why) => (true, kind, why),
            End::Acceptor => (false, CarrierKind::Tcp, String::new()),
        };
        let core = Core::new(dialer, bounds, kind, why, Instant::now());
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            driver: AtomicWaker::new(),
            may_open: Notify::new(),
            may_accept: Notify::new(),
            gone: Notify::new(),
        });
        let (over, done) = watch::channel(false);
        let driver = driver::Driver::new(io, Arc::clone(&shared));
        tasks.spawn(async move {
            driver.await;
            over.send_replace(true);
        });
        Self { held: Arc::new(Held { shared, peer, done }) }
    }

    fn shared(&self) -> &Shared {
        &self.held.shared
    }

    pub(crate) fn kind(&self) -> CarrierKind {
        self.shared().with(|core| core.kind)
    }

    pub(crate) fn why(&self) -> String {
        self.shared().with(|core| core.why.clone())
    }

    pub(crate) async fn open(&self) -> Result<(TcpSend, TcpRecv), Lost> {
        let shared = self.shared();
        let opened = shared.wait(&shared.may_open, |core| core.open(Instant::now()).transpose()).await?;
        Ok(self.halves(opened))
    }

    pub(crate) async fn accept(&self) -> Result<(TcpSend, TcpRecv), Lost> {
        let shared = self.shared();
        let opened = shared.wait(&shared.may_accept, |core| core.accept().transpose()).await?;
        Ok(self.halves(opened))
    }

    fn halves(&self, (id, stop): (u64, Arc<Notify>)) -> (TcpSend, TcpRecv) {
        let send = TcpSend { held: Arc::clone(&self.held), id, stop, ended: false };
        (send, TcpRecv { held: Arc::clone(&self.held), id })
    }

    pub(crate) fn close(&self, why: ResetCode, words: &str) {
        self.shared().with(|core| core.close(why, words));
    }

    pub(crate) async fn closed(&self) -> Lost {
        let shared = self.shared();
        shared.wait(&shared.gone, |core| core.lost().cloned()).await
    }

    pub(crate) fn lost(&self) -> Option<Lost> {
        self.shared().with(|core| core.lost().cloned())
    }

    /// Waits until nothing more is sent or read.
    pub(crate) async fn told(&self) {
        let mut done = self.held.done.clone();
        let _aborted = done.wait_for(|done| *done).await;
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.held.peer
    }

    pub(crate) fn rtt(&self) -> Duration {
        self.shared().with(|core| core.rtt()).unwrap_or_default()
    }

    pub(crate) fn permit_streams(&self, count: u32) {
        self.shared().with(|core| core.permit(count));
    }

    pub(crate) fn permitted(&self) -> u32 {
        self.shared().with(|core| core.permitted())
    }

    pub(crate) fn live_halves(&self) -> usize {
        self.shared().with(|core| core.halves)
    }

    pub(crate) fn number(&self) -> usize {
        Arc::as_ptr(&self.held).addr()
    }
}

/// The half of a stream that is written.
pub(crate) struct TcpSend {
    held: Arc<Held>,
    id: u64,
    stop: Arc<Notify>,
    /// It was finished or reset.
    ended: bool,
}

impl fmt::Debug for TcpSend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpSend({})", self.id)
    }
}

impl Drop for TcpSend {
    fn drop(&mut self) {
        self.held.shared.with(|core| core.drop_sender(self.id, self.ended));
    }
}

impl TcpSend {
    pub(crate) async fn write_many(&mut self, chunks: &mut [Bytes]) -> Result<(), HalfError> {
        poll_fn(|context| self.held.shared.with(|core| core.poll_write(self.id, chunks, context))).await?;
        Ok(())
    }

    pub(crate) async fn write_all(&mut self, mut bytes: Bytes) -> Result<(), HalfError> {
        while !bytes.is_empty() {
            self.write_many(std::slice::from_mut(&mut bytes)).await?;
        }
        Ok(())
    }

    /// Writes a copy of what fits now.
    pub(crate) fn poll_copy(
        &mut self,
        context: &Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, HalfError>> {
        let mut copy = [Bytes::copy_from_slice(&bytes[..bytes.len().min(core::SEND_QUEUE)])];
        self.held.shared.with(|core| core.poll_write(self.id, &mut copy, context))
    }

    pub(crate) fn stopped(&self) -> impl Future<Output = HalfError> + Send + 'static {
        let (shared, stop, id) = (Arc::clone(&self.held.shared), Arc::clone(&self.stop), self.id);
        async move {
            let seen = shared.wait(&stop, |core| match core.poll_stopped(id) {
                Poll::Ready(seen) => Some(seen),
                Poll::Pending => None,
            });
            match seen.await {
                Some(error) => error,
                None => std::future::pending().await,
            }
        }
    }

    pub(crate) fn finish(&mut self) {
        self.ended = true;
        self.held.shared.with(|core| core.finish(self.id));
    }

    pub(crate) fn reset(&mut self, why: ResetCode) {
        self.ended = true;
        self.held.shared.with(|core| core.reset(self.id, why));
    }

    pub(crate) async fn delivered(&mut self) -> Result<(), HalfError> {
        poll_fn(|context| self.held.shared.with(|core| core.poll_delivered(self.id, context))).await
    }

    pub(crate) fn set_priority(&mut self, priority: i32) {
        self.held.shared.with(|core| core.set_priority(self.id, priority));
    }
}

/// The half of a stream that is read.
pub(crate) struct TcpRecv {
    held: Arc<Held>,
    id: u64,
}

impl fmt::Debug for TcpRecv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpRecv({})", self.id)
    }
}

impl Drop for TcpRecv {
    fn drop(&mut self) {
        self.held.shared.with(|core| core.drop_receiver(self.id));
    }
}

impl TcpRecv {
    fn poll_read(&mut self, max: usize, context: &Context<'_>) -> Poll<Result<Option<Bytes>, HalfError>> {
        self.held.shared.with(|core| core.poll_read(self.id, max, Instant::now(), context))
    }

    pub(crate) async fn read(&mut self, max: usize) -> Result<Option<Bytes>, HalfError> {
        poll_fn(|context| self.poll_read(max, context)).await
    }

    pub(crate) async fn read_many(&mut self, chunks: &mut [Bytes]) -> Result<Option<usize>, HalfError> {
        let now = Instant::now();
        poll_fn(|context| {
            self.held.shared.with(|core| {
                let mut filled = 0;
                while let Some(chunk) = chunks.get_mut(filled) {
                    match core.poll_read(self.id, usize::MAX, now, context) {
                        Poll::Ready(Ok(Some(bytes))) => *chunk = bytes,
                        _ if filled > 0 => break,
                        Poll::Ready(Ok(None)) => return Poll::Ready(Ok(None)),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => return Poll::Pending,
                    }
                    filled += 1;
                }
                Poll::Ready(Ok(Some(filled)))
            })
        })
        .await
    }

    /// Reads a copy into a buffer.
    pub(crate) fn poll_copy(
        &mut self,
        context: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), HalfError>> {
        self.poll_read(buffer.remaining(), context).map_ok(|bytes| {
            buffer.put_slice(bytes.as_deref().unwrap_or_default());
        })
    }

    pub(crate) async fn broken(&mut self) -> HalfError {
        let broken = poll_fn(|context| self.held.shared.with(|core| core.poll_broken(self.id, context)));
        match broken.await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn stop(&mut self, why: ResetCode) {
        self.held.shared.with(|core| core.stop(self.id, why));
    }
}
