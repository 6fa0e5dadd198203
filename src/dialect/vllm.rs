//! vLLM's base families: prompt tokens and where they came from, the GPU pool, signs of a reset, the version.
//!
//! Which families exist, and since when, was read from the releases 0.14 to 0.33. A version's own formula is
//! chosen by the families that are on the page, never by a version number: pages carry none.

use std::collections::BTreeMap;

use super::identity::{Declared, Kind, Whose};
use super::{
    Dialect, as_number, described, facts, first, of_processes, placed, vllm_groups, vllm_offload, vllm_simple,
    vllm_tiering,
};
use crate::exposition::{Exposition, Sample};
use crate::model::{Engine, Fact, Owner, Quotient, ResetCalls, Snapshot, ratio};

const PROMPT: &str = "vllm:prompt_tokens_total";
const GENERATION: &str = "vllm:generation_tokens_total";
const PROMPT_BY_SOURCE: &str = "vllm:prompt_tokens_by_source_total";
const PROMPT_RECOMPUTED: &str = "vllm:prompt_tokens_recomputed_total";
const CACHED_BY_SOURCE: &str = "vllm:prompt_tokens_cached_by_source_total";
const EXTERNAL_HITS: &str = "vllm:external_prefix_cache_hits_total";
const EXTERNAL_QUERIES: &str = "vllm:external_prefix_cache_queries_total";
const FINISHED_PROMPT: &str = "vllm:request_prompt_tokens_sum";
const FINISHED_COMPUTED: &str = "vllm:request_prefill_kv_computed_tokens_sum";
const FINISHED_PREFILL: &str = "vllm:request_prefill_time_seconds_sum";
const PREEMPTIONS: &str = "vllm:num_preemptions_total";
const REQUEST_PREEMPTIONS: &str = "vllm:request_num_preemptions";
/// What is read of a configuration, by all who read it.
pub(super) const CONFIGURED: Declared = Declared::Facts(&[
    "block_size",
    "num_gpu_blocks",
    "kv_cache_size_tokens",
    "kv_offloading_backend",
    "kv_offloading_size",
]);

/// What other connectors that supply tokens have on the page: a histogram each, by its TYPE line alone where it has
/// not been used yet.
const OTHER_CONNECTORS: [(&str, &str); 6] = [
    ("vllm:nixl_bytes_transferred", "NixlConnector"),
    ("vllm:nixl_bytes_transferred_count", "NixlConnector"),
    ("vllm:nixl_xfer_time_seconds", "NixlConnector"),
    ("vllm:nixl_xfer_time_seconds_sum", "NixlConnector"),
    ("vllm:mooncake_store_operation_time_seconds", "MooncakeStoreConnector"),
    ("vllm:mooncake_store_operation_time_seconds_count", "MooncakeStoreConnector"),
];
const WAITING_BY_REASON: &str = "vllm:num_requests_waiting_by_reason";
const WAITING: &str = "vllm:num_requests_waiting";
const RUNNING: &str = "vllm:num_requests_running";
const KV_USAGE: &str = "vllm:kv_cache_usage_perc";
pub(super) const CACHE_CONFIG: &str = "vllm:cache_config_info";
const HTTP_REQUESTS: &str = "http_requests_total";
const SLEEP_OPERATIONS: &str = "vllm:sleep_mode_operation_duration_seconds_count";
const SLEEP_STATE: &str = "vllm:engine_sleep_state";

