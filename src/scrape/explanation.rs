//! The frame of `/debug`: how the upstreams answered, then what the pipeline explains and how the host collectors are.

use super::target::Fetch;
use crate::host::Health;
use crate::notice::Notice;
use crate::own::BUILD;
use crate::pipeline::{PageReport, Source};
use crate::redact::Lines;
use crate::upstream::{Address, Role, UpstreamError};

/// The whole page.
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
    pub(super) role: Role,
    pub(super) address: &'a Address,
    /// Nobody verifies that it is the one that answers.
    pub(super) unverified: bool,
    pub(super) fetch: &'a Fetch,
    /// What the pipeline did with its page.
    pub(super) report: Option<&'a PageReport>,
}

impl Explanation<'_> {
    /// The page.
    pub(super) fn text(&self) -> String {
        let mut out = Lines::default();
        out.line(format_args!(
            "kvtier-exporter {} (revision {}, rustc {})",
            BUILD.version, BUILD.revision, BUILD.rustc
        ));
        self.upstreams.iter().for_each(|seen| seen.tell(&mut out));
        for notice in self.notices {
            out.gap();
            notice.tell(&mut out);
        }
        if let Some(explained) = self.explained {
            out.gap();
            out.append(explained.trim_end());
        }
        self.collectors.iter().for_each(|health| collector(&mut out, health));
        out.append(&self.events);
        out.text()
    }
}

impl Seen<'_> {
    fn tell(&self, out: &mut Lines) {
        out.gap();
        out.line(format_args!("upstream {}", self.name));
        out.line(format_args!("  address  {}", self.address));
        out.line(format_args!("  took     {:?}", self.fetch.took));
        if self.unverified {
            out.line(format_args!(
                "  trust    none: its certificate is not verified, because of --upstream.insecure-skip-verify"
            ));
        }
        match (&self.fetch.result, self.report) {
            (Ok(source), Some(report)) => up(out, source, report),
            (Ok(_), None) => down(out, &UpstreamError::Broke, self.role),
            (Err(error), _) => down(out, error, self.role),
        }
    }
}

fn up(out: &mut Lines, source: &Source, report: &PageReport) {
    let counts = &report.counts;
    out.line(format_args!("  state    up"));
    out.line(format_args!("  body     {} bytes, {:?}", source.body.len(), source.format));
    out.line(format_args!(
        "  lines    {} samples, {} opaque, {} dropped",
        counts.samples, counts.opaque, counts.dropped
    ));
    if report.merged_out > 0 {
        out.line(format_args!("  left out {} families that an earlier page or every server has", report.merged_out));
    }
    for note in &report.notes {
        out.line(format_args!("  line {}: {}: {}", note.number, note.reason, note.text));
    }
}

fn down(out: &mut Lines, error: &UpstreamError, role: Role) {
    out.line(format_args!("  state    down"));
    out.line(format_args!("  reason   {}", error.reason()));
    out.line(format_args!("  meaning  the upstream {}", error.told(role)));
    if let Some(excerpt) = error.excerpt() {
        out.line(format_args!("  it wrote {excerpt:?}"));
    }
}

fn collector(out: &mut Lines, health: &Health) {
    let state = match health.success {
        None => "has not finished a first run",
        Some(true) => "fine",
        Some(false) => "failed",
    };
    out.gap();
    out.line(format_args!("collector {}", health.name));
    let last = health.duration.zip(health.age);
    let last = last.map(|(duration, age)| format!("; last run took {duration:.1?}, its sample is {age:.1?} old"));
    out.line(format_args!("  state    {state}{}", last.unwrap_or_default()));
    for said in health.failure.iter().chain(&health.notes) {
        out.line(format_args!("  {said}"));
    }
}
