//! A walk through a directory tree that can be left after any entry and taken up again.
//!
//! It holds one open directory a level and no list of names, so its memory is bounded by the depth of the tree,
//! however many files lie in it. Directories are opened from their parent and never through a symbolic link, so
//! the walk cannot be led out of the tree. While it is under way the open directories keep the file system
//! busy: it cannot be unmounted.
//!
//! How often and how much is walked is decided in `scan`.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, statat};
use rustix::io::Errno;

use crate::plain;

/// Opens a directory by its name in another one. A field of the walk, so that a test can stand in for a
/// directory that may not be read, which no permission keeps from root.
pub(super) type Opener = fn(BorrowedFd<'_>, &CStr) -> rustix::io::Result<OwnedFd>;

/// Asks the kernel.
pub(super) fn open(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Deeper levels are not entered: each costs an open file.
const DEEPEST: usize = 64;

/// Files with several names that are remembered to be counted once.
const MOST_LINKED: usize = 100_000;

/// Seconds after which a `*.tmp` file that nobody wrote to counts as left behind.
const LEFT_BEHIND_AFTER: i64 = 3600;

/// `st_blocks` counts these, whatever the block size of the file system is.
const BLOCK_BYTES: u64 = 512;

/// What a walk has come across so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Bytes that the files hold on disk.
    pub(super) bytes: u64,
    pub(super) files: u64,
    /// Files and directories that could not be looked at.
    pub(super) unreadable: u64,
    /// The first of them, and why.
    pub(super) first_unreadable: Option<String>,
    pub(super) remarks: BTreeSet<Remark>,
}

/// What the figures do not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Remark {
    /// There are `*.tmp` files that are no write under way.
    LeftBehind,
    /// Another file system is mounted below.
    OtherFileSystem,
    /// Too many files with several names to count each once.
    ManyLinked,
}

/// A walk under way.
pub(super) struct Walk {
    device: u64,
    levels: Vec<Level>,
    linked: HashSet<(u64, u64)>,
    /// In seconds since 1970, like the times of the files.
    begun: i64,
    opener: Opener,
    found: Found,
}

struct Level {
    path: PathBuf,
    dir: Dir,
}

impl Walk {
    /// Opens the root of the tree; a symbolic link is followed here, and only here.
    pub(super) fn begin(root: &Path, opener: Opener) -> io::Result<Walk> {
        let dir = Dir::new(rustix::fs::open(root, DIRECTORY, Mode::empty())?)?;
        Ok(Walk {
            device: dir.stat()?.st_dev,
            levels: vec![Level { path: root.to_owned(), dir }],
            linked: HashSet::new(),
            begun: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64),
            opener,
            found: Found::default(),
        })
    }

    /// Looks at entries for as long as there is a next one and `may_go_on` agrees to it. True once all were seen.
    pub(super) fn advance(&mut self, mut may_go_on: impl FnMut() -> bool) -> bool {
        while let Some(level) = self.levels.last_mut() {
            match level.dir.next() {
                Some(Ok(entry)) if matches!(entry.file_name().to_bytes(), b"." | b"..") => continue,
                Some(Ok(entry)) => self.look_at(entry.file_name()),
                Some(Err(error)) => {
                    let path = level.path.clone();
                    self.levels.pop();
                    self.missed(&path, plain::io(&error.into()));
                }
                None => {
                    self.levels.pop();
                    continue;
                }
            }
            if !may_go_on() {
                return false;
            }
        }
        true
    }

    /// Files counted so far.
    #[cfg(test)]
    pub(super) fn files(&self) -> u64 {
        self.found.files
    }

    /// What was found, so far or in the end.
    pub(super) fn into_found(self) -> Found {
        self.found
    }

    fn look_at(&mut self, name: &CStr) {
        let Some(level) = self.levels.last() else { return };
        match look(level, name, self.opener, self.device) {
            Ok(Entry::File(stat)) => self.count(name, &stat),
            Ok(Entry::Directory(_)) if self.levels.len() == DEEPEST => {
                let path = join(&level.path, name);
                self.missed(&path, format_args!("more than {DEEPEST} levels deep"));
            }
            Ok(Entry::Directory(dir)) => self.levels.push(Level { path: join(&level.path, name), dir }),
            Ok(Entry::OtherFileSystem) => {
                self.found.remarks.insert(Remark::OtherFileSystem);
            }
            // Gone since it was listed, or something else by now.
            Ok(Entry::Other) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => {
                let path = join(&level.path, name);
                self.missed(&path, plain::io(&error.into()));
            }
        }
    }

    fn count(&mut self, name: &CStr, stat: &Stat) {
        if name.to_bytes().ends_with(b".tmp") {
            if stat.st_mtime < self.begun - LEFT_BEHIND_AFTER {
                self.found.remarks.insert(Remark::LeftBehind);
            }
        } else if stat.st_nlink == 1 || self.is_new((stat.st_dev, stat.st_ino)) {
            let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
            self.found.bytes = self.found.bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES));
            self.found.files += 1;
        }
    }

    /// Whether a file with several names was not counted under another one.
    fn is_new(&mut self, file: (u64, u64)) -> bool {
        if self.linked.len() < MOST_LINKED {
            return self.linked.insert(file);
        }
        self.found.remarks.insert(Remark::ManyLinked);
        !self.linked.contains(&file)
    }

    fn missed(&mut self, path: &Path, why: impl fmt::Display) {
        self.found.unreadable += 1;
        self.found.first_unreadable.get_or_insert_with(|| format!("{}: {why}", path.display()));
    }
}

