//! SGLang with or without HiCache: a pool of host memory behind the GPU's, and a storage behind that.
//!
//! A page has no `engine` label, so a server is one engine, `engine=""`. Its data-parallel replicas have a scheduler and a
//! cache each, so `dp_rank` on the scheduler's families tells engines apart; a server without replicas has it on the
//! cache's families only, where it says nothing. What all ranks of an engine say alike (tokens) is taken from the first
//! that reports; what each rank has of its own (bytes, seconds) is summed over all, a series that stands there twice once.
//!
//! There is a tier only where the page has `hicache_host_total_tokens`: the counters of hits stand at 0 without one
//! too, evictions do not mean that something was kept, and `--enable-lmcache` shows no pool of its own. So a 0 of
//! hits in a tier is stated only where there is the tier. Copies are counted from the first on; their absence is
//! not taken for a 0, since older versions do not count them.
//!
//! | SGLang's `mode` | `kvtier_prompt_tokens_total` | `kvtier_tier_served_tokens_total` |
//! |---|---|---|
//! | `input` | `computed` | |
//! | `device_hit` | `gpu_cache` | |
//! | `host_hit` | `external` | `ram` |
//! | `storage_hit` | `external` | `disk` of the storage `file`, else `unspecified` |
//!
//! What is left out, and why: `token_usage` does not count reusable tokens, `cache_hit_rate` is that of one batch,
//! `startup_available_gpu_memory_gb` is never updated, bandwidth histograms weigh a small copy like a large one.
//! Read from the release 0.5.23.

use std::collections::BTreeMap;

use super::identity::{Declared, Kind, Repeats};
use super::{Dialect, add, placed};
use crate::exposition::{Exposition, Sample};
use crate::model::{Engine, Fact, Medium, Owner, Quotient, Residency, Snapshot};

const CONNECTOR: &str = "HiCache";
const HOST: &str = "hicache_host";
const STORAGE: &str = "hicache_storage";

const HOST_TOTAL: &str = "sglang:hicache_host_total_tokens";
const HOST_USED: &str = "sglang:hicache_host_used_tokens";
const BACKUP_BYTES: &str = "sglang:hicache_backup_bytes_total";
const BACKUP_SECONDS: &str = "sglang:hicache_backup_duration_seconds_sum";
const LOAD_BACK_BYTES: &str = "sglang:load_back_bytes_total";
const LOAD_BACK_SECONDS: &str = "sglang:load_back_duration_seconds_sum";
const PREFILL: &str = "sglang:prefill_effective_tokens_total";
const RUNNING: &str = "sglang:num_running_reqs";
const POOL: &str = "sglang:max_total_num_tokens";
const PAGE: &str = "sglang:page_size";
const STORAGE_FAMILIES: [&str; 5] = [
    "sglang:prefetched_tokens_total",
    "sglang:backuped_tokens_total",
    "sglang:storage_prefetch_hit_tokens_total",
    "sglang:storage_prefetch_unfulfilled_tokens_total",
    "sglang:hicache_backup_dropped_tokens_total",
];

const SCHEDULER: Declared = Declared::These(&["priority"]);
const BEHIND: Declared = Declared::These(&["storage_backend", "pp_size", "attn_cp_rank", "attn_cp_size"]);

pub(super) const DIALECT: Dialect = Dialect {
    name: "sglang",
    reads: &[
        HOST_TOTAL,
        HOST_USED,
        BACKUP_BYTES,
        BACKUP_SECONDS,
        LOAD_BACK_BYTES,
        LOAD_BACK_SECONDS,
        PREFILL,
        RUNNING,
        POOL,
        PAGE,
        STORAGE_FAMILIES[0],
        STORAGE_FAMILIES[1],
        STORAGE_FAMILIES[2],
        STORAGE_FAMILIES[3],
        STORAGE_FAMILIES[4],
    ],
    kind: Kind::Sglang,
    identity: &[RUNNING, HOST_TOTAL, HOST_USED, PREFILL, POOL],
    declared: &[
        (RUNNING, SCHEDULER),
        (HOST_TOTAL, SCHEDULER),
        (HOST_USED, SCHEDULER),
        (POOL, SCHEDULER),
        (PAGE, SCHEDULER),
        (PREFILL, Declared::These(&["priority", "mode"])),
        (STORAGE_FAMILIES[0], BEHIND),
        (STORAGE_FAMILIES[1], BEHIND),
        (STORAGE_FAMILIES[2], BEHIND),
        (STORAGE_FAMILIES[3], BEHIND),
        (STORAGE_FAMILIES[4], BEHIND),
    ],
    read,
};

fn read(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    if !snapshot.pages.names(Kind::Sglang.name()) {
        return false;
    }
    for (at, samples) in by_engine(page, snapshot) {
        let (server, engine) = (Server { samples }, &mut snapshot.engines[at]);
        engine.gpu_pool_tokens = server.once(POOL, |_| true);
        engine.block_tokens = server.first(PAGE);
        host_tier(&server, engine);
        storage_tier(&server, engine);
        tokens(&server, engine);
    }
    snapshot.engine_kind = Some("sglang");
    true
}

