//! What follows from the main page, from what was read on it to what there is to tell.

use super::kinds::{
    DROPPED_LINES, GAUGE_NOT_CORRECTED, IDENTITY_UNCERTAIN, SERVED_BY_NO_TIER, SHM_WRONG_MOUNT, TIER_SIZE_MISMATCH,
    TIER_SIZE_UNUSED, TIER_WITHOUT_METRICS, UNKNOWN_ENGINE, UPSTREAM_IS_EXPORTER, VALUE_WITHHELD,
};
use super::spelling::{Spelling, Via};
use super::{Kind, Notice};
use crate::advise::words::{counted, many, size};
use crate::bound::{DOUBTFUL, IMPOSSIBLE, Resolved, ResolvedTier, SHARED};
use crate::correct::{CORRECTED, Corrected, NO_SHARE};
use crate::exposition::{Counts, LineNote, Through};
use crate::model::{DECLARED_ALONE, Engine, Medium, SizeSource, Snapshot, Tier};
use crate::settings::{HostFacts, LiveTierFile, Settings, SharedMemory};
use crate::share::Withheld;

/// What was worked out of the pages of one scrape.
pub struct Facts<'a> {
    /// Name of the main upstream.
    pub main: &'a str,
    /// What was read.
    pub snapshot: &'a Snapshot,
    /// What follows for each engine.
    pub engines: &'a [Resolved<'a>],
    /// What became of misleading gauges.
    pub corrected: &'a [Corrected],
    /// What the operator said.
    pub settings: &'a Settings,
    /// What the box says.
    pub host: &'a HostFacts,
}

impl Facts<'_> {
    fn notice(&self, kind: &'static Kind, detail: impl Into<String>) -> Notice {
        Notice::new(kind, self.main, detail)
    }
}

/// A rule: what it has to tell.
type Rule = fn(&Facts<'_>) -> Vec<Notice>;

/// All rules that look at engines and tiers.
const RULES: [Rule; 9] = [
    met_by_dialects,
    gauges_not_corrected,
    values_withheld,
    sizes_unused,
    sizes_mismatched,
    sizes_contradicted,
    tiers_without_metrics,
    served_by_no_tier,
    wrong_mount,
];

/// What the engines and tiers of the pages give to tell.
pub fn of_engines(facts: &Facts<'_>) -> Vec<Notice> {
    RULES.iter().flat_map(|rule| rule(facts)).collect()
}

/// What the names of a page of no known engine give to tell. A further upstream may be anything: it is of interest only where it
/// spells names of an engine in another way.
pub fn of_names(upstream: &str, is_main: bool, spelling: &Spelling) -> Option<Notice> {
    if !is_main && spelling.via() == Via::Direct {
        return None;
    }
    let seen = match &spelling.engine {
        Some(one) if one.via == Via::Prefixed => {
            format!(
                "the page has names of {} with {} in front, such as {}: something renamed them on the way, and so spelled they are not read",
                one.project, one.prefix, one.example
            )
        }
        Some(one) => format!(
            "the page has names of {}, such as {}, and none that tells an engine by its labels model_name and engine",
            one.project, one.example
        ),
        None if spelling.names == 0 => "the page has no names of metrics".to_owned(),
        None => format!("none of the page's names is of an engine; most begin with {}", spelling.words.join(", ")),
    };
    Some(Notice::new(&UNKNOWN_ENGINE, upstream, seen).with(spelling.counted()))
}

/// How many reasons and lines are told as examples.
const EXAMPLES: usize = 3;

/// What the lines of a page give to tell. Only the first odd lines are kept, so there may be more reasons.
pub fn of_lines(upstream: &str, counts: &Counts, notes: &[LineNote]) -> Option<Notice> {
    if counts.dropped == 0 {
        return None;
    }
    let dropped = || notes.iter().filter(|note| note.is_dropped);
    let mut reasons: Vec<&str> = dropped().map(|note| note.reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let reasons = reasons.into_iter().take(EXAMPLES).collect::<Vec<_>>().join("; ");
    let first = dropped().next().map(|note| format!(", first line {}: {}", note.number, note.text)).unwrap_or_default();
    Some(
        Notice::new(&DROPPED_LINES, upstream, format!("lines of the page are left out: {reasons}"))
            .with(format!("{} in the last scrape{first}", many(counts.dropped as usize, "line"))),
    )
}

/// What the way of a page gives to tell: another exporter of this kind stood before this one.
pub fn of_way(upstream: &str, through: Through) -> Option<Notice> {
    let detail = match through {
        Through::None => return None,
        Through::Exporter => "its page has kvtier_ families of another exporter, and the engine's gauge as it came",
        Through::Corrected => {
            "its page has kvtier_ families of another exporter, and kvtier_correction_active is 1 there: the engine's own gauge is not on it"
        }
    };
    Some(Notice::new(&UPSTREAM_IS_EXPORTER, upstream, detail))
}

/// What the dialects met and could not read as it stands.
fn met_by_dialects(facts: &Facts<'_>) -> Vec<Notice> {
    let notes = facts.snapshot.notes.iter();
    notes
        .map(|note| facts.notice(note.kind, note.text.as_str()).with(note.bytes.map(size).unwrap_or_default()))
        .collect()
}

/// A gauge that stays misleading although corrections are on. One that came corrected does not mislead.
fn gauges_not_corrected(facts: &Facts<'_>) -> Vec<Notice> {
    let left = facts.corrected.iter().filter(|_| facts.settings.correct);
    let left = left.filter_map(|one| Some((one, one.after.err().filter(|why| *why != CORRECTED)?)));
    let text = |(one, why): (&Corrected, &str)| format!("{} of engine {}: {why}", one.family, one.engine);
    left.map(|one| facts.notice(&GAUGE_NOT_CORRECTED, text(one)).after(cause(one.1))).collect()
}

/// What is told by itself of why a gauge is not corrected. Contradictions are in doubt too, and whose series they are is not.
fn cause(why: &str) -> Option<&'static str> {
    match why {
        DOUBTFUL => Some(IDENTITY_UNCERTAIN.id),
        IMPOSSIBLE | NO_SHARE => Some(VALUE_WITHHELD.id),
        SHARED => Some("tier-of-several-kv-groups"),
        _ => None,
    }
}

/// Ratios that would lie outside 0 to 1.
fn values_withheld(facts: &Facts<'_>) -> Vec<Notice> {
    let withheld = facts.engines.iter().flat_map(|engine| engine.withheld.iter().map(move |one| (engine, one)));
    let text = |engine: &Resolved<'_>, one: &Withheld| {
        let of = one.tier.as_ref().map(|tier| format!(" of tier {tier:?}")).unwrap_or_default();
        format!("{}{of} of engine {}", one.family, engine.engine.id)
    };
    withheld
        .map(|(engine, one)| {
            facts.notice(&VALUE_WITHHELD, text(engine, one)).with(format!("it would be {}, of {}", one.value, one.from))
        })
        .collect()
}

