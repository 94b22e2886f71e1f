//! What people and scripts see: results on standard output, everything else
//! on standard error. The only place that writes to either, apart from
//! `output`, which moves the output of jobs, and the only place that
//! renders errors.
//!
//! A reader that has closed its end ends the command quietly with 0. A write
//! that fails otherwise is an error of its own.

use std::io::{self, IsTerminal as _, Write};

use levers9_wire::name;
use serde::Serialize;

use crate::args::Format;
use crate::env::{self, Env};
use crate::error::Error;
use crate::exit;

/// The longest cell of a table, in characters.
const CELL: usize = 64;
/// The longest line of a message, in characters.
const MESSAGE: usize = 2000;
/// How much of a long text is shown on each side of the character that is wrong.
const AROUND: usize = 60;

/// Something that can be listed, for people and for scripts.
pub trait Listing: Serialize {
    /// The heads of the columns.
    const HEADS: &'static [&'static str];
    /// The columns that are left out of a table in which they are empty.
    const OPTIONAL: &'static [&'static str] = &[];
    /// The longest cell, in characters.
    const LONGEST: usize = CELL;

    /// The cells under them, at a time in Unix milliseconds.
    fn cells(&self, now_unix_ms: u64) -> Vec<String>;
}

/// Prints for one command.
pub struct Printer {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    err_is_terminal: bool,
    colour: bool,
}

impl std::fmt::Debug for Printer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Printer").field("err_is_terminal", &self.err_is_terminal).finish_non_exhaustive()
    }
}

impl Printer {
    /// Prints to the standard output and error of this process.
    #[must_use]
    pub fn of_process(env: &Env) -> Self {
        let err_is_terminal = io::stderr().is_terminal();
        let colour = err_is_terminal && env.get(env::NO_COLOR).is_none() && env.get("TERM") != Some("dumb");
        Self { out: Box::new(io::stdout()), err: Box::new(io::stderr()), err_is_terminal, colour }
    }

