//! A page of metrics that is no engine's, or of none that is known here: what it is, told from its names.

use std::collections::{BTreeMap, BTreeSet};

use super::Facts;
use super::page::is_of_lmcache;
use crate::advise::Finding;
use crate::advise::words::many;
use crate::dialect::{self, serving};

/// One id for all of them: the running exporter has a notice of that name, and `check` tells its causes apart.
const UNKNOWN: &str = "upstream-unknown-engine";

/// Other engines, by how their names begin.
const ENGINES: [(&str, &str); 9] = [
    ("tgi_", "Text Generation Inference"),
    ("llamacpp:", "llama.cpp"),
    ("trtllm_", "TensorRT-LLM"),
    ("nv_trt_llm_", "TensorRT-LLM"),
    ("lmdeploy:", "LMDeploy"),
    ("aphrodite:", "Aphrodite"),
    ("te_", "Text Embeddings Inference"),
    ("ollama_", "Ollama"),
    ("nv_inference_", "Triton"),
];

/// Servers that stand beside or before engines.
const SERVERS: [(&str, &str); 12] = [
    ("dynamo_", "NVIDIA Dynamo"),
    ("kvbm_", "NVIDIA Dynamo's KVBM"),
    ("master_", "a Mooncake master"),
    ("mooncake_", "Mooncake"),
    ("sgl_router_", "SGLang's router"),
    ("smg_", "SGLang's gateway"),
    ("litellm_", "LiteLLM"),
    ("envoy_", "Envoy"),
    ("DCGM_FI_", "the DCGM exporter"),
    ("node_", "node_exporter"),
    ("prometheus_", "Prometheus"),
    ("ray_", "Ray"),
];

/// What ends a word of a name.
const SIGNS: [char; 2] = [':', '_'];

/// What every Python server of HTTP shows.
const PYTHON: [&str; 3] = ["python_", "process_", "http_"];

/// Metrics, but of no engine: a router passes some names of its engines on, under labels of its own.
pub(super) fn no_engine(facts: &Facts<'_>) -> Vec<Finding> {
    let Ok(page) = &facts.page else { return Vec::new() };
    let (snapshot, names) = (&page.main.snapshot, &page.main.names);
    let serves = format!("{} serves {}", facts.upstream, many(names.len(), "metric name"));
    // What is in doubt is on the page, though it is not read.
    let counts_tokens = snapshot
        .engines
        .iter()
        .any(|engine| engine.prompt_total.is_some() || engine.external_queries.is_some() || !engine.doubts.is_empty());
    // With more than one sign behind it the word is a prefix that somebody made of it.
    let is_of_vllm = |name: &&String| {
        name.strip_prefix("vllm").is_some_and(|rest| rest.len() - rest.trim_start_matches(SIGNS).len() == 1)
    };
    let vllm = names.iter().filter(is_of_vllm).count();
    let of_lmcache = names.iter().filter(|name| is_of_lmcache(name)).count();
    match snapshot.engine_kind {
        Some("vllm") if counts_tokens => Vec::new(),
        Some(_) if of_lmcache > 0 && !counts_tokens => vec![lmcache(&serves, of_lmcache)],
        Some(kind) if kind != "vllm" => Vec::new(),
        _ if vllm > 0 => vec![router(&serves, vllm)],
        _ => vec![
            renamed(&serves, names).or_else(|| statistics_off(&serves, names)).unwrap_or_else(|| other(&serves, names)),
        ],
    }
}

fn lmcache(serves: &str, of_lmcache: usize) -> Finding {
    Finding::new(
        "upstream-is-lmcache",
        format!("{serves}, {of_lmcache} of them of LMCache, and no engine that counts prompt tokens: this is LMCache's own page."),
        "What LMCache says is told: its lookups, and what it keeps. What the engine counts is not: prompt tokens, what prefill \
         computes, and a tier of its own.",
        "Give the engine's page with --upstream, and this one beside it with --upstream.extra. Nothing, if LMCache alone is to be \
         watched.",
    )
    .as_remark()
}

fn router(serves: &str, vllm: usize) -> Finding {
    Finding::new(
        "upstream-wrong-endpoint",
        format!("{serves}, {vllm} of them of vLLM, but no engine that counts prompt tokens."),
        "This looks like the page of a router or a gateway. It merges engines or leaves most of their metrics out, so \
         nothing can be said of a tier.",
        "Give the page of the engine itself with --upstream, one exporter for each engine.",
    )
}

