//! The families that every vLLM has: queue, caches, prompts, latencies.

use super::super::engine::{BLOCK_TOKENS, GPU_BLOCKS, MODEL_LENGTH};
use super::super::tally::Histogram;
use super::sheet::Read::{Counter, Gauge, Histogram as Buckets};
use super::sheet::{Labels, Row, Sheet};

const NONE: Labels = &[];

/// Queue, caches, tokens.
pub(super) const ENGINE: &[Row] = &[
    Row { name: "vllm:estimated_flops_per_gpu", help: "Floating-point work; not estimated", read: Counter(|_| zero()) },
    Row {
        name: "vllm:estimated_read_bytes_per_gpu",
        help: "Bytes read by the GPU; not estimated",
        read: Counter(|_| zero()),
    },
    Row {
        name: "vllm:estimated_write_bytes_per_gpu",
        help: "Bytes written by the GPU; not estimated",
        read: Counter(|_| zero()),
    },
    Row {
        name: "vllm:num_requests_running",
        help: "Requests that the engine works on",
        read: Gauge(|engine| one(engine.running())),
    },
    Row {
        name: "vllm:num_requests_waiting",
        help: "Requests that wait for room or for a reload",
        read: Gauge(|engine| one(engine.queued() + engine.loading())),
    },
    Row {
        name: "vllm:num_requests_waiting_by_reason",
        help: "Requests that wait, by what for",
        read: Gauge(|engine| {
            vec![
                (&[("reason", "capacity")], engine.queued() as f64),
                (&[("reason", "deferred")], engine.loading() as f64),
            ]
        }),
    },
    Row {
        name: "vllm:num_requests_kv_fetch_by_stage",
        help: "Requests whose KV a connector brings, by stage",
        read: Gauge(|engine| {
            vec![
                (&[("stage", "waiting_to_start")], 0.0),
                (&[("stage", "in_progress")], engine.loading() as f64),
                (&[("stage", "completed_waiting")], 0.0),
            ]
        }),
    },
    Row {
        name: "vllm:engine_sleep_state",
        help: "1 for the state that the engine is in",
        read: Gauge(|_| {
            vec![
                (&[("sleep_state", "awake")], 1.0),
                (&[("sleep_state", "weights_offloaded")], 0.0),
                (&[("sleep_state", "discard_all")], 0.0),
            ]
        }),
    },
    Row {
        name: "vllm:kv_cache_usage_perc",
        help: "Share of the GPU's KV pool that requests hold",
        read: Gauge(|engine| vec![(NONE, engine.gpu_usage())]),
    },
    Row {
        name: "vllm:prefix_cache_queries",
        help: "Prompt tokens looked up in the GPU pool",
        read: Counter(|engine| count(engine.tally.admitted.prompt())),
    },
    Row {
        name: "vllm:prefix_cache_hits",
        help: "Prompt tokens found in the GPU pool",
        read: Counter(|engine| count(engine.tally.admitted.device)),
    },
    Row {
        name: "vllm:external_prefix_cache_queries",
        help: "Prompt tokens that the connector was asked for",
        read: Counter(|engine| count(engine.tally.admitted.prompt() - engine.tally.admitted.device)),
    },
    Row {
        name: "vllm:external_prefix_cache_hits",
        help: "Prompt tokens that the connector had",
        read: Counter(|engine| count(engine.tally.admitted.external())),
    },
    Row { name: "vllm:mm_cache_queries", help: "Media items looked up", read: Counter(|_| zero()) },
    Row { name: "vllm:mm_cache_hits", help: "Media items found", read: Counter(|_| zero()) },
    Row {
        name: "vllm:num_preemptions",
        help: "Requests that lost their blocks while running",
        read: Counter(|engine| count(engine.tally.preemptions)),
    },
    Row {
        name: "vllm:prompt_tokens",
        help: "Prompt tokens, counted with the first token of the answer",
        read: Counter(|engine| count(engine.tally.prompts.prompt())),
    },
    Row {
        name: "vllm:prompt_tokens_by_source",
        help: "Prompt tokens by where their KV came from",
        read: Counter(|engine| {
            let prompts = &engine.tally.prompts;
            vec![
                (&[("source", "local_compute")], prompts.computed as f64),
                (&[("source", "local_cache_hit")], prompts.device as f64),
                (&[("source", "external_kv_transfer")], prompts.external() as f64),
            ]
        }),
    },
    Row {
        name: "vllm:prompt_tokens_cached",
        help: "Prompt tokens that prefill did not compute",
        read: Counter(|engine| count(engine.tally.prompts.device + engine.tally.prompts.external())),
    },
    Row {
        name: "vllm:prompt_tokens_cached_by_source",
        help: "Prompt tokens found in some cache, by which, counted at admission",
        read: Counter(|engine| {
            let admitted = &engine.tally.admitted;
            vec![
                (&[("source", "device")], admitted.device as f64),
                (&[("source", "host")], admitted.host as f64),
                (&[("source", "p2p")], 0.0),
                (&[("source", "disk")], admitted.disk as f64),
                (&[("source", "external_unspecified")], 0.0),
            ]
        }),
    },
    Row {
        name: "vllm:generation_tokens",
        help: "Tokens generated",
        read: Counter(|engine| count(engine.tally.generated)),
    },
    Row {
        name: "vllm:request_success",
        help: "Requests that are done, by how they ended",
        read: Counter(|engine| {
            vec![
                (&[("finished_reason", "stop")], engine.tally.stopped as f64),
                (&[("finished_reason", "length")], engine.tally.cut_off as f64),
                (&[("finished_reason", "abort")], 0.0),
                (&[("finished_reason", "error")], 0.0),
                (&[("finished_reason", "repetition")], 0.0),
            ]
        }),
    },
];

