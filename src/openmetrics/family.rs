//! The families of an OpenMetrics page, and each as text 0.0.4 has it: one, or one for each part of it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use super::line::{Bytes, Line, Metadata, Sample, is_end_mark, lines, without_end};
use super::quoted::Taken;

/// The page cut into families, in order. One at a time, and each as the bytes that it is: read lines of a page of short
/// ones would take fifty times its memory.
pub(super) fn families<'a>(mut page: &'a [u8], taken: &'a Taken<'a>) -> impl Iterator<Item = Family<'a>> {
    std::iter::from_fn(move || {
        let family;
        (family, page) = Family::first_of(page, taken)?;
        Some(family)
    })
}

/// One family: its metadata, then its samples and whatever stood between them. Both as they came, to be read when they
/// are needed.
pub(super) struct Family<'a> {
    name: Bytes<'a>,
    kind: Option<&'a [u8]>,
    page: &'a [u8],
    /// Names that no name in quotes may take.
    taken: &'a Taken<'a>,
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
    fn first_of(page: &'a [u8], taken: &'a Taken<'a>) -> Option<(Family<'a>, &'a [u8])> {
        let mut family: Option<Family<'a>> = None;
        let mut end = 0;
        for whole in page.split_inclusive(|byte| *byte == b'\n') {
            let text = without_end(whole);
            if !is_end_mark(text) {
                let line = Line::read_beside(text, taken);
                let family = family.get_or_insert_with(|| Family::of(&line, page, taken));
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
    fn of(line: &Line<'a>, page: &'a [u8], taken: &'a Taken<'a>) -> Family<'a> {
        let name = match line {
            Line::Metadata(metadata) => metadata.name.clone(),
            Line::Sample(sample) => sample.name.clone(),
            Line::Other(_) => Cow::Borrowed(&b""[..]),
        };
        Family { name, kind: None, page, taken, metadata: 0..0, lines: 0..0 }
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
        lines(&self.page[self.lines.clone()])
            .filter(|line| !is_end_mark(line))
            .map(|line| Line::read_beside(line, self.taken))
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

    pub(super) fn is_underscored(&self) -> bool {
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
    pub(super) fn write(&self, underscored: bool, out: &mut Vec<u8>) {
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
