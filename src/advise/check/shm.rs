//! Whether the RAM tier fits into shared memory, and whether that is the engine's shared memory at all.
//!
//! An engine that runs has laid its tier out in full, so what is free then is of no interest; a mount that is smaller
//! than a tier that runs is not the engine's mount.

use super::{Facts, InShm, Laid, RamNeed};
use crate::advise::Finding;
use crate::advise::words::{counted, short_size, size};
use crate::host::facts::{BoxFacts, Shm};
use crate::host::unseen::Hidden;

/// What Docker and Kubernetes give a container that asks for nothing.
pub(super) const CONTAINER_DEFAULT: f64 = 67_108_864.0;

/// Room beside the tier: a finding below the first, a remark below the second. The engine's own queues live there.
const LITTLE: f64 = 268_435_456.0;
pub(in crate::advise) const SMALL: f64 = 1_073_741_824.0;

/// What is left beside the tiers, judged: one rule for those that run, those that start and those that are planned.
fn beside(left: f64, wall: &str, started: bool) -> Option<Finding> {
    if left >= SMALL {
        return None;
    }
    let verb = if started { "leaves" } else { "will leave" };
    let finding = Finding::new(
        "shm-headroom-low",
        format!("Beside the tier {wall} {verb} {}.", size(left)),
        "The engine's queues between its processes live there too and grow with load; without room it dies of a bus \
         error, or is killed.",
        "Give the mount or the container more memory, or make the tier smaller: 1 GiB beside it is enough.",
    );
    Some(if left < LITTLE { finding } else { finding.as_remark() })
}

/// The nearest wall before a tier that is still to be laid out, and what it leaves beside it.
fn nearest_wall(shm: &Shm, need: f64) -> Option<(f64, String)> {
    let mount = || format!("the mount {}", shm.path);
    let walls = [
        shm.size.map(|size| (size, mount())),
        shm.available.map(|free| (free, mount())),
        shm.headroom.as_ref().filter(|(_, by)| by == "cgroup").map(|(left, _)| (*left, LIMIT.to_owned())),
    ];
    let left = walls.into_iter().flatten().map(|(room, wall)| (room - need, wall));
    left.min_by(|(one, _), (other, _)| one.total_cmp(other))
}

const LIMIT: &str = "the engine's memory limit";

/// The tier against the size of the mount, its free space, the engine's memory limit and the host's memory.
pub(super) fn room(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(need) = facts.ram_need() else { return Vec::new() };
    let mut findings = Vec::new();
    if let Some(shm) = facts.boxed.shm.as_ref().filter(|_| need.in_shm != InShm::No) {
        let certain = need.in_shm == InShm::Yes;
        findings.extend(mount(shm, &need).map(|finding| if certain { finding } else { finding.as_remark() }));
        findings.extend(not_tmpfs(shm));
    }
    if !need.started {
        findings.extend(before_the_start(facts.boxed, &need));
    }
    findings
}

fn wanted(need: &RamNeed) -> String {
    let bytes = size(need.bytes);
    match (need.what, need.engines) {
        (Laid::RamTier, 1) => format!("The RAM tier takes {bytes}"),
        (Laid::RamTier, engines) => format!("The RAM tiers of {engines} engines take {bytes} together"),
        (Laid::Staging, 1) => format!("What the disk tier stages takes {bytes}"),
        (Laid::Staging, engines) => format!("What the disk tiers of {engines} engines stage takes {bytes} together"),
    }
}

/// The mount's size alone.
fn mount(shm: &Shm, need: &RamNeed) -> Option<Finding> {
    let total = shm.size.filter(|total| *total < need.bytes)?;
    let seen = format!("{}; {} has {} in all.", wanted(need), shm.path, size(total));
    if total <= CONTAINER_DEFAULT {
        return Some(Finding::new(
            "shm-container-default",
            seen,
            "64 MiB is what a container of its own gets. Beside a running engine it means that this is not the \
             engine's mount, so all figures of shared memory here are of the wrong one; for the engine itself it \
             means that its tier cannot start.",
            "Let this program see the engine's mount: the same volume at --path.shm, --ipc=container:ENGINE with \
             Docker, or one emptyDir (medium: Memory) mounted into both containers of a pod. For the engine use \
             --shm-size, --ipc=host or such an emptyDir.",
        ));
    }
    Some(Finding::new(
        "shm-smaller-than-tier",
        seen,
        if need.in_shm == InShm::Perhaps {
            "From vLLM 0.27 on the tier lies there; then a tier that runs cannot be larger than its mount, and this is \
             not the engine's mount. Before 0.27 it does not matter."
        } else if need.started {
            "A tier that runs cannot be larger than its mount, so this is not the engine's mount, or the size given \
             is not the tier's."
        } else {
            "The whole tier is laid out at the start, so the engine will not start: \"Insufficient space in \
             /dev/shm\" from 0.28 on, a bare \"Bad address\" before."
        },
        "Give the mount more room (--shm-size, or the sizeLimit of an emptyDir with medium: Memory), make the tier \
         smaller, or name the engine's mount with --path.shm.",
    ))
}