/// Histograms over requests and steps.
pub(super) const REQUESTS: &[Row] = &[
    Row {
        name: "vllm:request_prompt_tokens",
        help: "Prompt length of finished requests",
        read: Buckets(|engine| all(&engine.tally.request_prompt)),
    },
    Row {
        name: "vllm:request_generation_tokens",
        help: "Answer length of finished requests",
        read: Buckets(|engine| all(&engine.tally.request_generated)),
    },
    Row {
        name: "vllm:iteration_tokens_total",
        help: "Tokens per engine step",
        read: Buckets(|engine| all(&engine.tally.step_tokens)),
    },
    Row {
        name: "vllm:request_max_num_generation_tokens",
        help: "Longest answer of each finished request",
        read: Buckets(|engine| all(&engine.tally.request_generated)),
    },
    Row {
        name: "vllm:request_params_n",
        help: "Answers asked for per request",
        read: Buckets(|engine| all(&engine.tally.request_choices)),
    },
    Row {
        name: "vllm:request_params_max_tokens",
        help: "Token limit of each request",
        read: Buckets(|engine| all(&engine.tally.request_limit)),
    },
    Row {
        name: "vllm:time_to_first_token_seconds",
        help: "Seconds from arrival to the first token",
        read: Buckets(|engine| all(&engine.tally.first_token)),
    },
    Row {
        name: "vllm:inter_token_latency_seconds",
        help: "Seconds between two tokens of one request",
        read: Buckets(|engine| all(&engine.tally.next_token)),
    },
    Row {
        name: "vllm:request_time_per_output_token_seconds",
        help: "Mean seconds per token of each finished request",
        read: Buckets(|engine| all(&engine.tally.mean_token)),
    },
    Row {
        name: "vllm:e2e_request_latency_seconds",
        help: "Seconds from arrival to the last token",
        read: Buckets(|engine| all(&engine.tally.whole)),
    },
    Row {
        name: "vllm:request_queue_time_seconds",
        help: "Seconds from arrival to being scheduled; a reload is inside",
        read: Buckets(|engine| all(&engine.tally.queue)),
    },
    Row {
        name: "vllm:request_inference_time_seconds",
        help: "Seconds from being scheduled to the last token",
        read: Buckets(|engine| all(&engine.tally.inference)),
    },
    Row {
        name: "vllm:request_prefill_time_seconds",
        help: "Seconds from being scheduled to the first token",
        read: Buckets(|engine| all(&engine.tally.prefill)),
    },
    Row {
        name: "vllm:request_decode_time_seconds",
        help: "Seconds from the first to the last token",
        read: Buckets(|engine| all(&engine.tally.decode)),
    },
    Row {
        name: "vllm:request_num_preemptions",
        help: "Preemptions of each finished request",
        read: Buckets(|engine| all(&engine.tally.request_preemptions)),
    },
    Row {
        name: "vllm:request_prefill_kv_computed_tokens",
        help: "Prompt tokens that each finished request computed",
        read: Buckets(|engine| all(&engine.tally.request_computed)),
    },
];