    /// Prints a list: a table, or an array with an object for each item.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn list<T: Listing>(&mut self, format: Format, items: &[T]) -> Result<(), Error> {
        match format {
            Format::Json => self.json(&items),
            Format::Text => {
                let now = levers9_wire::clock::unix_millis();
                let rows: Vec<Vec<String>> = items.iter().map(|item| item.cells(now)).collect();
                let (heads, rows) = without_empty(T::HEADS, T::OPTIONAL, rows);
                self.write(&table(&heads, &rows, T::LONGEST))
            }
        }
    }

    /// Prints names and values, one pair a line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn pairs(&mut self, pairs: &[(&str, String)]) -> Result<(), Error> {
        let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let mut text = String::new();
        for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
            let value = name::printable(value, MESSAGE);
            text.push_str(&format!("{name:width$}  {value}\n"));
        }
        self.write(&text)
    }

    /// Prints one value as JSON.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        let mut text = serde_json::to_string_pretty(value)
            .map_err(|e| Error::failed("cannot write the result as JSON").because(e))?;
        text.push('\n');
        self.write(&text)
    }

    /// Prints one value as JSON on one line, among others.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json_line<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        let mut text = serde_json::to_string(value)
            .map_err(|e| Error::failed("cannot write the result as JSON").because(e))?;
        text.push('\n');
        self.write(&text)
    }

    /// Prints one line of a result as it is, control characters escaped.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn line(&mut self, text: &str) -> Result<(), Error> {
        self.write(&format!("{}\n", name::printable(text, 64 * 1024)))
    }

    /// Prints a text of this command's own as it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn script(&mut self, text: &[u8]) -> Result<(), Error> {
        self.write(&String::from_utf8_lossy(text))
    }

    /// Tells the user something beside the result.
    pub fn note(&mut self, text: &str) {
        self.complain(&format!("{}\n", note_line(text)));
    }

    /// Asks a question that is answered with yes or no; `None` when there is
    /// nobody to ask.
    ///
    /// # Errors
    /// When the answer cannot be read.
    pub fn ask(&mut self, question: &str) -> Result<Option<bool>, Error> {
        if !io::stdin().is_terminal() || !self.err_is_terminal {
            return Ok(None);
        }
        self.complain(&format!("{} [y/N] ", note_line(question)));
        let mut answer = String::new();
        io::stdin()
            .read_line(&mut answer)
            .map_err(|e| Error::failed("cannot read the answer from this terminal").because(e))?;
        Ok(Some(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")))
    }

    /// Starts a line where a job's output has left one open on the same screen.
    pub fn fresh_line(&mut self) {
        if self.err_is_terminal {
            self.complain("\n");
        }
    }

    /// Tells whoever watches how far it is; scripts are not told.
    pub fn progress(&mut self, text: &str) {
        if self.err_is_terminal {
            self.note(text);
        }
    }

    /// Prints why a command did not succeed.
    pub fn error(&mut self, error: &Error) {
        if error.is_silent() {
            return;
        }
        let (red, bold, off) = if self.colour { ("\x1b[1;31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
        let mut text = format!("{red}error:{off} {}\n", name::printable(&error.chain(), MESSAGE));
        if let Some((wrong, at)) = error.pointer() {
            text.push_str(&pointed(wrong, at));
        }
        if let Some(hint) = error.hint_text() {
            text.push_str(&format!("{bold}hint:{off} {}\n", name::printable(hint, MESSAGE)));
        }
        self.complain(&text);
    }

    fn write(&mut self, text: &str) -> Result<(), Error> {
        self.out
            .write_all(text.as_bytes())
            .and_then(|()| self.out.flush())
            .map_err(|e| write_failed(e, "output"))
    }

    /// Writes to standard error. When that is gone there is nobody to tell.
    fn complain(&mut self, text: &str) {
        let _gone = self.err.write_all(text.as_bytes());
    }
}

/// A text, and below it a caret at one of its characters.
fn pointed(text: &str, at: usize) -> String {
    let length = text.chars().count();
    // Of a long text only what is around the place.
    let (from, to) = match length > 2 * AROUND {
        true => (at.saturating_sub(AROUND), (at + AROUND).min(length)),
        false => (0, length),
    };
    let cut = |yes: bool| if yes { "…" } else { "" };
    let part =
        |from: usize, to: usize| text.chars().skip(from).take(to.saturating_sub(from)).collect::<String>();
    let before = format!("{}{}", cut(from > 0), name::printable(&part(from, at), MESSAGE));
    let shown = format!("{}{}{}", cut(from > 0), name::printable(&part(from, to), MESSAGE), cut(to < length));
    format!("  {shown}\n  {}^\n", " ".repeat(before.chars().count()))
}

/// A message of levers9 beside the output of a job.
pub(crate) fn note_line(text: &str) -> String {
    format!("levers9: {}", name::printable(text.trim_end(), MESSAGE))
}

/// What a failed write to a standard stream means.
pub(crate) fn write_failed(error: io::Error, stream: &str) -> Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Error::silent(exit::DONE)
    } else {
        Error::failed(format!("cannot write to standard {stream}")).because(error)
    }
}

/// The columns of a table without those of `optional` that are empty.
fn without_empty(
    heads: &[&'static str],
    optional: &[&str],
    mut rows: Vec<Vec<String>>,
) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let shown = |column: usize, head: &str| {
        let filled = |row: &Vec<String>| row.get(column).is_some_and(|cell| !cell.is_empty());
        !optional.contains(&head) || rows.iter().any(filled)
    };
    let shown: Vec<bool> = heads.iter().enumerate().map(|(column, head)| shown(column, head)).collect();
    for row in &mut rows {
        let mut keep = shown.iter();
        row.retain(|_| keep.next().copied().unwrap_or(true));
    }
    let mut keep = shown.iter();
    let heads = heads.iter().copied().filter(|_| keep.next().copied().unwrap_or(true)).collect();
    (heads, rows)
}

/// Columns as wide as their widest cell, two spaces apart. Text from elsewhere
/// is escaped and cut here.
fn table(heads: &[&str], rows: &[Vec<String>], longest: usize) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| name::printable(cell, longest)).collect()).collect();
    let mut widths: Vec<usize> = heads.iter().map(|head| head.len()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut push = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, width) in cells.zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count().min(*width)));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    push(&mut heads.iter().copied());
    for row in &rows {
        push(&mut row.iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up_and_show_no_control_characters() {
        let rows = [vec!["a".to_owned(), "x\u{1b}[2J".to_owned()], vec!["longer".to_owned(), "é".to_owned()]];
        assert_eq!(table(&["ID", "NAME"], &rows, CELL), "ID      NAME\na       x\\u{1b}[2J\nlonger  é\n");
    }

    #[test]
    fn a_column_that_may_be_left_out_is_where_it_is_empty() {
        let rows = |node: &str| vec![vec!["a".to_owned(), node.to_owned(), String::new()]];
        let heads = ["ID", "NODE", "NOTE"];
        let (left, cells) = without_empty(&heads, &["NODE"], rows(""));
        assert_eq!((left, cells[0].len()), (vec!["ID", "NOTE"], 2));
        assert_eq!(without_empty(&heads, &["NODE"], rows("n")), (heads.to_vec(), rows("n")));
    }

    #[test]
    fn a_caret_stands_below_the_character_also_after_what_is_escaped() {
        assert_eq!(pointed("a=b c", 3), "  a=b c\n     ^\n");
        assert_eq!(pointed("\u{1b}é!", 2), "  \\u{1b}é!\n         ^\n");
        assert_eq!(pointed("", 0), "  \n  ^\n");
        let long = format!("{}!{}", "a".repeat(5000), "b".repeat(5000));
        let (a, b) = ("a".repeat(60), "b".repeat(59));
        assert_eq!(pointed(&long, 5000), format!("  …{a}!{b}…\n  {}^\n", " ".repeat(61)));
        assert_eq!(pointed(&long, 10_001).lines().last().map(str::len), Some(2 + 1 + 60 + 1));
    }

    #[test]
    fn a_closed_pipe_is_success_and_a_full_disk_is_not() {
        assert_eq!(write_failed(io::ErrorKind::BrokenPipe.into(), "output").exit_code(), 0);
        let full = write_failed(io::ErrorKind::StorageFull.into(), "output");
        assert_eq!(full.exit_code(), 1);
        assert!(full.chain().starts_with("cannot write to standard output: "));
    }
}
