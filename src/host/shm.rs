//! The shared-memory mount that a RAM tier lies in: its size, its room, and the tier files on it.
//!
//! The room is what the tighter wall leaves: the mount, or the memory limit of the engine's cgroup. Which
//! cgroup that is comes from `--path.cgroup` or from a process that maps a tier file of this mount; the
//! exporter's own never counts. Nothing is ever deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::family::{Desc, Family, Labels};
use crate::plain;
use crate::settings::{HostFacts, LiveTierFile, SharedMemory};

use super::cgroup::{self, Room};
use super::maps::{Device, View, Walker, engine_id};
use super::space::{self, Space};
use super::unseen::{Hidden, Unseen};
use super::{Collector, Failure, Options, Reading};

pub(super) const NAME: &str = "shm";

pub(crate) const SIZE: Desc = Desc::gauge(
    "kvtier_shm_size_bytes",
    "Size of the shared-memory mount, in bytes. Absent where the mount has no limit of its own.",
);
pub(crate) const USED: Desc = Desc::gauge(
    "kvtier_shm_used_bytes",
    "Bytes in use on the shared-memory mount, files that are unlinked but still mapped included.",
);
pub(crate) const AVAILABLE: Desc = Desc::gauge(
    "kvtier_shm_available_bytes",
    "Bytes still free on the shared-memory mount. A promise of the mount only: the engine's memory limit may end first, see kvtier_shm_headroom_bytes.",
);
pub(crate) const IS_TMPFS: Desc = Desc::gauge(
    "kvtier_shm_is_tmpfs",
    "Whether the path is a tmpfs. 0 means that it is some other file system and probably not where the engine's shared memory is.",
);
pub(crate) const HEADROOM: Desc = Desc::gauge(
    "kvtier_shm_headroom_bytes",
    "The smaller of what the mount has free and what the engine's memory cgroups still allow (limit minus usage, page cache counted as used), in bytes. limiter names the smaller one; it is shm where the engine's cgroup is not known.",
);
pub(crate) const FILES: Desc = Desc::gauge(
    "kvtier_shm_tier_files",
    "Tier files (vllm_offload_*.mmap and further segments) of this mount by state. mapped: seen in a live process, even if unlinked. stale: mapped by no process of this box. unknown: some process could not be looked into, so neither is certain.",
);
pub(crate) const BYTES: Desc = Desc::gauge(
    "kvtier_shm_tier_bytes",
    "Length of the tier files of this mount by state (see kvtier_shm_tier_files), in bytes. The length that was asked for: a tier is laid out in full at its start, so this says nothing of its fill.",
);

pub(super) const DESCS: [Desc; 7] = [SIZE, USED, AVAILABLE, IS_TMPFS, HEADROOM, FILES, BYTES];

struct Shm {
    path: PathBuf,
    procfs: PathBuf,
    sysfs: PathBuf,
    cgroup: Option<PathBuf>,
    space: space::Reader,
    walker: Walker,
}

pub(super) fn build(options: &Options) -> Option<Box<dyn Collector>> {
    Some(Box::new(Shm::new(options, Box::new(space::read))))
}

impl Shm {
    fn new(options: &Options, space: space::Reader) -> Shm {
        Shm {
            path: options.shm.clone(),
            procfs: options.procfs.clone(),
            sysfs: options.sysfs.clone(),
            cgroup: options.cgroup.clone(),
            space,
            walker: Walker::new(&options.procfs),
        }
    }

    /// The least room that an engine's cgroups leave; `None` where nothing tells which they are.
    fn engine_room(&self, mappers: &BTreeSet<u32>, notes: &mut Vec<String>) -> Option<Room> {
        let mut note = |why| notes.push(format!("the engine's memory limit is unknown: {why}"));
        let found = |pid: &u32| cgroup::directory(&self.procfs, &self.sysfs, *pid);
        let directories: BTreeSet<PathBuf> = match &self.cgroup {
            Some(dir) => BTreeSet::from([dir.clone()]),
            None => mappers.iter().filter_map(|pid| found(pid).map_err(&mut note).ok()).collect(),
        };
        directories.iter().filter_map(|dir| cgroup::room(dir).map_err(&mut note).ok()).min()
    }
}