pub(super) const DIALECT: Dialect = Dialect {
    name: "vllm",
    reads: &[
        PROMPT,
        GENERATION,
        PROMPT_BY_SOURCE,
        PROMPT_RECOMPUTED,
        CACHED_BY_SOURCE,
        EXTERNAL_HITS,
        EXTERNAL_QUERIES,
        FINISHED_PROMPT,
        FINISHED_COMPUTED,
        FINISHED_PREFILL,
        PREEMPTIONS,
        REQUEST_PREEMPTIONS,
        OTHER_CONNECTORS[0].0,
        OTHER_CONNECTORS[1].0,
        OTHER_CONNECTORS[2].0,
        OTHER_CONNECTORS[3].0,
        OTHER_CONNECTORS[4].0,
        OTHER_CONNECTORS[5].0,
        WAITING_BY_REASON,
        WAITING,
        RUNNING,
        KV_USAGE,
        CACHE_CONFIG,
        HTTP_REQUESTS,
        SLEEP_OPERATIONS,
        SLEEP_STATE,
    ],
    kind: Kind::Vllm,
    // Counters too: behind Ray gauges vanish while nothing sets them. The sleep state is there before the first request.
    identity: &[RUNNING, WAITING, PROMPT, GENERATION, EXTERNAL_QUERIES, SLEEP_STATE],
    declared: &[
        (PROMPT_BY_SOURCE, Declared::These(&["source"])),
        (CACHED_BY_SOURCE, Declared::These(&["source"])),
        (WAITING_BY_REASON, Declared::These(&["reason"])),
        (SLEEP_STATE, Declared::These(&["sleep_state"])),
        (SLEEP_OPERATIONS, Declared::OfNoEngine),
        (CACHE_CONFIG, CONFIGURED),
        (HTTP_REQUESTS, Declared::OfNoEngine),
    ],
    read,
};

fn read(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    if !snapshot.pages.names(Kind::Vllm.name()) {
        return false;
    }
    snapshot.engine_kind = Some("vllm");
    snapshot.version_range = version_range(page);
    prompt_tokens(page, snapshot);
    prefill(page, snapshot);
    served_tokens(page, snapshot);
    gpu_pool(page, snapshot);
    vllm_groups::mark(page, snapshot);
    resets(page, snapshot);
    facts(page, snapshot, PREEMPTIONS, |engine, _, fact| first(&mut engine.preemptions, fact));
    let other = OTHER_CONNECTORS.iter().find(|(family, _)| page.has(family)).map(|(_, connector)| *connector);
    snapshot.engines.iter_mut().for_each(|engine| engine.other_connector = other);
    true
}

fn prompt_tokens(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    facts(page, snapshot, PROMPT, |engine, _, fact| first(&mut engine.prompt_total, fact));
    facts(page, snapshot, PROMPT_BY_SOURCE, |engine, labels, fact| {
        let source = labels.value("source");
        let source = match source.as_ref() {
            "local_compute" => "computed",
            "local_cache_hit" => "gpu_cache",
            "external_kv_transfer" => "external",
            new => new,
        };
        engine.prompt_tokens.entry(source.to_owned()).or_insert(fact);
    });
}

/// From 0.16 on the share is counted where prompts begin to answer; before that only for finished requests.
fn prefill(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    facts(page, snapshot, FINISHED_PROMPT, |engine, _, fact| first(&mut engine.finished.prompt_tokens, fact));
    facts(page, snapshot, FINISHED_COMPUTED, |engine, _, fact| first(&mut engine.finished.computed_tokens, fact));
    facts(page, snapshot, FINISHED_PREFILL, |engine, _, fact| first(&mut engine.finished.prefill_seconds, fact));
    let by_source = page.has(PROMPT_BY_SOURCE);
    for engine in &mut snapshot.engines {
        engine.prefill_computed = if by_source {
            Quotient::of(engine.prompt_tokens.get("computed").copied(), engine.prompt_total)
        } else {
            Quotient::of(engine.finished.computed_tokens, engine.finished.prompt_tokens)
        };
    }
}

/// From 0.32 on by tier; before that only that a connector supplied them.
fn served_tokens(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    let by_tier = page.has(CACHED_BY_SOURCE);
    facts(page, snapshot, CACHED_BY_SOURCE, |engine, labels, fact| {
        let source = labels.value("source");
        let source = match source.as_ref() {
            "device" => return,
            "host" => "ram",
            "p2p" => "peer",
            "external_unspecified" => "unspecified",
            same => same,
        };
        engine.served_tokens.entry(source.to_owned()).or_insert(fact);
    });
    facts(page, snapshot, EXTERNAL_QUERIES, |engine, _, fact| first(&mut engine.external_queries, fact));
    facts(page, snapshot, EXTERNAL_HITS, |engine, _, fact| {
        first(&mut engine.external_hits, fact);
        if !by_tier {
            engine.served_tokens.entry("unspecified".to_owned()).or_insert(fact);
        }
    });
}

