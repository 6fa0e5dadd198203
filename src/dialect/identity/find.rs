//! The labels that tell engines of a page apart, and its engines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::doubt::doubt;
use super::{Declared, Kind, Named, Owner, WORKER, Whose, names_its_replica};
use crate::dialect::{DIALECTS, Dialect};
use crate::exposition::{Exposition, Labels};
use crate::model::{Engine, EngineId, Snapshot};

/// Notes which labels tell the engines of each kind apart on these pages. A kind whose pages have no label that needs a
/// second look gets no entry.
pub(in crate::dialect) fn discover(pages: &[Exposition<'_>], snapshot: &mut Snapshot) {
    let mut all: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
    let mut texts = Texts::default();
    for (at, dialect) in DIALECTS.iter().enumerate() {
        if at > 0 && DIALECTS[at - 1].kind != dialect.kind {
            texts = Texts::default();
        }
        for name in dialect.reads {
            for page in pages {
                let samples = page.samples(name);
                if samples.is_empty() {
                    continue;
                }
                let declared = dialect.declares(name);
                if !matches!(declared, Declared::These(_)) {
                    continue;
                }
                for labels in samples.iter().map(|sample| sample.labels) {
                    if texts.have(labels) {
                        continue;
                    }
                    if !odd(dialect, name, declared, labels, &mut all) && declared == Declared::These(&[]) {
                        texts.add(labels);
                    }
                }
            }
        }
    }
    snapshot.told_by = Arc::new(all.into_iter().map(|(kind, names)| (kind, names.into_iter().collect())).collect());
}

/// Whether a sample has labels that need a second look, which are added.
fn odd(
    dialect: &Dialect,
    family: &str,
    declared: Declared,
    labels: Labels<'_>,
    all: &mut BTreeMap<&'static str, BTreeSet<String>>,
) -> bool {
    let mut is_odd = false;
    let unknown = |(label, value): &(&str, &str)| !value.is_empty() && !dialect.kind.knows(declared, label);
    for (label, _) in labels.iter().filter(unknown) {
        is_odd = true;
        let names = all.entry(dialect.kind.name()).or_default();
        let tells = dialect.identity.contains(&family) && !(label == WORKER && names_its_replica(labels));
        if tells && !names.contains(label) {
            names.insert(label.to_owned());
        }
    }
    is_odd
}

/// Finds the engines of one kind on a page, and what is in doubt. Returns whether the page names any engine.
pub(in crate::dialect) fn find_engines(page: &Exposition<'_>, kind: Kind, snapshot: &mut Snapshot) -> bool {
    if !snapshot.told_by.contains_key(kind.name()) {
        return find_plain(page, kind, snapshot);
    }
    let found = find_labelled(page, kind, snapshot);
    doubt(page, kind, snapshot);
    found
}

/// The engines of a page that tells them by model and `engine` alone: mostly each of them has one text of labels in nearly
/// all families.
fn find_plain(page: &Exposition<'_>, kind: Kind, snapshot: &mut Snapshot) -> bool {
    let (mut found, mut partial, mut texts) = (false, Vec::new(), Texts::default());
    for (dialect, name) in kind.dialects().flat_map(|dialect| dialect.reads.iter().map(move |name| (dialect, *name))) {
        let samples = page.samples(name);
        if samples.is_empty() || dialect.declares(name) == Declared::OfNoEngine {
            continue;
        }
        let whose = Whose::of(snapshot, kind, name);
        for labels in samples.iter().map(|sample| sample.labels) {
            if texts.have(labels) {
                continue;
            }
            let named = whose.named(labels);
            if named.is_full() {
                found = true;
                texts.add(labels);
                named.add_unless(Named::is_known, snapshot);
            } else {
                found |= dialect.declares(name) == Declared::Facts;
                partial.push(named);
            }
        }
    }
    for named in partial.iter().filter(|named| named.may_be_new()) {
        named.add_unless(Named::fits_any, snapshot);
    }
    found
}

/// The same where further labels tell engines apart. A family that every engine shows has its whole identity, so these go
/// first; of the others those that name an engine in full go before those that can only be joined.
fn find_labelled(page: &Exposition<'_>, kind: Kind, snapshot: &mut Snapshot) -> bool {
    let (mut found, mut partial) = (false, Vec::new());
    for name in kind.dialects().flat_map(|dialect| dialect.identity) {
        let whose = Whose::of(snapshot, kind, name);
        for named in page.samples(name).iter().map(|sample| whose.named(sample.labels)).filter(Named::is_full) {
            found = true;
            named.add_unless(Named::is_known, snapshot);
        }
    }
    join_the_partial(page, kind, snapshot);
    for name in kind.dialects().flat_map(|dialect| dialect.reads) {
        let whose = Whose::of(snapshot, kind, name);
        if whose.declared == Declared::OfNoEngine {
            continue;
        }
        for named in page.samples(name).iter().map(|sample| whose.named(sample.labels)) {
            if named.is_full() {
                found = true;
                named.add_unless(Named::fits_any, snapshot);
            } else {
                found |= whose.declared == Declared::Facts;
                partial.push(named);
            }
        }
    }
    for named in partial.iter().filter(|named| named.may_be_new()) {
        named.add_unless(Named::fits_any, snapshot);
    }
    found
}

impl Named<'_> {
    /// Adds the engine of these labels, unless it `is_there`.
    fn add_unless(&self, is_there: fn(&Self, &Snapshot) -> bool, snapshot: &mut Snapshot) {
        if !is_there(self, snapshot) {
            snapshot.engine_or_insert(self.id()).kind = Some(self.kind.name());
        }
    }

    /// Whether any engine has all of these labels.
    fn fits_any(&self, snapshot: &Snapshot) -> bool {
        self.owner(snapshot) != Owner::Nobody
    }
}

