//! The report's figures of one page, or of what happened between two.

use std::collections::BTreeMap;

use super::activity::Activity;
use super::{
    CACHE_REQUESTED, CACHE_RETRIEVED, CACHE_STORED, CLAIMED, Cell, Column, DECODE, FILL, FILL_MEASURED, FOUND,
    GPU_FREE, PREEMPTIONS, PREFILL, PROMPT, Quantity, RELOAD_SPEED, RELOADED, Readings, SERVED, STORE_SPEED, STORED,
    too_fast,
};
use crate::bound::{Fill, Resolved, ResolvedTier};
use crate::dialect::lmcache_tokens::CachedTokens;
use crate::dialect::serving::Serving;
use crate::model::{EngineId, Fact, Histogram, ratio};
use crate::pipeline::Survey;
use crate::share::share;

/// What one engine has counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    computed: Option<f64>,
    prompt: Option<f64>,
    preemptions: Option<f64>,
    generated: Option<f64>,
    decode: Histogram,
    served: BTreeMap<String, f64>,
    /// Tokens that a cache library found, and those that it looked up.
    found: Option<(f64, f64)>,
    cache: CacheTotals,
    tiers: BTreeMap<String, TierTotals>,
}

/// Tokens that went into a cache library, those that were asked back, and those that came.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CacheTotals {
    stored: Option<f64>,
    requested: Option<f64>,
    retrieved: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct TierTotals {
    stored: Option<f64>,
    store_seconds: Option<f64>,
    reloaded: Option<f64>,
    reload_seconds: Option<f64>,
    fill: Option<Held>,
}

/// How much a tier holds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    /// Bytes, or a share where the engine tells no bytes.
    amount: f64,
    /// The size in bytes, or 1.
    of: f64,
    /// The amount is measured, and no upper bound.
    is_measured: bool,
}

/// All engines of a page, and the caches of models of which several engines, or none, are on it.
pub type ByEngine = BTreeMap<EngineId, Totals>;

/// What the engines of a page have counted since they started.
pub fn read(engines: &[Resolved<'_>], survey: &Survey) -> ByEngine {
    let of = |id: &EngineId| survey.serving.iter().find(|serving| serving.id == *id);
    let mut all: ByEngine =
        engines.iter().map(|engine| (engine.engine.id.clone(), totals(engine, of(&engine.engine.id)))).collect();
    // Without an engine nothing is known of the page: then a counter of a known name is no data either.
    for CachedTokens { id, stored, requested, retrieved, .. } in
        survey.cached_tokens.iter().filter(|_| !engines.is_empty())
    {
        let cache = CacheTotals { stored: *stored, requested: *requested, retrieved: *retrieved };
        all.entry(id.clone()).or_default().cache = cache;
    }
    all
}

fn totals(resolved: &Resolved<'_>, serving: Option<&Serving>) -> Totals {
    let engine = resolved.engine;
    Totals {
        computed: engine.prefill_computed.map(|share| share.of.value),
        prompt: engine.prefill_computed.map(|share| share.by.value).or(value(engine.prompt_total)),
        generated: serving.and_then(|serving| value(serving.generated)),
        preemptions: serving.and_then(|serving| value(serving.preemptions)),
        decode: serving.map(|serving| serving.decode.clone()).unwrap_or_default(),
        served: engine.served_tokens.iter().map(|(source, fact)| (source.clone(), fact.value)).collect(),
        found: engine.lookup_hits.map(|found| (found.of.value, found.by.value)),
        cache: CacheTotals::default(),
        tiers: resolved.tiers.iter().map(|tier| (tier.tier.name.clone(), tier_totals(tier))).collect(),
    }
}

fn tier_totals(tier: &ResolvedTier<'_>) -> TierTotals {
    let transfers = tier.tier.transfers;
    let size = tier.size.map(|size| size.fact.value);
    let amount = tier.fill.bytes().zip(size).or_else(|| Some((tier.fill.share()?, 1.0)));
    let is_measured = matches!(tier.fill, Fill::Measured { .. });
    let fill = amount.map(|(amount, of)| Held { amount, of, is_measured });
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "No data: the counters of engine {:?} of {:?} fell or vanished in between. It was restarted, or several replicas answer \
     behind this address in turn. Run this again, with the address of one of them.",
    .0.engine, .0.model_name
)]
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
        let generated = minus(self.generated, earlier.generated);
        let cache = CacheTotals {
            stored: minus(self.cache.stored, earlier.cache.stored),
            requested: minus(self.cache.requested, earlier.cache.requested),
            retrieved: minus(self.cache.retrieved, earlier.cache.retrieved),
        };
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
        let before = earlier.found;
        let found = self.found.and_then(|(found, of)| {
            Some((minus(Some(found), before.map(|(found, _)| found))?, minus(Some(of), before.map(|(_, of)| of))?))
        });
        let decode = self.decode.since(&earlier.decode)?;
        (!fell).then_some(Totals { computed, prompt, preemptions, generated, decode, served, found, cache, tiers })
    }
}

