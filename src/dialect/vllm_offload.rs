//! vLLM's OffloadingConnector: the RAM tier, its copies and its size.
//!
//! The same bytes stand under two names: from 0.24 on one family for each direction, before that (and still
//! beside it) one family with a `transfer_type`. The new name is read first and the old one only where the new
//! one says nothing of the engine; the two are never added.
//!
//! Other backends of the connector count under the old name too, with a `transfer_type` of their own
//! (`GPU_to_SHARED_STORAGE`). The other end of such a copy is a tier of which nothing else is known.

use std::collections::{BTreeMap, BTreeSet};

use super::identity::{Declared, Kind, Whose};
use super::vllm::{CACHE_CONFIG, CONFIGURED};
use super::{Dialect, as_number, described, facts, first, of_processes, placed, shares, unreadable};
use crate::exposition::{Exposition, Labels, Through, unescape};
use crate::model::{
    Engine, EngineId, Fact, Medium, Note, Owner, Residency, Size, SizeSource, Slots, Snapshot, Tier, Transfers,
};
use crate::notice::kinds::UNKNOWN_DIRECTION;

/// vLLM's own connector, as its tiers name it.
pub const CONNECTOR: &str = "OffloadingConnector";
pub(super) const RAM: &str = "ram";
pub(super) const PRIMARY: &str = "0:primary";
pub(super) const CONFIG_INFO: &str = "vllm:kv_offload_config_info";

/// The gauge that reads 0 on a full tier: it counts only chunks pinned by copies in flight.
pub const USAGE: &str = "vllm:kv_offload_cpu_cache_usage_perc";

pub(super) const STORE_BYTES: &str = "vllm:kv_offload_store_bytes_total";
const STORE_TIME: &str = "vllm:kv_offload_store_time_total";
const LOAD_BYTES: &str = "vllm:kv_offload_load_bytes_total";
const LOAD_TIME: &str = "vllm:kv_offload_load_time_total";
pub(super) const TOTAL_BYTES: &str = "vllm:kv_offload_total_bytes_total";
const TOTAL_TIME: &str = "vllm:kv_offload_total_time_total";
pub(super) const WRITE_USAGE: &str = "vllm:kv_offload_cpu_cache_write_usage_perc";
const ALLOCATED: &str = "vllm:kv_offload_cpu_allocation_size_sum";
const ALLOCATION_FAILURES: &str = "vllm:kv_offload_allocation_failure_total";
// Forks measure residency; where they do, it wins over any bound.
const OCCUPIED: &str = "vllm:kv_offload_cpu_cache_occupied_bytes";
const CAPACITY: &str = "vllm:kv_offload_cpu_cache_capacity_bytes";

/// What is read of the description of the tier that was built. A tier behind it has empty labels of these names.
const BUILT: [&str; 5] = [
    "cpu_num_chunks",
    "cpu_kv_bytes_per_chunk",
    "cpu_kv_cache_size_bytes",
    "cpu_kv_cache_size_tokens",
    "cpu_blocks_per_chunk",
];
pub(super) const BUILT_SAYS: Declared = Declared::Facts(&BUILT);

pub(super) const DIALECT: Dialect = Dialect {
    name: "vllm_offload",
    reads: &[
        USAGE,
        STORE_BYTES,
        STORE_TIME,
        LOAD_BYTES,
        LOAD_TIME,
        TOTAL_BYTES,
        TOTAL_TIME,
        WRITE_USAGE,
        ALLOCATED,
        ALLOCATION_FAILURES,
        CONFIG_INFO,
        CACHE_CONFIG,
        OCCUPIED,
        CAPACITY,
    ],
    kind: Kind::Vllm,
    identity: &[STORE_BYTES, LOAD_BYTES, TOTAL_BYTES],
    declared: &[
        (TOTAL_BYTES, Declared::These(&["transfer_type"])),
        (TOTAL_TIME, Declared::These(&["transfer_type"])),
        (CONFIG_INFO, BUILT_SAYS),
        (CACHE_CONFIG, CONFIGURED),
    ],
    read,
};

fn read(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    let proven = prove(page, snapshot);
    configured_sizes(page, snapshot);
    transfers(page, snapshot);
    gauges(page, snapshot);
    config_info(page, snapshot);
    zeros(page, snapshot);
    doubts(snapshot);
    place(snapshot);
    proven
}

