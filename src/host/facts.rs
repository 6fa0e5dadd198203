//! The families of the box read back as nouns, for the commands around a launch: they tell what a scrape would show,
//! and measure nothing themselves.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::family::{Desc, Family, Labels};

use super::unseen::{NoMemory, Unseen};
use super::{Host, Look, Measured, Options, Place, gpu, measure, memory, place, scan, shm};

/// The box as far as it is known. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BoxFacts {
    /// The shared-memory mount; `None` where it could not be looked at.
    pub shm: Option<Shm>,
    /// MemTotal.
    pub memory_total: Option<f64>,
    /// MemAvailable.
    pub memory_available: Option<f64>,
    /// GPUs that say who they are; of one that is cut into MIG slices the slices.
    pub gpus: Vec<Gpu>,
    /// How many GPUs are listed, and how many can be read; `None` where there is no driver.
    pub gpu_devices: Option<(f64, f64)>,
    /// What should be there and cannot be seen.
    pub unseen: Unseen,
    /// What is not known, and why: one sentence each.
    pub unknown: Vec<String>,
}

/// The shared-memory mount that the engine's tier lies in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shm {
    /// Where it was looked at.
    pub path: String,
    /// Its size; unknown where it has no limit.
    pub size: Option<f64>,
    /// Bytes free on the mount.
    pub available: Option<f64>,
    /// What the tighter wall leaves, and its name: `shm` or `cgroup`.
    pub headroom: Option<(f64, String)>,
    /// Whether it is a tmpfs.
    pub is_tmpfs: Option<bool>,
    /// Number and bytes of tier files that a live process maps.
    pub mapped: (f64, f64),
    /// Number and bytes of tier files that no process maps.
    pub stale: (f64, f64),
    /// Number and bytes of tier files of which nobody knows.
    pub unsure: (f64, f64),
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// Its number; of a MIG slice GPU:SLICE.
    pub index: String,
    /// The driver's name of the part.
    pub name: String,
    /// Host and GPU share one memory.
    pub unified: bool,
    /// Its memory.
    pub total: Option<f64>,
    /// Memory still free.
    pub free: Option<f64>,
    /// Generation of the PCIe link now, and at most.
    pub generation: Option<(f64, f64)>,
    /// Lanes of the PCIe link now, and at most.
    pub width: Option<(f64, f64)>,
}

/// Its number, and its name where it has one.
impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.index)?;
        if self.name.is_empty() { Ok(()) } else { write!(f, " ({})", self.name) }
    }
}

/// Lets every collector that these options turn on run once; one that has not ended within `patience` is unknown.
/// The scan of disk tiers is left out: it takes as long as the tier is large.
pub async fn look(options: &Options, patience: Duration) -> Look {
    let mut options = options.clone();
    options.collectors.retain(|name| *name != scan::NAME);
    let host = Host::start(&options);
    let deadline = Instant::now() + patience;
    loop {
        let look = host.look(Instant::now());
        if look.collectors.iter().all(|one| one.success.is_some()) || Instant::now() >= deadline {
            return look;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Looks at a directory on a thread of its own; `None` where that did not end within `patience`.
pub async fn look_at(path: &Path, procfs: &Path, patience: Duration) -> Option<Place> {
    let (path, procfs): (PathBuf, PathBuf) = (path.into(), procfs.into());
    detached(move || place(&path, &procfs), patience).await
}

/// Counts what a directory holds, for at most `patience`; `None` where that cannot be told.
pub async fn measured(path: &Path, options: &Options, patience: Duration) -> Option<Measured> {
    let (path, procfs, network_too) = (path.to_owned(), options.procfs.clone(), options.disk_scan_network);
    // The walk ends by itself; the rest is for a file system that blocks.
    let walk = move || measure::measure(&path, &procfs, network_too, patience);
    detached(walk, patience + Duration::from_secs(1)).await?
}

/// What `work` says within `patience`. What a dead mount holds up ends with the process.
async fn detached<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static, patience: Duration) -> Option<T> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || drop(tell.send(work())));
    tokio::time::timeout(patience, told).await.ok()?.ok()
}

