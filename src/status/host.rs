//! The box that the exporter runs on, told from what its collectors know.

use serde::Serialize;

use crate::family::{Desc, Family, Labels};
use crate::host::{Health, Look, disk, gpu, memory, scan, shm};

/// What the collectors know.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// GPUs that say who they are; of one that is cut into MIG slices the slices.
    pub gpus: Vec<Gpu>,
    /// Most GPUs that the driver listed at once since the start; `null` where no driver has answered.
    pub gpus_listed: Option<f64>,
    /// Those that can be read now.
    pub gpus_readable: Option<f64>,
    /// Which ones cannot, and why: one sentence each.
    pub gpus_unreadable: Vec<String>,
    /// The shared-memory mounts.
    pub shm: Vec<Shm>,
    /// Memory of the box.
    pub memory: Memory,
    /// Directories of disk tiers.
    pub disk_tiers: Vec<DiskTier>,
    /// How the collectors are.
    pub collectors: Vec<Collector>,
}

/// One GPU.
#[derive(Clone, Debug, Serialize)]
pub struct Gpu {
    /// Its index; of a MIG slice GPU:SLICE.
    pub gpu: String,
    /// Its identity; empty where the driver does not tell.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Whether it shares one memory with the host.
    pub unified_memory: Option<bool>,
    /// Where the figures come from: `nvml`, `host` or `none`.
    pub memory_source: Option<String>,
    /// All of its memory.
    pub memory_total_bytes: Option<f64>,
    /// Memory in use.
    pub memory_used_bytes: Option<f64>,
    /// Memory still free.
    pub memory_free_bytes: Option<f64>,
}

/// A shared-memory mount.
#[derive(Clone, Debug, Serialize)]
pub struct Shm {
    /// Where it is mounted.
    pub path: String,
    /// Whether it is a tmpfs.
    pub is_tmpfs: bool,
    /// Its size; `null` where it has no limit of its own.
    pub size_bytes: Option<f64>,
    /// Bytes in use.
    pub used_bytes: Option<f64>,
    /// Bytes that the mount has free.
    pub available_bytes: Option<f64>,
    /// What the tighter wall leaves.
    pub headroom_bytes: Option<f64>,
    /// The tighter wall: `shm` or `cgroup`.
    pub headroom_limiter: Option<String>,
    /// Tier files by whether a process maps them.
    pub tier_files: Vec<TierFiles>,
}

/// Tier files of one state.
#[derive(Clone, Debug, Serialize)]
pub struct TierFiles {
    /// `mapped`, `stale` or `unknown`.
    pub state: String,
    /// How many.
    pub files: f64,
    /// Their length.
    pub bytes: Option<f64>,
}

/// Memory of the box.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// MemTotal.
    pub total_bytes: Option<f64>,
    /// MemAvailable, an estimate.
    pub available_bytes: Option<f64>,
    /// MemFree.
    pub free_bytes: Option<f64>,
    /// Shmem.
    pub shared_bytes: Option<f64>,
}

/// A directory of a disk tier, and the file system that holds it.
#[derive(Clone, Debug, Serialize)]
pub struct DiskTier {
    /// The directory.
    pub path: String,
    /// Size of the file system.
    pub size_bytes: Option<f64>,
    /// Bytes in use on it, by the tier and by everything else.
    pub used_bytes: Option<f64>,
    /// Bytes that may still be written.
    pub available_bytes: Option<f64>,
    /// Bytes that the tier's files take, from the last finished scan.
    pub tier_bytes: Option<f64>,
    /// Files of the tier, from the last finished scan.
    pub tier_files: Option<f64>,
    /// Age of that scan.
    pub scan_age_seconds: Option<f64>,
}

/// How one collector is.
#[derive(Clone, Debug, Serialize)]
pub struct Collector {
    /// Its name.
    pub name: &'static str,
    /// Whether its last run is good and fresh; `null` before the first one has ended.
    pub success: Option<bool>,
    /// Length of its last finished run.
    pub duration_seconds: Option<f64>,
    /// Age of its last good sample.
    pub age_seconds: Option<f64>,
    /// What went wrong.
    pub failure: Option<String>,
    /// What is partly unknown, and why.
    pub notes: Vec<String>,
}

impl Host {
    /// Puts a look into words.
    pub fn new(look: &Look) -> Host {
        let known = Known(&look.families);
        let memory = |desc| known.value(desc, &[]);
        Host {
            gpus: known.all(gpu::INFO).map(|(labels, _)| Gpu::new(known, labels)).collect(),
            gpus_listed: known.value(gpu::DEVICES, &[("state", "listed")]),
            gpus_readable: known.value(gpu::DEVICES, &[("state", "readable")]),
            gpus_unreadable: look.unseen.gpus.iter().map(ToString::to_string).collect(),
            shm: known.all(shm::IS_TMPFS).map(|(labels, is)| Shm::new(known, labels, is == 1.0)).collect(),
            memory: Memory {
                total_bytes: memory(memory::TOTAL),
                available_bytes: memory(memory::AVAILABLE),
                free_bytes: memory(memory::FREE),
                shared_bytes: memory(memory::SHARED),
            },
            disk_tiers: known.disk_tiers(),
            collectors: look.collectors.iter().map(Collector::new).collect(),
        }
    }
}