/// The tier, once it is known to exist.
fn ram(engine: &mut Engine) -> &mut Tier {
    let tier = engine.tier_or_insert(RAM, Medium::Ram, CONNECTOR);
    tier.connector = CONNECTOR;
    tier.bounded_by_stores = true;
    tier
}

/// The byte families prove the connector, by a TYPE line alone. Samples say more: then only the servers (a model, and the
/// labels that tell servers of it apart) that have one run it, and those with
/// none of the CPU's directions have no RAM tier.
fn prove(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    if !page.has(TOTAL_BYTES) && !page.has(STORE_BYTES) {
        return false;
    }
    let (mut seen, mut servers) = (false, BTreeSet::new());
    for name in [STORE_BYTES, LOAD_BYTES, TOTAL_BYTES] {
        let whose = Whose::of(snapshot, Kind::Vllm, name);
        for labels in page.samples(name).iter().map(|sample| sample.labels) {
            seen = true;
            if labels.raw("transfer_type").is_none_or(is_the_cpus) {
                servers.insert((labels.value("model_name"), whose.server(labels)));
            }
        }
    }
    for engine in &mut snapshot.engines {
        let EngineId { model_name, labels, .. } = &engine.id;
        // Mostly the labels are the engine's own; a sample with fewer may be of any engine that has them.
        let is_server = servers.contains(&(model_name.into(), labels.clone()));
        let runs_it = || is_server || servers.iter().any(|(model, some)| model == model_name && engine.id.has(some));
        if !seen || runs_it() {
            ram(engine);
        }
    }
    true
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From the GPU into the tier.
    In,
    /// Back to the GPU.
    Out,
}

impl Way {
    /// The place of its bytes and of its seconds.
    fn of(self, transfers: &mut Transfers) -> (&mut Option<Fact>, &mut Option<Fact>) {
        match self {
            Way::In => (&mut transfers.stored_bytes, &mut transfers.store_seconds),
            Way::Out => (&mut transfers.reloaded_bytes, &mut transfers.reload_seconds),
        }
    }

    /// Whether its bytes are counted and cannot be read.
    fn unreadable(self, transfers: &mut Transfers) -> &mut bool {
        match self {
            Way::In => &mut transfers.stores_unreadable,
            Way::Out => &mut transfers.reloads_unreadable,
        }
    }
}

const CPU: &str = "cpu";

/// The end of a copy that is not the GPU, in lower case, and which way it goes. `None` where the GPU has no part in it, and for
/// a place that is called as the CPU's tier is, which has a bound and a correction.
fn other_end(transfer_type: &str) -> Option<(String, Way)> {
    let lower = transfer_type.to_ascii_lowercase();
    let (place, way) = match (lower.strip_prefix("gpu_to_"), lower.strip_suffix("_to_gpu")) {
        (Some(place), None) => (place, Way::In),
        (None, Some(place)) => (place, Way::Out),
        _ => return None,
    };
    (!matches!(place, "" | RAM)).then(|| (unescape(place).into_owned(), way))
}

fn is_the_cpus(transfer_type: &str) -> bool {
    other_end(transfer_type).is_some_and(|(place, _)| place == CPU)
}

/// The tier at that end. Of one that is not the CPU's nothing else is known.
fn tier_at<'e>(engine: &'e mut Engine, place: &str) -> &'e mut Tier {
    if place == CPU { ram(engine) } else { engine.tier_or_insert(place, Medium::Unknown, CONNECTOR) }
}

