//! Which processes map a tier's file.
//!
//! vLLM names its RAM tier `vllm_offload_<engine id>.mmap`, and `.mmap.1`, `.mmap.2` … for further segments. Many
//! versions unlink the file once their workers have mapped it; the mappings are then all there is to see.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::mount;
use super::unseen::Hidden;
use crate::plain;

/// Major and minor number of the file system's device.
pub(super) type Device = (u32, u32);

/// A part of a tier file in a process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) device: Device,
    pub(super) inode: u64,
    /// As that process knows it; without the kernel's mark of an unlinked file.
    pub(super) path: PathBuf,
    /// First byte of the file that is not in this mapping.
    pub(super) end: u64,
}

impl Mapping {
    /// The engine id in the file's name.
    pub(super) fn engine_id(&self) -> Option<&str> {
        engine_id(self.path.file_name()?.to_str()?)
    }
}

const PREFIX: &str = "vllm_offload_";

/// The engine id in the name of a tier file; `None` for any other name.
pub(super) fn engine_id(file_name: &str) -> Option<&str> {
    let (id, segment) = file_name.strip_prefix(PREFIX)?.rsplit_once(".mmap")?;
    let whole = segment.is_empty() || segment.strip_prefix('.')?.parse::<u32>().is_ok();
    (whole && !id.is_empty()).then_some(id)
}

/// Mappings of tier files in the text of a `/proc/PID/maps`.
pub(super) fn tier_mappings(maps: &str) -> Vec<Mapping> {
    maps.lines().filter(|line| line.contains(PREFIX)).filter_map(tier_mapping).collect()
}

/// `start-end permissions offset major:minor inode   path`, numbers but the inode in hexadecimal.
fn tier_mapping(line: &str) -> Option<Mapping> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let mut fields = rest.splitn(5, ' ');
    let _permissions = fields.next()?;
    let offset = hex(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?.parse().ok()?;
    let path = fields.next()?.trim_start();
    let mapping = Mapping {
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode,
        path: path.strip_suffix(" (deleted)").unwrap_or(path).into(),
        end: hex(end)?.checked_sub(hex(start)?)?.checked_add(offset)?,
    };
    mapping.engine_id().is_some().then_some(mapping)
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

/// What all processes that could be looked into map.
#[derive(Debug, Default, PartialEq)]
pub(super) struct View {
    /// Process and mapping.
    pub(super) mappings: Vec<(u32, Mapping)>,
    /// Why not every process of this box could be looked into. `None`: what is not mapped here is mapped nowhere.
    pub(super) hidden: Option<Hidden>,
}

/// Walks a process file system again and again, and looks into a process only where something changed.
pub(super) struct Walker {
    procfs: PathBuf,
    seen: HashMap<u32, Seen>,
}

struct Seen {
    /// Size of its address space in pages. Each new mapping changes it, and it is much cheaper to read than
    /// the maps of an engine, which are thousands of lines written under a lock of that engine.
    pages: Option<String>,
    /// The error where its maps may not be read.
    mappings: Result<Vec<Mapping>, String>,
}

impl Walker {
    pub(super) fn new(procfs: &Path) -> Walker {
        Walker { procfs: procfs.into(), seen: HashMap::new() }
    }

    /// Looks into all processes.
    ///
    /// # Errors
    /// Where the process file system itself cannot be listed.
    pub(super) fn walk(&mut self) -> io::Result<View> {
        let mut before = std::mem::take(&mut self.seen);
        for entry in fs::read_dir(&self.procfs)? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(seen) = self.look(pid, before.remove(&pid)) {
                self.seen.insert(pid, seen);
            }
        }
        Ok(self.view())
    }

    /// `None` where the process is gone or has no memory of its own (a kernel thread).
    fn look(&self, pid: u32, before: Option<Seen>) -> Option<Seen> {
        let dir = self.procfs.join(pid.to_string());
        let pages =
            fs::read_to_string(dir.join("statm")).ok().and_then(|statm| Some(statm.split_once(' ')?.0.to_owned()));
        if pages.as_deref() == Some("0") {
            return None;
        }
        // One that could not be read is tried again: the right to do so may have come.
        let as_before = |before: &Seen| before.mappings.is_ok() && before.pages.is_some() && before.pages == pages;
        if let Some(before) = before.filter(as_before) {
            return Some(before);
        }
        match fs::read(dir.join("maps")) {
            Ok(maps) => Some(Seen { pages, mappings: Ok(tier_mappings(&String::from_utf8_lossy(&maps))) }),
            Err(error) if is_gone(&error) => None,
            Err(error) => Some(Seen { pages, mappings: Err(plain::io(&error)) }),
        }
    }

    fn view(&self) -> View {
        let mappings = |(pid, seen): (&u32, &Seen)| {
            let pid = *pid;
            seen.mappings.iter().flatten().cloned().map(move |mapping| (pid, mapping)).collect::<Vec<_>>()
        };
        View { mappings: self.seen.iter().flat_map(mappings).collect(), hidden: self.hidden() }
    }

    /// What hides the most is named first: a process file system that does not list all, then a single process. Of several
    /// the oldest is named, so that the same one is named from run to run.
    fn hidden(&self) -> Option<Hidden> {
        if !self.sees_whole_box() {
            return Some(self.hidden_by_procfs());
        }
        let refused = |(pid, seen): (&u32, &Seen)| Some((*pid, seen.mappings.as_ref().err()?.clone()));
        self.seen.iter().filter_map(refused).min().map(|(pid, error)| self.hidden_process(pid, error))
    }

    fn hidden_by_procfs(&self) -> Hidden {
        let procfs = self.procfs.display().to_string();
        match mount::hides_processes(&self.procfs) {
            true => Hidden::ByMount { procfs, ours: ours() },
            false => Hidden::OtherNamespace { procfs },
        }
    }

    fn hidden_process(&self, pid: u32, error: String) -> Hidden {
        let dir = self.procfs.join(pid.to_string());
        let name = fs::read_to_string(dir.join("comm")).unwrap_or_default().trim_end().to_owned();
        Hidden::Process { pid, name, owner: fs::metadata(dir).ok().map(|meta| meta.uid()), ours: ours(), error }
    }

    /// Whether processes of other containers and users are listed at all. Process 2 of the box is the parent
    /// of its kernel threads; inside a container's own process namespace, or where /proc hides the processes
    /// of others, it is not to be seen.
    fn sees_whole_box(&self) -> bool {
        fs::read_to_string(self.procfs.join("2/comm")).is_ok_and(|name| name.trim_end() == "kthreadd")
    }
}