/// A declared size that belongs to no tier, or to one that is there since it was declared: of LMCache's the pages show nothing
/// then. A RAM tier of that kind is told of as one without metrics. Without any engine that is not known.
fn sizes_unused(facts: &Facts<'_>) -> Vec<Notice> {
    let of_name = |name: &str| tiers(facts).map(|(_, tier)| tier.tier).filter(|tier| tier.name == name).collect();
    let told = facts.settings.tier_sizes.keys().filter_map(|name| {
        let named: Vec<&Tier> = of_name(name);
        if named.is_empty() {
            let text = format!("--tier.size names tier {name:?}, and no engine shows one of that name so far");
            return Some(facts.notice(&TIER_SIZE_UNUSED, text));
        }
        let is_silent = name != "ram" && named.iter().all(|tier| tier.connector == DECLARED_ALONE);
        let text = || {
            format!(
                "--tier.size names tier {name:?}, and no page shows LMCache so far: all there is of it is that size"
            )
        };
        is_silent.then(|| facts.notice(&TIER_SIZE_UNUSED, text()).after(Some("lmcache-metrics-missing")))
    });
    told.filter(|_| !facts.engines.is_empty()).collect()
}

/// Two sizes of one tier.
fn sizes_mismatched(facts: &Facts<'_>) -> Vec<Notice> {
    let differs = tiers(facts).filter(|(_, tier)| tier.mismatch == Some(true));
    let both = differs.filter_map(|(engine, tier)| Some((engine, tier, tier.size?, tier.tier.sizes.first()?)));
    let text = both.map(|(engine, tier, said, stated)| {
        let (name, said, stated) = (&tier.tier.name, size(said.fact.value), size(stated.fact.value));
        format!("--tier.size says {said} for tier {name} of engine {}; the engine says {stated}", engine.engine.id)
    });
    text.map(|text| facts.notice(&TIER_SIZE_MISMATCH, text)).collect()
}

/// A size that the event stream contradicts.
fn sizes_contradicted(facts: &Facts<'_>) -> Vec<Notice> {
    let shown = tiers(facts).filter_map(|(engine, tier)| Some((engine, tier, tier.size_shown()?)));
    shown
        .map(|(engine, tier, shown)| {
            let detail = format!(
                "tier {} of engine {} is of another size than --tier.size says, as the KV cache events show",
                tier.tier.name, engine.engine.id
            );
            facts.notice(&TIER_SIZE_MISMATCH, detail).with(shown)
        })
        .collect()
}