fn not_tmpfs(shm: &Shm) -> Option<Finding> {
    let other = Finding::new(
        "shm-not-tmpfs",
        format!("{} is no tmpfs.", shm.path),
        "The engine's shared memory is one, so this is probably another place.",
        "Name the engine's mount with --path.shm.",
    );
    (shm.is_tmpfs == Some(false)).then(|| other.as_remark())
}

/// What the tier still has to find before an engine has started.
pub(in crate::advise) fn before_the_start_of(boxed: &BoxFacts, bytes: f64, engines: usize) -> Vec<Finding> {
    to_be_laid(boxed, &RamNeed { what: Laid::RamTier, bytes, engines, started: false, in_shm: InShm::Yes })
}

/// The same of what disk tiers stage. vLLM's fs tier lays it out like a RAM tier, and LMCache outside the mount: where that
/// alone stages, `in_mount` is false.
pub(in crate::advise) fn before_the_start_of_staging(
    boxed: &BoxFacts,
    bytes: f64,
    engines: usize,
    in_mount: bool,
) -> Vec<Finding> {
    let in_shm = if in_mount { InShm::Yes } else { InShm::No };
    let need = RamNeed { what: Laid::Staging, bytes, engines, started: false, in_shm };
    let action = "Give the mount, the container or the host more memory, or stage less: say --bytes-per-token, and a smaller \
                  --request-tokens. The mount is of no concern to LMCache, which pins its staging outside it.";
    to_be_laid(boxed, &need).into_iter().map(|finding| Finding { action: action.to_owned(), ..finding }).collect()
}

fn to_be_laid(boxed: &BoxFacts, need: &RamNeed) -> Vec<Finding> {
    let shm = boxed.shm.as_ref().filter(|_| need.in_shm == InShm::Yes);
    let mount = shm.and_then(|shm| mount(shm, need));
    mount.into_iter().chain(before_the_start(boxed, need)).collect()
}

fn before_the_start(boxed: &BoxFacts, need: &RamNeed) -> Vec<Finding> {
    let mut findings = Vec::new();
    let holds = |size: Option<f64>| size.is_none_or(|size| size >= need.bytes);
    for shm in boxed.shm.iter().filter(|shm| need.in_shm == InShm::Yes && holds(shm.size)) {
        if let Some(free) = shm.available.filter(|free| *free < need.bytes) {
            findings.push(Finding::new(
                "shm-too-full",
                format!("{}; {} has {} free.", wanted(need), shm.path, size(free)),
                "The whole tier is laid out at the start, so the engine will not start.",
                "See what lies there (`ls -l`, and the stale tier files below, if any), or make the tier smaller.",
            ));
        }
        if let Some((left, limiter)) = shm.headroom.as_ref().filter(|(left, by)| by == "cgroup" && *left < need.bytes) {
            findings.push(Finding::new(
                "memory-limit-too-small",
                format!("{}; the engine's {limiter} memory limit leaves {}.", wanted(need), size(*left)),
                "Pages of shared memory count towards the limit of the container that touches them first, whatever \
                 the mount has free: the engine is killed while it lays its tier out.",
                "Raise the container's memory limit by the size of the tier, or make the tier smaller.",
            ));
        }
        let fits = nearest_wall(shm, need.bytes).filter(|(left, _)| *left >= 0.0);
        findings.extend(fits.and_then(|(left, wall)| beside(left, &wall, false)));
    }
    if let Some(left) = boxed.memory_available.filter(|left| *left < need.bytes) {
        findings.push(Finding::new(
            "host-memory-too-small",
            format!("{}; the host has {} available.", wanted(need), size(left)),
            "Memory of a tier is taken in full at the start and cannot be swapped out usefully or given back.",
            "Make the tier smaller, or free memory first.",
        ));
    }
    findings
}

/// What is left beside a tier that runs.
pub(super) fn headroom(facts: &Facts<'_>) -> Vec<Finding> {
    let started = facts.ram_need().is_some_and(|need| need.started && need.in_shm == InShm::Yes);
    let shm = facts.boxed.shm.as_ref().filter(|shm| shm.size.is_none_or(|total| total > CONTAINER_DEFAULT));
    let Some((shm, (left, limiter))) = shm.filter(|_| started).and_then(|shm| Some((shm, shm.headroom.as_ref()?)))
    else {
        return Vec::new();
    };
    let wall = match limiter.as_str() {
        "cgroup" => LIMIT.to_owned(),
        _ => format!("the mount {}", shm.path),
    };
    beside(*left, &wall, true).into_iter().collect()
}