fn transfers(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    facts(page, snapshot, STORE_BYTES, |engine, _, fact| first(&mut ram(engine).transfers.stored_bytes, fact));
    facts(page, snapshot, STORE_TIME, |engine, _, fact| first(&mut ram(engine).transfers.store_seconds, fact));
    facts(page, snapshot, LOAD_BYTES, |engine, _, fact| first(&mut ram(engine).transfers.reloaded_bytes, fact));
    facts(page, snapshot, LOAD_TIME, |engine, _, fact| first(&mut ram(engine).transfers.reload_seconds, fact));
    let mut strange: BTreeMap<String, Option<f64>> = BTreeMap::new();
    let mut old = |engine: &mut Engine, labels: Labels<'_>, fact: Fact, seconds: bool| {
        let Some(kind) = labels.raw("transfer_type") else { return };
        let end = other_end(kind);
        if let Some(text) = strangeness(&engine.id, kind, end.as_ref().map(|(place, _)| place.as_str())) {
            let bytes = strange.entry(text).or_default();
            *bytes = bytes.or((!seconds).then_some(fact.value));
        }
        let Some((place, way)) = end else { return };
        let (bytes, time) = way.of(&mut tier_at(engine, &place).transfers);
        first(if seconds { time } else { bytes }, fact);
    };
    facts(page, snapshot, TOTAL_BYTES, |engine, labels, fact| old(engine, labels, fact, false));
    facts(page, snapshot, TOTAL_TIME, |engine, labels, fact| old(engine, labels, fact, true));
    snapshot.notes.extend(strange.into_iter().map(|(text, bytes)| Note { kind: &UNKNOWN_DIRECTION, text, bytes }));
}

/// What is said of a direction that is not the CPU's.
fn strangeness(engine: &EngineId, kind: &str, place: Option<&str>) -> Option<String> {
    let shown = match place {
        Some(CPU) => return None,
        Some(place) => format!("is shown as tier {place:?}"),
        None => "is shown as no tier".to_owned(),
    };
    Some(format!("transfer_type \"{kind}\" of engine {engine} {shown}"))
}

fn gauges(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    // What another exporter has corrected is a fill, and what is pinned is not on the page.
    let is_pinned = page.through != Through::Corrected;
    shares(page, snapshot, USAGE, |engine, labels, fact| {
        let tier = ram(engine);
        if is_pinned {
            of_processes(&mut tier.pinned, labels, fact);
        }
    });
    shares(page, snapshot, WRITE_USAGE, |engine, labels, fact| of_processes(&mut ram(engine).storing, labels, fact));
    facts(page, snapshot, ALLOCATION_FAILURES, |engine, _, fact| ram(engine).refusals += fact.value);
    facts(page, snapshot, OCCUPIED, |engine, _, fact| {
        ram(engine).residency.get_or_insert(Residency::Bytes(fact));
    });
    facts(page, snapshot, CAPACITY, |engine, _, fact| {
        ram(engine).sizes.push(Size { fact, source: SizeSource::ConfigInfo });
    });
}

/// The tier that the engine built. It is stated from the engine's first step on; secondary tiers have empty labels.
fn config_info(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    facts(page, snapshot, CONFIG_INFO, |engine, labels, _| {
        if !matches!(labels.raw("tier"), None | Some("" | PRIMARY)) {
            return;
        }
        let said = described(engine, CONFIG_INFO, labels, BUILT);
        let [count, of_chunk, bytes, tokens, blocks_per_slot] =
            said.map(|raw| as_number(raw).map(|value| Fact::new(value, CONFIG_INFO)));
        let tier = ram(engine);
        let by_chunk = || Some(Fact::new(count?.value * of_chunk?.value, CONFIG_INFO));
        let bytes = bytes.or_else(by_chunk);
        tier.sizes.extend(bytes.map(|fact| Size { fact, source: SizeSource::ConfigInfo }));
        tier.size_tokens = tier.size_tokens.or(tokens);
        tier.slots =
            tier.slots.or_else(|| Some(Slots { allocated: None, count: count?, bytes: bytes?, blocks_per_slot }));
    });
    facts(page, snapshot, ALLOCATED, |engine, _, fact| {
        first(&mut ram(engine).allocated, fact);
        if let Some(slots) = &mut ram(engine).slots {
            first(&mut slots.allocated, fact);
        }
    });
}

/// `--kv-offloading-size` in GiB, all ranks of one engine together. It stands on the page in every version and
/// whatever connector it configured, so alone it proves a size and nothing else.
fn configured_sizes(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    const GIB: f64 = 1_073_741_824.0;
    for (place, sample) in placed(page, CACHE_CONFIG) {
        let [backend, gib] = sample.labels.raws(["kv_offloading_backend", "kv_offloading_size"]);
        let (Some("native"), Some(gib)) = (backend, as_number(gib)) else { continue };
        let Owner::One(at) = snapshot.pages.owner(place) else { continue };
        let engine = &mut snapshot.engines[at];
        let certain =
            ["kv_offloading_backend", "kv_offloading_size"].iter().all(|name| !engine.doubts_label(CACHE_CONFIG, name));
        let tier = engine.tier_or_insert(RAM, Medium::Ram, "native");
        let size = Size { fact: Fact::new(gib * GIB, CACHE_CONFIG), source: SizeSource::CacheConfig };
        tier.sizes.extend(certain.then_some(size));
    }
}

