//! What `/api/status` says: the snapshot of a scrape as JSON, for the status page and for anybody's own tools.
//!
//! Pure: what a scrape has read and worked out in, one serializable value out. Nothing is computed here that is
//! not on `/metrics` or in `/debug` too; only the form is another one. Every field is always there. What is not
//! known is `null`, never 0, and units are part of the names, as they are in metrics.
//!
//! The fields are documented in `docs/status-api.md`; a test compares that table with what is served. A field may
//! be added under the same `schema`; one that goes or changes its meaning raises it.

mod engine;
mod events;
mod host;

use std::time::Duration;

use serde::Serialize;

use crate::notice::{Kind, Notice};
use crate::own::{Build, Visit};
use crate::upstream::{Role, UpstreamError};

pub use engine::{Engine, engines};
pub use events::{Events, Stream};
pub use host::Host;

/// Raised when a field goes or changes its meaning.
pub const SCHEMA: u32 = 1;

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it was put together, in seconds since 1970.
    pub time_unix_seconds: f64,
    /// This program.
    pub exporter: Exporter,
    /// What was fetched, the engine's page first.
    pub upstreams: Vec<Upstream>,
    /// What there is to tell of them now.
    pub notices: Vec<Told>,
    /// Every engine on the pages; empty while the main one is down.
    pub engines: Vec<Engine>,
    /// The event streams that are followed; empty without `--events`.
    pub event_streams: Vec<Stream>,
    /// The box that the exporter runs on.
    pub host: Host,
}

/// A notice.
#[derive(Clone, Debug, Serialize)]
pub struct Told {
    /// Its stable name, as the `id` label in metrics.
    pub id: &'static str,
    /// Value of the `upstream` label in metrics.
    pub upstream: String,
    /// What was seen. Foreign text in parts.
    pub seen: String,
    /// What it means.
    pub what: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// What to do.
    #[serde(rename = "do")]
    pub action: &'static str,
}

impl Told {
    /// Describes a notice.
    pub fn new(notice: &Notice) -> Told {
        let Kind { id, what, why, action, .. } = *notice.kind;
        Told { id, upstream: notice.upstream.clone(), seen: notice.seen(), what, why, action }
    }
}

/// This program.
#[derive(Clone, Debug, Serialize)]
pub struct Exporter {
    /// Version of the package.
    pub version: &'static str,
    /// Commit, or `unknown`.
    pub revision: &'static str,
    /// When it started, in seconds since 1970.
    pub started_unix_seconds: f64,
    /// Whether corrections are on (`--correct`).
    pub corrections_on: bool,
}

impl Exporter {
    /// Describes this build.
    pub fn new(build: &Build, started: f64, corrections_on: bool) -> Exporter {
        Exporter { version: build.version, revision: build.revision, started_unix_seconds: started, corrections_on }
    }
}

/// How one upstream answered.
#[derive(Clone, Debug, Serialize)]
pub struct Upstream {
    /// Value of the `upstream` label in metrics.
    pub name: String,
    /// Address, without what is secret in it.
    pub address: String,
    /// Whether its page came.
    pub up: bool,
    /// Why not, as the `reason` label in metrics.
    pub reason: Option<&'static str>,
    /// Why not, as a sentence.
    pub message: Option<String>,
    /// What it wrote instead of a page. Foreign text.
    pub excerpt: Option<String>,
    /// How long the fetch took, or took to fail.
    pub fetch_seconds: f64,
    /// Time since the page came.
    pub age_seconds: Option<f64>,
    /// Size of the page.
    pub body_bytes: Option<u64>,
    /// Samples that were passed on.
    pub samples: Option<u64>,
    /// Lines passed on without being understood.
    pub opaque_lines: Option<u64>,
    /// Lines left out, since they would have cost the whole scrape.
    pub dropped_lines: Option<u64>,
    /// What serves the page.
    pub engine_kind: Option<&'static str>,
    /// Versions that fit its families.
    pub version_range: Option<String>,
    /// Names of the dialects that recognised something.
    pub dialects: Vec<&'static str>,
    /// What was read and could not be placed, in words.
    pub notes: Vec<String>,
}

impl Upstream {
    /// Describes a visit to an upstream of that role; `error` is what its reason stands for.
    pub fn new(visit: &Visit<'_>, role: Role, address: String, error: Option<&UpstreamError>) -> Upstream {
        let page = visit.result.as_ref().ok();
        let recognised = page.map(|page| page.recognised);
        Upstream {
            name: visit.upstream.to_owned(),
            address,
            up: page.is_some(),
            reason: error.map(UpstreamError::reason),
            message: error.map(|error| format!("The upstream {}", error.told(role))),
            excerpt: error.and_then(UpstreamError::excerpt).map(str::to_owned),
            fetch_seconds: visit.took.as_secs_f64(),
            age_seconds: page.map(|page| page.age).as_ref().map(Duration::as_secs_f64),
            body_bytes: page.map(|page| page.bytes as u64),
            samples: page.map(|page| page.counts.samples),
            opaque_lines: page.map(|page| page.counts.opaque),
            dropped_lines: page.map(|page| page.counts.dropped),
            engine_kind: recognised.and_then(|recognised| recognised.engine_kind),
            version_range: recognised.and_then(|recognised| recognised.version_range.clone()),
            dialects: recognised.map(|recognised| recognised.dialects.clone()).unwrap_or_default(),
            notes: page.map(|page| page.notes.iter().map(|note| note.text.clone()).collect()).unwrap_or_default(),
        }
    }
}
