//! What a simulated engine counts since its start: counters, histograms, and the bounds that vLLM uses.

use super::request::{Request, TOKEN_LIMIT};

/// A histogram as Prometheus' clients keep it.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    /// Observations per bucket, not cumulated; the last is the one without an upper bound.
    buckets: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// A histogram without observations.
    pub(super) fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, buckets: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// One observation.
    pub(super) fn observe(&mut self, value: f64) {
        self.spread(1, value);
    }

    /// `count` equal observations that together make `total`.
    pub(super) fn spread(&mut self, count: u64, total: f64) {
        if count == 0 {
            return;
        }
        let each = total / count as f64;
        let bucket = self.bounds.partition_point(|bound| *bound < each);
        self.buckets[bucket] += count;
        self.sum += total;
    }

    /// Upper bounds with the observations at or below each; the last bound is infinite.
    pub(super) fn cumulated(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut below = 0;
        bounds
            .zip(&self.buckets)
            .map(|(bound, count)| {
                below += count;
                (bound, below)
            })
            .collect()
    }

    /// Number of observations.
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Sum of the observed values.
    pub(super) fn sum(&self) -> f64 {
        self.sum
    }
}

/// Bounds of copy sizes, in bytes.
pub(super) const SIZES: &[f64] = &[1e6, 5e6, 1e7, 2e7, 4e7, 6e7, 8e7, 1e8, 1.5e8, 2e8];
/// Bounds of slots asked for at once.
pub(super) const SLOTS: &[f64] = &[1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0];
/// Bounds of lookup delays, in seconds.
pub(super) const LOOKUPS: &[f64] = &[1e-5, 5e-5, 1e-4, 5e-4, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0];
/// Bounds of promotion latencies, in seconds.
pub(super) const PROMOTIONS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Bounds of token counts per request, for a model length of 118,784.
pub(super) const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100000.0,
];
/// Bounds of tokens per engine step.
pub(super) const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
/// Bounds of the parameter `n`.
pub(super) const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
/// Bounds of the time to the first token, in seconds.
pub(super) const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Bounds of the time between two tokens, in seconds.
pub(super) const NEXT_TOKEN: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
/// Bounds of the phases of a request, in seconds.
pub(super) const PHASES: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
/// Bounds of preemptions per request.
pub(super) const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

/// Bytes copied in one direction.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    /// Chunks copied; bytes follow from them.
    pub(super) chunks: u64,
    /// Seconds of copying, summed over jobs (and over I/O threads where there are several).
    pub(super) seconds: f64,
    /// Bytes per job.
    pub(super) sizes: Histogram,
    /// Jobs that failed; they moved nothing.
    pub(super) failures: u64,
}

impl Traffic {
    fn new() -> Traffic {
        Traffic { chunks: 0, seconds: 0.0, sizes: Histogram::new(SIZES), failures: 0 }
    }
}

/// Lookups of chunks in one tier.
#[derive(Clone, Debug)]
pub(super) struct Lookups {
    /// Chunks asked for.
    pub(super) queries: u64,
    /// Chunks found.
    pub(super) hits: u64,
    /// Delay of each answer.
    pub(super) delay: Histogram,
}

impl Lookups {
    fn new() -> Lookups {
        Lookups { queries: 0, hits: 0, delay: Histogram::new(LOOKUPS) }
    }

    /// Counts lookups that took `each` seconds.
    pub(super) fn count(&mut self, queries: u64, hits: u64, each: f64) {
        self.queries += queries;
        self.hits += hits;
        self.delay.spread(queries, queries as f64 * each);
    }
}

/// Tokens of prompts by the place that their KV came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    /// Computed by prefill.
    pub(super) computed: u64,
    /// Found in the GPU pool.
    pub(super) device: u64,
    /// Reloaded from the RAM tier.
    pub(super) host: u64,
    /// Promoted from the disk tier for this very request.
    pub(super) disk: u64,
}

impl Sources {
    /// Whole prompt.
    pub(super) fn prompt(&self) -> u64 {
        self.computed + self.device + self.external()
    }

    /// Supplied by the connector.
    pub(super) fn external(&self) -> u64 {
        self.host + self.disk
    }

    /// Adds another prompt.
    pub(super) fn add(&mut self, other: &Sources) {
        self.computed += other.computed;
        self.device += other.device;
        self.host += other.host;
        self.disk += other.disk;
    }
}

