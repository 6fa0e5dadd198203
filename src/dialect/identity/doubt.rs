//! Samples that cannot be told apart, or that contradict each other: nobody knows which of them holds, so none is read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::find::Several;
use super::{Declared, Kind, Repeats, Whose};
use crate::exposition::{Exposition, Labels, Sample};
use crate::model::{Cause, Engine, Owner, Snapshot};
use crate::notice::kinds::{FACTS_CONTRADICT, IDENTITY_UNCERTAIN};

/// Takes note of the families of each engine whose samples are in doubt.
pub(super) fn doubt(page: &Exposition<'_>, kind: Kind, snapshot: &mut Snapshot) {
    if !snapshot.told_by.contains_key(kind.name()) {
        return;
    }
    let names: BTreeSet<&'static str> = kind.dialects().flat_map(|dialect| dialect.reads).copied().collect();
    for family in names {
        let whose = Whose::of(snapshot, kind, family);
        if matches!(whose.declared, Declared::These(_)) {
            doubt_family(page.samples(family), &whose, snapshot);
        }
    }
}

fn doubt_family(samples: &[Sample<'_>], whose: &Whose, snapshot: &mut Snapshot) {
    let mut known: HashMap<usize, Vec<(&str, Cow<'_, str>)>> = HashMap::new();
    for labels in samples.iter().map(|sample| sample.labels) {
        let named = whose.named(labels);
        match named.owner(snapshot) {
            Owner::One(at) => {
                let rest = whose.rest(labels);
                let first = known.entry(at).or_insert_with(|| rest.clone());
                let differing = first.iter().find(|one| !rest.contains(one));
                let label = differing.or_else(|| rest.iter().find(|one| !first.contains(one)));
                if let Some((label, _)) = label {
                    snapshot.engines[at].doubt(whose.family, Cause::Label((*label).to_owned()));
                }
            }
            Owner::Several => {
                for engine in snapshot.engines.iter_mut().filter(|engine| named.fits(engine)) {
                    engine.doubt(whose.family, Cause::Shared);
                }
            }
            Owner::Nobody => {}
        }
    }
}

/// Takes note of what contradicts itself on a page, which is the one at this place: a series that has several values, and
/// descriptions of one engine. The families are those with several samples.
pub(super) fn contradictions(page: &Exposition<'_>, at: usize, families: &[Several], snapshot: &mut Snapshot) {
    let described = families.iter().filter_map(|family| match family.declared {
        Declared::Facts(read) => Some((family.name, read)),
        Declared::These(_) | Declared::OfNoEngine => None,
    });
    for (family, read) in described {
        let owners = &snapshot.pages.owners[at][page.places(family)];
        for (engine, label) in several_descriptions(page.samples(family), owners, read) {
            snapshot.engines[engine].doubt(family, Cause::Described(label));
        }
    }
    for (family, otherwise) in several_values(page, families) {
        for place in otherwise {
            let owner = snapshot.pages.owners[at][page.places(family)][place];
            if let Some(engine) = owner.one() {
                snapshot.engines[engine].doubt(family, Cause::Repeated);
            }
        }
    }
}

/// The samples of each family that say something else than the first of their series. Families whose labels are all known
/// from families before have no series twice, unless one before them had.
fn several_values(page: &Exposition<'_>, families: &[Several]) -> Vec<(&'static str, Vec<usize>)> {
    let repeats = |family: &Several| (family.name, Repeats::of(page.samples(family.name)));
    let read = || families.iter().filter(|family| matches!(family.declared, Declared::These(_)));
    let of_new: Vec<_> = read().filter(|family| family.is_new).map(repeats).collect();
    if of_new.iter().all(|(_, repeats)| repeats.is_empty()) {
        return Vec::new();
    }
    let of_known = read().filter(|family| !family.is_new).map(repeats);
    of_new.into_iter().chain(of_known).map(|(family, repeats)| (family, repeats.otherwise)).collect()
}

fn several_descriptions(
    samples: &[Sample<'_>],
    owners: &[Owner],
    read: &'static [&'static str],
) -> Vec<(usize, &'static str)> {
    let mut engines: BTreeMap<usize, Vec<Labels<'_>>> = BTreeMap::new();
    for (sample, owner) in samples.iter().zip(owners) {
        if let Some(engine) = owner.one() {
            engines.entry(engine).or_default().push(sample.labels);
        }
    }
    let described = engines.iter().filter(|(_, descriptions)| descriptions.len() > 1);
    let differs = |(engine, descriptions): (&usize, &Vec<Labels<'_>>)| {
        let labels = read.iter().filter(|label| differ(descriptions, label));
        labels.map(|label| (*engine, *label)).collect::<Vec<_>>()
    };
    described.flat_map(differs).collect()
}

/// Whether descriptions have different values of a label. An empty one and Python's `None` say nothing.
fn differ(descriptions: &[Labels<'_>], label: &str) -> bool {
    let mut said =
        descriptions.iter().filter_map(|labels| labels.raw(label)).filter(|raw| !matches!(*raw, "" | "None"));
    let Some(first) = said.next() else { return false };
    let number = |raw: &str| raw.parse::<f64>().ok();
    said.any(|raw| raw != first && (number(raw).is_none() || number(raw) != number(first)))
}

/// Says in words what is in doubt: once for each engine and cause.
pub(in crate::dialect) fn tell(snapshot: &mut Snapshot) {
    let in_doubt = snapshot.engines.iter().filter(|engine| !engine.doubts.is_empty());
    let told: Vec<_> = in_doubt.flat_map(told).collect();
    told.into_iter().for_each(|(kind, text)| snapshot.note(kind, text));
}

fn told(engine: &Engine) -> Vec<(&'static crate::notice::Kind, String)> {
    let mut causes: BTreeMap<(&Cause, &str), Vec<&str>> = BTreeMap::new();
    for doubt in &engine.doubts {
        match &doubt.cause {
            // Of a description it is the labels that are listed.
            Cause::Described(label) => causes.entry((&Cause::Described(""), doubt.family)).or_default().push(label),
            cause => causes.entry((cause, "")).or_default().push(doubt.family),
        }
    }
    let id = &engine.id;
    let text = |((cause, family), names): ((&Cause, &str), Vec<&str>)| {
        let (listed, have) = (listed(&names), if names.len() == 1 { "has" } else { "have" });
        match cause {
            Cause::Label(label) => (
                &IDENTITY_UNCERTAIN,
                format!(
                    "of engine {id}: {listed} {have} several series for it, and label {label:?} tells them apart; none of them is read"
                ),
            ),
            Cause::Shared => (
                &IDENTITY_UNCERTAIN,
                format!(
                    "of engine {id}: {listed} {have} series whose labels are those of other engines too; none of them is read"
                ),
            ),
            Cause::Repeated => (
                &FACTS_CONTRADICT,
                format!(
                    "of engine {id}: {listed} {have} one series several times, with different values; none of them is read"
                ),
            ),
            Cause::Described(_) => (
                &FACTS_CONTRADICT,
                format!(
                    "of engine {id}: {family} describes it several times, with different values of {listed}; none of them is read"
                ),
            ),
        }
    };
    causes.into_iter().map(text).collect()
}

/// How many names are listed.
const LISTED: usize = 5;

/// `a`, `a and b`, `a, b and c`; of many some, and how many more there are.
fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let mut parts: Vec<String> = names.iter().take(LISTED).map(|name| (*name).to_owned()).collect();
    parts.extend((more > 0).then(|| format!("{more} more")));
    match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_as_people_do() {
        assert_eq!(listed(&["a"]), "a");
        assert_eq!(listed(&["a", "b"]), "a and b");
        assert_eq!(listed(&["a", "b", "c", "d", "e"]), "a, b, c, d and e");
        assert_eq!(listed(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
    }
}
