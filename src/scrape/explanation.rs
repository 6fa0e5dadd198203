//! The frame of `/debug`: how the upstreams answered, then what the pipeline explains and how the host collectors are.

use std::fmt;

use super::target::Fetch;
use crate::host::Health;
use crate::notice::Notice;
use crate::own::BUILD;
use crate::pipeline::{PageReport, Source};
use crate::upstream::{Address, UpstreamError};

/// The whole page. Texts of upstream are escaped.
pub(super) struct Explanation<'a> {
    pub(super) upstreams: Vec<Seen<'a>>,
    /// What there is to tell of them.
    pub(super) notices: &'a [Notice],
    /// What the pipeline says, where there was a page.
    pub(super) explained: Option<&'a str>,
    pub(super) collectors: &'a [Health],
    /// What is said of the event streams.
    pub(super) events: String,
}

/// One upstream.
pub(super) struct Seen<'a> {
    pub(super) name: &'a str,
    pub(super) address: &'a Address,
    /// Nobody verifies that it is the one that answers.
    pub(super) unverified: bool,
    pub(super) fetch: &'a Fetch,
    /// What the pipeline did with its page.
    pub(super) report: Option<&'a PageReport>,
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kvtier-exporter {} (revision {}, rustc {})", BUILD.version, BUILD.revision, BUILD.rustc)?;
        self.upstreams.iter().try_for_each(|seen| seen.fmt(f))?;
        self.notices.iter().try_for_each(|notice| write!(f, "\n{notice}"))?;
        if let Some(explained) = self.explained {
            writeln!(f, "\n{}", explained.trim_end())?;
        }
        self.collectors.iter().try_for_each(|health| collector(f, health))?;
        f.write_str(&self.events)
    }
}

impl fmt::Display for Seen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nupstream {}\n  address  {}\n  took     {:?}", self.name, self.address, self.fetch.took)?;
        if self.unverified {
            writeln!(
                f,
                "  trust    none: its certificate is not verified, because of --upstream.insecure-skip-verify"
            )?;
        }
        match (&self.fetch.result, self.report) {
            (Ok(source), Some(report)) => up(f, source, report),
            (Ok(_), None) => down(f, &UpstreamError::Broke),
            (Err(error), _) => down(f, error),
        }
    }
}

fn up(f: &mut fmt::Formatter<'_>, source: &Source, report: &PageReport) -> fmt::Result {
    let counts = &report.counts;
    writeln!(f, "  state    up\n  body     {} bytes, {:?}", source.body.len(), source.format)?;
    writeln!(f, "  lines    {} samples, {} opaque, {} dropped", counts.samples, counts.opaque, counts.dropped)?;
    if report.merged_out > 0 {
        writeln!(f, "  left out {} families that an earlier page or every server has", report.merged_out)?;
    }
    report.notes.iter().try_for_each(|note| writeln!(f, "  line {}: {}: {}", note.number, note.reason, note.text))
}

fn down(f: &mut fmt::Formatter<'_>, error: &UpstreamError) -> fmt::Result {
    writeln!(f, "  state    down\n  reason   {}\n  meaning  the upstream {error}", error.reason())?;
    match error.excerpt() {
        Some(excerpt) => writeln!(f, "  it wrote {excerpt:?}"),
        None => Ok(()),
    }
}

fn collector(f: &mut fmt::Formatter<'_>, health: &Health) -> fmt::Result {
    let state = match health.success {
        None => "has not finished a first run",
        Some(true) => "fine",
        Some(false) => "failed",
    };
    write!(f, "\ncollector {}\n  state    {state}", health.name)?;
    if let (Some(duration), Some(age)) = (health.duration, health.age) {
        write!(f, "; last run took {duration:.1?}, its sample is {age:.1?} old")?;
    }
    writeln!(f)?;
    let said = health.failure.iter().chain(&health.notes);
    said.into_iter().try_for_each(|line| writeln!(f, "  {line}"))
}
