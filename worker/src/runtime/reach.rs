//! The ways into a container of the `process` runtime. It has no network of
//! its own, so what listens on a port is looked up in `/proc`, and must be held
//! by one of the container's processes; what was found is remembered for a
//! moment, and looked at again each time it is used.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::execs::{self, Base, Desk};
use super::ports::{self, Choice, Listener};
use super::{Exec, Executing, Inside, NoExec, Unreachable};
use crate::proc;

/// How long an owner is believed before all sockets are looked at again: only
/// then another one is seen that listens more closely.
const BELIEVED: Duration = Duration::from_secs(5);
/// How many ports are remembered.
const REMEMBERED: usize = 64;

/// The ways into one container.
#[derive(Debug)]
pub(super) struct Ways {
    pub(super) ports: Ports,
    pub(super) desk: Arc<Desk>,
    pub(super) base: Base,
}

#[async_trait]
impl Inside for Ways {
    async fn connect(&self, port: NonZeroU16) -> Result<TcpStream, Unreachable> {
        self.ports.connect(port).await
    }

    fn exec(&self, exec: Exec) -> Result<Executing, NoExec> {
        execs::begin(&self.desk, &self.base, exec)
    }
}

/// The ports of one container.
#[derive(Debug)]
pub(super) struct Ports {
    /// The inner supervisor: every process of the container descends from it.
    inner: i32,
    known: Mutex<HashMap<u16, Owner>>,
}

/// A process of the container that listens on a port.
#[derive(Debug, Clone)]
struct Owner {
    process: proc::Identity,
    descriptor: i32,
    inode: u64,
    addresses: Vec<SocketAddr>,
    since: Instant,
}

impl Owner {
    /// Whether it still holds the socket.
    fn holds(&self) -> bool {
        let held = format!("/proc/{}/fd/{}", self.process.pid, self.descriptor);
        std::fs::read_link(held).is_ok_and(|link| inode_of(&link) == Some(self.inode))
            && self.process.is_alive()
    }
}

impl Ports {
    pub(super) fn new(inner: i32) -> Self {
        Self { inner, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u16, Owner>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self, port: NonZeroU16) -> Result<TcpStream, Unreachable> {
        let known = self.known().get(&port.get()).cloned();
        if let Some(owner) = known.filter(|owner| owner.since.elapsed() < BELIEVED && owner.holds())
            && let Ok(connected) = dial(&owner.addresses).await
        {
            return Ok(connected);
        }
        let inner = self.inner;
        let failed = |error: io::Error| Unreachable::Failed { port, words: error.to_string() };
        let looking = tokio::task::spawn_blocking(move || find(inner, port));
        let owner = looking.await.map_err(io::Error::other).map_err(failed)??;
        let connected = match dial(&owner.addresses).await {
            Ok(connected) => connected,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Err(Unreachable::NotListening(port));
            }
            Err(error) => return Err(failed(error)),
        };
        let mut known = self.known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(port.get(), owner);
        Ok(connected)
    }
}

/// The first of these that takes a connection.
async fn dial(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::ConnectionRefused.into();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(connected) => return Ok(connected),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Looks who listens on a port. Blocks.
fn find(inner: i32, port: NonZeroU16) -> Result<Owner, Unreachable> {
    let since = Instant::now();
    let mut listeners: Vec<Listener> = Vec::new();
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match std::fs::read_to_string(file) {
            Ok(text) => listeners.extend(ports::listeners(&text, port.get())),
            // A machine without that family.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Unreachable::Failed { port, words: format!("{file}: {error}") }),
        }
    }
    if listeners.is_empty() {
        return Err(Unreachable::NotListening(port));
    }
    let own = holders(inner, &listeners.iter().map(|listener| listener.inode).collect());
    match ports::choose(&listeners, port.get(), |inode| own.contains_key(&inode)) {
        Choice::NotListening => Err(Unreachable::NotListening(port)),
        Choice::NotOwn => Err(Unreachable::NotOwn(port)),
        Choice::Dial { addresses, inode } => match own.get(&inode) {
            Some((process, descriptor)) => {
                Ok(Owner { process: *process, descriptor: *descriptor, inode, addresses, since })
            }
            None => Err(Unreachable::NotOwn(port)),
        },
    }
}

/// Which of these sockets processes of the container hold: by which, and as
/// which descriptor.
fn holders(inner: i32, inodes: &HashSet<u64>) -> HashMap<u64, (proc::Identity, i32)> {
    let mut found = HashMap::new();
    for process in proc::descendants(inner).into_iter().filter_map(proc::Identity::of) {
        let folder = format!("/proc/{}/fd", process.pid);
        // One that has ended meanwhile holds nothing.
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let held = std::fs::read_link(entry.path()).ok().and_then(|link| inode_of(&link));
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (Some(inode), Some(descriptor)) = (held.filter(|inode| inodes.contains(inode)), number) {
                found.insert(inode, (process, descriptor));
            }
        }
    }
    found
}

/// The socket a descriptor's link names.
fn inode_of(link: &std::path::Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}
