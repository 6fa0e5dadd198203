//! Samples that cannot be told apart, or that contradict each other: nobody knows which of them holds, so none is read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

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

/// Takes note of descriptions of one engine that differ on a page, which is the one at this place. The families have several
/// samples each.
pub(super) fn described(
    page: &Exposition<'_>,
    at: usize,
    families: &[(&'static str, &'static [&'static str])],
    snapshot: &mut Snapshot,
) {
    for (family, read) in families {
        let owners = &snapshot.pages.owners[at][page.places(family)];
        let owned =
            owners.iter().zip(page.samples(family)).filter_map(|(owner, sample)| Some((owner.one()?, sample.labels)));
        let mut descriptions: Vec<(usize, Labels<'_>)> = owned.collect();
        descriptions.sort_by_key(|(engine, _)| *engine);
        for of_one in descriptions.chunk_by(|(one, _), (next, _)| one == next).filter(|of_one| of_one.len() > 1) {
            for label in read.iter().filter(|label| differ(of_one, label)) {
                snapshot.engines[of_one[0].0].doubt(family, Cause::Described(label));
            }
        }
    }
}

/// Takes note of series that have several values on a page, which is the one at this place. `new` are the families of which it is
/// not known that they have no series twice; where those have none, no other has.
pub(super) fn repeated(page: &Exposition<'_>, at: usize, kind: Kind, new: &[&'static str], snapshot: &mut Snapshot) {
    if new.iter().all(|family| Repeats::of(page.samples(family)).is_empty()) {
        return;
    }
    let families =
        kind.dialects().flat_map(|dialect| dialect.reads.iter().map(move |family| (*family, dialect.declares(family))));
    for (family, _) in families.filter(|(_, declared)| matches!(declared, Declared::These(_))) {
        for place in Repeats::of(page.samples(family)).otherwise {
            if let Some(engine) = snapshot.pages.owners[at][page.places(family)][place].one() {
                snapshot.engines[engine].doubt(family, Cause::Repeated);
            }
        }
    }
}

/// Whether descriptions have different values of a label. An empty one and Python's `None` say nothing.
fn differ(descriptions: &[(usize, Labels<'_>)], label: &str) -> bool {
    let mut said =
        descriptions.iter().filter_map(|(_, labels)| labels.raw(label)).filter(|raw| !matches!(*raw, "" | "None"));
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
