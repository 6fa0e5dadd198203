//! LMCache inside the engine's processes: `lmcache:` families, on vLLM's own page or on LMCache's internal server.
//!
//! They have no `engine` label. Their model (the name it is served by, or else the one it was loaded by) decides:
//!
//! | engines of that model on the page | the facts belong to |
//! |---|---|
//! | one | that engine |
//! | none | an engine of its own with `engine=""` |
//! | several (data parallel) | lookups to the model; bytes to nobody, and `/debug` says so |
//! | several that other labels tell apart, which LMCache's series lack | nobody, and `/debug` says so |
//!
//! Identity labels (`pod` …) that LMCache's series do have narrow the choice.
//!
//! Ranks share tokens and split bytes. Each process that looks up counts the same lookups, so one of them speaks: the
//! one that counted the most, be it a worker or the scheduler (who looks up is a matter of version and configuration,
//! and the others stand at 0). Both sides of the quotient are of that process. Each rank holds its own share of the
//! bytes, so those are summed.
//!
//! What is left out, and why: `retrieve_hit_rate` reads 1 while nothing is retrieved; `local_storage_usage` is a
//! belief that is no fill (see [`Snapshot::disk_claimed`]); no family counts bytes that moved, and tokens times an
//! estimate would be an invention. Read from the releases 0.3.3 to 0.5.6, which spell these names alike; 0.3.3 has
//! no lookups yet.

use std::collections::{BTreeMap, BTreeSet};

use super::identity::{Declared, Kind, Repeats, Whose};
use super::{Dialect, says_something};
use crate::exposition::{Exposition, Labels};
use crate::model::{Engine, Fact, Medium, Quotient, Residency, Snapshot};
use crate::notice::kinds::{FACTS_CONTRADICT, FACTS_NOT_PLACED};

pub(super) const KIND: &str = "lmcache";
pub(super) const CPU: &str = "lmcache_cpu";
pub(super) const DISK: &str = "lmcache_disk";
const CONNECTOR: &str = "LMCacheConnector";

const LOOKED_UP: &str = "lmcache:num_lookup_tokens_total";
const FOUND: &str = "lmcache:num_lookup_hits_total";
const CPU_USED: &str = "lmcache:local_cache_usage";
const DISK_CLAIMED: &str = "lmcache:local_storage_usage";

pub(super) const DIALECT: Dialect = Dialect {
    name: "lmcache",
    reads: &[LOOKED_UP, FOUND, CPU_USED, DISK_CLAIMED],
    kind: Kind::Lmcache,
    identity: &[LOOKED_UP, FOUND, CPU_USED, DISK_CLAIMED],
    declared: &[(LOOKED_UP, SERVED), (FOUND, SERVED), (CPU_USED, SERVED), (DISK_CLAIMED, SERVED)],
    read,
};

const SERVED: Declared = Declared::These(&["served_model_name"]);

fn read(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    let mut caches: BTreeMap<(String, Vec<(String, String)>), Cache<'_>> = BTreeMap::new();
    for name in DIALECT.reads {
        let whose = Whose::of(snapshot, Kind::Lmcache, name);
        for sample in page.samples(name).iter().filter(|sample| says_something(sample.value)) {
            let place = (model(sample.labels, snapshot), whose.server(sample.labels));
            caches.entry(place).or_default().take(name, sample.labels, sample.value);
        }
        for labels in Repeats::of(page.samples(name)).otherwise.into_iter().map(|at| page.samples(name)[at].labels) {
            let place = (model(labels, snapshot), whose.server(labels));
            caches.entry(place).or_default().unclear.insert(name);
        }
    }
    for ((model, labels), cache) in &caches {
        place(model, labels, cache, snapshot);
    }
    if !caches.is_empty() {
        snapshot.engine_kind.get_or_insert(KIND);
    }
    !caches.is_empty()
}

/// A role of LMCache in the engine. The scheduler's bytes are zeros, so its order is behind all workers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Worker {
    is_scheduler: bool,
    id: u64,
}

/// A process, told by all its labels: a restarted worker has the same role, and counts from 0 again.
type Process<'a> = (Worker, Vec<(&'a str, &'a str)>);

/// What all processes that cache for one model say.
#[derive(Default)]
struct Cache<'a> {
    bytes: BTreeMap<(&'static str, Worker), f64>,
    looked_up: BTreeMap<Process<'a>, f64>,
    found: BTreeMap<Process<'a>, f64>,
    /// Families that contradict themselves.
    unclear: BTreeSet<&'static str>,
}

