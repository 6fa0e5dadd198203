//! The families of the OffloadingConnector and of the tiers behind it.

use super::super::CHUNK_BYTES;
use super::super::engine::Engine;
use super::super::simulation::tier_tokens;
use super::super::tally::{Histogram, Traffic};
use super::super::tier::TIER_CHUNKS;
use super::sheet::Read::{Counter, Gauge, Histogram as Buckets};
use super::sheet::{Labels, Row, Sheet};

const NONE: Labels = &[];
const TO_GPU: Labels = &[("transfer_type", "CPU_to_GPU")];
const TO_CPU: Labels = &[("transfer_type", "GPU_to_CPU")];
const PRIMARY: Labels = &[("tier", "0:primary")];
const DISK: Labels = &[("tier", "1:fs")];
const DISK_SUCCESS: Labels = &[("result", "success"), ("tier", "1:fs")];
const DISK_FAILURE: Labels = &[("result", "failure"), ("tier", "1:fs")];

/// Copies between GPU and RAM under their older names, and the state of the RAM tier.
pub(super) const TRANSFERS: &[Row] = &[
    Row {
        name: "vllm:kv_offload_total_bytes",
        help: "Bytes copied between GPU and tier, by direction",
        read: Counter(|engine| both_ways(engine, bytes)),
    },
    Row {
        name: "vllm:kv_offload_total_time",
        help: "Seconds of those copies, by direction",
        read: Counter(|engine| both_ways(engine, |traffic| traffic.seconds)),
    },
    Row {
        name: "vllm:kv_offload_size",
        help: "Bytes of each copy, by direction",
        read: Buckets(|engine| vec![(TO_GPU, &engine.tally.load.sizes), (TO_CPU, &engine.tally.store.sizes)]),
    },
    Row {
        name: "vllm:kv_offload_cpu_cache_usage_perc",
        help: "Share of the RAM tier that active copies pin (1 = all of it)",
        read: Gauge(|engine| share(engine, NONE, engine.tier.pinned(engine.now()))),
    },
    Row {
        name: "vllm:kv_offload_cpu_cache_write_usage_perc",
        help: "Share of the RAM tier that copies into it pin",
        read: Gauge(|engine| share(engine, NONE, writing(engine))),
    },
    Row {
        name: "vllm:kv_offload_cpu_cache_read_usage_perc",
        help: "Share of the RAM tier that copies out of it pin",
        read: Gauge(|engine| share(engine, NONE, engine.tier.pinned(engine.now()) - writing(engine))),
    },
    Row {
        name: "vllm:kv_offload_cpu_allocation_size",
        help: "Slots of the RAM tier asked for at once",
        read: Buckets(|engine| seen(NONE, &engine.tally.allocations)),
    },
];