/// The user whose rights count.
fn ours() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The process ended between the listing and the look (ENOENT, or ESRCH while reading).
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0021000 r--p 00000000 fe:01 1835123                    /usr/bin/python3.12
7f0000000000-7f0040000000 rw-s 00000000 00:19 42                         /dev/shm/vllm_offload_ab-1_dp0.mmap (deleted)
7f0040000000-7f0080000000 rw-s 40000000 00:19 42                         /dev/shm/vllm_offload_ab-1_dp0.mmap (deleted)
7f0100000000-7f0100001000 rw-s 00000000 fd:1a 9                          /mnt/odd place/vllm_offload_x.mmap.12
7f0200000000-7f0200001000 rw-s 00000000 00:19 8                          /dev/shm/vllm_offload_x.log
7f0200000000-7f0200001000 rw-p 00000000 00:00 0 
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn tier_files_are_found_among_all_that_a_process_maps() {
        let one = |device, inode, path: &str, end| Mapping { device, inode, path: path.into(), end };
        let shm = "/dev/shm/vllm_offload_ab-1_dp0.mmap";
        assert_eq!(
            tier_mappings(MAPS),
            [
                one((0, 0x19), 42, shm, 1 << 30),
                one((0, 0x19), 42, shm, 2 << 30),
                one((0xfd, 0x1a), 9, "/mnt/odd place/vllm_offload_x.mmap.12", 4096),
            ]
        );
        assert_eq!(tier_mappings("")[..], []);
        assert_eq!(tier_mappings("7f-8f vllm_offload_\nx vllm_offload_a.mmap\n")[..], []);
    }

    #[test]
    fn the_engine_id_is_what_stands_between() {
        assert_eq!(engine_id("vllm_offload_8f3c.mmap"), Some("8f3c"));
        assert_eq!(engine_id("vllm_offload_8f3c_dp1.mmap.31"), Some("8f3c_dp1"));
        assert_eq!(engine_id("vllm_offload_a.mmap.mmap"), Some("a.mmap"));
        for other in
            ["vllm_offload_.mmap", "vllm_offload_a.mmap.x", "vllm_offload_a.mmap1", "vllm_offload_a", "psm_1.mmap"]
        {
            assert_eq!(engine_id(other), None, "{other}");
        }
    }

    struct Proc(tempfile::TempDir);

    impl Proc {
        fn new() -> Proc {
            let root = Proc(tempfile::tempdir().unwrap());
            root.write("2/comm", "kthreadd\n").write("2/statm", "0 0 0 0 0 0 0\n").write("self/maps", MAPS);
            root
        }

        fn write(&self, path: &str, text: &str) -> &Proc {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }
    }

    #[test]
    fn all_processes_are_looked_into_and_kernel_threads_are_not_missed() {
        let root = Proc::new();
        root.write("101/maps", MAPS).write("102/maps", "");
        let view = Walker::new(root.0.path()).walk().unwrap();
        assert_eq!(view.hidden, None);
        assert_eq!(view.mappings.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [101; 3]);
    }

    #[test]
    fn a_process_that_cannot_be_looked_into_leaves_the_view_incomplete() {
        let root = Proc::new();
        // Reading a directory fails, whoever runs this test; a refused maps file fails for all but root.
        root.write("101/maps/x", "").write("101/comm", "VLLM::Worker_1\n").write("99/maps", "").write("300/maps/x", "");
        let owner = fs::metadata(root.0.path().join("101")).unwrap().uid();
        let mut walker = Walker::new(root.0.path());
        let hidden = walker.walk().unwrap().hidden;
        let Some(Hidden::Process { pid: 101, name, owner: Some(its), ours, error }) = hidden else {
            panic!("{hidden:?}")
        };
        assert_eq!((name.as_str(), its, ours), ("VLLM::Worker_1", owner, super::ours()));
        assert!(error.contains("directory"), "{error}");
        // It can be read meanwhile; the next one has no name, as if it had ended.
        fs::remove_dir_all(root.0.path().join("101/maps")).unwrap();
        root.write("101/maps", MAPS);
        let view = walker.walk().unwrap();
        assert_eq!(view.mappings.len(), 3);
        assert!(matches!(&view.hidden, Some(Hidden::Process { pid: 300, name, .. }) if name.is_empty()), "{view:?}");
    }

    #[test]
    fn one_that_is_refused_is_asked_again_though_its_size_is_the_same() {
        let root = Proc::new();
        root.write("101/maps/x", "").write("101/statm", "500 1 1 1 0 1 0\n");
        let mut walker = Walker::new(root.0.path());
        assert!(walker.walk().unwrap().hidden.is_some());
        fs::remove_dir_all(root.0.path().join("101/maps")).unwrap();
        root.write("101/maps", MAPS);
        assert_eq!(walker.walk().unwrap().hidden, None);
    }

    #[test]
    fn so_does_a_proc_that_does_not_show_the_whole_box() {
        let root = Proc::new();
        root.write("101/maps", MAPS).write("2/comm", "python3\n");
        let view = Walker::new(root.0.path()).walk().unwrap();
        let procfs = root.0.path().display().to_string();
        assert_eq!(view.mappings.len(), 3);
        assert_eq!(view.hidden, Some(Hidden::OtherNamespace { procfs: procfs.clone() }));
        root.write("self/mountinfo", &format!("22 27 0:21 / {procfs} rw - proc proc rw,hidepid=invisible\n"));
        let view = Walker::new(root.0.path()).walk().unwrap();
        assert_eq!(view.hidden, Some(Hidden::ByMount { procfs, ours: ours() }));
    }

    #[test]
    fn a_process_is_looked_into_again_once_its_address_space_changed() {
        let root = Proc::new();
        root.write("101/maps", "").write("101/statm", "500 1 1 1 0 1 0\n");
        let mut walker = Walker::new(root.0.path());
        let mut seen = || walker.walk().unwrap().mappings.len();
        assert_eq!(seen(), 0);
        root.write("101/maps", MAPS);
        assert_eq!(seen(), 0, "the same size: not read again");
        root.write("101/statm", "900 1 1 1 0 1 0\n");
        assert_eq!(seen(), 3);
        fs::remove_dir_all(root.0.path().join("101")).unwrap();
        assert_eq!(seen(), 0);
    }

    #[test]
    fn no_proc_at_all_is_an_error() {
        assert!(Walker::new(Path::new("/does/not/exist")).walk().is_err());
    }
}
