//! The directories of disk tiers.

use std::path::Path;

use super::Facts;
use crate::advise::Finding;
use crate::advise::words::{count, counted, percent, size};
use crate::host::{Place, Room, Standing};

/// Below this share of bytes or inodes left it is a finding.
const LITTLE: f64 = 0.10;

const FULL_WHY: &str = "Neither LMCache nor vLLM's fs tier removes what an earlier process left, and on a full disk \
                        LMCache goes on counting writes that fail: the tier looks full of use and gives nothing back.";

/// All directories.
pub(super) fn directories(facts: &Facts<'_>) -> Vec<Finding> {
    facts.disks.iter().flat_map(|disk| directory(&disk.path, disk.place.as_ref())).collect()
}

/// A declared size, the engines together, and who declares it.
struct Declared {
    bytes: f64,
    by: String,
}

/// Whether the box has one GPU, cut into slices or not.
fn is_one_gpu(facts: &Facts<'_>) -> bool {
    facts.boxed.gpu_devices.is_some_and(|(listed, _)| listed == 1.0)
}

impl Declared {
    /// Of LMCache, which keeps all engines' files in one directory. Its configuration counts GiB for each worker process.
    fn of(facts: &Facts<'_>) -> Option<Declared> {
        const GIB: f64 = 1_073_741_824.0;
        let engines = match &facts.page {
            Ok(page) => page.engines.len().max(1),
            Err(_) => facts.engines as usize,
        };
        let each = match (facts.settings.tier_sizes.get("lmcache_disk"), facts.lmcache) {
            (Some(bytes), _) => (*bytes as f64, "--tier.size".to_owned()),
            (None, Some(config)) if config.local_disk.is_some() && config.max_local_disk_size > 0.0 => {
                let ranks = facts.settings.engine_ranks.or(is_one_gpu(facts).then_some(1))?;
                (config.max_local_disk_size * GIB * f64::from(ranks), config.from.clone())
            }
            _ => return None,
        };
        Some(Declared { bytes: each.0 * engines as f64, by: each.1 })
    }
}

/// Beyond the declared size by more than the last bits of blocks and a chunk under way.
const TOLERANCE: f64 = 0.01;

/// What the directory holds, or can ever hold, against the declared size. Whose directory it is is certain only of one.
pub(super) fn declared(facts: &Facts<'_>) -> Vec<Finding> {
    let [disk] = facts.disks else { return Vec::new() };
    let (Some(declared), Some(measured)) = (Declared::of(facts), disk.measured) else { return Vec::new() };
    let shown = disk.path.display();
    let (held, by) = (measured.bytes as f64, &declared.by);
    if held > declared.bytes * (1.0 + TOLERANCE) {
        return vec![Finding::new(
            "disk-tier-larger-than-declared",
            format!(
                "{shown} holds {}{}; the disk tier has {} ({by}).",
                if measured.whole { "" } else { "at least " },
                size(held),
                size(declared.bytes)
            ),
            "Files of an earlier process lie there, which LMCache neither counts nor removes, or somebody else's: the disk \
             fills up although the tier keeps to its size.",
            "Empty the directory while no engine runs, before each start, and keep nothing else in it; or declare the size \
             that the tier really has.",
        )];
    }
    let left = disk.place.as_ref().and_then(|place| place.room?.available).map(|left| left as f64);
    let short = left.filter(|left| measured.whole && held + left < declared.bytes);
    let finding = |left: f64| {
        Finding::new(
            "disk-too-small",
            format!(
                "The disk tier takes {} ({by}); {shown} holds {} and has {} left.",
                size(declared.bytes),
                size(held),
                size(left)
            ),
            "On a full disk writes fail quietly while the tier's own figures go on growing.",
            "Make the tier smaller, or use a larger disk.",
        )
    };
    short.map(finding).into_iter().collect()
}

/// Below these two nothing is said of a difference: writes under way, and the last bits of blocks.
const DIFFERS_BY_SHARE: f64 = 0.05;
const DIFFERS_BY_BYTES: f64 = 67_108_864.0;

