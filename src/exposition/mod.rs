//! A total, zero-copy scanner of the text exposition format 0.0.4.
//!
//! It looks at each line once and decides three things: whether the line may pass, whether it has
//! to be written differently to be valid text 0.0.4, and whether a dialect wants to read it. It allocates for
//! the samples that dialects want and for the lines that change, never for the others.
//!
//! It knows no family by name: which names are wanted is told by [`Names`]. It writes nothing: what has to
//! change is a list of [`Edit`]s, carried out by [`crate::rewrite`].

mod labels;
mod line;
mod series;
mod window;
mod words;

pub use labels::{Labels, unescape};

use std::ops::Range;

use line::{Kind, Line};
use series::Shapes;

/// Bytes of the page, from `start` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// First byte behind.
    pub end: usize,
}

impl Span {
    /// The bytes of `body` that this span covers.
    pub fn of(self, body: &[u8]) -> &[u8] {
        &body[self.start..self.end]
    }
}

/// Bytes of the page to be replaced; an empty text takes them out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// What goes.
    pub span: Span,
    /// What comes in its place.
    pub text: String,
}

/// Number of a wanted name in its [`Names`].
pub type NameId = usize;

/// The names that dialects and corrections read.
#[derive(Debug)]
pub struct Names {
    /// The names of each length: so few that looking through them is quicker than hashing.
    by_length: Vec<Vec<Spelling>>,
    spelled: Vec<&'static str>,
}

/// One way to write a wanted name.
#[derive(Clone, Debug)]
struct Spelling {
    /// The ends of names tell them apart sooner than their beginnings, which many share.
    end: [u8; END],
    text: String,
    id: NameId,
}

const END: usize = 8;

/// The last bytes of a name, or as many as there are.
fn end_of(name: &[u8]) -> [u8; END] {
    name.last_chunk().copied().unwrap_or_else(|| {
        let mut end = [0; END];
        end[..name.len()].copy_from_slice(name);
        end
    })
}

impl Names {
    /// The set of all `names`; one that is given twice counts once. Some clients write `_` for the colon of a name,
    /// so that spelling means the same, unless it is a wanted name itself.
    pub fn new(names: impl IntoIterator<Item = &'static str>) -> Names {
        let mut set = Names { by_length: Vec::new(), spelled: Vec::new() };
        for name in names {
            if set.add(name.to_owned(), set.spelled.len()) {
                set.spelled.push(name);
            }
        }
        for id in 0..set.spelled.len() {
            set.add(set.spelled[id].replace(':', "_"), id);
        }
        set
    }

    /// Whether the spelling is new.
    fn add(&mut self, spelling: String, id: NameId) -> bool {
        let is_new = self.id(&spelling).is_none();
        if is_new {
            let lengths = self.by_length.len().max(spelling.len() + 1);
            self.by_length.resize(lengths, Vec::new());
            let end = end_of(spelling.as_bytes());
            self.by_length[spelling.len()].push(Spelling { end, text: spelling, id });
        }
        is_new
    }

    /// The number of a name.
    pub fn id(&self, name: &str) -> Option<NameId> {
        self.find(name.as_bytes())
    }

    fn find(&self, name: &[u8]) -> Option<NameId> {
        let (alike, end) = (self.by_length.get(name.len())?, end_of(name));
        let is_it = |known: &&Spelling| known.end == end && known.text.as_bytes() == name;
        alike.iter().find(is_it).map(|known| known.id)
    }
}

/// A wanted sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Which name it has.
    pub name: NameId,
    /// Its labels.
    pub labels: Labels<'a>,
    /// Its value.
    pub value: f64,
    /// The whole line with its line end.
    pub line: Span,
    /// The text of the value.
    pub value_at: Span,
}

/// What a HELP or TYPE line of a wanted name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// HELP.
    Help,
    /// TYPE.
    Type,
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

/// What a page has of a wanted name.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Where its samples lie.
    samples: Range<usize>,
    has_type: bool,
}

/// A page as read.
#[derive(Debug)]
pub struct Exposition<'a> {
    /// The page.
    pub body: &'a [u8],
    /// Wanted samples by name, each name's in page order.
    samples: Vec<Sample<'a>>,
    /// What there is of each wanted name.
    seen: Vec<Seen>,
    /// HELP and TYPE lines of wanted names, with their line end.
    pub metadata: Vec<(NameId, Metadata, Span)>,
    /// What has to change for the page to be valid text 0.0.4, in page order.
    pub edits: Vec<Edit>,
    /// Line counts.
    pub counts: Counts,
    /// The first odd lines.
    pub notes: Vec<LineNote>,
    names: &'a Names,
}

impl<'a> Exposition<'a> {
    /// Reads a page. Any bytes are a page.
    pub fn scan(body: &'a [u8], names: &'a Names) -> Exposition<'a> {
        let mut scan = Scan::new(body, names);
        let mut at = 0;
        while at < body.len() {
            at = scan.line(at);
        }
        scan.page.sort();
        scan.page
    }

    fn sort(&mut self) {
        self.samples.sort_by_key(|sample| sample.name);
        self.seen.resize(self.names.spelled.len(), Seen::default());
        let mut end = 0;
        for samples in self.samples.chunk_by(|one, next| one.name == next.name) {
            let start = end;
            end += samples.len();
            self.seen[samples[0].name].samples = start..end;
        }
        for (name, _, _) in self.metadata.iter().filter(|(_, kind, _)| *kind == Metadata::Type) {
            self.seen[*name].has_type = true;
        }
    }

    /// The samples of a family (or of a histogram's `_sum`, `_count`), in page order.
    pub fn samples(&self, name: &str) -> &[Sample<'a>] {
        self.seen(name).map_or(&[], |seen| &self.samples[seen.samples.clone()])
    }

    /// Whether the page knows the family: by a TYPE line or a sample. A HELP line alone proves nothing.
    pub fn has(&self, name: &str) -> bool {
        self.seen(name).is_some_and(|seen| seen.has_type || !seen.samples.is_empty())
    }

    fn seen(&self, name: &str) -> Option<&Seen> {
        Some(&self.seen[self.names.id(name)?])
    }

    /// The name as this program spells it.
    pub fn spelled(&self, name: NameId) -> &'static str {
        self.names.spelled[name]
    }
}

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

struct Scan<'a> {
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
    fn new(body: &'a [u8], names: &'a Names) -> Scan<'a> {
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
