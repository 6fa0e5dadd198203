//! The families of the event streams: facts in, families out. Pure.

use std::sync::Arc;

use super::fold::{AGES, Ages, View};
use super::ledger::Told;
use super::sizing::MULTIPLES;
use super::{Reset, Status};
use crate::derive::engine_labels;
use crate::family::{Desc, Family, Histogram, Labels};
use crate::model::EngineId;

const RESIDENT_BYTES: Desc = Desc::gauge(
    "kvtier_tier_resident_bytes",
    "KV bytes ready in the tier, from the engine's KV cache events: at least (bound=\"low\") and at most (bound=\"high\"). Both are the same while kvtier_tier_resident_exact is 1. Stores under way are not in it.",
);
const RESIDENT_RATIO: Desc = Desc::gauge(
    "kvtier_tier_resident_ratio",
    "kvtier_tier_resident_bytes as a share of kvtier_tier_size_bytes. Absent where kvtier_tier_size_mismatch is 1 for what the events show.",
);
const RESIDENT_EXACT: Desc = Desc::gauge(
    "kvtier_tier_resident_exact",
    "1 while every chunk in the tier is known, as of the engine's last step: the event stream is whole since the tier was empty, or nothing from before a gap is left; it is known what the last reset emptied, and the page counts no reset since and no store that was not announced; and the bytes of a chunk are no estimate. Absent from a new connection on until a batch or a replay shows that it is the same engine.",
);
const STORED: Desc = Desc::counter(
    "kvtier_tier_stored_chunks_total",
    "Chunks whose store completed, as the event stream tells; where a tier lies behind this one, promotions from it too.",
);
const EVICTED: Desc =
    Desc::counter("kvtier_tier_evicted_chunks_total", "Chunks evicted from the tier, as the event stream tells.");
const RESTORED: Desc = Desc::counter(
    "kvtier_tier_restored_chunks_total",
    "Chunks stored again after the tier had evicted them: evicted, then wanted again. As far back as --events.max-bytes reaches; an estimate where kvtier_events_sampling_ratio is below 1. Where a tier lies behind this one, a promotion counts too and is no miss.",
);
const PROMOTED: Desc = Desc::counter(
    "kvtier_tier_promoted_chunks_total",
    "Chunks that a tier behind this one gave back since the stream is followed, from the engine's page: they are in kvtier_tier_stored_chunks_total too. Only where the page states the bytes of a chunk.",
);
const AGE: Desc = Desc::histogram(
    "kvtier_tier_age_at_eviction_seconds",
    "Time from a chunk's store to its eviction, by the engine's clock. Since its store, not since its last use.",
);
const PREDICTED: Desc = Desc::gauge(
    "kvtier_tier_predicted_reload_ratio",
    "Share of the tokens asked of the connector that a tier of this multiple of the present size would reload, replayed from the event stream over --events.window for a tier that evicts by last use (LRU). Shown only while the prediction for the present size is within --events.max-error of what was measured. Where a tier lies behind this one, sizes below the present one are left out: it would give back what a smaller one evicts.",
);
const ERROR: Desc = Desc::gauge(
    "kvtier_tier_prediction_error_ratio",
    "Predicted less measured share of the tokens asked of the connector, for the present size of the tier, over --events.window.",
);
const UP: Desc = Desc::gauge(
    "kvtier_events_up",
    "1 while the endpoint of the KV cache events is connected and subscribed to. A wrong --events.topic does not show here: then no batch comes.",
);
const LAST_SEQ: Desc = Desc::gauge("kvtier_events_last_seq", "Number of the last batch that was taken in.");
const GAPS: Desc = Desc::counter(
    "kvtier_events_gaps_total",
    "Times that batches were missed and no replay had them, the beginning of an engine that restarted included. What an engine published before the exporter first met it is no gap.",
);
const BATCHES: Desc = Desc::counter("kvtier_events_batches_total", "Batches taken in, live or replayed.");
const REPLAYED: Desc =
    Desc::counter("kvtier_events_replayed_batches_total", "Batches that came by replay, after a late start or a gap.");
