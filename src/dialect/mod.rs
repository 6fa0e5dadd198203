//! One file an engine or connector: the names it spells, read into the model.
//!
//! A [`Dialect`] is a row in [`DIALECTS`]: the names that it reads (exact names, never prefixes, so that a
//! `_created` series is never taken for a value) and a function that turns those samples into facts. Dialects
//! run in the order of the table over one shared [`Snapshot`], so a connector adds to the engines that its
//! engine's dialect has found.
//!
//! # To add an engine or a connector
//!
//! One file, one line, one fixture; nothing right of the model changes. On `vllm_simple`, the smallest:
//!
//! 1. Capture a page before and after the first traffic, and of each version whose names differ. Put each into
//!    `tests/fixtures/<dialect>-<version>-<situation>/` as `page.prom`, with an `about.md` that says how it was taken.
//! 2. Write `src/dialect/<dialect>.rs`. Its head says what the families really mean and which are left out, and why:
//!    there, that `used_blocks` counts pinned blocks, so that no fill follows.
//! 3. Name each family once as a constant (`INFO`), and list them all in `DIALECT.reads`: what is not listed is
//!    never seen. List in `identity` those that every engine shows, and in `declared` the labels that say what a sample
//!    is of: any other label tells engines apart, or makes its samples doubtful.
//! 4. Write `read`. Find the engine of each sample (`facts` does for vLLM's, `Whose` for any), find or make the tier
//!    (`tier_or_insert`), and set its fields. Return whether anything was recognised. A field stays `None` until something is known: state a 0 only where its absence proves it.
//! 5. Add the `mod` line and its `DIALECT` to [`DIALECTS`], behind the engine whose engines it adds to.
//! 6. Write one test for each rule that is easy to get wrong, with values worked out by hand, and add the dialect to
//!    the README's table of what is exact, bounded, measured or unknown.

mod identity;
mod lmcache;
mod lmcache_mp;
pub mod lmcache_tokens;
pub mod serving;
mod sglang;
mod vllm;
mod vllm_groups;
mod vllm_offload;
mod vllm_simple;
mod vllm_tiering;

use std::sync::LazyLock;

use identity::{Declared, Kind, Whose};

use crate::exposition::{Exposition, Labels, Names, Sample};
use crate::model::{Engine, Fact, Owner, Pages, Snapshot};

pub use vllm_offload::{CONNECTOR as OFFLOADING, USAGE as RAM_USAGE};

/// What one engine or connector says, and how to read it.
#[derive(Clone, Copy)]
pub struct Dialect {
    /// Name for people, and in `kvtier_upstream_info`.
    pub name: &'static str,
    /// Every name it reads: of samples, and of families where a TYPE line alone says something.
    pub reads: &'static [&'static str],
    /// Whose engines these families tell of.
    pub kind: Kind,
    /// Those of them that every engine shows: their labels tell engines apart. See the module `identity`.
    pub identity: &'static [&'static str],
    /// Labels of those of them that have some, and what tells no engines apart.
    pub declared: &'static [(&'static str, Declared)],
    /// Reads the page into the snapshot; returns whether it recognised anything.
    pub read: fn(&Exposition<'_>, &mut Snapshot) -> bool,
}

/// All dialects, engines before their connectors.
pub const DIALECTS: &[Dialect] = &[
    vllm::DIALECT,
    vllm_offload::DIALECT,
    vllm_tiering::DIALECT,
    vllm_simple::DIALECT,
    sglang::DIALECT,
    lmcache::DIALECT,
    lmcache_mp::DIALECT,
];

/// Every name that some dialect reads.
pub static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(DIALECTS.iter().flat_map(|d| d.reads.iter().copied())));

/// Reads the pages of one scrape with all dialects. An engine's page comes before those of its connectors, so that
/// they find it.
pub fn read(pages: &[Exposition<'_>]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    identity::discover(pages, &mut snapshot);
    identity::place(pages, &mut snapshot);
    for dialect in DIALECTS {
        let mut recognised = false;
        for (at, page) in pages.iter().enumerate() {
            snapshot.pages.current = at;
            recognised |= (dialect.read)(page, &mut snapshot);
        }
        if recognised {
            snapshot.dialects.push(dialect.name);
        }
    }
    identity::tell(&mut snapshot);
    snapshot.pages = Pages::default();
    snapshot
}

/// Finds the engines of a family's samples.
pub fn owner<'s>(snapshot: &'s Snapshot, family: &'static str) -> impl Fn(Labels<'_>) -> Owner + 's {
    let kind =
        DIALECTS.iter().find(|dialect| dialect.reads.contains(&family)).map_or(Kind::Vllm, |dialect| dialect.kind);
    let whose = Whose::of(snapshot, kind, family);
    move |labels| whose.owner(snapshot, labels)
}