/// Everything that one engine counted since it started.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// Prompts by source, counted with their first token.
    pub(super) prompts: Sources,
    /// Prompts by source, counted when they were admitted.
    pub(super) admitted: Sources,
    /// Tokens generated.
    pub(super) generated: u64,
    /// Requests that ended by themselves.
    pub(super) stopped: u64,
    /// Requests that ran into their token limit.
    pub(super) cut_off: u64,
    /// Requests that lost their blocks while running.
    pub(super) preemptions: u64,
    /// GPU to RAM tier.
    pub(super) store: Traffic,
    /// RAM tier to GPU.
    pub(super) load: Traffic,
    /// Disk tier to RAM tier.
    pub(super) promotion: Traffic,
    /// RAM tier to disk tier.
    pub(super) cascade: Traffic,
    /// Slots asked for, by attempt; refused attempts are in here too.
    pub(super) allocations: Histogram,
    /// Attempts to store for which no slot could be had.
    pub(super) stores_refused: u64,
    /// Promotions for which no slot could be had.
    pub(super) promotions_refused: u64,
    /// Lookups of the connector, one per request.
    pub(super) connector_delay: Histogram,
    /// Waits for promotions, one per request that had any.
    pub(super) connector_wait: Histogram,
    /// Lookups in the RAM tier.
    pub(super) primary: Lookups,
    /// Lookups in the disk tier.
    pub(super) secondary: Lookups,
    /// Waits for promotions, one per chunk.
    pub(super) secondary_wait: Histogram,
    /// Promotions that worked, from job to completion.
    pub(super) promotion_latency: Histogram,
    /// Promotions that did not.
    pub(super) failed_promotion_latency: Histogram,
    /// Prompt lengths of finished requests.
    pub(super) request_prompt: Histogram,
    /// Generated tokens of finished requests.
    pub(super) request_generated: Histogram,
    /// Prompt tokens that finished requests computed.
    pub(super) request_computed: Histogram,
    /// `n` of finished requests.
    pub(super) request_choices: Histogram,
    /// `max_tokens` of finished requests.
    pub(super) request_limit: Histogram,
    /// Preemptions of finished requests.
    pub(super) request_preemptions: Histogram,
    /// Tokens per engine step.
    pub(super) step_tokens: Histogram,
    /// Arrival to first token.
    pub(super) first_token: Histogram,
    /// Between two tokens of one request.
    pub(super) next_token: Histogram,
    /// Mean time per token of finished requests.
    pub(super) mean_token: Histogram,
    /// Arrival to last token.
    pub(super) whole: Histogram,
    /// Arrival to being scheduled; a reload is inside.
    pub(super) queue: Histogram,
    /// Scheduled to first token.
    pub(super) prefill: Histogram,
    /// First to last token.
    pub(super) decode: Histogram,
    /// Scheduled to last token.
    pub(super) inference: Histogram,
}

impl Tally {
    /// All zero.
    pub(super) fn new() -> Tally {
        Tally {
            prompts: Sources::default(),
            admitted: Sources::default(),
            generated: 0,
            stopped: 0,
            cut_off: 0,
            preemptions: 0,
            store: Traffic::new(),
            load: Traffic::new(),
            promotion: Traffic::new(),
            cascade: Traffic::new(),
            allocations: Histogram::new(SLOTS),
            stores_refused: 0,
            promotions_refused: 0,
            connector_delay: Histogram::new(LOOKUPS),
            connector_wait: Histogram::new(LOOKUPS),
            primary: Lookups::new(),
            secondary: Lookups::new(),
            secondary_wait: Histogram::new(LOOKUPS),
            promotion_latency: Histogram::new(PROMOTIONS),
            failed_promotion_latency: Histogram::new(PROMOTIONS),
            request_prompt: Histogram::new(TOKENS),
            request_generated: Histogram::new(TOKENS),
            request_computed: Histogram::new(TOKENS),
            request_choices: Histogram::new(CHOICES),
            request_limit: Histogram::new(TOKENS),
            request_preemptions: Histogram::new(PREEMPTIONS),
            step_tokens: Histogram::new(STEP_TOKENS),
            first_token: Histogram::new(FIRST_TOKEN),
            next_token: Histogram::new(NEXT_TOKEN),
            mean_token: Histogram::new(NEXT_TOKEN),
            whole: Histogram::new(PHASES),
            queue: Histogram::new(PHASES),
            prefill: Histogram::new(PHASES),
            decode: Histogram::new(PHASES),
            inference: Histogram::new(PHASES),
        }
    }

    /// Requests that are done.
    pub(super) fn finished(&self) -> u64 {
        self.stopped + self.cut_off
    }

    /// A request has its first token: only now its prompt is counted.
    pub(super) fn began_to_answer(&mut self, request: &Request, now: f64) {
        let sources = request.sources.unwrap_or_default();
        self.prompts.add(&sources);
        self.generated += 1;
        self.step_tokens.observe((sources.computed + 1) as f64);
        self.first_token.observe(now - request.arrived);
    }

    /// A request has its last token.
    pub(super) fn answered(&mut self, request: &Request, now: f64) {
        let first = request.first_token.unwrap_or(now);
        if request.target == TOKEN_LIMIT {
            self.cut_off += 1;
        } else {
            self.stopped += 1;
        }
        self.request_prompt.observe(request.prompt as f64);
        self.request_generated.observe(request.generated as f64);
        self.request_computed.observe(request.sources.unwrap_or_default().computed as f64);
        self.request_choices.observe(1.0);
        self.request_limit.observe(TOKEN_LIMIT as f64);
        self.request_preemptions.observe(request.preemptions as f64);
        self.mean_token.observe((now - first) / (request.generated.max(2) - 1) as f64);
        self.whole.observe(now - request.arrived);
        self.queue.observe(request.scheduled - request.arrived);
        self.prefill.observe(first - request.scheduled);
        self.decode.observe(now - first);
        self.inference.observe(now - request.scheduled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_to_its_bucket() {
        let mut histogram = Histogram::new(CHOICES);
        histogram.observe(1.0);
        histogram.observe(1.5);
        histogram.observe(99.0);
        histogram.spread(2, 10.0);
        let expected = [(1.0, 1), (2.0, 2), (5.0, 4), (10.0, 4), (20.0, 4), (f64::INFINITY, 5)];
        assert_eq!(histogram.cumulated(), expected);
        assert_eq!((histogram.count(), histogram.sum()), (5, 111.5));
    }
}
