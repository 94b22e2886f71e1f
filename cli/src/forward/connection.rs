//! One connection: a tunnel is opened for it, what the client says goes off
//! before the answer is here, and then both are one.

use std::future::pending;
use std::io;

use bytes::Bytes;
use levers9_transport::quic::{HalfError, SendHalf};
use levers9_transport::tunnel::{Cut, Raw, splice};
use levers9_transport::{Stream, StreamError};
use levers9_wire::v1::{self, FailureCode, ResetCode, stream_open};
use levers9_wire::{ContainerId, name};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::client::{Client, Patience, refused};
use crate::error::Error;

/// What is sent on at once before the answer, in bytes.
const EARLY: usize = 16 * 1024;

/// What a connection has to say to the user.
#[derive(Debug)]
pub(super) enum Said {
    /// Once in a while is enough.
    Note(String),
    /// Each time.
    Always(String),
    /// No connection will work any more.
    Over(Error),
}

/// Why a connection did not come to its end.
enum Broken {
    /// The client or the target broke it, or the session is lost: everybody
    /// who needs to know knows.
    Known,
    /// The controlplane or the worker says no.
    Refused(v1::Failure),
    /// The stream broke.
    Stream(StreamError),
}

/// One connection that was taken.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) container: ContainerId,
    pub(super) remote: u16,
    pub(super) said: mpsc::Sender<Said>,
}

impl Connection {
    /// Serves it to its end.
    pub(super) async fn serve(self, tcp: TcpStream) {
        let remote = self.remote;
        let said = match self.forward(tcp).await {
            Ok(()) | Err(Broken::Known) => return,
            Err(Broken::Refused(failure)) => match failure.code() {
                FailureCode::NotFound | FailureCode::NotRunning => Said::Over(refused(failure)),
                _ => Said::Note(format!("port {remote}: {}", name::printable(&failure.text, 500))),
            },
            Err(Broken::Stream(error)) => {
                Said::Note(format!("port {remote}: a connection was reset: {error}"))
            }
        };
        // Nobody listens any more when all of it ends.
        let _ending = self.said.send(said).await;
    }

    async fn forward(&self, tcp: TcpStream) -> Result<(), Broken> {
        let tcp = Unanswered(Some(tcp));
        let Stream { send, mut recv } = tokio::select! {
            opened = self.open() => opened?,
            () = tcp.broken() => return Err(Broken::Known),
        };
        let mut send = send.into_raw().await.map_err(stream_broken)?;
        let answer = tokio::select! {
            answer = recv.expect::<v1::TunnelAnswer>() => answer.map_err(stream_broken)?,
            broken = tcp.send_early(&mut send) => return Err(broken),
        };
        if let Some(failure) = answer.failure {
            return Err(Broken::Refused(failure));
        }
        let (first, recv) = recv.into_raw();
        let Some(tcp) = tcp.answered() else { return Err(Broken::Known) };
        match splice(tcp, Raw { send, first, recv }).await {
            Ok(()) => Ok(()),
            Err(Cut::Tcp(_)) => Err(Broken::Known),
            Err(Cut::Stream(error)) => Err(stream_broken(error.into())),
        }
    }
}

impl Connection {
    /// Opens the tunnel. Waits while there is no session: nothing of the
    /// connection is lost when one ends that carried nothing of it.
    async fn open(&self) -> Result<Stream, Broken> {
        let container = self.container.to_wire();
        let open = v1::TunnelOpen { container, generation: 0, port: self.remote.into() };
        loop {
            // When there will be none, that is said once for all.
            self.client.session(Patience::Forever).await.map_err(|_| Broken::Known)?;
            match self.client.open(stream_open::Kind::Tunnel(open.clone())).await {
                Err(StreamError::Lost(_)) => {}
                opened => return opened.map_err(stream_broken),
            }
        }
    }
}

/// What a broken stream means. A reset of the target's is one of the client's,
/// and a lost session is told once for all.
fn stream_broken(error: StreamError) -> Broken {
    match error {
        StreamError::Lost(_) => Broken::Known,
        StreamError::Reset(reset) if matches!(reset.code, ResetCode::Aborted | ResetCode::CarrierLost) => {
            Broken::Known
        }
        other => Broken::Stream(other),
    }
}

/// A connection whose tunnel has not answered; dropped, it is reset, because
/// an end would say that there was a target.
#[derive(Debug)]
struct Unanswered(Option<TcpStream>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(tcp) = &self.0 {
            // One that is gone already needs none.
            let _gone = tcp.set_zero_linger();
        }
    }
}

impl Unanswered {
    fn answered(mut self) -> Option<TcpStream> {
        self.0.take()
    }

    /// Returns when the client has reset it. Cancel safe.
    async fn broken(&self) {
        match &self.0 {
            Some(tcp) => drop(tcp.ready(Interest::ERROR).await),
            None => pending().await,
        }
    }

    /// Sends on what the client says. Only what is sent is taken from the
    /// connection, so that it can be dropped at any time and loses nothing.
    /// The client's end is left to be seen later.
    async fn send_early(&self, send: &mut SendHalf) -> Broken {
        let Some(tcp) = &self.0 else { return pending().await };
        let mut buffer = vec![0; EARLY];
        loop {
            let length = match tcp.peek(&mut buffer).await {
                Ok(0) => return pending().await,
                Ok(length) => length,
                Err(_) => return Broken::Known,
            };
            let mut bytes = Bytes::copy_from_slice(&buffer[..length]);
            match send.write(&mut bytes).await {
                Ok(()) => {}
                // Why, the answer says.
                Err(HalfError::Reset(_)) => return pending().await,
                Err(error) => return stream_broken(error.into()),
            }
            if take(tcp, &mut buffer[..length - bytes.len()]).is_err() {
                return Broken::Known;
            }
        }
    }
}

/// Takes bytes off a connection that are known to be there.
fn take(tcp: &TcpStream, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match tcp.try_read(buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => buffer = &mut buffer[length..],
        }
    }
    Ok(())
}
