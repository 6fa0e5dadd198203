//! Engines and their tiers, with the corrections made for them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Events;
use crate::bound::{Fill, Resolved, ResolvedTier};
use crate::correct::{CORRECTIONS, Corrected};
use crate::derive::{prefill_seconds_per_token, reload_seconds_per_token, speed};
use crate::events::ledger::Told;
use crate::model::{EngineId, Fact, Snapshot};
use crate::share::share;

/// One engine of the page. Counters run since the engine started.
#[derive(Clone, Debug, Serialize)]
pub struct Engine {
    /// Served model name. Foreign text.
    pub model_name: String,
    /// Value of the `engine` label.
    pub engine: String,
    /// Further labels that tell it from the other engines of the page, such as `pod`. Foreign text.
    pub labels: Vec<Label>,
    /// Families that are not read for it, since it is not certain which of their series are its own, in words.
    pub doubts: Vec<String>,
    /// Its KV pool on the GPU.
    pub gpu_pool: GpuPool,
    /// KV bytes of one token, all ranks together.
    pub kv_bytes_per_token: Option<f64>,
    /// How that is known: `flag`, `config_info`, `stored`, `events` or `loaded`.
    pub kv_bytes_per_token_method: Option<&'static str>,
    /// Prompt tokens by where their KV came from.
    pub prompt_tokens: Vec<Tokens>,
    /// Prompt tokens that a tier supplied.
    pub tier_served_tokens: Vec<Tokens>,
    /// Share of the prompt tokens that prefill computed.
    pub prefill_computed_ratio: Option<f64>,
    /// Prefill seconds for each token computed.
    pub prefill_seconds_per_token: Option<f64>,
    /// Copy seconds of one rank for each token that a tier supplied.
    pub reload_seconds_per_token: Option<f64>,
    /// What may have emptied the RAM tier since the start, in words.
    pub reset_evidence: Vec<String>,
    /// Its tiers.
    pub tiers: Vec<Tier>,
    /// What its event stream tells; `null` where none is known to be its own.
    pub events: Option<Events>,
    /// Its upstream gauges that mislead, and what became of them.
    pub corrections: Vec<Correction>,
}

/// The KV pool on the GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuPool {
    /// Tokens that it holds.
    pub size_tokens: Option<f64>,
    /// Share that requests use now.
    pub used_ratio: Option<f64>,
}

/// Tokens of one source.
#[derive(Clone, Debug, Serialize)]
pub struct Tokens {
    /// As the `source` label in metrics.
    pub source: String,
    /// Tokens since the engine started.
    pub tokens_total: f64,
}

/// One tier.
#[derive(Clone, Debug, Serialize)]
pub struct Tier {
    /// As the `tier` label in metrics.
    pub tier: String,
    /// What it lies on: `ram`, `disk`, `remote` or `unknown`.
    pub medium: String,
    /// What moves its bytes.
    pub connector: &'static str,
    /// Capacity.
    pub size_bytes: Option<f64>,
    /// Where that is known from: `flag`, `config_info`, `cache_config` or `shm_file`.
    pub size_source: Option<String>,
    /// Whether the flag and the engine disagree; `null` unless both speak.
    pub size_mismatch: Option<bool>,
    /// Capacity in tokens.
    pub size_tokens: Option<f64>,
    /// How full it is.
    pub fill: TierFill,
    /// Share pinned by copies in flight: the engine's own usage gauge under its true name.
    pub pinned_ratio: Option<f64>,
    /// Bytes written into it.
    pub stored_bytes_total: Option<f64>,
    /// Bytes read back from it.
    pub reloaded_bytes_total: Option<f64>,
    /// Copy seconds of the writes, summed over ranks or threads.
    pub store_seconds_total: Option<f64>,
    /// Copy seconds of the reads, summed over ranks or threads.
    pub reload_seconds_total: Option<f64>,
    /// Bytes stored ÷ seconds spent: copy speed, no throughput.
    pub store_speed_bytes_per_second: Option<f64>,
    /// Bytes reloaded ÷ seconds spent: copy speed, no throughput.
    pub reload_speed_bytes_per_second: Option<f64>,
}

