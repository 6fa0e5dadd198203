//! An OpenMetrics page turned into text 0.0.4, the one format that Prometheus 2 and 3 both take without being
//! told anything.
//!
//! We never ask for OpenMetrics, but some servers offer nothing else, and the same bytes under another
//! Content-Type would cost the whole scrape. What comes out has the families, types, samples and values that
//! the official Python client gives to a reader of the text format:
//!
//! | OpenMetrics | text 0.0.4 |
//! |---|---|
//! | counter `x` | counter `x_total` |
//! | info `x` | gauge `x_info` |
//! | unknown `x` | untyped `x` |
//! | stateset `x` | gauge `x` |
//! | gaugehistogram `x` | gauges `x_bucket`, `x_gcount`, `x_gsum`: a text histogram may only rise |
//! | `x_created` inside a counter, histogram or summary | gauge `x_created` behind it |
//! | float seconds as timestamp | whole milliseconds |
//! | `{"a.b","c.d"="1"} 2` | `a_b{c_d="1"} 2` |
//! | exemplars, UNIT, the end mark | left out |
//! | HELP and TYPE of `vllm:x` before samples of `vllm_x` (clients that escape only half) | of `vllm_x` |
//!
//! This is no validator. A line that it does not understand stays as it is and where it is: the scanner behind
//! it knows what Prometheus refuses.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

type Bytes<'a> = Cow<'a, [u8]>;

/// Whether a page is OpenMetrics by its own looks: it ends in the end mark. For pages whose Content-Type does
/// not say.
pub fn is_openmetrics(body: &[u8]) -> bool {
    lines(body).rev().find(|line| !line.trim_ascii().is_empty()).is_some_and(is_end_mark)
}

/// The page as text 0.0.4. Total: any bytes give some page.
pub fn to_text(body: &[u8]) -> Vec<u8> {
    let underscored = families(body).any(|family| family.is_underscored());
    // Families of their own for `_created` need a little more room than they had as samples.
    let mut out = Vec::with_capacity(body.len() + body.len() / 4);
    for family in families(body) {
        family.write(underscored, &mut out);
    }
    out
}

/// Lines without their ends, be they LF or CR LF.
fn lines(body: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    body.split_inclusive(|byte| *byte == b'\n').map(without_end)
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn is_end_mark(line: &[u8]) -> bool {
    line.trim_ascii_end() == b"# EOF"
}

/// The page cut into families, in order. One at a time, and each as the bytes that it is: read lines of a page of short
/// ones would take fifty times its memory.
fn families(mut page: &[u8]) -> impl Iterator<Item = Family<'_>> {
    std::iter::from_fn(move || {
        let family;
        (family, page) = Family::first_of(page)?;
        Some(family)
    })
}

