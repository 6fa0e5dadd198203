//! The labels that tell engines of a page apart, and its engines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::doubt::{described, doubt, repeated};
use super::{Declared, Kind, Named, Whose, is_transport};
use crate::dialect::{DIALECTS, Dialect};
use crate::exposition::{Exposition, Labels};
use crate::model::{Engine, EngineId, Owner, Snapshot};

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
                    if texts.find(labels).is_some() {
                        continue;
                    }
                    if !odd(dialect, name, declared, labels, &mut all) && declared == Declared::These(&[]) {
                        texts.add(labels, ());
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
        let tells = dialect.identity.contains(&family) && !is_transport(label, labels);
        if tells && !names.contains(label) {
            names.insert(label.to_owned());
        }
    }
    is_odd
}

/// The kinds whose engines are found by their samples. A cache beside them joins what they found.
const ENGINES: [Kind; 2] = [Kind::Vllm, Kind::Sglang];

/// Finds the engines of all pages, whose the samples are, and what is in doubt.
pub(in crate::dialect) fn place(pages: &[Exposition<'_>], snapshot: &mut Snapshot) {
    snapshot.pages.owners = pages.iter().map(|page| vec![Owner::Nobody; page.wanted()]).collect();
    let named = ENGINES.map(|kind| (kind, pages.iter().map(|page| Said::on(page, kind, snapshot)).collect::<Vec<_>>()));
    for (kind, said) in &named {
        find_engines(pages, *kind, said, snapshot);
    }
    for (_, said) in &named {
        for (at, said) in said.iter().enumerate() {
            let owners: Vec<Owner> = said.all.iter().map(|one| one.named.owner(snapshot)).collect();
            for (place, one) in &said.places {
                snapshot.pages.owners[at][*place] = owners[*one];
            }
        }
    }
    for (kind, said) in &named {
        for (at, (page, said)) in pages.iter().zip(said).enumerate() {
            doubt(page, *kind, snapshot);
            described(page, at, &said.described, snapshot);
            repeated(page, at, *kind, &said.new, snapshot);
        }
    }
}

/// What the samples of a page say of the engines of a kind. On a page straight from them mostly all samples of an engine
/// say the same, in the same text.
struct Said<'a> {
    all: Vec<One<'a>>,
    /// Places of samples with what they say.
    places: Vec<(usize, usize)>,
    /// Families with several samples whose labels are not all known, in their order, from one family before. Only of the texts
    /// of one family it is known that they differ: those of two may be the same, which may not be noticed.
    new: Vec<&'static str>,
    /// Descriptions of engines with several samples, and what is read of them.
    described: Vec<(&'static str, &'static [&'static str])>,
}

/// What one or more samples say.
struct One<'a> {
    named: Named<'a>,
    /// A family that every engine shows says it, so it is a whole identity.
    is_whole: bool,
    /// A description of the engine says it.
    is_fact: bool,
    /// Which family said it first.
    first: usize,
}

impl<'a> Said<'a> {
    fn on(page: &Exposition<'a>, kind: Kind, snapshot: &Snapshot) -> Said<'a> {
        let mut said = Said { all: Vec::new(), places: Vec::new(), new: Vec::new(), described: Vec::new() };
        let is_plain = !snapshot.told_by.contains_key(kind.name());
        let mut texts = Texts::default();
        let families = kind.dialects().flat_map(|dialect| dialect.reads.iter().map(move |name| (dialect, *name)));
        for (family, (dialect, name)) in families.enumerate() {
            let places = page.places(name);
            let declared = dialect.declares(name);
            if places.is_empty() || declared == Declared::OfNoEngine {
                continue;
            }
            let whose = Whose::of(snapshot, kind, name);
            let is_whole = dialect.identity.contains(&name);
            let is_fact = matches!(declared, Declared::Facts(_));
            let (has_several, mut is_new, mut last) = (places.len() > 1, false, None);
            for (place, labels) in places.zip(page.samples(name).iter().map(|sample| sample.labels)) {
                let known: Option<usize> = if is_plain { texts.find(labels) } else { None };
                let told_apart = known.is_some_and(|one| {
                    last.is_none_or(|last: usize| last < one && said.all[last].first == said.all[one].first)
                });
                (is_new, last) = (is_new || !told_apart, known);
                let one = known.unwrap_or_else(|| {
                    let named = whose.named(labels);
                    if is_plain && named.is_full() {
                        texts.add(labels, said.all.len());
                    }
                    said.all.push(One { named, is_whole: false, is_fact, first: family });
                    said.all.len() - 1
                });
                said.all[one].is_whole |= is_whole;
                said.places.push((place, one));
            }
            match declared {
                Declared::Facts(read) if has_several => said.described.push((name, read)),
                Declared::These(_) if has_several && is_new => said.new.push(name),
                _ => {}
            }
        }
        said
    }
}

/// A family that every engine shows has its whole identity, so these go first; of the others those that name an engine in
/// full go before those that can only be joined.
fn find_engines(pages: &[Exposition<'_>], kind: Kind, said: &[Said<'_>], snapshot: &mut Snapshot) {
    let all = || said.iter().flat_map(|said| &said.all);
    for one in all().filter(|one| one.is_whole && one.named.is_full()) {
        one.named.add_unless(Named::is_known, snapshot);
    }
    join_the_partial(pages, kind, snapshot);
    for one in all().filter(|one| one.named.is_full()) {
        one.named.add_unless(Named::fits_any, snapshot);
    }
    for one in all().filter(|one| !one.named.is_full() && one.named.may_be_new()) {
        one.named.add_unless(Named::fits_any, snapshot);
    }
    for (at, said) in said.iter().enumerate() {
        if said.all.iter().any(|one| one.named.is_full() || one.is_fact) {
            snapshot.pages.found.push((at, kind.name()));
        }
    }
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

/// Texts of labels with what is known of them. Those of one family are mostly those of the one before, in the same order.
struct Texts<'a, T> {
    all: Vec<(Labels<'a>, T)>,
    /// Where the next one is to be expected.
    next: usize,
}

impl<T> Default for Texts<'_, T> {
    fn default() -> Self {
        Texts { all: Vec::new(), next: 0 }
    }
}

impl<'a, T: Copy> Texts<'a, T> {
    /// As many as are looked through where the expectation fails.
    const FEW: usize = 8;
    /// As many as are kept: a page could have any number.
    const MOST: usize = 1024;

    /// What is known of a text. It may not be noticed that it was added.
    fn find(&mut self, labels: Labels<'a>) -> Option<T> {
        let is_it = |at: &usize| self.all.get(*at).is_some_and(|(text, _)| *text == labels);
        let at = Some(self.next).filter(is_it).or_else(|| (0..Self::FEW).find(is_it))?;
        self.next = at + 1;
        Some(self.all[at].1)
    }

    fn add(&mut self, labels: Labels<'a>, known: T) {
        if self.all.len() < Self::MOST {
            self.all.push((labels, known));
            self.next = self.all.len();
        }
    }
}

/// Takes out the engines that are others with fewer labels: a family that lacks a label says nothing of whom it means. One
/// is an engine of its own where a family has it beside the other.
fn join_the_partial(pages: &[Exposition<'_>], kind: Kind, snapshot: &mut Snapshot) {
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
        let ids: BTreeSet<EngineId> =
            pages.iter().flat_map(|page| page.samples(name)).map(|sample| whose.named(sample.labels).id()).collect();
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
            assert!(dialect.identity.iter().all(read), "{}", dialect.name);
            assert!(dialect.declared.iter().all(|(name, _)| read(name)), "{}", dialect.name);
        }
    }
}
