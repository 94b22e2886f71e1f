//! What of a followed log is printed already, and how what comes next looks.
//! Plain decisions; nothing here waits or writes.

use std::borrow::Cow;

use levers9_wire::quantity::show_memory;
use levers9_wire::v1::{self, LogStream, follow_event};
use serde::Serialize;

use crate::args::Format;
use crate::output::Piece;
use crate::printer::note_line;

/// What one event means.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// Print this, if anything; lines up to this number are then printed.
    Print(Vec<Piece>, u64),
    /// The end.
    Ended(v1::FollowEnded),
    /// The controlplane says no.
    Failed(v1::Failure),
}

/// One line as JSON.
#[derive(Debug, Serialize)]
struct LineView<'a> {
    line: u64,
    unix_ms: u64,
    stream: &'static str,
    /// The bytes as text, newline included; what is not UTF-8 becomes U+FFFD.
    text: Cow<'a, str>,
    #[serde(skip_serializing_if = "is_zero")]
    dropped_records: u64,
    #[serde(skip_serializing_if = "is_zero")]
    dropped_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[derive(Debug)]
pub(super) struct Progress {
    last_line: u64,
    format: Format,
    note: String,
    attempt: u32,
}

impl Progress {
    /// Lines up to `last_line` are not wanted; `note` was shown already.
    pub(super) fn new(last_line: u64, format: Format, note: String) -> Self {
        Self { last_line, format, note, attempt: 0 }
    }

    /// Takes one event.
    pub(super) fn take(&mut self, event: v1::FollowEvent) -> Heard {
        let mut pieces = Vec::new();
        match event.kind {
            Some(follow_event::Kind::Failure(failure)) => return Heard::Failed(failure),
            Some(follow_event::Kind::Ended(ended)) => return Heard::Ended(ended),
            Some(follow_event::Kind::Status(status)) => self.status(status, &mut pieces),
            Some(follow_event::Kind::Lines(lines)) => {
                for line in lines.lines {
                    // A line that comes again after a lost connection is printed once.
                    if line.line > self.last_line {
                        self.last_line = line.line;
                        self.line(&line, &mut pieces);
                    }
                }
            }
            // A kind this build does not know; the rest is still readable.
            None => {}
        }
        Heard::Print(pieces, self.last_line)
    }

    fn status(&mut self, status: v1::FollowStatus, pieces: &mut Vec<Piece>) {
        let restarted = self.attempt > 0 && status.attempt > self.attempt;
        self.attempt = self.attempt.max(status.attempt);
        if status.note != self.note {
            self.note = status.note;
            if !self.note.is_empty() {
                pieces.push(Piece::Note(note_line(&self.note)));
                return;
            }
        }
        if restarted {
            pieces.push(Piece::Note(note_line(&format!("started over, attempt {}", self.attempt))));
        }
    }

    fn line(&self, line: &v1::FollowLine, pieces: &mut Vec<Piece>) {
        if self.format == Format::Json {
            let mut bytes = serde_json::to_vec(&view(line)).unwrap_or_default();
            bytes.push(b'\n');
            return push(pieces, Piece::Out(bytes));
        }
        if line.dropped_records > 0 || line.dropped_bytes > 0 {
            let amount = show_memory(line.dropped_bytes);
            let text = format!(
                "{} lines ({amount}) were written faster than kept and are left out here",
                line.dropped_records
            );
            pieces.push(Piece::Note(note_line(&text)));
        }
        match line.stream() {
            LogStream::Stderr => push(pieces, Piece::Err(line.data.to_vec())),
            LogStream::System if line.data.is_empty() => {}
            LogStream::System => pieces.push(Piece::Note(note_line(&String::from_utf8_lossy(&line.data)))),
            LogStream::Stdout | LogStream::Unspecified => push(pieces, Piece::Out(line.data.to_vec())),
        }
    }
}

/// Adds a piece, to the last one where it goes to the same stream: one write
/// for many lines.
fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    match (pieces.last_mut(), piece) {
        (Some(Piece::Out(last)), Piece::Out(more)) | (Some(Piece::Err(last)), Piece::Err(more)) => {
            last.extend(more)
        }
        (_, piece) => pieces.push(piece),
    }
}

