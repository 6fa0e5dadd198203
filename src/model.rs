//! The nouns: engines, their tiers, and what one page says of them. No engine's spelling in here.
//!
//! A [`Snapshot`] is what the dialects make of one page. It holds readings only: each [`Fact`] is a number
//! together with the family that it came from. What follows from the readings is worked out in
//! [`crate::bound`]; nothing here is a judgement, and nothing outlives the scrape.

mod histogram;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use histogram::Histogram;

use crate::notice::Kind;
use crate::notice::kinds::TOO_MANY_ENGINES;
use crate::share::share;

/// A number off the page, and the family that it was read from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fact {
    /// The value, in base units.
    pub value: f64,
    /// Name of the upstream family, in upstream's spelling.
    pub from: &'static str,
}

impl Fact {
    /// A value with its origin.
    pub const fn new(value: f64, from: &'static str) -> Fact {
        Fact { value, from }
    }
}

/// A quotient whose two sides were read, kept apart so that both can be shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quotient {
    /// Dividend.
    pub of: Fact,
    /// Divisor.
    pub by: Fact,
}

impl Quotient {
    /// The quotient of two facts, where both are known.
    pub fn of(of: Option<Fact>, by: Option<Fact>) -> Option<Quotient> {
        Some(Quotient { of: of?, by: by? })
    }

    /// The value; `None` where the divisor is 0, since 0 ÷ 0 is unknown and not 0.
    pub fn value(&self) -> Option<f64> {
        ratio(self.of.value, self.by.value)
    }
}

impl fmt::Display for Quotient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quotient { of, by } = self;
        write!(f, "{} ({}) / {} ({})", of.value, of.from, by.value, by.from)
    }
}

/// `of ÷ by`, or `None` where that is no finite number.
pub fn ratio(of: f64, by: f64) -> Option<f64> {
    let value = of / by;
    (by != 0.0 && value.is_finite()).then_some(value)
}

/// What tells engines of one page apart: label values as upstream meant them (unescaped).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId {
    /// Served model name; empty where the page does not name one.
    pub model_name: String,
    /// Value of the `engine` label; empty on pages that have none.
    pub engine: String,
    /// Further labels that tell engines of the page apart (`pod`, `worker_addr` …), by name. None of them is empty.
    pub labels: Vec<(String, String)>,
}

impl EngineId {
    /// An engine that its model and its `engine` label tell apart, as on a page straight from the engine.
    pub fn new(model_name: impl Into<String>, engine: impl Into<String>) -> EngineId {
        EngineId { model_name: model_name.into(), engine: engine.into(), labels: Vec::new() }
    }

    /// Whether it has all of these labels.
    pub fn has(&self, labels: &[(String, String)]) -> bool {
        labels.iter().all(|label| self.labels.contains(label))
    }
}

/// As people name it: `"0" of model "m", pod="a-0"`.
impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of model {:?}", self.engine, self.model_name)?;
        self.labels.iter().try_for_each(|(name, value)| write!(f, ", {name}={value:?}"))
    }
}

/// What bytes of a tier lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Host memory.
    Ram,
    /// A local file system.
    Disk,
    /// Another machine.
    Remote,
    /// The page does not tell.
    Unknown,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Medium::Ram => "ram",
            Medium::Disk => "disk",
            Medium::Remote => "remote",
            Medium::Unknown => "unknown",
        })
    }
}

/// Where the size of a tier is known from; the order is the order of trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizeSource {
    /// `--tier.size`.
    Flag,
    /// The engine's own description of the tier it built.
    ConfigInfo,
    /// The engine's description of how it was configured.
    CacheConfig,
    /// The tier's file in shared memory.
    ShmFile,
}

impl fmt::Display for SizeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SizeSource::Flag => "flag",
            SizeSource::ConfigInfo => "config_info",
            SizeSource::CacheConfig => "cache_config",
            SizeSource::ShmFile => "shm_file",
        })
    }
}

/// A size in bytes, all ranks of the engine together, and where it was stated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Bytes.
    pub fact: Fact,
    /// Who says so.
    pub source: SizeSource,
}

