//! What was found out of the lines of a page, so that the next pages of the same server are not taken apart again.
//!
//! From one scrape to the next a server changes its numbers and little else: up to its value a line is mostly, byte for
//! byte, the one that stood there before. What such a line is follows from these bytes alone, so it costs a comparison
//! and a look at its number. This is a matter of speed: a page reads the same beside any other, and beside none.

use super::line::{Kind, LONGEST_QUOTE, Line};
use super::names::{NameId, Names};
use super::scan::{is_own, next_line};
use super::series::Shapes;
use super::{Metadata, Span};

/// A page with what was found out of its lines.
#[derive(Debug, Default)]
pub struct Layout {
    /// A copy: the memory that the page came in is wanted for the next one.
    page: Vec<u8>,
    lines: Vec<Known>,
    /// How many lines have to be looked at each time.
    odd: usize,
}

/// A line that passes as it comes, whatever its value is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Where it starts.
    start: u32,
    /// How many bytes say what it is: a sample's up to its value, all of any other line.
    head: u32,
    /// What lies between its braces, counted from its start.
    labels: (u32, u32),
    pub(super) what: What,
}

/// What a line is to the scanner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    /// Blank, a comment, or metadata of a family that nobody reads.
    Text,
    /// Metadata of a wanted name.
    Metadata(NameId, Metadata),
    /// A sample that nobody reads.
    Unread,
    /// A wanted sample.
    Wanted(NameId),
}

impl Layout {
    /// The largest page that is laid out. It stays in memory, and that of a larger one is worth more than the time.
    pub const LARGEST: usize = 512 << 10;

    /// That of an empty page.
    pub fn none() -> &'static Layout {
        static NONE: Layout = Layout { page: Vec::new(), lines: Vec::new(), odd: 0 };
        &NONE
    }

    /// The layout of a page from which these names are wanted. One that is larger than [`Layout::LARGEST`] has none.
    pub fn of(page: &[u8], names: &Names) -> Layout {
        if page.len() > Layout::LARGEST {
            return Layout::default();
        }
        let mut layout = Layout { page: page.to_vec(), lines: Vec::new(), odd: 0 };
        let (mut at, mut shapes) = (0, Shapes::new(page));
        while at < page.len() {
            let next = next_line(page, at, &mut shapes);
            let ends_plainly = next.span.end == next.end + 1;
            match Known::new(&next.line, next.span, names).filter(|_| ends_plainly) {
                Some(known) => layout.lines.push(known),
                None => layout.odd += 1,
            }
            at = next.span.end;
        }
        layout
    }

    /// The way along this page, beside another one.
    pub(super) fn walk(&self) -> Walk<'_> {
        Walk { layout: self, next: 0, missed: 0, unknown: 0 }
    }
}

impl Known {
    fn new(line: &Line<'_>, span: Span, names: &Names) -> Option<Known> {
        let (mut head, mut labels) = (span.end - span.start, (0, 0));
        let metadata = |name, kind| names.find(name).map_or(What::Text, |id| What::Metadata(id, kind));
        let what = match line {
            Line::Blank | Line::Comment => What::Text,
            Line::Help { name } if !is_own(name) => metadata(name, Metadata::Help),
            Line::Type { name, kind: Kind::Text, .. } if !is_own(name) => metadata(name, Metadata::Type),
            Line::Sample(sample) if !is_own(sample.name) && !sample.odd_escape => {
                (head, labels) = (sample.value_at.0, sample.labels);
                names.find(sample.name).map_or(What::Unread, What::Wanted)
            }
            _ => return None,
        };
        let [start, length, from, to] = [span.start, head, labels.0, labels.1].map(|place| place as u32);
        // Quotes may span lines up to a limit, which a longer number must not take this one beyond.
        (head < LONGEST_QUOTE / 2).then_some(Known { start, head: length, labels: (from, to), what })
    }

    /// The bytes that say what it is, where the same line starts at this place of another page.
    pub(super) fn head_at(&self, start: usize) -> Span {
        Span { start, end: start + self.head as usize }
    }

    /// What lies between its braces there.
    pub(super) fn labels_at(&self, start: usize) -> Span {
        Span { start: start + self.labels.0 as usize, end: start + self.labels.1 as usize }
    }
}

/// The way along a page that was laid out, beside another one.
#[derive(Debug)]
pub(super) struct Walk<'l> {
    layout: &'l Layout,
    /// The line behind the last that both pages have.
    next: usize,
    /// How many lines of the other page came since.
    missed: usize,
    /// How many of all its lines were not known.
    unknown: usize,
}

