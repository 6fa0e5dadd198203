//! What follows for each engine and tier from the readings: its size, its tokens, and how full it can be at most.
//!
//! Everything here is worked out per engine; totals over engines are sums of these results, never a result of
//! summed inputs. Each result carries where it came from, so that `/debug` and the labels of our own families can
//! say it. Where an input is missing the result is `None`, and [`Fill::Unknown`] says which.

use crate::events::resident::{Resident, Shown, resident, stream_of};
use crate::model::{Engine, Fact, Residency, Size, SizeSource, Slots, Snapshot, Tier, ratio};
use crate::settings::{HostFacts, Settings};

/// An engine with all that follows from its readings.
#[derive(Debug)]
pub struct Resolved<'s> {
    /// What was read.
    pub engine: &'s Engine,
    /// KV bytes of one token, all ranks together.
    pub bytes_per_token: Option<PerToken>,
    /// Processes that copy in parallel.
    pub ranks: Option<f64>,
    /// Its tiers.
    pub tiers: Vec<ResolvedTier<'s>>,
}

/// KV bytes of one token and the method that gave them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerToken {
    /// Bytes.
    pub bytes: f64,
    /// `flag`, `config_info`, `stored` or `loaded`.
    pub method: &'static str,
}

/// A tier with all that follows from its readings.
#[derive(Debug)]
pub struct ResolvedTier<'s> {
    /// What was read.
    pub tier: &'s Tier,
    /// Its capacity.
    pub size: Option<Size>,
    /// Whether the flag and the engine, or the size and the event stream, disagree by more than one slot; `None` unless
    /// two of them speak.
    pub mismatch: Option<bool>,
    /// Its capacity in whole tokens.
    pub size_tokens: Option<f64>,
    /// How full it is at most.
    pub fill: Fill,
    /// What is in it, where KV cache events are followed.
    pub resident: Option<Resident>,
}

impl ResolvedTier<'_> {
    /// What the event stream says of the size, where it is another one than was given.
    pub fn size_shown(&self) -> Option<String> {
        let (size, shown) = (self.size?.fact.value, self.resident?.shown?);
        let bytes = self.resident?.shown_bytes().map_or_else(String::new, |bytes| format!(" ({bytes} bytes)"));
        Some(match shown {
            Shown::AtLeast(chunks) => format!(
                "{size} bytes were given, and the KV cache events show that {chunks} chunks{bytes} were in the tier at \
                 once: it is larger"
            ),
            Shown::Evicting(chunks) => format!(
                "{size} bytes were given, and the KV cache events show that the tier evicts with {chunks} chunks{bytes} \
                 in it: it is smaller"
            ),
        })
    }
}

/// How full a tier is.
#[derive(Debug, PartialEq)]
pub enum Fill {
    /// At most this full.
    AtMost {
        /// Resident bytes at most.
        bytes: f64,
        /// The same as a share of the size.
        share: f64,
        /// The terms that went into it, in the order of the contract.
        terms: Vec<Term>,
    },
    /// It is measured: by the engine, or by us from its KV cache events.
    Measured {
        /// Resident bytes, where the engine counts bytes.
        bytes: Option<f64>,
        /// The same as a share of the size.
        share: f64,
    },
    /// Nothing can be said, for this reason.
    Unknown(&'static str),
}

/// One term of the bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// `stored`, `promoted`, `inflight` or `slots`.
    pub name: &'static str,
    /// Bytes.
    pub bytes: f64,
}

impl Fill {
    /// Share of the size, 0–1.
    pub fn share(&self) -> Option<f64> {
        match self {
            Fill::AtMost { share, .. } | Fill::Measured { share, .. } => Some(*share),
            Fill::Unknown(_) => None,
        }
    }

    /// Bytes.
    pub fn bytes(&self) -> Option<f64> {
        match self {
            Fill::AtMost { bytes, .. } => Some(*bytes),
            Fill::Measured { bytes, .. } => *bytes,
            Fill::Unknown(_) => None,
        }
    }

