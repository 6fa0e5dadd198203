//! vLLM's OffloadingConnector: the RAM tier, its copies and its size.
//!
//! The same bytes stand under two names: from 0.24 on one family for each direction, before that (and still
//! beside it) one family with a `transfer_type`. The new name is read first and the old one only where the new
//! one says nothing of the engine; the two are never added.

use std::collections::BTreeSet;

use super::identity::{Declared, Kind, Owner, Whose};
use super::vllm::CACHE_CONFIG;
use super::{Dialect, as_number, facts, first, number, of_processes, unreadable};
use crate::exposition::{Exposition, Labels};
use crate::model::{Engine, EngineId, Fact, Medium, Residency, Size, SizeSource, Slots, Snapshot, Tier, Transfers};

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
        (CONFIG_INFO, Declared::All),
        (CACHE_CONFIG, Declared::All),
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
/// labels that tell servers of it apart) that have one run it, and a direction that is not the CPU's belongs to another
/// connector.
fn prove(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    if !page.has(TOTAL_BYTES) && !page.has(STORE_BYTES) {
        return false;
    }
    let (mut seen, mut servers) = (false, BTreeSet::new());
    for name in [STORE_BYTES, LOAD_BYTES, TOTAL_BYTES] {
        let whose = Whose::of(snapshot, Kind::Vllm, name);
        for labels in page.samples(name).iter().map(|sample| sample.labels) {
            seen = true;
            if labels.raw("transfer_type").is_none_or(|kind| direction(kind).is_some()) {
                servers.insert((labels.value("model_name"), whose.named(labels).own_labels()));
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
    !seen || !servers.is_empty()
}

/// Gives the place of a direction's bytes and of its seconds.
type Direction = fn(&mut Transfers) -> (&mut Option<Fact>, &mut Option<Fact>);

/// Which way a `transfer_type` goes; `None` for one between other places.
fn direction(transfer_type: &str) -> Option<Direction> {
    match transfer_type.to_ascii_lowercase().as_str() {
        "gpu_to_cpu" => Some(|t| (&mut t.stored_bytes, &mut t.store_seconds)),
        "cpu_to_gpu" => Some(|t| (&mut t.reloaded_bytes, &mut t.reload_seconds)),
        _ => None,
    }
}

fn transfers(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    facts(page, snapshot, STORE_BYTES, |engine, _, fact| first(&mut ram(engine).transfers.stored_bytes, fact));
    facts(page, snapshot, STORE_TIME, |engine, _, fact| first(&mut ram(engine).transfers.store_seconds, fact));
    facts(page, snapshot, LOAD_BYTES, |engine, _, fact| first(&mut ram(engine).transfers.reloaded_bytes, fact));
    facts(page, snapshot, LOAD_TIME, |engine, _, fact| first(&mut ram(engine).transfers.reload_seconds, fact));
    let old = |engine: &mut Engine, labels: Labels<'_>, fact: Fact, seconds: bool| {
        if let Some(direction) = labels.raw("transfer_type").and_then(direction) {
            let (bytes, time) = direction(&mut ram(engine).transfers);
            first(if seconds { time } else { bytes }, fact);
        }
    };
    facts(page, snapshot, TOTAL_BYTES, |engine, labels, fact| old(engine, labels, fact, false));
    facts(page, snapshot, TOTAL_TIME, |engine, labels, fact| old(engine, labels, fact, true));
}

fn gauges(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    facts(page, snapshot, USAGE, |engine, labels, fact| of_processes(&mut ram(engine).pinned, labels, fact));
    facts(page, snapshot, WRITE_USAGE, |engine, labels, fact| of_processes(&mut ram(engine).storing, labels, fact));
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
        let fact = |name| number(labels, name).map(|value| Fact::new(value, CONFIG_INFO));
        let tier = ram(engine);
        let count = fact("cpu_num_chunks");
        let by_chunk = || Some(Fact::new(count?.value * number(labels, "cpu_kv_bytes_per_chunk")?, CONFIG_INFO));
        let bytes = fact("cpu_kv_cache_size_bytes").or_else(by_chunk);
        tier.sizes.extend(bytes.map(|fact| Size { fact, source: SizeSource::ConfigInfo }));
        tier.size_tokens = tier.size_tokens.or(fact("cpu_kv_cache_size_tokens"));
        tier.slots = tier.slots.or_else(|| {
            Some(Slots { allocated: None, count: count?, bytes: bytes?, blocks_per_slot: fact("cpu_blocks_per_chunk") })
        });
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
    let whose = Whose::of(snapshot, Kind::Vllm, CACHE_CONFIG);
    for labels in page.samples(CACHE_CONFIG).iter().map(|sample| sample.labels) {
        let [backend, gib] = labels.raws(["kv_offloading_backend", "kv_offloading_size"]);
        let (Some("native"), Some(gib)) = (backend, as_number(gib)) else { continue };
        let Owner::One(at) = whose.owner(snapshot, labels) else { continue };
        let tier = snapshot.engines[at].tier_or_insert(RAM, Medium::Ram, "native");
        tier.sizes.push(Size { fact: Fact::new(gib * GIB, CACHE_CONFIG), source: SizeSource::CacheConfig });
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
        match labels.raw("transfer_type").unwrap_or_default().to_ascii_lowercase().as_str() {
            "gpu_to_cpu" => ram(engine).transfers.stores_unreadable = true,
            "cpu_to_gpu" => ram(engine).transfers.reloads_unreadable = true,
            _ => {}
        }
    });
    for tier in snapshot.engines.iter_mut().flat_map(|engine| &mut engine.tiers).filter(|tier| tier.name == RAM) {
        if tier.bounded_by_stores {
            tier.transfers.state_zeros();
        }
        tier.sizes.sort_by_key(|size| size.source);
    }
}
