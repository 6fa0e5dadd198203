//! A directory that a tier lies in or is to lie in, as `check` and `plan` look at it: once, and without writing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::mount::{self, Mount};
use super::space::{self, Space};
use crate::plain;

/// What can be told of a path without writing to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What is there.
    pub standing: Standing,
    /// Whether this process may create files in it; the engine may run as somebody else. `None` where it is no
    /// directory or the kernel did not say.
    pub writable: Option<bool>,
    /// The mount that it lies on.
    pub mount: Option<Mount>,
    /// Room of the file system.
    pub room: Option<Room>,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A directory, perhaps through symbolic links.
    Directory,
    /// Something that no files can be put in.
    NotADirectory,
    /// Nothing; mount and room are those of the nearest directory above it.
    Missing,
    /// Nobody knows; the error is the kernel's.
    Unknown(String),
}

/// Room of a file system. What it does not count is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its size in bytes.
    pub size: Option<u64>,
    /// Bytes that an ordinary user may still take.
    pub available: Option<u64>,
    /// Files that it can hold.
    pub inodes: Option<u64>,
    /// Files that it can still take.
    pub inodes_free: Option<u64>,
}

/// Looks at a path. `procfs` names the process file system. Blocks for as long as a dead network mount likes.
pub fn place(path: &Path, procfs: &Path) -> Place {
    let standing = standing(fs::metadata(path).map(|meta| meta.is_dir()));
    let above = match standing {
        Standing::Missing => nearest(path),
        _ => path.to_owned(),
    };
    let writable = match standing {
        Standing::Directory => writable(rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK)),
        _ => None,
    };
    Place { standing, writable, mount: mount::read(procfs, &above).ok(), room: space::read(&above).ok().map(room) }
}

fn standing(is_directory: io::Result<bool>) -> Standing {
    match is_directory {
        Ok(true) => Standing::Directory,
        Ok(false) => Standing::NotADirectory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Standing::Missing,
        Err(error) => Standing::Unknown(plain::io(&error)),
    }
}

/// A refusal is an answer; any other error is none.
fn writable(access: rustix::io::Result<()>) -> Option<bool> {
    use rustix::io::Errno;
    match access {
        Ok(()) => Some(true),
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Some(false),
        Err(_) => None,
    }
}

/// The nearest path above that is there.
fn nearest(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/")).to_owned()
}

fn room(space: Space) -> Room {
    let Space { size, available, inodes, inodes_free, .. } = space;
    Room { size, available, inodes, inodes_free }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::process::Command;

    #[test]
    fn what_is_there_is_told_apart() {
        let failed = |kind: io::ErrorKind| standing(Err(io::Error::from(kind)));
        assert_eq!(standing(Ok(true)), Standing::Directory);
        assert_eq!(standing(Ok(false)), Standing::NotADirectory);
        assert_eq!(failed(io::ErrorKind::NotFound), Standing::Missing);
        assert!(matches!(failed(io::ErrorKind::PermissionDenied), Standing::Unknown(why) if why.contains("denied")));
    }

    #[test]
    fn only_a_clear_answer_says_whether_it_can_be_written() {
        assert_eq!(writable(Ok(())), Some(true));
        for refusal in [Errno::ACCESS, Errno::PERM, Errno::ROFS] {
            assert_eq!(writable(Err(refusal)), Some(false));
        }
        assert_eq!(writable(Err(Errno::IO)), None);
    }

    #[test]
    fn a_directory_is_described_and_a_missing_one_by_what_lies_above() {
        let root = tempfile::tempdir().unwrap();
        let proc = Path::new("/proc");
        let here = place(root.path(), proc);
        assert_eq!((&here.standing, here.writable), (&Standing::Directory, Some(true)));
        let room = here.room.unwrap();
        let stat = Command::new("stat").args(["-f", "-c", "%S %b %c"]).arg(root.path()).output().expect("stat");
        let text = String::from_utf8(stat.stdout).unwrap();
        let figures: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!((room.size, room.inodes.unwrap_or(0)), (Some(figures[0] * figures[1]), figures[2]));
        let missing = place(&root.path().join("not/yet"), proc);
        assert_eq!((&missing.standing, missing.writable), (&Standing::Missing, None));
        assert_eq!((&missing.mount, missing.room.unwrap().size), (&here.mount, room.size));
        assert!(here.mount.is_some());
        fs::write(root.path().join("file"), "x").unwrap();
        let file = place(&root.path().join("file"), proc);
        assert_eq!((&file.standing, file.writable), (&Standing::NotADirectory, None));
    }
}