    /// What it rests on: the terms joined by `+`, `measured`, or `none`.
    pub fn basis(&self) -> String {
        match self {
            Fill::AtMost { terms, .. } => terms.iter().map(|term| term.name).collect::<Vec<_>>().join("+"),
            Fill::Measured { .. } => "measured".to_owned(),
            Fill::Unknown(_) => "none".to_owned(),
        }
    }
}

/// Works out every engine of a snapshot.
pub fn resolve<'s>(snapshot: &'s Snapshot, settings: &Settings, host: &HostFacts) -> Vec<Resolved<'s>> {
    let shm_file = only_tier_file(snapshot, host);
    let alone = snapshot.engines.len() == 1;
    snapshot.engines.iter().map(|engine| resolve_engine(engine, settings, host, shm_file, alone)).collect()
}

/// The size of the one live tier file; of several files, or several engines, nobody can say whose it is.
fn only_tier_file(snapshot: &Snapshot, host: &HostFacts) -> Option<Size> {
    match (snapshot.engines.as_slice(), host.live_tier_files.as_slice()) {
        ([_], [file]) => {
            Some(Size { fact: Fact::new(file.bytes as f64, "shared-memory file"), source: SizeSource::ShmFile })
        }
        _ => None,
    }
}

fn resolve_engine<'s>(
    engine: &'s Engine,
    settings: &Settings,
    host: &HostFacts,
    file: Option<Size>,
    alone: bool,
) -> Resolved<'s> {
    let bytes_per_token = per_token(engine, settings);
    let counts = |tier: &&Tier| !tier.only_if_declared || settings.tier_sizes.contains_key(&tier.name);
    let tiers = engine.tiers.iter().filter(counts);
    let mut tiers: Vec<_> = tiers.map(|tier| resolve_tier(tier, settings, file, bytes_per_token)).collect();
    let stream = stream_of(&host.streams, &engine.id, alone);
    for tier in &mut tiers {
        tier.resident = resident(engine, tier.tier, tier.size, stream);
        let shown = tier.resident.filter(|resident| resident.slots.is_some()).map(|resident| resident.shown.is_some());
        tier.mismatch = [tier.mismatch, shown].into_iter().flatten().reduce(|one, other| one || other);
        if let (Some(measured), Fill::AtMost { .. } | Fill::Unknown(_)) =
            (tier.resident.and_then(|r| r.fill()), &tier.fill)
        {
            tier.fill = measured;
        }
    }
    Resolved { engine, bytes_per_token, ranks: ranks(settings, host), tiers }
}

/// Only a local upstream on a box with one GPU is known to be one rank without being told.
fn ranks(settings: &Settings, host: &HostFacts) -> Option<f64> {
    let alone = || (host.upstream_is_local && host.gpus == Some(1)).then_some(1.0);
    settings.engine_ranks.map(f64::from).or_else(alone)
}

/// The first method that has its inputs, in the order of the contract.
fn per_token(engine: &Engine, settings: &Settings) -> Option<PerToken> {
    let ram = engine.tier("ram");
    let method = |method| move |bytes| PerToken { bytes, method };
    let flag = settings.bytes_per_token.map(method("flag"));
    let config_info = || {
        let (slots, tokens) = (ram?.slots?, ram?.size_tokens?);
        ratio(slots.bytes.value, tokens.value).map(method("config_info"))
    };
    let stored = || stored_per_token(engine, ram?).map(method("stored"));
    let loaded = || {
        let loaded = ram?.transfers.reloaded_bytes?.value;
        ratio(loaded, engine.external_hits?.value).filter(|bytes| *bytes > 0.0).map(method("loaded"))
    };
    flag.or_else(config_info).or_else(stored).or_else(loaded)
}

/// Stored bytes ÷ tokens of the slots handed out: only while each slot handed out was filled by one store.
fn stored_per_token(engine: &Engine, ram: &Tier) -> Option<f64> {
    let slots = ram.slots?;
    let undisturbed = ram.refusals == 0.0 && ram.promoted.is_none_or(|promoted| promoted.value == 0.0);
    let tokens = slots.allocated?.value * engine.block_tokens?.value * slots.blocks_per_slot?.value;
    ratio(ram.transfers.stored_bytes?.value, tokens).filter(|bytes| undisturbed && *bytes > 0.0)
}