/// Bytes and seconds that crossed between the GPU pool (or the tier above) and a tier, since engine start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transfers {
    /// Bytes written into the tier.
    pub stored_bytes: Option<Fact>,
    /// Bytes read back out of the tier.
    pub reloaded_bytes: Option<Fact>,
    /// Copy seconds of the writes, summed over ranks or I/O threads.
    pub store_seconds: Option<Fact>,
    /// Copy seconds of the reads, summed over ranks or I/O threads.
    pub reload_seconds: Option<Fact>,
    /// Bytes written are counted, but the count cannot be read: unknown, and not 0.
    pub stores_unreadable: bool,
    /// The same for bytes read back.
    pub reloads_unreadable: bool,
}

impl Transfers {
    /// States a known 0 for each direction in which nothing has moved yet, so that `increase()` sees the first
    /// event. A direction whose bytes moved but whose seconds nobody reports keeps them unknown.
    pub fn state_zeros(&mut self) {
        let Transfers { stored_bytes, reloaded_bytes, store_seconds, reload_seconds, .. } = self;
        let stores = (stored_bytes, store_seconds, self.stores_unreadable);
        let reloads = (reloaded_bytes, reload_seconds, self.reloads_unreadable);
        for (bytes, seconds, unreadable) in [stores, reloads] {
            if bytes.is_none() && seconds.is_none() && !unreadable {
                *bytes = Some(NOTHING_YET);
                *seconds = Some(NOTHING_YET);
            }
        }
    }
}

/// A 0 that no sample says, but that a proven connector implies.
pub const NOTHING_YET: Fact = Fact::new(0.0, "nothing yet");

/// Totals over the requests that have finished.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Finished {
    /// Prompt tokens.
    pub prompt_tokens: Option<Fact>,
    /// Prompt tokens that prefill computed.
    pub computed_tokens: Option<Fact>,
    /// Seconds spent in prefill.
    pub prefill_seconds: Option<Fact>,
}

/// Calls since engine start that empty a tier, or can be told to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResetCalls {
    /// Calls that send the engine to sleep.
    pub sleep: f64,
    /// The same calls as the engine's own count of operations has them (0.32+).
    pub sleep_operations: f64,
    /// All other calls.
    pub others: f64,
}

impl ResetCalls {
    /// All of them, each once.
    pub fn total(&self) -> f64 {
        self.others + self.sleep.max(self.sleep_operations)
    }
}

/// The tier as fixed slots, where the engine says how many it has and how many it handed out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slots {
    /// Slots handed out since engine start; refused attempts are counted too. `None` before the first.
    pub allocated: Option<Fact>,
    /// Slots that the tier has.
    pub count: Fact,
    /// Bytes of the whole tier, as the engine laid it out.
    pub bytes: Fact,
    /// GPU blocks that one slot holds.
    pub blocks_per_slot: Option<Fact>,
}

/// How full a tier is, where the engine itself measures it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Residency {
    /// Resident bytes.
    Bytes(Fact),
    /// Resident share of the capacity, both in the engine's own unit.
    Share(Quotient),
}

/// The connector of a tier that is there since its size was declared, and of which the pages show nothing.
pub const DECLARED_ALONE: &str = "unknown";

/// One offload tier of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// Value of our `tier` label: `ram`, `1:fs`, `disk`, `lmcache_cpu` …
    pub name: String,
    /// What it lies on.
    pub medium: Medium,
    /// What moves its bytes, in that project's name for it.
    pub connector: &'static str,
    /// Traffic since engine start. A 0 in here was read, or is known because the connector is proven.
    pub transfers: Transfers,
    /// Sizes stated by the engine, best first.
    pub sizes: Vec<Size>,
    /// Capacity in tokens, as the engine states it.
    pub size_tokens: Option<Fact>,
    /// Share (0–1) pinned by copies in flight: what upstream's usage gauge really says.
    pub pinned: Option<Fact>,
    /// Share (0–1) pinned by unfinished stores.
    pub storing: Option<Fact>,
    /// Bytes that entered the tier from the tiers behind it instead of from the GPU.
    pub promoted: Option<Fact>,
    /// Promotions happen that no family of this version counts: nothing can be said of the fill.
    pub promotions_unseen: bool,
    /// It is not certain which series of a family that tells of its fill hold for it (see [`Doubt`]): nothing can be said
    /// of the fill.
    pub doubtful: bool,
    /// The tier in slots.
    pub slots: Option<Slots>,
    /// Slots handed out since engine start, also where nobody says how many there are.
    pub allocated: Option<Fact>,
    /// Refused or failed allocations and promotions: while this is above 0, slots handed out say nothing.
    pub refusals: f64,
    /// Whether its bytes lie in the shared-memory mount; `None` where the page fits versions that do and versions that do not.
    pub lies_in_shm: Option<bool>,
    /// Measured residency; wins over any bound.
    pub residency: Option<Residency>,
    /// Whether stored bytes bound what is resident. False where files outlive the engine.
    pub bounded_by_stores: bool,
    /// The page cannot tell it from something that is no tier, such as a staging buffer: it counts only where the
    /// operator declares its size.
    pub only_if_declared: bool,
}

