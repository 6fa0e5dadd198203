//! Whose a sample is: the labels that tell engines of a page apart, and the engine that a sample's labels name.
//!
//! A page straight from an engine tells its engines apart by `model_name` and `engine`. One that came through a router,
//! a federation, Ray or a collector has further labels (`worker_addr`, `instance`, `ReplicaId`, `pod`), and two engines
//! on it may agree in all others. Which labels these are is not listed, since anybody may add any: each dialect lists
//! its *identity families*, those that every engine shows, and identity is every label on any of them but
//!
//! | label | is |
//! |---|---|
//! | one that the dialect declares for the family (`transfer_type`, `source` …), `le` | what the sample is of |
//! | `pid`, `tp_rank`, `pp_rank`, `moe_ep_rank`, and what the dialect adds | a part of one engine |
//! | `otel_scope_*`, `SessionName`, `Version`, `Component`, `NodeAddress`; `WorkerId` beside a `ReplicaId` | transport |
//!
//! An empty value is no label. A sample that has fewer labels belongs to the one engine that has all of them; if several
//! do, it is nobody's. Two samples of one family and one engine that differ in any other label are *in doubt*: which of
//! them is meant nobody knows, so neither is read.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{DIALECTS, Dialect};
use crate::exposition::{Exposition, Labels, Sample, unescape};
use crate::model::{Doubt, Engine, EngineId, Note, Snapshot};
use crate::notice::kinds::IDENTITY_UNCERTAIN;

/// Whose engines a dialect's families tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// vLLM, with its own connectors.
    Vllm,
    /// SGLang.
    Sglang,
    /// LMCache in the processes of an engine.
    Lmcache,
    /// LMCache as a server.
    LmcacheServer,
}

/// The labels of a family that say what a sample is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// These.
    These(&'static [&'static str]),
    /// All that are not identity: they are facts of the engine.
    Facts,
    /// All that are not identity, and the family may be of a whole server: it names no engine.
    OfNoEngine,
}

const ALWAYS_PARTS: [&str; 4] = ["pid", "tp_rank", "pp_rank", "moe_ep_rank"];
const TRANSPORT: [&str; 4] = ["SessionName", "Version", "Component", "NodeAddress"];
const WORKER: &str = "WorkerId";
const REPLICA: &str = "ReplicaId";

impl Kind {
    /// Its name in [`Snapshot::told_by`].
    pub fn name(self) -> &'static str {
        match self {
            Kind::Vllm => "vllm",
            Kind::Sglang => "sglang",
            Kind::Lmcache => "lmcache",
            Kind::LmcacheServer => "lmcache_mp",
        }
    }

    /// Labels that tell parts of one engine apart.
    fn parts(self) -> &'static [&'static str] {
        match self {
            Kind::Vllm => &[],
            Kind::Sglang => &["engine_type", "cache_type"],
            Kind::Lmcache => &["worker_id", "role"],
            Kind::LmcacheServer => &["lmcache_instance_id"],
        }
    }

    fn dialects(self) -> impl Iterator<Item = &'static Dialect> {
        DIALECTS.iter().filter(move |dialect| dialect.kind == self)
    }

    fn declared(self, family: &str) -> Declared {
        let rows = self.dialects().flat_map(|dialect| dialect.declared);
        rows.into_iter().find(|(name, _)| *name == family).map_or(Declared::These(&[]), |(_, declared)| *declared)
    }

    /// Whether a label is none that could tell engines or series apart, whatever the page.
    fn knows(self, declared: Declared, label: &str) -> bool {
        match declared {
            Declared::Facts | Declared::OfNoEngine => return true,
            Declared::These(names) if names.contains(&label) => return true,
            Declared::These(_) => {}
        }
        matches!(label, "engine" | "model_name" | "le")
            || ALWAYS_PARTS.contains(&label)
            || self.parts().contains(&label)
            || TRANSPORT.contains(&label)
            || label.starts_with("otel_scope_")
    }
}

/// The labels of a sample that `keep` names, as they are meant, by name. An empty value is an absent label, and to
/// Prometheus so are all values of a name that has one.
fn said<'a>(labels: Labels<'a>, keep: impl Fn(&str) -> bool) -> Vec<(&'a str, Cow<'a, str>)> {
    let mut kept: Vec<_> = labels.iter().filter(|(name, _)| keep(name)).collect();
    // An empty value comes first of those with its name.
    kept.sort_unstable();
    let named = kept.chunk_by(|one, next| one.0 == next.0).map(|same| same[0]);
    named.filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name, unescape(value))).collect()
}

/// `WorkerId` names the process of a replica, and the replica's name is enough.
fn names_its_replica(labels: Labels<'_>) -> bool {
    labels.raw(REPLICA).is_some_and(|replica| !replica.is_empty())
}

