//! What disk tiers hold, measured in their directories (`--path.disk-tier`).
//!
//! No engine tells it: what was written since start says nothing of files that outlive the engine, and LMCache's
//! own figure counts from 0 after each restart. So the directories are walked, a bounded number of entries a run
//! and with a rest after each pass; a scrape sees the last pass that has ended, and its age. A directory on a
//! network mount is left alone unless the operator forces it, since the walk would load a machine that others use.
//!
//! The walk itself is in `walk`, the room of the file system in `disk`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::family::{Desc, Family, Labels};
use crate::plain;

use super::mount::{self, Mount};
use super::walk::{self, Found, Opener, Remark, Walk};
use super::{Age, Collector, Failure, Options, Reading};

pub(super) const NAME: &str = "scan";

pub(crate) const BYTES: Desc = Desc::gauge(
    "kvtier_disk_tier_bytes",
    "Bytes that the files in the directory of the disk tier hold on disk, from the last finished scan: allocated blocks as du counts them, so a sparse file counts what was written and not its length. Left out: *.tmp files, what symbolic links point to, and file systems mounted below. Absent before the first scan has ended, and on network mounts unless --disk.scan-network is set.",
);
pub(crate) const FILES: Desc = Desc::gauge(
    "kvtier_disk_tier_files",
    "Files in the directory of the disk tier, from the last finished scan; what kvtier_disk_tier_bytes leaves out is left out here too.",
);
pub(crate) const AGE: Desc = Desc::gauge(
    "kvtier_disk_tier_scan_age_seconds",
    "Seconds since the last finished scan of the disk tier's directory began: nothing in its figures is older. A scan under way does not reset it, so on a large directory it reaches the time of two scans.",
);
const UNREADABLE: Desc = Desc::gauge(
    "kvtier_disk_tier_unreadable",
    "Files and directories of the disk tier that the last scan could not look at; above 0 its other figures are too low, or absent where it is the tier's directory itself. What vanished during the scan is not counted.",
);
const DIFFERENCE: Desc = Desc::gauge(
    "kvtier_lmcache_disk_usage_difference_bytes",
    "What LMCache believes to hold on disk minus kvtier_disk_tier_bytes. Below 0: files of an earlier process, which it neither uses nor evicts. Above 0: writes that failed, as on a full disk, or written since the last scan. Known only where exactly one --path.disk-tier is given, since LMCache does not say which directory it means.",
);

pub(super) const DESCS: [Desc; 5] = [BYTES, FILES, AGE, UNREADABLE, DIFFERENCE];

/// Entries looked at in one run, over all directories: at the collectors' pace 4,000 a second, which is 8 minutes
/// for two million files.
const ENTRIES: usize = 20_000;

/// A run ends after this, however few entries a slow disk has given by then.
const LONGEST_RUN: Duration = Duration::from_millis(500);

/// Between two passes, so that a small directory is not walked all the time.
const REST: Duration = Duration::from_secs(60);

/// LMCache's own figure minus the measured one, where that is certain to be the same directory. `disk_tiers` are
/// the paths that were configured, `families` what the collectors know (of [`super::Look`]).
pub(super) fn lmcache_difference(lmcache_bytes: f64, disk_tiers: &[PathBuf], families: &[Family]) -> Family {
    let mut family = Family::new(DIFFERENCE);
    if let [path] = disk_tiers {
        let measured = families.iter().filter(|other| other.desc == BYTES).flat_map(|other| &other.samples);
        let of_path = measured.filter(|(labels, _)| *labels == path_label(path)).map(|(_, bytes)| *bytes).next();
        family.push(path_label(path), of_path.map(|bytes| lmcache_bytes - bytes));
    }
    family
}

fn path_label(path: &Path) -> Labels {
    [("path", path.display().to_string())].into()
}

struct Scan {
    tiers: Vec<Tier>,
    means: Means,
}

