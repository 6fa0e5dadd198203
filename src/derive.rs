//! The families computed from the page: one row each.
//!
//! A row spells name, kind and HELP, and holds the function that gives the value for one engine or tier. To add a
//! family, add a row here, a line to the README's table, and refresh the goldens.

use crate::bound::{Resolved, ResolvedTier};
use crate::family::{Desc, Family, Labels};
use crate::model::{EngineId, Fact, ratio};

/// A derived family.
pub struct Derived {
    /// Name, kind and HELP.
    pub desc: Desc,
    /// Its samples.
    pub samples: Samples,
}

/// How the samples of a family come about; a `None` is no sample.
pub enum Samples {
    /// One for each tier.
    Tier(fn(&Resolved<'_>, &ResolvedTier<'_>) -> Option<f64>),
    /// One for each tier, always 1, with facts in its labels.
    TierInfo(fn(&ResolvedTier<'_>) -> Labels),
    /// One for each engine.
    Engine(fn(&Resolved<'_>) -> Option<f64>),
    /// Several for each engine, told apart by one more label.
    Split(&'static str, fn(&Resolved<'_>) -> Vec<(String, f64)>),
    /// One for each model (and further labels that tell engines apart): of engines that differ in `engine` alone the first
    /// speaks for all.
    Model(fn(&Resolved<'_>) -> Option<f64>),
}

/// All derived families, in the order of the contract.
pub const DERIVED: &[Derived] = &[
    Derived {
        desc: Desc::gauge(
            "kvtier_tier_info",
            "Always 1. What the tier lies on, what moves its bytes, where its size is known from, and what its fill rests on.",
        ),
        samples: Samples::TierInfo(|t| {
            [
                ("medium", t.tier.medium.to_string()),
                ("connector", t.tier.connector.to_owned()),
                ("size_source", t.size.map_or_else(|| "none".to_owned(), |size| size.source.to_string())),
                ("bound_basis", t.fill.basis()),
            ]
            .into()
        }),
    },
    Derived {
        desc: Desc::gauge("kvtier_tier_size_bytes", "Capacity of this engine's tier, all ranks together."),
        samples: Samples::Tier(|_, t| Some(t.size?.fact.value)),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_tier_size_mismatch",
            "1 where --tier.size and the engine's own statement differ by more than one slot of the tier: the flag is used. 1 too where the KV cache events show another size: more in the tier than fits, or evictions while it cannot be full. Then no ratio is said to be measured; /debug says which size they show.",
        ),
        samples: Samples::Tier(|_, t| t.mismatch.map(flag)),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_tier_fill_upper_bound_bytes",
            "Upper bound of the KV bytes resident in the tier: min(size, max(stored + promoted + in flight, slots)), the terms that are known. Exact at rest until something empties the tier (see kvtier_tier_reset_hint). Where KV cache events are followed and nothing is left open: what is in the tier and on its way in, and the whole size once it has evicted since its last clear. Too low where versions 0.22 to 0.25 promote from a secondary tier, which they do not count, for hybrid models before 0.33 that do not show on the page (several KV groups), and after an elastic scale-up, which resets the engine's counters but not its tiers.",
        ),
        samples: Samples::Tier(|_, t| t.fill.bytes()),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_tier_fill_upper_bound_ratio",
            "kvtier_tier_fill_upper_bound_bytes as a share of kvtier_tier_size_bytes. An upper bound, except where bound_basis of kvtier_tier_info is \"measured\".",
        ),
        samples: Samples::Tier(|_, t| t.fill.share()),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_tier_pinned_ratio",
            "Share of the tier pinned by copies in flight: the engine's own usage gauge under its true name. It reads 0 on a full tier at rest.",
        ),
        samples: Samples::Tier(|_, t| t.pinned),
    },
    Derived {
        desc: Desc::counter(
            "kvtier_tier_stored_bytes_total",
            "Bytes written into the tier since engine start. A sum over tiers counts bytes twice: what a secondary tier holds passed the RAM tier before.",
        ),
        samples: Samples::Tier(|_, t| value(t.tier.transfers.stored_bytes)),
    },
    Derived {
        desc: Desc::counter(
            "kvtier_tier_reloaded_bytes_total",
            "Bytes read back from the tier since engine start. A sum over tiers counts bytes twice: a promotion from a secondary tier and its reload are the same bytes.",
        ),
        samples: Samples::Tier(|_, t| value(t.tier.transfers.reloaded_bytes)),
    },
    Derived {
        desc: Desc::counter(
            "kvtier_tier_store_seconds_total",
            "Seconds of the copies into the tier since engine start, as the device or the I/O threads measured them, summed over ranks or threads.",
        ),
        samples: Samples::Tier(|_, t| value(t.tier.transfers.store_seconds)),
    },
    Derived {
        desc: Desc::counter(
            "kvtier_tier_reload_seconds_total",
            "Seconds of the copies out of the tier since engine start, as the device or the I/O threads measured them, summed over ranks or threads.",
        ),
        samples: Samples::Tier(|_, t| value(t.tier.transfers.reload_seconds)),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_tier_store_speed_bytes_per_second",
            "Copy speed of one rank (or I/O thread) into the tier: bytes stored divided by the seconds spent, since engine start. No throughput: idle time does not count.",
        ),
        samples: Samples::Tier(|_, t| speed(t.tier.transfers.stored_bytes, t.tier.transfers.store_seconds)),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_tier_reload_speed_bytes_per_second",
            "Copy speed of one rank (or I/O thread) out of the tier: bytes reloaded divided by the seconds spent, since engine start. No throughput: idle time does not count.",
        ),
        samples: Samples::Tier(|_, t| speed(t.tier.transfers.reloaded_bytes, t.tier.transfers.reload_seconds)),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_tier_size_tokens",
            "Tokens that the tier holds: --kv.bytes-per-token decides, else the engine's own figure, else size divided by kvtier_kv_bytes_per_token. Whole tokens.",
        ),
        samples: Samples::Tier(|_, t| t.size_tokens),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_tier_reset_hint",
            "1 where something since engine start may have emptied the tier, so that the fill is still a bound but may be loose. A hint: the calls seen carry no engine, and a prefix-cache reset without reset_external leaves the tier alone.",
        ),
        samples: Samples::Tier(|r, t| t.tier.bounded_by_stores.then(|| flag(!r.engine.reset_evidence.is_empty()))),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_kv_bytes_per_token",
            "KV bytes of one token, all ranks together, and how it is known: flag, config_info (tier size in bytes and in tokens), stored (bytes stored for each token of the slots handed out), events (bytes of a chunk divided by its tokens, from the KV cache events) or loaded (bytes reloaded for each token that the RAM tier supplied; only where nothing else moves either number: no preemption since start, no other connector, no tier behind).",
        ),
        samples: Samples::Split("method", |r| {
            r.bytes_per_token.map(|p| (p.method.to_owned(), p.bytes)).into_iter().collect()
        }),
    },
    Derived {
        desc: Desc::gauge("kvtier_gpu_pool_tokens", "Tokens that the engine's KV pool on the GPU holds."),
        samples: Samples::Engine(|r| value(r.engine.gpu_pool_tokens)),
    },
    Derived {
        desc: Desc::counter(
            "kvtier_prompt_tokens_total",
            "Prompt tokens since engine start by where their KV came from: computed by prefill, gpu_cache, or external (any connector: a tier, a peer, a prefill instance). Counted when a request begins to answer.",
        ),
        samples: Samples::Split("source", |r| named(&r.engine.prompt_tokens)),
    },
    Derived {
        desc: Desc::counter(
            "kvtier_tier_served_tokens_total",
            "Prompt tokens since engine start that a tier supplied: ram, disk, peer, or unspecified where the engine does not tell which. Counted at admission, so not to be subtracted from kvtier_prompt_tokens_total.",
        ),
        samples: Samples::Split("source", |r| named(&r.engine.served_tokens)),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_prefill_computed_ratio",
            "Share of prompt tokens since engine start that prefill computed. Before version 0.16 of finished requests only.",
        ),
        samples: Samples::Engine(|r| r.prefill_computed),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_prefill_seconds_per_token",
            "Prefill seconds for each prompt token computed, over finished requests. An over-estimate of prefill alone: batching and decode share its steps.",
        ),
        samples: Samples::Engine(prefill_seconds_per_token),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_reload_seconds_per_token",
            "Copy seconds out of the RAM tier for each token that a tier supplied, of one rank. Known where the number of ranks is: --engine.ranks, or a local engine on a box with one GPU. To be compared with kvtier_prefill_seconds_per_token.",
        ),
        samples: Samples::Engine(reload_seconds_per_token),
    },
    Derived {
        desc: Desc::gauge(
            "kvtier_lmcache_lookup_hit_ratio",
            "Share of the prompt tokens looked up in LMCache since its start that were found there. Of one process, the one that looked up the most, since all count the same lookups. It includes tokens that the GPU held too, so it is no share of prefill saved. Unlike lmcache:retrieve_hit_rate it does not read 1 while nothing happens.",
        ),
        samples: Samples::Model(|r| r.lookup_hits),
    },
];