const RESETS: Desc = Desc::counter(
    "kvtier_events_resets_total",
    "Resets by what they emptied, judged by what followed: gpu (the pool alone), tier (the tier too), silent (the tier, unannounced), unknown.",
);
const LAG: Desc = Desc::gauge(
    "kvtier_events_lag_seconds",
    "Time from the making of the last live batch, by the engine's clock, to its arrival, by ours.",
);
const SAMPLING: Desc = Desc::gauge(
    "kvtier_events_sampling_ratio",
    "Share of the chunks that are followed one by one within --events.max-bytes. Counts and residency stay exact below 1; ages, restores and predictions become estimates.",
);
const ERRORS: Desc = Desc::counter(
    "kvtier_events_errors_total",
    "Failures of the endpoint by reason: connect, closed, protocol, too_large, silent, malformed (no batch), replay, internal.",
);

/// All of them.
pub const DESCS: [Desc; 19] = [
    RESIDENT_BYTES,
    RESIDENT_RATIO,
    RESIDENT_EXACT,
    STORED,
    EVICTED,
    RESTORED,
    PROMOTED,
    AGE,
    PREDICTED,
    ERROR,
    UP,
    LAST_SEQ,
    GAPS,
    BATCHES,
    REPLAYED,
    RESETS,
    LAG,
    SAMPLING,
    ERRORS,
];

/// The families of engines and their streams.
pub fn engine_families(told: &[Told], max_error: f64) -> Vec<Family> {
    let mut families = Families::default();
    for one in told {
        let tier = tier_labels(&one.engine);
        if let Some(resident) = one.resident {
            let bound = |bound: &str| with(&tier, "bound", bound);
            for (desc, (low, high)) in [(RESIDENT_BYTES, resident.bytes()), (RESIDENT_RATIO, resident.shares())] {
                families.push(desc, bound("low"), low);
                families.push(desc, bound("high"), high);
            }
            families.push(RESIDENT_EXACT, tier.clone(), f64::from(u8::from(resident.exact)));
        }
        if let Some(view) = &one.status.view {
            families.push(STORED, tier.clone(), view.stored as f64);
            families.push(EVICTED, tier.clone(), view.evicted as f64);
            families.push(RESTORED, tier.clone(), view.restored as f64);
            families.push(PROMOTED, tier.clone(), one.promoted);
            families.of(AGE).histograms.push((tier.clone(), histogram(&view.ages)));
        }
        let Ok(prediction) = &one.prediction else { continue };
        for ((_, size), share) in MULTIPLES.iter().zip(prediction.shares) {
            families.push(PREDICTED, with(&tier, "size", size), share.filter(|_| prediction.holds(max_error)));
        }
        families.push(ERROR, tier, prediction.error);
    }
    families.0
}

/// The families of the endpoints.
pub fn endpoint_families(statuses: &[Arc<Status>]) -> Vec<Family> {
    let mut families = Families::default();
    for status in statuses {
        let labels = Labels::from([("endpoint", status.endpoint.clone())]);
        families.push(UP, labels.clone(), f64::from(u8::from(status.up)));
        families.push(LAST_SEQ, labels.clone(), status.last_seq.map(|seq| seq as f64));
        families.push(GAPS, labels.clone(), status.gaps as f64);
        families.push(BATCHES, labels.clone(), status.batches as f64);
        families.push(REPLAYED, labels.clone(), status.replayed as f64);
        families.push(LAG, labels.clone(), status.lag);
        for (reason, count) in &status.errors {
            families.push(ERRORS, with(&labels, "reason", reason), *count as f64);
        }
        let resets = status.view.as_ref().map_or([0; Reset::NAMED.len()], |view: &View| view.resets);
        for ((_, kind), count) in Reset::NAMED.iter().zip(resets) {
            families.push(RESETS, with(&labels, "kind", kind), count as f64);
        }
        families.push(SAMPLING, labels, status.view.as_ref().map(|view| 1.0 / view.one_in as f64));
    }
    families.0
}

/// Families in the order in which they were first met.
#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn of(&mut self, desc: Desc) -> &mut Family {
        let at = self.0.iter().position(|family| family.desc == desc).unwrap_or_else(|| {
            self.0.push(Family::new(desc));
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    fn push(&mut self, desc: Desc, labels: Labels, value: impl Into<Option<f64>>) {
        self.of(desc).push(labels, value);
    }
}

fn tier_labels(engine: &EngineId) -> Labels {
    engine_labels(engine).with("tier", "ram")
}

fn with(labels: &Labels, name: &'static str, value: &str) -> Labels {
    labels.with(name, value)
}

fn histogram(ages: &Ages) -> Histogram {
    let mut below = 0;
    let up_to = AGES.iter().zip(ages.below).map(|(edge, count)| {
        below += count as u64;
        (*edge, below)
    });
    Histogram { up_to: up_to.collect(), count: ages.count as u64, sum: ages.sum }
}
