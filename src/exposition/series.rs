//! The name and labels of one sample, checked, and what a line shares with those before it.
//!
//! Most lines of a page repeat an earlier one up to its name and a label value or two (the next bucket of a
//! histogram, the next engine of a counter). What repeats has been checked already, so only what differs is looked
//! at. Where no earlier page tells what a line is, the scanner's speed comes from here; [`Shapes::check`] alone decides,
//! and gives the same answers.

use std::cell::OnceCell;

use super::compare::{common_prefix, starts_with};
use super::labels::{Labels, closing_quote};
use super::line::{Refusal, ended_number};
use super::window::first_of;
use super::words::{LABEL_NAME, METRIC_NAME, skip_blanks};

/// The checked name and labels of a sample, as places in its line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Series {
    pub(super) name_end: usize,
    /// What lies between the braces.
    pub(super) labels: (usize, usize),
    /// The first byte behind name and labels.
    pub(super) end: usize,
    /// A label value has an escape that the format does not know.
    pub(super) odd_escape: bool,
}

/// How many label values of a line are remembered. A line with more is checked in full, and so is one like it.
const REMEMBERED: usize = 8;

/// A line that was checked in full or in part, as alternating parts: the name and the label values, which may differ in
/// another line of this shape, and what stands between them, which may not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape<'a> {
    /// That line up to its value.
    head: &'a [u8],
    name_end: usize,
    /// From the name's end to what lies between the braces.
    open: usize,
    /// From there to the end of the head.
    close: usize,
    /// How many bytes stand before each label value, counted from the end of the one before, or of the name.
    before: [u32; REMEMBERED],
    /// How many bytes each label value has.
    lengths: [u32; REMEMBERED],
    /// How many label values there are.
    count: usize,
    /// It can be held against other lines: no name can stand twice in it, and all its values are remembered.
    is_sure: bool,
}

/// The lines that the next one is held against. There are two, since those of a histogram alternate: buckets have a label
/// that sum and count are without.
#[derive(Debug)]
pub(super) struct Shapes<'a> {
    shapes: [Shape<'a>; 2],
    /// Which of them is the last line's.
    last: usize,
    page: &'a [u8],
    /// The whole page is valid UTF-8, so no part of it has to be checked again. It is looked at when that is asked for.
    page_is_utf8: OnceCell<bool>,
}

/// A sample that repeats another up to its values, as places in its line.
pub(super) struct Repeat {
    pub(super) name_end: usize,
    /// What lies between the braces.
    pub(super) labels: (usize, usize),
    /// The value of the sample; the line end is behind it.
    pub(super) value: (usize, usize),
    /// It has the name of the sample before it.
    pub(super) has_last_name: bool,
}

