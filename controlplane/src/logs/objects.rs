//! Where segments are kept: a folder now, an object store later, behind the
//! same few calls. An object is written whole or not at all and never changed.

use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use levers9_wire::frame::{self, Decoder};
use levers9_wire::limits;
use levers9_wire::v1::LogRecord;

/// Objects in a folder.
#[derive(Debug, Clone)]
pub struct Objects {
    folder: PathBuf,
}

impl Objects {
    /// Objects below a folder, which is made when needed.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn path(&self, key: &str) -> io::Result<PathBuf> {
        let key = Path::new(key);
        // Keys are made here, but they come back from a database.
        if key.components().all(|part| matches!(part, Component::Normal(_))) {
            Ok(self.folder.join(key))
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "an object's key leads out of its folder"))
        }
    }

    /// Writes an object. Durable when it returns.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub async fn put(&self, key: &str, bytes: Bytes) -> io::Result<()> {
        let path = self.path(key)?;
        blocking(move || {
            let folder = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)?;
            let file = tempfile::NamedTempFile::new_in(folder).map_err(|error| nameless(&error))?;
            file.as_file().write_all(&bytes)?;
            file.as_file().sync_data()?;
            file.persist(&path).map_err(|error| error.error)?;
            std::fs::File::open(folder)?.sync_all()
        })
        .await
    }

    /// Reads an object.
    ///
    /// # Errors
    /// When it is not there or cannot be read.
    pub async fn get(&self, key: &str) -> io::Result<Vec<u8>> {
        let path = self.path(key)?;
        blocking(move || std::fs::read(path)).await
    }

    /// Removes an object; one that is not there is fine.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub async fn delete(&self, key: &str) -> io::Result<()> {
        let path = self.path(key)?;
        blocking(move || match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|ended| Err(io::Error::other(ended)))
}

/// A segment's bytes: its records as frames.
///
/// # Errors
/// When a record is larger than any that can have come in.
pub fn encode(records: &[LogRecord]) -> Result<Bytes, frame::BadFrame> {
    let mut bytes = bytes::BytesMut::new();
    for record in records {
        frame::encode(record, limits::FRAME, &mut bytes)?;
    }
    Ok(bytes.freeze())
}

/// The records of a segment's bytes.
///
/// # Errors
/// When they are not a segment's.
pub fn decode(bytes: &[u8]) -> Result<Vec<LogRecord>, frame::BadFrame> {
    let mut decoder = Decoder::new();
    decoder.feed(bytes);
    let mut records = Vec::new();
    while let Some(record) = decoder.next(limits::FRAME)? {
        records.push(record);
    }
    decoder.finish()?;
    Ok(records)
}

/// What went wrong with a temporary file. Its name is made up anew each time
/// and would make one trouble look like many.
fn nameless(error: &io::Error) -> io::Error {
    let below = error.get_ref().and_then(std::error::Error::source);
    let number = below.and_then(|below| below.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    number.map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_put_can_be_got_and_nothing_outside_the_folder_reached() {
        let folder = tempfile::tempdir().unwrap();
        let objects = Objects::new(folder.path().join("logs"));
        let records = vec![LogRecord { index: 3, data: vec![0, 255, 10].into(), ..LogRecord::default() }];
        objects.put("a/b", encode(&records).unwrap()).await.unwrap();
        assert_eq!(decode(&objects.get("a/b").await.unwrap()).unwrap(), records);
        objects.delete("a/b").await.unwrap();
        objects.delete("a/b").await.unwrap();
        assert!(objects.get("a/b").await.is_err());
        for outside in ["../x", "/etc/passwd", "a/../../x", "./a"] {
            assert!(objects.get(outside).await.is_err(), "{outside}");
        }
    }
}
