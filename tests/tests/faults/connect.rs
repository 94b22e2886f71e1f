//! An HTTP proxy that is asked by CONNECT, and behaves as a test wants it to.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

/// What a proxy does with who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It leads there.
    Leads,
    /// It wants a name and a password, and leads there with the right ones.
    Wants(&'static str),
    /// It takes the connection, reads, and says nothing.
    Hangs,
    /// It takes the connection and closes it.
    Closes,
    /// It says that it may not.
    Forbids,
    /// It says something else than HTTP.
    Babbles,
}

/// From where it goes on: what tells its connections from others.
pub(crate) const FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// How often threads look whether they are to end.
const LOOK: Duration = Duration::from_millis(100);

/// The proxy; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    manner: Mutex<Manner>,
    heads: Mutex<Vec<String>>,
    ended: AtomicBool,
    /// Connections of an older number are reset.
    epoch: AtomicU32,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// One that leads to an address, whatever it is asked for.
    pub(crate) fn to(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            to,
            manner: Mutex::new(Manner::Leads),
            heads: Mutex::default(),
            ended: AtomicBool::new(false),
            epoch: AtomicU32::new(0),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Self { address, shared }
    }

    /// How it is from now on.
    pub(crate) fn be(&self, manner: Manner) {
        *held(&self.shared.manner) = manner;
    }

    /// What it was asked: the whole heads.
    pub(crate) fn heads(&self) -> Vec<String> {
        held(&self.shared.heads).clone()
    }

    /// Resets every connection that it leads.
    pub(crate) fn cut(&self) {
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// What goes into `HTTPS_PROXY`.
    pub(crate) fn url(&self, credentials: &str) -> String {
        format!("http://{credentials}{}", self.address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn goes_on(&self, epoch: u32) -> bool {
        !self.ended.load(Ordering::SeqCst) && self.epoch.load(Ordering::SeqCst) == epoch
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        listener.set_nonblocking(true).expect("a listener can be polled");
        while !self.ended.load(Ordering::SeqCst) {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(LOOK / 4);
                continue;
            };
            let shared = Arc::clone(&self);
            std::thread::spawn(move || shared.serve(stream));
        }
    }

    fn serve(self: Arc<Self>, mut front: TcpStream) -> Option<()> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        front.set_nonblocking(false).ok()?;
        front.set_read_timeout(Some(LOOK)).ok()?;
        let manner = *held(&self.manner);
        if manner == Manner::Closes {
            return None;
        }
        let head = self.head(&mut front, epoch)?;
        held(&self.heads).push(head.clone());
        let allowed = match manner {
            Manner::Leads => true,
            Manner::Wants(secret) => head.contains(&format!("Proxy-Authorization: Basic {secret}\r\n")),
            Manner::Forbids => {
                front.write_all(b"HTTP/1.1 403 Not Here\r\n\r\n").ok()?;
                return None;
            }
            Manner::Babbles => {
                front.write_all(b"220 mail.example.org ESMTP\r\n\r\n").ok()?;
                return None;
            }
            Manner::Hangs | Manner::Closes => {
                while self.goes_on(epoch) {
                    std::thread::sleep(LOOK);
                }
                return None;
            }
        };
        if !allowed {
            let wants = "HTTP/1.1 407 Who Are You\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\r\n";
            front.write_all(wants.as_bytes()).ok()?;
            return None;
        }
        let back = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
        back.bind(&SocketAddr::from((FROM, 0)).into()).ok()?;
        back.connect(&self.to.into()).ok()?;
        let back = TcpStream::from(back);
        back.set_read_timeout(Some(LOOK)).ok()?;
        front.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").ok()?;
        let both = (front.try_clone().ok()?, back.try_clone().ok()?);
        let forth = Arc::clone(&self);
        std::thread::spawn(move || forth.copy(both.0, back, epoch));
        self.copy(both.1, front, epoch);
        Some(())
    }

    fn head(&self, front: &mut TcpStream, epoch: u32) -> Option<String> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            match front.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                Ok(_) => return None,
                Err(error) if waits(&error) && self.goes_on(epoch) => {}
                Err(_) => return None,
            }
        }
        Some(String::from_utf8_lossy(&head).into_owned())
    }

    /// One direction, until its end is passed on.
    fn copy(&self, mut from: TcpStream, mut to: TcpStream, epoch: u32) {
        let mut buffer = vec![0; 65_536];
        while self.goes_on(epoch) {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) if to.write_all(&buffer[..n]).is_err() => break,
                Err(error) if !waits(&error) => break,
                _ => {}
            }
        }
        if self.goes_on(epoch) {
            let _closed = to.shutdown(std::net::Shutdown::Write);
        } else {
            for socket in [&from, &to] {
                let _reset = SockRef::from(socket).set_linger(Some(Duration::ZERO));
            }
        }
    }
}

fn waits(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}