/// The samples of each family by the place of their engine. A sample with a priority is a part of the whole that is
/// shown beside it.
fn by_engine<'p, 'a>(page: &'p Exposition<'a>, snapshot: &Snapshot) -> BTreeMap<usize, Samples<'p, 'a>> {
    let mut all: BTreeMap<usize, Samples<'p, 'a>> = BTreeMap::new();
    for name in DIALECT.reads {
        let again = Repeats::of(page.samples(name)).again;
        let whole = |sample: &Sample<'_>| sample.value.is_finite() && sample.labels.value("priority").is_empty();
        for (at, (place, sample)) in placed(page, name).enumerate() {
            if again.contains(&at) || !whole(sample) {
                continue;
            }
            if let Owner::One(at) = snapshot.pages.owner(place)
                && !snapshot.engines[at].doubts(name)
            {
                all.entry(at).or_default().entry(name).or_default().push(sample);
            }
        }
    }
    all
}

/// Samples by family.
type Samples<'p, 'a> = BTreeMap<&'static str, Vec<&'p Sample<'a>>>;

/// What the page says of one engine.
struct Server<'p, 'a> {
    samples: Samples<'p, 'a>,
}

impl<'a> Server<'_, 'a> {
    fn samples(&self, name: &str) -> impl Iterator<Item = &Sample<'a>> {
        self.samples.get(name).into_iter().flatten().copied()
    }

    /// What each rank has of its own, summed.
    fn all(&self, name: &'static str) -> Option<Fact> {
        let mut all = None;
        self.samples(name).for_each(|sample| add(&mut all, Fact::new(sample.value, name)));
        all
    }

    /// What all ranks say alike, of the first rank.
    fn once(&self, name: &'static str, keep: impl Fn(&Sample<'_>) -> bool) -> Option<Fact> {
        let rank = |sample: &&Sample<'_>| {
            let rank = |name| sample.labels.raw(name).and_then(|rank| rank.parse().ok()).unwrap_or(0_u64);
            ["pp_rank", "tp_rank", "moe_ep_rank"].map(rank)
        };
        let first = self.samples(name).filter(|sample| keep(sample)).min_by_key(rank);
        first.map(|sample| Fact::new(sample.value, name))
    }

    /// What everybody says alike.
    fn first(&self, name: &'static str) -> Option<Fact> {
        self.samples(name).next().map(|sample| Fact::new(sample.value, name))
    }
}

fn host_tier(server: &Server<'_, '_>, engine: &mut Engine) {
    let Some(total) = server.once(HOST_TOTAL, |_| true) else { return };
    let tier = engine.tier_or_insert(HOST, Medium::Ram, CONNECTOR);
    tier.size_tokens = Some(total).filter(|tokens| tokens.value > 0.0);
    tier.residency = Quotient::of(server.once(HOST_USED, |_| true), Some(total)).map(Residency::Share);
    tier.transfers.stored_bytes = server.all(BACKUP_BYTES);
    tier.transfers.store_seconds = server.all(BACKUP_SECONDS);
    tier.transfers.reloaded_bytes = server.all(LOAD_BACK_BYTES);
    tier.transfers.reload_seconds = server.all(LOAD_BACK_SECONDS);
}

/// Nothing counts the storage's bytes, so all that is known of it is that it is there, and its kind.
fn storage_tier(server: &Server<'_, '_>, engine: &mut Engine) {
    let mut backends = STORAGE_FAMILIES.iter().flat_map(|name| server.samples(name));
    let Some(backend) = backends.find_map(|sample| sample.labels.raw("storage_backend")) else { return };
    let medium = match backend {
        "file" => Medium::Disk,
        "aibrix" | "eic" | "hf3fs" | "mooncake" => Medium::Remote,
        _ => Medium::Unknown,
    };
    engine.tier_or_insert(STORAGE, medium, CONNECTOR);
}

fn tokens(server: &Server<'_, '_>, engine: &mut Engine) {
    let mode = |mode| server.once(PREFILL, |sample| sample.labels.raw("mode") == Some(mode));
    let shown = |hits: Option<Fact>, tier| hits.filter(|hits| hits.value > 0.0 || engine.tier(tier).is_some());
    let (computed, gpu) = (mode("input"), mode("device_hit"));
    let (host, storage) = (shown(mode("host_hit"), HOST), shown(mode("storage_hit"), STORAGE));
    let external = sum([host, storage]);
    let total = sum([computed, gpu, external]);
    let on_disk = engine.tier(STORAGE).is_some_and(|tier| tier.medium == Medium::Disk);
    engine.prompt_total = total;
    engine.prefill_computed = Quotient::of(computed, total);
    let prompt = [("computed", computed), ("gpu_cache", gpu), ("external", external)];
    let served = [("ram", host), (if on_disk { "disk" } else { "unspecified" }, storage)];
    engine.prompt_tokens = named(prompt);
    engine.served_tokens = named(served);
}

fn sum<const N: usize>(parts: [Option<Fact>; N]) -> Option<Fact> {
    let mut all = None;
    parts.into_iter().flatten().for_each(|part| add(&mut all, part));
    all
}

fn named<const N: usize>(facts: [(&str, Option<Fact>); N]) -> BTreeMap<String, Fact> {
    facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?))).collect()
}