impl Walk<'_> {
    /// The line at the start of `text`, if this page has it in the same place. The value of a sample is still to be
    /// looked at.
    #[inline]
    pub(super) fn step(&mut self, text: &[u8]) -> Option<Known> {
        let known = self.layout.lines.get(self.next)?;
        if !self.is_at_start(known, text) {
            return self.search(text);
        }
        (self.next, self.missed) = (self.next + 1, 0);
        Some(*known)
    }

    /// Where lines have changed, and are not new, as many of this page were passed over.
    #[cold]
    fn search(&mut self, text: &[u8]) -> Option<Known> {
        let place = self.next + self.missed;
        let found = self.layout.lines.get(place).filter(|known| self.is_at_start(known, text)).copied();
        if found.is_some() {
            (self.next, self.missed) = (place + 1, 0);
        } else {
            (self.missed, self.unknown) = (self.missed + 1, self.unknown + 1);
        }
        found
    }

    #[inline]
    fn is_at_start(&self, known: &Known, text: &[u8]) -> bool {
        text.starts_with(known.head_at(known.start as usize).of(&self.layout.page))
    }

    /// Whether so much of the other page was new that it had better be laid out itself: that takes as long as to read it.
    pub(super) fn is_astray(&self, page: &[u8]) -> bool {
        let Layout { page: own, lines, odd } = self.layout;
        let has_grown = page.len().abs_diff(own.len()) > own.len() / 8;
        page.len() <= Layout::LARGEST && (has_grown || self.unknown > odd + lines.len() / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::Exposition;

    const PAGE: &str = "# TYPE a gauge\na{x=\"1\"} 1\na{x=\"2\"} 2\n# HELP b B.\nb 3\nc 4\nd 5\ne 6\nf 7\ng 8\n";

    /// How many lines of another page are not known beside [`PAGE`].
    fn unknown(page: &str) -> usize {
        let layout = Layout::of(PAGE.as_bytes(), &Names::new(["a"]));
        let (mut walk, mut unknown) = (layout.walk(), 0);
        for line in page.split_inclusive('\n') {
            unknown += usize::from(walk.step(line.as_bytes()).is_none());
        }
        unknown
    }

    #[test]
    fn a_line_is_known_up_to_its_value() {
        assert_eq!(unknown(PAGE), 0);
        assert_eq!(unknown(&PAGE.replace(" 4\n", " 1.5e+06\n").replace(" 3\n", " NaN\n")), 0);
        assert_eq!(unknown(&PAGE.replace("HELP b B.", "HELP b C.")), 1);
    }

    #[test]
    fn what_comes_behind_new_lines_and_changed_ones_is_known() {
        assert_eq!(unknown(&PAGE.replace("b 3\n", "b 3\nb2 1\nb3 1\nb4 1\n")), 3);
        assert_eq!(unknown(&PAGE.replace("b 3\nc 4\nd", "b2 3\nc2 4\nd")), 2);
        // Servers hardly ever take lines away, other than with all the rest when they start again.
        assert_eq!(unknown(&PAGE.replace("# HELP b B.\n", "")), 6);
    }

    #[test]
    fn a_page_is_laid_out_anew_when_much_of_it_is_new() {
        let names = Names::new(["a"]);
        let is_changed =
            |layout: &Layout, page: &str| Exposition::scan_beside(layout, page.as_bytes(), &names).is_changed;
        let layout = Layout::of(PAGE.as_bytes(), &names);
        assert!(is_changed(Layout::none(), PAGE) && !is_changed(&layout, PAGE));
        assert!(!is_changed(&layout, &PAGE.replace("c 4", "h 4")));
        assert!(is_changed(&layout, &PAGE.replace("c 4", "h 4").replace("d 5", "i 5")));
        assert!(is_changed(&layout, &PAGE[..PAGE.len() - 16]) && is_changed(&layout, &format!("{PAGE}{PAGE}")));
        // What can never be known does not make it worth the time.
        for odd in
            [PAGE.replace('\n', "\r\n"), PAGE.replace(" 4", " x").replace(" 5", " 5 1.5").replace("f", "kvtier_f")]
        {
            assert!(!is_changed(&Layout::of(odd.as_bytes(), &names), &odd), "{odd}");
        }
        let large = "a 1\n".repeat(Layout::LARGEST / 4 + 1);
        assert!(!is_changed(Layout::none(), &large));
    }

    /// The first page's line ends with its quote's limit and passes; with another digit it would go beyond it.
    #[test]
    fn a_quote_that_spans_lines_is_known_to_no_layout() {
        let page = |number: &str| format!("a{{x=\"\n{}\"}} {number}\n", "y".repeat(LONGEST_QUOTE - 12));
        let (first, second) = (page("1"), page("12345678"));
        let names = Names::new(["a"]);
        let layout = Layout::of(first.as_bytes(), &names);
        let samples = |page: &str| Exposition::scan_beside(&layout, page.as_bytes(), &names).counts.samples;
        assert_eq!((samples(&first), samples(&second)), (1, 0));
    }
}