/// Files of engines that are gone.
pub(super) fn stale_files(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(shm) = &facts.boxed.shm else { return Vec::new() };
    let mut findings = Vec::new();
    let ((stale, stale_bytes), (unsure, unsure_bytes)) = (shm.stale, shm.unsure);
    if stale > 0.0 {
        findings.push(Finding::new(
            "shm-stale-files",
            format!(
                "{} of {} {} in {}, and no process maps {}.",
                counted(stale, "vllm_offload_* file"),
                size(stale_bytes),
                if stale == 1.0 { "lies" } else { "lie" },
                shm.path,
                if stale == 1.0 { "it" } else { "them" }
            ),
            "An engine that was killed leaves its tier behind. The memory stays taken, and the next start may not find \
             enough of it.",
            format!(
                "When no engine is starting, remove them: rm {}/vllm_offload_*.mmap* (those that no engine uses).",
                shm.path
            ),
        ));
    }
    if unsure > 0.0 {
        let because = facts.boxed.unseen.processes.as_ref().map_or(String::new(), |why| format!(": {why}"));
        let unsure = Finding::new(
            "shm-files-unknown",
            format!(
                "{} of {} {} in {}; whether a process maps {} cannot be seen{because}.",
                counted(unsure, "vllm_offload_* file"),
                short_size(unsure_bytes),
                if unsure == 1.0 { "lies" } else { "lie" },
                shm.path,
                if unsure == 1.0 { "it" } else { "them" }
            ),
            "Such files are the tier of a running engine, or left behind by one that was killed.",
            remedy(facts.boxed.unseen.processes.as_ref()),
        );
        findings.push(unsure.as_remark());
    }
    findings
}

/// What lets this program see the processes that it cannot, by what hides them and who it is.
fn remedy(why: Option<&Hidden>) -> String {
    const ROOT: u32 = 0;
    match why {
        Some(Hidden::Process { pid, name, .. }) if name.is_empty() => {
            format!("Run it again: process {pid} has ended meanwhile.")
        }
        Some(Hidden::Process { ours: ROOT, .. }) => "Root alone is not enough here: give it the capability SYS_PTRACE \
             (--cap-add SYS_PTRACE with Docker, securityContext.capabilities.add in a pod), in the user namespace of the \
             host."
            .to_owned(),
        Some(Hidden::Process { owner: Some(owner), ours, .. }) if owner != ours && *owner != ROOT => format!(
            "Run it as user {owner}, who owns that process, or as root; the capability SYS_PTRACE is enough too."
        ),
        Some(Hidden::Process { .. }) => {
            "Run it as root; the capability SYS_PTRACE is enough too."
                .to_owned()
        }
        Some(Hidden::ByMount { ours: ROOT, procfs }) => format!(
            "Root alone is not enough here: give it the capability SYS_PTRACE, or mount {procfs} without hidepid."
        ),
        Some(Hidden::ByMount { procfs, .. }) => {
            format!("Run it as root, or in the group that the mount option gid= of {procfs} names.")
        }
        Some(Hidden::OtherNamespace { .. }) => {
            "Run it in the PID namespace of the host (--pid=host with Docker, hostPID: true in a pod), or where the host's \
             /proc is mounted, with --path.procfs. Being root does not help against that."
                .to_owned()
        }
        Some(Hidden::NoProcfs(_)) => "Name a process file system with --path.procfs.".to_owned(),
        None => "Run it where it sees all processes of the box: in the PID namespace of the host, as root.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_fits_what_hides_the_processes_and_who_asks() {
        let process = |name: &str, owner, ours| Hidden::Process {
            pid: 101,
            name: name.into(),
            owner,
            ours,
            error: "permission denied".into(),
        };
        let mount = |ours| Hidden::ByMount { procfs: "/proc".into(), ours };
        let inside = Hidden::OtherNamespace { procfs: "/proc".into() };
        for (why, helps, does_not) in [
            (process("VLLM", Some(1000), 65534), "as user 1000", "PID namespace"),
            (process("VLLM", Some(0), 65534), "Run it as root", "user 0"),
            (process("VLLM", Some(1000), 1000), "Run it as root", "user 1000"),
            (process("VLLM", Some(1000), 0), "SYS_PTRACE", "Run it as root"),
            (process("", None, 65534), "Run it again", "root"),
            (mount(1000), "gid= of /proc", "PID namespace"),
            (mount(0), "SYS_PTRACE", "Run it as root"),
            (inside, "hostPID: true", "as root"),
            (Hidden::NoProcfs("x".into()), "--path.procfs", "root"),
        ] {
            let said = remedy(Some(&why));
            assert!(said.contains(helps) && !said.contains(does_not), "{why}: {said}");
        }
    }
}