/// How full a tier is.
#[derive(Clone, Debug, Serialize)]
pub struct TierFill {
    /// `upper_bound`, `measured` or `unknown`.
    pub kind: &'static str,
    /// Bytes: at most so many where it is a bound.
    pub bytes: Option<f64>,
    /// The same as a share of the size.
    pub ratio: Option<f64>,
    /// The terms of the bound, each in bytes.
    pub terms: Vec<Term>,
    /// Why it is unknown.
    pub unknown_because: Option<&'static str>,
}

/// A term of the bound.
#[derive(Clone, Debug, Serialize)]
pub struct Term {
    /// `stored`, `promoted`, `inflight` or `slots`.
    pub term: &'static str,
    /// Bytes.
    pub bytes: f64,
}

/// A misleading gauge of the engine, and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct Correction {
    /// The upstream family.
    pub family: &'static str,
    /// The tier that it speaks of.
    pub tier: &'static str,
    /// What the engine said; the largest where it said it several times.
    pub before_ratio: f64,
    /// What is served instead; `null` where it passes as it came.
    pub after_ratio: Option<f64>,
    /// Whether what is served is an upper bound and no measurement.
    pub after_is_upper_bound: Option<bool>,
    /// The rule that gave it.
    pub rule: Option<String>,
    /// Why the engine's value misleads, as a sentence.
    pub because: String,
    /// Why nothing replaced it.
    pub not_corrected_because: Option<&'static str>,
}

/// A label.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Label {
    /// Its name, as the engine's page spells it.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// All engines of a snapshot. The snapshot itself adds nothing to what was resolved.