/// A line, as far as it is understood.
enum Line<'a> {
    Metadata(Metadata<'a>),
    Sample(Sample<'a>),
    Other(&'a [u8]),
}

impl<'a> Line<'a> {
    fn read(line: &'a [u8]) -> Line<'a> {
        match line.first() {
            Some(b'#') => Metadata::read(line).map_or(Line::Other(line), Line::Metadata),
            _ => Sample::read(line).map_or(Line::Other(line), Line::Sample),
        }
    }
}

/// A HELP, TYPE or UNIT line.
struct Metadata<'a> {
    word: &'a [u8],
    name: Bytes<'a>,
    text: &'a [u8],
}

impl<'a> Metadata<'a> {
    fn read(line: &'a [u8]) -> Option<Metadata<'a>> {
        let rest = line.strip_prefix(b"# ")?;
        let (word, rest) = split_at_blank(rest);
        if ![&b"HELP"[..], b"TYPE", b"UNIT"].contains(&word) {
            return None;
        }
        let (name, rest) = match quoted(rest) {
            Some((name, rest)) => (escape(name, b':'), rest),
            None => {
                let (name, _) = split_at_blank(rest);
                (Cow::Borrowed(name), &rest[name.len()..])
            }
        };
        let text = rest.strip_prefix(b" ").unwrap_or(rest);
        let says_nothing = name.is_empty() || (word == b"TYPE" && text.is_empty());
        (!says_nothing).then_some(Metadata { word, name, text })
    }
}

/// A sample.
struct Sample<'a> {
    name: Bytes<'a>,
    line: &'a [u8],
    labels: Labels<'a>,
    value: &'a [u8],
    time: Option<&'a [u8]>,
    /// Text 0.0.4 writes it the same way.
    as_is: bool,
}

impl<'a> Sample<'a> {
    fn read(line: &'a [u8]) -> Option<Sample<'a>> {
        let length = line.iter().take_while(|byte| is_name_byte(**byte)).count();
        let (bare, rest) = line.split_at(length);
        let (labels, rest) = match rest.trim_ascii_start() {
            braces if braces.starts_with(b"{") => Labels::read(braces)?,
            _ => (Labels::default(), rest),
        };
        let name = match (bare, labels.name) {
            (b"", Some(name)) => escape(name, b':'),
            (b"", None) | (_, Some(_)) => return None,
            (bare, None) => Cow::Borrowed(bare),
        };
        let without_exemplar = rest.split(|byte| *byte == b'#').next()?;
        let mut words = without_exemplar.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (value, time, more) = (words.next()?, words.next(), words.next());
        if more.is_some() || name.is_empty() || number(value).is_none() {
            return None;
        }
        let as_is = time.is_none() && without_exemplar.len() == rest.len() && !labels.quoted;
        Some(Sample { name, line, labels, value, time, as_is })
    }

    /// The line as text 0.0.4 wants it.
    fn written(&self) -> Bytes<'a> {
        match self.as_is {
            true => Cow::Borrowed(self.line),
            false => Cow::Owned(self.labels.write(&self.name, self.value, self.time)),
        }
    }
}

/// What stands between the braces.
#[derive(Default)]
struct Labels<'a> {
    /// A metric name in quotes.
    name: Option<&'a [u8]>,
    /// Label names, and their values still escaped.
    pairs: Vec<(Bytes<'a>, &'a [u8])>,
    /// Some name was in quotes, which text 0.0.4 does not know.
    quoted: bool,
}

impl<'a> Labels<'a> {
    /// Labels and what follows the closing brace.
    fn read(text: &'a [u8]) -> Option<(Labels<'a>, &'a [u8])> {
        let mut labels = Labels::default();
        let mut rest = text.strip_prefix(b"{")?.trim_ascii_start();
        loop {
            if let Some(behind) = rest.strip_prefix(b"}") {
                return Some((labels, behind));
            }
            rest = labels.item(rest)?.trim_ascii_start();
            match rest.strip_prefix(b",") {
                Some(next) => rest = next.trim_ascii_start(),
                None if rest.starts_with(b"}") => {}
                None => return None,
            }
        }
    }

    /// Takes one label, or the name of the metric, and gives what is behind it.
    fn item(&mut self, text: &'a [u8]) -> Option<&'a [u8]> {
        let (name, rest) = match quoted(text) {
            Some((name, rest)) => {
                self.quoted = true;
                let rest = rest.trim_ascii_start();
                if !rest.starts_with(b"=") {
                    return self.name.replace(name).is_none().then_some(rest);
                }
                (escape(name, b'_'), rest)
            }
            None => {
                let length = text.iter().take_while(|byte| is_name_byte(**byte) && **byte != b':').count();
                (Cow::Borrowed(&text[..length]), text[length..].trim_ascii_start())
            }
        };
        let (value, rest) = quoted(rest.strip_prefix(b"=")?.trim_ascii_start())?;
        self.pairs.push((name, value));
        Some(rest)
    }

    fn write(&self, name: &[u8], value: &[u8], time: Option<&[u8]>) -> Vec<u8> {
        let pairs: Vec<Vec<u8>> =
            self.pairs.iter().map(|(name, value)| [name, &b"=\""[..], value, b"\""].concat()).collect();
        let mut out = name.to_vec();
        if !pairs.is_empty() {
            out.extend([b"{", &pairs.join(&b',')[..], b"}"].concat());
        }
        out.extend([b" ", value].concat());
        if let Some(time) = time {
            out.extend([b" ", &milliseconds(time)[..]].concat());
        }
        out
    }
}

/// Seconds as whole milliseconds. What is no such time stays, and the scanner refuses the line.
fn milliseconds(seconds: &[u8]) -> Bytes<'_> {
    match number(seconds).map(|seconds| (seconds * 1000.0).round()) {
        // A float of that size still counts single milliseconds.
        Some(time) if time.abs() < 9e15 => Cow::Owned(format!("{time:.0}").into_bytes()),
        _ => Cow::Borrowed(seconds),
    }
}

fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A string in quotes, still escaped, and what is behind it.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = text.strip_prefix(b"\"")?;
    let mut escaped = false;
    let end = inner.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })?;
    Some((&inner[..end], &inner[end + 1..]))
}