/// What a name in a directory stands for.
enum Entry {
    File(Stat),
    Directory(Dir),
    /// The root of a file system that is mounted there.
    OtherFileSystem,
    /// A symbolic link, a socket and the like: nothing to count.
    Other,
}

fn look(level: &Level, name: &CStr, opener: Opener, device: u64) -> rustix::io::Result<Entry> {
    let parent = level.dir.fd()?;
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Entry::File(stat),
        FileType::Directory if stat.st_dev != device => Entry::OtherFileSystem,
        FileType::Directory => Entry::Directory(Dir::new(opener(parent, name)?)?),
        _ => Entry::Other,
    })
}

fn join(dir: &Path, name: &CStr) -> PathBuf {
    dir.join(OsStr::from_bytes(name.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::process::Command;
    use std::time::Duration;

    fn budget(entries: usize) -> impl FnMut() -> bool {
        let mut left = entries;
        move || {
            left -= 1;
            left > 0
        }
    }

    /// The whole tree in one go.
    fn whole(root: &Path, opener: Opener) -> Found {
        let mut walk = Walk::begin(root, opener).unwrap();
        assert!(walk.advance(|| true));
        walk.into_found()
    }

    fn tree(files: &[(&str, usize)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![7; *bytes]).unwrap();
        }
        root
    }

    /// Bytes on disk of all files but `*.tmp`, as the coreutils count them.
    fn du(root: &Path) -> u64 {
        let list = r#"find "$0" -type f ! -name '*.tmp' -print0 | du -cB1 --files0-from=-"#;
        let out = Command::new("sh").args(["-c", list]).arg(root).output().expect("sh, find and GNU du");
        let text = String::from_utf8(out.stdout).unwrap();
        let total = text.lines().find_map(|line| line.strip_suffix("\ttotal")).expect("a total");
        total.parse().unwrap()
    }

    #[test]
    fn bytes_are_those_that_du_counts() {
        let root = tree(&[("m_1a_r0/abc/de_g0/f.bin", 1 << 20), ("a.pt", 5000), ("b.pt", 1), ("empty.pt", 0)]);
        let sparse = File::create(root.path().join("disk.rank_0")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[7; 65_536], 1 << 29).unwrap();
        fs::hard_link(root.path().join("a.pt"), root.path().join("m_1a_r0/again.pt")).unwrap();
        fs::write(root.path().join("c.tmp"), [7; 9000]).unwrap();
        // What a file holds may change when it is written out.
        for name in ["m_1a_r0/abc/de_g0/f.bin", "a.pt", "b.pt", "disk.rank_0"] {
            File::open(root.path().join(name)).unwrap().sync_all().unwrap();
        }
        let found = whole(root.path(), open);
        let expected = du(root.path());
        assert!((1 << 20..1 << 24).contains(&expected), "a sparse file counts what was written: {expected}");
        // f.bin, a.pt under one of its names, b.pt, empty.pt and the sparse one
        assert_eq!((found.bytes, found.files, found.unreadable), (expected, 5, 0));
    }

    #[test]
    fn more_files_with_several_names_than_are_remembered_are_said() {
        let root = tree(&[("a.pt", 1)]);
        fs::hard_link(root.path().join("a.pt"), root.path().join("b.pt")).unwrap();
        let mut walk = Walk::begin(root.path(), open).unwrap();
        walk.linked = (0..MOST_LINKED as u64).map(|inode| (u64::MAX, inode)).collect();
        assert!(walk.advance(|| true));
        assert_eq!((walk.found.files, walk.found.remarks), (2, BTreeSet::from([Remark::ManyLinked])));
        assert_eq!(walk.linked.len(), MOST_LINKED);
    }

    #[test]
    fn a_symbolic_link_leads_nowhere() {
        let root = tree(&[("a.pt", 4096)]);
        for (target, name) in [("/", "root"), (".", "round"), ("a.pt", "file"), ("/none", "broken")] {
            std::os::unix::fs::symlink(target, root.path().join(name)).unwrap();
        }
        let found = whole(root.path(), open);
        assert_eq!((found.files, found.unreadable, found.bytes), (1, 0, du(root.path())));
        let here = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(root.path(), here.path().join("tier")).unwrap();
        assert_eq!(whole(&here.path().join("tier"), open), found, "the root itself may be one");
    }

    #[test]
    fn a_walk_stops_after_any_entry_and_goes_on_from_there() {
        let root = tree(&[("1", 1), ("2", 1), ("3", 1), ("4", 1), ("5", 1), ("6", 1), ("7", 1)]);
        let mut walk = Walk::begin(root.path(), open).unwrap();
        let seen: Vec<_> = (0..3).map(|_| (walk.advance(budget(3)), walk.found.files)).collect();
        assert_eq!(seen, [(false, 3), (false, 6), (true, 7)]);
    }

    #[test]
    fn what_vanishes_on_the_way_is_no_error() {
        let names: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        let root = tree(&names.iter().map(|name| (name.as_str(), 1)).collect::<Vec<_>>());
        let mut walk = Walk::begin(root.path(), open).unwrap();
        assert!(!walk.advance(budget(1)));
        for name in &names {
            fs::remove_file(root.path().join(name)).unwrap();
        }
        fs::remove_dir(root.path()).unwrap();
        assert!(walk.advance(|| true));
        assert_eq!((walk.found.files, walk.found.unreadable), (1, 0));
    }

    #[test]
    fn a_directory_that_vanishes_or_becomes_a_link_before_it_is_opened_is_no_error() {
        let gone: Opener = |parent, name| {
            rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
            if name == c"swapped" {
                rustix::fs::symlinkat("/", parent, name)?;
            }
            open(parent, name)
        };
        let root = tree(&[("a.pt", 1)]);
        fs::create_dir(root.path().join("gone")).unwrap();
        fs::create_dir(root.path().join("swapped")).unwrap();
        let found = whole(root.path(), gone);
        assert_eq!((found.files, found.unreadable), (1, 0));
    }

    #[test]
    fn a_directory_that_may_not_be_read_is_counted_and_costs_only_itself() {
        let denied: Opener = |parent, name| match name == c"locked" {
            true => Err(Errno::ACCESS),
            false => open(parent, name),
        };
        let root = tree(&[("locked/a", 1), ("locked/b", 1), ("open/c", 1), ("d", 1)]);
        let found = whole(root.path(), denied);
        assert_eq!((found.files, found.unreadable), (2, 1));
        let why = found.first_unreadable.unwrap();
        assert!(why.starts_with(&format!("{}/locked: permission denied", root.path().display())), "{why}");
    }

    #[test]
    fn the_depth_is_bounded_and_what_lies_deeper_is_counted_as_unread() {
        let root = tempfile::tempdir().unwrap();
        // The root is the first level, so the last of these is one too deep.
        let deep: PathBuf = std::iter::once(root.path().to_owned()).chain((0..DEEPEST).map(|_| "d".into())).collect();
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("unseen"), "x").unwrap();
        fs::write(deep.parent().unwrap().join("seen"), "x").unwrap();
        let found = whole(root.path(), open);
        assert_eq!((found.files, found.unreadable), (1, 1));
    }

    #[test]
    fn only_a_tmp_file_that_nobody_writes_to_is_remarked() {
        let root = tree(&[("a.bin.tmp", 4096), ("b", 1)]);
        assert_eq!(whole(root.path(), open).remarks, BTreeSet::new());
        let file = File::options().write(true).open(root.path().join("a.bin.tmp")).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(2 * 3600)).unwrap();
        let found = whole(root.path(), open);
        assert_eq!((found.files, found.remarks), (1, BTreeSet::from([Remark::LeftBehind])));
    }

    #[test]
    fn another_file_system_below_is_not_entered() {
        let root = tree(&[("a", 1), ("mounted/b", 1)]);
        let mut walk = Walk::begin(root.path(), |_, _| panic!("entered")).unwrap();
        // A mount shows in another device number than that of the root.
        walk.device += 1;
        assert!(walk.advance(|| true));
        assert_eq!((walk.found.files, walk.found.unreadable), (1, 0));
        assert_eq!(walk.found.remarks, BTreeSet::from([Remark::OtherFileSystem]));
    }

    #[test]
    fn a_root_that_is_missing_or_no_directory_is_an_error() {
        let root = tree(&[("file", 1)]);
        let kind = |name: &str| Walk::begin(&root.path().join(name), open).err().map(|error| error.kind());
        assert_eq!(kind("none"), Some(io::ErrorKind::NotFound));
        assert_eq!(kind("file"), Some(io::ErrorKind::NotADirectory));
    }
}