/// Requests turned away at the door: counted by the server, not by an engine.
pub(super) fn admission(sheet: &mut Sheet<'_>) {
    let (name, help) = ("vllm:admission_rejections", "Requests turned away, by the limit that was reached");
    let total = format!("{name}_total");
    let model = sheet.state.model_name();
    let series = ["max_num_queued_reqs", "max_num_queued_tokens"];
    let series = series.map(|reason| vec![("model_name", model), ("reason", reason)]);
    sheet.head(&total, "counter", help);
    series.iter().for_each(|labels| sheet.sample(&total, labels, 0.0));
    sheet.created(name, help, series.map(|labels| (labels, 0.0)).to_vec());
}

/// How each engine was configured. It has no `model_name`, and `num_gpu_blocks` is the sum over all engines.
///
/// `kv_offloading_size` shows both ways to ask for a tier: engine 1 with `--kv-offloading-size 32`, and engine 0
/// through `--kv-transfer-config` (the one way to get a disk tier), which leaves it `None`.
pub(super) fn cache_config_info(sheet: &mut Sheet<'_>) {
    let name = "vllm:cache_config_info";
    sheet.head(name, "gauge", "Configuration of the KV cache, in labels");
    let engines = &sheet.state.engines;
    let derived = [
        ("block_size", BLOCK_TOKENS.to_string()),
        ("effective_attention_block_size", BLOCK_TOKENS.to_string()),
        ("kv_cache_max_concurrency", format!("{:.2}", gpu_tokens() as f64 / MODEL_LENGTH as f64)),
        ("kv_cache_size_tokens", gpu_tokens().to_string()),
        ("num_gpu_blocks", (engines.len() * GPU_BLOCKS).to_string()),
    ];
    for engine in engines {
        let size = if engine.tier.has_disk() { "None" } else { "32.0" };
        let own = [("engine", engine.name), ("kv_offloading_size", size)];
        let derived = derived.iter().map(|(label, value)| (*label, value.as_str()));
        let labels: Vec<_> = CACHE_CONFIG.iter().copied().chain(derived).chain(own).collect();
        sheet.sample(name, &labels, 1.0);
    }
}

/// The labels of `cache_config_info` that are the same whatever is simulated. 7.92 GiB is what 507 blocks take.
const CACHE_CONFIG: Labels = &[
    ("_block_size_resolved", "True"),
    ("cache_dtype", "fp8"),
    ("cache_hit_alignment_tokens", "None"),
    ("enable_mamba_shared_prefix_checkpoint", "False"),
    ("enable_prefix_caching", "True"),
    ("gpu_memory_utilization", "0.92"),
    ("hash_block_size", "None"),
    ("is_attention_free", "False"),
    ("kv_cache_dtype_skip_layers", "[]"),
    ("kv_cache_layout", "None"),
    ("kv_cache_memory_bytes", "8506048512"),
    ("kv_offloading_backend", "native"),
    ("kv_sharing_fast_prefill", "False"),
    ("mamba_block_size", "None"),
    ("mamba_cache_dtype", "auto"),
    ("mamba_cache_mode", "none"),
    ("mamba_page_size_padded", "None"),
    ("mamba_ssm_cache_dtype", "auto"),
    ("num_cpu_blocks", "None"),
    ("num_gpu_blocks_override", "None"),
    ("prefix_cache_retention_interval", "0"),
    ("prefix_caching_hash_algo", "sha256"),
    ("prefix_match_unit", "None"),
    ("replayssm_buffer_len", "16"),
    ("simple_cpu_offload_num_blocks", "None"),
    ("skip_page_size_padded", "None"),
    ("sliding_window", "None"),
    ("swa_bounded_replay", "True"),
    ("use_kda_recoverssm", "False"),
    ("use_replayssm", "False"),
    ("user_specified_block_size", "False"),
];

fn gpu_tokens() -> u64 {
    GPU_BLOCKS as u64 * BLOCK_TOKENS
}

fn zero() -> Vec<(Labels, f64)> {
    vec![(NONE, 0.0)]
}

fn one(value: usize) -> Vec<(Labels, f64)> {
    vec![(NONE, value as f64)]
}

fn count(value: u64) -> Vec<(Labels, f64)> {
    vec![(NONE, value as f64)]
}

/// Base histograms are there from the start, with or without observations.
fn all(histogram: &Histogram) -> Vec<(Labels, &Histogram)> {
    vec![(NONE, histogram)]
}
