//! Reads the keys of one section: each at most once, none unknown, each value
//! of the shape its key wants. It knows no key by name; [`super::read`] does.
//! Whatever is wrong goes to the [`Report`] and reading goes on.

use std::fmt::Display;

use levers9_wire::name::printable;

use super::keys;
use super::report::Report;
use super::yaml::{Node, Value};

/// The keys of a section that have not been read yet.
pub(super) struct Section {
    path: &'static str,
    entries: Vec<(&'static str, Node)>,
}

impl Section {
    /// Takes the section at `path`; one that is not there is empty.
    pub(super) fn open(path: &'static str, node: Option<Node>, report: &mut Report) -> Self {
        let mut section = Self { path, entries: Vec::new() };
        let written = match node {
            None | Some(Node { value: Value::Empty, .. }) => Vec::new(),
            Some(Node { value: Value::Section(entries), .. }) => entries,
            Some(Node { line, .. }) => {
                let keys = keys::of_section(path).join(", ");
                let what = if path.is_empty() { "the file" } else { path };
                report.line(
                    line,
                    format!(
                        "{what}: expected keys with values, not a single value or a list; known keys: {keys}"
                    ),
                );
                Vec::new()
            }
        };
        for entry in written {
            let Some(key) = keys::known(path, &entry.key) else {
                report.line(entry.line, unknown(path, &entry.key));
                continue;
            };
            match report.stands(keys::full(path, key), entry.line) {
                Some(before) => report.line(
                    entry.line,
                    format!("{}: given a second time, first on line {before}", keys::full(path, key)),
                ),
                None => section.entries.push((key, entry.node)),
            }
        }
        section
    }

    /// The section inside this one that `key` names.
    pub(super) fn inner(&mut self, key: &'static str, path: &'static str, report: &mut Report) -> Self {
        Self::open(path, self.take(key), report)
    }

    /// The value of a key, where it is given and can be read.
    pub(super) fn value<T, E: Display>(
        &mut self,
        key: &'static str,
        report: &mut Report,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let node = self.take(key)?;
        self.one(key, node, report, read)
    }

    /// The values of a key that holds a list.
    pub(super) fn list<T, E: Display>(
        &mut self,
        key: &'static str,
        report: &mut Report,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<T>> {
        let name = keys::full(self.path, key);
        match self.take(key)?.value {
            Value::List(nodes) => {
                Some(nodes.into_iter().filter_map(|node| self.one(key, node, report, &read)).collect())
            }
            _ => {
                report.key(&name, "expected a list, such as [first, second]");
                None
            }
        }
    }

    fn one<T, E: Display>(
        &self,
        key: &str,
        node: Node,
        report: &mut Report,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let name = keys::full(self.path, key);
        let problem = match node.value {
            Value::Text(text) => match read(&text) {
                Ok(value) => return Some(value),
                Err(error) => error.to_string(),
            },
            Value::Empty => "has no value; leave the key out for its default".to_owned(),
            Value::List(_) | Value::Section(_) => "expected one value".to_owned(),
        };
        report.key_at(&name, node.line, problem);
        None
    }

    fn take(&mut self, key: &'static str) -> Option<Node> {
        let index = self.entries.iter().position(|(held, _)| *held == key)?;
        Some(self.entries.swap_remove(index).1)
    }
}

fn unknown(path: &str, written: &str) -> String {
    let place = if path.is_empty() { String::new() } else { format!(" in {path}") };
    let hint = match keys::meant(path, written) {
        Some(key) => format!("; did you mean {key:?}? known keys"),
        None => "; known keys".to_owned(),
    };
    format!("unknown key \"{}\"{place}{hint}: {}", printable(written, 80), keys::of_section(path).join(", "))
}