/// What lies behind the RAM tier.
pub(super) const TIERING: &[Row] = &[
    Row {
        name: "vllm:kv_offload_tiering_lookup_sync_delay_seconds",
        help: "Seconds of a tier's answer to one lookup",
        read: Buckets(|engine| {
            let (primary, disk) = (&engine.tally.primary.delay, &engine.tally.secondary.delay);
            tiered(engine, || [seen(PRIMARY, primary), seen(DISK, disk)].concat())
        }),
    },
    Row {
        name: "vllm:kv_offload_tiering_lookup_async_delay_seconds",
        help: "Seconds until a put-off lookup was answered",
        read: Buckets(|engine| tiered(engine, || seen(DISK, &engine.tally.secondary_wait))),
    },
    Row {
        name: "vllm:kv_offload_tiering_read_bytes",
        help: "Bytes promoted from a lower tier into RAM",
        read: Counter(|engine| counted(DISK, bytes(&engine.tally.promotion))),
    },
    Row {
        name: "vllm:kv_offload_tiering_read_time",
        help: "I/O thread seconds of promotions",
        read: Counter(|engine| counted(DISK, engine.tally.promotion.seconds)),
    },
    Row {
        name: "vllm:kv_offload_tiering_write_bytes",
        help: "Bytes cascaded from RAM to a lower tier",
        read: Counter(|engine| counted(DISK, bytes(&engine.tally.cascade))),
    },
    Row {
        name: "vllm:kv_offload_tiering_write_time",
        help: "I/O thread seconds of cascades",
        read: Counter(|engine| counted(DISK, engine.tally.cascade.seconds)),
    },
    Row {
        name: "vllm:kv_offload_tiering_promotion_job_failures",
        help: "Promotion jobs that failed",
        read: Counter(|engine| counted(DISK, engine.tally.promotion.failures as f64)),
    },
    Row {
        name: "vllm:kv_offload_tiering_cascade_job_failures",
        help: "Cascade jobs that failed",
        read: Counter(|engine| counted(DISK, engine.tally.cascade.failures as f64)),
    },
    Row {
        name: "vllm:kv_offload_tiering_chunk_queries",
        help: "Chunks that a tier was asked for",
        read: Counter(|engine| {
            let (primary, disk) = (engine.tally.primary.queries, engine.tally.secondary.queries);
            tiered(engine, || [counted(PRIMARY, primary as f64), counted(DISK, disk as f64)].concat())
        }),
    },
    Row {
        name: "vllm:kv_offload_tiering_chunk_hits",
        help: "Chunks that a tier had",
        read: Counter(|engine| {
            let (primary, disk) = (engine.tally.primary.hits, engine.tally.secondary.hits);
            tiered(engine, || [counted(PRIMARY, primary as f64), counted(DISK, disk as f64)].concat())
        }),
    },
    Row {
        name: "vllm:kv_offload_tiering_promotion_allocation_failures",
        help: "Promotions for which the RAM tier had no slot",
        read: Counter(|engine| counted(NONE, engine.tally.promotions_refused as f64)),
    },
    Row {
        name: "vllm:kv_offload_tiering_primary_write_usage_perc",
        help: "Share of the RAM tier that promotions are filling",
        read: Gauge(|engine| tiered(engine, || share(engine, DISK, engine.tier.promoting()))),
    },
    Row {
        name: "vllm:kv_offload_tiering_primary_read_usage_perc",
        help: "Share of the RAM tier that cascades are reading",
        read: Gauge(|engine| tiered(engine, || share(engine, DISK, engine.tier.cascading()))),
    },
    Row {
        name: "vllm:kv_offload_tiering_active_promotion_jobs",
        help: "Promotion jobs that run",
        read: Gauge(|engine| tiered(engine, || stepped(engine, DISK, engine.tier.promotion_jobs() as f64))),
    },
    Row {
        name: "vllm:kv_offload_tiering_active_cascade_jobs",
        help: "Cascade jobs that run",
        read: Gauge(|engine| tiered(engine, || stepped(engine, DISK, engine.tier.cascade_jobs() as f64))),
    },
    Row {
        name: "vllm:kv_offload_tiering_promotion_latency_seconds",
        help: "Seconds from a promotion job's creation to its end, by result",
        read: Buckets(|engine| {
            let tally = &engine.tally;
            let failed = seen(DISK_FAILURE, &tally.failed_promotion_latency);
            [seen(DISK_SUCCESS, &tally.promotion_latency), failed].concat()
        }),
    },
    Row {
        name: "vllm:kv_offload_tiering_backpressure_store_latency_ema",
        help: "Smoothed seconds per MiB of cascades; needs a back-pressure detector, and there is none here",
        read: Gauge(|_| Vec::new()),
    },
    Row {
        name: "vllm:kv_offload_tiering_backpressure_stores_dropped",
        help: "Cascades dropped by back-pressure",
        read: Counter(|_| Vec::new()),
    },
    Row {
        name: "vllm:kv_offload_tiering_backpressure_blocks_dropped",
        help: "Chunks not cascaded because of back-pressure",
        read: Counter(|_| Vec::new()),
    },
];

