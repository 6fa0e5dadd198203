//! The pure middle of a scrape: pages and what is known of their box in, the corrected page and our families out.
//!
//! No clock, no I/O, no global: what comes out is a function of what goes in, so two Prometheus replicas or a
//! restart of the exporter change nothing.

mod body;

use std::collections::{BTreeSet, HashSet};
use std::{iter, slice};

use bytes::Bytes;

use self::body::Body;
use crate::bound::Resolved;
use crate::correct::Corrected;
use crate::dialect::lmcache_tokens::{self, CachedTokens};
use crate::dialect::serving::{self, Configured, Serving};
use crate::events::Resident;
use crate::exposition::{Counts, Edit, Exposition, Layout, LineNote, Through, has_sample, named_lines};
use crate::family::Family;
use crate::model::{DECLARED_ALONE, Engine, EngineId, Medium, Snapshot};
use crate::notice::spelling::{Spelling, Via};
use crate::notice::{self, Notice};
use crate::settings::{HostFacts, Settings};
use crate::{bound, correct, derive, dialect, explain, merge, openmetrics, rewrite};

/// How the upstream says that its page is written (its Content-Type).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The classic text format, 0.0.4 or 1.0.0.
    Text,
    /// OpenMetrics text.
    OpenMetrics,
    /// Not said, or something else: told from the page itself.
    #[default]
    Unsaid,
}

/// A page to be processed.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the upstream: [`MAIN`], or an extra's.
    pub name: String,
    /// The page as it came.
    pub body: Bytes,
    /// How it says it is written.
    pub format: Format,
}

/// Name of the main upstream.
pub const MAIN: &str = "main";

/// What the pipeline did with one page.
#[derive(Debug, Default)]
pub struct PageReport {
    /// Name of the upstream.
    pub name: String,
    /// Line counts.
    pub counts: Counts,
    /// The first odd lines, with reasons.
    pub notes: Vec<LineNote>,
    /// Families of an extra that were left out: the main page has them, or every server has them.
    pub merged_out: usize,
    /// What this page alone was recognised as.
    pub recognised: Recognised,
    /// Whether it came through another exporter of this kind.
    pub through: Through,
}

/// What a page was recognised as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recognised {
    /// See [`Snapshot::engine_kind`].
    pub engine_kind: Option<&'static str>,
    /// See [`Snapshot::dialects`].
    pub dialects: Vec<&'static str>,
    /// See [`Snapshot::version_range`].
    pub version_range: Option<String>,
    /// Through what the page came, as far as its names tell.
    pub via: Via,
}

impl From<&Snapshot> for Recognised {
    fn from(snapshot: &Snapshot) -> Recognised {
        let (dialects, version_range) = (snapshot.dialects.clone(), snapshot.version_range.clone());
        Recognised { engine_kind: snapshot.engine_kind, dialects, version_range, via: Via::Direct }
    }
}

impl Recognised {
    fn nothing(&self) -> bool {
        self.engine_kind.is_none() && self.dialects.is_empty()
    }
}

/// The result for the pages of one scrape.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The corrected page: slices of the bodies with inserts between them. Ends in a line end unless it is empty.
    pub page: Vec<Bytes>,
    /// Derived families, to be appended to the page.
    pub families: Vec<Family>,
    /// What was read.
    pub snapshot: Snapshot,
    /// A report for each source, in their order.
    pub reports: Vec<PageReport>,
    /// What is in each engine's RAM tier, where its events are followed.
    pub residents: Vec<(EngineId, Resident)>,
    /// What there is to tell of the pages.
    pub notices: Vec<Notice>,
    /// The layout was of little help with the main page: the next one may be better read beside the [`layout`] of this one.
    pub is_unfamiliar: bool,
}

/// Runs the whole middle over the pages of one scrape. Without the main page nothing is derived: the engines that the
/// extras serve are unknown then, and facts would turn up under other labels.
pub fn process(sources: &[Source], settings: &Settings, host: &HostFacts) -> Outcome {
    process_beside(Layout::none(), sources, settings, host)
}

