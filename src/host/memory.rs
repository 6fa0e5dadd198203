//! Host memory, from `<procfs>/meminfo`.
//!
//! Not the memory of a container: `/proc/meminfo` is the box's. A container's own limit counts where it can
//! refuse the tier, in the headroom of [`super::shm`].

use std::fs;
use std::path::{Path, PathBuf};

use crate::family::{Desc, Family};
use crate::plain;

use super::{Collector, Failure, Options, Reading};

pub(super) const NAME: &str = "memory";

pub(crate) const TOTAL: Desc =
    Desc::gauge("kvtier_host_memory_total_bytes", "Memory of this box (MemTotal), in bytes.");
pub(crate) const AVAILABLE: Desc = Desc::gauge(
    "kvtier_host_memory_available_bytes",
    "Memory that the kernel estimates could be had without swapping (MemAvailable), in bytes. An estimate, not a promise.",
);
pub(crate) const FREE: Desc = Desc::gauge(
    "kvtier_host_memory_free_bytes",
    "Memory that nothing uses, not even the page cache (MemFree), in bytes.",
);
pub(crate) const SHARED: Desc = Desc::gauge(
    "kvtier_host_memory_shared_bytes",
    "Shared memory and tmpfs (Shmem), in bytes. A RAM tier lies in here from its start, full or not, and cannot be reclaimed without swap.",
);

pub(super) const DESCS: [Desc; 4] = [TOTAL, AVAILABLE, FREE, SHARED];

/// What the kernel says of its memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HostMemory {
    pub(super) total: Option<u64>,
    /// Kernels before 3.14 do not say it.
    pub(super) available: Option<u64>,
    pub(super) free: Option<u64>,
    pub(super) shared: Option<u64>,
}

/// Reads and understands `<procfs>/meminfo`; the error is a sentence.
pub(super) fn read(procfs: &Path) -> Result<HostMemory, String> {
    let path = procfs.join("meminfo");
    let text = fs::read_to_string(&path)
        .map_err(|error| format!("{} cannot be read: {}", path.display(), plain::io(&error)))?;
    let memory = understand(&text);
    match memory {
        HostMemory { total: None, .. } => Err(format!("{} does not say MemTotal", path.display())),
        _ => Ok(memory),
    }
}

fn understand(meminfo: &str) -> HostMemory {
    let mut memory = HostMemory::default();
    for (name, value) in meminfo.lines().filter_map(|line| line.split_once(':')) {
        let field = match name {
            "MemTotal" => &mut memory.total,
            "MemAvailable" => &mut memory.available,
            "MemFree" => &mut memory.free,
            "Shmem" => &mut memory.shared,
            _ => continue,
        };
        *field = bytes(value);
    }
    memory
}

/// The kernel writes kB and means KiB.
fn bytes(value: &str) -> Option<u64> {
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

struct Memory {
    procfs: PathBuf,
}

pub(super) fn build(options: &Options) -> Option<Box<dyn Collector>> {
    Some(Box::new(Memory { procfs: options.procfs.clone() }))
}

impl Collector for Memory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self) -> Result<Reading, Failure> {
        let memory = read(&self.procfs).map_err(Failure::Broken)?;
        let values = [memory.total, memory.available, memory.free, memory.shared];
        let family = |(desc, value): (Desc, Option<u64>)| Family::single(desc, value.map(|bytes| bytes as f64));
        Ok(Reading { families: DESCS.into_iter().zip(values).map(family).collect(), ..Reading::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::encode;

    const MEMINFO: &str = "MemTotal:       127600748 kB\nMemFree:          3100000 kB\nMemAvailable:   26100000 kB\n\
                           Shmem:             204800 kB\nShmemHugePages:         7 kB\nHugePages_Total:       0\n";

    #[test]
    fn the_four_figures_are_read_and_no_others() {
        // 127,600,748 × 1024, and so on.
        let expected = HostMemory {
            total: Some(130_663_165_952),
            available: Some(26_726_400_000),
            free: Some(3_174_400_000),
            shared: Some(209_715_200),
        };
        assert_eq!(understand(MEMINFO), expected);
    }

    #[test]
    fn what_is_not_said_or_not_understood_is_unknown() {
        assert_eq!(
            understand("MemTotal: 8 kB\nMemFree: 4 MB\nShmem: -1 kB\nMemAvailable: 99999999999999999999 kB\n"),
            { HostMemory { total: Some(8192), ..HostMemory::default() } }
        );
        assert_eq!(understand("MemTotal: 18446744073709551615 kB\n"), HostMemory::default());
    }

    fn collect(meminfo: Option<&str>) -> Result<Reading, Failure> {
        let root = tempfile::tempdir().unwrap();
        if let Some(text) = meminfo {
            fs::write(root.path().join("meminfo"), text).unwrap();
        }
        let options = Options { procfs: root.path().into(), ..Options::default() };
        build(&options).unwrap().collect()
    }

    #[test]
    fn an_old_kernel_without_memavailable_leaves_that_family_out() {
        let text = encode(&collect(Some("MemTotal: 4 kB\nMemFree: 2 kB\nShmem: 0 kB\n")).unwrap().families);
        assert!(text.contains("kvtier_host_memory_total_bytes 4096\n"), "{text}");
        assert!(text.contains("kvtier_host_memory_free_bytes 2048\n"), "{text}");
        assert!(text.contains("kvtier_host_memory_shared_bytes 0\n"), "{text}");
        assert!(!text.contains("available"), "{text}");
    }

    #[test]
    fn a_missing_or_strange_file_is_a_failure_that_names_it() {
        for meminfo in [None, Some("hello\n")] {
            assert!(matches!(collect(meminfo), Err(Failure::Broken(why)) if why.contains("meminfo")), "{meminfo:?}");
        }
    }
}
