//! Where carriers live: a current-thread runtime that looks at its socket
//! often. On such a runtime a ping beside saturating bulk waits 0.3 ms; on a
//! default one 7 ms and more.

use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// Task polls between two looks at the socket.
const EVENT_INTERVAL: u32 = 16;

/// A runtime for a process whose main thread is the transport: the CLI, a worker.
///
/// # Errors
/// When the system gives no runtime.
pub fn current_thread() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().event_interval(EVENT_INTERVAL).build()
}

/// A thread of its own for the transport of a process that does other things too.
#[derive(Debug)]
pub struct TransportThread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl TransportThread {
    /// Starts it.
    ///
    /// # Errors
    /// When the system gives no thread or runtime.
    pub fn start() -> io::Result<Self> {
        let runtime = current_thread()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("levers9-transport".to_owned()).spawn(move || {
            // Ends when told to, or when the owner is gone.
            let _ended = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Where to spawn what belongs to the transport.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for TransportThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}
