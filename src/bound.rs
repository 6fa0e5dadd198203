//! What follows for each engine and tier from the readings: its size, its tokens, and how full it can be at most.
//!
//! Everything here is worked out per engine; totals over engines are sums of these results, never a result of
//! summed inputs. Each result carries where it came from, so that `/debug` and the labels of our own families can
//! say it. Where an input is missing the result is `None`, and [`Fill::Unknown`] says which.

use crate::events::resident::{Peers, Resident, Shown, chunk_bytes, is_stored_throughout, resident, stream_of};
use crate::model::{Engine, Fact, Quotient, Residency, Size, SizeSource, Slots, Snapshot, Tier, ratio};
use crate::settings::{HostFacts, Settings, Stream};
use crate::share::{Withheld, share};

/// An engine with all that follows from its readings.
#[derive(Debug)]
pub struct Resolved<'s> {
    /// What was read.
    pub engine: &'s Engine,
    /// KV bytes of one token, all ranks together.
    pub bytes_per_token: Option<PerToken>,
    /// Processes that copy in parallel.
    pub ranks: Option<f64>,
    /// Share of the prompt tokens that prefill computed.
    pub prefill_computed: Option<f64>,
    /// Share of the tokens looked up in a cache library that it found.
    pub lookup_hits: Option<f64>,
    /// What shows that layers of several kinds share its pool and its tier: the page, or its KV cache events.
    pub several_groups: Option<&'static str>,
    /// Its tiers.
    pub tiers: Vec<ResolvedTier<'s>>,
    /// What the page contradicts itself in.
    pub withheld: Vec<Withheld>,
}

/// KV bytes of one token and the method that gave them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerToken {
    /// Bytes.
    pub bytes: f64,
    /// `flag`, `config_info`, `stored`, `events` or `loaded`.
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
    /// Share pinned by copies in flight.
    pub pinned: Option<f64>,
    /// What is in it, where KV cache events are followed.
    pub resident: Option<Resident>,
}

impl ResolvedTier<'_> {
    /// Whether the bound holds for models of one KV group only: it rests on bytes, not on slots too, and leaves room.
    pub fn assumes_one_group(&self) -> bool {
        let Fill::AtMost { bytes, share, terms } = &self.fill else { return false };
        *bytes > 0.0 && *share < 1.0 && terms.iter().all(|term| term.name != SLOTS)
    }

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
    snapshot.engines.iter().map(|engine| resolve_engine(engine, snapshot, settings, host, shm_file)).collect()
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
    snapshot: &Snapshot,
    settings: &Settings,
    host: &HostFacts,
    file: Option<Size>,
) -> Resolved<'s> {
    let mut shares = Shares::default();
    let peers = || Peers::of(&engine.id, snapshot.engines.iter().map(|other| &other.id));
    let stream = (!host.streams.is_empty()).then(peers).and_then(|peers| stream_of(&host.streams, &engine.id, peers));
    let told = || stream.filter(|stream| stream.several_groups).map(|_| "its KV cache events name several");
    let several_groups = engine.several_groups.or_else(told);
    let bytes_per_token = per_token(engine, settings, stream.filter(|_| several_groups.is_none()));
    let counts = |tier: &&Tier| !tier.only_if_declared || settings.tier_sizes.contains_key(&tier.name);
    let tiers = engine.tiers.iter().filter(counts);
    let mut tiers: Vec<_> = tiers
        .map(|tier| resolve_tier(tier, settings, file, bytes_per_token, several_groups.is_some(), &mut shares))
        .collect();
    for tier in &mut tiers {
        // Chunks of several groups differ in bytes: only slots that the engine states are alike.
        let alike = several_groups.is_none() || tier.tier.slots.is_some();
        tier.resident = resident(engine, tier.tier, tier.size, stream.filter(|_| alike));
        let shown = tier.resident.filter(|resident| resident.slots.is_some()).map(|resident| resident.shown.is_some());
        tier.mismatch = [tier.mismatch, shown].into_iter().flatten().reduce(|one, other| one || other);
        let measured = tier.resident.and_then(|r| r.fill());
        if let (Some(measured), Fill::AtMost { .. } | Fill::Unknown(_)) = (measured, &tier.fill)
            && tier.fill != Fill::Unknown(IMPOSSIBLE)
        {
            tier.fill = measured;
        }
    }
    Resolved {
        engine,
        bytes_per_token,
        ranks: ranks(settings, host),
        prefill_computed: shares.of_engine("kvtier_prefill_computed_ratio", engine.prefill_computed),
        lookup_hits: shares.of_engine("kvtier_lmcache_lookup_hit_ratio", engine.lookup_hits),
        several_groups,
        tiers,
        withheld: shares.withheld,
    }
}

