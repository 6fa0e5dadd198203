//! Names in quotes: what Prometheus 3 calls UTF-8 names, in text 1.0.0 and in OpenMetrics.
//!
//! Prometheus 2 refuses a whole page for one of them, so they come out without quotes: a name that was always allowed as it
//! is, and any other with `_` for each character that was not. Two names can become one by that. Then neither may speak
//! for the other: what would take the name of another keeps its quotes, and the scanner drops and counts it. A name that
//! needs no change comes first, wherever it stands; of those that do the first on the page.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::line::{Bytes, Line, Sample, escape, quoted, without_end};
use crate::exposition::named_lines;

/// The names on a page that a name in quotes would become, and whose they are.
#[derive(Default)]
pub(super) struct Taken<'a>(HashMap<Bytes<'a>, Owner<'a>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner<'a> {
    /// A name that was always allowed.
    Itself,
    /// The one that stands so in quotes.
    Quoted(&'a [u8]),
}

impl<'a> Taken<'a> {
    /// From all metric names of a page: as they are without quotes, and as they stand in quotes if they do. They are gone
    /// through twice, so that only what a name in quotes becomes has to be kept.
    pub(super) fn of<I: Iterator<Item = (Bytes<'a>, Option<&'a [u8]>)>>(names: impl Fn() -> I) -> Taken<'a> {
        let mut taken = HashMap::new();
        for (name, inside) in names() {
            if let Some(inside) = inside.filter(|inside| *inside != &*name) {
                taken.entry(name).or_insert(Owner::Quoted(inside));
            }
        }
        if !taken.is_empty() {
            for (name, inside) in names() {
                if let (None, Entry::Occupied(mut owner)) =
                    (inside.filter(|inside| *inside != &*name), taken.entry(name))
                {
                    owner.insert(Owner::Itself);
                }
            }
        }
        Taken(taken)
    }

    /// Whether a name that stands so in quotes would take the name of another.
    pub(super) fn is_of_another(&self, name: &[u8], inside: Option<&[u8]>) -> bool {
        let needs_change = inside.filter(|inside| *inside != name);
        needs_change.is_some_and(|inside| self.0.get(name).is_some_and(|owner| *owner != Owner::Quoted(inside)))
    }
}

/// The metric name in a line of OpenMetrics, for [`Taken::of`].
pub(super) fn name_of<'a>(line: &Line<'a>) -> Option<(Bytes<'a>, Option<&'a [u8]>)> {
    match line {
        Line::Metadata(metadata) => Some((metadata.name.clone(), metadata.inside)),
        Line::Sample(sample) => Some((sample.name.clone(), sample.inside)),
        Line::Other(_) => None,
    }
}

/// A page of text without the quotes around its names; `None` where it has none that can go. Lines without such names
/// stay as they are, and so does the rest of those with them.
pub fn unquoted(page: &[u8]) -> Option<Vec<u8>> {
    let lines = || named_lines(page).map(|(name, span)| (name, span.of(page)));
    let names = || {
        lines().filter_map(|(name, line)| match name {
            Some(name) => Some((Bytes::Borrowed(name), None)),
            None => read(line).map(|read| (read.name, read.inside)),
        })
    };
    let taken = Taken::of(names);
    let mut out = Vec::with_capacity(page.len());
    let mut changed = false;
    for (name, line) in lines() {
        let read = if name.is_none() { read(line) } else { None };
        match read.filter(|read| !taken.is_of_another(&read.name, read.inside)) {
            Some(read) => {
                out.extend_from_slice(&read.written);
                out.extend_from_slice(&line[without_end(line).len()..]);
                changed = true;
            }
            None => out.extend_from_slice(line),
        }
    }
    changed.then_some(out)
}

/// A line of text with names in quotes.
struct Read<'a> {
    name: Bytes<'a>,
    /// As the metric name stands in quotes, if it does.
    inside: Option<&'a [u8]>,
    /// Without quotes.
    written: Vec<u8>,
}

fn read(line: &[u8]) -> Option<Read<'_>> {
    let line = without_end(line);
    if line.first() == Some(&b'#') {
        return metadata(line);
    }
    let sample = Sample::read(line).filter(Sample::is_quoted)?;
    Some(Read { written: sample.unquoted(), inside: sample.inside, name: sample.name })
}

/// HELP or TYPE. Text is not as strict as OpenMetrics about blanks.
fn metadata(line: &[u8]) -> Option<Read<'_>> {
    let behind = behind_blanks(line.strip_prefix(b"#")?)?;
    let word = [&b"HELP"[..], b"TYPE"].into_iter().find(|word| behind.starts_with(word))?;
    let (inside, rest) = quoted(behind_blanks(&behind[word.len()..])?)?;
    let name = escape(inside, b':')?;
    Some(Read { written: [b"# ", word, b" ", &name, rest].concat(), inside: Some(inside), name })
}

/// What is behind blanks, of which there must be one.
fn behind_blanks(text: &[u8]) -> Option<&[u8]> {
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    (blanks > 0).then(|| &text[blanks..])
}
