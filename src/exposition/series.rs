//! The name and labels of one sample, checked, and what a line shares with the one before it.
//!
//! Most lines of a page repeat the line before up to one label value (the next bucket of a histogram, the next
//! source of a counter). What repeats has been checked already, so only that value is looked at. This is where
//! the scanner's speed comes from; [`Shape::check`] alone decides, and gives the same answers.

use super::labels::{Labels, closing_quote};
use super::line::{Refusal, is_label_part, is_label_start, is_name_part, is_name_start, name_end, skip_blanks};

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
    /// It has the name of the line before.
    pub(super) repeated: bool,
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

    /// Takes nothing over from the last line.
    pub(super) fn forget(&mut self) {
        self.unsure = true;
    }

    /// The name and labels at the start of `line`.
    pub(super) fn series(&mut self, line: &'a [u8]) -> Result<Series, Refusal> {
        match self.repeat(line) {
            Some(series) => Ok(series),
            None => self.check(line),
        }
    }

    /// The answer for a line that differs from the last one in one label value at most; `None` for any other.
    fn repeat(&mut self, line: &'a [u8]) -> Option<Series> {
        if self.unsure {
            return None;
        }
        let same = common_prefix(self.line, line);
        if same >= self.series.end && self.count > 0 {
            return Some(Series { repeated: true, ..self.series });
        }
        let changed = self.values[..self.count].iter().position(|&(start, end)| start <= same && same <= end)?;
        let (start, end) = self.values[changed];
        let length = closing_quote(&line[start..])?;
        let rest = &self.line[end..self.series.end];
        if !line[start + length..].starts_with(rest) {
            return None;
        }
        let moved = |at: usize| at + start + length - end;
        self.line = line;
        self.series.labels.1 = moved(self.series.labels.1);
        self.series.end = moved(self.series.end);
        for value in &mut self.values[changed..self.count] {
            *value = (if value.0 == start { start } else { moved(value.0) }, moved(value.1));
        }
        // Nothing odd is taken over, so only the new value can have an odd escape.
        self.unsure = has_odd_escape(&line[start..start + length]);
        Some(Series { odd_escape: self.unsure, repeated: true, ..self.series })
    }

    /// Checks name and labels in full.
    fn check(&mut self, line: &'a [u8]) -> Result<Series, Refusal> {
        self.unsure = true;
        self.count = 0;
        let name_end = name_end(line, 0, is_name_start, is_name_part);
        if name_end == 0 {
            return Err(Refusal::Name);
        }
        let open = skip_blanks(line, name_end);
        let mut series = Series { name_end, labels: (name_end, name_end), end: name_end, ..Series::default() };
        let mut names = NameSet::default();
        if line.get(open) == Some(&b'{') {
            let close = self.check_labels(line, open + 1, &mut names, &mut series.odd_escape)?;
            series.labels = (open + 1, close);
            series.end = close + 1;
        }
        self.line = line;
        self.series = series;
        self.unsure = names.may_repeat || series.odd_escape || self.count > REMEMBERED || !self.page_is_utf8;
        Ok(series)
    }

    /// Checks the labels that start at `at` and returns the place of the closing brace.
    fn check_labels(
        &mut self,
        line: &[u8],
        mut at: usize,
        names: &mut NameSet,
        odd: &mut bool,
    ) -> Result<usize, Refusal> {
        let first = at;
        names.insert(METRIC_NAME.as_bytes());
        loop {
            at = skip_blanks(line, at);
            if line.get(at) == Some(&b'}') {
                break;
            }
            let name = at;
            at = name_end(line, at, is_label_start, is_label_part);
            if at == name {
                return Err(Refusal::Label);
            }
            names.insert(&line[name..at]);
            at = expect(line, skip_blanks(line, at), b'=')?;
            at = expect(line, skip_blanks(line, at), b'"')?;
            let length = closing_quote(&line[at..]).ok_or(Refusal::OpenQuote)?;
            *odd |= has_odd_escape(&line[at..at + length]);
            self.remember(at, at + length);
            at = skip_blanks(line, at + length + 1);
            if line.get(at) == Some(&b',') {
                at += 1;
            }
        }
        if names.may_repeat || !self.page_is_utf8 {
            let text = std::str::from_utf8(&line[first..at]).map_err(|_| Refusal::Utf8)?;
            if Labels::new(text).repeat_a_name(METRIC_NAME) {
                return Err(Refusal::RepeatedLabel);
            }
        }
        Ok(at)
    }

    fn remember(&mut self, start: usize, end: usize) {
        if let Some(place) = self.values.get_mut(self.count) {
            *place = (start, end);
        }
        self.count += 1;
    }
}

/// The label that Prometheus keeps the metric's name in.
const METRIC_NAME: &str = "__name__";

/// Names seen, as one bit each: most samples are known to repeat none without a look back.
#[derive(Default)]
struct NameSet {
    bits: u64,
    may_repeat: bool,
}

impl NameSet {
    fn insert(&mut self, name: &[u8]) {
        let hash = name.iter().fold(0_u32, |hash, &b| hash.wrapping_mul(31).wrapping_add(u32::from(b)));
        let bit = 1 << (hash % 64);
        self.may_repeat |= self.bits & bit != 0;
        self.bits |= bit;
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let (wide_a, wide_b) = (a.as_chunks::<16>().0, b.as_chunks::<16>().0);
    let wide = 16 * wide_a.iter().zip(wide_b).take_while(|(a, b)| a == b).count();
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