/// How directories are walked: the same for all of them.
struct Means {
    procfs: PathBuf,
    network_too: bool,
    opener: Opener,
    clock: Box<dyn Fn() -> Instant + Send>,
    entries: usize,
}

/// One directory, and what is known of it.
struct Tier {
    path: PathBuf,
    /// The pass under way and when it began.
    pass: Option<(Instant, Walk)>,
    rest_until: Option<Instant>,
    /// The network mount that it lies on and is scanned on all the same.
    forced: Option<Mount>,
    known: Known,
}

enum Known {
    /// The first pass is under way.
    Nothing,
    /// The directory is not scanned, and why.
    Refused(Refusal),
    /// The last pass that has ended.
    Pass { begun: Instant, found: Found },
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(
        "it lies on a network mount ({}, mounted at {}), where a scan loads a machine that others use; --disk.scan-network scans it all the same",
        .0.kind, .0.point.display()
    )]
    Network(Mount),
    #[error("it is not known whether it lies on a network mount: {0}; --disk.scan-network scans it all the same")]
    UnknownMount(String),
    #[error("it cannot be opened: {}; it is tried again and again", plain::io(.0))]
    Unopened(#[from] io::Error),
}

pub(super) fn build(options: &Options) -> Option<Box<dyn Collector>> {
    let means = Means {
        procfs: options.procfs.clone(),
        network_too: options.disk_scan_network,
        opener: walk::open,
        clock: Box::new(Instant::now),
        entries: ENTRIES,
    };
    let scan = Scan { tiers: options.disk_tiers.iter().map(|path| Tier::new(path)).collect(), means };
    (!scan.tiers.is_empty()).then(|| Box::new(scan) as Box<dyn Collector>)
}

impl Collector for Scan {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self) -> Result<Reading, Failure> {
        let shares = self.tiers.len();
        for tier in &mut self.tiers {
            tier.go_on(&self.means, shares);
        }
        Ok(reading(&self.tiers))
    }
}

impl Tier {
    fn new(path: &Path) -> Tier {
        Tier { path: path.to_owned(), pass: None, rest_until: None, forced: None, known: Known::Nothing }
    }

    /// Walks on for one share of a run, if it is not the time to rest.
    fn go_on(&mut self, means: &Means, shares: usize) {
        let now = (means.clock)();
        if self.rest_until.is_some_and(|until| now < until) {
            return;
        }
        let (begun, mut walk) = match self.pass.take().map_or_else(|| self.begin(means, now), Ok) {
            Ok(pass) => pass,
            Err(refusal) => {
                self.known = Known::Refused(refusal);
                return;
            }
        };
        if walk.advance(means.budget(now, shares)) {
            self.rest_until = Some((means.clock)() + REST);
            self.known = Known::Pass { begun, found: walk.into_found() };
        } else {
            self.pass = Some((begun, walk));
        }
    }

    fn begin(&mut self, means: &Means, now: Instant) -> Result<(Instant, Walk), Refusal> {
        self.rest_until = None;
        self.forced = None;
        match mount::read(&means.procfs, &self.path) {
            Ok(mount) if mount.is_network() && means.network_too => self.forced = Some(mount),
            Ok(mount) if mount.is_network() => return Err(Refusal::Network(mount)),
            Err(why) if !means.network_too => return Err(Refusal::UnknownMount(why)),
            _ => {}
        }
        Ok((now, Walk::begin(&self.path, means.opener)?))
    }

    fn found(&self) -> Option<&Found> {
        match &self.known {
            Known::Pass { found, .. } => Some(found),
            _ => None,
        }
    }

    fn unreadable(&self) -> Option<u64> {
        match &self.known {
            Known::Refused(Refusal::Unopened(error)) if error.kind() != io::ErrorKind::NotFound => Some(1),
            _ => self.found().map(|found| found.unreadable),
        }
    }

    fn age(&self) -> Option<Age> {
        match self.known {
            Known::Pass { begun, .. } => Some(Age { desc: AGE, labels: path_label(&self.path), since: begun }),
            _ => None,
        }
    }

