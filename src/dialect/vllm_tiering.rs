//! vLLM's TieringOffloadingSpec: tiers behind the RAM tier (`fs`, `obj`, `p2p` …).
//!
//! All their traffic passes the RAM tier: a block is cascaded from it and promoted into it. So this dialect also
//! tells the RAM tier what was promoted into it, which its own stored bytes do not count.

use super::identity::{Declared, Kind};
use super::vllm_offload::{BUILT_SAYS, CONFIG_INFO, CONNECTOR, PRIMARY, RAM};
use super::{Dialect, facts, first, unreadable};
use crate::exposition::{Exposition, Labels};
use crate::model::{Engine, Fact, Medium, Snapshot, Tier, Transfers};

pub(super) const READ_BYTES: &str = "vllm:kv_offload_tiering_read_bytes_total";
const READ_TIME: &str = "vllm:kv_offload_tiering_read_time_total";
const WRITE_BYTES: &str = "vllm:kv_offload_tiering_write_bytes_total";
const WRITE_TIME: &str = "vllm:kv_offload_tiering_write_time_total";
const CHUNK_QUERIES: &str = "vllm:kv_offload_tiering_chunk_queries_total";
const CHUNK_HITS: &str = "vllm:kv_offload_tiering_chunk_hits_total";
const ACTIVE_PROMOTIONS: &str = "vllm:kv_offload_tiering_active_promotion_jobs";
const ACTIVE_CASCADES: &str = "vllm:kv_offload_tiering_active_cascade_jobs";
const PRIMARY_WRITE_USAGE: &str = "vllm:kv_offload_tiering_primary_write_usage_perc";
const PRIMARY_READ_USAGE: &str = "vllm:kv_offload_tiering_primary_read_usage_perc";
const PROMOTION_FAILURES: &str = "vllm:kv_offload_tiering_promotion_job_failures_total";
const CASCADE_FAILURES: &str = "vllm:kv_offload_tiering_cascade_job_failures_total";
const PROMOTION_REFUSALS: &str = "vllm:kv_offload_tiering_promotion_allocation_failures_total";
const LOOKUPS: [&str; 4] = [
    "vllm:kv_offload_tiering_lookup_sync_delay_seconds",
    "vllm:kv_offload_tiering_lookup_async_delay_seconds",
    "vllm:kv_offload_tiering_lookup_sync_delay_seconds_count",
    "vllm:kv_offload_tiering_lookup_async_delay_seconds_count",
];

/// Families that came with 0.28, the first version that counts promotions.
const COUNTED: [&str; 8] = [
    READ_BYTES,
    WRITE_BYTES,
    CHUNK_QUERIES,
    CHUNK_HITS,
    ACTIVE_PROMOTIONS,
    ACTIVE_CASCADES,
    PRIMARY_WRITE_USAGE,
    PRIMARY_READ_USAGE,
];

const TIER: Declared = Declared::These(&["tier"]);

pub(super) const DIALECT: Dialect = Dialect {
    name: "vllm_tiering",
    reads: &[
        READ_BYTES,
        READ_TIME,
        WRITE_BYTES,
        WRITE_TIME,
        CHUNK_QUERIES,
        CHUNK_HITS,
        ACTIVE_PROMOTIONS,
        ACTIVE_CASCADES,
        PRIMARY_WRITE_USAGE,
        PRIMARY_READ_USAGE,
        PROMOTION_FAILURES,
        CASCADE_FAILURES,
        PROMOTION_REFUSALS,
        LOOKUPS[0],
        LOOKUPS[1],
        LOOKUPS[2],
        LOOKUPS[3],
        CONFIG_INFO,
    ],
    kind: Kind::Vllm,
    identity: &[],
    declared: &[
        (READ_BYTES, TIER),
        (READ_TIME, TIER),
        (WRITE_BYTES, TIER),
        (WRITE_TIME, TIER),
        (CHUNK_QUERIES, TIER),
        (CHUNK_HITS, TIER),
        (ACTIVE_PROMOTIONS, TIER),
        (ACTIVE_CASCADES, TIER),
        (PRIMARY_WRITE_USAGE, TIER),
        (PRIMARY_READ_USAGE, TIER),
        (PROMOTION_FAILURES, TIER),
        (CASCADE_FAILURES, TIER),
        (PROMOTION_REFUSALS, TIER),
        (LOOKUPS[0], TIER),
        (LOOKUPS[1], TIER),
        (LOOKUPS[2], TIER),
        (LOOKUPS[3], TIER),
        (CONFIG_INFO, BUILT_SAYS),
    ],
    read,
};

