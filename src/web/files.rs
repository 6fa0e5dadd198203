//! Files that may change while we run: remembered by how they looked, so that a change is seen without reading a private
//! key again and again.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::files;

/// Far more than any configuration, key or chain.
const LARGEST: u64 = 1 << 20;

/// What was read, and how it looked just before.
#[derive(Debug, Default)]
pub(super) struct Files(Vec<(PathBuf, Option<Stamp>)>);

/// Device, inode, size, and when content and inode changed. A link is followed: replacing what it points to is
/// how Kubernetes swaps a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(u64, u64, u64, [i64; 4]);

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let facts = fs::metadata(path).ok()?;
        let times = [facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec()];
        Some(Stamp(facts.dev(), facts.ino(), facts.size(), times))
    }
}

impl Files {
    /// Reads a file of usual size and remembers how it looked, also where it cannot be read.
    pub(super) fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        // Before reading: a change in between is then seen as one.
        self.0.push((path.to_owned(), Stamp::of(path)));
        files::read(path, LARGEST)
    }

    /// Whether any of them looks different now.
    pub(super) fn changed(&self) -> bool {
        self.0.iter().any(|(path, stamp)| Stamp::of(path) != *stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_and_an_untouched_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (file, later) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&file, "one").unwrap();
        let mut files = Files::default();
        assert_eq!(files.read(&file).unwrap(), b"one");
        assert!(files.read(&later).is_err());
        assert!(!files.changed());
        fs::write(&later, "").unwrap();
        assert!(files.changed(), "a file that was missing came");

        let mut files = Files::default();
        files.read(&file).unwrap();
        fs::write(folder.path().join("new"), "one").unwrap();
        fs::rename(folder.path().join("new"), &file).unwrap();
        assert!(files.changed(), "same size, another inode");
    }
}
