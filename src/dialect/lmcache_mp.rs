//! LMCache as a server of its own (multiprocess mode): `lmcache_mp_` families, on a page of its own.
//!
//! Its tiers are the server's, which may serve several engines: they belong to the only engine that is shown beside
//! it (and has the labels that tell servers apart, where there are such), or else to an engine of their own without model. Its lookups name the model as it was loaded, and
//! belong to the engines of that name; if there is one engine and one model, they belong together under any name.
//! An OpenTelemetry counter is absent until its first event, so no 0 is stated for it.
//!
//! | names | since |
//! |---|---|
//! | `lmcache_mp:l1_read_keys_total` (prometheus client, colon) | 0.4.1 |
//! | `lmcache_mp_l1_read_keys_total` (OpenTelemetry) | 0.4.4 |
//! | `lmcache_mp_l1_read_chunks_total`; bytes of both levels; lookups in tokens | 0.4.7 |
//! | bytes and seconds of each phase of a copy | 0.5.6 |
//!
//! What is left out, and why: `l1_usage_ratio` is relative to a pool that grows on demand; `l2_usage_bytes` misses
//! the files that were there at the start, so it is no fill; throughput histograms weigh a small copy like a large
//! one; hits by level include what the GPU held, so they are not tokens served. Where
//! `event_bus_dropped_events_total` is above 0, all counters are too low, on both sides of a quotient.

use std::collections::{BTreeMap, BTreeSet};

use super::identity::{Declared, Kind, Repeats, Whose};
use super::lmcache::{CPU, DISK, KIND};
use super::{Dialect, add};
use crate::exposition::{Exposition, Sample};
use crate::model::{EngineId, Fact, Medium, Quotient, Residency, Snapshot, Tier};
use crate::notice::kinds::FACTS_CONTRADICT;

const CONNECTOR: &str = "LMCacheMPConnector";

const L1_USED: &str = "lmcache_mp_l1_memory_usage_bytes";
const L2_CLAIMED: &str = "lmcache_mp_l2_usage_bytes";
const LOOKED_UP: &str = "lmcache_mp_lookup_requested_tokens_total";
const FOUND: &str = "lmcache_mp_lookup_hit_tokens_total";
const PHASE_BYTES: &str = "lmcache_mp_transfer_phase_bytes_total";
const PHASE_SECONDS: &str = "lmcache_mp_transfer_phase_elapsed_seconds_total";

pub(super) const DIALECT: Dialect = Dialect {
    name: "lmcache_mp",
    reads: &[
        L1_USED,
        L2_CLAIMED,
        LOOKED_UP,
        FOUND,
        PHASE_BYTES,
        PHASE_SECONDS,
        // These only prove the server. Each version has at least one of them, or one of those above.
        "lmcache_mp_l1_read_chunks_total",
        "lmcache_mp_l1_write_chunks_total",
        "lmcache_mp_l1_evicted_chunks_total",
        "lmcache_mp_l1_read_keys_total",
        "lmcache_mp_l1_write_keys_total",
        "lmcache_mp_l1_evicted_keys_total",
        "lmcache_mp:l1_read_keys_total",
        "lmcache_mp:l1_write_keys_total",
        "lmcache_mp:l1_evicted_keys_total",
        "lmcache_mp:sm_read_requests_total",
        "lmcache_mp:sm_write_requests_total",
    ],
    kind: Kind::LmcacheServer,
    identity: &[L1_USED, L2_CLAIMED, LOOKED_UP, FOUND, PHASE_BYTES, PHASE_SECONDS],
    declared: &[
        (L1_USED, Declared::These(&["l1_tag", "backend"])),
        (L2_CLAIMED, Declared::These(&["l2_name", "backend"])),
        (LOOKED_UP, Declared::These(&["cache_salt"])),
        (FOUND, Declared::These(&["cache_salt"])),
        (PHASE_BYTES, Declared::These(&["direction", "phase", "device_index"])),
        (PHASE_SECONDS, Declared::These(&["direction", "phase", "device_index"])),
        ("lmcache_mp_l1_read_chunks_total", Declared::OfNoEngine),
        ("lmcache_mp_l1_write_chunks_total", Declared::OfNoEngine),
        ("lmcache_mp_l1_evicted_chunks_total", Declared::OfNoEngine),
        ("lmcache_mp_l1_read_keys_total", Declared::OfNoEngine),
        ("lmcache_mp_l1_write_keys_total", Declared::OfNoEngine),
        ("lmcache_mp_l1_evicted_keys_total", Declared::OfNoEngine),
        ("lmcache_mp:l1_read_keys_total", Declared::OfNoEngine),
        ("lmcache_mp:l1_write_keys_total", Declared::OfNoEngine),
        ("lmcache_mp:l1_evicted_keys_total", Declared::OfNoEngine),
        ("lmcache_mp:sm_read_requests_total", Declared::OfNoEngine),
        ("lmcache_mp:sm_write_requests_total", Declared::OfNoEngine),
    ],
    read,
};

fn read(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    if !DIALECT.reads.iter().any(|name| page.has(name)) {
        return false;
    }
    snapshot.engine_kind.get_or_insert(KIND);
    let (servers, unclear) = servers(page, snapshot);
    for (labels, server) in servers {
        place(&labels, &server, snapshot);
    }
    for name in unclear {
        let note = format!(
            "what LMCache's server says: {name} has one series several times, with different values; it is not read"
        );
        snapshot.note(&FACTS_CONTRADICT, note);
    }
    true
}

/// What the page says of one server, by family.
type Server<'p, 'a> = BTreeMap<&'static str, Vec<&'p Sample<'a>>>;