/// Texts of labels that were looked at. Those of one family are mostly those of the one before, in the same order.
#[derive(Default)]
struct Texts<'a> {
    all: Vec<Labels<'a>>,
    /// Where the next one is to be expected.
    next: usize,
}

impl<'a> Texts<'a> {
    /// As many as are looked through where the expectation fails.
    const FEW: usize = 8;
    /// As many as are kept: a page could have any number.
    const MOST: usize = 1024;

    /// Whether the text was added. It may not be noticed that it was.
    fn have(&mut self, labels: Labels<'a>) -> bool {
        let expected = (self.all.get(self.next) == Some(&labels)).then_some(self.next);
        let found = expected.or_else(|| self.all.iter().take(Self::FEW).position(|text| *text == labels));
        self.next = found.map_or(self.next, |at| at + 1);
        found.is_some()
    }

    fn add(&mut self, labels: Labels<'a>) {
        if self.all.len() < Self::MOST {
            self.all.push(labels);
            self.next = self.all.len();
        }
    }
}

/// Takes out the engines that are others with fewer labels: a family that lacks a label says nothing of whom it means. One
/// is an engine of its own where a family has it beside the other.
fn join_the_partial(page: &Exposition<'_>, kind: Kind, snapshot: &mut Snapshot) {
    let of_kind = |engine: &&Engine| engine.kind == Some(kind.name());
    let most = snapshot.engines.iter().filter(of_kind).map(|engine| engine.id.labels.len()).max().unwrap_or_default();
    let is_part = |id: &EngineId, of: &EngineId| {
        let same = (&id.model_name, &id.engine) == (&of.model_name, &of.engine);
        same && id.labels.len() < of.labels.len() && of.has(&id.labels)
    };
    let ids: Vec<&EngineId> = snapshot.engines.iter().filter(of_kind).map(|engine| &engine.id).collect();
    let parts = ids.iter().filter(|id| id.labels.len() < most && ids.iter().any(|other| is_part(id, other)));
    let mut parts: BTreeSet<EngineId> = parts.map(|id| (*id).clone()).collect();
    if parts.is_empty() {
        return;
    }
    for name in kind.dialects().flat_map(|dialect| dialect.identity) {
        let whose = Whose::of(snapshot, kind, name);
        let ids: BTreeSet<EngineId> = page.samples(name).iter().map(|sample| whose.named(sample.labels).id()).collect();
        parts.retain(|part| !ids.contains(part) || !ids.iter().any(|other| is_part(part, other)));
    }
    snapshot.engines.retain(|engine| !parts.contains(&engine.id));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_several_dialects_read_is_declared_alike() {
        for dialect in DIALECTS {
            for name in dialect.reads {
                let others = dialect.kind.dialects().filter(|other| other.reads.contains(name));
                others.for_each(|other| assert_eq!(dialect.declares(name), other.declares(name), "{name}"));
            }
            let read = |name: &&str| dialect.reads.contains(name);
            assert!(dialect.identity.iter().all(|name| read(name)), "{}", dialect.name);
            assert!(dialect.declared.iter().all(|(name, _)| read(name)), "{}", dialect.name);
        }
    }
}
