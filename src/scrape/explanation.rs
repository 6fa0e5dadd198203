//! The frame of `/debug`: how the upstream answered, then what the pipeline explains and how the host collectors are.

use std::fmt;

use super::{Fetch, Understood};
use crate::host::Health;
use crate::own::BUILD;
use crate::upstream::UpstreamError;

/// The whole page. Texts of upstream are escaped.
pub(super) struct Explanation<'a> {
    pub(super) upstream: &'a str,
    pub(super) fetch: &'a Fetch,
    /// What the pipeline says, where there was a page.
    pub(super) explained: Option<&'a str>,
    pub(super) collectors: &'a [Health],
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kvtier-exporter {} (revision {}, rustc {})\n", BUILD.version, BUILD.revision, BUILD.rustc)?;
        writeln!(f, "upstream {}\n  took     {:?}", self.upstream, self.fetch.took)?;
        match &self.fetch.result {
            Ok(page) => up(f, page)?,
            Err(error) => down(f, error)?,
        }
        if let Some(explained) = self.explained {
            writeln!(f, "\n{}", explained.trim_end())?;
        }
        self.collectors.iter().try_for_each(|health| collector(f, health))
    }
}

fn up(f: &mut fmt::Formatter<'_>, page: &Understood) -> fmt::Result {
    let (counts, notes) = (&page.report.counts, &page.report.notes);
    writeln!(f, "  state    up\n  body     {} bytes, {:?}", page.source.body.len(), page.source.format)?;
    writeln!(f, "  lines    {} samples, {} opaque, {} dropped", counts.samples, counts.opaque, counts.dropped)?;
    notes.iter().try_for_each(|note| writeln!(f, "  line {}: {}: {}", note.number, note.reason, note.text))
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