/// The servers of the page by the labels that tell them apart.
type Servers<'p, 'a> = BTreeMap<Vec<(String, String)>, Server<'p, 'a>>;

/// The servers of the page, each series once, and the families that contradict themselves, of whose server nothing is left. A
/// page without any sample that tells servers apart is of one.
fn servers<'p, 'a>(page: &'p Exposition<'a>, snapshot: &Snapshot) -> (Servers<'p, 'a>, BTreeSet<&'static str>) {
    let mut servers = Servers::new();
    let mut unclear = BTreeSet::new();
    for name in DIALECT.reads {
        let whose = Whose::of(snapshot, Kind::LmcacheServer, name);
        let samples = page.samples(name);
        let Repeats { again, otherwise } = Repeats::of(samples);
        let read = |(at, sample): &(usize, &Sample<'_>)| !again.contains(at) && sample.value.is_finite();
        for (_, sample) in samples.iter().enumerate().filter(read) {
            let server = servers.entry(whose.server(sample.labels)).or_default();
            server.entry(*name).or_default().push(sample);
        }
        for sample in otherwise.into_iter().map(|at| &samples[at]) {
            unclear.insert(*name);
            servers.entry(whose.server(sample.labels)).or_default().remove(name);
        }
    }
    if servers.is_empty() {
        servers.insert(Vec::new(), Server::new());
    }
    (servers, unclear)
}

fn place(labels: &[(String, String)], server: &Server<'_, '_>, snapshot: &mut Snapshot) {
    let home = home(snapshot, labels);
    let engine = snapshot.engine_or_insert(home.clone());
    let tier = engine.tier_or_insert(CPU, Medium::Ram, CONNECTOR);
    memory(server, tier);
    copies(server, tier);
    if let Some(bytes) = on_local_disk(server) {
        engine.tier_or_insert(DISK, Medium::Disk, CONNECTOR).only_if_declared = false;
        add(&mut snapshot.disk_claimed, bytes);
    }
    lookups(server, &home, snapshot);
}

/// Where the server's own facts belong. It does not depend on traffic, so that labels stay as they are.
fn home(snapshot: &Snapshot, labels: &[(String, String)]) -> EngineId {
    let mut fitting = snapshot.engines.iter().map(|engine| &engine.id).filter(|id| id.has(labels));
    match (fitting.next(), fitting.next()) {
        (Some(only), None) => only.clone(),
        _ => EngineId { labels: labels.to_vec(), ..EngineId::default() },
    }
}

/// The server's pool is a tier, whatever a client inside the engine's processes says of its buffers.
fn memory(server: &Server<'_, '_>, tier: &mut Tier) {
    tier.connector = CONNECTOR;
    tier.only_if_declared = false;
    if let Some(used) = sum(server, L1_USED, "l1_tag", |_| true) {
        tier.residency = Some(Residency::Bytes(used));
    }
}

/// Copies between GPU and pool, as all devices together counted them. A copy has two phases over the same bytes;
/// staging is the one that crosses the bus.
fn copies(server: &Server<'_, '_>, tier: &mut Tier) {
    let transfers = &mut tier.transfers;
    for (family, direction, slot) in [
        (PHASE_BYTES, "d2h", &mut transfers.stored_bytes),
        (PHASE_SECONDS, "d2h", &mut transfers.store_seconds),
        (PHASE_BYTES, "h2d", &mut transfers.reloaded_bytes),
        (PHASE_SECONDS, "h2d", &mut transfers.reload_seconds),
    ] {
        for sample in samples(server, family) {
            let label = |name| sample.labels.raw(name);
            if (label("direction"), label("phase")) == (Some(direction), Some("staging")) {
                add(slot, Fact::new(sample.value, family));
            }
        }
    }
}

/// The bytes that this process put on a local file system; `l2_name` is the type of the adapter.
fn on_local_disk(server: &Server<'_, '_>) -> Option<Fact> {
    sum(server, L2_CLAIMED, "l2_name", |name| matches!(name, "fs" | "fs_native"))
}

fn samples<'s, 'a>(server: &'s Server<'_, 'a>, family: &str) -> impl Iterator<Item = &'s Sample<'a>> {
    server.get(family).into_iter().flatten().copied()
}

fn sum(server: &Server<'_, '_>, family: &'static str, label: &str, keep: fn(&str) -> bool) -> Option<Fact> {
    let mut all = None;
    for sample in samples(server, family) {
        if keep(&sample.labels.value(label)) {
            add(&mut all, Fact::new(sample.value, family));
        }
    }
    all
}

/// Tenants (`cache_salt`) of one model are summed. Some versions name no model.
fn lookups(server: &Server<'_, '_>, home: &EngineId, snapshot: &mut Snapshot) {
    let mut models: BTreeMap<String, [Option<Fact>; 2]> = BTreeMap::new();
    for (side, family) in [FOUND, LOOKED_UP].into_iter().enumerate() {
        for sample in samples(server, family) {
            let model = sample.labels.value("model_name").into_owned();
            add(&mut models.entry(model).or_default()[side], Fact::new(sample.value, family));
        }
    }
    for (model, [found, looked_up]) in &models {
        let known = snapshot.engines.iter().any(|engine| engine.id.model_name == *model);
        let renamed = !known && models.len() == 1 && !home.model_name.is_empty();
        let model = if model.is_empty() || renamed { &home.model_name } else { model };
        for engine in snapshot.serving(model, &home.labels) {
            engine.lookup_hits = Quotient::of(*found, *looked_up);
        }
    }
}
