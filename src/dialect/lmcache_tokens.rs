//! The tokens that LMCache in an engine's processes stores and gives back.
//!
//! Only `report` reads this: no family of ours follows from it. Ranks share tokens, so each process counts them all and the
//! one that counted the most speaks; both sides of a retrieval are of that process.
//!
//! | counter | counts tokens that | so it is no |
//! |---|---|---|
//! | `num_stored_tokens` | were handed over to be stored, when the call begins | count of what was written |
//! | `num_requested_tokens` | were asked back, which is done only after a lookup that found them | count of lookups |
//! | `num_hit_tokens` | were given back | hit rate: it is nearly all of the above, unless loads fail |

use std::collections::{BTreeMap, BTreeSet};

use super::identity::{Kind, Repeats, Whose};
use super::lmcache;
use crate::exposition::{Exposition, Labels};
use crate::model::{EngineId, Snapshot};

const STORED: &str = "lmcache:num_stored_tokens_total";
const REQUESTED: &str = "lmcache:num_requested_tokens_total";
const RETRIEVED: &str = "lmcache:num_hit_tokens_total";

/// Every name that is read here.
pub(super) const READS: [&str; 3] = [STORED, REQUESTED, RETRIEVED];

/// What the cache of one engine counts, or of all engines of a model where they share one.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedTokens {
    /// The engine; its `engine` is empty where several fit or none is on the page.
    pub id: EngineId,
    /// Tokens handed over to be stored.
    pub stored: Option<f64>,
    /// Tokens asked back.
    pub requested: Option<f64>,
    /// Tokens given back.
    pub retrieved: Option<f64>,
    /// Families that contradict themselves, of which none is read.
    pub unclear: BTreeSet<&'static str>,
}

/// A process, told by all its labels.
type Process<'a> = Vec<(&'a str, &'a str)>;

#[derive(Default)]
struct Processes<'a> {
    counts: BTreeMap<Process<'a>, BTreeMap<&'static str, f64>>,
    unclear: BTreeSet<&'static str>,
}

/// The caches of a page that was scanned for [`serving::NAMES`](super::serving::NAMES). The snapshot is of the same page.
pub fn read(page: &Exposition<'_>, snapshot: &Snapshot) -> Vec<CachedTokens> {
    let mut caches: BTreeMap<EngineId, Processes<'_>> = BTreeMap::new();
    for name in READS {
        let (whose, samples) = (Whose::of(snapshot, Kind::Lmcache, name), page.samples(name));
        for sample in samples.iter().filter(|sample| sample.value.is_finite()) {
            let mut process: Process<'_> = sample.labels.iter().collect();
            process.sort_unstable();
            let cache = caches.entry(owner(&whose, sample.labels, snapshot)).or_default();
            cache.counts.entry(process).or_default().insert(name, sample.value);
        }
        for at in Repeats::of(samples).otherwise {
            caches.entry(owner(&whose, samples[at].labels, snapshot)).or_default().unclear.insert(name);
        }
    }
    caches.into_iter().map(|(id, processes)| processes.tokens(id)).collect()
}

/// The one engine that the cache serves, or else the model.
fn owner(whose: &Whose, labels: Labels<'_>, snapshot: &Snapshot) -> EngineId {
    let (model, server) = (lmcache::model(labels, snapshot), whose.server(labels));
    let mut fitting = snapshot.engines.iter().filter(|one| one.id.model_name == model && one.id.has(&server));
    match (fitting.next(), fitting.next()) {
        (Some(engine), None) => engine.id.clone(),
        _ => EngineId { labels: server, ..EngineId::new(model, "") },
    }
}

impl Processes<'_> {
    fn tokens(self, id: EngineId) -> CachedTokens {
        let clear = |name: &'static str| Some(name).filter(|name| !self.unclear.contains(name));
        let of = |counts: &BTreeMap<&str, f64>, name| counts.get(clear(name)?).copied();
        let stored = self.counts.values().filter_map(|counts| of(counts, STORED)).reduce(f64::max);
        let asked = |counts: &&BTreeMap<&str, f64>| of(counts, REQUESTED);
        let most = self.counts.values().reduce(|most, next| if asked(&next) > asked(&most) { next } else { most });
        let (requested, retrieved) = (most.and_then(|most| of(most, REQUESTED)), most.and_then(|m| of(m, RETRIEVED)));
        CachedTokens { id, stored, requested, retrieved, unclear: self.unclear }
    }
}
