//! A page that is read beside the layout of another one, which must not show.

use kvtier_exporter::dialect::{DIALECTS, NAMES};
use kvtier_exporter::exposition::{Exposition, Layout, Sample};

/// What is read from a page alone and beside the layout of another one, where that is not the same.
pub fn difference(page: &[u8], other: &[u8]) -> Option<(String, String)> {
    let layout = Layout::of(other, &NAMES);
    let (alone, beside) = (Exposition::scan(page, &NAMES), Exposition::scan_beside(&layout, page, &NAMES));
    (!is_same(&alone, &beside)).then(|| (described(&alone), described(&beside)))
}

fn is_same(one: &Exposition<'_>, other: &Exposition<'_>) -> bool {
    one.counts == other.counts
        && one.edits == other.edits
        && one.notes == other.notes
        && one.metadata == other.metadata
        && one.has_quoted_names == other.has_quoted_names
        && wanted().all(|name| one.has(name) == other.has(name))
        && wanted().all(|name| one.samples(name).iter().map(identity).eq(other.samples(name).iter().map(identity)))
}

fn wanted() -> impl Iterator<Item = &'static str> {
    DIALECTS.iter().flat_map(|dialect| dialect.reads.iter().copied())
}

/// All of a sample, so that NaN is NaN.
fn identity<'a>(sample: &Sample<'a>) -> impl PartialEq + use<'a> {
    (sample.name, sample.labels, sample.value.to_bits(), sample.line, sample.value_at)
}

fn described(page: &Exposition<'_>) -> String {
    let samples: Vec<_> = wanted().filter(|name| page.has(name)).map(|name| (name, page.samples(name))).collect();
    format!("{:?}\n{:?}\n{:?}\n{:?}\n{samples:?}", page.counts, page.edits, page.notes, page.metadata)
}