/// A name in quotes as an old name: every character that was not allowed becomes an underscore.
/// `colon` is what a colon becomes: metric names may hold one, label names may not.
fn escape(name: &[u8], colon: u8) -> Bytes<'static> {
    let mut out = Vec::with_capacity(name.len());
    let name = String::from_utf8_lossy(name);
    let mut chars = name.chars();
    while let Some(char) = chars.next() {
        out.push(match char {
            ':' => colon,
            'a'..='z' | 'A'..='Z' | '_' => char as u8,
            '0'..='9' if !out.is_empty() => char as u8,
            // An escape stands for one character, and never for one that a name may hold.
            '\\' => {
                chars.next();
                b'_'
            }
            _ => b'_',
        });
    }
    Cow::Owned(out)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'
}

fn split_at_blank(text: &[u8]) -> (&[u8], &[u8]) {
    let at = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
    (&text[..at], text.get(at + 1..).unwrap_or_default())
}

/// One family: its metadata, then its samples and whatever stood between them. Both as they came, to be read when they
/// are needed.
struct Family<'a> {
    name: Bytes<'a>,
    kind: Option<&'a [u8]>,
    page: &'a [u8],
    metadata: Range<usize>,
    lines: Range<usize>,
}

/// What a family's lines are, beside its metadata.
#[derive(Default)]
struct Seen {
    suffixes: BTreeSet<&'static str>,
    others: bool,
}

impl<'a> Family<'a> {
    /// The first family of a page, and what follows it.
    fn first_of(page: &'a [u8]) -> Option<(Family<'a>, &'a [u8])> {
        let mut family: Option<Family<'a>> = None;
        let mut end = 0;
        for whole in page.split_inclusive(|byte| *byte == b'\n') {
            let text = without_end(whole);
            if !is_end_mark(text) {
                let line = Line::read(text);
                let family = family.get_or_insert_with(|| Family::of(&line, page));
                if !family.takes(&line) {
                    break;
                }
                family.add(&line, end..end + whole.len());
            }
            end += whole.len();
        }
        Some((family?, &page[end..]))
    }