/// What the engines served, looked up and copied altogether.
pub fn activity(engines: &ByEngine) -> Activity {
    Activity::of(engines.values().flat_map(Totals::counts))
}

impl Totals {
    /// Every count of which the first one says that something was served, looked up or copied.
    fn counts(&self) -> impl Iterator<Item = f64> {
        let CacheTotals { stored, requested, retrieved } = self.cache;
        let steps = self.decode.resolution().map(|_| self.decode.count);
        let looked_up = self.found.map(|(_, of)| of);
        let engine = [self.prompt, self.generated, steps, looked_up, stored, requested, retrieved];
        let tiers = self.tiers.values().flat_map(|tier| [tier.stored, tier.reloaded]);
        engine.into_iter().chain(tiers).flatten().chain(self.served.values().copied())
    }
}

/// What a page leaves untold of its engines as a whole, so that a row of dashes has its reason.
pub fn untold(engines: &ByEngine, survey: &Survey) -> Vec<String> {
    let is_an_engines = survey.snapshot.engines.iter().any(|engine| engine.kind.is_some());
    let none = |what: fn(&Totals) -> bool| !engines.is_empty() && !engines.values().any(what);
    let served = none(|t| t.prompt.is_some() || t.preemptions.is_some() || t.decode.count > 0.0);
    let tier = none(|t| !t.tiers.is_empty());
    let served = served.then_some(if is_an_engines {
        "Prompts, decode and preemptions are not counted on this page, although an engine is on it: whatever passes the \
         page on may have left them out."
    } else {
        "Prompts, decode and preemptions are not counted on this page, as on a cache's own. The engine's metrics page \
         tells them, if it is another one."
    });
    let tier = tier.then_some(
        "The page shows no tier, so bytes, speeds and fill are not known. A tier that it cannot show is declared with \
         --tier.size.",
    );
    let unclear = survey.cached_tokens.iter().flat_map(|cache| cache.unclear.iter().map(|name| (name, &cache.id)));
    let unclear = unclear.map(|(name, id)| {
        let model = &id.model_name;
        format!("{name} of model {model:?} has one series several times, with different values, so it is not read.")
    });
    served.into_iter().chain(tier).map(str::to_owned).chain(unclear).collect()
}

/// The bytes that LMCache claims to keep on disk, and what to know of them. 0 is also what a missing disk shows.
pub fn claimed(survey: &Survey) -> Option<(Cell, &'static str)> {
    let bytes = survey.snapshot.disk_claimed.filter(|bytes| bytes.value > 0.0)?;
    let note = "What LMCache believes to be on disk is no measurement: it begins at 0 in each process, and writes that \
                failed are counted.";
    Some((Cell::new(CLAIMED, None, bytes.value), note))
}

/// The column of all engines together, and what to know about it.
pub fn readings(name: &str, engines: &ByEngine, gpu_free: Option<f64>) -> (Readings, Vec<String>) {
    let mut cells = Vec::new();
    let mut put = |quantity: Quantity, of: Option<&str>, value: Option<f64>| {
        cells.extend(value.map(|value| Cell::new(quantity, of, value)));
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
        if let Some(held) = totals.fill {
            put(if held.is_measured { FILL_MEASURED } else { FILL }, Some(&tier), ratio(held.amount, held.of));
        }
    }
    let looked_up = |side: fn((f64, f64)) -> f64| sum(engines.values().map(|t| t.found.map(side)));
    put(FOUND, None, quotient(looked_up(|(found, _)| found), looked_up(|(_, of)| of)));
    put(CACHE_STORED, None, all(|t| t.cache.stored));
    put(CACHE_REQUESTED, None, all(|t| t.cache.requested));
    put(CACHE_RETRIEVED, None, all(|t| t.cache.retrieved));
    let column = Column { name: name.to_owned(), from: None, to: None };
    let guess = median.zip(decode.resolution()).filter(|(median, bound)| median < bound);
    notes.extend(guess.map(|(_, bound)| too_fast(name, bound)));
    (Readings { column, cells }, notes)
}

fn contradiction(name: &str, computed: f64) -> String {
    let computed = (computed * 1e4).round() / 1e4;
    format!(
        "{name}: the share of {} would be {computed}; the page contradicts itself, so it is left out.",
        PREFILL.what
    )
}

impl Held {
    /// Both together: a bound where either is one.
    fn with(self, other: Held) -> Held {
        Held {
            amount: self.amount + other.amount,
            of: self.of + other.of,
            is_measured: self.is_measured && other.is_measured,
        }
    }
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
            (Some(one), Some(other)) => Some(one.with(other)),
            (one, other) => one.or(other),
        };
    }
    all
}

/// The sum of what is known; unknown where nothing is.
fn sum(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    values.into_iter().flatten().reduce(|a, b| a + b)
}
