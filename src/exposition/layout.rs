//! What was found out of the lines of a page, so that the next pages of the same server are not taken apart again.
//!
//! From one scrape to the next a server changes its numbers and little else: up to its value a line is mostly, byte for
//! byte, the one that stood there before. What such a line is follows from these bytes alone, so it costs a comparison
//! and a look at its number. This is a matter of speed: a page reads the same beside any other, and beside none.

use super::line::{Kind, LONGEST_QUOTE, Line};
use super::names::{NameId, Names};
use super::own::is_own;
use super::scan::next_line;
use super::series::Shapes;
use super::{Metadata, Span};

/// A page with what was found out of its lines.
#[derive(Debug, Default)]
pub struct Layout {
    /// A copy: the memory that the page came in is wanted for the next one.
    page: Vec<u8>,
    lines: Vec<Known>,
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

    /// The most lines that are known, three times as many as a real page of that size has: they take as much memory as it.
    const MOST_LINES: usize = Layout::LARGEST / size_of::<Known>();

    /// That of an empty page.
    pub fn none() -> &'static Layout {
        static NONE: Layout = Layout { page: Vec::new(), lines: Vec::new() };
        &NONE
    }

    /// The layout of a page from which these names are wanted. One that is larger than [`Layout::LARGEST`], or has very many
    /// lines, has none.
    pub fn of(page: &[u8], names: &Names) -> Layout {
        let (mut at, mut shapes, mut lines) = (0, Shapes::new(page), Vec::new());
        if page.len() > Layout::LARGEST {
            return Layout::default();
        }
        while at < page.len() {
            let next = next_line(page, at, &mut shapes);
            if next.span.end == next.end + 1 {
                lines.extend(Known::new(&next.line, next.span, names));
            }
            if lines.len() > Layout::MOST_LINES {
                return Layout::default();
            }
            at = next.span.end;
        }
        Layout { page: page.to_vec(), lines }
    }

    /// The way along this page, beside another one.
    pub(super) fn walk(&self) -> Walk<'_> {
        Walk { layout: self, next: 0, missed: 0 }
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
            // Right behind its name a value has a sign or a point, and digits there would be the name's.
            Line::Sample(sample)
                if !is_own(sample.name) && !sample.odd_escape && sample.value_at.0 > sample.name.len() =>
            {
                (head, labels) = (sample.value_at.0, sample.labels);
                names.find(sample.name).map_or(What::Unread, What::Wanted)
            }
            _ => return None,
        };
        let [start, length, from, to] = [span.start, head, labels.0, labels.1].map(|place| place as u32);
        // Quotes may span lines up to a limit. A number that is not looked at closely has less than 64 digits, so that it
        // takes no line beyond it.
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

    /// Looks for the line a little further: those before it may have changed, or one may be gone. Where new ones have come,
    /// the line behind them is still the next one.
    #[cold]
    fn search(&mut self, text: &[u8]) -> Option<Known> {
        let (changed, gone) = (self.missed.min(Walk::REACH), 1);
        for place in [self.next + changed, self.next + gone] {
            if let Some(known) = self.layout.lines.get(place).filter(|known| self.is_at_start(known, text)) {
                (self.next, self.missed) = (place + 1, 0);
                return Some(*known);
            }
        }
        self.missed += 1;
        None
    }

    /// How many changed lines in a row the way goes on behind.
    const REACH: usize = 8;

    #[inline]
    fn is_at_start(&self, known: &Known, text: &[u8]) -> bool {
        text.starts_with(known.head_at(known.start as usize).of(&self.layout.page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::Exposition;

    const PAGE: &str = "# TYPE a gauge\na{x=\"1\"} 1\na{x=\"2\"} 2\n# HELP b B.\nb 3\nc 4\nd 5\ne 6\nf 7\ng 8\n";

    /// How many lines of another page have no place beside [`PAGE`].
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
        assert_eq!(unknown(&PAGE.replace("# HELP b B.\n", "")), 0);
        // Behind two that are gone the way is lost.
        assert_eq!(unknown(&PAGE.replace("# HELP b B.\nb 3\n", "")), 5);
    }

    #[test]
    fn a_page_is_unfamiliar_where_more_than_an_eighth_of_it_is_read_in_full() {
        let names = Names::new(["a"]);
        let layout = Layout::of(PAGE.as_bytes(), &names);
        let is_unfamiliar =
            |layout: &Layout, page: &str| Exposition::scan_beside(layout, page.as_bytes(), &names).is_unfamiliar;
        assert!(is_unfamiliar(Layout::none(), PAGE) && !is_unfamiliar(&layout, PAGE) && !is_unfamiliar(&layout, ""));
        assert!(!is_unfamiliar(&layout, &PAGE.replace("c 4", "h 4")));
        assert!(is_unfamiliar(&layout, &PAGE.replace("c 4", "h 4").replace("d 5", "i 5")));
        assert!(is_unfamiliar(&layout, &PAGE.replace("c 4", "c NaN").replace("d 5", "d NaN")));
        assert!(is_unfamiliar(&layout, &format!("{PAGE}{PAGE}")) && !is_unfamiliar(&layout, &format!("{PAGE}h 1\n")));
    }

    #[test]
    fn a_large_page_and_one_of_very_many_lines_have_no_layout() {
        let names = Names::new(["a"]);
        let known = |page: String| Layout::of(page.as_bytes(), &names).lines.capacity();
        assert_eq!(known("a 1\n".repeat(Layout::MOST_LINES)), Layout::MOST_LINES);
        assert_eq!(known("a 1\n".repeat(Layout::MOST_LINES + 1)), 0);
        assert_eq!(size_of::<Known>() * Layout::MOST_LINES, Layout::LARGEST);
        let line = |length: usize| "a".repeat(length - 3) + " 1\n";
        assert!(known(line(1024).repeat(512)) >= 512);
        assert_eq!(known(line(1024).repeat(512) + "\n"), 0);
    }

    /// The digits belong to the name where no blank stands between.
    #[test]
    fn a_line_whose_value_stands_right_behind_its_name_is_not_known() {
        let names = Names::new(["a"]);
        for (first, second) in [("a-1\n", "a1\n"), ("a.5\n", "a5\n"), ("a+Inf\n", "a7\n")] {
            let layout = Layout::of(first.as_bytes(), &names);
            let page = Exposition::scan_beside(&layout, second.as_bytes(), &names);
            assert_eq!((page.counts.samples, page.counts.dropped), (0, 1), "{second} behind {first}");
        }
        let layout = Layout::of(b"a{x=\"y\"}-1\n", &names);
        assert!(layout.walk().step(b"a{x=\"y\"}7\n").is_some());
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