impl<'a> Shapes<'a> {
    pub(super) fn new(page: &'a [u8]) -> Shapes<'a> {
        Shapes { shapes: Default::default(), last: 0, page, page_is_utf8: OnceCell::new() }
    }

    /// The answer for a line that differs from one of the last two shapes in its name and in values only, where those
    /// have no escapes and nothing stands behind the sample's; `None` for any other.
    #[inline]
    pub(super) fn repeat(&mut self, line: &'a [u8]) -> Option<Repeat> {
        let mut found = self.shapes[self.last].repeat(line);
        if found.is_none() {
            let (value_end, _) = self.shapes[1 - self.last].repeat(line)?;
            found = Some((value_end, false));
            self.last = 1 - self.last;
        }
        let (value_end, has_last_name) = found?;
        let shape = &self.shapes[self.last];
        let (name_end, value) = (shape.name_end, shape.head.len());
        let labels = (name_end + shape.open, value - shape.close);
        Some(Repeat { name_end, labels, value: (value, value_end), has_last_name })
    }

    /// Checks name and labels in full, and says of what shape the line is.
    pub(super) fn check(&self, line: &'a [u8]) -> Result<(Series, Shape<'a>), Refusal> {
        let is_utf8 = self.page_is_utf8.get_or_init(|| std::str::from_utf8(self.page).is_ok());
        let mut shape = Shape { is_sure: *is_utf8, ..Shape::default() };
        Ok((shape.check(line)?, shape))
    }

    /// Remembers the shape of a line that turned out to be a sample.
    pub(super) fn remember(&mut self, shape: Shape<'a>) {
        self.last = 1 - self.last;
        self.shapes[self.last] = shape;
    }
}

impl<'a> Shape<'a> {
    /// Takes the line over if it is of this shape, and says where its value ends and whether its name is the same.
    fn repeat(&mut self, line: &'a [u8]) -> Option<(usize, bool)> {
        let mut pair = Pair { last: self.head, line, same: common_prefix(self.head, line), shift: 0 };
        let mut name_end = self.name_end;
        let has_same_name = pair.same > name_end;
        if !has_same_name {
            if pair.same == 0 {
                return None;
            }
            name_end = METRIC_NAME.rest(line, pair.same);
            pair.take(self.name_end, name_end);
            // Whether labels follow is told by the byte behind the name.
            if pair.same == self.name_end {
                return None;
            }
        }
        let (mut lengths, mut at) = (self.lengths, self.name_end);
        for (before, length) in self.before[..self.count].iter().zip(&mut lengths) {
            let start = at + *before as usize;
            at = start + *length as usize;
            if pair.same <= at {
                if pair.same < start {
                    return None;
                }
                let start = pair.place(start);
                let end = start + plain_end(&line[start..])?;
                *length = (end - start) as u32;
                pair.take(at, end);
            }
        }
        if pair.same < self.head.len() || !self.is_sure {
            return None;
        }
        let value = pair.place(self.head.len());
        let value_end = value + ended_number(&line[value..])?;
        (self.head, self.name_end, self.lengths) = (&line[..value], name_end, lengths);
        Some((value_end, has_same_name))
    }

    fn check(&mut self, line: &'a [u8]) -> Result<Series, Refusal> {
        let name_end = METRIC_NAME.end(line, 0);
        if name_end == 0 {
            return Err(Refusal::Name);
        }
        let open = skip_blanks(line, name_end);
        let mut series = Series { name_end, labels: (name_end, name_end), end: name_end, odd_escape: false };
        if line.get(open) == Some(&b'{') {
            let close = self.check_labels(line, open + 1, name_end, &mut series.odd_escape)?;
            series.labels = (open + 1, close);
            series.end = close + 1;
        }
        self.head = &line[..skip_blanks(line, series.end)];
        self.name_end = name_end;
        self.open = series.labels.0 - name_end;
        self.close = self.head.len() - series.labels.1;
        self.is_sure &= !series.odd_escape;
        Ok(series)
    }

    /// Checks the labels that start at `at` and returns the place of the closing brace.
    fn check_labels(
        &mut self,
        line: &[u8],
        mut at: usize,
        mut last_end: usize,
        odd_escape: &mut bool,
    ) -> Result<usize, Refusal> {
        let first = at;
        let mut names: [&[u8]; REMEMBERED] = [&[]; REMEMBERED];
        loop {
            at = skip_blanks(line, at);
            if line.get(at) == Some(&b'}') {
                break;
            }
            let name = &line[at..LABEL_NAME.end(line, at)];
            if name.is_empty() {
                return Err(Refusal::Label);
            }
            at += name.len();
            at = expect(line, skip_blanks(line, at), b'=')?;
            at = expect(line, skip_blanks(line, at), b'"')?;
            let length = closing_quote(&line[at..]).ok_or(Refusal::OpenQuote)?;
            *odd_escape |= has_odd_escape(&line[at..at + length]);
            self.is_sure &= self.count < REMEMBERED && name != METRICS_OWN && !names[..self.count].contains(&name);
            if self.is_sure {
                names[self.count] = name;
                self.before[self.count] = (at - last_end) as u32;
                self.lengths[self.count] = length as u32;
                last_end = at + length;
                self.count += 1;
            }
            at = skip_blanks(line, at + length + 1);
            if line.get(at) == Some(&b',') {
                at += 1;
            }
        }
        if !self.is_sure {
            let text = std::str::from_utf8(&line[first..at]).map_err(|_| Refusal::Utf8)?;
            if Labels::new(text).repeat_a_name(METRICS_OWN) {
                return Err(Refusal::RepeatedLabel);
            }
        }
        Ok(at)
    }
}

/// The label that Prometheus keeps the metric's name in.
const METRICS_OWN: &[u8] = b"__name__";

/// The last line and this one, walked side by side.
struct Pair<'a> {
    last: &'a [u8],
    line: &'a [u8],
    /// They are alike up to here, a place in the last line, but for what was taken.
    same: usize,
    /// How much further back this line's bytes stand now; it wraps where they stand further in front.
    shift: usize,
}