/// Derives all families of all engines.
pub fn derive(engines: &[Resolved<'_>]) -> Vec<Family> {
    let engines: Vec<_> = engines.iter().map(Labelled::new).collect();
    DERIVED.iter().map(|row| family(row, &engines)).collect()
}

/// An engine with the labels that its samples have in one family after the other.
struct Labelled<'a> {
    resolved: &'a Resolved<'a>,
    labels: Labels,
    tiers: Vec<(&'a ResolvedTier<'a>, Labels)>,
}

impl<'a> Labelled<'a> {
    fn new(resolved: &'a Resolved<'a>) -> Labelled<'a> {
        let labels = engine_labels(&resolved.engine.id);
        let tiers = resolved.tiers.iter().map(|tier| (tier, labels.with("tier", &*tier.tier.name))).collect();
        Labelled { resolved, labels, tiers }
    }
}

fn family(row: &Derived, engines: &[Labelled<'_>]) -> Family {
    let mut family = Family::new(row.desc);
    for (at, engine) in engines.iter().enumerate() {
        let id = &engine.resolved.engine.id;
        match row.samples {
            Samples::Model(value) => {
                let value = value(engine.resolved).filter(|_| !is_spoken_for(id, &engines[..at]));
                if value.is_some() {
                    family.push(engine_labels(&EngineId { engine: String::new(), ..id.clone() }), value);
                }
            }
            Samples::Engine(value) => family.push(engine.labels.clone(), value(engine.resolved)),
            Samples::Split(label, values) => {
                for (name, value) in values(engine.resolved) {
                    family.push(engine.labels.with(label, name), value);
                }
            }
            Samples::Tier(value) => {
                for (tier, labels) in &engine.tiers {
                    family.push(labels.clone(), value(engine.resolved, tier));
                }
            }
            Samples::TierInfo(info) => {
                for (tier, labels) in &engine.tiers {
                    family.push(labels.and(&info(tier)), 1.0);
                }
            }
        }
    }
    family
}

/// Whether an engine before this one differs from it in `engine` alone. Engines stand in the order of their labels, so
/// those of one model are neighbours.
fn is_spoken_for(id: &EngineId, before: &[Labelled<'_>]) -> bool {
    let ids = before.iter().rev().map(|engine| &engine.resolved.engine.id);
    ids.take_while(|other| other.model_name == id.model_name).any(|other| other.labels == id.labels)
}

/// The labels that tell engines apart, taken over from upstream. One that is named like a label of ours is written with
/// `exported_` before its name, on all our families, as Prometheus does where a target has such a label: a name that
/// stands twice would cost the whole scrape.
pub fn engine_labels(id: &EngineId) -> Labels {
    let mut labels = Labels::from([("model_name", id.model_name.clone()), ("engine", id.engine.clone())]);
    let taken = |name: &str| OWN_LABELS.contains(&name) || id.labels.iter().any(|(other, _)| other == name);
    for (name, value) in &id.labels {
        let mut name = name.clone();
        if OWN_LABELS.contains(&name.as_str()) {
            while taken(&name) {
                name.insert_str(0, "exported_");
            }
        }
        labels.push(name, value);
    }
    labels
}

/// The labels that some of our families have beside those of an engine.
pub const OWN_LABELS: [&str; 13] = [
    "tier",
    "medium",
    "connector",
    "size_source",
    "bound_basis",
    "method",
    "source",
    "family",
    "bound",
    "size",
    "le",
    "model_name",
    "engine",
];

fn named(facts: &std::collections::BTreeMap<String, Fact>) -> Vec<(String, f64)> {
    facts.iter().map(|(name, fact)| (name.clone(), fact.value)).collect()
}

fn value(fact: Option<Fact>) -> Option<f64> {
    fact.map(|fact| fact.value)
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}

/// Prefill seconds ÷ prompt tokens computed, over finished requests.
pub(crate) fn prefill_seconds_per_token(resolved: &Resolved<'_>) -> Option<f64> {
    let finished = resolved.engine.finished;
    ratio(finished.prefill_seconds?.value, finished.computed_tokens?.value)
}

/// Reload seconds of one rank ÷ tokens that any tier supplied: what a disk promoted reloads through RAM too.
pub(crate) fn reload_seconds_per_token(resolved: &Resolved<'_>) -> Option<f64> {
    let seconds = resolved.engine.tier("ram")?.transfers.reload_seconds?.value / resolved.ranks?;
    ratio(seconds, resolved.engine.served_tokens.values().map(|fact| fact.value).sum())
}

/// Bytes ÷ seconds since engine start; unknown while no second was spent.
pub(crate) fn speed(bytes: Option<Fact>, seconds: Option<Fact>) -> Option<f64> {
    ratio(bytes?.value, seconds?.value).filter(|speed| *speed > 0.0)
}