/// Copies between GPU and RAM under their newer names, lookups, refusals.
pub(super) const CONNECTOR: &[Row] = &[
    Row {
        name: "vllm:kv_offload_load_bytes",
        help: "Bytes reloaded from the tier into the GPU",
        read: Counter(|engine| counted(NONE, bytes(&engine.tally.load))),
    },
    Row {
        name: "vllm:kv_offload_load_time",
        help: "Seconds of reloads",
        read: Counter(|engine| counted(NONE, engine.tally.load.seconds)),
    },
    Row {
        name: "vllm:kv_offload_load_size",
        help: "Bytes of each reload",
        read: Buckets(|engine| seen(NONE, &engine.tally.load.sizes)),
    },
    Row {
        name: "vllm:kv_offload_store_bytes",
        help: "Bytes stored from the GPU into the tier",
        read: Counter(|engine| counted(NONE, bytes(&engine.tally.store))),
    },
    Row {
        name: "vllm:kv_offload_store_time",
        help: "Seconds of stores",
        read: Counter(|engine| counted(NONE, engine.tally.store.seconds)),
    },
    Row {
        name: "vllm:kv_offload_store_size",
        help: "Bytes of each store",
        read: Buckets(|engine| seen(NONE, &engine.tally.store.sizes)),
    },
    Row {
        name: "vllm:kv_offload_lookup_sync_delay_seconds",
        help: "Seconds of one lookup in the scheduler",
        read: Buckets(|engine| seen(NONE, &engine.tally.connector_delay)),
    },
    Row {
        name: "vllm:kv_offload_lookup_async_delay_seconds",
        help: "Seconds until a put-off lookup of a request was answered",
        read: Buckets(|engine| seen(NONE, &engine.tally.connector_wait)),
    },
    Row {
        name: "vllm:kv_offload_allocation_failure",
        help: "Attempts to store for which the tier had no slot",
        read: Counter(|engine| counted(NONE, engine.tally.stores_refused as f64)),
    },
];

/// The facts of each tier, from an engine's first step on. A tier behind the first has empty labels.
pub(super) fn config_info(sheet: &mut Sheet<'_>) {
    let name = "vllm:kv_offload_config_info";
    sheet.head(name, "gauge", "Facts of the offload tiers, in labels");
    let facts = [
        ("cpu_blocks_per_chunk", "1".to_owned()),
        ("cpu_kv_cache_size_bytes", (TIER_CHUNKS as u64 * CHUNK_BYTES).to_string()),
        ("cpu_kv_cache_size_tokens", tier_tokens().to_string()),
        ("cpu_num_chunks", TIER_CHUNKS.to_string()),
    ];
    for engine in sheet.state.engines.iter().filter(|engine| engine.has_stepped()) {
        let own = [("engine", engine.name), ("model_name", sheet.state.model_name())];
        let tiers: &[Labels] = if engine.tier.has_disk() { &[PRIMARY, DISK] } else { &[NONE] };
        for tier in tiers {
            let told = |value| if *tier == DISK { "" } else { value };
            let facts = facts.iter().map(|(label, value)| (*label, told(value.as_str())));
            let labels: Vec<_> = facts.chain(own).chain(tier.iter().copied()).collect();
            sheet.sample(name, &labels, 1.0);
        }
    }
}

fn bytes(traffic: &Traffic) -> f64 {
    (traffic.chunks * CHUNK_BYTES) as f64
}

fn both_ways(engine: &Engine, value: fn(&Traffic) -> f64) -> Vec<(Labels, f64)> {
    vec![(TO_GPU, value(&engine.tally.load)), (TO_CPU, value(&engine.tally.store))]
}

fn writing(engine: &Engine) -> usize {
    engine.tier.storing() + engine.tier.promoting()
}

/// A counter that appears with its first event.
fn counted(labels: Labels, value: f64) -> Vec<(Labels, f64)> {
    if value > 0.0 { vec![(labels, value)] } else { Vec::new() }
}

/// A histogram that appears with its first observation.
fn seen(labels: Labels, histogram: &Histogram) -> Vec<(Labels, &Histogram)> {
    if histogram.count() > 0 { vec![(labels, histogram)] } else { Vec::new() }
}

/// A gauge that appears with the engine's first step.
fn stepped(engine: &Engine, labels: Labels, value: f64) -> Vec<(Labels, f64)> {
    if engine.has_stepped() { vec![(labels, value)] } else { Vec::new() }
}

fn share(engine: &Engine, labels: Labels, chunks: usize) -> Vec<(Labels, f64)> {
    stepped(engine, labels, chunks as f64 / TIER_CHUNKS as f64)
}

/// Only engines with a disk tier have these series.
fn tiered<T>(engine: &Engine, samples: impl FnOnce() -> Vec<T>) -> Vec<T> {
    if engine.tier.has_disk() { samples() } else { Vec::new() }
}