impl Tier {
    /// Share of the tier that unfinished stores pin, where what the page says of it can be one.
    pub fn storing_share(&self) -> Option<f64> {
        share(self.storing?.value)
    }

    /// A tier of which nothing is known but that it exists.
    pub fn new(name: impl Into<String>, medium: Medium, connector: &'static str) -> Tier {
        Tier {
            name: name.into(),
            medium,
            connector,
            transfers: Transfers::default(),
            sizes: Vec::new(),
            size_tokens: None,
            pinned: None,
            storing: None,
            promoted: None,
            promotions_unseen: false,
            doubtful: false,
            slots: None,
            allocated: None,
            refusals: 0.0,
            lies_in_shm: None,
            residency: None,
            bounded_by_stores: false,
            only_if_declared: false,
        }
    }
}

/// The most engines that are told apart on a page: many times what one server runs. Label values come from outside,
/// so something has to bound what is held and looked through for them.
pub const MAX_ENGINES: usize = 1024;

/// The most tiers of one engine.
pub const MAX_TIERS: usize = 32;

/// What a family says of one engine in several ways: which of them holds nobody knows, so none is read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Doubt {
    /// The family.
    pub family: &'static str,
    /// Why.
    pub cause: Cause,
}

/// Why a family is not read for an engine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its samples differ in this label, and nothing accounts for it.
    Label(String),
    /// Its samples lack labels, and several engines have those that they do have.
    Shared,
    /// One series stands on the page several times, with different values.
    Repeated,
    /// It describes the engine several times, and this label has different values. Only the label is not read.
    Described(&'static str),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Doubt { family, cause } = self;
        match cause {
            Cause::Label(label) => {
                write!(f, "{family} has several series for it, and label {label:?} tells them apart")
            }
            Cause::Shared => write!(f, "{family} has series whose labels are those of other engines too"),
            Cause::Repeated => write!(f, "{family} has one series several times, with different values"),
            Cause::Described(label) => {
                write!(f, "{family} describes it several times, with different values of {label:?}")
            }
        }
    }
}

/// One engine of the page: a data-parallel replica with tiers of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    /// Its labels.
    pub id: EngineId,
    /// What it is (`vllm`, `sglang`); `None` where only a cache beside it speaks.
    pub kind: Option<&'static str>,
    /// Prompt tokens since engine start by where their KV came from (`computed`, `gpu_cache`, `external` …).
    pub prompt_tokens: BTreeMap<String, Fact>,
    /// Prompt tokens since engine start that a tier supplied, by tier kind (`ram`, `disk`, `peer` …).
    pub served_tokens: BTreeMap<String, Fact>,
    /// Prompt tokens of requests that began to answer.
    pub prompt_total: Option<Fact>,
    /// Share of prompt tokens computed by prefill.
    pub prefill_computed: Option<Quotient>,
    /// Totals of finished requests.
    pub finished: Finished,
    /// Tokens that the connector supplied.
    pub external_hits: Option<Fact>,
    /// Tokens that the connector was asked for.
    pub external_queries: Option<Fact>,
    /// Share of the tokens that a cache library was asked for and found, whether or not the GPU held them too.
    pub lookup_hits: Option<Quotient>,
    /// Capacity of the GPU's KV pool in tokens.
    pub gpu_pool_tokens: Option<Fact>,
    /// Share (0–1) of that pool that requests use now.
    pub gpu_pool_used: Option<Fact>,
    /// Tokens of one GPU block.
    pub block_tokens: Option<Fact>,
    /// What shows that layers of several kinds share the engine's KV pool and its tier; `None` where nothing does,
    /// which is no proof that they do not.
    pub several_groups: Option<&'static str>,
    /// What was seen that may have emptied the RAM tier since start, in words.
    pub reset_evidence: Vec<String>,
    /// How often it may have been since start.
    pub reset_calls: ResetCalls,
    /// Requests that lost their blocks to others since start.
    pub preemptions: Option<Fact>,
    /// Another connector supplies tokens too.
    pub other_connector: Option<&'static str>,
    /// Its tiers, `ram` first.
    pub tiers: Vec<Tier>,
    /// Takes what is said of tiers beyond the first [`MAX_TIERS`]. Nobody reads it.
    pub beyond: Option<Box<Tier>>,
    /// What is not read for it, since nobody knows what holds.
    pub doubts: Vec<Doubt>,
}

