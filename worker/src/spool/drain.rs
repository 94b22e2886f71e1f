//! The thread that empties a container's two pipes into its log. It reads as
//! long as anybody can write, however slow the disk, because a full pipe
//! stops the command. One thread per container, so that neither the network
//! nor another container waits for this one's disk.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use levers9_wire::{clock, v1};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Cutter, Writer};

/// What is read at once, and what the pipes are made to hold, in bytes.
const PIPE: usize = 256 * 1024;

/// A running drain. Dropped, it ends after what is in the pipes now.
#[derive(Debug)]
pub struct Drain {
    done: oneshot::Receiver<Writer>,
    stop: Option<PipeWriter>,
}

impl Drain {
    /// Starts emptying the pipes into the log.
    ///
    /// # Errors
    /// When no thread or pipe can be made.
    pub fn start(name: &str, stdout: PipeReader, stderr: PipeReader, writer: Writer) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let (finished, done) = oneshot::channel();
        for pipe in [&stdout, &stderr] {
            // Only faster; some users may not have so much.
            let _small = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(i32::try_from(PIPE).unwrap_or(i32::MAX)));
        }
        std::thread::Builder::new().name(format!("log-{name}")).spawn(move || {
            let sources =
                [Source::new(stdout, v1::LogStream::Stdout), Source::new(stderr, v1::LogStream::Stderr)];
            // Nobody waits for it when the container was given up.
            let _gone = finished.send(Pump { sources, writer, buffer: vec![0; PIPE] }.run(&stopped));
        })?;
        Ok(Self { done, stop: Some(stop) })
    }

    /// Ends it although somebody may still hold a pipe open: what is in the
    /// pipes now is the last that is read.
    pub fn cut(&mut self) {
        self.stop = None;
    }

    /// Waits for the end of both pipes and gives the log's writer back;
    /// `None` when the thread died. To be awaited to its end once.
    pub async fn done(&mut self) -> Option<Writer> {
        (&mut self.done).await.ok()
    }
}

struct Source {
    pipe: PipeReader,
    stream: v1::LogStream,
    cutter: Cutter,
    open: bool,
}

impl Source {
    fn new(pipe: PipeReader, stream: v1::LogStream) -> Self {
        Self { pipe, stream, cutter: Cutter::default(), open: true }
    }
}

struct Pump {
    sources: [Source; 2],
    writer: Writer,
    buffer: Vec<u8>,
}

impl Pump {
    fn run(mut self, stop: &PipeReader) -> Writer {
        let mut stopping = false;
        while self.sources.iter().any(|source| source.open) && !stopping {
            let (ready, stopped) = self.wait(stop);
            stopping = stopped;
            let now = Instant::now();
            for (at, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
                self.read(at, now);
            }
            for source in &mut self.sources {
                if source.cutter.deadline().is_some_and(|deadline| deadline <= now) {
                    give(source, &mut self.writer, Cutter::flush);
                }
            }
            self.writer.flush();
        }
        for source in &mut self.sources {
            give(source, &mut self.writer, Cutter::finish);
        }
        self.writer.flush();
        self.writer
    }

    /// Waits for output, the next flush or the order to stop. Says which
    /// pipes can be read and whether to stop.
    fn wait(&self, stop: &PipeReader) -> ([bool; 2], bool) {
        let deadline = self.sources.iter().filter_map(|source| source.cutter.deadline()).min();
        let timeout = deadline.map_or(PollTimeout::NONE, |at| {
            // Rounded up: a millisecond early would be a turn for nothing.
            let wait = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
        });
        let open: Vec<usize> = (0..2).filter(|at| self.sources[*at].open).collect();
        let mut fds = vec![PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        fds.extend(open.iter().map(|at| PollFd::new(self.sources[*at].pipe.as_fd(), PollFlags::POLLIN)));
        let mut ready = [false; 2];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                tracing::error!(%errno, "cannot wait for output; the log ends here");
                return (ready, true);
            }
        }
        for (fd, at) in fds[1..].iter().zip(open) {
            ready[at] = fd.any().unwrap_or(false);
        }
        (ready, fds[0].any().unwrap_or(false))
    }

    fn read(&mut self, at: usize, now: Instant) {
        let source = &mut self.sources[at];
        match source.pipe.read(&mut self.buffer) {
            Ok(0) => source.open = false,
            Ok(length) => {
                let (writer, stream, unix_ms) = (&mut self.writer, source.stream, clock::unix_millis());
                source.cutter.push(&self.buffer[..length], now, |piece| writer.put(stream, unix_ms, piece));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot read output; its stream ends here");
                source.open = false;
            }
        }
    }
}

/// A way to ask a cutter for what it holds.
type Ask = fn(&mut Cutter, &mut dyn FnMut(&[u8]));

/// Lets a source's cutter give what it holds, by the way it is asked.
fn give(source: &mut Source, writer: &mut Writer, how: Ask) {
    let (stream, unix_ms) = (source.stream, clock::unix_millis());
    how(&mut source.cutter, &mut |piece| writer.put(stream, unix_ms, piece));
}