fn view(line: &v1::FollowLine) -> LineView<'_> {
    LineView {
        line: line.line,
        unix_ms: line.unix_ms,
        stream: match line.stream() {
            LogStream::Stderr => "stderr",
            LogStream::System => "system",
            LogStream::Stdout | LogStream::Unspecified => "stdout",
        },
        text: String::from_utf8_lossy(&line.data),
        dropped_records: line.dropped_records,
        dropped_bytes: line.dropped_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: u64, stream: LogStream, data: &str) -> v1::FollowLine {
        v1::FollowLine {
            line: number,
            unix_ms: 7,
            stream: stream.into(),
            data: data.to_owned().into(),
            ..v1::FollowLine::default()
        }
    }

    fn lines(lines: Vec<v1::FollowLine>) -> v1::FollowEvent {
        v1::FollowEvent { kind: Some(follow_event::Kind::Lines(v1::FollowLines { lines })) }
    }

    fn status(note: &str, attempt: u32) -> v1::FollowEvent {
        let status = v1::FollowStatus { note: note.to_owned(), attempt, ..v1::FollowStatus::default() };
        v1::FollowEvent { kind: Some(follow_event::Kind::Status(status)) }
    }

    fn text(note: &str) -> Piece {
        Piece::Note(format!("levers9: {note}"))
    }

    #[test]
    fn a_line_that_comes_again_is_printed_once() {
        let mut progress = Progress::new(0, Format::Text, String::new());
        let first =
            progress.take(lines(vec![line(1, LogStream::Stdout, "a\n"), line(2, LogStream::Stdout, "b\n")]));
        assert_eq!(first, Heard::Print(vec![Piece::Out(b"a\nb\n".to_vec())], 2));
        let again =
            progress.take(lines(vec![line(2, LogStream::Stdout, "b\n"), line(1001, LogStream::Stdout, "c")]));
        assert_eq!(again, Heard::Print(vec![Piece::Out(b"c".to_vec())], 1001));
        assert_eq!(
            progress.take(lines(vec![line(1001, LogStream::Stdout, "c")])),
            Heard::Print(vec![], 1001)
        );
    }

    #[test]
    fn streams_stay_apart_and_in_order() {
        let mut progress = Progress::new(0, Format::Text, String::new());
        let heard = progress.take(lines(vec![
            line(1, LogStream::Stdout, "a\n"),
            line(2, LogStream::Stderr, "b\n"),
            line(3, LogStream::Stdout, "c\n"),
            line(4, LogStream::System, "out of \u{1b}memory\n"),
        ]));
        let pieces = vec![
            Piece::Out(b"a\n".to_vec()),
            Piece::Err(b"b\n".to_vec()),
            Piece::Out(b"c\n".to_vec()),
            text("out of \\u{1b}memory"),
        ];
        assert_eq!(heard, Heard::Print(pieces, 4));
    }

    #[test]
    fn what_was_dropped_is_said() {
        let mut progress = Progress::new(0, Format::Text, String::new());
        let marker =
            v1::FollowLine { dropped_records: 12, dropped_bytes: 2048, ..line(5, LogStream::System, "") };
        let Heard::Print(pieces, 5) = progress.take(lines(vec![marker])) else { panic!("not printed") };
        assert_eq!(pieces, [text("12 lines (2Ki) were written faster than kept and are left out here")]);
    }

    #[test]
    fn a_note_is_shown_once_per_change() {
        let mut progress = Progress::new(0, Format::Text, "waiting".to_owned());
        assert_eq!(progress.take(status("waiting", 0)), Heard::Print(vec![], 0));
        assert_eq!(progress.take(status("", 1)), Heard::Print(vec![], 0));
        assert_eq!(progress.take(status("waiting", 1)), Heard::Print(vec![text("waiting")], 0));
        assert_eq!(progress.take(status("", 2)), Heard::Print(vec![text("started over, attempt 2")], 0));
    }

    #[test]
    fn json_has_one_object_per_line() {
        let mut progress = Progress::new(0, Format::Json, String::new());
        let heard = progress.take(lines(vec![line(1, LogStream::Stderr, "a\"\n")]));
        let expected = "{\"line\":1,\"unix_ms\":7,\"stream\":\"stderr\",\"text\":\"a\\\"\\n\"}\n";
        assert_eq!(heard, Heard::Print(vec![Piece::Out(expected.as_bytes().to_vec())], 1));
    }
}
