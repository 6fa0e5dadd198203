//! Samples that cannot be told apart: nobody knows which of them is meant, so none of them is read.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use super::{Declared, Kind, Whose};
use crate::exposition::{Exposition, Sample};
use crate::model::{Doubt, Note, Owner, Snapshot};
use crate::notice::kinds::IDENTITY_UNCERTAIN;

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
                    snapshot.engines[at].doubt(Doubt { family: whose.family, label: Some((*label).to_owned()) });
                }
            }
            Owner::Several => {
                for engine in snapshot.engines.iter_mut().filter(|engine| named.fits(engine)) {
                    engine.doubt(Doubt { family: whose.family, label: None });
                }
            }
            Owner::Nobody => {}
        }
    }
}

/// How many doubts are told in words.
const TOLD: usize = 20;

/// Says in words what is in doubt.
pub(in crate::dialect) fn tell(snapshot: &mut Snapshot) {
    let Snapshot { engines, notes, .. } = snapshot;
    let mut doubts = engines.iter().flat_map(|engine| engine.doubts.iter().map(move |doubt| (&engine.id, doubt)));
    let told = doubts.by_ref().take(TOLD).map(|(id, doubt)| format!("of engine {id}: {doubt}; none of them is read"));
    notes.extend(told.map(|text| Note { kind: &IDENTITY_UNCERTAIN, text }));
    let more = doubts.count();
    if more > 0 {
        let text = format!("{more} more families of engines whose series cannot be told apart");
        notes.push(Note { kind: &IDENTITY_UNCERTAIN, text });
    }
}