/// LMCache's own figure against what its directory holds.
pub(super) fn claimed(facts: &Facts<'_>) -> Vec<Finding> {
    let ([disk], Ok(page)) = (facts.disks, &facts.page) else { return Vec::new() };
    let (Some(claimed), Some(measured)) = (page.survey.snapshot.disk_claimed, disk.measured) else {
        return Vec::new();
    };
    let (claimed, held) = (claimed.value, measured.bytes as f64);
    let difference = claimed - held;
    if difference.abs() < DIFFERS_BY_BYTES.max(DIFFERS_BY_SHARE * claimed.max(held)) {
        return Vec::new();
    }
    let (why, action) = match difference < 0.0 {
        true => (
            "The rest are files of an earlier process or of somebody else: LMCache neither uses nor removes them, and the \
             disk fills up although the tier keeps to its size.",
            "Empty the directory while no engine runs, before each start, and keep nothing else in it.",
        ),
        // What was not seen may well be there.
        false if !measured.whole => return Vec::new(),
        false => (
            "Writes failed, as on a full disk, or files were removed from outside: LMCache counts what is not there, and a \
             reload of it finds nothing.",
            "Look into the engine's log for failed writes and whether the disk is full, and restart the engine with an empty \
             directory.",
        ),
    };
    let least = if measured.whole { "" } else { "at least " };
    let seen = format!(
        "LMCache says that it keeps {} on disk; {} holds {least}{}.",
        size(claimed),
        disk.path.display(),
        size(held)
    );
    vec![Finding::new("lmcache-disk-usage-differs", seen, why, action)]
}

/// What is wrong with one directory.
pub(in crate::advise) fn directory(path: &Path, place: Option<&Place>) -> Vec<Finding> {
    let shown = path.display();
    let Some(place) = place else {
        return vec![unusable("disk-tier-no-answer", format!("{shown} does not answer: the file system blocks."))];
    };
    let mut findings = Vec::new();
    match &place.standing {
        Standing::Missing => findings.push(unusable("disk-tier-missing", format!("{shown} is not there."))),
        Standing::NotADirectory => {
            findings.push(unusable("disk-tier-missing", format!("{shown} is no directory.")));
        }
        Standing::Unknown(why) => {
            findings.push(unusable("disk-tier-no-answer", format!("{shown} cannot be looked at: {why}.")));
        }
        Standing::Directory => {}
    }
    if place.writable == Some(false) {
        findings.push(unusable("disk-tier-not-writable", format!("{shown} cannot be written to by this user.")));
    }
    findings.extend(network(path, place));
    findings.extend(place.room.iter().flat_map(|room| nearly_full(path, room)));
    findings
}

fn unusable(id: &'static str, seen: String) -> Finding {
    Finding::new(
        id,
        seen,
        "A disk tier that cannot write fails quietly: the engine serves on and computes everything anew.",
        "Create the directory on a local disk, give it to the user that the engine runs as, and write its path as this \
         program sees it.",
    )
}

fn network(path: &Path, place: &Place) -> Option<Finding> {
    let mount = place.mount.as_ref().filter(|mount| mount.is_network())?;
    Some(Finding::new(
        "disk-tier-network-mount",
        format!("{} lies on a network mount ({} at {}).", path.display(), mount.kind, mount.point.display()),
        "A reload has to be faster than computing the prefix anew. Over a network it seldom is, and when the mount \
         hangs the engine hangs with it.",
        "Put the tier on a local NVMe disk.",
    ))
}

fn nearly_full(path: &Path, room: &Room) -> Vec<Finding> {
    let shown = path.display();
    let low = |left: Option<u64>, all: Option<u64>| {
        let (left, all) = (left? as f64, all? as f64);
        (all > 0.0 && left / all < LITTLE).then_some((left, all, percent(left / all)))
    };
    let bytes = low(room.available, room.size).map(|(left, all, share)| {
        let seen = format!("The file system of {shown} has {} of {} left, {share}.", size(left), size(all));
        let action = "Empty the tier's directory while no engine runs, or make the tier smaller.";
        Finding::new("disk-tier-nearly-full", seen, FULL_WHY, action)
    });
    let inodes = low(room.inodes_free, room.inodes).map(|(left, all, share)| {
        let seen =
            format!("The file system of {shown} has {} of {} left, {share}.", count(left), counted(all, "inode"));
        let why =
            "Each chunk of the tier is a file. Without inodes writes fail although there is room, as on a full disk.";
        let action = "Empty the tier's directory while no engine runs, or make the file system anew with more inodes.";
        Finding::new("disk-tier-inodes-low", seen, why, action)
    });
    bytes.into_iter().chain(inodes).collect()
}
