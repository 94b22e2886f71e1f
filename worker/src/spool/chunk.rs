//! One chunk of a log: a file of records that follow each other without a
//! gap, or the last words of a log whose disk is full, in memory. A record is
//! its data's length (4 bytes), its stream (1), its time (8), its data, which
//! is never empty; numbers are little-endian. The index is not stored: it is
//! the chunk's first plus the position.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use levers9_wire::{limits, v1};

use super::RECORD_COST;

/// Bytes before a record's data.
const HEADER: usize = 13;
/// Distance between two marks, in bytes.
const MARK_EVERY: u64 = 64 * 1024;

/// A stretch of records that were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    /// The index after its last record.
    pub(super) end: u64,
    /// How many bytes of data it held.
    pub(super) bytes: u64,
}

/// What is known of one chunk without opening its file.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The index of its first record; also its file's name.
    pub(super) first: u64,
    /// How many records it holds.
    pub(super) records: u64,
    /// How long its file is.
    pub(super) file_bytes: u64,
    /// How many of these are data.
    pub(super) data_bytes: u64,
    /// What was left out between the chunk before it and its first record, in
    /// order and without holes.
    pub(super) gaps: Vec<Gap>,
    /// It will not grow any more.
    pub(super) sealed: bool,
    /// Index and offset of some records, so that a reader need not start at
    /// the first.
    pub(super) marks: Vec<(u64, u64)>,
    /// The records themselves when they are not in a file.
    pub(super) in_memory: Option<Vec<u8>>,
}

impl Chunk {
    pub(super) fn new(first: u64, lost_bytes: Option<u64>) -> Self {
        let (records, file_bytes, data_bytes) = (0, 0, 0);
        let marks = vec![(first, 0)];
        let gaps = lost_bytes.map(|bytes| Gap { end: first, bytes }).into_iter().collect();
        Self { first, records, file_bytes, data_bytes, gaps, sealed: false, marks, in_memory: None }
    }

    /// A chunk whose writer is gone: the whole records its file begins with,
    /// `most` at most. What follows is the rest of a write that failed or was
    /// cut short.
    pub(super) fn scan(first: u64, path: &Path, most: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut from = BufReader::with_capacity(64 * 1024, file);
        let mut chunk = Self::new(first, None);
        chunk.sealed = true;
        while chunk.records < most {
            let data = match read_header(&mut from) {
                Ok((data, ..)) => data,
                Err(error) if is_no_record(&error) => break,
                Err(error) => return Err(error),
            };
            let whole = (HEADER + data) as u64;
            if chunk.file_bytes + whole > length {
                break;
            }
            from.seek_relative(i64::try_from(data).unwrap_or(i64::MAX))?;
            chunk.grow(1, whole, data as u64);
        }
        Ok(chunk)
    }

    /// The index after its last record.
    pub(super) fn end(&self) -> u64 {
        self.first + self.records
    }

    /// Takes note of records written to its file.
    pub(super) fn grow(&mut self, records: u64, file_bytes: u64, data_bytes: u64) {
        if self.file_bytes >= self.marks.last().map_or(0, |(_, offset)| offset + MARK_EVERY) {
            self.marks.push((self.end(), self.file_bytes));
        }
        self.records += records;
        self.file_bytes += file_bytes;
        self.data_bytes += data_bytes;
    }

    /// Takes over what was left out before a chunk that is dropped, and the
    /// chunk itself. Gaps are joined except where the newest reader stands: it
    /// must not be told of bytes that it has.
    pub(super) fn succeed(&mut self, dropped: Self, served: u64) {
        let own = Gap { end: dropped.end(), bytes: dropped.data_bytes };
        let mut gaps = dropped.gaps;
        gaps.push(own);
        gaps.append(&mut self.gaps);
        gaps.dedup_by(|later, earlier| {
            let join = earlier.end != served;
            if join {
                *earlier = Gap { end: later.end, bytes: earlier.bytes + later.bytes };
            }
            join
        });
        self.gaps = gaps;
    }

    /// What a reader needs to know to read from an index on without the lock.
    pub(super) fn part(&self, index: u64) -> Part {
        let after = self.marks.partition_point(|(marked, _)| *marked <= index);
        let (from, offset) = self.marks[after.saturating_sub(1)];
        Part {
            first: self.first,
            from,
            offset,
            end: self.end(),
            dropped_bytes: self.gaps.iter().filter(|gap| gap.end > index).map(|gap| gap.bytes).sum(),
            in_memory: self.in_memory.clone(),
        }
    }
}

/// A stretch of a chunk to be read.
#[derive(Debug)]
pub(super) struct Part {
    /// Which chunk.
    pub(super) first: u64,
    /// Bytes left out between the index asked for and the chunk.
    pub(super) dropped_bytes: u64,
    from: u64,
    offset: u64,
    end: u64,
    in_memory: Option<Vec<u8>>,
}

impl Part {
    /// Reads records from `next` on while there is `room`; the very first
    /// record of an answer is read in any case. `room` is 0 when it was the
    /// reason to stop.
    pub(super) fn read(
        &self,
        path: &Path,
        next: u64,
        room: &mut usize,
        one_at_least: bool,
        records: &mut Vec<v1::LogRecord>,
    ) -> io::Result<()> {
        match &self.in_memory {
            Some(bytes) => self.take(io::Cursor::new(bytes), next, room, one_at_least, records),
            None => {
                let mut file = BufReader::with_capacity(64 * 1024, File::open(path)?);
                file.seek(SeekFrom::Start(self.offset))?;
                self.take(file, next, room, one_at_least, records)
            }
        }
    }

    fn take(
        &self,
        mut from: impl Read,
        next: u64,
        room: &mut usize,
        mut one_at_least: bool,
        records: &mut Vec<v1::LogRecord>,
    ) -> io::Result<()> {
        for index in self.from..self.end {
            let (length, stream, unix_ms) = read_header(&mut from)?;
            if index < next {
                io::copy(&mut (&mut from).take(length as u64), &mut io::sink())?;
                continue;
            }
            let cost = length + RECORD_COST;
            if cost > *room && !one_at_least {
                *room = 0;
                return Ok(());
            }
            one_at_least = false;
            *room = room.saturating_sub(cost);
            let mut data = vec![0; length];
            from.read_exact(&mut data)?;
            records.push(v1::LogRecord { index, unix_ms, stream, data: data.into(), ..Default::default() });
            if *room == 0 {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn read_header(from: &mut impl Read) -> io::Result<(usize, i32, u64)> {
    let mut header = [0; HEADER];
    from.read_exact(&mut header)?;
    let [l0, l1, l2, l3, stream, time @ ..] = header;
    let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
    if length == 0 || length > limits::LOG_PIECE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a record of {length} bytes")));
    }
    Ok((length, i32::from(stream), u64::from_le_bytes(time)))
}

/// Whether an error of [`read_header`] means that the file's records end there.
fn is_no_record(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
}

/// Appends one record as it stands in a chunk.
pub(super) fn encode(stream: v1::LogStream, unix_ms: u64, data: &[u8], to: &mut Vec<u8>) {
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    to.extend_from_slice(&length.to_le_bytes());
    to.push(u8::try_from(stream as i32).unwrap_or(0));
    to.extend_from_slice(&unix_ms.to_le_bytes());
    to.extend_from_slice(data);
}
