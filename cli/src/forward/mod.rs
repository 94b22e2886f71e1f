//! Ports here that lead to ports of a container: each connection is a tunnel
//! of its own. A lost session resets those there are and new ones wait for the
//! next; only the end of the container, or a refusal, ends it all.

mod connection;
mod notes;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use levers9_transport::StreamError;
use levers9_wire::v1::{self, follow_event, stream_open};
use levers9_wire::{ContainerId, name};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{CONNECT, Client, Patience, Pause, again, refused};
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::Forward;
use crate::signals::{Signal, Signals};
use connection::{Connection, Said};
use notes::Notes;

/// Connections at once. Further ones wait with the system.
const CONNECTIONS: usize = 512;
/// Connections that wait with the system, for each port.
const WAITING: u32 = 1024;
/// What connections have to say and nobody has heard yet.
const UNHEARD: usize = 64;
/// How long to wait when the system gives no connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port here that is listened on.
#[derive(Debug)]
pub(crate) struct Local {
    listener: TcpListener,
    /// Where.
    pub(crate) address: SocketAddr,
    /// The container's port.
    pub(crate) remote: u16,
}

/// Takes a port here.
pub(crate) fn bind(forward: &Forward) -> Result<Local, Error> {
    let listening = || {
        let socket = if forward.local.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // One that a connection of an earlier run still holds is free.
        socket.set_reuseaddr(true)?;
        socket.bind(forward.local)?;
        let listener = socket.listen(WAITING)?;
        let address = listener.local_addr()?;
        Ok(Local { listener, address, remote: forward.remote })
    };
    listening().map_err(|error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => {
                format!("take another: LOCAL:{0}, or :{0} for any free one", forward.remote)
            }
            _ => String::new(),
        };
        Error::failed(format!("cannot listen on {}", forward.local)).because(error).hint(hint)
    })
}

/// Makes sure that the container runs, without touching anything in it: asks
/// for the status of its task and for nothing of its log.
pub(crate) async fn check(client: &Client, container: ContainerId) -> Result<(), Error> {
    let status = match timeout(CONNECT, status(client, container)).await {
        Ok(status) => status?,
        Err(_) => {
            let what =
                format!("the controlplane at {} does not say whether the container runs", client.place());
            return Err(Error::failed(what));
        }
    };
    match status.as_str() {
        "RUNNING" => Ok(()),
        "PENDING" | "RETRY" => Err(Error::failed(format!("container {container} does not run yet"))
            .hint("wait until its task is RUNNING: levers9 task list")),
        other => {
            let other = name::printable(other, 32);
            Err(Error::failed(format!("container {container} does not run: its task is {other}"))
                .hint("those that run: levers9 container list"))
        }
    }
}

/// The status of a container's task, asked for until there is an answer.
async fn status(client: &Client, container: ContainerId) -> Result<String, Error> {
    let open = v1::FollowOpen { id: container.to_wire(), tail: Some(0), ..v1::FollowOpen::default() };
    let mut pause = Pause::default();
    loop {
        client.session(Patience::Within(CONNECT)).await?;
        let told: Result<v1::FollowEvent, StreamError> = async {
            let mut stream = client.open(stream_open::Kind::Follow(open.clone())).await?;
            stream.recv.expect().await
        }
        .await;
        match told.map(|event| event.kind) {
            Ok(Some(follow_event::Kind::Status(status))) => return Ok(status.status),
            Ok(Some(follow_event::Kind::Ended(ended))) => return Ok(ended.status),
            Ok(Some(follow_event::Kind::Failure(failure)))
                if failure.code() != v1::FailureCode::Unavailable =>
            {
                return Err(refused(failure));
            }
            Err(error) if !again(&error) => return Err(client.broken(&error)),
            Ok(_) | Err(_) => pause.wait().await,
        }
    }
}

/// Forwards connections until it is interrupted or the container is gone.
pub(crate) async fn serve(
    client: &Client,
    container: ContainerId,
    locals: Vec<Local>,
    signals: &mut Signals,
    printer: &mut Printer,
) -> Result<u8, Error> {
    let (said, mut heard) = mpsc::channel(UNHEARD);
    // Each port holds one while it waits for a connection: the last there is, it takes with it.
    let room = Arc::new(Semaphore::new(CONNECTIONS + locals.len().saturating_sub(1)));
    // Dropped at the end, which ends and resets every connection.
    let mut listening = JoinSet::new();
    for local in locals {
        let forwarder =
            Forwarder { client: client.clone(), container, room: Arc::clone(&room), said: said.clone() };
        listening.spawn(forwarder.listen(local));
    }
    let mut notes = Notes::default();
    let watch = watch(client, &said);
    tokio::pin!(watch);
    loop {
        tokio::select! {
            biased;
            signal = signals.next() => return match signal {
                Signal::Interrupt => Ok(exit::DONE),
                other => Err(Error::silent(other.exit_code())),
            },
            refusal = &mut watch => return Err(refusal),
            Some(said) = heard.recv() => match said {
                Said::Over(error) => return Err(error),
                Said::Always(text) => printer.note(&text),
                Said::Note(text) if notes.is_new(&text, Instant::now()) => printer.note(&text),
                Said::Note(_) => {}
            },
            Some(ended) = listening.join_next() => {
                // They go on for ever, so one that does not has failed.
                let why = ended.err().map(|e| e.to_string()).unwrap_or_default();
                return Err(Error::failed("forwarding has failed").because(why));
            }
        }
    }
}

/// Tells when the session is lost and when it is back. Returns when there will
/// be no other, with the reason.
async fn watch(client: &Client, said: &mpsc::Sender<Said>) -> Error {
    loop {
        if let Some(why) = client.lost().await {
            let (place, why) = (client.place(), client.why_lost(&why));
            let text = format!(
                "the connection to {place} is lost ({why}); open connections are reset, new ones wait for it"
            );
            let _ending = said.send(Said::Always(text)).await;
        }
        if let Err(error) = client.session(Patience::Forever).await {
            return error;
        }
        let _ending = said.send(Said::Always(format!("connected to {} again", client.place()))).await;
    }
}

/// What all connections of a port share.
#[derive(Debug)]
struct Forwarder {
    client: Client,
    container: ContainerId,
    room: Arc<Semaphore>,
    said: mpsc::Sender<Said>,
}

impl Forwarder {
    /// Takes connections while there is room.
    async fn listen(self, local: Local) {
        let Local { listener, remote, .. } = local;
        let mut connections = JoinSet::new();
        loop {
            let accepted = async {
                // Never closed.
                let permit = Arc::clone(&self.room).acquire_owned().await.ok()?;
                Some((listener.accept().await, permit))
            };
            tokio::select! {
                Some(_) = connections.join_next() => {}
                Some((accepted, permit)) = accepted => match accepted {
                    Ok((tcp, _)) => {
                        let connection = Connection {
                            client: self.client.clone(),
                            container: self.container,
                            remote,
                            said: self.said.clone(),
                        };
                        connections.spawn(async move {
                            connection.serve(tcp).await;
                            drop(permit);
                        });
                    }
                    // Out of descriptors, or a connection that was gone first: both pass.
                    Err(error) => {
                        let text = format!("port {remote}: a connection was not taken: {error}");
                        let _ending = self.said.send(Said::Note(text)).await;
                        drop(permit);
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}