impl<'a> Cache<'a> {
    fn take(&mut self, name: &'static str, labels: Labels<'a>, value: f64) {
        let is_scheduler = labels.raw("role") == Some("scheduler");
        let id = labels.raw("worker_id").and_then(|id| id.parse().ok()).unwrap_or_default();
        let worker = Worker { is_scheduler, id };
        let process = || {
            let mut labels: Vec<_> = labels.iter().collect();
            labels.sort_unstable();
            (worker, labels)
        };
        match name {
            LOOKED_UP => _ = self.looked_up.entry(process()).or_insert(value),
            FOUND => _ = self.found.entry(process()).or_insert(value),
            // Of one worker's processes (one of them dead) the one with the most holds the bytes.
            _ => {
                let known = self.bytes.entry((name, worker)).or_insert(value);
                *known = known.max(value);
            }
        }
    }

    /// What was found of what was looked up, by the process that looked up the most; of equals by the first.
    fn lookups(&self) -> Option<Quotient> {
        if [LOOKED_UP, FOUND].iter().any(|name| self.unclear.contains(name)) {
            return None;
        }
        let told =
            self.looked_up.iter().filter_map(|(process, looked_up)| Some((*looked_up, *self.found.get(process)?)));
        let (looked_up, found) = told.reduce(|most, next| if next.0 > most.0 { next } else { most })?;
        Some(Quotient { of: Fact::new(found, FOUND), by: Fact::new(looked_up, LOOKED_UP) })
    }

    /// The bytes of all workers. The scheduler's own page says 0 of bytes that the workers hold.
    fn bytes(&self, family: &'static str) -> Option<Fact> {
        if self.unclear.contains(family) {
            return None;
        }
        let held = |(name, worker): &(&str, Worker)| *name == family && !worker.is_scheduler;
        let shares = self.bytes.iter().filter(|(key, _)| held(key)).map(|(_, bytes)| *bytes);
        shares.reduce(|all, bytes| all + bytes).map(|bytes| Fact::new(bytes, family))
    }
}

/// The name that the engine goes by on this page; else the one it is served by; else the one it was loaded by.
pub(super) fn model(labels: Labels<'_>, snapshot: &Snapshot) -> String {
    let names = [labels.value("served_model_name"), labels.value("model_name")];
    let shown = |name: &&_| snapshot.engines.iter().any(|engine| engine.id.model_name == **name);
    let named = || names.iter().filter(|name| !name.is_empty());
    named().find(shown).or_else(|| named().next()).map(|name| name.to_string()).unwrap_or_default()
}

fn place(model: &str, labels: &[(String, String)], cache: &Cache<'_>, snapshot: &mut Snapshot) {
    for name in &cache.unclear {
        let note = format!(
            "what LMCache says of model {model:?}: {name} has one series several times, with different values; it is not read"
        );
        snapshot.note(&FACTS_CONTRADICT, note);
    }
    if let Some(bytes) = cache.bytes(DISK_CLAIMED) {
        super::add(&mut snapshot.disk_claimed, bytes);
    }
    let mut engines = snapshot.serving(model, labels);
    if engines.iter().any(|engine| engine.id.labels != engines[0].id.labels) {
        let count = engines.len();
        let note = format!("what LMCache says of model {model:?}: it fits {count} engines that serve it");
        snapshot.note(&FACTS_NOT_PLACED, note);
        return;
    }
    for engine in &mut engines {
        engine.lookup_hits = cache.lookups().or(engine.lookup_hits);
    }
    match engines.as_mut_slice() {
        [engine] => tiers(engine, cache),
        several if cache.bytes(CPU_USED).is_some() || cache.bytes(DISK_CLAIMED).is_some() => {
            let note = format!("bytes that LMCache keeps for model {model:?}: {} engines serve it", several.len());
            snapshot.note(&FACTS_NOT_PLACED, note);
        }
        _ => {}
    }
}

/// With `local_cpu: false` the CPU pool is staging and no tier, and a disk usage of 0 is also what a missing disk
/// backend shows; the page does not tell.
fn tiers(engine: &mut Engine, cache: &Cache<'_>) {
    if let Some(used) = cache.bytes(CPU_USED) {
        let tier = engine.tier_or_insert(CPU, Medium::Ram, CONNECTOR);
        tier.residency = Some(Residency::Bytes(used));
        tier.only_if_declared = true;
    }
    if let Some(claimed) = cache.bytes(DISK_CLAIMED) {
        engine.tier_or_insert(DISK, Medium::Disk, CONNECTOR).only_if_declared = claimed.value <= 0.0;
    }
}