/// The shares of one engine, and those of them that can be none.
#[derive(Default)]
struct Shares {
    withheld: Vec<Withheld>,
}

impl Shares {
    fn of_engine(&mut self, family: &'static str, quotient: Option<Quotient>) -> Option<f64> {
        let quotient = quotient?;
        self.check(family, None, quotient.value()?, || quotient.to_string())
    }

    fn of_tier(&mut self, family: &'static str, tier: &Tier, value: f64, from: impl FnOnce() -> String) -> Option<f64> {
        self.check(family, Some(&tier.name), value, from)
    }

    fn check(
        &mut self,
        family: &'static str,
        tier: Option<&str>,
        value: f64,
        from: impl FnOnce() -> String,
    ) -> Option<f64> {
        let share = share(value);
        if share.is_none() {
            self.withheld.push(Withheld { family, tier: tier.map(str::to_owned), value, from: from() });
        }
        share
    }
}

/// Only a local upstream on a box with one GPU is known to be one rank without being told.
fn ranks(settings: &Settings, host: &HostFacts) -> Option<f64> {
    let alone = || (host.upstream_is_local && host.gpus == Some(1)).then_some(1.0);
    settings.engine_ranks.map(f64::from).or_else(alone)
}

/// The first method that has its inputs, in the order of the contract.
fn per_token(engine: &Engine, settings: &Settings, stream: Option<&Stream>) -> Option<PerToken> {
    let ram = engine.tier("ram");
    let method = |method| move |bytes| PerToken { bytes, method };
    let flag = settings.bytes_per_token.map(method("flag"));
    let config_info = || {
        let (slots, tokens) = (ram?.slots?, ram?.size_tokens?);
        ratio(slots.bytes.value, tokens.value).map(method("config_info"))
    };
    let stored = || stored_per_token(engine, ram?).map(method("stored"));
    let events = || {
        let chunk = chunk_bytes(engine, ram?).or(stream?.chunk.filter(|chunk| chunk.exact).map(|chunk| chunk.bytes));
        ratio(chunk?, stream?.chunk_tokens?).map(method("events"))
    };
    let loaded = || loaded_per_token(engine, ram?).map(method("loaded"));
    flag.or_else(config_info).or_else(stored).or_else(events).or_else(loaded)
}

/// Reloaded bytes ÷ tokens that the RAM tier supplied: only while nothing else moves either. A request that was
/// preempted reloads what is no hit; another connector and a tier behind supply tokens too, the latter through RAM.
fn loaded_per_token(engine: &Engine, ram: &Tier) -> Option<f64> {
    let elsewhere = engine
        .served_tokens
        .iter()
        .any(|(source, tokens)| engine.served_tokens.contains_key("ram") && source != "ram" && tokens.value > 0.0);
    let one_tier = engine.tiers.iter().all(|tier| tier.name == ram.name);
    let alone = one_tier && !elsewhere && engine.other_connector.is_none();
    let undisturbed = alone && engine.preemptions.is_some_and(|preemptions| preemptions.value == 0.0);
    let tokens = engine.served_tokens.get("ram").copied().or(engine.external_hits)?;
    ratio(ram.transfers.reloaded_bytes?.value, tokens.value).filter(|bytes| undisturbed && *bytes > 0.0)
}

/// Stored bytes ÷ tokens of the slots handed out: only while each slot handed out was filled by one store. While one is under
/// way the quotient would be too low.
fn stored_per_token(engine: &Engine, ram: &Tier) -> Option<f64> {
    let slots = ram.slots?;
    let undisturbed = engine.several_groups.is_none() && is_stored_throughout(engine, ram);
    let tokens = slots.allocated?.value * engine.block_tokens?.value * slots.blocks_per_slot?.value;
    ratio(ram.transfers.stored_bytes?.value, tokens).filter(|bytes| undisturbed && *bytes > 0.0)
}

