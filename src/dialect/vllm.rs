//! vLLM's base families: prompt tokens and where they came from, the GPU pool, signs of a reset, the version.
//!
//! Which families exist, and since when, was read from the releases 0.14 to 0.33. A version's own formula is
//! chosen by the families that are on the page, never by a version number: pages carry none.

use super::{DIALECTS, Dialect, as_number, facts, first, of_processes, vllm_offload, vllm_simple, vllm_tiering};
use crate::exposition::{Exposition, Sample, unescape};
use crate::model::{Fact, Quotient, Snapshot};

const PROMPT: &str = "vllm:prompt_tokens_total";
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
/// A family of each other connector that supplies tokens, by its TYPE line alone where it has not been used yet.
const OTHER_CONNECTORS: [(&str, &str); 4] = [
    ("vllm:nixl_xfer_time_seconds", "NixlConnector"),
    ("vllm:nixl_bytes_transferred", "NixlConnector"),
    ("vllm:mooncake_store_operation_time_seconds", "MooncakeStoreConnector"),
    ("vllm:hf3fs_load_duration_seconds", "HF3FSKVConnector"),
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
        WAITING_BY_REASON,
        WAITING,
        RUNNING,
        KV_USAGE,
        CACHE_CONFIG,
        HTTP_REQUESTS,
        SLEEP_OPERATIONS,
        SLEEP_STATE,
    ],
    read,
};

fn read(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    if !find_engines(page, snapshot) {
        return false;
    }
    snapshot.engine_kind = Some("vllm");
    snapshot.version_range = version_range(page);
    prompt_tokens(page, snapshot);
    prefill(page, snapshot);
    served_tokens(page, snapshot);
    gpu_pool(page, snapshot);
    resets(page, snapshot);
    facts(page, snapshot, PREEMPTIONS, |engine, _, fact| first(&mut engine.preemptions, fact));
    let other = OTHER_CONNECTORS.iter().find(|(family, _)| page.has(family)).map(|(_, connector)| *connector);
    snapshot.engines.iter_mut().for_each(|engine| engine.other_connector = other);
    true
}

/// An engine is any value of the `engine` label. Families that name the model go first, since the others can
/// only be joined to what they found. Returns whether the page has any engine.
fn find_engines(page: &Exposition<'_>, snapshot: &mut Snapshot) -> bool {
    let mut found = false;
    let names = DIALECTS.iter().flat_map(|dialect| dialect.reads);
    // The configuration names no model, in many labels.
    for name in names.filter(|name| name.starts_with("vllm:") && **name != CACHE_CONFIG) {
        for labels in page.samples(name).iter().map(|sample| sample.labels) {
            if let [Some(engine), Some(model)] = labels.raws(["engine", "model_name"]) {
                snapshot.engine_or_insert(&unescape(model), &unescape(engine));
                found = true;
            }
        }
    }
    for sample in page.samples(CACHE_CONFIG) {
        let engine = sample.labels.value("engine");
        if !snapshot.engines.iter().any(|known| known.id.engine == engine) {
            snapshot.engine_or_insert("", &engine);
        }
    }
    found || !page.samples(CACHE_CONFIG).is_empty()
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

/// `kv_cache_size_tokens` is the engine's own (0.24+). `num_gpu_blocks` is the sum over all engines of the page,
/// repeated on each of them.
fn gpu_pool(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    facts(page, snapshot, KV_USAGE, |engine, labels, fact| of_processes(&mut engine.gpu_pool_used, labels, fact));
    let configs = page.samples(CACHE_CONFIG);
    for sample in configs {
        let names = ["engine", "block_size", "num_gpu_blocks", "kv_cache_size_tokens"];
        let [engine, block, blocks, tokens] = sample.labels.raws(names);
        let Some(engine) = snapshot.engine_of_any_model(&unescape(engine.unwrap_or(""))) else { continue };
        let (block, tokens) = (as_number(block), as_number(tokens));
        let blocks = as_number(blocks).map(|all| all / configs.len() as f64);
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
    let (mut evidence, mut calls, mut sleeps, mut operations) = (Vec::new(), 0.0, 0.0_f64, 0.0);
    for sample in page.samples(HTTP_REQUESTS).iter().filter(|sample| sample.value > 0.0) {
        let Some(handler) = reset_call(sample) else { continue };
        *(if handler == "/sleep" { &mut sleeps } else { &mut calls }) += sample.value;
        evidence.push(format!("{} POSTs of {handler} since start", sample.value));
    }
    for sample in page.samples(SLEEP_OPERATIONS).iter().filter(|sample| sample.value > 0.0) {
        let operation = sample.labels.value("operation");
        operations += if operation.starts_with("wake") { 0.0 } else { sample.value };
        evidence.push(format!("{} {operation} operations of sleep mode since start", sample.value));
    }
    for engine in &mut snapshot.engines {
        engine.reset_evidence.clone_from(&evidence);
        engine.resets = calls + sleeps.max(operations);
    }
    facts(page, snapshot, SLEEP_STATE, |engine, labels, fact| {
        if labels.raw("sleep_state") == Some("awake") && fact.value == 0.0 {
            engine.reset_evidence.push("the engine is not awake".to_owned());
        }
    });
}

/// The handler of a call that may have emptied the tier, if it was answered.
fn reset_call(sample: &Sample<'_>) -> Option<&'static str> {
    let handler = sample.labels.value("handler");
    let handler = ["/reset_prefix_cache", "/sleep", "/pause"].into_iter().find(|h| *h == handler.trim_end_matches('/'));
    let done = sample.labels.raw("method") == Some("POST") && sample.labels.raw("status")?.starts_with('2');
    handler.filter(|_| done)
}

/// A family or label, the first version that has it, and the last version that may be without it although the
/// page shows what `needs` shows (`None`: its absence says nothing).
struct Probe {
    seen: fn(&Exposition<'_>) -> bool,
    since: u32,
    /// Whether a page of that version or later would have to show it.
    certain: fn(&Exposition<'_>) -> bool,
}

const PROBES: &[Probe] = &[
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

/// The first minor version that this program supports.
const OLDEST: u32 = 14;

/// Versions that fit the families on the page, as `0.26-0.27`, or `0.33+` where nothing bounds them above.
fn version_range(page: &Exposition<'_>) -> Option<String> {
    let from = PROBES.iter().filter(|p| (p.seen)(page)).map(|p| p.since).max().unwrap_or(OLDEST);
    let missing = PROBES.iter().filter(|p| !(p.seen)(page) && (p.certain)(page)).map(|p| p.since - 1).min();
    // This family left with 0.20.
    let left = page.has(PROMPT_RECOMPUTED).then_some(19);
    match missing.into_iter().chain(left).min() {
        // A page that contradicts the table is not guessed at.
        Some(to) if to < from => None,
        Some(to) if to == from => Some(format!("0.{from}")),
        Some(to) => Some(format!("0.{from}-0.{}", to.min(NEWEST))),
        None => Some(format!("0.{from}+")),
    }
}

fn config_has(page: &Exposition<'_>, label: &str) -> bool {
    page.samples(CACHE_CONFIG).iter().any(|sample| sample.labels.raw(label).is_some())
}