/// A RAM tier without one counter of its copies.
fn tiers_without_metrics(facts: &Facts<'_>) -> Vec<Notice> {
    let silent = tiers(facts).filter(|(engine, tier)| engine.engine.doubts.is_empty() && is_silent(tier.tier));
    let text = silent.map(|(engine, tier)| {
        let bytes = tier.size.map_or("of unknown size".to_owned(), |bytes| format!("of {}", size(bytes.fact.value)));
        let (engine, connector) = (engine.engine, tier.tier.connector);
        let detail = format!(
            "engine {} has a RAM tier {bytes}, connector {connector}, and its page counts no bytes of it",
            engine.id
        );
        facts.notice(&TIER_WITHOUT_METRICS, detail).with(supplied(engine).map(tokens).unwrap_or_default())
    });
    text.collect()
}

/// Tokens that came from a tier, of which the page shows nothing.
fn served_by_no_tier(facts: &Facts<'_>) -> Vec<Notice> {
    let without = facts
        .engines
        .iter()
        .map(|engine| engine.engine)
        .filter(|engine| engine.tiers.is_empty() && engine.doubts.is_empty());
    let served =
        without.filter(|engine| engine.lookup_hits.is_none()).filter_map(|engine| Some((engine, supplied(engine)?)));
    let text =
        |engine: &Engine| format!("a connector supplied engine {} with tokens, and its page shows no tier", engine.id);
    served.map(|(engine, number)| facts.notice(&SERVED_BY_NO_TIER, text(engine)).with(tokens(number))).collect()
}

fn tokens(number: f64) -> String {
    let were = if number == 1.0 { "was" } else { "were" };
    format!("{} {were} supplied", counted(number, "token"))
}

/// Nothing of it is known but perhaps its size.
fn is_silent(tier: &Tier) -> bool {
    let moved = tier.transfers;
    let is_counted = moved.stored_bytes.is_some() || moved.stores_unreadable || moved.reloaded_bytes.is_some();
    tier.name == "ram" && tier.medium == Medium::Ram && tier.residency.is_none() && !is_counted
}

/// Tokens that came from a tier, if any. Those of another engine (`peer`) came from none.
fn supplied(engine: &Engine) -> Option<f64> {
    let by_tier = engine.served_tokens.iter().filter(|(source, _)| *source != "peer").map(|(_, tokens)| tokens.value);
    by_tier.reduce(|all, tokens| all + tokens).filter(|tokens| *tokens > 0.0)
}

/// What Docker and Kubernetes give a container that asks for nothing.
const CONTAINER_DEFAULT: u64 = 64 << 20;

/// Tiers that lie in shared memory against the mount that is looked at: one that runs is laid out in full, so it cannot be larger
/// than its mount. Where a live tier file lies on it that may be one of theirs, it is the engine's.
fn wrong_mount(facts: &Facts<'_>) -> Vec<Notice> {
    let Some(shm) = facts.host.shm.as_ref() else {
        return Vec::new();
    };
    let ram: Vec<_> = tiers(facts).filter(|(_, tier)| tier.tier.bounded_by_stores && tier.tier.name == "ram").collect();
    if facts.host.live_tier_files.iter().any(|file| ram.iter().any(|(_, tier)| may_be_of(file, tier))) {
        return Vec::new();
    }
    let may_lie_there = ram.iter().any(|(_, tier)| tier.tier.lies_in_shm != Some(false));
    let lies_there = ram.iter().any(|(_, tier)| tier.tier.lies_in_shm == Some(true));
    let bytes: f64 = ram.iter().filter_map(|(_, tier)| tier.size).map(|size| size.fact.value).sum();
    let SharedMemory { path, size: total, is_tmpfs } = shm;
    let path = path.display();
    let detail = match total {
        // Nobody but a container that asked for nothing has so little, so it tells also where the version does not.
        Some(total) if may_lie_there && (*total as f64) < bytes && (lies_there || *total <= CONTAINER_DEFAULT) => {
            format!("the RAM tier takes {}; {path} has {} in all", size(bytes), size(*total as f64))
        }
        _ if lies_there && !is_tmpfs => format!("the RAM tier lies in shared memory; {path} is no tmpfs"),
        _ => return Vec::new(),
    };
    vec![facts.notice(&SHM_WRONG_MOUNT, detail)]
}

/// Whether a file may be a tier's by its size. The engine rounds what was asked for down to whole slots, at least one, so the file
/// has more than half of it; beyond it there are only the ends of pages. The operator's word may be wrong, so no file is held against it.
fn may_be_of(file: &LiveTierFile, tier: &ResolvedTier<'_>) -> bool {
    let Some(size) = tier.size.filter(|size| size.source != SizeSource::Flag) else {
        return true;
    };
    (0.5..=1.01).contains(&(file.bytes as f64 / size.fact.value))
}

fn tiers<'a>(facts: &'a Facts<'a>) -> impl Iterator<Item = (&'a Resolved<'a>, &'a ResolvedTier<'a>)> {
    facts.engines.iter().flat_map(|engine| engine.tiers.iter().map(move |tier| (engine, tier)))
}
