//! The way through a page, line by line: what passes, what has to change, what is kept for a dialect.

use super::layout::{Layout, Walk, What};
use super::line::{self, Kind, Line};
use super::names::{NameId, Names};
use super::own::{Through, is_own};
use super::series::Shapes;
use super::{Counts, Edit, Exposition, Labels, LineNote, Metadata, Sample, Span};

/// How many lines that were left out are kept with their reason, and how many that passed.
const NOTES: usize = 20;

/// How much of an odd line is kept.
const NOTE_LENGTH: usize = 160;

/// One line of a page.
pub(super) struct Next<'a> {
    pub(super) line: Line<'a>,
    /// Where its line end starts: LF, CR LF or the end of the page.
    pub(super) end: usize,
    /// The whole of it, with its line end.
    pub(super) span: Span,
}

/// The line that starts at `start`.
pub(super) fn next_line<'a>(body: &'a [u8], start: usize, shapes: &mut Shapes<'a>) -> Next<'a> {
    match line::next_sample(&body[start..], shapes) {
        Some(sample) => {
            let end = start + sample.end;
            Next { line: Line::Sample(sample), end, span: Span { start, end: end + 1 } }
        }
        None => other_line(body, start, shapes),
    }
}

/// The same, where it is no sample that repeats another.
fn other_line<'a>(body: &'a [u8], start: usize, shapes: &mut Shapes<'a>) -> Next<'a> {
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
        if at == body.len() {
            return None;
        }
        let named = named_line(next_line(body, at, &mut shapes));
        at = named.1.end;
        Some(named)
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
            Line::Sample(sample) if !is_own(sample.name) => return true,
            _ => at = span.end,
        }
    }
    false
}

/// A page as far as it is read.
pub(super) struct Scan<'a, 'l> {
    page: Exposition<'a>,
    /// 1-based number of the line that starts at this place: that of the last odd line.
    numbered: (usize, usize),
    /// Whether the last sample's name is one of ours, and whether it is wanted: neighbours mostly share it.
    own: bool,
    wanted: Option<NameId>,
    /// Whether it is neither, so that its samples pass.
    passes: bool,
    shapes: Shapes<'a>,
    /// The way along the page that this one is held against.
    walk: Walk<'l>,
}

impl<'a, 'l> Scan<'a, 'l> {
    pub(super) fn new(body: &'a [u8], names: &'a Names, layout: &'l Layout) -> Scan<'a, 'l> {
        let page = Exposition {
            body,
            // About as many as a real page has wanted ones.
            samples: Vec::with_capacity(body.len() / 1024),
            seen: Vec::new(),
            metadata: Vec::new(),
            edits: Vec::new(),
            counts: Counts::default(),
            notes: Vec::new(),
            has_quoted_names: false,
            is_unfamiliar: false,
            through: Through::None,
            names,
        };
        let (shapes, walk) = (Shapes::new(body), layout.walk());
        Scan { page, numbered: (1, 0), own: false, wanted: None, passes: false, shapes, walk }
    }

    /// Reads all lines.
    pub(super) fn page(mut self) -> Exposition<'a> {
        let (mut at, mut lines, mut unknown) = (0, 0, 0);
        while at < self.page.body.len() {
            at = self.known_line(at).unwrap_or_else(|| {
                unknown += 1;
                self.line(at)
            });
            lines += 1;
        }
        self.page.is_unfamiliar = unknown > lines / 8;
        self.page
    }

    /// Reads the line that starts at `start`, if the layout has it, and returns where the next one starts.
    #[inline]
    fn known_line(&mut self, start: usize) -> Option<usize> {
        let body = self.page.body;
        let known = self.walk.step(&body[start..])?;
        let head = known.head_at(start);
        match known.what {
            What::Text => return Some(head.end),
            What::Metadata(name, kind) => {
                self.page.metadata.push((name, kind, head));
                return Some(head.end);
            }
            What::Unread | What::Wanted(_) => {}
        }
        let value = Span { start: head.end, end: head.end + line::ended_number(&body[head.end..])? };
        self.page.counts.samples += 1;
        if let What::Wanted(name) = known.what {
            self.keep(name, known.labels_at(start), value, Span { start, end: value.end + 1 });
        }
        Some(value.end + 1)
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
        let Next { line, end, span } = other_line(self.page.body, start, &mut self.shapes);
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
                if let (Kind::OpenMetrics(kind), false) = (kind, is_own(name)) {
                    self.edit(Span { start: start + kind_at.0, end: start + kind_at.1 }, kind.to_owned());
                }
                self.metadata(name, Metadata::Type, span);
            }
            Line::Sample(sample) => self.sample(&sample, span, start),
            Line::Refused(refusal) => {
                self.page.counts.dropped += 1;
                let has_quotes = memchr::memchr(b'"', span.of(self.page.body)).is_some();
                self.page.has_quoted_names |= has_quotes;
                self.note(span, if has_quotes { refusal.of_quotes() } else { refusal }.reason(), true);
                self.edit(span, String::new());
            }
        }
    }

    fn metadata(&mut self, name: &'a [u8], kind: Metadata, span: Span) {
        if is_own(name) {
            self.edit(span, String::new());
        } else if let Some(id) = self.lookup(name) {
            self.page.metadata.push((id, kind, span));
        }
    }

    #[inline]
    fn sample(&mut self, sample: &line::Sample<'a>, span: Span, start: usize) {
        if !sample.has_last_name {
            self.own = is_own(sample.name);
            self.wanted = self.lookup(sample.name);
            self.passes = !self.own && self.wanted.is_none();
        }
        if self.own {
            let (from, to) = sample.value_at;
            let value = line::number(&self.page.body[start + from..start + to]);
            self.page.through = self.page.through.max(Through::told_by(sample.name, value));
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
            self.note(span, "a label value has an escape that the format does not know", false);
        }
        if let Some(name) = self.wanted {
            let place = |(from, to): (usize, usize)| Span { start: start + from, end: start + to };
            self.keep(name, place(sample.labels), place(sample.value_at), span);
        }
    }

    fn keep(&mut self, name: NameId, labels: Span, value_at: Span, line: Span) {
        // The grammar has checked the labels as UTF-8 and the value as a number.
        let labels = std::str::from_utf8(labels.of(self.page.body)).ok();
        if let (Some(labels), Some(value)) = (labels, line::number(value_at.of(self.page.body))) {
            self.page.samples.push(Sample { name, labels: Labels::new(labels), value, line, value_at });
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

    fn note(&mut self, span: Span, reason: &'static str, is_dropped: bool) {
        let alike = self.page.notes.iter().filter(|note| note.is_dropped == is_dropped);
        if alike.count() < NOTES {
            let (number, counted) = self.numbered;
            let between = &self.page.body[counted..span.start];
            self.numbered = (number + memchr::memchr_iter(b'\n', between).count(), span.start);
            let line = span.of(self.page.body);
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let text = line[..line.len().min(NOTE_LENGTH)].escape_ascii().to_string();
            self.page.notes.push(LineNote { number: self.numbered.0, text, reason, is_dropped });
        }
    }
}
