//! The report's figures of one page, or of what happened between two.

use std::collections::BTreeMap;

use super::{
    Cell, Column, DECODE, FILL, GPU_FREE, PREEMPTIONS, PREFILL, PROMPT, Quantity, RELOAD_SPEED, RELOADED, Readings,
    SERVED, STORE_SPEED, STORED, too_fast,
};
use crate::bound::{Fill, Resolved, ResolvedTier};
use crate::dialect::serving::Serving;
use crate::model::{EngineId, Fact, Histogram, ratio};
use crate::share::share;

/// What one engine has counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    computed: Option<f64>,
    prompt: Option<f64>,
    preemptions: Option<f64>,
    decode: Histogram,
    served: BTreeMap<String, f64>,
    tiers: BTreeMap<String, TierTotals>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct TierTotals {
    stored: Option<f64>,
    store_seconds: Option<f64>,
    reloaded: Option<f64>,
    reload_seconds: Option<f64>,
    /// Bytes at most and size; or a share and 1 where the engine tells no bytes.
    fill: Option<(f64, f64)>,
}

/// All engines of a page.
pub type ByEngine = BTreeMap<EngineId, Totals>;

/// What the engines of a page have counted since they started.
pub fn read(engines: &[Resolved<'_>], serving: &[Serving]) -> ByEngine {
    let of = |id: &EngineId| serving.iter().find(|serving| serving.id == *id);
    engines.iter().map(|engine| (engine.engine.id.clone(), totals(engine, of(&engine.engine.id)))).collect()
}

fn totals(resolved: &Resolved<'_>, serving: Option<&Serving>) -> Totals {
    let engine = resolved.engine;
    Totals {
        computed: engine.prefill_computed.map(|share| share.of.value),
        prompt: engine.prefill_computed.map(|share| share.by.value),
        preemptions: serving.and_then(|serving| value(serving.preemptions)),
        decode: serving.map(|serving| serving.decode.clone()).unwrap_or_default(),
        served: engine.served_tokens.iter().map(|(source, fact)| (source.clone(), fact.value)).collect(),
        tiers: resolved.tiers.iter().map(|tier| (tier.tier.name.clone(), tier_totals(tier))).collect(),
    }
}

fn tier_totals(tier: &ResolvedTier<'_>) -> TierTotals {
    let transfers = tier.tier.transfers;
    let fill = match &tier.fill {
        Fill::Unknown(_) => None,
        known => known.bytes().zip(tier.size.map(|size| size.fact.value)).or_else(|| Some((known.share()?, 1.0))),
    };
    TierTotals {
        stored: value(transfers.stored_bytes),
        store_seconds: value(transfers.store_seconds),
        reloaded: value(transfers.reloaded_bytes),
        reload_seconds: value(transfers.reload_seconds),
        fill,
    }
}

fn value(fact: Option<Fact>) -> Option<f64> {
    fact.map(|fact| fact.value)
}

/// An engine whose counters fell between two pages, or that is on one of them only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restarted(pub EngineId);

/// What each engine counted between two pages.
///
/// # Errors
/// [`Restarted`]: then nothing can be said of the time in between.
pub fn between(earlier: &ByEngine, later: &ByEngine) -> Result<ByEngine, Restarted> {
    if let Some(gone) = earlier.keys().find(|id| !later.contains_key(*id)) {
        return Err(Restarted(gone.clone()));
    }
    let delta = |id: &EngineId, totals: &Totals| totals.since(earlier.get(id)?);
    let pair = |(id, totals): (&EngineId, &Totals)| {
        delta(id, totals).map(|delta| (id.clone(), delta)).ok_or_else(|| Restarted(id.clone()))
    };
    later.iter().map(pair).collect()
}

impl Totals {
    /// `None` where a counter fell. One that appeared in between counted from 0.
    fn since(&self, earlier: &Totals) -> Option<Totals> {
        let mut fell = false;
        let mut minus = |later: Option<f64>, before: Option<f64>| {
            let delta = later.map(|later| later - before.unwrap_or(0.0));
            fell |= delta.is_some_and(|delta| delta < 0.0);
            delta
        };
        let (computed, prompt) = (minus(self.computed, earlier.computed), minus(self.prompt, earlier.prompt));
        let preemptions = minus(self.preemptions, earlier.preemptions);
        let mut served = BTreeMap::new();
        for (source, tokens) in &self.served {
            served
                .extend(minus(Some(*tokens), earlier.served.get(source).copied()).map(|delta| (source.clone(), delta)));
        }
        let mut tiers = BTreeMap::new();
        for (name, now) in &self.tiers {
            let before = earlier.tiers.get(name).cloned().unwrap_or_default();
            let delta = TierTotals {
                stored: minus(now.stored, before.stored),
                store_seconds: minus(now.store_seconds, before.store_seconds),
                reloaded: minus(now.reloaded, before.reloaded),
                reload_seconds: minus(now.reload_seconds, before.reload_seconds),
                fill: now.fill,
            };
            tiers.insert(name.clone(), delta);
        }
        let decode = self.decode.since(&earlier.decode)?;
        (!fell).then_some(Totals { computed, prompt, preemptions, decode, served, tiers })
    }
}

/// Whether anything was served or copied at all.
pub fn is_empty(engines: &ByEngine) -> bool {
    let moved = |tier: &TierTotals| tier.stored.unwrap_or(0.0) > 0.0 || tier.reloaded.unwrap_or(0.0) > 0.0;
    engines.values().all(|t| t.prompt.unwrap_or(0.0) <= 0.0 && !t.tiers.values().any(moved))
}

/// The column of all engines together, and what to know about it.
pub fn readings(name: &str, engines: &ByEngine, gpu_free: Option<f64>) -> (Readings, Vec<String>) {
    let mut cells = Vec::new();
    let mut put = |quantity: Quantity, of: Option<&str>, value: Option<f64>| {
        cells.extend(value.map(|value| Cell { quantity, of: of.map(str::to_owned), value }));
    };
    let all = |of: fn(&Totals) -> Option<f64>| sum(engines.values().map(of));
    let quotient = |of: Option<f64>, by: Option<f64>| ratio(of?, by?);
    let mut notes = Vec::new();
    let computed = quotient(all(|t| t.computed), all(|t| t.prompt));
    notes.extend(computed.filter(|computed| share(*computed).is_none()).map(|computed| contradiction(name, computed)));
    put(PREFILL, None, computed.and_then(share));
    put(PROMPT, None, all(|t| t.prompt));
    let mut decode = Histogram::default();
    engines.values().for_each(|totals| decode.merge(&totals.decode));
    let median = decode.quantile(0.5);
    put(DECODE, None, median.and_then(|seconds| ratio(1.0, seconds)));
    put(GPU_FREE, None, gpu_free);
    put(PREEMPTIONS, None, all(|t| t.preemptions));
    for source in engines.values().flat_map(|totals| totals.served.keys()).collect::<std::collections::BTreeSet<_>>() {
        put(SERVED, Some(source), sum(engines.values().map(|totals| totals.served.get(source).copied())));
    }
    for (tier, totals) in tiers(engines) {
        put(RELOADED, Some(&tier), totals.reloaded);
        put(STORED, Some(&tier), totals.stored);
        put(RELOAD_SPEED, Some(&tier), quotient(totals.reloaded, totals.reload_seconds));
        put(STORE_SPEED, Some(&tier), quotient(totals.stored, totals.store_seconds));
        put(FILL, Some(&tier), totals.fill.and_then(|(bytes, size)| ratio(bytes, size)));
    }
    let column = Column { name: name.to_owned(), from: None, to: None };
    let guess = median.zip(decode.resolution()).filter(|(median, bound)| median < bound);
    notes.extend(guess.map(|(_, bound)| too_fast(name, bound)));
    (Readings { column, cells }, notes)
}

fn contradiction(name: &str, computed: f64) -> String {
    format!(
        "{name}: the share of {} would be {computed}; the page contradicts itself, so it is left out.",
        PREFILL.what
    )
}

/// The tiers of one name of all engines, added up: the bytes, the seconds, and both sides of the fill.
fn tiers(engines: &ByEngine) -> BTreeMap<String, TierTotals> {
    let mut all: BTreeMap<String, TierTotals> = BTreeMap::new();
    for (name, tier) in engines.values().flat_map(|totals| &totals.tiers) {
        let whole = all.entry(name.clone()).or_default();
        whole.stored = sum([whole.stored, tier.stored]);
        whole.store_seconds = sum([whole.store_seconds, tier.store_seconds]);
        whole.reloaded = sum([whole.reloaded, tier.reloaded]);
        whole.reload_seconds = sum([whole.reload_seconds, tier.reload_seconds]);
        whole.fill = match (whole.fill, tier.fill) {
            (Some((a, b)), Some((c, d))) => Some((a + c, b + d)),
            (one, other) => one.or(other),
        };
    }
    all
}

/// The sum of what is known; unknown where nothing is.
fn sum(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    values.into_iter().flatten().reduce(|a, b| a + b)
}
