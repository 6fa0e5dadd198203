//! How much a memory cgroup still allows: the wall that a tmpfs does not show.
//!
//! Pages of a tmpfs are charged to the cgroup of the process that touched them first. So it is the engine's
//! cgroup that counts, and every one above it. Versions 1 and 2 differ in file names only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::plain;

/// What a cgroup and those above it still allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Room {
    /// The tightest limit minus its usage, in bytes.
    Bytes(u64),
    /// No limit is set.
    Unlimited,
}

/// Room of the cgroup in that directory. The error is a sentence.
pub(super) fn room(dir: &Path) -> Result<Room, String> {
    let dir = fs::canonicalize(dir)
        .map_err(|error| format!("cgroup {} is not visible: {}", dir.display(), plain::io(&error)))?;
    let mut tightest = None;
    for level in dir.ancestors() {
        let Some(room) = level_room(level)? else { continue };
        tightest = Some(tightest.map_or(room, |so_far: Room| so_far.min(room)));
    }
    tightest.ok_or_else(|| format!("{} holds no memory limit of a cgroup", dir.display()))
}

/// Directory of the memory cgroup of a process. The error is a sentence.
pub(super) fn directory(procfs: &Path, sysfs: &Path, pid: u32) -> Result<PathBuf, String> {
    let path = procfs.join(pid.to_string()).join("cgroup");
    let text = fs::read_to_string(&path)
        .map_err(|error| format!("{} cannot be read: {}", path.display(), plain::io(&error)))?;
    let below = membership(&text).ok_or_else(|| {
        format!("{} names no memory cgroup that is visible from here; --path.cgroup can name it", path.display())
    })?;
    Ok(sysfs.join("fs/cgroup").join(below))
}

/// Directory below the cgroup mount that a `/proc/PID/cgroup` names for memory. `None` where it names none, or
/// one outside our own cgroup namespace (`/../…`).
fn membership(text: &str) -> Option<PathBuf> {
    let v1 = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|controller| controller == "memory").then_some(("memory", path))
    });
    let v2 = || text.lines().find_map(|line| line.strip_prefix("0::")).map(|path| ("", path));
    let (mount, path) = v1.or_else(v2)?;
    let below = path.strip_prefix('/')?;
    (!below.split('/').any(|part| part == "..")).then(|| Path::new(mount).join(below))
}

/// Room at one level; `None` where the directory is no memory cgroup.
fn level_room(dir: &Path) -> Result<Option<Room>, String> {
    for (limit, usage) in [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")] {
        let Some(limit) = read(&dir.join(limit))? else { continue };
        let usage = read(&dir.join(usage))?.unwrap_or_default();
        return match understand(&limit, &usage) {
            Some(room) => Ok(Some(room)),
            None => Err(format!("memory limit and usage in {} are not understood", dir.display())),
        };
    }
    // A v2 cgroup without a memory controller of its own, such as the root, sets no limit.
    Ok(dir.join("cgroup.controllers").exists().then_some(Room::Unlimited))
}

fn read(path: &Path) -> Result<Option<String>, String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{} cannot be read: {}", path.display(), plain::io(&error))),
    }
}

/// Version 1 writes "no limit" as the largest number of whole pages; the page size decides its last digits.
const V1_UNLIMITED: u64 = 1 << 62;

