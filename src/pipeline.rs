//! The pure middle of a scrape: a page and what is known of its box in, the corrected page and our families out.
//!
//! No clock, no I/O, no global: what comes out is a function of what goes in, so two Prometheus replicas or a
//! restart of the exporter change nothing.

use bytes::Bytes;

use crate::correct::Corrected;
use crate::exposition::Exposition;
use crate::family::Family;
use crate::model::{Medium, Snapshot};
use crate::settings::{HostFacts, Settings};
use crate::{bound, correct, derive, dialect, explain, openmetrics, rewrite};

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

/// A line that did not pass as it came, or that passed without being understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineNote {
    /// 1-based number of the line.
    pub number: usize,
    /// The line, cut to a readable length, with control bytes escaped.
    pub text: String,
    /// What is odd about it.
    pub reason: &'static str,
}

/// What the scanner counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Samples that were passed on.
    pub samples: u64,
    /// Lines that Prometheus accepts and we do not understand; passed as they came.
    pub opaque: u64,
    /// Lines that would have made Prometheus refuse the whole page; left out.
    pub dropped: u64,
}

/// The result for one page.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The corrected page: slices of the body with inserts between them. Ends in a line end unless it is empty.
    pub page: Vec<Bytes>,
    /// Derived families, to be appended to the page.
    pub families: Vec<Family>,
    /// What was read, for `/debug` and our own families.
    pub snapshot: Snapshot,
    /// Line counts.
    pub counts: Counts,
    /// The first lines of each odd kind, with reasons.
    pub notes: Vec<LineNote>,
    /// What the log should say once.
    pub warnings: Vec<String>,
}

/// Runs the whole middle over one page.
pub fn process(body: &Bytes, format: Format, settings: &Settings, host: &HostFacts) -> Outcome {
    let body = text(body, format);
    let mut page = Exposition::scan(&body, &dialect::NAMES);
    let snapshot = read(&page, settings);
    let engines = bound::resolve(&snapshot, settings, host);
    let mut edits = std::mem::take(&mut page.edits);
    let corrected = correct::correct(&page, &engines, settings.correct, &mut edits);
    let mut families = derive::derive(&engines);
    families.push(correct::active(&corrected));
    Outcome {
        page: rewrite::apply(&body, edits),
        families,
        warnings: warnings(&corrected, settings),
        counts: page.counts,
        notes: std::mem::take(&mut page.notes),
        snapshot,
    }
}

/// Says how [`process`] came to its result for the same inputs, for people: the text of `/debug`.
pub fn explain(body: &Bytes, format: Format, settings: &Settings, host: &HostFacts) -> String {
    let body = text(body, format);
    let page = Exposition::scan(&body, &dialect::NAMES);
    let snapshot = read(&page, settings);
    let engines = bound::resolve(&snapshot, settings, host);
    let corrected = correct::correct(&page, &engines, settings.correct, &mut Vec::new());
    explain::explain(&snapshot, &engines, &corrected)
}

/// The page in text 0.0.4. A page that says it is text is taken at its word; its single OpenMetrics constructs
/// are mended by the scanner.
fn text(body: &Bytes, format: Format) -> Bytes {
    match format {
        Format::OpenMetrics => openmetrics::to_text(body).into(),
        Format::Unsaid if openmetrics::is_openmetrics(body) => openmetrics::to_text(body).into(),
        Format::Unsaid | Format::Text => body.clone(),
    }
}

/// Tiers that exist once the operator declares their size, also where the page shows nothing of them.
const DECLARABLE: [(&str, Medium); 3] =
    [("ram", Medium::Ram), ("lmcache_cpu", Medium::Ram), ("lmcache_disk", Medium::Disk)];

/// Reads the page, and adds the tiers that were declared. vLLM's engines always have a label. What has none is
/// SGLang, whose tiers show, or a cache server beside vLLM's engines: its tier is theirs.
fn read(page: &Exposition<'_>, settings: &Settings) -> Snapshot {
    let mut snapshot = dialect::read(page);
    for (name, medium) in DECLARABLE.iter().filter(|(name, _)| settings.tier_sizes.contains_key(*name)) {
        let (servers, engines): (Vec<_>, Vec<_>) = snapshot.engines.iter_mut().partition(|e| e.id.engine.is_empty());
        if servers.iter().all(|server| server.tier(name).is_none()) {
            for engine in engines {
                if engine.tier(name).is_none() {
                    engine.tier_or_insert(name, *medium, "unknown");
                }
            }
        }
    }
    snapshot
}

/// What a log should say once: a gauge that stays misleading although corrections are on.
fn warnings(corrected: &[Corrected], settings: &Settings) -> Vec<String> {
    let left = corrected.iter().filter(|_| settings.correct).filter_map(|one| Some((one, one.after.err()?)));
    left.map(|(one, why)| {
        format!("{} of engine {:?} passes uncorrected and reads too low: {why}", one.family, one.engine.engine)
    })
    .collect()
}