/// Notes which labels tell the engines of each kind apart on these pages. A kind whose pages have no label that needs a
/// second look gets no entry.
pub(super) fn discover(pages: &[Exposition<'_>], snapshot: &mut Snapshot) {
    let mut all: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
    for dialect in DIALECTS {
        for name in dialect.reads {
            let declared = dialect.kind.declared(name);
            if !matches!(declared, Declared::These(_)) {
                continue;
            }
            let is_identity = dialect.identity.contains(name);
            for labels in pages.iter().flat_map(|page| page.samples(name)).map(|sample| sample.labels) {
                let unknown = |(label, value): &(&str, &str)| !value.is_empty() && !dialect.kind.knows(declared, label);
                for (label, _) in labels.iter().filter(unknown) {
                    let names = all.entry(dialect.kind.name()).or_default();
                    if is_identity && !names.contains(label) && !(label == WORKER && names_its_replica(labels)) {
                        names.insert(label.to_owned());
                    }
                }
            }
        }
    }
    snapshot.told_by = Arc::new(all.into_iter().map(|(kind, names)| (kind, names.into_iter().collect())).collect());
}

/// How the engine of a family's samples is found.
pub(super) struct Whose {
    kind: Kind,
    family: &'static str,
    declared: Declared,
    /// Labels that tell engines apart; `None` where nothing on the page has any but its model and its `engine`.
    told_by: Option<Arc<BTreeMap<&'static str, Vec<String>>>>,
}

/// What a sample's labels say of its engine. An empty text is an absent label.
#[derive(Debug)]
pub(super) struct Named<'a> {
    kind: Kind,
    model_name: Cow<'a, str>,
    engine: Cow<'a, str>,
    /// Identity labels by name.
    labels: Vec<(&'a str, Cow<'a, str>)>,
    /// It has every label that an engine can be told by.
    whole: bool,
}

/// Which engine a sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The one at this place of [`Snapshot::engines`].
    One(usize),
    /// Several that its labels do not tell apart.
    Several,
    /// None that is known.
    Nobody,
}

impl Whose {
    /// For the samples of one family.
    pub(super) fn of(snapshot: &Snapshot, kind: Kind, family: &'static str) -> Whose {
        let told_by = snapshot.told_by.contains_key(kind.name()).then(|| Arc::clone(&snapshot.told_by));
        let declared = if told_by.is_some() { kind.declared(family) } else { Declared::Facts };
        Whose { kind, family, declared, told_by }
    }

    fn names(&self) -> &[String] {
        self.told_by.as_ref().and_then(|all| all.get(self.kind.name())).map_or(&[], |names| names)
    }

    /// Whether a label tells engines apart.
    fn is_identity(&self, label: &str) -> bool {
        let is_declared = matches!(self.declared, Declared::These(names) if names.contains(&label));
        !is_declared && self.names().iter().any(|name| name == label)
    }

    /// What a sample says of its engine.
    pub(super) fn named<'a>(&self, labels: Labels<'a>) -> Named<'a> {
        let [engine, model_name] = labels.raws(["engine", "model_name"]).map(|raw| unescape(raw.unwrap_or("")));
        let mut further = Vec::new();
        if !self.names().is_empty() {
            let tells = |label: &str| self.is_identity(label) && !(label == WORKER && names_its_replica(labels));
            further = said(labels, tells);
        }
        let whole = !model_name.is_empty() && !engine.is_empty() && further.len() == self.names().len();
        Named { kind: self.kind, model_name, engine, labels: further, whole }
    }

    /// The engine that a sample belongs to.
    pub(super) fn owner(&self, snapshot: &Snapshot, labels: Labels<'_>) -> Owner {
        self.named(labels).owner(snapshot)
    }

    /// The engines that have all labels of a sample.
    pub(super) fn fitting<'s>(
        &self,
        snapshot: &'s mut Snapshot,
        labels: Labels<'_>,
    ) -> impl Iterator<Item = &'s mut Engine> {
        let named = self.named(labels);
        snapshot.engines.iter_mut().filter(move |engine| named.fits(engine))
    }

    /// The same as [`Whose::owner`], without the samples that are in doubt.
    pub(super) fn sure_owner(&self, snapshot: &Snapshot, labels: Labels<'_>) -> Option<usize> {
        match self.owner(snapshot, labels) {
            Owner::One(at) if !snapshot.engines[at].doubts(self.family) => Some(at),
            _ => None,
        }
    }

    /// The labels of a sample that nothing accounts for, by name.
    fn rest<'a>(&self, labels: Labels<'a>) -> Vec<(&'a str, Cow<'a, str>)> {
        said(labels, |label| {
            let is_worker = label == WORKER && names_its_replica(labels);
            !is_worker && !self.kind.knows(self.declared, label) && !self.is_identity(label)
        })
    }
}