/// The same, and sooner where the main page is much like the one that `layout` is of.
pub fn process_beside(layout: &Layout, sources: &[Source], settings: &Settings, host: &HostFacts) -> Outcome {
    let Prepared { bodies, mut reports } = prepare(sources);
    let layouts = iter::once(layout).chain(iter::repeat(Layout::none()));
    let mut pages: Vec<_> =
        bodies.iter().zip(layouts).map(|(body, layout)| body.scan_beside(layout, &dialect::NAMES)).collect();
    let snapshot = read(&pages, sources, settings);
    let engines = bound::resolve(&snapshot, settings, host);
    let mut edits: Vec<Vec<Edit>> = pages.iter_mut().map(|page| std::mem::take(&mut page.edits)).collect();
    let corrected = correct_all(&pages, &snapshot, &engines, settings, &mut edits);
    let facts = notice::page::Facts {
        main: MAIN,
        snapshot: &snapshot,
        engines: &engines,
        corrected: &corrected,
        settings,
        host,
    };
    let mut notices = Vec::new();
    let mut families = derive::derive(&engines);
    families.push(correct::active(&corrected));
    let mut is_unfamiliar = false;
    if let (Some(report), Some(page)) = (reports.iter_mut().find(|report| report.name == MAIN), pages.first_mut()) {
        report.recognised = match sources {
            [_] => Recognised::from(&snapshot),
            _ => Recognised::from(&dialect::read(slice::from_ref(page))),
        };
        report.counts = std::mem::take(&mut page.counts);
        report.notes = std::mem::take(&mut page.notes);
        report.through = page.through;
        is_unfamiliar = page.is_unfamiliar;
        notices = notice::page::of_engines(&facts);
    }
    for (report, source) in reports.iter_mut().zip(sources) {
        let main = bodies.first().filter(|_| source.name == MAIN);
        let further = || body_of(&source.body, source.format).with_plain_names().clone();
        notices.extend(of_page(report, || main.map_or_else(further, |body| body.with_plain_names().clone())));
    }
    Outcome {
        page: bodies.iter().zip(edits).flat_map(|(body, edits)| rewrite::apply(body.bytes(), edits)).collect(),
        families,
        residents: residents(&engines),
        notices: notice::bounded(notices),
        reports,
        snapshot,
        is_unfamiliar,
    }
}

/// The layout of a page, for [`process_beside`]. A page in OpenMetrics has none: to turn it into text costs more than to
/// read it.
pub fn layout(source: &Source) -> Layout {
    if is_openmetrics(&source.body, source.format) {
        return Layout::default();
    }
    Layout::of(&source.body, &dialect::NAMES)
}

/// Says how [`process`] came to its result for the same inputs, for people: the text of `/debug`.
pub fn explain(sources: &[Source], settings: &Settings, host: &HostFacts) -> String {
    review(sources, settings, host, explain::explain)
}

