//! What the ports log, kept apart by thread: each test has one of its own. It
//! is recorded for the whole process from before the first port is served. A
//! subscriber of one test alone would not do: whether a line is wanted is
//! remembered from whoever logs it first, who may be a test without one.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use tracing_subscriber::filter::LevelFilter;

thread_local! {
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct ThisThread;

impl io::Write for ThisThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Records from now on; who else calls it waits until it does.
pub(crate) fn record() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::DEBUG)
            .with_ansi(false)
            .with_writer(|| ThisThread)
            .init();
    });
}

/// What this thread has logged.
pub(crate) fn of_this_thread() -> String {
    LINES.with_borrow(|lines| String::from_utf8(lines.clone()).unwrap())
}