/// `kv_cache_size_tokens` is the engine's own (0.24+). `num_gpu_blocks` is the sum over all engines of a server, repeated
/// on each of them; servers are told apart by labels other than `engine`.
fn gpu_pool(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    facts(page, snapshot, KV_USAGE, |engine, labels, fact| of_processes(&mut engine.gpu_pool_used, labels, fact));
    let configs = page.samples(CACHE_CONFIG);
    let whose = Whose::of(snapshot, Kind::Vllm, CACHE_CONFIG);
    let servers: Vec<_> = configs.iter().map(|sample| whose.server(sample.labels)).collect();
    // An engine that is described several times is one.
    let mut engines: BTreeMap<_, Vec<Owner>> = BTreeMap::new();
    for ((place, _), server) in placed(page, CACHE_CONFIG).zip(&servers) {
        let (known, owner) = (engines.entry(server).or_default(), snapshot.pages.owner(place));
        if owner.one().is_none() || !known.contains(&owner) {
            known.push(owner);
        }
    }
    for ((place, sample), server) in placed(page, CACHE_CONFIG).zip(&servers) {
        let Owner::One(at) = snapshot.pages.owner(place) else { continue };
        let engine = &mut snapshot.engines[at];
        let names = ["block_size", "num_gpu_blocks", "kv_cache_size_tokens"];
        let [block, blocks, tokens] = described(engine, CACHE_CONFIG, sample.labels, names);
        let (block, tokens) = (as_number(block), as_number(tokens));
        let blocks = as_number(blocks).and_then(|all| ratio(all, engines.get(server)?.len() as f64));
        let tokens = tokens.or_else(|| Some(blocks? * block?));
        if let Some(tokens) = tokens {
            first(&mut engine.gpu_pool_tokens, Fact::new(tokens, CACHE_CONFIG));
        }
        if let Some(block) = block {
            first(&mut engine.block_tokens, Fact::new(block, CACHE_CONFIG));
        }
    }
}

