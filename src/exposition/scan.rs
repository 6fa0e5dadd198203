//! The way through a page, line by line: what passes, what has to change, what is kept for a dialect.

use super::line::{self, Kind, Line};
use super::names::{NameId, Names};
use super::series::Shapes;
use super::{Counts, Edit, Exposition, Labels, LineNote, Metadata, Sample, Span};

/// How many odd lines are kept with their reason.
const NOTES: usize = 20;

/// How much of an odd line is kept.
const NOTE_LENGTH: usize = 160;

/// Families of ours in the page come from another exporter in front of it; ours replace them.
const OWN_PREFIX: &[u8] = b"kvtier_";

/// One line of a page.
struct Next<'a> {
    line: Line<'a>,
    /// Where its line end starts: LF, CR LF or the end of the page.
    end: usize,
    /// The whole of it, with its line end.
    span: Span,
}

fn next_line<'a>(body: &'a [u8], start: usize, shapes: &mut Shapes<'a>) -> Next<'a> {
    let (line, end) = line::read(&body[start..], shapes);
    let end = start + end;
    let line_end = match &body[end..] {
        [b'\r', b'\n', ..] => 2,
        [b'\n', ..] => 1,
        _ => 0,
    };
    Next { line, end, span: Span { start, end: end + line_end } }
}

/// Every line of a page with the metric name in it, for those who sort lines by family.
pub fn named_lines(body: &[u8]) -> impl Iterator<Item = (Option<&[u8]>, Span)> {
    let (mut at, mut shapes) = (0, Shapes::new(body));
    std::iter::from_fn(move || {
        let rest = body.get(at..).filter(|rest| !rest.is_empty())?;
        let (name, span) = match line::next_sample(rest, &mut shapes) {
            Some(sample) => (Some(sample.name), Span { start: at, end: at + sample.end + 1 }),
            None => named_line(next_line(body, at, &mut shapes)),
        };
        at = span.end;
        Some((name, span))
    })
}

fn named_line(Next { line, span, .. }: Next<'_>) -> (Option<&[u8]>, Span) {
    let name = match line {
        Line::Help { name } | Line::Type { name, .. } => Some(name),
        Line::Sample(sample) => Some(sample.name),
        Line::Blank | Line::Comment | Line::EndMark | Line::Refused(_) => None,
    };
    (name, span)
}

/// Whether any line is a sample, and not one of ours. It looks no further than the first.
pub fn has_sample(body: &[u8]) -> bool {
    let (mut at, mut shapes) = (0, Shapes::new(body));
    while at < body.len() {
        let Next { line, span, .. } = next_line(body, at, &mut shapes);
        match line {
            Line::Sample(sample) if !sample.name.starts_with(OWN_PREFIX) => return true,
            _ => at = span.end,
        }
    }
    false
}