impl BoxFacts {
    /// Why a GPU's memory is not known; `None` where it is.
    pub fn why_untold(&self, gpu: &Gpu) -> Option<&NoMemory> {
        self.unseen.memory.iter().find(|untold| untold.gpu == gpu.index).map(|untold| &untold.why)
    }

    /// What a look says; `patience` is how long it was waited for.
    pub fn of(look: &Look, patience: Duration) -> BoxFacts {
        let families = Families(&look.families);
        BoxFacts {
            shm: families.shm(),
            memory_total: families.one(memory::TOTAL),
            memory_available: families.one(memory::AVAILABLE),
            gpus: families.gpus(),
            gpu_devices: families.with(gpu::DEVICES, "state", "listed").zip(families.with(
                gpu::DEVICES,
                "state",
                "readable",
            )),
            unseen: look.unseen.clone(),
            unknown: unknown(look, patience),
        }
    }
}

fn unknown(look: &Look, patience: Duration) -> Vec<String> {
    let mut lines = Vec::new();
    for collector in &look.collectors {
        let name = collector.name;
        match (&collector.failure, collector.success) {
            (Some(why), _) => lines.push(format!("{name}: {why}")),
            (None, None) => lines.push(format!(
                "{name}: no answer within {}: the driver or the file system blocks",
                humantime::format_duration(patience)
            )),
            _ => lines.extend(collector.notes.iter().map(|note| format!("{name}: {note}"))),
        }
    }
    lines
}

struct Families<'a>(&'a [Family]);

impl<'a> Families<'a> {
    fn samples(&self, desc: Desc) -> &'a [(Labels, f64)] {
        self.0.iter().find(|family| family.desc == desc).map_or(&[], |family| &family.samples)
    }

    fn one(&self, desc: Desc) -> Option<f64> {
        self.samples(desc).first().map(|(_, value)| *value)
    }

    /// The value with this label.
    fn with(&self, desc: Desc, name: &str, value: &str) -> Option<f64> {
        self.samples(desc).iter().find(|(labels, _)| label(labels, name) == value).map(|(_, number)| *number)
    }

    fn shm(&self) -> Option<Shm> {
        let files = |state| {
            let of = |desc| self.with(desc, "state", state).unwrap_or(0.0);
            (of(shm::FILES), of(shm::BYTES))
        };
        let path = label(&self.samples(shm::IS_TMPFS).first()?.0, "path").to_owned();
        let headroom = self.samples(shm::HEADROOM).first();
        Some(Shm {
            path,
            size: self.one(shm::SIZE),
            available: self.one(shm::AVAILABLE),
            headroom: headroom.map(|(labels, bytes)| (*bytes, label(labels, "limiter").to_owned())),
            is_tmpfs: self.one(shm::IS_TMPFS).map(|flag| flag == 1.0),
            mapped: files("mapped"),
            stale: files("stale"),
            unsure: files("unknown"),
        })
    }

    fn gpus(&self) -> Vec<Gpu> {
        self.samples(gpu::INFO).iter().map(|(labels, _)| self.gpu(labels)).collect()
    }

    fn gpu(&self, labels: &Labels) -> Gpu {
        let index = label(labels, "gpu");
        let of = |desc| self.with(desc, "gpu", index);
        Gpu {
            index: index.to_owned(),
            name: label(labels, "name").to_owned(),
            unified: of(gpu::UNIFIED) == Some(1.0),
            total: of(gpu::TOTAL),
            free: of(gpu::FREE),
            generation: of(gpu::GENERATION).zip(of(gpu::GENERATION_MAX)),
            width: of(gpu::WIDTH).zip(of(gpu::WIDTH_MAX)),
        }
    }
}

fn label<'l>(labels: &'l Labels, name: &str) -> &'l str {
    labels.get(name).unwrap_or_default()
}