/// Nothing counts resets of the tier. These are the calls and states that may have caused one. A call that sends the
/// engine to sleep is counted twice from 0.32 on.
fn resets(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    type Seen = fn(&Sample<'_>) -> Option<ResetCall>;
    let seen: [(&str, Seen); 2] = [(HTTP_REQUESTS, reset_call), (SLEEP_OPERATIONS, sleep_operation)];
    for (name, seen) in seen {
        let whose = Whose::of(snapshot, Kind::Vllm, name);
        for sample in page.samples(name).iter().filter(|sample| sample.value > 0.0) {
            // A server's handlers carry no engine: any of its engines may be meant.
            if let Some(call) = seen(sample) {
                whose.fitting(snapshot, sample.labels).for_each(|engine| call.note(engine, sample.value));
            }
        }
    }
    facts(page, snapshot, SLEEP_STATE, |engine, labels, fact| {
        if labels.raw("sleep_state") == Some("awake") && fact.value == 0.0 {
            engine.reset_evidence.push("the engine is not awake".to_owned());
        }
    });
}

/// What may have emptied the tier.
struct ResetCall {
    evidence: String,
    /// Where it is counted; `None` for what only wakes the engine.
    count: Option<fn(&mut ResetCalls) -> &mut f64>,
}

impl ResetCall {
    fn note(&self, engine: &mut Engine, times: f64) {
        engine.reset_evidence.push(self.evidence.clone());
        if let Some(count) = self.count {
            *count(&mut engine.reset_calls) += times;
        }
    }
}

fn sleep_operation(sample: &Sample<'_>) -> Option<ResetCall> {
    let operation = sample.labels.value("operation");
    let evidence = format!("{} {operation} operations of sleep mode since start", sample.value);
    Some(ResetCall {
        evidence,
        count: (!operation.starts_with("wake")).then_some(|calls: &mut ResetCalls| &mut calls.sleep_operations),
    })
}

/// A call that may have emptied the tier, if it was answered.
fn reset_call(sample: &Sample<'_>) -> Option<ResetCall> {
    let handler = sample.labels.value("handler");
    let count: fn(&mut ResetCalls) -> &mut f64 = match handler.trim_end_matches('/') {
        "/reset_prefix_cache" | "/pause" => |calls| &mut calls.others,
        "/sleep" => |calls| &mut calls.sleep,
        _ => return None,
    };
    let done = sample.labels.raw("method") == Some("POST") && sample.labels.raw("status")?.starts_with('2');
    done.then(|| ResetCall { evidence: format!("{} POSTs of {handler} since start", sample.value), count: Some(count) })
}

/// What tells a version on a page, and the first minor version that shows it.
struct Probe {
    seen: fn(&Exposition<'_>) -> bool,
    since: u32,
    /// Whether a page of that version or later would have to show it, so that its absence tells something too.
    certain: fn(&Exposition<'_>) -> bool,
}

const PROBES: &[Probe] = &[
    Probe { seen: |p| p.has(FINISHED_COMPUTED), since: 13, certain: |p| p.has(FINISHED_PROMPT) },
    // The default; before 0.14 there was none, and "native" together with a size did not start.
    Probe {
        seen: |p| backends(p).any(|backend| backend == Some("native")),
        since: 14,
        certain: has_no_default_backend,
    },
    Probe { seen: |p| p.has(PROMPT_BY_SOURCE), since: 16, certain: |p| p.has(PROMPT) },
    Probe { seen: |p| p.has(vllm_offload::TOTAL_BYTES), since: 16, certain: |_| false },
    Probe { seen: |p| p.has(WAITING_BY_REASON), since: 20, certain: |p| p.has(WAITING) },
    Probe { seen: |p| p.has(vllm_offload::STORE_BYTES), since: 24, certain: |_| false },
    Probe { seen: |p| config_has(p, "kv_cache_size_tokens"), since: 24, certain: |p| p.has(CACHE_CONFIG) },
    Probe { seen: |p| p.has(vllm_offload::WRITE_USAGE), since: 26, certain: |_| false },
    Probe { seen: |p| p.has(vllm_tiering::READ_BYTES), since: 28, certain: |_| false },
    Probe { seen: |p| p.has(REQUEST_PREEMPTIONS), since: 30, certain: |p| p.has(PROMPT) },
    Probe { seen: |p| p.has(vllm_simple::INFO), since: 31, certain: |_| false },
    Probe { seen: |p| p.has(CACHED_BY_SOURCE), since: 32, certain: |p| p.has(PROMPT) },
    Probe { seen: |p| p.has(vllm_offload::CONFIG_INFO), since: 33, certain: |_| false },
];

/// The last minor version whose families were read; later ones may look the same.
const NEWEST: u32 = 33;

/// The first minor version that this program supports. Older ones are told from it, and not from one another.
const OLDEST: u32 = 14;

/// Versions that fit the families on the page: `0.26-0.27`, `0.33+` where nothing bounds them above, `<0.14` where
/// they are older than all that are known. `None` where no family tells, or families contradict each other.
fn version_range(page: &Exposition<'_>) -> Option<String> {
    let from = PROBES.iter().filter(|p| (p.seen)(page)).map(|p| p.since).max();
    let missing = PROBES.iter().filter(|p| !(p.seen)(page) && (p.certain)(page)).map(|p| p.since - 1).min();
    // This family left with 0.20.
    let left = page.has(PROMPT_RECOMPUTED).then_some(19);
    match (from, missing.into_iter().chain(left).min()) {
        // A page that contradicts the table is not guessed at.
        (Some(from), Some(to)) if to < from => None,
        (_, Some(to)) if to < OLDEST => Some(format!("<0.{OLDEST}")),
        (Some(from), Some(to)) if to == from => Some(format!("0.{from}")),
        (Some(from), Some(to)) => Some(format!("0.{from}-0.{}", to.min(NEWEST))),
        (Some(from), None) => Some(format!("0.{from}+")),
        (None, Some(to)) => Some(format!("<0.{}", to + 1)),
        (None, None) => None,
    }
}

/// The `kv_offloading_backend` of each configuration on the page.
fn backends<'a>(page: &Exposition<'a>) -> impl Iterator<Item = Option<&'a str>> {
    page.samples(CACHE_CONFIG).iter().map(|sample| sample.labels.raw("kv_offloading_backend"))
}

fn has_no_default_backend(page: &Exposition<'_>) -> bool {
    let mut backends = backends(page).peekable();
    backends.peek().is_some() && backends.all(|backend| matches!(backend, None | Some("None")))
}

fn config_has(page: &Exposition<'_>, label: &str) -> bool {
    page.samples(CACHE_CONFIG).iter().any(|sample| sample.labels.raw(label).is_some())
}