    /// The family that begins with this line, still without it.
    fn of(line: &Line<'a>, page: &'a [u8]) -> Family<'a> {
        let name = match line {
            Line::Metadata(metadata) => metadata.name.clone(),
            Line::Sample(sample) => sample.name.clone(),
            Line::Other(_) => Cow::Borrowed(&b""[..]),
        };
        Family { name, kind: None, page, metadata: 0..0, lines: 0..0 }
    }

    /// Adds a line, which is there on the page. Nothing but end marks lies between it and the one before it.
    fn add(&mut self, line: &Line<'a>, at: Range<usize>) {
        let part = match line {
            Line::Metadata(_) => &mut self.metadata,
            Line::Sample(_) | Line::Other(_) => &mut self.lines,
        };
        let begin = if part.end == 0 { at.start } else { part.start };
        *part = begin..at.end;
        if let Line::Metadata(Metadata { word: b"TYPE", text, .. }) = line {
            self.kind.get_or_insert(text);
        }
    }

    /// Whether a line goes on with this family.
    fn takes(&self, line: &Line<'_>) -> bool {
        match line {
            Line::Metadata(metadata) => metadata.name == self.name && self.lines.is_empty(),
            Line::Sample(sample) => self.suffix_of(&sample.name).is_some(),
            Line::Other(_) => true,
        }
    }

    fn kind(&self) -> &'a [u8] {
        self.kind.unwrap_or_default()
    }

    fn metadata(&self) -> impl Iterator<Item = Metadata<'a>> {
        lines(&self.page[self.metadata.clone()]).filter_map(Metadata::read)
    }

    fn lines(&self) -> impl Iterator<Item = Line<'a>> {
        lines(&self.page[self.lines.clone()]).filter(|line| !is_end_mark(line)).map(Line::read)
    }

    fn text_of(&self, word: &[u8]) -> Option<&'a [u8]> {
        self.metadata().find(|metadata| metadata.word == word).map(|metadata| metadata.text)
    }

    /// Suffix of a sample of this family; `None` for a sample of another one.
    fn suffix_of(&self, sample: &[u8]) -> Option<&'static str> {
        suffixes(self.kind())
            .iter()
            .copied()
            .find(|suffix| sample.strip_suffix(suffix.as_bytes()).is_some_and(|base| alike(base, &self.name)))
    }

    /// The family's name as its samples spell it.
    fn spelling(&self) -> Option<Vec<u8>> {
        self.lines().find_map(|line| match line {
            Line::Sample(Sample { name, .. }) => {
                name.strip_suffix(self.suffix_of(&name)?.as_bytes()).map(<[u8]>::to_vec)
            }
            _ => None,
        })
    }

    fn is_underscored(&self) -> bool {
        self.spelling().is_some_and(|spelling| *spelling != *self.name)
    }

    fn seen(&self) -> Seen {
        let mut seen = Seen::default();
        for line in self.lines() {
            match line {
                Line::Sample(sample) => seen.suffixes.extend(self.suffix_of(&sample.name)),
                _ => seen.others = true,
            }
        }
        seen
    }

    /// Writes the family, then each part that text 0.0.4 wants as a family of its own.
    fn write(&self, underscored: bool, out: &mut Vec<u8>) {
        let base = match self.spelling() {
            Some(spelling) => spelling,
            None if underscored => squash(&self.name),
            None => self.name.to_vec(),
        };
        let seen = self.seen();
        let (apart, own): (Vec<&str>, Vec<&str>) =
            seen.suffixes.iter().partition(|suffix| stands_apart(self.kind(), suffix));
        if seen.others || !own.is_empty() || apart.is_empty() {
            self.write_own_metadata(&base, &seen, out);
            self.write_part(None, out);
        }
        for suffix in apart {
            self.write_metadata_apart(&[&base, suffix.as_bytes()].concat(), out);
            self.write_part(Some(suffix), out);
        }
    }

    /// Writes the lines that stand apart with that suffix, or those that do not stand apart.
    fn write_part(&self, part: Option<&str>, out: &mut Vec<u8>) {
        for line in self.lines() {
            let suffix = match &line {
                Line::Sample(sample) => self.suffix_of(&sample.name).filter(|suffix| stands_apart(self.kind(), suffix)),
                _ => None,
            };
            match line {
                _ if suffix != part => {}
                Line::Sample(sample) => push_line(out, &[&sample.written()]),
                Line::Other(line) => push_line(out, &[line]),
                Line::Metadata(_) => {}
            }
        }
    }

    fn write_own_metadata(&self, base: &[u8], seen: &Seen, out: &mut Vec<u8>) {
        let (kind, suffix) = text_kind(self.kind());
        // A page that is not true to OpenMetrics may have spelled the suffix already, or left it out.
        let suffix = if !seen.suffixes.contains(suffix) && seen.suffixes.contains("") { "" } else { suffix };
        for metadata in self.metadata() {
            match metadata.word {
                b"HELP" => push_line(out, &[b"# HELP ", base, suffix.as_bytes(), b" ", &help(metadata.text)]),
                b"TYPE" => push_line(out, &[b"# TYPE ", base, suffix.as_bytes(), b" ", kind]),
                _ => {}
            }
        }
    }

    fn write_metadata_apart(&self, name: &[u8], out: &mut Vec<u8>) {
        if let Some(text) = self.text_of(b"HELP") {
            push_line(out, &[b"# HELP ", name, b" ", &help(text)]);
        }
        push_line(out, &[b"# TYPE ", name, b" gauge"]);
    }
}

/// Suffixes that samples of a type have, the bare name last.
fn suffixes(kind: &[u8]) -> &'static [&'static str] {
    match kind {
        b"counter" => &["_total", "_created", ""],
        b"histogram" => &["_bucket", "_sum", "_count", "_created", ""],
        b"summary" => &["_sum", "_count", "_created", ""],
        b"gaugehistogram" => &["_bucket", "_gsum", "_gcount", ""],
        b"info" => &["_info", ""],
        _ => &[""],
    }
}

/// Whether samples of that suffix are a family of their own in text 0.0.4.
fn stands_apart(kind: &[u8], suffix: &str) -> bool {
    suffix == "_created" || (kind == b"gaugehistogram" && !suffix.is_empty())
}

/// The type in text 0.0.4, and what the family's name ends in there.
fn text_kind(kind: &[u8]) -> (&[u8], &'static str) {
    match kind {
        b"counter" => (kind, "_total"),
        b"info" => (b"gauge", "_info"),
        b"stateset" | b"gaugehistogram" => (b"gauge", ""),
        b"unknown" => (b"untyped", ""),
        _ => (kind, ""),
    }
}

