//! GPU memory, unified memory, and the link that the copies cross.

use super::Facts;
use crate::advise::Finding;
use crate::advise::words::{count, many, short_size, size};
use crate::host::facts::Gpu;
use crate::host::unseen::{NoMemory, Silence};

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

/// GPUs that should be there and cannot be read: one finding for each cause, since each has a remedy of its own.
pub(super) fn lost(facts: &Facts<'_>) -> Vec<Finding> {
    let Some((listed, readable)) = facts.boxed.gpu_devices else { return Vec::new() };
    let seen = |wanted: fn(&Silence) -> bool| {
        let of_these = facts.boxed.unseen.gpus.iter().filter(|gpu| wanted(&gpu.why));
        let sentences: String = of_these.map(|gpu| format!(" {gpu}.")).collect();
        let head = format!("Of {} {} can be read.", many(listed as usize, "GPU"), count(readable));
        (!sentences.is_empty()).then(|| head + &sentences)
    };
    let lost = seen(|why| *why != Silence::NoPermission).map(|seen| {
        Finding::new(
            "gpu-lost",
            seen,
            "An engine that runs on it has stopped or is about to, and nothing watches its memory and its link: their \
             figures are absent, not bad.",
            "See the kernel's log (`dmesg | grep -i xid`) and `nvidia-smi`. In a container that lost its devices (a \
             `systemctl daemon-reload` on the host does that) start the container anew; a GPU that fell off the bus \
             needs a reset (`nvidia-smi --gpu-reset -i NUMBER`) or a restart of the box, and a look at its power and slot \
             when it happens again.",
        )
    });
    let refused = seen(|why| *why == Silence::NoPermission).map(|seen| {
        let refused = Finding::new(
            "gpu-no-permission",
            seen,
            "The driver lists it, so the box has it, but this program cannot watch it.",
            "If it is to be watched, give this program the device: `--gpus all` with Docker, NVIDIA_VISIBLE_DEVICES=all, \
             or the right to open /dev/nvidia*.",
        );
        refused.as_remark()
    });
    lost.into_iter().chain(refused).collect()
}

/// A driver that is here and does not work, so that no GPU can even be counted.
pub(super) fn driver(facts: &Facts<'_>) -> Vec<Finding> {
    let found = |why: &String| {
        Finding::new(
            "gpu-driver-fails",
            format!("The GPU driver does not answer: {why}."),
            "Nothing is known of the GPUs here, and an engine that is started now probably finds none.",
            "Ask nvidia-smi on the host: if it fails too, load the driver anew or restart the box (after an update of the \
             driver its library and its kernel module differ until then). If it works there, start this container anew, \
             or name the right library with --nvml.library.",
        )
    };
    facts.boxed.unseen.gpu_driver.iter().map(found).collect()
}

/// GPU memory free.
pub(super) fn headroom(facts: &Facts<'_>) -> Vec<Finding> {
    facts.boxed.gpus.iter().filter_map(|gpu| headroom_of(gpu, facts.boxed.why_untold(gpu))).collect()
}

/// What helps against each cause; `None` where another finding says it.
fn remedy(why: Option<&NoMemory>) -> Option<&'static str> {
    Some(match why {
        Some(NoMemory::Fails(_)) => return None,
        Some(NoMemory::NoSlice) => {
            "Give this program the slices: name them (NVIDIA_VISIBLE_DEVICES=MIG-...), or all of them with \
             NVIDIA_VISIBLE_DEVICES=all and NVIDIA_MIG_MONITOR_DEVICES=all, which needs the capability SYS_ADMIN. Where \
             there are none yet, cut them: nvidia-smi mig -cgi PROFILE -C."
        }
        Some(NoMemory::NoPermission) => {
            "Give this program the right to ask: a GPU in MIG mode refuses it for the whole (give the container its \
             slices, NVIDIA_VISIBLE_DEVICES=MIG-...), and so does a container without the device."
        }
        Some(NoMemory::OldDriver) => "Install a driver of release 510 or later.",
        Some(NoMemory::Contradiction) => {
            "Compare with nvidia-smi; if it shows the same figures, the driver is at fault: install another release."
        }
        Some(NoMemory::HostUnknown) => "Let this program read the host's meminfo: --path.procfs.",
        Some(NoMemory::NotSupported | NoMemory::ToldAsNothing) | None => {
            "If it shares one memory with the host, say --gpu.unified; else ask the driver: nvidia-smi."
        }
    })
}

fn headroom_of(gpu: &Gpu, why: Option<&NoMemory>) -> Option<Finding> {
    let Some(free) = gpu.free else {
        let because = why.map_or(String::new(), |why| format!(": {why}"));
        let unknown = Finding::new(
            "gpu-memory-unknown",
            format!("{gpu} does not tell its memory{because}."),
            "Whether it is about to run out cannot be seen, here or by an alert.",
            remedy(why)?,
        );
        return Some(unknown.as_remark());
    };
    let total = gpu.total.map_or(String::new(), |total| format!(" of {}", short_size(total)));
    let finding = Finding::new(
        "gpu-headroom-low",
        format!("{gpu} has {}{total} free.", size(free)),
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
            "With requests running, the PCIe link of {gpu} has generation {} and {} lanes.",
            side(gpu.generation),
            side(gpu.width)
        ),
        "Every copy to and from the tier crosses this link; at half of it a reload takes twice as long.",
        "Check the slot, the riser and the BIOS setting of the slot; `nvidia-smi -q -d PCIE` shows errors and replays.",
    )
}