impl Engine {
    /// An engine of which only the labels are known.
    pub fn new(id: EngineId) -> Engine {
        Engine {
            id,
            kind: None,
            prompt_tokens: BTreeMap::new(),
            served_tokens: BTreeMap::new(),
            prompt_total: None,
            prefill_computed: None,
            finished: Finished::default(),
            external_hits: None,
            external_queries: None,
            lookup_hits: None,
            gpu_pool_tokens: None,
            gpu_pool_used: None,
            block_tokens: None,
            several_groups: None,
            reset_evidence: Vec::new(),
            reset_calls: ResetCalls::default(),
            preemptions: None,
            other_connector: None,
            tiers: Vec::new(),
            beyond: None,
            doubts: Vec::new(),
        }
    }

    /// Whether it is not certain which samples of a family hold for it.
    pub fn doubts(&self, family: &str) -> bool {
        self.doubts.iter().any(|doubt| doubt.family == family && !matches!(doubt.cause, Cause::Described(_)))
    }

    /// Whether it is not certain which samples of a family are its own.
    pub fn doubts_whose(&self, family: &str) -> bool {
        self.doubts.iter().any(|doubt| doubt.family == family && matches!(doubt.cause, Cause::Label(_) | Cause::Shared))
    }

    /// Whether a family describes it with different values of a label.
    pub fn doubts_label(&self, family: &str, label: &str) -> bool {
        self.doubts
            .iter()
            .any(|doubt| doubt.family == family && matches!(doubt.cause, Cause::Described(one) if one == label))
    }

    /// Takes note of a doubt: one for each family, or each label of a description.
    pub fn doubt(&mut self, family: &'static str, cause: Cause) {
        let is_known = match cause {
            Cause::Described(label) => self.doubts_label(family, label),
            _ => self.doubts(family),
        };
        if !is_known {
            self.doubts.push(Doubt { family, cause });
        }
    }

    /// The tier of that name.
    pub fn tier(&self, name: &str) -> Option<&Tier> {
        self.tiers.iter().find(|tier| tier.name == name)
    }

    /// The tier of that name, made if it is not there yet.
    pub fn tier_or_insert(&mut self, name: &str, medium: Medium, connector: &'static str) -> &mut Tier {
        let at = match self.tiers.iter().position(|tier| tier.name == name) {
            Some(at) => at,
            None if self.tiers.len() >= MAX_TIERS => {
                return self.beyond.get_or_insert_with(|| Box::new(Tier::new("", medium, connector)));
            }
            None => {
                self.tiers.push(Tier::new(name, medium, connector));
                self.tiers.len() - 1
            }
        };
        &mut self.tiers[at]
    }
}

/// Something that a dialect met and could not read as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// What kind of thing it is.
    pub kind: &'static Kind,
    /// What was seen, and of which engine; no counts, since a text that changes is news.
    pub text: String,
    /// Bytes that it is about, where they are counted.
    pub bytes: Option<f64>,
}

/// Which engine a sample belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// The one at this place of [`Snapshot::engines`].
    One(usize),
    /// Several that its labels do not tell apart.
    Several,
    /// None that is known.
    #[default]
    Nobody,
}

impl Owner {
    /// The place of the only one.
    pub fn one(self) -> Option<usize> {
        match self {
            Owner::One(at) => Some(at),
            Owner::Several | Owner::Nobody => None,
        }
    }
}

/// Whose the samples of each page are: found once, and looked up for each family that is read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pages {
    /// The page that is being read.
    pub current: usize,
    /// For each page its samples' owners, in the order in which the page keeps them.
    pub owners: Vec<Vec<Owner>>,
    /// Pages on which an engine of a kind was found.
    pub found: Vec<(usize, &'static str)>,
}

