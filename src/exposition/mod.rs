//! A total, zero-copy scanner of the text exposition format 0.0.4.
//!
//! It looks at each line once and decides three things: whether the line may pass, whether it has
//! to be written differently to be valid text 0.0.4, and whether a dialect wants to read it. It allocates for
//! the samples that dialects want and for the lines that change, never for the others. What most lines of a page are is
//! told by an earlier page of the same server, if there is one: see [`Layout`].
//!
//! It knows no family by name: which names are wanted is told by [`Names`]. It writes nothing: what has to
//! change is a list of [`Edit`]s, carried out by [`crate::rewrite`].

mod compare;
mod labels;
mod layout;
mod line;
mod names;
mod own;
mod scan;
mod series;
mod window;
mod words;

use std::ops::Range;

pub use labels::{Labels, unescape};
pub use layout::Layout;
pub use names::{NameId, Names};
pub use own::Through;
use scan::Scan;
pub use scan::{has_sample, named_lines};

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
    /// Whether it was left out.
    pub is_dropped: bool,
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
    /// A line was refused in which a name may stand in quotes, as text 1.0.0 has them: see [`crate::openmetrics::unquoted`].
    pub has_quoted_names: bool,
    /// The layout that it was read beside was of little help: more than an eighth of the lines had to be read in full.
    pub is_unfamiliar: bool,
    /// Whether another exporter of this kind stood before this one.
    pub through: Through,
    names: &'a Names,
}

impl<'a> Exposition<'a> {
    /// Reads a page. Any bytes are a page.
    pub fn scan(body: &'a [u8], names: &'a Names) -> Exposition<'a> {
        Exposition::scan_beside(Layout::none(), body, names)
    }

    /// The same, and sooner where the page is much like the one that `layout` is of, which was made for these names.
    pub fn scan_beside(layout: &Layout, body: &'a [u8], names: &'a Names) -> Exposition<'a> {
        let mut page = Scan::new(body, names, layout).page();
        page.sort();
        page
    }

    fn sort(&mut self) {
        self.samples.sort_by_key(|sample| sample.name);
        self.seen.resize(self.names.count(), Seen::default());
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

    /// Where the samples of a family stand among all that are wanted.
    pub fn places(&self, name: &str) -> Range<usize> {
        self.seen(name).map_or(0..0, |seen| seen.samples.clone())
    }

    /// How many samples are wanted.
    pub fn wanted(&self) -> usize {
        self.samples.len()
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
        self.names.spelled(name)
    }
}
