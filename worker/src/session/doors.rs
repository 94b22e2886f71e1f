//! A container's way to the controlplane: takes the connections to its door, a
//! port of the loopback address, and carries each to a service of the
//! controlplane as a Door stream. Whether the token shown there is good is the
//! controlplane's to say; here nobody reads it.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use levers9_transport::tunnel::{Raw, splice};
use levers9_wire::v1::{self, DoorService, stream_open};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Session;
use crate::containers::Handle;

/// Connections through one door at once.
const CONNECTIONS: usize = 256;
/// How long a connection may take to say what it wants.
const FIRST_BYTES: Duration = Duration::from_secs(10);
/// How long a connection waits for a session with the controlplane.
const OPEN: Duration = Duration::from_secs(10);
/// The pause after a connection could not be taken: most often there are no
/// descriptors left, and the connection waits.
const PAUSE: Duration = Duration::from_millis(100);
/// How every HTTP/2 connection begins, and so gRPC.
const HTTP_2: &[u8] = b"PRI";

/// Serves a container's door until the container has ended.
pub(super) async fn serve(session: Session, handle: Handle, listener: std::net::TcpListener) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            return tracing::error!(%error, container = %handle.container(), "cannot serve its door");
        }
    };
    tokio::select! {
        () = accept(&session, &handle, &listener) => {}
        () = handle.over() => {}
        () = session.stop.cancelled() => {}
    }
}

/// Takes connections for ever. Dropped, it ends them all.
async fn accept(session: &Session, handle: &Handle, listener: &TcpListener) {
    let mut connections = JoinSet::new();
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed; more connections wait in the backlog.
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((tcp, _)) => {
                let (session, handle) = (session.clone(), handle.clone());
                connections.spawn(async move {
                    carry(&session, &handle, tcp).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, container = %handle.container(), "cannot take a connection at its door");
                sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(session: &Session, handle: &Handle, mut tcp: TcpStream) {
    let Ok(Some((service, first))) = timeout(FIRST_BYTES, first_bytes(&mut tcp)).await else { return };
    let open = v1::DoorOpen {
        container: handle.container().to_wire(),
        generation: handle.generation().0,
        service: service.into(),
    };
    let raw = async {
        let stream = session.link.open(stream_open::Kind::Door(open)).await.ok()?;
        let mut raw = Raw::of(stream).await.ok()?;
        raw.send.write_all(first.freeze()).await.ok()?;
        Some(raw)
    };
    let Ok(Some(raw)) = timeout(OPEN, raw).await else {
        return tracing::debug!(container = %handle.container(), "no session for a connection at its door");
    };
    if let Err(cut) = splice(tcp, raw).await {
        tracing::debug!(%cut, container = %handle.container(), "a connection at its door was cut");
    }
}

/// Reads until it is clear which service is meant; `None` when nothing comes.
async fn first_bytes(tcp: &mut TcpStream) -> Option<(DoorService, BytesMut)> {
    let mut first = BytesMut::with_capacity(1024);
    loop {
        if tcp.read_buf(&mut first).await.ok()? == 0 {
            return None;
        }
        if first.starts_with(HTTP_2) {
            return Some((DoorService::Grpc, first));
        }
        if !HTTP_2.starts_with(&first) {
            return Some((DoorService::Http, first));
        }
    }
}