impl Pages {
    /// Whose the sample at this place of the current page is.
    pub fn owner(&self, place: usize) -> Owner {
        self.owners.get(self.current).and_then(|owners| owners.get(place)).copied().unwrap_or_default()
    }

    /// Whether an engine of that kind was found on the current page.
    pub fn names(&self, kind: &'static str) -> bool {
        self.found.contains(&(self.current, kind))
    }
}

/// Everything that the dialects read off one page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Engines, in label order.
    pub engines: Vec<Engine>,
    /// What serves the page (`vllm`, `sglang` …), where it is recognised.
    pub engine_kind: Option<&'static str>,
    /// Names of the dialects that recognised something.
    pub dialects: Vec<&'static str>,
    /// Versions that fit the families seen, such as `0.26-0.27`.
    pub version_range: Option<String>,
    /// Bytes that a cache library believes it keeps on local disk, all its processes together. A belief and no
    /// measurement: it starts at 0 with each process and keeps growing on a full disk.
    pub disk_claimed: Option<Fact>,
    /// What the dialects met and could not read as it stands.
    pub notes: Vec<Note>,
    /// Names of the labels that tell engines apart beside `model_name` and `engine`, in order, by the kind of engine. A
    /// kind without an entry has none, nor any other label that nothing accounts for.
    pub told_by: Arc<BTreeMap<&'static str, Vec<String>>>,
    /// Whose the samples are, page by page, while they are read.
    pub pages: Pages,
    /// Takes what is said of engines beyond the first [`MAX_ENGINES`]. Nobody reads it.
    pub beyond: Option<Box<Engine>>,
}

impl Snapshot {
    /// The engine with this id, made if it is not there yet.
    pub fn engine_or_insert(&mut self, id: EngineId) -> &mut Engine {
        let at = match self.engines.binary_search_by(|engine| engine.id.cmp(&id)) {
            Ok(at) => at,
            Err(_) if self.engines.len() >= MAX_ENGINES => return self.beyond(),
            Err(at) => {
                self.engines.insert(at, Engine::new(id));
                at
            }
        };
        &mut self.engines[at]
    }

    /// Takes note of something that somebody should be told.
    pub fn note(&mut self, kind: &'static Kind, text: impl Into<String>) {
        self.notes.push(Note { kind, text: text.into(), bytes: None });
    }

    fn beyond(&mut self) -> &mut Engine {
        let notes = &mut self.notes;
        self.beyond.get_or_insert_with(|| {
            let text = format!("the page names more than {MAX_ENGINES} engines: nothing is derived for the others");
            notes.push(Note { kind: &TOO_MANY_ENGINES, text, bytes: None });
            Box::new(Engine::new(EngineId::default()))
        })
    }

    /// The engines that serve this model and have these labels; one with an empty `engine` label, made for it, where none
    /// does.
    pub fn serving(&mut self, model_name: &str, labels: &[(String, String)]) -> Vec<&mut Engine> {
        let serves = |id: &EngineId| id.model_name == model_name && id.has(labels);
        if !self.engines.iter().any(|engine| serves(&engine.id)) {
            self.engine_or_insert(EngineId { labels: labels.to_vec(), ..EngineId::new(model_name, "") });
        }
        self.engines.iter_mut().filter(|engine| serves(&engine.id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_and_tiers_beyond_the_most_are_taken_note_of_and_not_kept() {
        let mut snapshot = Snapshot::default();
        for number in 0..MAX_ENGINES + 10 {
            let engine = snapshot.engine_or_insert(EngineId::new("m", number.to_string()));
            assert_eq!(engine.id.engine == number.to_string(), number < MAX_ENGINES);
        }
        assert_eq!((snapshot.engines.len(), snapshot.notes.len()), (MAX_ENGINES, 1));
        assert_eq!(snapshot.engine_or_insert(EngineId::new("m", "3")).id.engine, "3");
        let engine = snapshot.engine_or_insert(EngineId::new("m", "3"));
        for number in 0..MAX_TIERS + 10 {
            engine.tier_or_insert(&number.to_string(), Medium::Disk, "x");
        }
        assert_eq!(engine.tiers.len(), MAX_TIERS);
    }
}