pub fn engines(_: &Snapshot, engines: &[Resolved<'_>], corrected: &[Corrected]) -> Vec<Engine> {
    engines.iter().map(|resolved| Engine::new(resolved, corrected)).collect()
}

impl Engine {
    fn new(resolved: &Resolved<'_>, corrected: &[Corrected]) -> Engine {
        let engine = resolved.engine;
        let own = corrected.iter().filter(|one| one.engine == engine.id);
        Engine {
            model_name: engine.id.model_name.clone(),
            engine: engine.id.engine.clone(),
            labels: labels(&engine.id),
            doubts: engine.doubts.iter().map(ToString::to_string).collect(),
            gpu_pool: GpuPool {
                size_tokens: value(engine.gpu_pool_tokens),
                used_ratio: value(engine.gpu_pool_used).and_then(share),
            },
            kv_bytes_per_token: resolved.bytes_per_token.map(|known| known.bytes),
            kv_bytes_per_token_method: resolved.bytes_per_token.map(|known| known.method),
            prompt_tokens: tokens(&engine.prompt_tokens),
            tier_served_tokens: tokens(&engine.served_tokens),
            prefill_computed_ratio: resolved.prefill_computed,
            prefill_seconds_per_token: prefill_seconds_per_token(resolved),
            reload_seconds_per_token: reload_seconds_per_token(resolved),
            reset_evidence: engine.reset_evidence.clone(),
            tiers: resolved.tiers.iter().map(Tier::new).collect(),
            events: None,
            corrections: own.map(|one| Correction::new(one, &resolved.tiers)).collect(),
        }
    }

    /// The same with what its event stream tells, if one of these is its own.
    #[must_use]
    pub fn with_events(self, told: &[Told], max_error: f64) -> Engine {
        let own = |one: &&Told| {
            let EngineId { model_name, engine, .. } = &one.engine;
            *model_name == self.model_name && *engine == self.engine && labels(&one.engine) == self.labels
        };
        Engine { events: told.iter().find(own).map(|one| Events::new(one, max_error)), ..self }
    }
}

fn labels(id: &EngineId) -> Vec<Label> {
    id.labels.iter().map(|(name, value)| Label { name: name.clone(), value: value.clone() }).collect()
}

impl Tier {
    fn new(resolved: &ResolvedTier<'_>) -> Tier {
        let (tier, moved) = (resolved.tier, resolved.tier.transfers);
        Tier {
            tier: tier.name.clone(),
            medium: tier.medium.to_string(),
            connector: tier.connector,
            size_bytes: resolved.size.map(|size| size.fact.value),
            size_source: resolved.size.map(|size| size.source.to_string()),
            size_mismatch: resolved.mismatch,
            size_tokens: resolved.size_tokens,
            fill: TierFill::new(&resolved.fill),
            pinned_ratio: resolved.pinned,
            stored_bytes_total: value(moved.stored_bytes),
            reloaded_bytes_total: value(moved.reloaded_bytes),
            store_seconds_total: value(moved.store_seconds),
            reload_seconds_total: value(moved.reload_seconds),
            store_speed_bytes_per_second: speed(moved.stored_bytes, moved.store_seconds),
            reload_speed_bytes_per_second: speed(moved.reloaded_bytes, moved.reload_seconds),
        }
    }
}

impl TierFill {
    fn new(fill: &Fill) -> TierFill {
        let (kind, unknown_because) = match fill {
            Fill::AtMost { .. } => ("upper_bound", None),
            Fill::Measured { .. } => ("measured", None),
            Fill::Unknown(why) => ("unknown", Some(*why)),
        };
        let terms = match fill {
            Fill::AtMost { terms, .. } => {
                terms.iter().map(|term| Term { term: term.name, bytes: term.bytes }).collect()
            }
            Fill::Measured { .. } | Fill::Unknown(_) => Vec::new(),
        };
        TierFill { kind, bytes: fill.bytes(), ratio: fill.share(), terms, unknown_because }
    }
}

impl Correction {
    fn new(one: &Corrected, tiers: &[ResolvedTier<'_>]) -> Correction {
        let row = CORRECTIONS.iter().find(|row| row.family == one.family);
        let name = row.map_or("", |row| row.tier);
        let tier = tiers.iter().find(|known| known.tier.name == name);
        let (after, why_not) = (one.after.ok(), one.after.err());
        Correction {
            family: one.family,
            tier: name,
            before_ratio: one.before,
            after_ratio: after,
            after_is_upper_bound: after.and(tier).map(|tier| matches!(tier.fill, Fill::AtMost { .. })),
            rule: after.and(tier).and_then(rule),
            because: row.map(|row| format!("The engine's own value {}.", row.really)).unwrap_or_default(),
            not_corrected_because: why_not,
        }
    }
}

/// The rule with the terms that it had: `min(size, stored + inflight)`; or who measured.
fn rule(tier: &ResolvedTier<'_>) -> Option<String> {
    let terms = match (&tier.fill, tier.tier.residency) {
        (Fill::AtMost { terms, .. }, _) => terms,
        (Fill::Measured { .. }, Some(_)) => return Some("measured by the engine".to_owned()),
        (Fill::Measured { .. }, None) => return Some("measured from the engine's KV cache events".to_owned()),
        (Fill::Unknown(_), _) => return None,
    };
    let copied: Vec<_> = terms.iter().map(|term| term.name).filter(|name| *name != "slots").collect();
    let copied = copied.join(" + ");
    Some(match terms.iter().any(|term| term.name == "slots") {
        true => format!("min(size, max({copied}, slots))"),
        false => format!("min(size, {copied})"),
    })
}

fn tokens(by_source: &BTreeMap<String, Fact>) -> Vec<Tokens> {
    let of = |(source, fact): (&String, &Fact)| Tokens { source: source.clone(), tokens_total: fact.value };
    by_source.iter().map(of).collect()
}

fn value(fact: Option<Fact>) -> Option<f64> {
    fact.map(|fact| fact.value)
}
