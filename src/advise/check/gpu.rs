//! GPU memory, unified memory, and the link that the copies cross.

use super::Facts;
use crate::advise::Finding;
use crate::advise::words::{short_size, size};
use crate::host::facts::Gpu;

/// Below this much GPU memory free it is a finding.
const LOW: f64 = 536_870_912.0;
/// Below this it is a remark.
const SCARCE: f64 = 1_073_741_824.0;

/// A tier that takes its memory from the pool that it is to relieve.
pub(super) fn ram_tier_on_unified_memory(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(why) = facts.unified() else { return Vec::new() };
    let tiers = match &facts.page {
        Ok(page) => page.ram_tiers().join(", "),
        Err(_) => facts.settings.tier_sizes.keys().filter(|tier| *tier == "ram").cloned().collect(),
    };
    if tiers.is_empty() {
        return Vec::new();
    }
    vec![Finding::new(
        "ram-tier-on-unified-memory",
        format!("There is a tier in host memory ({tiers}), and host and GPU share one memory here: {why}."),
        "Each byte of the tier is taken from the memory that the GPU's own KV pool lies in. It caches a pool that \
         could simply be larger, and the box freezes when that memory ends.",
        "Take the RAM tier away and give the memory to the GPU pool; where that is not enough, use a disk tier \
         (`kvtier-exporter plan --disk SIZE --path DIR`).",
    )]
}

/// GPU memory free.
pub(super) fn headroom(facts: &Facts<'_>) -> Vec<Finding> {
    facts.boxed.gpus.iter().filter_map(headroom_of).collect()
}

fn headroom_of(gpu: &Gpu) -> Option<Finding> {
    let Some(free) = gpu.free else {
        let unknown = Finding::new(
            "gpu-memory-unknown",
            format!("GPU {} ({}) does not tell its memory.", gpu.index, gpu.name),
            "Whether it is about to run out cannot be seen, here or by an alert.",
            "If it shares one memory with the host, say --gpu.unified; else ask the driver: nvidia-smi.",
        );
        return Some(unknown.as_remark());
    };
    let total = gpu.total.map_or(String::new(), |total| format!(" of {}", short_size(total)));
    let finding = Finding::new(
        "gpu-headroom-low",
        format!("GPU {} ({}) has {}{total} free.", gpu.index, gpu.name, size(free)),
        "Copies of the tier and some kernels allocate outside of --gpu-memory-utilization. An engine that starts well \
         can die hours later of an allocation of a few MiB.",
        "Lower --gpu-memory-utilization (or pin the pool with --kv-cache-memory-bytes) until 1 GiB stays free.",
    );
    (free < SCARCE).then(|| if free < LOW { finding } else { finding.as_remark() })
}

/// A link that stays below its maximum although the GPU works. At rest it clocks down, which is no fault; so it
/// counts only where a second look, with requests running before and after it, finds it low again.
pub(super) fn link(facts: &Facts<'_>) -> Vec<Finding> {
    let again = facts.under_load.unwrap_or_default();
    let low = |gpu: &&Gpu| link_is_low(gpu) && again.iter().any(|two| two.index == gpu.index && link_is_low(two));
    facts.boxed.gpus.iter().filter(low).map(link_of).collect()
}

/// Whether the link of a GPU is below its maximum.
pub fn link_is_low(gpu: &Gpu) -> bool {
    [gpu.generation, gpu.width].into_iter().flatten().any(|(now, most)| now < most)
}

fn link_of(gpu: &Gpu) -> Finding {
    let side = |pair: Option<(f64, f64)>| pair.map_or("unknown".to_owned(), |(now, most)| format!("{now} of {most}"));
    Finding::new(
        "pcie-link-below-maximum",
        format!(
            "With requests running, the PCIe link of GPU {} ({}) has generation {} and {} lanes.",
            gpu.index,
            gpu.name,
            side(gpu.generation),
            side(gpu.width)
        ),
        "Every copy to and from the tier crosses this link; at half of it a reload takes twice as long.",
        "Check the slot, the riser and the BIOS setting of the slot; `nvidia-smi -q -d PCIE` shows errors and replays.",
    )
}