/// Works out once more, for the same inputs, what [`process`] found on its way, and shows it to `show`.
pub fn review<T>(
    sources: &[Source],
    settings: &Settings,
    host: &HostFacts,
    show: impl FnOnce(&Snapshot, &[Resolved<'_>], &[Corrected]) -> T,
) -> T {
    let bodies = prepare(sources).bodies;
    let pages: Vec<Exposition<'_>> = bodies.iter().map(|body| body.scan(&dialect::NAMES)).collect();
    let snapshot = read(&pages, sources, settings);
    let engines = bound::resolve(&snapshot, settings, host);
    let corrected = correct_all(&pages, &snapshot, &engines, settings, &mut vec![Vec::new(); pages.len()]);
    show(&snapshot, &engines, &corrected)
}

/// What the pages of one scrape say, for the commands around a launch. Nothing is corrected.
#[derive(Debug, Default)]
pub struct Survey {
    /// What the dialects read.
    pub snapshot: Snapshot,
    /// How each engine serves.
    pub serving: Vec<Serving>,
    /// What each LMCache inside an engine stored and gave back.
    pub cached_tokens: Vec<CachedTokens>,
    /// How each engine was told to offload.
    pub configured: Vec<Configured>,
    /// The names of all metrics on the pages.
    pub names: BTreeSet<String>,
}

/// Reads the pages of one scrape. [`bound::resolve`] works out what follows from the snapshot.
pub fn survey(sources: &[Source], settings: &Settings) -> Survey {
    let bodies = prepare(sources).bodies;
    let pages: Vec<Exposition<'_>> = bodies.iter().map(|body| body.scan(&dialect::NAMES)).collect();
    let serving: Vec<Exposition<'_>> = bodies.iter().map(|body| body.scan(&serving::NAMES)).collect();
    let names = bodies.iter().flat_map(|body| named_lines(body.bytes())).filter_map(|(name, _)| name);
    let snapshot = read(&pages, sources, settings);
    Survey {
        serving: serving.iter().flat_map(|page| serving::read(page, &snapshot)).collect(),
        cached_tokens: serving.iter().flat_map(|page| lmcache_tokens::read(page, &snapshot)).collect(),
        configured: serving.iter().flat_map(serving::configured).collect(),
        names: names.map(|name| String::from_utf8_lossy(name).into_owned()).collect(),
        snapshot,
    }
}

/// Whether a page is nothing but lines that cannot be passed on: an error page in plain text, or something binary.
pub fn is_garbage(body: &Bytes, format: Format) -> bool {
    let counts = body_of(body, format).scan(&dialect::NAMES).counts;
    counts.samples == 0 && counts.dropped > 0
}

/// Whether the first lines have a sample in them, as those of a good page have: that is told much sooner than whether
/// [`is_garbage`], and rules it out.
pub fn begins_well(body: &Bytes, format: Format) -> bool {
    let beginning = memchr::memrchr(b'\n', &body[..body.len().min(BEGINNING)]).map_or(0, |end| end + 1);
    has_sample(&text(&body.slice(..beginning), format))
}

/// How much of a page is looked at first.
const BEGINNING: usize = 4096;

/// The pages that are read and written.
struct Prepared {
    /// The main page, where it is there, and all further ones joined.
    bodies: Vec<Body>,
    /// For each source; the main page's is filled in when it is scanned.
    reports: Vec<PageReport>,
}

/// The pages in text 0.0.4: the main one as it came, the further ones cleaned and joined into one, without what the
/// main one has.
fn prepare(sources: &[Source]) -> Prepared {
    let (mut bodies, mut reports, mut further) = (Vec::new(), Vec::new(), Vec::new());
    for source in sources {
        let body = body_of(&source.body, source.format);
        let mut report = PageReport { name: source.name.clone(), ..PageReport::default() };
        if source.name == MAIN {
            bodies.push(body);
        } else {
            let page = body.scan(&dialect::NAMES);
            report.recognised = Recognised::from(&dialect::read(slice::from_ref(&page)));
            (report.counts, report.notes, report.through) = (page.counts, page.notes, page.through);
            further.push(rewrite::apply(body.bytes(), page.edits).concat());
        }
        reports.push(report);
    }
    if !further.is_empty() {
        let joined = merge::join(bodies.first().map_or(b"", |main: &Body| main.with_plain_names()), &further);
        let further = reports.iter_mut().filter(|report| report.name != MAIN);
        for (report, part) in further.zip(joined.parts) {
            (report.merged_out, report.counts.samples) = (part.left_out, part.samples);
        }
        let through = reports.iter().map(|report| report.through).max().unwrap_or_default();
        bodies.push(Body::new(joined.text.into()).come_through(through));
    }
    Prepared { bodies, reports }
}

/// The page in text 0.0.4. A page that says it is text is taken at its word; its single OpenMetrics constructs
/// are mended by the scanner.
pub fn text(body: &Bytes, format: Format) -> Bytes {
    if is_openmetrics(body, format) { openmetrics::to_text(body).into() } else { body.clone() }
}

fn body_of(body: &Bytes, format: Format) -> Body {
    if is_openmetrics(body, format) { Body::from_openmetrics(body) } else { Body::new(body.clone()) }
}

fn is_openmetrics(body: &[u8], format: Format) -> bool {
    match format {
        Format::OpenMetrics => true,
        Format::Unsaid => openmetrics::is_openmetrics(body),
        Format::Text => false,
    }
}

/// Tiers that exist once the operator declares their size, also where the page shows nothing of them.
const DECLARABLE: [(&str, Medium); 3] =
    [("ram", Medium::Ram), ("lmcache_cpu", Medium::Ram), ("lmcache_disk", Medium::Disk)];

/// Reads the pages, and adds the tiers that were declared. vLLM's engines always have a label. What has none is
/// SGLang, whose tiers show, or a cache server beside vLLM's engines: its tier is theirs, where its labels are theirs too.
fn read(pages: &[Exposition<'_>], sources: &[Source], settings: &Settings) -> Snapshot {
    let mut snapshot = dialect::read(pages);
    if sources.iter().all(|source| source.name != MAIN) {
        snapshot.engines.clear();
    }
    for (name, medium) in DECLARABLE.iter().filter(|(name, _)| settings.tier_sizes.contains_key(*name)) {
        let (servers, engines): (Vec<_>, Vec<_>) = snapshot.engines.iter_mut().partition(|e| e.id.engine.is_empty());
        for engine in engines {
            let is_its = |server: &&mut Engine| server.tier(name).is_some() && engine.id.has(&server.id.labels);
            if engine.tier(name).is_none() && !servers.iter().any(is_its) {
                engine.tier_or_insert(name, *medium, DECLARED_ALONE);
            }
        }
    }
    snapshot
}

fn correct_all(
    pages: &[Exposition<'_>],
    snapshot: &Snapshot,
    engines: &[Resolved<'_>],
    settings: &Settings,
    edits: &mut [Vec<Edit>],
) -> Vec<Corrected> {
    let pages = pages.iter().zip(edits);
    let corrected = pages.flat_map(|(page, edits)| correct::correct(page, snapshot, engines, settings.correct, edits));
    // A further page may have the family of an engine once more, with `_` for the colon of its name.
    let mut told = HashSet::new();
    corrected.filter(|one| told.insert((one.family, one.engine.clone()))).collect()
}

fn residents(engines: &[Resolved<'_>]) -> Vec<(EngineId, Resident)> {
    let one =
        |engine: &Resolved<'_>| Some((engine.engine.id.clone(), engine.tiers.iter().find_map(|tier| tier.resident)?));
    engines.iter().filter_map(one).collect()
}

/// What there is to tell of one page alone, which `text` gives. The names of one that nothing was recognised on are looked through.
fn of_page(report: &mut PageReport, text: impl FnOnce() -> Bytes) -> Vec<Notice> {
    let is_main = report.name == MAIN;
    let lines = notice::page::of_lines(&report.name, &report.counts, &report.notes);
    let through = notice::page::of_way(&report.name, report.through);
    let strange = report.recognised.nothing().then(text);
    let strange = strange.filter(|body| is_main || Spelling::may_be_of_an_engine(body));
    let names = strange.map(|body| Spelling::of(&body)).and_then(|spelling| {
        report.recognised.via = spelling.via();
        notice::page::of_names(&report.name, is_main, &spelling)
    });
    names.into_iter().chain(through).chain(lines).collect()
}