fn resolve_tier<'s>(
    tier: &'s Tier,
    settings: &Settings,
    file: Option<Size>,
    per_token: Option<PerToken>,
    several_groups: bool,
    shares: &mut Shares,
) -> ResolvedTier<'s> {
    let flag = settings
        .tier_sizes
        .get(&tier.name)
        .map(|bytes| Size { fact: Fact::new(*bytes as f64, "--tier.size"), source: SizeSource::Flag });
    let stated = tier.sizes.first().copied();
    // A version that lays its tier out elsewhere has a neighbour on this box, whose file it is.
    let found = || file.filter(|_| tier.name == "ram" && tier.bounded_by_stores && tier.lies_in_shm != Some(false));
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
        fill: fill(tier, size, several_groups, shares),
        pinned: tier.pinned.and_then(|pinned| {
            shares.of_tier("kvtier_tier_pinned_ratio", tier, pinned.value, || pinned.from.to_owned())
        }),
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

/// Why nothing is said where the page contradicts itself.
pub const IMPOSSIBLE: &str = "the page contradicts itself: a share that it comes of is outside 0 to 1";

const FILL: &str = "kvtier_tier_fill_upper_bound_ratio";

fn fill(tier: &Tier, size: Option<Size>, several_groups: bool, shares: &mut Shares) -> Fill {
    if tier.doubtful {
        return Fill::Unknown(DOUBTFUL);
    }
    if let Some(measured) = measured(tier, size, shares) {
        return measured;
    }
    if tier.bounded_by_stores && tier.transfers.stores_unreadable && tier.transfers.stored_bytes.is_none() {
        return Fill::Unknown("the bytes stored cannot be read: their count is no number from 0 upwards");
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
    if let Some(storing) = tier.storing
        && shares.of_tier(FILL, tier, storing.value, || storing.from.to_owned()).is_none()
    {
        return Fill::Unknown(IMPOSSIBLE);
    }
    let terms = terms(tier, stored, size);
    let copied: f64 = terms.iter().filter(|term| term.name != SLOTS).map(|term| term.bytes).sum();
    let slots = terms.iter().find(|term| term.name == SLOTS).map_or(0.0, |term| term.bytes);
    // As many bytes as fit fill as many slots, or more.
    if several_groups && usable_slots(tier).is_none() && copied < size {
        return Fill::Unknown(SHARED);
    }
    let bytes = copied.max(slots).clamp(0.0, size);
    Fill::AtMost { bytes, share: bytes / size, terms }
}

/// Why nothing is said where series cannot be told apart.
pub const DOUBTFUL: &str = "it is not certain which series hold for the engine: they differ in a label that nothing accounts for, lack one, or contradict each other";

const SLOTS: &str = "slots";

/// Why bytes bound nothing for a model of several KV groups: a chunk of the narrowest takes a slot that is as large as one
/// of the widest.
pub const SHARED: &str = "layers of several kinds share the tier (a hybrid model, several KV groups): each of their chunks takes a whole slot, so the bytes stored bound nothing, and the page has no count of slots that can be relied on (0.33 has, while nothing is refused)";

/// The slots, while they bound something: refused attempts are counted as handed out too, so one refusal makes the count
/// useless.
fn usable_slots(tier: &Tier) -> Option<Slots> {
    tier.slots.filter(|_| tier.refusals == 0.0)
}

/// The terms that are there, in the order of the contract. The first three add up; slots are a bound of their own.
fn terms(tier: &Tier, stored: Fact, size: f64) -> Vec<Term> {
    let named = |name| move |bytes| Term { name, bytes };
    let handed_out = usable_slots(tier).and_then(|slots| Some(slots.allocated?.value * slot_bytes(slots)?));
    let mut terms = vec![Term { name: "stored", bytes: stored.value }];
    terms.extend(tier.promoted.map(|fact| fact.value).map(named("promoted")));
    terms.extend(tier.storing.map(|share| share.value * size).map(named("inflight")));
    terms.extend(handed_out.map(named(SLOTS)));
    terms
}

fn measured(tier: &Tier, size: Option<Size>, shares: &mut Shares) -> Option<Fill> {
    let (bytes, quotient) = match tier.residency? {
        Residency::Bytes(bytes) => (Some(bytes.value), Quotient { of: bytes, by: size?.fact }),
        Residency::Share(quotient) => (None, quotient),
    };
    let share = shares.of_tier(FILL, tier, quotient.value()?, || quotient.to_string());
    Some(share.map_or(Fill::Unknown(IMPOSSIBLE), |share| Fill::Measured { bytes, share }))
}
