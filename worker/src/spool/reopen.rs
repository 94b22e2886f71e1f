//! Finds the chunks of a log whose writer is gone, from the names and the
//! structure of its files. Blocks on the disk.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use super::chunk::Chunk;
use super::{first_of, path_of};

/// The chunks in a folder that hold a record, oldest first.
pub(super) fn chunks(folder: &Path) -> io::Result<VecDeque<Chunk>> {
    let mut firsts = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        firsts.extend(first_of(&entry?.file_name()));
    }
    firsts.sort_unstable();
    let mut chunks = VecDeque::new();
    for (at, first) in firsts.iter().copied().enumerate() {
        // A failed write may have left more than was counted.
        let most = firsts.get(at + 1).copied().unwrap_or(u64::MAX) - first;
        let chunk = Chunk::scan(first, &path_of(folder, first), most)?;
        if chunk.end() > first {
            chunks.push_back(chunk);
        }
    }
    Ok(chunks)
}