impl Pair<'_> {
    /// Where a place in the last line lies in this one.
    fn place(&self, in_last: usize) -> usize {
        in_last.wrapping_add(self.shift)
    }

    /// Goes on behind a part that ends at these places of the two lines.
    #[inline]
    fn take(&mut self, end_in_last: usize, end: usize) {
        self.shift = end.wrapping_sub(end_in_last);
        let (last, line) = (&self.last[end_in_last..], &self.line[end..]);
        // Mostly nothing else differs, and that is told at once.
        self.same = end_in_last + if starts_with(line, last) { last.len() } else { common_prefix(last, line) };
    }
}

/// Where the label value ends that starts here, if it has no escapes.
fn plain_end(text: &[u8]) -> Option<usize> {
    first_of(text, b'"', b'\\').filter(|end| text[*end] == b'"')
}

fn has_odd_escape(value: &[u8]) -> bool {
    let mut rest = value;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        if !matches!(rest.get(at + 1), Some(b'n' | b'"' | b'\\')) {
            return true;
        }
        rest = &rest[at + 2..];
    }
    false
}

fn expect(line: &[u8], at: usize, byte: u8) -> Result<usize, Refusal> {
    if line.get(at) == Some(&byte) { Ok(at + 1) } else { Err(Refusal::Label) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Lines of few kinds of parts, so that many differ in one place only.
    fn line() -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec!["a", "ab", "b:c", "", "é"]);
        let key = prop::sample::select(vec!["x", "y", "xy", "__name__", "", "2"]);
        let value =
            prop::sample::select(vec!["", "1", "12", "a,b", "}", "\\\"", "\\n", "\\q", "\\", "\n", "ö", "x=\"y"]);
        let blank = prop::sample::select(vec!["", "", "", " ", "\t"]);
        let label = (key, blank.clone(), value, blank.clone())
            .prop_map(|(key, before, value, behind)| format!("{key}{before}=\"{value}\"{behind}"));
        let labels = (prop::collection::vec(label, 0..10), prop::sample::select(vec!["", ","]));
        let labels = prop::option::of(labels.prop_map(|(labels, last)| labels.join(",") + last));
        (name, blank, labels).prop_map(|(name, blank, labels)| match labels {
            Some(labels) => format!("{name}{blank}{{{labels}}} 1\n"),
            None => format!("{name}{blank} 1\n"),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_line_reads_the_same_behind_any_other(lines in prop::collection::vec(line(), 2..8)) {
            let page = lines.concat();
            let mut shapes = Shapes::new(page.as_bytes());
            let mut last_name: &[u8] = &[];
            for line in lines.iter().map(|line| line.as_bytes()) {
                let checked = Shapes::new(page.as_bytes()).check(line);
                if let Some(repeat) = shapes.repeat(line) {
                    prop_assert!(checked.is_ok(), "{:?}", lines);
                    let series = checked.unwrap().0;
                    let found = (repeat.name_end, repeat.labels, false);
                    prop_assert_eq!(found, (series.name_end, series.labels, series.odd_escape), "{:?}", lines);
                    let value = skip_blanks(line, series.end);
                    prop_assert_eq!(repeat.value, (value, value + 1), "{:?}", lines);
                    prop_assert!(!repeat.has_last_name || &line[..series.name_end] == last_name, "{:?}", lines);
                    last_name = &line[..series.name_end];
                } else if let Ok((series, shape)) = checked {
                    shapes.remember(shape);
                    last_name = &line[..series.name_end];
                }
            }
        }
    }
}