fn read(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    let counted = COUNTED.iter().any(|name| page.has(name));
    let lookups = LOOKUPS.iter().any(|name| page.has(name));
    find_tiers(page, snapshot);
    type Slot = fn(&mut Transfers) -> &mut Option<Fact>;
    let families: [(&str, Slot); 4] = [
        (READ_BYTES, |t| &mut t.reloaded_bytes),
        (READ_TIME, |t| &mut t.reload_seconds),
        (WRITE_BYTES, |t| &mut t.stored_bytes),
        (WRITE_TIME, |t| &mut t.store_seconds),
    ];
    for (name, slot) in families {
        facts(page, snapshot, name, |engine, labels, fact| {
            if let Some(tier) = secondary(engine, labels) {
                first(slot(&mut tier.transfers), fact);
            }
        });
    }
    unreadable(page, snapshot, READ_BYTES, |engine, labels| {
        if let Some(tier) = secondary(engine, labels) {
            tier.transfers.reloads_unreadable = true;
        }
    });
    unreadable(page, snapshot, WRITE_BYTES, |engine, labels| {
        if let Some(tier) = secondary(engine, labels) {
            tier.transfers.stores_unreadable = true;
        }
    });
    for name in [PROMOTION_FAILURES, PROMOTION_REFUSALS] {
        facts(page, snapshot, name, |engine, _, fact| {
            if let Some(ram) = engine.tiers.iter_mut().find(|tier| tier.name == RAM) {
                ram.refusals += fact.value;
            }
        });
    }
    for engine in &mut snapshot.engines {
        promotions(engine, counted, lookups);
    }
    counted || lookups
}

/// A secondary tier exists once its label value is on the page, in whatever family.
fn find_tiers(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    for name in DIALECT.reads {
        facts(page, snapshot, name, |engine, labels, _| {
            secondary(engine, labels);
        });
    }
}

/// The secondary tier that a sample belongs to. The primary one is the RAM tier and never a tier of its own.
fn secondary<'e>(engine: &'e mut Engine, labels: Labels<'_>) -> Option<&'e mut Tier> {
    let name = labels.value("tier");
    let (_, kind) = name.split_once(':').unwrap_or(("", &name));
    let medium = match kind {
        "fs" | "fs_python" => Medium::Disk,
        "obj" | "p2p" => Medium::Remote,
        _ => Medium::Unknown,
    };
    (!name.is_empty() && name != PRIMARY).then(|| engine.tier_or_insert(&name, medium, CONNECTOR))
}

fn promotions(engine: &mut Engine, counted: bool, lookups: bool) {
    let (mut promoted, mut unread) = (None, false);
    for tier in engine.tiers.iter_mut().filter(|tier| tier.name != RAM && tier.connector == CONNECTOR) {
        if counted {
            tier.transfers.state_zeros();
            unread |= tier.transfers.reloaded_bytes.is_none();
            let read = tier.transfers.reloaded_bytes.map_or(0.0, |fact| fact.value);
            promoted = Some(promoted.unwrap_or(0.0) + read);
        }
    }
    let doubtful = DIALECT.reads.iter().any(|family| engine.doubts(family));
    if let Some(ram) = engine.tiers.iter_mut().find(|tier| tier.name == RAM) {
        ram.doubtful |= doubtful;
        ram.promoted = promoted.map(|bytes| Fact::new(bytes, READ_BYTES));
        ram.promotions_unseen = lookups && !counted || unread;
    }
}
