//! The socket between worker and supervisor: lines, each with one JSON object,
//! in both directions; descriptors travel with the line they belong to. Both
//! ends of a running container use it, and the stage of an exec. It knows
//! nothing of what a line says.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::protocol;

/// The longest line, in bytes: a command with the largest environment fits.
const LINE: usize = 4 * 1024 * 1024;
/// The most descriptors with one line.
const DESCRIPTORS: usize = 3;
/// What is read at once, in bytes.
const READ: usize = 16 * 1024;

/// The two directions of a socket.
pub(crate) fn split(socket: std::os::unix::net::UnixStream) -> io::Result<(LineSend, LineRecv)> {
    socket.set_nonblocking(true)?;
    let socket = Arc::new(UnixStream::from_std(socket)?);
    let recv = LineRecv { socket: Arc::clone(&socket), incoming: Incoming::default() };
    Ok((LineSend { socket, line: VecDeque::new() }, recv))
}

/// A line on its way out.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    descriptors: Vec<OwnedFd>,
}

/// Sends lines. Whoever queues them bounds how many there are.
#[derive(Debug)]
pub(crate) struct LineSend {
    socket: Arc<UnixStream>,
    line: VecDeque<Outgoing>,
}

impl LineSend {
    /// Puts a message in line; its descriptors are closed here once they are sent.
    pub(crate) fn queue(&mut self, message: &impl Serialize, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        self.line.push_back(Outgoing { bytes: protocol::line(message)?, written: 0, descriptors });
        Ok(())
    }

    /// Whether anything is in line.
    pub(crate) fn has_pending(&self) -> bool {
        !self.line.is_empty()
    }

    /// Drops what is in line.
    pub(crate) fn clear(&mut self) {
        self.line.clear();
    }

    /// Writes what is in line. Cancel safe.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        while let Some(first) = self.line.front_mut() {
            let socket = &*self.socket;
            // Descriptors go with the first bytes of their line.
            let written = socket
                .async_io(Interest::WRITABLE, || {
                    write(socket, &first.bytes[first.written..], &first.descriptors)
                })
                .await?;
            first.written += written;
            first.descriptors.clear();
            if first.written == first.bytes.len() {
                self.line.pop_front();
            }
        }
        Ok(())
    }
}

fn write(socket: impl AsFd, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<usize> {
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other("too many descriptors for one line"));
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Receives lines.
#[derive(Debug)]
pub(crate) struct LineRecv {
    socket: Arc<UnixStream>,
    incoming: Incoming,
}

impl LineRecv {
    /// The next message, or `None` when the other end is gone. Cancel safe.
    pub(crate) async fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        loop {
            if let Some(message) = self.incoming.take()? {
                return Ok(Some(message));
            }
            let (socket, incoming) = (&*self.socket, &mut self.incoming);
            if !socket.async_io(Interest::READABLE, || incoming.read(socket)).await? {
                return Ok(None);
            }
        }
    }

    /// The next descriptor that came; in the order of the lines they came with.
    pub(crate) fn descriptor(&mut self) -> Option<OwnedFd> {
        self.incoming.descriptors.pop_front()
    }
}

/// One message and what came with it, from a socket that blocks; `None` when
/// the other end is gone.
pub(super) fn receive<M: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut incoming = Incoming::default();
    loop {
        if let Some(message) = incoming.take()? {
            return Ok(Some((message, incoming.descriptors.into())));
        }
        if !incoming.read(&socket)? {
            return Ok(None);
        }
    }
}

/// What came and is not looked at yet.
#[derive(Debug, Default)]
struct Incoming {
    bytes: Vec<u8>,
    /// How much of it holds no end of a line.
    searched: usize,
    descriptors: VecDeque<OwnedFd>,
}

impl Incoming {
    fn take<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let Some(end) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return Ok(None);
        };
        let rest = self.bytes.split_off(self.searched + end + 1);
        let line = std::mem::replace(&mut self.bytes, rest);
        self.searched = 0;
        Ok(Some(serde_json::from_slice(&line)?))
    }

    /// Reads once; `false` at the end.
    fn read(&mut self, socket: impl AsFd) -> io::Result<bool> {
        if self.bytes.len() > LINE {
            return Err(io::Error::other("a line is too long"));
        }
        let mut buffer = [0; READ];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let read = loop {
            let slices = &mut [IoSliceMut::new(&mut buffer)];
            match recvmsg(&socket, slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.bytes.extend_from_slice(&buffer[..read.bytes]);
        Ok(read.bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[tokio::test]
    async fn descriptors_come_in_the_order_of_their_lines_and_are_closed_behind() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let ((mut send, _back), (_forth, mut recv)) = (split(ours).unwrap(), split(theirs).unwrap());
        let mut ends = Vec::new();
        for number in 0..20u32 {
            let (reader, writer) = io::pipe().unwrap();
            ends.push(reader);
            // One that does not fit into the socket at once, and one without any.
            let text = "x".repeat(if number == 7 { 1 << 20 } else { 10 });
            send.queue(&(number, &text), vec![writer.into()]).unwrap();
            send.queue(&(1000 + number, ""), Vec::new()).unwrap();
        }
        let receiving = async {
            for number in 0..20u32 {
                let (is, text): (u32, String) = recv.next().await.unwrap().unwrap();
                assert_eq!((is, text.len()), (number, if number == 7 { 1 << 20 } else { 10 }));
                let descriptor = recv.descriptor().unwrap();
                std::fs::File::from(descriptor).write_all(&[u8::try_from(number).unwrap()]).unwrap();
                let (is, _): (u32, String) = recv.next().await.unwrap().unwrap();
                assert_eq!(is, 1000 + number);
            }
            assert!(recv.descriptor().is_none());
        };
        tokio::join!(receiving, async { send.flush().await.unwrap() });
        for (number, mut end) in (0u8..).zip(ends) {
            let mut all = Vec::new();
            end.read_to_end(&mut all).unwrap();
            assert_eq!(all, [number]);
        }
    }

    #[test]
    fn a_line_without_end_is_refused_and_an_end_is_an_end() {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let writing = std::thread::spawn(move || while ours.write_all(&[b'1'; 65536]).is_ok() {});
        assert!(receive::<u64>(&theirs).is_err());
        drop(theirs);
        writing.join().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(ours);
        assert!(receive::<u64>(&theirs).unwrap().is_none());
    }
}
