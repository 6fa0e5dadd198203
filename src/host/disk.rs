//! Room of the file systems that hold disk tiers (`--path.disk-tier`).
//!
//! How much of it a tier takes is not said here: statvfs counts everything on the file system. `scan` measures it.

use std::path::{Path, PathBuf};

use crate::family::{Desc, Family};
use crate::plain;

use super::space::{self, Space};
use super::{Collector, Failure, Options, Reading};

pub(super) const NAME: &str = "disk";

pub(crate) const SIZE: Desc =
    Desc::gauge("kvtier_disk_size_bytes", "Size of the file system that holds the disk tier, in bytes.");
pub(crate) const USED: Desc = Desc::gauge(
    "kvtier_disk_used_bytes",
    "Bytes in use on the file system that holds the disk tier, by the tier and by everything else.",
);
pub(crate) const AVAILABLE: Desc = Desc::gauge(
    "kvtier_disk_available_bytes",
    "Bytes that an ordinary user may still write on the file system that holds the disk tier.",
);
const INODES: Desc = Desc::gauge(
    "kvtier_disk_inodes",
    "Inodes of the file system that holds the disk tier. Absent where it has no fixed number.",
);
const INODES_FREE: Desc =
    Desc::gauge("kvtier_disk_inodes_free", "Inodes still free on the file system that holds the disk tier.");

pub(super) const DESCS: [Desc; 5] = [SIZE, USED, AVAILABLE, INODES, INODES_FREE];

struct Disk {
    paths: Vec<PathBuf>,
    space: space::Reader,
}

pub(super) fn build(options: &Options) -> Option<Box<dyn Collector>> {
    let paths = options.disk_tiers.clone();
    (!paths.is_empty()).then(|| Box::new(Disk { paths, space: Box::new(space::read) }) as Box<dyn Collector>)
}

impl Collector for Disk {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self) -> Result<Reading, Failure> {
        let mut families = DESCS.map(Family::new);
        let mut notes = Vec::new();
        for path in &self.paths {
            match (self.space)(path) {
                Ok(space) => add(&mut families, path, &space),
                Err(error) => notes.push(format!("room at {} is unknown: {}", path.display(), plain::io(&error))),
            }
        }
        if notes.len() == self.paths.len() {
            return Err(Failure::Broken(notes.join("; ")));
        }
        Ok(Reading { families: families.into(), notes, ..Reading::default() })
    }
}

fn add(families: &mut [Family; 5], path: &Path, space: &Space) {
    let values = [space.size, space.used, space.available, space.inodes, space.inodes_free];
    for (family, value) in families.iter_mut().zip(values) {
        family.push(vec![("path", path.display().to_string())], value.map(|number| number as f64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::encode;
    use crate::host::{Host, Pace};
    use std::io;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    fn disk(paths: &[&str], space: impl Fn(&Path) -> io::Result<Space> + Send + 'static) -> Disk {
        Disk { paths: paths.iter().map(PathBuf::from).collect(), space: Box::new(space) }
    }

    fn one_works(path: &Path) -> io::Result<Space> {
        match path.ends_with("kv") {
            true => Ok(Space { size: Some(1000), used: Some(600), available: Some(350), ..Space::default() }),
            false => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    #[test]
    fn each_path_is_told_alone_and_a_missing_one_costs_only_itself() {
        let reading = disk(&["/kv", "/gone"], one_works).collect().unwrap();
        let text = encode(&reading.families);
        assert!(text.contains("kvtier_disk_size_bytes{path=\"/kv\"} 1000\n"), "{text}");
        assert!(text.contains("kvtier_disk_used_bytes{path=\"/kv\"} 600\n"), "{text}");
        assert!(text.contains("kvtier_disk_available_bytes{path=\"/kv\"} 350\n"), "{text}");
        assert!(!text.contains("inodes") && !text.contains("gone"), "{text}");
        assert!(matches!(&reading.notes[..], [note] if note.contains("/gone")), "{:?}", reading.notes);
    }

    #[test]
    fn no_path_at_all_is_a_failure() {
        let failure = disk(&["/gone", "/away"], one_works).collect().unwrap_err();
        assert!(matches!(failure, Failure::Broken(why) if why.contains("/gone") && why.contains("/away")));
    }

    #[test]
    fn a_dead_mount_holds_up_nothing_but_its_own_collector() {
        let (hung_up, never) = mpsc::channel::<()>();
        let never = std::sync::Mutex::new(never);
        let dead = disk(&["/nfs"], move |_| {
            let _ = never.lock().unwrap().recv();
            Err(io::Error::other("the test is over"))
        });
        let host = Host::with(vec![Box::new(dead)], Pace::default());
        let begun = Instant::now();
        let look = host.look(begun);
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!(look.collectors[0].success, None);
        drop(hung_up);
    }
}
