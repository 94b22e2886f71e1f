//! What is logged at warning level and above on this thread, for tests of what
//! operators are told.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines logged while it lives.
pub(crate) struct Said {
    lines: Arc<Mutex<Vec<String>>>,
    _until_dropped: DefaultGuard,
}

impl Said {
    pub(crate) fn listen() -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let guard = set_default(Listener(Arc::clone(&lines)));
        Self { lines, _until_dropped: guard }
    }

    /// How many lines hold these words.
    pub(crate) fn count(&self, words: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(words)).count()
    }
}

struct Listener(Arc<Mutex<Vec<String>>>);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.is_event()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _written = write!(self.0, "{}={value:?} ", field.name());
    }
}
