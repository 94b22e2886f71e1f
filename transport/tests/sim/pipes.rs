//! TCP without a network: connections of memory, each through a cable that can
//! be cut, reset, go silent, stall, dribble or be long, in one direction or both.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use levers9_transport::tcp::{Io, Via};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use crate::world::client_address;

/// What a cable does to the bytes of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum Flow {
    /// They arrive.
    #[default]
    Pass,
    /// They are taken and arrive nowhere, as in a hole behind a large buffer.
    Swallow,
    /// They are not even taken: the sender's buffer fills.
    Stall,
    /// They arrive one by one, so far apart.
    Dribble(Duration),
    /// They arrive this much later.
    Late(Duration),
}

/// Both directions, as the dialer sees them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cable {
    pub(crate) up: Flow,
    pub(crate) down: Flow,
    /// Connections made before this one are over.
    generation: usize,
    /// They end with a reset, not with an end.
    reset: bool,
}

impl Cable {
    pub(crate) fn new(up: Flow, down: Flow) -> Self {
        Self { up, down, ..Self::default() }
    }

    pub(crate) fn both(flow: Flow) -> Self {
        Self::new(flow, flow)
    }

    pub(crate) fn up(up: Flow) -> Self {
        Self { up, ..Self::default() }
    }

    pub(crate) fn down(down: Flow) -> Self {
        Self { down, ..Self::default() }
    }
}

/// The way to a listener.
#[derive(Debug)]
pub(crate) struct Pipes {
    given: mpsc::Sender<(Box<dyn Io>, SocketAddr)>,
    /// Connections are not answered.
    pub(crate) blocked: AtomicBool,
    /// Connections are refused.
    pub(crate) refused: AtomicBool,
    /// How many were made.
    pub(crate) made: AtomicUsize,
    /// When each was asked for.
    pub(crate) asked: Mutex<Vec<Instant>>,
    cable: watch::Sender<Cable>,
}

impl Pipes {
    pub(crate) fn new(given: mpsc::Sender<(Box<dyn Io>, SocketAddr)>) -> Self {
        let (blocked, refused, made) = Default::default();
        Self {
            given,
            blocked,
            refused,
            made,
            asked: Mutex::default(),
            cable: watch::Sender::new(Cable::default()),
        }
    }

    /// The dialer's end of a new connection.
    pub(crate) async fn pipe(&self) -> Box<dyn Io> {
        let (near, near_cable) = tokio::io::duplex(64 * 1024);
        let (far_cable, far) = tokio::io::duplex(64 * 1024);
        let reset = Arc::new(AtomicBool::new(false));
        let end = |inner| -> Box<dyn Io> { Box::new(PipeEnd { inner, reset: Arc::clone(&reset) }) };
        let (near, far) = (end(near), end(far));
        let (from_near, to_near) = tokio::io::split(near_cable);
        let (from_far, to_far) = tokio::io::split(far_cable);
        let (cable, mut watched) = (self.cable.subscribe(), self.cable.subscribe());
        let mine = self.cable.borrow().generation;
        tokio::spawn(async move {
            let up = carry(from_near, to_far, cable.clone(), |cable| cable.up);
            let down = carry(from_far, to_near, cable, |cable| cable.down);
            tokio::select! {
                _over = async { tokio::join!(up, down) } => {}
                Ok(cable) = watched.wait_for(|cable| cable.generation > mine) => {
                    reset.store(cable.reset, Ordering::Relaxed);
                }
            }
        });
        self.given.send((far, client_address(0))).await.unwrap();
        self.made.fetch_add(1, Ordering::Relaxed);
        near
    }

    /// From now on the bytes of every connection go so.
    pub(crate) fn set(&self, cable: Cable) {
        self.cable.send_modify(|now| (now.up, now.down) = (cable.up, cable.down));
    }

    /// Ends every connection there is, without a word.
    pub(crate) fn cut(&self) {
        self.cable.send_modify(|now| (now.generation, now.reset) = (now.generation + 1, false));
    }

    /// The same with a reset.
    pub(crate) fn reset(&self) {
        self.cable.send_modify(|now| (now.generation, now.reset) = (now.generation + 1, true));
    }
}

#[async_trait]
impl Via for Pipes {
    async fn connect(&self, _address: SocketAddr) -> std::io::Result<Box<dyn Io>> {
        self.asked.lock().unwrap().push(Instant::now());
        if self.refused.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        if self.blocked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(self.pipe().await)
    }
}

/// Several listeners, each at its address.
#[derive(Debug)]
pub(crate) struct Routes(pub(crate) Vec<(SocketAddr, Arc<Pipes>)>);

#[async_trait]
impl Via for Routes {
    async fn connect(&self, address: SocketAddr) -> std::io::Result<Box<dyn Io>> {
        match self.0.iter().find(|(at, _)| *at == address) {
            Some((_, pipes)) => pipes.connect(address).await,
            None => std::future::pending().await,
        }
    }
}

/// Carries one direction to its end.
async fn carry(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    mut cable: watch::Receiver<Cable>,
    which: fn(&Cable) -> Flow,
) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let flow = which(&cable.borrow_and_update());
        let most = match flow {
            Flow::Dribble(_) => 1,
            Flow::Stall => {
                if cable.changed().await.is_err() {
                    return; // the world is over
                }
                continue;
            }
            _ => bytes.len(),
        };
        let length = tokio::select! {
            read = from.read(&mut bytes[..most]) => match read {
                Ok(length) if length > 0 => length,
                _ => break,
            },
            Ok(()) = cable.changed() => continue,
        };
        match flow {
            Flow::Swallow => continue,
            Flow::Dribble(pause) | Flow::Late(pause) => sleep(pause).await,
            Flow::Pass | Flow::Stall => {}
        }
        if to.write_all(&bytes[..length]).await.is_err() {
            break;
        }
    }
    // An end does not get through a hole either.
    drop(cable.wait_for(|cable| !matches!(which(cable), Flow::Swallow | Flow::Stall)).await);
    let _gone = to.shutdown().await;
}

/// One end of a connection, which knows how it was cut.
#[derive(Debug)]
struct PipeEnd {
    inner: DuplexStream,
    reset: Arc<AtomicBool>,
}

impl AsyncRead for PipeEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        let ended = matches!(&read, Poll::Ready(Ok(()))) && buffer.filled().len() == before;
        if ended && buffer.remaining() > 0 && self.reset.load(Ordering::Relaxed) {
            return Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into()));
        }
        read
    }
}

impl AsyncWrite for PipeEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