/// Known names behind a prefix, or written otherwise.
fn renamed(serves: &str, names: &BTreeSet<String>) -> Option<Finding> {
    let mut by_prefix: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in names {
        if let Some(prefix) = prefix_of(name) {
            by_prefix.entry(prefix).or_default().push(name);
        }
    }
    let (prefix, found) = by_prefix.into_iter().max_by_key(|(_, found)| found.len())?;
    let who = if prefix.starts_with("ray_") { "Ray writes them so. " } else { "" };
    Some(Finding::new(
        UNKNOWN,
        format!(
            "{serves}, none of them as an engine writes it, but {} with the prefix {prefix}, such as {}.",
            many(found.len(), "known name"),
            found[0]
        ),
        format!("{who}Under these names nothing is recognised, corrected or derived: the page passes as it came."),
        "Give the page of the engine itself with --upstream, before anything renames its metrics; where there is none, take \
         the prefix away again where it is put on (a relabelling rule, the namespace of a collector's exporter).",
    ))
}

/// What stands before the known part of a name: `ray_vllm_` of `ray_vllm_num_requests_running`, `vllm__` where a colon became two
/// signs.
fn prefix_of(name: &str) -> Option<&str> {
    ["vllm", "sglang", "lmcache"].into_iter().find_map(|word| {
        let at = name.find(word)?;
        let rest = name[at + word.len()..].strip_prefix(SIGNS)?.trim_start_matches(SIGNS);
        let known = format!("{word}:{rest}");
        let is_known = [&dialect::NAMES, &serving::NAMES].iter().any(|names| names.id(&known).is_some());
        is_known.then(|| &name[..name.len() - rest.len()])
    })
}

/// An engine that was told to count nothing.
fn statistics_off(serves: &str, names: &BTreeSet<String>) -> Option<Finding> {
    let is_python = |name: &String| PYTHON.iter().any(|start| name.starts_with(start));
    let all = names.iter().all(is_python) && names.iter().any(|name| name.starts_with("python_"));
    all.then(|| {
        Finding::new(
            UNKNOWN,
            format!("{serves}, all of them Python's own: there is a server, and it counts nothing of an engine."),
            "An engine shows such a page where its statistics are switched off: then nothing is known of its tier.",
            "Start vLLM without --disable-log-stats, or SGLang with --enable-metrics. If this is no engine's server, give the \
             engine's own page with --upstream.",
        )
    })
}

fn other(serves: &str, names: &BTreeSet<String>) -> Finding {
    let most = |known: &'static [(&str, &str)]| {
        let count = |start: &str| names.iter().filter(|name| name.starts_with(start)).count();
        let counted = known.iter().map(|(start, who)| (count(start), *who));
        counted.filter(|(count, _)| *count > 0).max_by_key(|(count, _)| *count)
    };
    if let Some((count, who)) = most(&ENGINES) {
        return Finding::new(
            UNKNOWN,
            format!("{serves}, {count} of them of {who}, which is another engine than those that are known here."),
            "Tiers are known of vLLM, SGLang and LMCache. Of this engine nothing is corrected or derived; its page passes as \
             it came.",
            "Give the page of a vLLM or an SGLang with --upstream, or scrape this engine without an exporter before it.",
        );
    }
    let whose = most(&SERVERS).map(|(_, who)| format!("; they are those of {who}")).unwrap_or_default();
    Finding::new(
        UNKNOWN,
        format!("{serves}, none of an engine that is known here{whose}."),
        "This looks like the page of a router, a gateway or another exporter. It merges engines or leaves most of their \
         metrics out, so nothing can be said of a tier.",
        "Give the page of the engine itself with --upstream, one exporter for each engine.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_the_known_part_of_a_name_begins() {
        assert_eq!(prefix_of("ray_vllm_num_requests_running"), Some("ray_vllm_"));
        assert_eq!(prefix_of("kserve_vllm:prompt_tokens_total"), Some("kserve_vllm:"));
        assert_eq!(prefix_of("vllm__prompt_tokens_total"), Some("vllm__"));
        assert_eq!(prefix_of("edge_sglang_num_running_reqs"), Some("edge_sglang_"));
        for none in ["ray_node_gram_used", "vllm_by_somebody_else", "vllm", "my_vllm_up"] {
            assert_eq!(prefix_of(none), None, "{none}");
        }
    }
}