fn understand(limit: &str, usage: &str) -> Option<Room> {
    if limit.trim() == "max" {
        return Some(Room::Unlimited);
    }
    let limit: u64 = limit.trim().parse().ok()?;
    if limit >= V1_UNLIMITED {
        return Some(Room::Unlimited);
    }
    Some(Room::Bytes(limit.saturating_sub(usage.trim().parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_minus_usage_and_no_limit_in_both_versions() {
        assert_eq!(understand("34359738368\n", "33285996544\n"), Some(Room::Bytes(1_073_741_824)));
        assert_eq!(understand("100\n", "250\n"), Some(Room::Bytes(0)));
        assert_eq!(understand("max\n", "5\n"), Some(Room::Unlimited));
        // 4 KiB and 64 KiB pages.
        assert_eq!(understand("9223372036854771712\n", "5\n"), Some(Room::Unlimited));
        assert_eq!(understand("9223372036854710272\n", "5\n"), Some(Room::Unlimited));
        assert_eq!(understand("100\n", ""), None);
        assert_eq!(understand("lots\n", "5\n"), None);
    }

    #[test]
    fn the_memory_hierarchy_of_a_process_is_found_in_both_versions() {
        let v2 = "0::/system.slice/vllm.service\n";
        assert_eq!(membership(v2), Some("system.slice/vllm.service".into()));
        let v1 = "5:cpu,cpuacct:/a\n4:memory:/docker/3e45\n0::/\n";
        assert_eq!(membership(v1), Some("memory/docker/3e45".into()));
        assert_eq!(membership("3:hugetlb,memory:/x:y\n"), Some("memory/x:y".into()));
        assert_eq!(membership("0::/\n"), Some(PathBuf::new()));
    }

    #[test]
    fn a_cgroup_outside_our_namespace_is_not_guessed() {
        assert_eq!(membership("0::/../engine\n"), None);
        assert_eq!(membership("4:memory:/../engine\n"), None);
        assert_eq!(membership("5:cpu:/a\n"), None);
        assert_eq!(membership(""), None);
    }

    /// A tree of cgroup directories with the files given.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_of_the_levels_wins_wherever_it_is() {
        let root = tree(&[
            ("pod/memory.max", "1000"),
            ("pod/memory.current", "900"),
            ("pod/engine/memory.max", "max"),
            ("pod/engine/memory.current", "700"),
            ("pod/roomy/memory.max", "5000"),
            ("pod/roomy/memory.current", "100"),
            ("pod/tight/memory.max", "150"),
            ("pod/tight/memory.current", "100"),
        ]);
        let room = |dir: &str| room(&root.path().join(dir));
        assert_eq!(room("pod/engine"), Ok(Room::Bytes(100)));
        assert_eq!(room("pod/roomy"), Ok(Room::Bytes(100)));
        assert_eq!(room("pod/tight"), Ok(Room::Bytes(50)));
    }

    #[test]
    fn version_1_files_count_the_same() {
        let root = tree(&[
            ("memory/memory.limit_in_bytes", "9223372036854771712"),
            ("memory/memory.usage_in_bytes", "5"),
            ("memory/docker/memory.limit_in_bytes", "4096"),
            ("memory/docker/memory.usage_in_bytes", "1024"),
        ]);
        assert_eq!(room(&root.path().join("memory")), Ok(Room::Unlimited));
        assert_eq!(room(&root.path().join("memory/docker")), Ok(Room::Bytes(3072)));
    }

    #[test]
    fn a_level_without_a_memory_controller_sets_no_limit_but_those_above_do() {
        let root = tree(&[
            ("cgroup.controllers", "cpu memory"),
            ("user/memory.max", "50"),
            ("user/memory.current", "20"),
            ("user/app/cgroup.controllers", ""),
        ]);
        assert_eq!(room(&root.path().join("user/app")), Ok(Room::Bytes(30)));
        assert_eq!(room(root.path()), Ok(Room::Unlimited));
    }

    #[test]
    fn what_cannot_be_seen_is_said() {
        let root = tree(&[("plain/file", ""), ("half/memory.max", "50")]);
        assert!(room(&root.path().join("gone")).unwrap_err().contains("not visible"));
        assert!(room(&root.path().join("plain")).unwrap_err().contains("no memory limit"));
        assert!(room(&root.path().join("half")).unwrap_err().contains("not understood"));
        assert!(directory(root.path(), root.path(), 7).unwrap_err().contains("7/cgroup"));
    }
}
