//! YAML as a tree in which every node knows its line. It owns the shape of the
//! text and nothing of its meaning: a value stays the characters that were
//! written, so that `0123` is not a number to whoever wants a secret.
//!
//! [`super::section`] reads the tree. What a configuration file has no use for
//! (anchors, aliases, tags, a second document) is refused, so a small file
//! never grows while it is read.

use granit_parser::{Event, Marker, Options, Parser, ScalarStyle, Span};

/// More than any key of the file needs; deeper text is a mistake.
const MAX_DEPTH: usize = 8;

/// A value and the line it starts on.
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

/// What was written after a key.
pub(super) enum Value {
    /// Nothing, or a word for it.
    Empty,
    /// One value, as its characters.
    Text(String),
    /// Several values.
    List(Vec<Node>),
    /// Keys with values, in their order.
    Section(Vec<Entry>),
}

/// A key, its line and its value.
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) node: Node,
}

/// Why text has no tree.
pub(super) struct Broken {
    pub(super) line: usize,
    pub(super) problem: String,
}

impl Broken {
    fn new(at: &Marker, problem: impl Into<String>) -> Self {
        Self { line: at.line(), problem: problem.into() }
    }
}

/// Reads text that holds one document or none.
pub(super) fn parse(text: &str) -> Result<Node, Broken> {
    let mut options = Options::default();
    // Another crate of a binary may have switched them on in the parser.
    options.emit_comments = false;
    let mut reader = Reader { events: Parser::new_from_str_with_options(text, options) };
    let mut root = None;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentEnd => {}
            Event::DocumentStart(..) if root.is_some() => {
                return Err(Broken::new(&span.start, "a second document starts here; the file holds one"));
            }
            Event::DocumentStart(..) => {
                let (event, span) = reader.next()?;
                root = Some(reader.node(event, span, 0)?);
            }
            _ => return Err(Broken::new(&span.start, "this is not YAML")),
        }
    }
    Ok(root.unwrap_or(Node { line: 1, value: Value::Empty }))
}

struct Reader<'t> {
    events: Parser<'t, granit_parser::StrInput<'t>>,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Broken> {
        match self.events.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(Broken::new(error.marker(), error.info())),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Broken> {
        let fancy = event.tag().is_some() || event.anchor_id().is_some() || event.is_alias();
        if fancy {
            return Err(Broken::new(
                &span.start,
                "anchors (&), aliases (*) and tags (!) are not read here; quote the value or write it out",
            ));
        }
        if depth == MAX_DEPTH {
            return Err(Broken::new(&span.start, "nested deeper than any key of this file"));
        }
        let value = match event {
            Event::Scalar(text, style, ..) => {
                let plain = style == ScalarStyle::Plain;
                let empty = plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                if empty { Value::Empty } else { Value::Text(text.into_owned()) }
            }
            Event::SequenceStart(..) => Value::List(self.list(depth)?),
            Event::MappingStart(..) => Value::Section(self.section(depth)?),
            _ => return Err(Broken::new(&span.start, "a value is missing here")),
        };
        Ok(Node { line: span.start.line(), value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Broken> {
        let mut nodes = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(nodes),
                (event, span) => nodes.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn section(&mut self, depth: usize) -> Result<Vec<Entry>, Broken> {
        let mut entries = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(entries);
            }
            let Node { line, value: Value::Text(key) } = self.node(event, span, depth + 1)? else {
                return Err(Broken::new(&span.start, "a key is one word, followed by a colon and a space"));
            };
            let (event, span) = self.next()?;
            entries.push(Entry { key, line, node: self.node(event, span, depth + 1)? });
        }
    }
}