/// HELP text: OpenMetrics escapes quotes, text 0.0.4 does not.
fn help(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut escaped = false;
    for byte in text {
        if escaped && *byte == b'"' {
            out.pop();
        }
        out.push(*byte);
        escaped = *byte == b'\\' && !escaped;
    }
    out
}

/// Whether two names differ in nothing but what [`squash`] takes away.
fn alike(one: &[u8], other: &[u8]) -> bool {
    one.iter().map(squashed).eq(other.iter().map(squashed))
}

/// A name with everything but letters, digits and underscores turned into underscores.
fn squash(name: &[u8]) -> Vec<u8> {
    name.iter().map(squashed).collect()
}

fn squashed(byte: &u8) -> u8 {
    if byte.is_ascii_alphanumeric() { *byte } else { b'_' }
}

fn push_line(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Converts and compares; both sides are joined by line ends for readability.
    fn converts(openmetrics: &str, text: &str) {
        let got = to_text(openmetrics.as_bytes());
        assert_eq!(String::from_utf8(got).unwrap(), text);
    }

    #[test]
    fn a_counter_gets_its_suffix_and_created_becomes_a_gauge_behind_it() {
        converts(
            "# HELP c What.\n# TYPE c counter\nc_total{k=\"1\"} 5\nc_created{k=\"1\"} 1.7e9\nc_total{k=\"2\"} 6\n\
             c_created{k=\"2\"} 1.8e9\n# TYPE g gauge\ng 1\n# EOF\n",
            "# HELP c_total What.\n# TYPE c_total counter\nc_total{k=\"1\"} 5\nc_total{k=\"2\"} 6\n\
             # HELP c_created What.\n# TYPE c_created gauge\nc_created{k=\"1\"} 1.7e9\nc_created{k=\"2\"} 1.8e9\n\
             # TYPE g gauge\ng 1\n",
        );
    }

    #[test]
    fn metadata_in_any_order_and_without_samples() {
        converts(
            "# TYPE c counter\n# UNIT c seconds\n# HELP c What.\n# EOF\n",
            "# TYPE c_total counter\n# HELP c_total What.\n",
        );
    }

    #[test]
    fn a_histogram_whose_name_ends_in_total_keeps_it() {
        converts(
            "# TYPE t_total histogram\nt_total_bucket{le=\"+Inf\"} 1 # {trace_id=\"x\"} 0.5 1.5\nt_total_count 1\nt_total_sum 2\n\
             t_total_created 3\n# EOF",
            "# TYPE t_total histogram\nt_total_bucket{le=\"+Inf\"} 1\nt_total_count 1\nt_total_sum 2\n\
             # TYPE t_total_created gauge\nt_total_created 3\n",
        );
    }

    #[test]
    fn types_that_text_does_not_know() {
        converts("# TYPE x unknown\nx 1\n", "# TYPE x untyped\nx 1\n");
        converts("# TYPE x info\nx_info{v=\"1\"} 1\n", "# TYPE x_info gauge\nx_info{v=\"1\"} 1\n");
        converts("# TYPE x stateset\nx{x=\"a\"} 1\n", "# TYPE x gauge\nx{x=\"a\"} 1\n");
        converts(
            "# HELP x What.\n# TYPE x gaugehistogram\nx_bucket{k=\"1\",le=\"+Inf\"} 2\nx_gcount{k=\"1\"} 2\nx_gsum{k=\"1\"} 3\n\
             x_bucket{k=\"2\",le=\"+Inf\"} 2\n",
            "# HELP x_bucket What.\n# TYPE x_bucket gauge\nx_bucket{k=\"1\",le=\"+Inf\"} 2\nx_bucket{k=\"2\",le=\"+Inf\"} 2\n\
             # HELP x_gcount What.\n# TYPE x_gcount gauge\nx_gcount{k=\"1\"} 2\n\
             # HELP x_gsum What.\n# TYPE x_gsum gauge\nx_gsum{k=\"1\"} 3\n",
        );
    }

    #[test]
    fn a_type_that_nobody_knows_is_left_to_the_scanner() {
        converts("# TYPE x nonsense\nx 1\n", "# TYPE x nonsense\nx 1\n");
    }

    #[test]
    fn a_counter_that_is_not_true_to_openmetrics_keeps_name_and_metadata_together() {
        converts("# TYPE x counter\nx 1\n", "# TYPE x counter\nx 1\n");
        converts("# TYPE x_total counter\nx_total 1\n", "# TYPE x_total counter\nx_total 1\n");
    }

    #[test]
    fn exemplars_go_and_seconds_become_milliseconds() {
        converts("c_total{k=\"a # b\"} 5 # {trace_id=\"t\"} 1.0\n", "c_total{k=\"a # b\"} 5\n");
        converts("c_total 5 1795984744.512 # {} 1.0 1\n", "c_total 5 1795984744512\n");
        converts("a 1 1700000000\nb{k=\"v\"} 1 0.0005\nc 1 -1.5\n", "a 1 1700000000000\nb{k=\"v\"} 1 1\nc 1 -1500\n");
        converts("a 1 NaN\nb 1 1e300\n", "a 1 NaN\nb 1 1e300\n");
    }

    #[test]
    fn names_in_quotes_are_escaped_by_underscores() {
        converts("{\"http.lat\",k=\"1\"} 4\n", "http_lat{k=\"1\"} 4\n");
        converts("{\"a:b é\\\"\"} 4\n", "a:b___ 4\n");
        converts("{\"a\\\\n\"} 4\n", "a_n 4\n");
        converts("{\"1.x\", \"l:1.z\" = \"a\\\"b\" , k=\"\"} 4\n", "__x{l_1_z=\"a\\\"b\",k=\"\"} 4\n");
        converts(
            "# HELP \"a.b\" What.\n# TYPE \"a.b\" gauge\n{\"a.b\"} 1\n",
            "# HELP a_b What.\n# TYPE a_b gauge\na_b 1\n",
        );
    }

    #[test]
    fn metadata_follows_the_spelling_of_the_samples() {
        converts(
            "# HELP vllm:c What.\n# TYPE vllm:c counter\nvllm_c_total 1\nvllm_c_created 2\n# TYPE vllm:empty counter\n# EOF\n",
            "# HELP vllm_c_total What.\n# TYPE vllm_c_total counter\nvllm_c_total 1\n\
             # HELP vllm_c_created What.\n# TYPE vllm_c_created gauge\nvllm_c_created 2\n# TYPE vllm_empty_total counter\n",
        );
    }

    #[test]
    fn help_loses_the_escaping_of_quotes_only() {
        converts("# HELP a a \\\"b\\\" \\\\ \\n c\\\n", "# HELP a a \"b\" \\\\ \\n c\\\n");
        converts("# HELP a \\\"\n", "# HELP a \"\n");
    }

    #[test]
    fn what_is_not_understood_stays_where_it_is() {
        for page in [
            "a 1 2 3\n",
            "\n",
            "a\n",
            "a{k=\"v} 1\n",
            "# comment\n",
            "{} 1\n",
            "x{\"y\"} 1\n",
            "\u{0}\n",
            "{\"\"} 1\n",
            "#EOF\n",
            "# TYPE a\u{16}gauge\na 1\n",
            "# TYPE a\na 1\n",
        ] {
            converts(page, page);
        }
        converts(
            "# TYPE a gauge\na{k=\"1\"} 1\n???\na{k=\"2\"} 1\n",
            "# TYPE a gauge\na{k=\"1\"} 1\n???\na{k=\"2\"} 1\n",
        );
    }

    #[test]
    fn line_ends_of_dos_and_a_missing_last_one() {
        converts("# TYPE c counter\r\nc_total 1\r\n# EOF\r\n", "# TYPE c_total counter\nc_total 1\n");
        converts("a 1", "a 1\n");
    }

    #[test]
    fn the_end_mark_tells_openmetrics() {
        for page in ["a 1\n# EOF\n", "# EOF", "a 1\n# EOF\r\n", "# EOF\n\n  \n"] {
            assert!(is_openmetrics(page.as_bytes()), "{page:?}");
        }
        for page in ["", "\n", "a 1\n", "# EOF\na 1\n", "#EOF\n", "# EOFX\n"] {
            assert!(!is_openmetrics(page.as_bytes()), "{page:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_some_page(body: Vec<u8>) {
            is_openmetrics(&body);
            to_text(&body);
        }

        #[test]
        fn nearly_good_pages_keep_their_samples(body in "((# (HELP|TYPE|UNIT) [ab:.\"]{1,3} (counter|info|x)|[ab_:]{0,3}(_total|_created)?[{}\"=,a. \\\\]{0,6} 1( 2)?( # x)?)\r?\n){0,12}") {
            let samples = |page: &[u8]| lines(page).filter(|line| Sample::read(line).is_some()).count();
            let page = to_text(body.as_bytes());
            proptest::prop_assert_eq!(samples(&page), samples(body.as_bytes()));
        }
    }
}