impl Collector for Shm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self) -> Result<Reading, Failure> {
        let unreadable =
            |error| Failure::Broken(format!("{} cannot be looked at: {}", self.path.display(), plain::io(&error)));
        let space = (self.space)(&self.path).map_err(unreadable)?;
        let device = device(&fs::metadata(&self.path).map_err(unreadable)?);
        let files = list(&self.path).map_err(unreadable)?;
        let mut notes = Vec::new();
        let view = self.walker.walk().unwrap_or_else(|error| {
            let why = Hidden::NoProcfs(format!("{} cannot be listed: {}", self.procfs.display(), plain::io(&error)));
            View { hidden: Some(why), ..View::default() }
        });
        let tally = tally(device, &files, &view);
        // Where every file is mapped by a process that is seen, nobody needs to know of the others.
        let processes = view.hidden.filter(|_| tally.unknown.files > 0);
        let room = self.engine_room(&tally.mappers, &mut notes);
        let mount = SharedMemory { path: self.path.clone(), size: space.size, is_tmpfs: space.is_tmpfs };
        let facts = HostFacts { live_tier_files: tally.live(), shm: Some(mount), ..HostFacts::default() };
        let unseen = Unseen { processes, ..Unseen::default() };
        Ok(Reading { families: families(&self.path, &space, room, &tally), facts, notes, unseen, ..Reading::default() })
    }
}

/// A tier file that has a name on the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TierFile {
    path: PathBuf,
    engine_id: String,
    device: Device,
    inode: u64,
    bytes: u64,
}

