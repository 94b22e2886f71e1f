//! Text with holes: an object of the API rendered once, of which only a few
//! values differ from one to the next, so that rendering it is copying. Pure;
//! [`super::objects`] makes them, the double of the API server fills them.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use serde_json::Value;

/// What stands in a hole. In the text it is a word between `<` and `>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hole {
    /// Unique among all objects there ever are, eight hexadecimal digits.
    Serial,
    /// The resource version.
    Version,
    /// The number of a node, five digits.
    Node,
    /// When it was created.
    Created,
    /// When its status changed last.
    Changed,
}

/// What holes are filled with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fill<'a> {
    pub(super) serial: u32,
    pub(super) version: u64,
    pub(super) node: u32,
    pub(super) created: &'a str,
    pub(super) changed: &'a str,
}

/// Text with holes.
#[derive(Debug)]
pub(super) struct Template {
    pieces: Vec<(String, Hole)>,
    end: String,
}

impl Template {
    /// The text of an object. A `<` in it always begins a hole.
    pub(super) fn of(object: &Value) -> Result<Self> {
        let text = object.to_string();
        let mut rest = text.as_str();
        let mut pieces = Vec::new();
        while let Some((before, after)) = rest.split_once('<') {
            let Some((word, after)) = after.split_once('>') else { bail!("a hole has no end") };
            let hole = match word {
                "serial" => Hole::Serial,
                "version" => Hole::Version,
                "node" => Hole::Node,
                "created" => Hole::Created,
                "changed" => Hole::Changed,
                _ => bail!("no hole is called {word:?}"),
            };
            pieces.push((before.to_owned(), hole));
            rest = after;
        }
        Ok(Self { pieces, end: rest.to_owned() })
    }

    /// Appends the object.
    pub(super) fn render(&self, fill: Fill<'_>, out: &mut String) {
        for (before, hole) in &self.pieces {
            out.push_str(before);
            // Writing to a string does not fail.
            let _infallible = match hole {
                Hole::Serial => write!(out, "{:08x}", fill.serial),
                Hole::Version => write!(out, "{}", fill.version),
                Hole::Node => write!(out, "{:05}", fill.node),
                Hole::Created => out.write_str(fill.created),
                Hole::Changed => out.write_str(fill.changed),
            };
        }
        out.push_str(&self.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn holes_are_filled_and_the_rest_is_copied() {
        let template = Template::of(&json!({ "a": "n-<node>", "b": ["<version>", "x<serial>", 7] })).unwrap();
        let (created, changed) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let fill = Fill { serial: 255, version: 12, node: 34, created, changed };
        let mut text = String::new();
        template.render(fill, &mut text);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, json!({ "a": "n-00034", "b": ["12", "x000000ff", 7] }));
    }

    #[test]
    fn a_hole_nobody_fills_is_refused() {
        assert!(Template::of(&json!({ "a": "<name>" })).is_err());
        assert!(Template::of(&json!({ "a": "<node" })).is_err());
    }
}
