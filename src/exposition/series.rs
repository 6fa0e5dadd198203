//! The name and labels of one sample, checked, and what a line shares with the one before it.
//!
//! Most lines of a page repeat the line before up to its name and a label value or two (the next bucket of a
//! histogram, the next engine of a counter). What repeats has been checked already, so only what differs is looked
//! at. This is where the scanner's speed comes from; [`Shape::check`] alone decides, and gives the same answers.

use super::labels::{Labels, closing_quote};
use super::line::Refusal;
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

/// How many label values of a line are remembered. A line with more is checked in full, and so is the next.
const REMEMBERED: usize = 8;

/// The last line that was checked in full or in part, and where its label values lie.
#[derive(Debug, Default)]
pub(super) struct Shape<'a> {
    line: &'a [u8],
    series: Series,
    /// First byte and closing quote of each label value; only the first `count` are set.
    values: [(usize, usize); REMEMBERED],
    count: usize,
    /// Nothing of it can be taken over: a name may stand twice, or there were more values than are remembered.
    unsure: bool,
    /// The whole page is valid UTF-8, so no part of it has to be checked again.
    page_is_utf8: bool,
}

impl<'a> Shape<'a> {
    pub(super) fn new(page: &[u8]) -> Shape<'a> {
        Shape { page_is_utf8: std::str::from_utf8(page).is_ok(), unsure: true, ..Shape::default() }
    }

    /// The name and labels at the start of `line`.
    pub(super) fn series(&mut self, line: &'a [u8]) -> Result<Series, Refusal> {
        match self.repeat(line) {
            Some(series) => Ok(series),
            None => self.check(line),
        }
    }

    /// The answer for a line that differs from the last one in its name and in label values only; `None` for any
    /// other, and then nothing of what is remembered is of use any more.
    fn repeat(&mut self, line: &'a [u8]) -> Option<Series> {
        if self.unsure {
            return None;
        }
        let last = self.series;
        let mut pair = Pair::of(&self.line[..last.end], line);
        if pair.same <= last.name_end {
            self.series.name_end = METRIC_NAME.end(line, 0);
            pair.take(last.name_end, self.series.name_end);
            // Whether labels follow is told by the byte behind the name.
            if self.series.name_end == 0 || pair.same == last.name_end {
                return None;
            }
        }
        self.series.labels.0 = pair.place(last.labels.0);
        self.series.odd_escape = false;
        for value in &mut self.values[..self.count] {
            let (start, end) = *value;
            *value = (pair.place(start), pair.place(end));
            if pair.same <= end {
                if pair.same < start {
                    return None;
                }
                value.1 = value.0 + closing_quote(&line[value.0..])?;
                // Nothing odd is taken over, so only a new value can have an odd escape.
                self.series.odd_escape |= has_odd_escape(&line[value.0..value.1]);
                pair.take(end, value.1);
            }
        }
        if pair.same < last.end {
            return None;
        }
        self.line = line;
        self.series.labels.1 = pair.place(last.labels.1);
        self.series.end = pair.place(last.end);
        self.unsure = self.series.odd_escape;
        Some(self.series)
    }

    /// Checks name and labels in full.
    fn check(&mut self, line: &'a [u8]) -> Result<Series, Refusal> {
        self.unsure = true;
        self.count = 0;
        let name_end = METRIC_NAME.end(line, 0);
        if name_end == 0 {
            return Err(Refusal::Name);
        }
        let open = skip_blanks(line, name_end);
        let mut series = Series { name_end, labels: (name_end, name_end), end: name_end, odd_escape: false };
        let mut sure = self.page_is_utf8;
        if line.get(open) == Some(&b'{') {
            let close = self.check_labels(line, open + 1, &mut series.odd_escape, &mut sure)?;
            series.labels = (open + 1, close);
            series.end = close + 1;
        }
        self.line = line;
        self.series = series;
        self.unsure = !sure || series.odd_escape;
        Ok(series)
    }

    /// Checks the labels that start at `at` and returns the place of the closing brace. They are `sure` as long as
    /// no name can stand twice.
    fn check_labels(&mut self, line: &[u8], mut at: usize, odd: &mut bool, sure: &mut bool) -> Result<usize, Refusal> {
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
            *odd |= has_odd_escape(&line[at..at + length]);
            *sure &= self.count < REMEMBERED && name != METRICS_OWN && !names[..self.count].contains(&name);
            if *sure {
                names[self.count] = name;
                self.values[self.count] = (at, at + length);
                self.count += 1;
            }
            at = skip_blanks(line, at + length + 1);
            if line.get(at) == Some(&b',') {
                at += 1;
            }
        }
        if !*sure {
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

impl<'a> Pair<'a> {
    fn of(last: &'a [u8], line: &'a [u8]) -> Pair<'a> {
        Pair { last, line, same: common_prefix(last, line), shift: 0 }
    }

    /// Where a place in the last line lies in this one.
    fn place(&self, in_last: usize) -> usize {
        in_last.wrapping_add(self.shift)
    }

    /// Goes on behind a part that ends at these places of the two lines.
    fn take(&mut self, end_in_last: usize, end: usize) {
        self.shift = end.wrapping_sub(end_in_last);
        let (last, line) = (&self.last[end_in_last..], &self.line[end..]);
        // Mostly nothing else differs, and that is told at once.
        self.same = end_in_last + if line.starts_with(last) { last.len() } else { common_prefix(last, line) };
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let (wide_a, wide_b) = (a.as_chunks::<16>().0, b.as_chunks::<16>().0);
    let wide = wide_a.iter().zip(wide_b).take_while(|(a, b)| a == b).count();
    if let (Some(a), Some(b)) = (wide_a.get(wide), wide_b.get(wide)) {
        let differing = u128::from_le_bytes(*a) ^ u128::from_le_bytes(*b);
        return 16 * wide + differing.trailing_zeros() as usize / 8;
    }
    let wide = 16 * wide;
    wide + a[wide..].iter().zip(&b[wide..]).take_while(|(a, b)| a == b).count()
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
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn a_line_reads_the_same_behind_any_other(lines in prop::collection::vec(line(), 2..6)) {
            let mut shape = Shape::new(lines.concat().as_bytes());
            for line in &lines {
                let alone = Shape::new(line.as_bytes()).series(line.as_bytes());
                prop_assert_eq!(shape.series(line.as_bytes()), alone, "{:?}", lines);
            }
        }
    }

    #[test]
    fn what_two_lines_have_in_common_ends_at_the_first_byte_that_differs() {
        let line = b"0123456789abcdef0123456789abcdef0123456";
        for at in 0..line.len() {
            let mut other = *line;
            other[at] = b'X';
            assert_eq!(common_prefix(line, &other), at);
            assert_eq!(common_prefix(&line[..at], line), at);
        }
    }
}
