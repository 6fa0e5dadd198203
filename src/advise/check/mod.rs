//! `check`: what a careful colleague would look at on a running deployment, or on one that does not start.
//!
//! Each rule is a function from [`Facts`] to findings, and a row in [`RULES`]. What is not known gives no finding; it
//! is told apart, in the caller's list of what is unknown. What a running exporter has notices of is found as it finds it, and
//! told by the rules or in the notices' own words ([`crate::notice::InCheck`]).

pub(super) mod disk;
mod engine;
mod events;
mod gpu;
mod notices;
mod page;
pub(super) mod shm;
mod upstream;

use std::path::PathBuf;

use super::Finding;
use super::lmcache;
use crate::bound::{Resolved, ResolvedTier};
use crate::host::facts::{BoxFacts, Gpu};
use crate::host::{Measured, Place};
use crate::model::Medium;
use crate::notice::kinds::{
    DROPPED_LINES, FACTS_CONTRADICT, FACTS_NOT_PLACED, IDENTITY_UNCERTAIN, TIER_SIZE_MISMATCH, TIER_SIZE_UNUSED,
    TOO_MANY_ENGINES, UNKNOWN_DIRECTION, VALUE_WITHHELD,
};
use crate::notice::{Kind, Notice};
use crate::pipeline::Survey;
use crate::settings::Settings;
use crate::upstream::UpstreamError;

pub use events::Listened;
pub use gpu::link_is_low;
pub use upstream::{Added, Extra};

/// Everything that the rules look at.
pub struct Facts<'a> {
    /// The upstream's address, fit for people.
    pub upstream: &'a str,
    /// Its page, or why there is none.
    pub page: Result<Page<'a>, &'a UpstreamError>,
    /// The further upstreams that were given.
    pub extras: &'a [Extra],
    /// What a running exporter would tell of the pages and of how they are asked for.
    pub notices: &'a [Notice],
    /// `--upstream.insecure-skip-verify`, and no upstream that is asked over TLS.
    pub idle_skip_verify: bool,
    /// What the operator said of the engine.
    pub settings: &'a Settings,
    /// `--engines`: how many engines there are, where the page does not tell.
    pub engines: u32,
    /// The box.
    pub boxed: &'a BoxFacts,
    /// `--gpu.unified`.
    pub said_unified: bool,
    /// Each disk tier's directory.
    pub disks: &'a [DiskTier],
    /// LMCache's configuration, where one was given or asked for.
    pub lmcache: Option<&'a lmcache::Config>,
    /// The GPUs of a second look, with requests running before and after it; `None` where the engine was at rest.
    pub under_load: Option<&'a [Gpu]>,
    /// The endpoints of events that were listened to.
    pub events: &'a [Listened],
    /// Whether every engine stored into its tier meanwhile; `None` where that was not looked at.
    pub stored_meanwhile: Option<bool>,
}

/// The directory of a disk tier.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskTier {
    /// As it was given.
    pub path: PathBuf,
    /// What is there; `None` where it did not answer.
    pub place: Option<Place>,
    /// What it holds; `None` where that was not counted.
    pub measured: Option<Measured>,
}

/// What the pages say.
pub struct Page<'a> {
    /// What was read from all of them.
    pub survey: &'a Survey,
    /// What was read from the main upstream's alone.
    pub main: &'a Survey,
    /// What follows from it.
    pub engines: &'a [Resolved<'a>],
}

/// A rule of `check`.
pub type Rule = fn(&Facts<'_>) -> Vec<Finding>;

/// All rules, in the order in which their findings are told.
pub const RULES: [Rule; 26] = [
    upstream::unreadable,
    upstream::idle_skip_verify,
    upstream::adds_nothing,
    engine::no_engine,
    page::no_transfers,
    page::served_by_no_tier,
    page::lmcache_is_silent,
    page::kv_groups,
    page::smaller_than_the_pool,
    page::never_reloaded,
    |facts| facts.lmcache.map(lmcache::Config::findings).unwrap_or_default(),
    shm::room,
    shm::headroom,
    shm::stale_files,
    gpu::ram_tier_on_unified_memory,
    gpu::driver,
    gpu::lost,
    gpu::headroom,
    gpu::link,
    disk::directories,
    disk::declared,
    disk::claimed,
    events::endpoints,
    events::replays,
    events::ports,
    events::ranks,
];

/// All findings.
pub fn check(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(facts)).collect();
    findings.extend(notices::untold(facts, &findings));
    findings
}

/// Those that look at nothing but the page, and say what keeps it from telling more or makes doubtful what it tells.
const OF_THE_PAGE: [Rule; 5] =
    [engine::no_engine, page::no_transfers, page::served_by_no_tier, page::lmcache_is_silent, page::kv_groups];

/// Notices of the same.
const READ_IN_PART: [&Kind; 9] = [
    &UNKNOWN_DIRECTION,
    &IDENTITY_UNCERTAIN,
    &VALUE_WITHHELD,
    &DROPPED_LINES,
    &TIER_SIZE_UNUSED,
    &TIER_SIZE_MISMATCH,
    &FACTS_NOT_PLACED,
    &FACTS_CONTRADICT,
    &TOO_MANY_ENGINES,
];

