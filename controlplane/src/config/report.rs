//! What is wrong with a configuration, all of it at once. The readers and the
//! checks of [`super`] add to a [`Report`]; it becomes the error that people
//! see. A problem names key, line and what to write instead; it quotes no
//! value of a key that holds a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: the configuration file cannot be read: {source}")]
    Read {
        /// Which file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// What it says cannot be used.
    #[error("{0}")]
    Bad(Problems),
}

/// One or more problems, in the order of their lines.
#[derive(Debug)]
pub struct Problems(Vec<Problem>);

#[derive(Debug)]
struct Problem {
    /// The full name of the key whose value it is about, if it is.
    key: Option<String>,
    /// 0 where there is none.
    line: usize,
    /// The file with its line, or the environment variable.
    place: String,
    text: String,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{}: {}", problem.place, problem.text)?;
        }
        Ok(())
    }
}

/// Problems as they are found.
pub(super) struct Report {
    file: String,
    /// Where the value of each key comes from, by the key's full name.
    sources: BTreeMap<String, Source>,
    problems: Vec<Problem>,
}

#[derive(Clone, Copy)]
enum Source {
    Line(usize),
    Variable(&'static str),
}

impl Report {
    pub(super) fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), sources: BTreeMap::new(), problems: Vec::new() }
    }

    /// Notes where a key stands. Answers where it stood before, if it did.
    pub(super) fn stands(&mut self, key: String, line: usize) -> Option<usize> {
        match self.sources.get(&key) {
            Some(Source::Line(before)) => Some(*before),
            _ => {
                self.sources.insert(key, Source::Line(line));
                None
            }
        }
    }

    /// Notes that an environment variable gave the value of a key.
    pub(super) fn comes_from(&mut self, key: &str, variable: &'static str) {
        self.sources.insert(key.to_owned(), Source::Variable(variable));
    }

    /// A problem with a line.
    pub(super) fn line(&mut self, line: usize, text: impl fmt::Display) {
        self.problems.push(Problem {
            key: None,
            line,
            place: format!("{}:{line}", self.file),
            text: text.to_string(),
        });
    }

    /// A problem with the value of a key, wherever that came from.
    pub(super) fn key(&mut self, key: &str, text: impl fmt::Display) {
        let line = match self.sources.get(key) {
            Some(Source::Line(line)) => *line,
            _ => 0,
        };
        self.key_at(key, line, text);
    }

    /// A problem with a part of a key's value that has a line of its own.
    pub(super) fn key_at(&mut self, key: &str, line: usize, text: impl fmt::Display) {
        let (place, text) = match self.sources.get(key) {
            Some(Source::Line(_)) => (format!("{}:{line}", self.file), format!("{key}: {text}")),
            Some(Source::Variable(name)) => ((*name).to_owned(), text.to_string()),
            None => (self.file.clone(), format!("{key}: {text}")),
        };
        self.problems.push(Problem { key: Some(key.to_owned()), line, place, text });
    }

    /// Whether a problem with the value of this key is known already.
    pub(super) fn has(&self, key: &str) -> bool {
        self.problems.iter().any(|problem| problem.key.as_deref() == Some(key))
    }

    /// The error, when there is anything to tell.
    pub(super) fn finish(mut self) -> Result<(), ConfigError> {
        if self.problems.is_empty() {
            return Ok(());
        }
        self.problems.sort_by_key(|problem| problem.line);
        Err(ConfigError::Bad(Problems(self.problems)))
    }
}
