//! The pure middle of a scrape: a page and what is known of its box in, the corrected page and our families out.
//!
//! No clock, no I/O, no global: what comes out is a function of what goes in, so two Prometheus replicas or a
//! restart of the exporter change nothing.

use bytes::Bytes;

use crate::family::Family;
use crate::model::Snapshot;
use crate::settings::{HostFacts, Settings};

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
    /// What `/debug` says of engines, tiers, bounds and corrections.
    pub explanation: String,
}

/// Runs the whole middle over one page.
pub fn process(body: &Bytes, _format: Format, _settings: &Settings, _host: &HostFacts) -> Outcome {
    Outcome { page: vec![body.clone()], ..Outcome::default() }
}