impl Named<'_> {
    /// Whether the sample has what each engine of its kind is told by, even on a page straight from it.
    fn is_full(&self) -> bool {
        !self.model_name.is_empty() && (!self.engine.is_empty() || self.kind == Kind::Sglang)
    }

    /// Whether an engine is known by such a sample alone. SGLang's families without a model are of any of its engines.
    fn may_be_new(&self) -> bool {
        self.kind == Kind::Vllm || !self.model_name.is_empty()
    }

    /// Whether there is an engine of exactly these labels.
    fn is_known(&self, snapshot: &Snapshot) -> bool {
        self.at(snapshot).is_some()
    }

    fn at(&self, snapshot: &Snapshot) -> Option<usize> {
        snapshot.engines.binary_search_by(|engine| self.compared(&engine.id)).ok()
    }

    /// The engine of exactly these labels.
    pub(super) fn id(&self) -> EngineId {
        EngineId { labels: self.own_labels(), ..EngineId::new(&*self.model_name, &*self.engine) }
    }

    /// Its identity labels.
    pub(super) fn own_labels(&self) -> Vec<(String, String)> {
        self.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into_owned())).collect()
    }

    /// The engine of exactly these labels, or else the only one that has them all.
    pub(super) fn owner(&self, snapshot: &Snapshot) -> Owner {
        if let Some(at) = self.at(snapshot) {
            return Owner::One(at);
        }
        if self.whole {
            // Most samples are, and no engine can have more: a page of very many engines is not looked through for each.
            return Owner::Nobody;
        }
        let mut fitting = (0..snapshot.engines.len()).filter(|at| self.fits(&snapshot.engines[*at]));
        match (fitting.next(), fitting.next()) {
            (Some(at), None) => Owner::One(at),
            (Some(_), Some(_)) => Owner::Several,
            (None, _) => Owner::Nobody,
        }
    }

    /// How an id stands to the one of these labels.
    fn compared(&self, id: &EngineId) -> Ordering {
        let model = id.model_name.as_str().cmp(&self.model_name);
        model.then_with(|| id.engine.as_str().cmp(&self.engine)).then_with(|| {
            let theirs = id.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            theirs.cmp(self.labels.iter().map(|(name, value)| (*name, value.as_ref())))
        })
    }

    /// Whether the engine is of the sample's kind and has all labels that the sample has.
    fn fits(&self, Engine { id, kind, .. }: &Engine) -> bool {
        let same = |own: &str, theirs: &str| own.is_empty() || own == theirs;
        let has = |(name, value): &(&str, Cow<'_, str>)| id.labels.iter().any(|(n, v)| n == name && v == value);
        *kind == Some(self.kind.name())
            && same(&self.model_name, &id.model_name)
            && same(&self.engine, &id.engine)
            && self.labels.iter().all(has)
    }
}

/// Finds the engines of one kind on a page, and what is in doubt. A family that every engine shows has its whole
/// identity, so these go first; of the others those that name an engine in full go before those that can only be joined.
/// Returns whether the page names any engine.
pub(super) fn find_engines(page: &Exposition<'_>, kind: Kind, snapshot: &mut Snapshot) -> bool {
    let (mut found, mut partial) = (false, Vec::new());
    for name in kind.dialects().flat_map(|dialect| dialect.identity) {
        found |= find(page, kind, snapshot, name, |named, snapshot| named.is_full() && !named.is_known(snapshot)).full;
    }
    join_the_partial(page, kind, snapshot);
    for name in kind.dialects().flat_map(|dialect| dialect.reads) {
        let declared = kind.declared(name);
        if declared != Declared::OfNoEngine {
            let is_new =
                |named: &Named<'_>, snapshot: &Snapshot| named.is_full() && named.owner(snapshot) == Owner::Nobody;
            let seen = find(page, kind, snapshot, name, is_new);
            found |= seen.full || seen.partial && declared == Declared::Facts;
            partial.extend(seen.partial.then_some(*name));
        }
    }
    for name in partial {
        find(page, kind, snapshot, name, |named, snapshot| {
            named.may_be_new() && named.owner(snapshot) == Owner::Nobody
        });
    }
    doubt(page, kind, snapshot);
    found
}

/// What samples a family has.
#[derive(Default)]
struct Seen {
    /// Some that name an engine in full.
    full: bool,
    /// Some that do not.
    partial: bool,
}

/// Adds the engines of a family's samples that are `new`.
fn find(
    page: &Exposition<'_>,
    kind: Kind,
    snapshot: &mut Snapshot,
    name: &'static str,
    new: fn(&Named<'_>, &Snapshot) -> bool,
) -> Seen {
    let whose = Whose::of(snapshot, kind, name);
    let mut seen = Seen::default();
    for sample in page.samples(name) {
        let named = whose.named(sample.labels);
        if named.is_full() {
            seen.full = true;
        } else {
            seen.partial = true;
        }
        if new(&named, snapshot) {
            snapshot.engine_or_insert(named.id()).kind = Some(kind.name());
        }
    }
    seen
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

/// Takes note of the families of each engine whose samples are in doubt.
fn doubt(page: &Exposition<'_>, kind: Kind, snapshot: &mut Snapshot) {
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
pub(super) fn tell(snapshot: &mut Snapshot) {
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