/// The gauge that is corrected tells nothing of the fill; all other families may.
fn doubts(snapshot: &mut Snapshot) {
    for engine in snapshot.engines.iter_mut().filter(|engine| !engine.doubts.is_empty()) {
        let doubtful = DIALECT.reads.iter().any(|family| *family != USAGE && engine.doubts(family));
        if let Some(tier) = engine.tiers.iter_mut().find(|tier| tier.name == RAM) {
            tier.doubtful = doubtful;
        }
    }
}

/// Where the connector is proven, what has not happened yet is a known 0; what was counted but cannot be read is not.
fn zeros(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    unreadable(page, snapshot, STORE_BYTES, |engine, _| ram(engine).transfers.stores_unreadable = true);
    unreadable(page, snapshot, LOAD_BYTES, |engine, _| ram(engine).transfers.reloads_unreadable = true);
    unreadable(page, snapshot, TOTAL_BYTES, |engine, labels| {
        if let Some((place, way)) = labels.raw("transfer_type").and_then(other_end) {
            *way.unreadable(&mut tier_at(engine, &place).transfers) = true;
        }
    });
    for tier in snapshot.engines.iter_mut().flat_map(|engine| &mut engine.tiers) {
        if tier.bounded_by_stores || (tier.connector == CONNECTOR && tier.medium == Medium::Unknown) {
            tier.transfers.state_zeros();
        }
        tier.sizes.sort_by_key(|size| size.source);
    }
}

/// The first minor version that lays the tier out in the shared-memory mount; before, each rank pins memory of its own.
const IN_SHM_SINCE: u32 = 27;

/// Where the tier lies.
fn place(snapshot: &mut Snapshot) {
    let in_shm = lies_in_shm(snapshot.version_range.as_deref().unwrap_or_default());
    let tiers = snapshot.engines.iter_mut().flat_map(|engine| &mut engine.tiers);
    tiers.filter(|tier| tier.bounded_by_stores).for_each(|tier| tier.lies_in_shm = in_shm);
}

/// `0.26-0.31`, `0.33+`, `0.27` or `<0.14`; anything else does not tell.
fn lies_in_shm(versions: &str) -> Option<bool> {
    let minor = |text: &str| text.strip_prefix("0.")?.parse::<u32>().ok();
    let (oldest, newest) = match (versions.strip_prefix('<'), versions.split_once('-')) {
        (Some(before), _) => (Some(0), minor(before).map(|minor| minor.saturating_sub(1))),
        (None, Some((oldest, newest))) => (minor(oldest), minor(newest)),
        (None, None) => (minor(versions.trim_end_matches('+')), minor(versions)),
    };
    let since = oldest.is_some_and(|oldest| oldest >= IN_SHM_SINCE);
    let before = newest.is_some_and(|newest| newest < IN_SHM_SINCE);
    (since || before).then_some(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_tell_where_the_tier_lies_or_do_not() {
        for (versions, lies) in [
            ("0.33+", Some(true)),
            ("0.27", Some(true)),
            ("0.28-0.31", Some(true)),
            ("0.26-0.31", None),
            ("0.24+", None),
            ("0.26", Some(false)),
            ("0.16-0.19", Some(false)),
            ("<0.14", Some(false)),
            ("", None),
            ("1.0", None),
        ] {
            assert_eq!(lies_in_shm(versions), lies, "{versions:?}");
        }
    }

    #[test]
    fn the_other_end_of_a_copy_is_a_place_and_never_the_cpus_tier() {
        assert_eq!(other_end("GPU_to_SHARED_STORAGE"), Some(("shared_storage".to_owned(), Way::In)));
        assert_eq!(other_end("Obj_To_Gpu"), Some(("obj".to_owned(), Way::Out)));
        for kind in ["GPU_to_RAM", "GPU_to_GPU", "CPU_to_DISK", "GPU_to_", "_to_GPU", "", "gpu"] {
            assert_eq!(other_end(kind), None, "{kind}");
        }
    }
}