/// What a page leaves untold, where nothing but the page is known, and what a running exporter would tell of it.
pub fn of_page(upstream: &str, page: Page<'_>, notices: &[Notice], settings: &Settings) -> Vec<Finding> {
    let facts = Facts {
        upstream,
        page: Ok(page),
        extras: &[],
        notices: &notices.iter().filter(|one| READ_IN_PART.contains(&one.kind)).cloned().collect::<Vec<_>>(),
        idle_skip_verify: false,
        settings,
        engines: 1,
        boxed: &BoxFacts::default(),
        said_unified: false,
        disks: &[],
        lmcache: None,
        under_load: None,
        events: &[],
        stored_meanwhile: None,
    };
    let mut findings: Vec<Finding> = OF_THE_PAGE.iter().flat_map(|rule| rule(&facts)).collect();
    findings.extend(notices::untold(&facts, &findings));
    findings
}

/// The RAM tiers of all engines together, or what their disk tiers stage in memory.
struct RamNeed {
    what: Laid,
    /// Bytes of all engines.
    bytes: f64,
    engines: usize,
    /// The engine runs, so it has its tier already.
    started: bool,
    in_shm: InShm,
}

/// What is laid out in memory at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Laid {
    /// A tier.
    RamTier,
    /// What a disk tier copies through.
    Staging,
}

/// Whether the tier lies in shared memory, and not in memory that each rank pins for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InShm {
    Yes,
    /// The page fits versions that do and versions that do not.
    Perhaps,
    No,
}

/// The first version that lays its tier out in shared memory.
const IN_SHM_SINCE: u32 = 27;

impl Facts<'_> {
    /// `None` where there is no RAM tier of vLLM, or its size is not known.
    fn ram_need(&self) -> Option<RamNeed> {
        let declared = self.settings.tier_sizes.get("ram").map(|bytes| *bytes as f64);
        let Ok(page) = &self.page else {
            let engines = self.engines as usize;
            return Some(RamNeed {
                what: Laid::RamTier,
                bytes: declared? * engines as f64,
                engines,
                started: false,
                in_shm: InShm::Yes,
            });
        };
        let tiers: Vec<_> = page.tiers().filter(|(_, tier)| tier.tier.name == "ram").collect();
        let bytes: f64 = tiers.iter().filter_map(|(_, tier)| tier.size).map(|size| size.fact.value).sum();
        let simple = tiers.iter().any(|(_, tier)| tier.tier.connector == page::SIMPLE);
        let in_shm = if simple { InShm::No } else { page.in_shm() };
        (bytes > 0.0).then_some(RamNeed { what: Laid::RamTier, bytes, engines: tiers.len(), started: true, in_shm })
    }

    /// Whether host and GPU share one memory, and what says so.
    fn unified(&self) -> Option<String> {
        let part = self.boxed.gpus.iter().find(|gpu| gpu.unified);
        let said = || self.said_unified.then(|| "--gpu.unified says so".to_owned());
        said().or_else(|| part.map(|gpu| format!("GPU {} is {}", gpu.index, gpu.name)))
    }
}

impl<'a> Page<'a> {
    /// Every tier with its engine.
    pub(crate) fn tiers(&self) -> impl Iterator<Item = (&Resolved<'a>, &ResolvedTier<'a>)> {
        self.engines.iter().flat_map(|engine| engine.tiers.iter().map(move |tier| (engine, tier)))
    }

    /// Names of tiers that lie in host memory.
    fn ram_tiers(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.tiers().filter(|(_, t)| t.tier.medium == Medium::Ram).map(|(_, t)| t.tier.name.as_str()).collect();
        names.dedup();
        names
    }

    /// The oldest and the newest minor version that the page fits; `None` where nothing bounds it.
    fn versions(&self) -> (Option<u32>, Option<u32>) {
        let range = self.survey.snapshot.version_range.as_deref().unwrap_or_default();
        let minor = |text: &str| text.strip_prefix("0.")?.parse::<u32>().ok();
        if let Some(first_excluded) = range.strip_prefix('<').and_then(minor) {
            return (None, Some(first_excluded - 1));
        }
        match range.split_once('-') {
            Some((oldest, newest)) => (minor(oldest), minor(newest)),
            None => (minor(range.trim_end_matches('+')), minor(range)),
        }
    }

    fn in_shm(&self) -> InShm {
        match self.versions() {
            (_, Some(newest)) if newest < IN_SHM_SINCE => InShm::No,
            (Some(oldest), _) if oldest < IN_SHM_SINCE => InShm::Perhaps,
            (None, Some(_)) => InShm::Perhaps,
            _ => InShm::Yes,
        }
    }
}

/// An engine by all labels that it is told by, for people.
pub fn engine_name(engine: &Resolved<'_>) -> String {
    let id = &engine.engine.id;
    let name = match (id.model_name.as_str(), id.engine.as_str()) {
        (model, "") => format!("the engine of {model:?}"),
        (model, engine) => format!("engine {engine:?} of {model:?}"),
    };
    id.labels.iter().fold(name, |name, (label, value)| format!("{name}, {label}={value:?}"))
}
