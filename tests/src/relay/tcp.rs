//! The TCP side of a relay, on the port of its UDP side. Cut, nothing passes
//! and nobody is told; connections that are made then hang. Those there are can
//! be reset.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::{LOOK, Way};

/// What the TCP side of a relay looks at.
#[derive(Debug, Default)]
pub(super) struct Tcp {
    /// Which ways nothing passes: forth, and back.
    pub(super) cut: [AtomicBool; 2],
    /// Raised when connections are to be reset: those of an older number are.
    pub(super) epoch: AtomicU32,
    pub(super) ended: AtomicBool,
}

impl Tcp {
    /// Starts relaying between what comes in and an address.
    pub(super) fn start(listener: TcpListener, to: SocketAddr) -> Arc<Self> {
        let tcp = Arc::new(Self::default());
        let accepting = Arc::clone(&tcp);
        std::thread::spawn(move || accepting.accept(&listener, to));
        tcp
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn is_cut(&self, way: Way) -> bool {
        self.cut[way as usize].load(Ordering::SeqCst)
    }

    /// Whether a connection of this number is to go on.
    fn goes_on(&self, epoch: u32) -> bool {
        !self.ended() && self.epoch.load(Ordering::SeqCst) == epoch
    }

    fn accept(self: Arc<Self>, listener: &TcpListener, to: SocketAddr) {
        listener.set_nonblocking(true).expect("a listener can be polled");
        while !self.ended() {
            let Ok((front, _)) = listener.accept() else {
                std::thread::sleep(LOOK / 4);
                continue;
            };
            let (tcp, epoch) = (Arc::clone(&self), self.epoch.load(Ordering::SeqCst));
            std::thread::spawn(move || tcp.pair(front, to, epoch));
        }
    }

    fn pair(self: Arc<Self>, front: TcpStream, to: SocketAddr, epoch: u32) {
        while self.is_cut(Way::Forth) && self.goes_on(epoch) {
            std::thread::sleep(LOOK);
        }
        // Who cannot be reached closes on whoever asked.
        let Ok(back) = TcpStream::connect(to) else { return };
        let both = |stream: &TcpStream| {
            let _blocking = stream.set_nonblocking(false);
            let _delay = stream.set_nodelay(true);
            stream.set_read_timeout(Some(LOOK)).expect("a timeout can be set");
            stream.try_clone().expect("a stream can be shared")
        };
        let (front_too, back_too) = (both(&front), both(&back));
        let tcp = Arc::clone(&self);
        std::thread::spawn(move || tcp.copy(front_too, back, Way::Forth, epoch));
        self.copy(back_too, front, Way::Back, epoch);
    }

    /// One direction, until its end is passed on.
    fn copy(&self, mut from: TcpStream, mut to: TcpStream, way: Way, epoch: u32) {
        let mut buffer = vec![0; 65_536];
        while self.goes_on(epoch) {
            if self.is_cut(way) {
                std::thread::sleep(LOOK);
                continue;
            }
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    while self.is_cut(way) && self.goes_on(epoch) {
                        std::thread::sleep(LOOK);
                    }
                    if to.write_all(&buffer[..n]).is_err() {
                        break;
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
        }
        if self.epoch.load(Ordering::SeqCst) == epoch {
            let _closed = to.shutdown(Shutdown::Write);
        } else {
            // The last handle on each socket resets it.
            for socket in [&from, &to] {
                let _reset = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
            }
        }
    }
}