/// A page as far as it is read.
pub(super) struct Scan<'a> {
    page: Exposition<'a>,
    /// 1-based number of the line that starts at this place: that of the last odd line.
    numbered: (usize, usize),
    /// Whether the last sample's name is one of ours, and whether it is wanted: neighbours mostly share it.
    own: bool,
    wanted: Option<NameId>,
    /// Whether it is neither, so that its samples pass.
    passes: bool,
    shapes: Shapes<'a>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(body: &'a [u8], names: &'a Names) -> Scan<'a> {
        let page = Exposition {
            body,
            // About as many as a real page has wanted ones.
            samples: Vec::with_capacity(body.len() / 1024),
            seen: Vec::new(),
            metadata: Vec::new(),
            edits: Vec::new(),
            counts: Counts::default(),
            notes: Vec::new(),
            names,
        };
        Scan { page, numbered: (1, 0), own: false, wanted: None, passes: false, shapes: Shapes::new(body) }
    }

    /// Reads all lines.
    pub(super) fn page(mut self) -> Exposition<'a> {
        let mut at = 0;
        while at < self.page.body.len() {
            at = self.line(at);
        }
        self.page
    }

    /// Reads the line that starts at `start` and returns where the next one starts.
    fn line(&mut self, start: usize) -> usize {
        if let Some(sample) = line::next_sample(&self.page.body[start..], &mut self.shapes) {
            let end = start + sample.end + 1;
            if sample.has_last_name && self.passes {
                self.page.counts.samples += 1;
            } else {
                self.sample(&sample, Span { start, end }, start);
            }
            return end;
        }
        let Next { line, end, span } = next_line(self.page.body, start, &mut self.shapes);
        self.take(line, span, start);
        // An edit that takes out the line has taken its line end too.
        let gone = self.page.edits.last().is_some_and(|edit| edit.span.end > end);
        if span.end == end + 2 && !gone {
            self.edit(Span { start: end, end: end + 1 }, String::new());
        }
        span.end
    }

    fn take(&mut self, read: Line<'a>, span: Span, start: usize) {
        match read {
            Line::Blank | Line::Comment => {}
            Line::EndMark => self.edit(span, String::new()),
            Line::Help { name } => self.metadata(name, Metadata::Help, span),
            Line::Type { name, kind, kind_at } => {
                if let (Kind::OpenMetrics(kind), false) = (kind, name.starts_with(OWN_PREFIX)) {
                    self.edit(Span { start: start + kind_at.0, end: start + kind_at.1 }, kind.to_owned());
                }
                self.metadata(name, Metadata::Type, span);
            }
            Line::Sample(sample) => self.sample(&sample, span, start),
            Line::Refused(refusal) => {
                self.page.counts.dropped += 1;
                self.note(span, refusal.reason());
                self.edit(span, String::new());
            }
        }
    }

    fn metadata(&mut self, name: &'a [u8], kind: Metadata, span: Span) {
        if name.starts_with(OWN_PREFIX) {
            self.edit(span, String::new());
        } else if let Some(id) = self.lookup(name) {
            self.page.metadata.push((id, kind, span));
        }
    }

    #[inline]
    fn sample(&mut self, sample: &line::Sample<'a>, span: Span, start: usize) {
        if !sample.has_last_name {
            self.own = sample.name.starts_with(OWN_PREFIX);
            self.wanted = self.lookup(sample.name);
            self.passes = !self.own && self.wanted.is_none();
        }
        if self.own {
            return self.edit(span, String::new());
        }
        self.page.counts.samples += 1;
        if sample.is_openmetrics {
            let stamp = line::milliseconds(&self.page.body[start..], sample);
            let stamp = stamp.map(|stamp| format!(" {stamp}")).unwrap_or_default();
            self.edit(Span { start: start + sample.value_at.1, end: start + sample.end }, stamp);
        }
        if sample.odd_escape {
            self.page.counts.opaque += 1;
            self.note(span, "a label value has an escape that the format does not know");
        }
        if let Some(name) = self.wanted {
            self.keep(name, sample, span, start);
        }
    }

    fn keep(&mut self, name: NameId, sample: &line::Sample<'a>, span: Span, start: usize) {
        let value_at = Span { start: start + sample.value_at.0, end: start + sample.value_at.1 };
        // The grammar has checked the labels as UTF-8 and the value as a number.
        let labels = Span { start: start + sample.labels.0, end: start + sample.labels.1 };
        let labels = std::str::from_utf8(labels.of(self.page.body)).ok();
        if let (Some(labels), Some(value)) = (labels, line::number(value_at.of(self.page.body))) {
            self.page.samples.push(Sample { name, labels: Labels::new(labels), value, line: span, value_at });
        }
    }

    fn lookup(&self, name: &[u8]) -> Option<NameId> {
        self.page.names.find(name)
    }

    /// Lines that go one after the other are one edit: a page of nothing else would need many times its own memory.
    fn edit(&mut self, span: Span, text: String) {
        match self.page.edits.last_mut() {
            Some(last) if last.text.is_empty() && text.is_empty() && last.span.end == span.start => {
                last.span.end = span.end;
            }
            _ => self.page.edits.push(Edit { span, text }),
        }
    }

    fn note(&mut self, span: Span, reason: &'static str) {
        if self.page.notes.len() < NOTES {
            let (number, counted) = self.numbered;
            let between = &self.page.body[counted..span.start];
            self.numbered = (number + memchr::memchr_iter(b'\n', between).count(), span.start);
            let line = span.of(self.page.body);
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let text = line[..line.len().min(NOTE_LENGTH)].escape_ascii().to_string();
            self.page.notes.push(LineNote { number: self.numbered.0, text, reason });
        }
    }
}