    fn notes(&self) -> Vec<String> {
        let path = self.path.display();
        let forced = self.forced.as_ref().map(|mount| {
            format!("{path} lies on a network mount ({}) and is scanned because of --disk.scan-network", mount.kind)
        });
        let known = match &self.known {
            Known::Nothing => vec![format!("{path}: the first scan is under way")],
            Known::Refused(refusal) => vec![format!("{path} is not scanned: {refusal}")],
            Known::Pass { found, .. } => pass_notes(&self.path, found),
        };
        forced.into_iter().chain(known).collect()
    }
}

impl Means {
    /// Ends when a fair share of the entries or of the time of one run is used up.
    fn budget(&self, now: Instant, shares: usize) -> impl FnMut() -> bool {
        let mut left = (self.entries / shares).max(1);
        let shares = u32::try_from(shares).unwrap_or(u32::MAX);
        let deadline = now + LONGEST_RUN / shares;
        move || {
            left -= 1;
            left > 0 && (self.clock)() < deadline
        }
    }
}

fn pass_notes(path: &Path, found: &Found) -> Vec<String> {
    let path = path.display();
    let unreadable = found.first_unreadable.as_ref().map(|first| {
        format!("{path}: something in it could not be looked at, so its figures are too low; first {first}")
    });
    let remark = |remark: &Remark| match remark {
        Remark::LeftBehind => format!(
            "{path} holds *.tmp files that nobody wrote to for an hour: left behind by writes that never ended, they take room and are in no figure"
        ),
        Remark::OtherFileSystem => format!(
            "{path}: another file system is mounted below it and is left out; --path.disk-tier can name it as well"
        ),
        Remark::ManyLinked => format!("{path} holds so many files with several names that some are counted twice"),
    };
    unreadable.into_iter().chain(found.remarks.iter().map(remark)).collect()
}

