//! The directories of disk tiers.

use std::path::Path;

use super::Facts;
use crate::advise::Finding;
use crate::advise::words::{count, percent, size};
use crate::host::{Place, Room, Standing};

/// Below this share of bytes or inodes left it is a finding.
const LITTLE: f64 = 0.10;

const FULL_WHY: &str = "Neither LMCache nor vLLM's fs tier removes what an earlier process left, and on a full disk \
                        LMCache goes on counting writes that fail: the tier looks full of use and gives nothing back.";

/// All directories.
pub(super) fn directories(facts: &Facts<'_>) -> Vec<Finding> {
    facts.disks.iter().flat_map(|(path, place)| directory(path, place.as_ref())).collect()
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
        "Create the directory on a local disk and give it to the user that the engine runs as; name it with \
         --path.disk-tier as this program sees it.",
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
        let seen = format!("The file system of {shown} has {} of {} inodes left, {share}.", count(left), count(all));
        let why =
            "Each chunk of the tier is a file. Without inodes writes fail although there is room, as on a full disk.";
        let action = "Empty the tier's directory while no engine runs, or make the file system anew with more inodes.";
        Finding::new("disk-tier-inodes-low", seen, why, action)
    });
    bytes.into_iter().chain(inodes).collect()
}
