//! Host collectors: facts of the box that no engine's page carries.
//!
//! Each collector lives on one long-lived thread of its own ([`runner`]), because a driver or file-system call
//! may block for minutes. A scrape only looks at the last sample and its age; it never waits for a collector,
//! and one collector's failure is never another's. Inside a collector, reading (I/O) and understanding (pure)
//! are kept apart: `nvml` reads, `gpu` and `gpu_memory` understand, `walk` reads and `scan` understands, `maps`, `cgroup`,
//! `mount`, `place` and `space` each hold their pair. `roster` remembers which GPUs there were; [`unseen`] names what
//! should be there and cannot be seen, and why. `measure` walks once, for `check`.
//!
//! To add one: a file here with a type that implements [`Collector`], and one row in `COLLECTORS`. Its flag
//! (`--[no-]collector.NAME`) follows from its name.

mod cgroup;
pub(crate) mod disk;
pub mod facts;
pub(crate) mod gpu;
mod gpu_memory;
mod maps;
mod measure;
pub(crate) mod memory;
mod mount;
mod nvml;
mod place;
mod roster;
pub mod runner;
pub(crate) mod scan;
pub(crate) mod shm;
mod space;
pub mod unseen;
mod walk;

use std::path::PathBuf;
use std::time::Instant;

use crate::family::{Desc, Family, Labels};
use crate::settings::HostFacts;

use unseen::Unseen;

pub use measure::Measured;
pub use mount::Mount;
pub use place::{Place, Room, Standing, place};
pub use runner::{Health, Host, Look, Pace};

/// One source of host facts. It is called on its own thread, again and again.
pub trait Collector: Send {
    /// Name in flags, logs and the `collector` label.
    fn name(&self) -> &'static str;

    /// Reads everything once. It may block; it must not sleep.
    ///
    /// # Errors
    /// [`Failure`] when nothing at all could be read. What could be read in part is an `Ok` with less in it.
    fn collect(&mut self) -> Result<Reading, Failure>;

    /// What it still says while a run has failed or does not end: what is known of the past. Asked for after each run.
    fn standing(&self) -> Reading {
        Reading::default()
    }
}

/// What one run of a collector brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Our families; unknown values are absent samples. Left out of a scrape once the reading is too old.
    pub families: Vec<Family>,
    /// Families that state their own age beside them: the last ones known stay, however old.
    pub lasting: Vec<Family>,
    /// The ages of what is in `lasting`, told anew at each look so that they grow even while a run does not end.
    pub ages: Vec<Age>,
    /// Facts that the core works with; only the fields that this collector knows are set.
    pub facts: HostFacts,
    /// Sentences for `/debug` and the log: what is partly unknown, and why. A text that does not change from
    /// run to run is logged once, so no counts or times in here.
    pub notes: Vec<String>,
    /// What should be there and cannot be seen. It is said like notes; the log warns of what is lost.
    pub unseen: Unseen,
}

/// How old something is that lasts: one sample of a family in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Age {
    /// The family.
    pub desc: Desc,
    /// Whose age it is.
    pub labels: Labels,
    /// Nothing that this is the age of was read before.
    pub since: Instant,
}

/// Why a collector has nothing to say. Either way its `kvtier_collector_success` is 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// What it looks at is not on this box: no fault, so it is logged as information.
    #[error("not here: {0}")]
    Absent(String),
    /// It should have worked: logged as a warning.
    #[error("{0}")]
    Broken(String),
}

/// Where the collectors look, and which of them run.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--path.procfs`: the process file system, for memory, processes and their cgroups.
    pub procfs: PathBuf,
    /// `--path.sysfs`: its `fs/cgroup` holds the memory limits.
    pub sysfs: PathBuf,
    /// `--path.shm`: the shared-memory mount that the engine sees.
    pub shm: PathBuf,
    /// `--path.cgroup`: directory of the engine's memory cgroup; found through its processes where not given.
    pub cgroup: Option<PathBuf>,
    /// `--path.disk-tier`: directories of disk tiers.
    pub disk_tiers: Vec<PathBuf>,
    /// `--disk.scan-network`: disk tiers are scanned on network mounts too.
    pub disk_scan_network: bool,
    /// `--nvml.library`: the NVML library; the usual names are tried where not given.
    pub nvml_library: Option<PathBuf>,
    /// `--gpu.unified`: the operator says that GPU and host share one memory.
    pub gpu_unified: bool,
    /// Names (of [`NAMES`]) of the collectors that run.
    pub collectors: Vec<&'static str>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            procfs: "/proc".into(),
            sysfs: "/sys".into(),
            shm: "/dev/shm".into(),
            cgroup: None,
            disk_tiers: Vec::new(),
            disk_scan_network: false,
            nvml_library: None,
            gpu_unified: false,
            collectors: NAMES.to_vec(),
        }
    }
}

/// One collector: how it is called, what it tells, how it is built.
struct Row {
    name: &'static str,
    descs: &'static [Desc],
    /// `None` where the options give it nothing to look at.
    build: fn(&Options) -> Option<Box<dyn Collector>>,
}

const COLLECTORS: [Row; 5] = [
    Row { name: shm::NAME, descs: &shm::DESCS, build: shm::build },
    Row { name: memory::NAME, descs: &memory::DESCS, build: memory::build },
    Row { name: gpu::NAME, descs: &gpu::DESCS, build: gpu::build },
    Row { name: disk::NAME, descs: &disk::DESCS, build: disk::build },
    Row { name: scan::NAME, descs: &scan::DESCS, build: scan::build },
];

/// Names of all collectors, as in `--[no-]collector.NAME`.
pub const NAMES: [&str; COLLECTORS.len()] = {
    let mut names = [""; COLLECTORS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = COLLECTORS[at].name;
        at += 1;
    }
    names
};

/// The collectors that these options turn on and give something to look at.
pub fn all(options: &Options) -> Vec<Box<dyn Collector>> {
    COLLECTORS
        .iter()
        .filter(|row| options.collectors.contains(&row.name))
        .filter_map(|row| (row.build)(options))
        .collect()
}

/// Every family that this room can write.
pub fn descs() -> Vec<Desc> {
    COLLECTORS.iter().flat_map(|row| row.descs).chain(&runner::DESCS).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_collector_runs_under_its_name_and_only_where_it_has_something_to_look_at() {
        let names = |options: &Options| all(options).iter().map(|one| one.name()).collect::<Vec<_>>();
        assert_eq!(NAMES, ["shm", "memory", "gpu", "disk", "scan"]);
        assert_eq!(names(&Options::default()), ["shm", "memory", "gpu"]);
        let disk = Options { disk_tiers: vec!["/kv".into()], ..Options::default() };
        assert_eq!(names(&disk), NAMES);
        let only = Options { collectors: vec!["memory"], ..Options::default() };
        assert_eq!(names(&only), ["memory"]);
    }

    #[test]
    fn each_family_is_spelled_once_and_explained() {
        let descs = descs();
        let names: BTreeSet<_> = descs.iter().map(|desc| desc.name).collect();
        assert_eq!(names.len(), descs.len());
        assert!(descs.iter().all(|desc| desc.name.starts_with("kvtier_") && desc.help.ends_with('.')));
    }
}