fn reading(tiers: &[Tier]) -> Reading {
    let family = |desc, value: fn(&Tier) -> Option<u64>| {
        let mut family = Family::new(desc);
        for tier in tiers {
            family.push(path_label(&tier.path), value(tier).map(|number| number as f64));
        }
        family
    };
    Reading {
        lasting: vec![
            family(BYTES, |tier| tier.found().map(|found| found.bytes)),
            family(FILES, |tier| tier.found().map(|found| found.files)),
            family(UNREADABLE, Tier::unreadable),
        ],
        ages: tiers.iter().filter_map(Tier::age).collect(),
        notes: tiers.iter().flat_map(Tier::notes).collect(),
        ..Reading::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::encode;
    use crate::host::Host;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::{Arc, Mutex};

    /// A clock that stands still until it is moved on.
    #[derive(Clone)]
    struct Watch(Arc<Mutex<Instant>>);

    impl Watch {
        fn new() -> Watch {
            Watch(Arc::new(Mutex::new(Instant::now())))
        }
        fn now(&self) -> Instant {
            *self.0.lock().unwrap()
        }
        fn pass(&self, seconds: u64) {
            *self.0.lock().unwrap() += Duration::from_secs(seconds);
        }
    }

    fn scan(paths: &[&Path], entries: usize, watch: &Watch) -> Scan {
        let watch = watch.clone();
        let means = Means {
            procfs: "/proc".into(),
            network_too: false,
            opener: walk::open,
            clock: Box::new(move || watch.now()),
            entries,
        };
        Scan { tiers: paths.iter().map(|path| Tier::new(path)).collect(), means }
    }

    fn value(reading: &Reading, desc: Desc, path: &Path) -> Option<f64> {
        let family = reading.lasting.iter().find(|family| family.desc == desc)?;
        family.samples.iter().find(|(labels, _)| *labels == path_label(path)).map(|(_, value)| *value)
    }

    fn figures(reading: &Reading, path: &Path) -> [Option<f64>; 3] {
        [BYTES, FILES, UNREADABLE].map(|desc| value(reading, desc, path))
    }

    /// Runs until the directory has figures; `None` if a thousand runs do not bring them.
    fn until_known(scan: &mut Scan, path: &Path) -> Option<Reading> {
        (0..1000).map(|_| scan.collect().unwrap()).find(|reading| value(reading, FILES, path).is_some())
    }

    #[test]
    fn ten_thousand_files_of_which_half_are_replaced_on_the_way() {
        let root = tempfile::tempdir().unwrap();
        let dir = |n: usize| root.path().join(format!("m_0a1b2c_r0/{:03x}", n % 16));
        let file = |n: usize, kind: &str| dir(n).join(format!("{n:05}{kind}.bin"));
        for n in 0..16 {
            fs::create_dir_all(dir(n)).unwrap();
        }
        for n in 0..10_000 {
            fs::write(file(n, ""), [7; 4096]).unwrap();
        }
        symlink("/", root.path().join("rootfs")).unwrap();
        fs::write(root.path().join("half.tmp"), [7; 4096]).unwrap();
        let watch = Watch::new();
        let mut scan = scan(&[root.path()], 3000, &watch);
        let reading = scan.collect().unwrap();
        assert_eq!(figures(&reading, root.path()), [None; 3], "no figures before the first pass has ended");
        assert!(reading.notes[0].contains("first scan is under way") && reading.ages.is_empty());
        for n in (0..10_000).step_by(2) {
            fs::remove_file(file(n, "")).unwrap();
            fs::write(file(n, "-again"), [7; 4096]).unwrap();
        }
        let reading = until_known(&mut scan, root.path()).unwrap();
        let [bytes, files, unreadable] = figures(&reading, root.path()).map(Option::unwrap);
        // Half of them were there all the time; the others may be seen never, once or, under two names, twice.
        assert!((5000.0..=15_000.0).contains(&files), "{files}");
        assert_eq!((bytes, unreadable), (files * 4096.0, 0.0));
        watch.pass(60);
        let at_rest = (0..4).map(|_| scan.collect().unwrap()).last().unwrap();
        // 10,000 × 4,096
        assert_eq!(figures(&at_rest, root.path()), [Some(40_960_000.0), Some(10_000.0), Some(0.0)]);
    }

    #[test]
    fn the_collector_s_figures_come_to_a_scrape_with_their_age() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a.pt"), [7; 8192]).unwrap();
        let options = Options { disk_tiers: vec![root.path().into()], collectors: vec![NAME], ..Options::default() };
        let host = Host::start(&options);
        let deadline = Instant::now() + Duration::from_secs(10);
        let text = loop {
            let text = encode(&host.look(Instant::now()).families);
            if text.contains("kvtier_disk_tier_bytes{") || Instant::now() > deadline {
                break text;
            }
            std::thread::yield_now();
        };
        for (name, value) in
            [("bytes", "} 8192\n"), ("files", "} 1\n"), ("unreadable", "} 0\n"), ("scan_age_seconds", "} ")]
        {
            let line = format!("kvtier_disk_tier_{name}{{path=\"{}\"{value}", root.path().display());
            assert!(text.contains(&line), "{line} in {text}");
        }
    }

    #[test]
    fn a_run_looks_at_no_more_than_its_share_of_entries() {
        let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for n in 0..10 {
            fs::write(one.path().join(n.to_string()), "x").unwrap();
            fs::write(two.path().join(n.to_string()), "x").unwrap();
        }
        let mut scan = scan(&[one.path(), two.path()], 8, &Watch::new());
        let seen = |scan: &Scan| scan.tiers.iter().map(|tier| Some(tier.pass.as_ref()?.1.files())).collect::<Vec<_>>();
        scan.collect().unwrap();
        assert_eq!(seen(&scan), [Some(4), Some(4)]);
        scan.collect().unwrap();
        assert_eq!(seen(&scan), [Some(8), Some(8)]);
        let reading = scan.collect().unwrap();
        assert_eq!(seen(&scan), [None, None]);
        assert_eq!((value(&reading, FILES, one.path()), value(&reading, FILES, two.path())), (Some(10.0), Some(10.0)));
    }

    #[test]
    fn a_run_on_a_slow_disk_ends_when_its_time_is_over() {
        let root = tempfile::tempdir().unwrap();
        for n in 0..10 {
            fs::write(root.path().join(n.to_string()), "x").unwrap();
        }
        let watch = Watch::new();
        let mut scan = scan(&[root.path()], 1000, &watch);
        // Each look at the clock costs a fifth of a second: one at the start, then one an entry, until 0.5 s are over.
        scan.means.clock = Box::new(move || {
            *watch.0.lock().unwrap() += Duration::from_millis(200);
            watch.now()
        });
        scan.collect().unwrap();
        assert_eq!(scan.tiers[0].pass.as_ref().map(|(_, walk)| walk.files()), Some(3));
    }

    #[test]
    fn a_pass_rests_a_minute_and_the_age_counts_from_its_start() {
        let root = tempfile::tempdir().unwrap();
        for n in 0..4 {
            fs::write(root.path().join(n.to_string()), "x").unwrap();
        }
        let watch = Watch::new();
        let mut scan = scan(&[root.path()], 3, &watch);
        let begun = watch.now();
        assert!(scan.collect().unwrap().ages.is_empty());
        watch.pass(5);
        let since = |reading: &Reading| reading.ages.iter().map(|age| age.since).collect::<Vec<_>>();
        assert_eq!(since(&scan.collect().unwrap()), [begun]);
        fs::write(root.path().join("new"), "x").unwrap();
        watch.pass(59);
        let resting = scan.collect().unwrap();
        assert_eq!((since(&resting), value(&resting, FILES, root.path())), (vec![begun], Some(4.0)));
        assert!(scan.tiers[0].pass.is_none(), "no pass before the minute is over");
        watch.pass(1);
        let under_way = scan.collect().unwrap();
        assert!(scan.tiers[0].pass.is_some());
        assert_eq!((since(&under_way), value(&under_way, FILES, root.path())), (vec![begun], Some(4.0)));
        watch.pass(5);
        let second = scan.collect().unwrap();
        assert_eq!(since(&second), [begun + Duration::from_secs(65)]);
        assert_eq!(value(&second, FILES, root.path()), Some(5.0));
    }

    #[test]
    fn a_missing_directory_has_no_figures_until_it_comes_and_after_it_went() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("kv");
        let watch = Watch::new();
        let mut scan = scan(&[&path], 100, &watch);
        let reading = scan.collect().unwrap();
        assert_eq!(figures(&reading, &path), [None; 3]);
        let [note] = &reading.notes[..] else { panic!("{:?}", reading.notes) };
        assert!(note.contains("kv is not scanned: it cannot be opened: no such file"), "{note}");
        fs::create_dir(&path).unwrap();
        watch.pass(5);
        let reading = scan.collect().unwrap();
        assert_eq!(figures(&reading, &path), [Some(0.0); 3], "an empty directory is known to be empty");
        assert_eq!(reading.notes, Vec::<String>::new());
        fs::remove_dir(&path).unwrap();
        watch.pass(60);
        let reading = scan.collect().unwrap();
        assert_eq!((figures(&reading, &path), reading.ages.len()), ([None; 3], 0));
    }

    #[test]
    fn a_directory_that_cannot_be_opened_is_counted_but_has_no_figures() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reading = scan(&[file.path()], 100, &Watch::new()).collect().unwrap();
        assert_eq!(figures(&reading, file.path()), [None, None, Some(1.0)]);
        assert!(reading.notes[0].contains("not a directory"), "{:?}", reading.notes);
    }

    #[test]
    fn a_part_that_cannot_be_read_leaves_the_rest_and_a_note_without_numbers() {
        let root = tempfile::tempdir().unwrap();
        for dir in ["locked", "open"] {
            fs::create_dir(root.path().join(dir)).unwrap();
            fs::write(root.path().join(dir).join("a.bin"), "x").unwrap();
        }
        let mut scan = scan(&[root.path()], 100, &Watch::new());
        scan.means.opener = |parent, name| match name == c"locked" {
            true => Err(rustix::io::Errno::ACCESS),
            false => walk::open(parent, name),
        };
        let reading = scan.collect().unwrap();
        assert_eq!(figures(&reading, root.path())[1..], [Some(1.0), Some(1.0)]);
        let [note] = &reading.notes[..] else { panic!("{:?}", reading.notes) };
        assert!(note.contains("figures are too low; first") && note.contains("/locked: permission denied"), "{note}");
    }

    /// A process file system that lists one mount of that type at the path.
    fn procfs(kind: &str, point: &Path) -> tempfile::TempDir {
        let procfs = tempfile::tempdir().unwrap();
        fs::create_dir(procfs.path().join("self")).unwrap();
        let list = format!("1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:50 / {} rw - {kind} x rw\n", point.display());
        fs::write(procfs.path().join("self/mountinfo"), list).unwrap();
        procfs
    }

    #[test]
    fn a_network_mount_is_scanned_only_by_force() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "x").unwrap();
        for (kind, forced, files) in
            [("nfs4", false, None), ("fuse.sshfs", false, None), ("nfs4", true, Some(1.0)), ("xfs", false, Some(1.0))]
        {
            let procfs = procfs(kind, root.path());
            let mut scan = scan(&[root.path()], 100, &Watch::new());
            scan.means.procfs = procfs.path().to_owned();
            scan.means.network_too = forced;
            let reading = scan.collect().unwrap();
            assert_eq!(figures(&reading, root.path())[1..], [files, files.map(|_| 0.0)]);
            let told = reading.notes.iter().any(|note| note.contains(kind) && note.contains("--disk.scan-network"));
            assert_eq!(told, kind != "xfs", "{:?}", reading.notes);
        }
    }

    #[test]
    fn a_mount_that_nobody_knows_is_scanned_only_by_force() {
        let root = tempfile::tempdir().unwrap();
        let mut scan = scan(&[root.path()], 100, &Watch::new());
        scan.means.procfs = root.path().join("no-proc");
        let reading = scan.collect().unwrap();
        assert_eq!(figures(&reading, root.path()), [None; 3]);
        assert!(reading.notes[0].contains("not known whether it lies on a network mount"), "{:?}", reading.notes);
        scan.means.network_too = true;
        assert_eq!(figures(&scan.collect().unwrap(), root.path())[1], Some(0.0));
    }

    #[test]
    fn lmcache_s_figure_is_compared_with_the_one_directory_that_can_be_meant() {
        let measured = |values: &[(&str, f64)]| {
            let mut family = Family::new(BYTES);
            for (path, bytes) in values {
                family.push(path_label(Path::new(path)), *bytes);
            }
            vec![Family::new(FILES), family]
        };
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let text = |configured: &[&str], known: &[(&str, f64)]| {
            let text = encode(&[lmcache_difference(16_777_216.0, &paths(configured), &measured(known))]);
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        // A full disk: LMCache counted 16 MiB, 3 MiB are there. 16,777,216 − 3,145,728
        let full = "kvtier_lmcache_disk_usage_difference_bytes{path=\"/kv\"} 13631488";
        assert_eq!(text(&["/kv"], &[("/kv", 3_145_728.0)]), [full]);
        let none = Vec::<String>::new();
        assert_eq!(text(&["/kv"], &[]), none, "not measured yet");
        assert_eq!(text(&["/kv", "/kv2"], &[("/kv", 1.0), ("/kv2", 2.0)]), none);
        assert_eq!(text(&["/kv", "/kv2"], &[("/kv", 1.0)]), none, "the other one may be meant");
        assert_eq!(text(&[], &[("/kv", 1.0)]), none);
    }
}
