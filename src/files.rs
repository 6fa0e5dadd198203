//! Files that others write while this program runs: read with a bound, and beside the thread that answers everybody.
//!
//! A mount may hang, a pipe may have no writer, and what should hold a token may hold a gigabyte. So a file is read up to a
//! bound, on a thread of its own ([`crate::aside`]), for which nobody waits longer than [`PATIENCE`].

use std::io::Read;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

/// The longest that a fetch waits for a file, so that most of its time is left for the upstream.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The longest that the start waits for its files.
pub const PATIENCE_AT_START: Duration = Duration::from_secs(5);

/// Reads a regular file of at most `limit` bytes, as one that is read again and again has to be. It may block for as long
/// as the file system does: see [`crate::aside`].
///
/// # Errors
/// That of the system, or what else keeps the file from being read.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for its writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    read_once(path, limit)
}

/// Reads at most `limit` bytes of whatever there is, also of a pipe, which gives what is in it only once and may block until
/// somebody writes.
///
/// # Errors
/// As [`read`].
pub fn read_once(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Not its size first: a file of /proc has none, and any other may grow.
    fs::File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it is larger than {} KiB", limit >> 10)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_usual_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, vec![0; 2048]).unwrap();
        assert_eq!(read(&file, 2048).unwrap().len(), 2048);
        assert_eq!(read(&file, 1024).unwrap_err().to_string(), "it is larger than 1 KiB");
        assert_eq!(read(folder.path(), 1024).unwrap_err().to_string(), "it is no regular file");
        assert!(read(Path::new("/dev/null"), 1024).is_err());
        assert!(read_once(Path::new("/dev/zero"), 1024).is_err(), "it has no end");
        // No size is stated for it, and it has a content.
        assert!(!read(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
    }
}
