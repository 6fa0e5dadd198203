//! The room of a mounted file system, as statvfs tells it.

use std::io;
use std::path::Path;

use rustix::fs::{StatVfs, statfs, statvfs};

/// What statfs answers as the type of a tmpfs.
const TMPFS_MAGIC: i128 = 0x0102_1994;

/// Reads the room at a path. A field of the collectors, so that a test can stand in for a file system that
/// is full, odd or dead.
pub(super) type Reader = Box<dyn Fn(&Path) -> io::Result<Space> + Send>;

/// Room of a file system, in bytes and inodes; what it does not count is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) size: Option<u64>,
    pub(super) used: Option<u64>,
    /// What an ordinary user may still take.
    pub(super) available: Option<u64>,
    pub(super) inodes: Option<u64>,
    pub(super) inodes_free: Option<u64>,
    pub(super) is_tmpfs: bool,
}

/// Asks the kernel. Blocks for as long as a dead network mount likes.
pub(super) fn read(path: &Path) -> io::Result<Space> {
    let kind = i128::from(statfs(path)?.f_type);
    Ok(understand(&statvfs(path)?, kind == TMPFS_MAGIC))
}

/// A tmpfs without a size limit says 0 blocks, and some file systems have no fixed number of inodes and say 0:
/// both mean "not counted".
fn understand(stat: &StatVfs, is_tmpfs: bool) -> Space {
    let bytes = |blocks: u64| (stat.f_blocks > 0).then(|| blocks.saturating_mul(stat.f_frsize));
    let inodes = |number: u64| (stat.f_files > 0).then_some(number);
    Space {
        size: bytes(stat.f_blocks),
        used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        available: bytes(stat.f_bavail),
        inodes: inodes(stat.f_files),
        inodes_free: inodes(stat.f_ffree),
        is_tmpfs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(f_blocks: u64, f_bfree: u64, f_bavail: u64, f_files: u64) -> StatVfs {
        StatVfs { f_frsize: 4096, f_bsize: 65536, f_blocks, f_bfree, f_bavail, f_files, f_ffree: 7, ..read_root() }
    }

    fn read_root() -> StatVfs {
        statvfs("/").unwrap()
    }

    #[test]
    fn sizes_count_fragments_not_preferred_blocks() {
        // 100 × 4096, (100 − 30) × 4096, 25 × 4096
        let space = understand(&stat(100, 30, 25, 50), true);
        assert_eq!((space.size, space.used, space.available), (Some(409_600), Some(286_720), Some(102_400)));
        assert_eq!((space.inodes, space.inodes_free, space.is_tmpfs), (Some(50), Some(7), true));
    }

    #[test]
    fn an_unlimited_tmpfs_has_no_size_and_a_file_system_without_inode_table_no_inodes() {
        assert_eq!(understand(&stat(0, 0, 0, 0), false), Space::default());
    }

    #[test]
    fn the_kernel_answers_for_a_directory_and_refuses_a_missing_one() {
        let root = tempfile::tempdir().unwrap();
        let space = read(root.path()).unwrap();
        assert!(space.size >= space.available && space.available > Some(0), "{space:?}");
        assert_eq!(read(&root.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
