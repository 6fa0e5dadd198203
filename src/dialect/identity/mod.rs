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
//! them is meant nobody knows, so neither is read. A transport label is such another one: a replica that Ray starts again
//! keeps its `ReplicaId`, and its dead worker stays on the page for a while. So are samples of one series with different values, and
//! different descriptions of one engine.
//!
//! | file | what |
//! |---|---|
//! | `find` | the labels that tell engines of a page apart, and its engines |
//! | `doubt` | the families whose samples cannot be told apart, or contradict each other |
//! | `repeats` | series that stand on a page several times |

mod doubt;
mod find;
mod repeats;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) use doubt::tell;
pub(super) use find::{discover, place};
pub(super) use repeats::Repeats;

use super::{DIALECTS, Dialect};
use crate::exposition::{Labels, unescape};
use crate::model::{Engine, EngineId, Owner, Snapshot};

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
    /// All that are not identity: they are facts of the engine. These of them are read, and have to say the same of one engine
    /// wherever they say something.
    Facts(&'static [&'static str]),
    /// All that are not identity, and the family may be of a whole server: it names no engine.
    OfNoEngine,
}

const ALWAYS_PARTS: [&str; 4] = ["pid", "tp_rank", "pp_rank", "moe_ep_rank"];
const TRANSPORT: [&str; 4] = ["SessionName", "Version", "Component", "NodeAddress"];
const WORKER: &str = "WorkerId";
const REPLICA: &str = "ReplicaId";

impl Dialect {
    /// The labels of a family that it reads.
    fn declares(&self, family: &str) -> Declared {
        let row = self.declared.iter().find(|(name, _)| *name == family);
        row.map_or(Declared::These(&[]), |(_, declared)| *declared)
    }
}

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
        let reader = self.dialects().find(|dialect| dialect.reads.contains(&family));
        reader.map_or(Declared::These(&[]), |dialect| dialect.declares(family))
    }

    /// Whether a label says what a sample is of, or of which part of an engine, whatever the page.
    fn knows(self, declared: Declared, label: &str) -> bool {
        match declared {
            Declared::Facts(_) | Declared::OfNoEngine => return true,
            Declared::These(names) if names.contains(&label) => return true,
            Declared::These(_) => {}
        }
        matches!(label, "engine" | "model_name" | "le")
            || ALWAYS_PARTS.contains(&label)
            || self.parts().contains(&label)
    }
}

/// Whether a label of a sample says by which way it came.
fn is_transport(label: &str, labels: Labels<'_>) -> bool {
    TRANSPORT.contains(&label) || label.starts_with("otel_scope_") || (label == WORKER && names_its_replica(labels))
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

/// How the engine of a family's samples is found.
pub(in crate::dialect) struct Whose {
    kind: Kind,
    family: &'static str,
    declared: Declared,
    /// Labels that tell engines apart; `None` where nothing on the page has any but its model and its `engine`.
    told_by: Option<Arc<BTreeMap<&'static str, Vec<String>>>>,
}

/// What a sample's labels say of its engine. An empty text is an absent label.
#[derive(Debug)]
pub(in crate::dialect) struct Named<'a> {
    kind: Kind,
    model_name: Cow<'a, str>,
    engine: Cow<'a, str>,
    /// Identity labels by name.
    labels: Vec<(&'a str, Cow<'a, str>)>,
    /// It has every label that an engine can be told by.
    whole: bool,
}

impl Whose {
    /// For the samples of one family.
    pub(in crate::dialect) fn of(snapshot: &Snapshot, kind: Kind, family: &'static str) -> Whose {
        let told_by = snapshot.told_by.contains_key(kind.name()).then(|| Arc::clone(&snapshot.told_by));
        let declared = if told_by.is_some() { kind.declared(family) } else { Declared::Facts(&[]) };
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
    pub(in crate::dialect) fn named<'a>(&self, labels: Labels<'a>) -> Named<'a> {
        let [engine, model_name] = labels.raws(["engine", "model_name"]).map(|raw| unescape(raw.unwrap_or("")));
        let mut further = Vec::new();
        if !self.names().is_empty() {
            further = said(labels, |label| self.is_identity(label) && !is_transport(label, labels));
        }
        let whole = !model_name.is_empty() && !engine.is_empty() && further.len() == self.names().len();
        Named { kind: self.kind, model_name, engine, labels: further, whole }
    }

    /// The identity labels of a sample: all but its model and its `engine`, so those that tell servers apart.
    pub(in crate::dialect) fn server(&self, labels: Labels<'_>) -> Vec<(String, String)> {
        if self.names().is_empty() { Vec::new() } else { self.named(labels).own_labels() }
    }

    /// The engine that a sample belongs to.
    pub(in crate::dialect) fn owner(&self, snapshot: &Snapshot, labels: Labels<'_>) -> Owner {
        self.named(labels).owner(snapshot)
    }

    /// The engines that have all labels of a sample.
    pub(in crate::dialect) fn fitting<'s>(
        &self,
        snapshot: &'s mut Snapshot,
        labels: Labels<'_>,
    ) -> impl Iterator<Item = &'s mut Engine> {
        let named = self.named(labels);
        snapshot.engines.iter_mut().filter(move |engine| named.fits(engine))
    }

    /// The labels of a sample that tell neither its engine nor what it is of, by name.
    fn rest<'a>(&self, labels: Labels<'a>) -> Vec<(&'a str, Cow<'a, str>)> {
        said(labels, |label| {
            let tells = self.is_identity(label) && !is_transport(label, labels);
            !tells && !self.kind.knows(self.declared, label)
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
    pub(in crate::dialect) fn id(&self) -> EngineId {
        EngineId { labels: self.own_labels(), ..EngineId::new(&*self.model_name, &*self.engine) }
    }

    /// Its identity labels.
    pub(in crate::dialect) fn own_labels(&self) -> Vec<(String, String)> {
        self.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into_owned())).collect()
    }

    /// The engine of exactly these labels, or else the only one that has them all.
    pub(in crate::dialect) fn owner(&self, snapshot: &Snapshot) -> Owner {
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