/// The samples of a family with their places on the page, by which [`Pages::owner`] tells whose they are.
fn placed<'p, 'a>(page: &'p Exposition<'a>, name: &str) -> impl Iterator<Item = (usize, &'p Sample<'a>)> {
    page.places(name).zip(page.samples(name))
}

/// Whether a value can be a fact: everything that is read here is counted or measured from 0 upwards.
fn says_something(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// The engines that have a sample of this family whose value says nothing, or that is in doubt: what it counts is unknown
/// for them, and must not be taken for 0. `mark` gets each of them.
fn unreadable(
    page: &Exposition<'_>,
    snapshot: &mut Snapshot,
    name: &'static str,
    mut mark: impl FnMut(&mut Engine, Labels<'_>),
) {
    for (place, sample) in placed(page, name) {
        match snapshot.pages.owner(place) {
            Owner::One(at) if !says_something(sample.value) || snapshot.engines[at].doubts(name) => {
                mark(&mut snapshot.engines[at], sample.labels);
            }
            Owner::Several => {
                let whose = Whose::of(snapshot, Kind::Vllm, name);
                whose.fitting(snapshot, sample.labels).for_each(|engine| mark(engine, sample.labels));
            }
            Owner::One(_) | Owner::Nobody => {}
        }
    }
}

/// Calls `set` for each sample of a family of vLLM whose engine is certain, with that engine. A value that says nothing is
/// passed over.
fn facts(
    page: &Exposition<'_>,
    snapshot: &mut Snapshot,
    name: &'static str,
    set: impl FnMut(&mut Engine, Labels<'_>, Fact),
) {
    facts_where(page, snapshot, name, says_something, set);
}

/// The same for a share of a whole. One below 0, or without end, is read too: like one above 1 it is told to be none where it is
/// used.
fn shares(
    page: &Exposition<'_>,
    snapshot: &mut Snapshot,
    name: &'static str,
    set: impl FnMut(&mut Engine, Labels<'_>, Fact),
) {
    facts_where(page, snapshot, name, |value| !value.is_nan(), set);
}

fn facts_where(
    page: &Exposition<'_>,
    snapshot: &mut Snapshot,
    name: &'static str,
    is_fact: fn(f64) -> bool,
    mut set: impl FnMut(&mut Engine, Labels<'_>, Fact),
) {
    for (place, sample) in placed(page, name).filter(|(_, sample)| is_fact(sample.value)) {
        if let Owner::One(at) = snapshot.pages.owner(place)
            && !snapshot.engines[at].doubts(name)
        {
            set(&mut snapshot.engines[at], sample.labels, Fact::new(sample.value, name));
        }
    }
}

/// Labels of a description of an engine as they are written. One of which others say something else is not read.
fn described<'a, const N: usize>(
    engine: &Engine,
    family: &str,
    labels: Labels<'a>,
    names: [&str; N],
) -> [Option<&'a str>; N] {
    let mut values = labels.raws(names);
    for (value, name) in values.iter_mut().zip(names) {
        *value = value.filter(|_| !engine.doubts_label(family, name));
    }
    values
}

/// Keeps the first value read: of two samples of one series the first counts.
fn first(slot: &mut Option<Fact>, fact: Fact) {
    slot.get_or_insert(fact);
}

/// Adds up what several ranks or processes each have of their own.
fn add(slot: &mut Option<Fact>, fact: Fact) {
    match slot {
        Some(known) => known.value += fact.value,
        None => *slot = Some(fact),
    }
}

/// Keeps the largest value read.
fn largest(slot: &mut Option<Fact>, fact: Fact) {
    if slot.is_none_or(|known| known.value < fact.value) {
        *slot = Some(fact);
    }
}

/// Reads one gauge that several processes may report, told apart by `pid`: most of those are stale and low, so the
/// largest counts. Without a `pid` it is one series, and of its duplicates the first counts.
fn of_processes(slot: &mut Option<Fact>, labels: Labels<'_>, fact: Fact) {
    if labels.raw("pid").is_some() { largest(slot, fact) } else { first(slot, fact) }
}

/// The number that a label holds. Python writes `None` and an empty text for what it does not know.
fn as_number(raw: Option<&str>) -> Option<f64> {
    raw?.parse::<f64>().ok().filter(|value| value.is_finite() && *value > 0.0)
}