impl Gpu {
    fn new(known: Known<'_>, labels: &Labels) -> Gpu {
        let gpu = text(labels, "gpu").unwrap_or_default();
        let own = [("gpu", gpu.as_str())];
        Gpu {
            uuid: text(labels, "uuid").unwrap_or_default(),
            name: text(labels, "name").unwrap_or_default(),
            unified_memory: known.value(gpu::UNIFIED, &own).map(|flag| flag == 1.0),
            memory_source: known.text(gpu::SOURCE, &own, "source"),
            memory_total_bytes: known.value(gpu::TOTAL, &own),
            memory_used_bytes: known.value(gpu::USED, &own),
            memory_free_bytes: known.value(gpu::FREE, &own),
            gpu,
        }
    }
}

impl Shm {
    fn new(known: Known<'_>, labels: &Labels, is_tmpfs: bool) -> Shm {
        let path = text(labels, "path").unwrap_or_default();
        let own = [("path", path.as_str())];
        let files = known.all(shm::FILES).filter(|(labels, _)| has(labels, &own));
        let tier_files = files.map(|(labels, files)| {
            let state = text(labels, "state").unwrap_or_default();
            let bytes = known.value(shm::BYTES, &[own[0], ("state", &state)]);
            TierFiles { state, files, bytes }
        });
        Shm {
            is_tmpfs,
            size_bytes: known.value(shm::SIZE, &own),
            used_bytes: known.value(shm::USED, &own),
            available_bytes: known.value(shm::AVAILABLE, &own),
            headroom_bytes: known.value(shm::HEADROOM, &own),
            headroom_limiter: known.text(shm::HEADROOM, &own, "limiter"),
            tier_files: tier_files.collect(),
            path,
        }
    }
}

impl Collector {
    fn new(health: &Health) -> Collector {
        Collector {
            name: health.name,
            success: health.success,
            duration_seconds: health.duration.map(|time| time.as_secs_f64()),
            age_seconds: health.age.map(|time| time.as_secs_f64()),
            failure: health.failure.clone(),
            notes: health.notes.clone(),
        }
    }
}

/// The families of a look, to be searched. What is not in them is not known.
#[derive(Clone, Copy)]
struct Known<'a>(&'a [Family]);

impl<'a> Known<'a> {
    fn all(self, desc: Desc) -> impl Iterator<Item = (&'a Labels, f64)> {
        let families = self.0.iter().filter(move |family| family.desc == desc);
        families.flat_map(|family| family.samples.iter().map(|(labels, value)| (labels, *value)))
    }

    /// The first sample whose labels include these.
    fn one(self, desc: Desc, own: &[(&str, &str)]) -> Option<(&'a Labels, f64)> {
        self.all(desc).find(|(labels, _)| has(labels, own))
    }

    fn value(self, desc: Desc, own: &[(&str, &str)]) -> Option<f64> {
        self.one(desc, own).map(|(_, value)| value)
    }

    fn text(self, desc: Desc, own: &[(&str, &str)], name: &str) -> Option<String> {
        text(self.one(desc, own)?.0, name)
    }

    /// A directory may be known to the scan, to the file system, or to both.
    fn disk_tiers(self) -> Vec<DiskTier> {
        let mut paths: Vec<String> = Vec::new();
        for (labels, _) in [disk::SIZE, disk::AVAILABLE, scan::AGE, scan::BYTES].into_iter().flat_map(|d| self.all(d)) {
            let path = text(labels, "path").unwrap_or_default();
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        let tier = |path: String| {
            let of = |desc| self.value(desc, &[("path", path.as_str())]);
            DiskTier {
                size_bytes: of(disk::SIZE),
                used_bytes: of(disk::USED),
                available_bytes: of(disk::AVAILABLE),
                tier_bytes: of(scan::BYTES),
                tier_files: of(scan::FILES),
                scan_age_seconds: of(scan::AGE),
                path,
            }
        };
        paths.into_iter().map(tier).collect()
    }
}

fn has(labels: &Labels, own: &[(&str, &str)]) -> bool {
    own.iter().all(|(name, value)| labels.get(name) == Some(*value))
}

fn text(labels: &Labels, name: &str) -> Option<String> {
    labels.get(name).map(str::to_owned)
}