fn resolve_tier<'s>(
    tier: &'s Tier,
    settings: &Settings,
    file: Option<Size>,
    per_token: Option<PerToken>,
) -> ResolvedTier<'s> {
    let flag = settings
        .tier_sizes
        .get(&tier.name)
        .map(|bytes| Size { fact: Fact::new(*bytes as f64, "--tier.size"), source: SizeSource::Flag });
    let stated = tier.sizes.first().copied();
    let found = || file.filter(|_| tier.name == "ram" && tier.bounded_by_stores);
    let size = flag.or(stated).or_else(found);
    let mismatch = flag.zip(stated).map(|(flag, stated)| {
        let slot = tier.slots.and_then(slot_bytes).unwrap_or(0.0);
        (flag.fact.value - stated.fact.value).abs() > slot
    });
    ResolvedTier {
        tier,
        size,
        mismatch,
        size_tokens: size_tokens(tier, size, per_token),
        fill: fill(tier, size),
        resident: None,
    }
}

fn size_tokens(tier: &Tier, size: Option<Size>, per_token: Option<PerToken>) -> Option<f64> {
    let divided = || ratio(size?.fact.value, per_token?.bytes).map(f64::floor);
    let stated = tier.size_tokens.map(|tokens| tokens.value);
    match per_token {
        Some(PerToken { method: "flag", .. }) => divided().or(stated),
        _ => stated.or_else(divided),
    }
}

fn slot_bytes(slots: Slots) -> Option<f64> {
    ratio(slots.bytes.value, slots.count.value)
}

fn fill(tier: &Tier, size: Option<Size>) -> Fill {
    if let Some(measured) = measured(tier, size) {
        return measured;
    }
    let Some(stored) = tier.transfers.stored_bytes.filter(|_| tier.bounded_by_stores) else {
        return Fill::Unknown("nothing on the page bounds what is resident");
    };
    if tier.promotions_unseen {
        return Fill::Unknown("a tier behind this one fills it too, and the page does not say how much");
    }
    let Some(size) = size.map(|size| size.fact.value).filter(|bytes| *bytes > 0.0) else {
        return Fill::Unknown("the size is not known: give it with --tier.size");
    };
    let terms = terms(tier, stored, size);
    let copied: f64 = terms.iter().filter(|term| term.name != SLOTS).map(|term| term.bytes).sum();
    let slots = terms.iter().find(|term| term.name == SLOTS).map_or(0.0, |term| term.bytes);
    let bytes = copied.max(slots).clamp(0.0, size);
    Fill::AtMost { bytes, share: bytes / size, terms }
}

const SLOTS: &str = "slots";

/// The terms that are there, in the order of the contract. The first three add up; slots are a bound of their own.
fn terms(tier: &Tier, stored: Fact, size: f64) -> Vec<Term> {
    let named = |name| move |bytes| Term { name, bytes };
    // Refused attempts are counted as handed out too, so one refusal makes the count useless.
    let slots = tier.slots.filter(|_| tier.refusals == 0.0);
    let handed_out = slots.and_then(|slots| Some(slots.allocated?.value * slot_bytes(slots)?));
    let mut terms = vec![Term { name: "stored", bytes: stored.value }];
    terms.extend(tier.promoted.map(|fact| fact.value).map(named("promoted")));
    terms.extend(tier.storing.map(|share| share.value * size).map(named("inflight")));
    terms.extend(handed_out.map(named(SLOTS)));
    terms
}

fn measured(tier: &Tier, size: Option<Size>) -> Option<Fill> {
    match tier.residency? {
        Residency::Bytes(bytes) => {
            let share = ratio(bytes.value, size?.fact.value)?;
            Some(Fill::Measured { bytes: Some(bytes.value), share })
        }
        Residency::Share(quotient) => Some(Fill::Measured { bytes: None, share: quotient.value()? }),
    }
}
