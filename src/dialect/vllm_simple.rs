//! vLLM's SimpleCPUOffloadConnector: a tier without bytes and without seconds, in every version.
//!
//! Its `used_blocks` gauge counts pinned blocks, and its `outcome="stored"` counter is not the number of stored
//! blocks, so nothing here bounds the fill. What it does say is which medium the pool lies on.

use super::identity::{Declared, Kind};
use super::vllm_offload::RAM;
use super::{Dialect, facts};
use crate::exposition::Exposition;
use crate::model::{Medium, Snapshot};

const CONNECTOR: &str = "SimpleCPUOffloadConnector";
pub(super) const INFO: &str = "vllm:simple_kv_offload_info";

pub(super) const DIALECT: Dialect = Dialect {
    name: "vllm_simple",
    reads: &[INFO],
    kind: Kind::Vllm,
    identity: &[],
    declared: &[(INFO, Declared::Facts(&["backend"]))],
    read,
};

fn read(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    facts(page, snapshot, INFO, |engine, labels, _| match labels.raw("backend") {
        _ if engine.doubts_label(INFO, "backend") => {}
        Some("disk") => {
            // The disk replaces the RAM pool, which is then only a staging buffer.
            engine.tiers.retain(|tier| tier.name != RAM || tier.bounded_by_stores);
            engine.tier_or_insert("disk", Medium::Disk, CONNECTOR);
        }
        _ => engine.tier_or_insert(RAM, Medium::Ram, CONNECTOR).connector = CONNECTOR,
    });
    if page.has(INFO) && page.samples(INFO).is_empty() {
        // Before its first step the connector shows its families only; the configured size is then its own.
        for tier in snapshot.engines.iter_mut().flat_map(|engine| &mut engine.tiers) {
            if tier.name == RAM && !tier.bounded_by_stores {
                tier.connector = CONNECTOR;
            }
        }
    }
    page.has(INFO)
}