fn list(dir: &Path) -> io::Result<Vec<TierFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(engine_id) = name.to_str().and_then(engine_id) else { continue };
        match entry.metadata() {
            Ok(meta) if meta.is_file() => files.push(TierFile {
                path: entry.path(),
                engine_id: engine_id.to_owned(),
                device: device(&meta),
                inode: meta.ino(),
                bytes: meta.len(),
            }),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

fn device(meta: &fs::Metadata) -> Device {
    (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    files: u64,
    bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The tier files of one mount, told apart.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    mapped: Count,
    stale: Count,
    unknown: Count,
    /// Bytes of the mapped files by engine id.
    engines: BTreeMap<String, u64>,
    /// Processes that map one of them.
    mappers: BTreeSet<u32>,
}

impl Tally {
    fn map(&mut self, engine_id: &str, bytes: u64) {
        self.mapped.add(bytes);
        let engine = self.engines.entry(engine_id.to_owned()).or_default();
        *engine = engine.saturating_add(bytes);
    }

    fn live(&self) -> Vec<LiveTierFile> {
        self.engines.iter().map(|(id, bytes)| LiveTierFile { engine_id: id.clone(), bytes: *bytes }).collect()
    }
}

/// Tells files with a name apart by whether a process maps them, and finds those that only live on in mappings.
///
/// A named file is recognised by device and inode, or by its path where a process in another mount or an odd
/// file system shows other numbers. A file without a name is this mount's only by its device: another
/// container's /dev/shm has the same paths.
fn tally(device: Device, files: &[TierFile], view: &View) -> Tally {
    let mut tally = Tally::default();
    for file in files {
        let mappers: Vec<u32> =
            view.mappings.iter().filter(|(_, m)| file.is(m.device, m.inode, &m.path)).map(|(pid, _)| *pid).collect();
        match (mappers.is_empty(), view.hidden.is_none()) {
            (false, _) => tally.map(&file.engine_id, file.bytes),
            (true, true) => tally.stale.add(file.bytes),
            (true, false) => tally.unknown.add(file.bytes),
        }
        tally.mappers.extend(mappers);
    }
    let mut nameless: BTreeMap<u64, (&str, u64)> = BTreeMap::new();
    for (pid, mapping) in &view.mappings {
        let named = files.iter().any(|file| file.is(mapping.device, mapping.inode, &mapping.path));
        let Some(id) = mapping.engine_id().filter(|_| mapping.device == device && !named) else { continue };
        // Each process may map another part of it; the end of the last part is its length.
        let (_, bytes) = nameless.entry(mapping.inode).or_insert((id, 0));
        *bytes = mapping.end.max(*bytes);
        tally.mappers.insert(*pid);
    }
    for (id, bytes) in nameless.into_values() {
        tally.map(id, bytes);
    }
    tally
}

impl TierFile {
    fn is(&self, device: Device, inode: u64, path: &Path) -> bool {
        (self.device, self.inode) == (device, inode) || self.path == path
    }
}

/// What is left, and which wall says so.
fn headroom(available: Option<u64>, room: Option<Room>) -> Option<(u64, &'static str)> {
    match (available, room) {
        (available, Some(Room::Bytes(room))) if available.is_none_or(|available| room < available) => {
            Some((room, "cgroup"))
        }
        (Some(available), _) => Some((available, "shm")),
        (None, _) => None,
    }
}

fn families(path: &Path, space: &Space, room: Option<Room>, tally: &Tally) -> Vec<Family> {
    let labels = |more: Option<(&'static str, &str)>| -> Labels {
        let path = ("path", path.display().to_string());
        std::iter::once(path).chain(more.map(|(name, value)| (name, value.to_owned()))).collect()
    };
    let plain = |desc, value: Option<u64>| {
        let mut family = Family::new(desc);
        family.push(labels(None), value.map(|bytes| bytes as f64));
        family
    };
    let mut headroom_family = Family::new(HEADROOM);
    if let Some((bytes, limiter)) = headroom(space.available, room) {
        headroom_family.push(labels(Some(("limiter", limiter))), bytes as f64);
    }
    let mut files = Family::new(FILES);
    let mut bytes = Family::new(BYTES);
    for (state, count) in [("mapped", tally.mapped), ("stale", tally.stale), ("unknown", tally.unknown)] {
        files.push(labels(Some(("state", state))), count.files as f64);
        bytes.push(labels(Some(("state", state))), count.bytes as f64);
    }
    vec![
        plain(SIZE, space.size),
        plain(USED, space.used),
        plain(AVAILABLE, space.available),
        plain(IS_TMPFS, Some(u64::from(space.is_tmpfs))),
        headroom_family,
        files,
        bytes,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::encode;
    use crate::host::maps::Mapping;

    const GIB: u64 = 1 << 30;
    const SHM: Device = (0, 0x19);

    fn file(id: &str, inode: u64, bytes: u64) -> TierFile {
        let path = format!("/dev/shm/vllm_offload_{id}.mmap").into();
        TierFile { path, engine_id: id.into(), device: SHM, inode, bytes }
    }

    fn mapping(id: &str, device: Device, inode: u64, end: u64) -> Mapping {
        Mapping { device, inode, path: format!("/dev/shm/vllm_offload_{id}.mmap").into(), end }
    }

    fn live(pairs: &[(&str, u64)]) -> Vec<LiveTierFile> {
        pairs.iter().map(|(id, bytes)| LiveTierFile { engine_id: (*id).into(), bytes: *bytes }).collect()
    }

    #[test]
    fn a_file_is_mapped_stale_or_unknown() {
        let files = [file("a", 1, GIB), file("dead", 2, 12 * GIB)];
        let mappings = vec![(7, mapping("a", SHM, 1, GIB)), (8, mapping("a", SHM, 1, GIB))];
        let seen = tally(SHM, &files, &View { mappings: mappings.clone(), hidden: None });
        assert_eq!(seen.mapped, Count { files: 1, bytes: GIB });
        assert_eq!(seen.stale, Count { files: 1, bytes: 12 * GIB });
        assert_eq!(seen.unknown, Count::default());
        assert_eq!(seen.live(), live(&[("a", GIB)]));
        assert_eq!(seen.mappers, BTreeSet::from([7, 8]));
        let half = tally(SHM, &files, &View { mappings, hidden: Some(Hidden::NoProcfs("x".into())) });
        assert_eq!((half.stale, half.unknown), (Count::default(), seen.stale));
        assert_eq!(half.mapped, seen.mapped);
    }

    #[test]
    fn an_unlinked_file_counts_with_its_mapped_length_once_however_many_map_it() {
        // Two segments of one engine; the first one is mapped whole by 7 and in two parts by 8.
        let mappings = vec![
            (7, mapping("a", SHM, 1, 4 * GIB)),
            (8, mapping("a", SHM, 1, 2 * GIB)),
            (8, mapping("a", SHM, 1, 4 * GIB)),
            (8, mapping("a", SHM, 2, GIB)),
            (9, mapping("elsewhere", (0, 0x55), 3, 9 * GIB)),
        ];
        let seen = tally(SHM, &[], &View { mappings, hidden: Some(Hidden::NoProcfs("x".into())) });
        assert_eq!(seen.mapped, Count { files: 2, bytes: 5 * GIB });
        assert_eq!(seen.live(), live(&[("a", 5 * GIB)]));
        assert_eq!(seen.mappers, BTreeSet::from([7, 8]));
    }

    #[test]
    fn a_named_file_is_known_by_its_path_too_and_not_counted_twice() {
        let mappings = vec![(7, mapping("a", SHM, 99, GIB))];
        let seen = tally(SHM, &[file("a", 1, 2 * GIB)], &View { mappings, hidden: None });
        assert_eq!(seen.mapped, Count { files: 1, bytes: 2 * GIB });
        assert_eq!(seen.live(), live(&[("a", 2 * GIB)]));
    }

    #[test]
    fn the_tighter_wall_is_named() {
        let available = Some(94 * GIB);
        assert_eq!(headroom(available, Some(Room::Bytes(GIB))), Some((GIB, "cgroup")));
        assert_eq!(headroom(available, Some(Room::Bytes(95 * GIB))), Some((94 * GIB, "shm")));
        assert_eq!(headroom(available, Some(Room::Unlimited)), Some((94 * GIB, "shm")));
        assert_eq!(headroom(available, None), Some((94 * GIB, "shm")));
        assert_eq!(headroom(None, Some(Room::Bytes(GIB))), Some((GIB, "cgroup")));
        assert_eq!(headroom(None, Some(Room::Unlimited)), None);
    }

    /// A box on disk: a mount with a tier file that process 101 maps, and the cgroup of that process.
    struct Root(tempfile::TempDir);

    impl Root {
        fn new() -> Root {
            let root = Root(tempfile::tempdir().unwrap());
            fs::create_dir(root.path("shm")).unwrap();
            root.write("proc/2/comm", "kthreadd\n");
            root
        }

        fn path(&self, below: &str) -> PathBuf {
            self.0.path().join(below)
        }

        fn write(&self, path: &str, text: &str) {
            fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
            fs::write(self.path(path), text).unwrap();
        }

        /// A sparse tier file; returns the line that a process which maps it would show.
        fn tier(&self, name: &str, bytes: u64) -> String {
            let file = fs::File::create(self.path("shm").join(name)).unwrap();
            file.set_len(bytes).unwrap();
            let meta = file.metadata().unwrap();
            let (major, minor) = device(&meta);
            format!(
                "7f0000000000-{:x} rw-s 00000000 {major:02x}:{minor:02x} {}    /dev/shm/{name}\n",
                0x7f00_0000_0000 + bytes,
                meta.ino()
            )
        }

        fn options(&self) -> Options {
            Options { procfs: self.path("proc"), sysfs: self.path("sys"), shm: self.path("shm"), ..Options::default() }
        }

        fn collect(&self, options: &Options) -> (String, Reading) {
            let space = |_: &Path| Ok(Space { size: Some(128 * GIB), available: Some(94 * GIB), ..Space::default() });
            let reading = Shm::new(options, Box::new(space)).collect().unwrap();
            let path = format!("path=\"{}\",", self.path("shm").display());
            (encode(&reading.families).replace(&path, ""), reading)
        }

        fn engine_cgroup(&self) {
            self.write("proc/101/cgroup", "0::/pod/engine\n");
            self.write("sys/fs/cgroup/cgroup.controllers", "memory\n");
            self.write("sys/fs/cgroup/pod/engine/memory.max", "34359738368\n");
            self.write("sys/fs/cgroup/pod/engine/memory.current", "33285996544\n");
        }
    }

    #[test]
    fn the_engines_cgroup_is_found_through_the_process_that_maps_the_tier() {
        let root = Root::new();
        let maps = root.tier("vllm_offload_e1.mmap", 12 * GIB);
        root.write("proc/101/maps", &maps);
        root.write("proc/102/maps", "");
        root.tier("vllm_offload_dead.mmap.1", 3 * GIB);
        root.tier("psm_other", GIB);
        root.engine_cgroup();
        let (text, reading) = root.collect(&root.options());
        assert!(text.contains("kvtier_shm_headroom_bytes{limiter=\"cgroup\"} 1073741824\n"), "{text}");
        assert!(text.contains("kvtier_shm_tier_files{state=\"mapped\"} 1\n"), "{text}");
        assert!(text.contains("kvtier_shm_tier_bytes{state=\"mapped\"} 12884901888\n"), "{text}");
        assert!(text.contains("kvtier_shm_tier_files{state=\"stale\"} 1\n"), "{text}");
        assert!(text.contains("kvtier_shm_tier_bytes{state=\"stale\"} 3221225472\n"), "{text}");
        assert!(text.contains("kvtier_shm_tier_files{state=\"unknown\"} 0\n"), "{text}");
        assert_eq!(reading.facts.live_tier_files, live(&[("e1", 12 * GIB)]));
        assert_eq!(reading.notes, [""; 0]);
    }

    #[test]
    fn a_pod_tighter_than_its_engine_and_an_engine_without_limit() {
        let root = Root::new();
        let maps = root.tier("vllm_offload_e1.mmap", GIB);
        root.write("proc/101/maps", &maps);
        root.engine_cgroup();
        root.write("sys/fs/cgroup/pod/memory.max", "2000000000\n");
        root.write("sys/fs/cgroup/pod/memory.current", "1500000000\n");
        let (text, _) = root.collect(&root.options());
        assert!(text.contains("kvtier_shm_headroom_bytes{limiter=\"cgroup\"} 500000000\n"), "{text}");

        root.write("sys/fs/cgroup/pod/memory.max", "max\n");
        root.write("sys/fs/cgroup/pod/engine/memory.max", "max\n");
        let (text, _) = root.collect(&root.options());
        assert!(text.contains("kvtier_shm_headroom_bytes{limiter=\"shm\"} 100931731456\n"), "{text}");
    }

    #[test]
    fn the_operators_cgroup_wins_and_one_that_is_not_there_is_said() {
        let root = Root::new();
        root.write("v1/memory.limit_in_bytes", "8192\n");
        root.write("v1/memory.usage_in_bytes", "4096\n");
        let (text, _) = root.collect(&Options { cgroup: Some(root.path("v1")), ..root.options() });
        assert!(text.contains("kvtier_shm_headroom_bytes{limiter=\"cgroup\"} 4096\n"), "{text}");

        let (text, reading) = root.collect(&Options { cgroup: Some(root.path("gone")), ..root.options() });
        assert!(text.contains("kvtier_shm_headroom_bytes{limiter=\"shm\"} 100931731456\n"), "{text}");
        assert!(matches!(&reading.notes[..], [note] if note.contains("gone")), "{:?}", reading.notes);
    }

    #[test]
    fn without_a_tier_the_exporters_own_cgroup_is_never_taken_for_the_engines() {
        let root = Root::new();
        root.write("proc/self/cgroup", "0::/pod/engine\n");
        root.engine_cgroup();
        let (text, reading) = root.collect(&root.options());
        assert!(text.contains("kvtier_shm_headroom_bytes{limiter=\"shm\"} 100931731456\n"), "{text}");
        assert_eq!(reading.notes, [""; 0]);
    }

    #[test]
    fn a_mount_that_is_not_there_is_a_failure_and_a_proc_that_is_not_there_a_note() {
        let root = Root::new();
        let gone = Options { shm: root.path("none"), ..root.options() };
        assert!(matches!(build(&gone).unwrap().collect(), Err(Failure::Broken(why)) if why.contains("none")));

        root.tier("vllm_offload_e1.mmap", GIB);
        let (text, reading) = root.collect(&Options { procfs: root.path("none"), ..root.options() });
        assert!(text.contains("kvtier_shm_tier_files{state=\"unknown\"} 1\n"), "{text}");
        let why = reading.unseen.processes.unwrap().to_string();
        assert!(why.contains("none cannot be listed"), "{why}");
    }

    #[test]
    fn a_process_that_is_not_seen_is_named_only_where_a_file_is_unsure() {
        let root = Root::new();
        let maps = root.tier("vllm_offload_e1.mmap", GIB);
        root.write("proc/101/maps", &maps);
        root.write("proc/102/maps/x", "");
        assert_eq!(root.collect(&root.options()).1.unseen, Unseen::default());
        root.tier("vllm_offload_dead.mmap", GIB);
        let unseen = root.collect(&root.options()).1.unseen;
        assert!(matches!(unseen.processes, Some(Hidden::Process { pid: 102, .. })), "{unseen:?}");
    }

    #[test]
    fn a_plain_directory_is_no_tmpfs_unless_it_lies_on_one() {
        let root = Root::new();
        let text = encode(&build(&root.options()).unwrap().collect().unwrap().families);
        let kind = if space::read(&root.path("shm")).unwrap().is_tmpfs { 1 } else { 0 };
        assert!(
            text.contains(&format!("kvtier_shm_is_tmpfs{{path=\"{}\"}} {kind}\n", root.path("shm").display())),
            "{text}"
        );
    }
}
