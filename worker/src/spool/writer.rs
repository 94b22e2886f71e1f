//! The one writer of a log. It never stops for a disk that is full or
//! broken: what cannot be written is counted, and the next record that can
//! be says so. Blocks on the disk; belongs on a thread of its own.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;

use levers9_wire::{clock, limits, v1};

use super::chunk::{self, Chunk};
use super::{Shared, State, delete};

/// Records are written out when this much waits, in bytes.
const BATCH: usize = 256 * 1024;

/// Records that could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lost {
    records: u64,
    bytes: u64,
}

/// Appends records to one log.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    /// The newest chunk's file, when it can take more.
    file: Option<File>,
    /// Records not written out yet, as they will stand in the file.
    batch: Vec<u8>,
    batch_records: u64,
    batch_data: u64,
    /// What could not be written since the last record that could.
    lost: Option<Lost>,
    ended: bool,
}

/// However the writer goes, readers learn that no record follows.
impl Drop for Writer {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (batch, batch_records, batch_data) = (Vec::new(), 0, 0);
        Self { shared, file: None, batch, batch_records, batch_data, lost: None, ended: false }
    }

    /// Takes one record of at most [`limits::LOG_PIECE`] bytes; a longer one
    /// is cut. Readers see it after the next [`Self::flush`].
    pub fn put(&mut self, stream: v1::LogStream, unix_ms: u64, data: &[u8]) {
        for piece in data.chunks(limits::LOG_PIECE) {
            chunk::encode(stream, unix_ms, piece, &mut self.batch);
            self.batch_records += 1;
            self.batch_data += piece.len() as u64;
            if self.batch.len() >= BATCH {
                self.flush();
            }
        }
    }

    /// Writes out what was put, and wakes readers.
    pub fn flush(&mut self) {
        if self.batch_records == 0 {
            return;
        }
        let written = self.write_batch();
        if let Err(error) = &written {
            if self.lost.is_none() {
                tracing::warn!(folder = %self.shared.folder.display(), %error, "cannot write the log; counting what is lost");
            }
            self.file = None;
            let before = self.lost.unwrap_or(Lost { records: 0, bytes: 0 });
            let (records, bytes) = (before.records + self.batch_records, before.bytes + self.batch_data);
            self.lost = Some(Lost { records, bytes });
        }
        let gone = self.account(written.is_ok());
        gone.iter().for_each(|path| delete(path));
        self.batch.clear();
        self.batch.shrink_to(2 * BATCH);
        (self.batch_records, self.batch_data) = (0, 0);
    }

    fn write_batch(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let first = self.shared.lock().progress.next_index;
                let path = self.shared.path(first);
                self.file.insert(OpenOptions::new().write(true).create(true).truncate(true).open(path)?)
            }
        };
        // After a failure the file is left alone: readers stop where the last
        // good record ended.
        file.write_all(&self.batch)
    }

    /// Brings the shared state up to what was just written or lost.
    fn account(&mut self, written: bool) -> Vec<std::path::PathBuf> {
        let mut state = self.shared.lock();
        let mut gone = Vec::new();
        if written {
            let lost = self.lost.take();
            let next = state.progress.next_index;
            let chunk = open_chunk(&mut state, next, lost);
            chunk.grow(self.batch_records, self.batch.len() as u64, self.batch_data);
            if chunk.file_bytes >= self.shared.limits.chunk {
                chunk.sealed = true;
                self.file = None;
            }
            gone = self.shared.trim(&mut state);
        } else {
            if let Some(last) = state.chunks.back_mut() {
                last.sealed = true;
            }
            // A file that was begun for this batch belongs to no chunk.
            let begun = state.progress.next_index;
            if state.chunks.back().is_none_or(|chunk| chunk.first != begun) {
                gone.push(self.shared.path(begun));
            }
        }
        state.progress.next_index += self.batch_records;
        let progress = state.progress;
        drop(state);
        self.shared.progress.send_replace(progress);
        gone
    }

    /// Ends the log and returns how many records it has in all. Records that
    /// were lost at its very end are told of in one more. Dropping the writer
    /// does the same.
    pub fn end(mut self) -> u64 {
        self.finish()
    }

    fn finish(&mut self) -> u64 {
        if self.ended {
            return self.shared.lock().progress.next_index;
        }
        self.ended = true;
        self.flush();
        let unix_ms = clock::unix_millis();
        if self.lost.is_some() {
            self.put(v1::LogStream::System, unix_ms, b"the end of the log could not be stored\n");
            self.flush();
        }
        let mut state = self.shared.lock();
        if let Some(lost) = self.lost {
            keep_last_words(&mut state, lost, unix_ms);
        }
        if let Some(last) = state.chunks.back_mut() {
            last.sealed = true;
        }
        state.progress.ended = true;
        let progress = state.progress;
        drop(state);
        self.shared.progress.send_replace(progress);
        progress.next_index
    }
}

/// The disk does not even take one record: keep it in memory.
fn keep_last_words(state: &mut State, lost: Lost, unix_ms: u64) {
    let words = format!("the end of the log could not be stored: {} records are lost\n", lost.records);
    let mut chunk = Chunk::new(state.progress.next_index, Some(lost.bytes));
    let mut bytes = Vec::new();
    chunk::encode(v1::LogStream::System, unix_ms, words.as_bytes(), &mut bytes);
    chunk.grow(1, bytes.len() as u64, words.len() as u64);
    chunk.in_memory = Some(bytes);
    state.chunks.push_back(chunk);
    state.progress.next_index += 1;
}

/// The chunk that grows; a new one when there is none or something was lost.
fn open_chunk(state: &mut State, next: u64, lost: Option<Lost>) -> &mut Chunk {
    let fits = state.chunks.back().is_some_and(|chunk| !chunk.sealed && chunk.end() == next);
    if !fits {
        state.chunks.push_back(Chunk::new(next, lost.map(|lost| lost.bytes)));
    }
    let last = state.chunks.len() - 1;
    &mut state.chunks[last]
}
